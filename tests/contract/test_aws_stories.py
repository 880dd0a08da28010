"""The operator's reader, decisions and writes against an AWS account that moto serves; no API server."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from aws_stories import INF2, INF_QUOTA, ON_DEMAND, SPOT, AwsStory, a_pipeline, a_pool, aws_story, settled
from click.testing import CliRunner

from controller.aws.account import NoAccount
from controller.commands.quotas import quotas
from controller.core.cycle import decide
from controller.core.state.decision import ChangeReason, Decision
from controller.core.state.policy import Policy
from controller.kube.actuator import Actuator, Write, WriteOutcome
from controller.kube.auto_scaling import GroupActuator
from controller.kube.cluster import Cluster, View
from controller.kube.gateway import Gateway, Listing, NotFound
from controller.kube.matching import Pods
from controller.kube.reader import Observation, Reader, Resources
from controller.kube.status import pool_status
from controller.kube.store import ResourceStore
from controller.telemetry import Telemetry
from optimizer.model import PoolName


class NoCluster:
    """An API server without objects: all workloads are Auto Scaling groups."""

    def list_all(self, *_: object) -> None:
        raise NotFound("no such kind")

    def pages(self, *_: object, **__: str) -> Iterator[Listing]:
        yield Listing(items=(), resource_version="1")

    def view(self) -> View:
        return View(workloads={}, pods=Pods([]), nodes={})


@dataclass
class Operator:
    """The operator of the namespace `speech`, cycle by cycle."""

    story: AwsStory
    resources: list[dict[str, Any]]
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    telemetry: Telemetry = field(default_factory=Telemetry)
    decisions: list[Decision] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stores = {"SpeechPipeline": ResourceStore(), "ComputePool": ResourceStore()}
        for resource in self.resources:
            name = resource["metadata"]["name"]
            metadata = {**resource["metadata"], "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1"}
            self._stores[resource["kind"]].put({**resource, "metadata": metadata})
        nothing = NoCluster()
        self.reader = Reader(
            cast("Gateway", nothing),
            self.story.metrics,
            Resources(
                self._stores["SpeechPipeline"],
                self._stores["ComputePool"],
                ResourceStore(),
                account=self.story.account,
            ),
            cluster=cast("Cluster", nothing),
            interval_s=15.0,
            reporting_grace_s=0.0,
            clock=self.story.clock,
        )
        self._actuator = Actuator(
            cast("Gateway", nothing), groups=GroupActuator(self.story.account, permit=lambda: None)
        )

    def cycle(self) -> int:
        observation: Observation = self.reader.observe()
        decision = decide(observation.snapshot, Policy(interval_s=15.0))
        for pool in decision.pools:
            state = observation.snapshot.pools[pool.name]
            self.statuses[pool.name] = pool_status(state, pool, self.statuses.get(pool.name, {}), decision.now_s)
        self.reader.remember(observation, decision)
        self.writes += (writes := self._actuator.apply(decision.pipelines))
        assert {write.outcome for write in writes} <= {WriteOutcome.APPLIED}, writes
        self.telemetry.succeeded(observation.snapshot, decision, 0.1, 0)
        self.decisions.append(decision)
        return len(writes)

    def settle(self) -> int:
        return settled(self.cycle, self.story)

    def reasons(self) -> set[ChangeReason]:
        return {write.change.reason for write in self.writes}

    def condition(self, pool: str, kind: str) -> dict[str, Any]:
        return next(each for each in self.statuses[pool]["conditions"] if each["type"] == kind)


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsStory]:
    with aws_story(monkeypatch, "speech") as story:
        yield story


def an_operator(story: AwsStory, *groups: str, **changes: Any) -> Operator:
    return Operator(story, [*(a_pool(group) for group in groups), a_pipeline("speech", *groups, **changes)])


def test_a_spot_price_rise_moves_the_work_and_a_fall_moves_it_back(story: AwsStory) -> None:
    operator = an_operator(story, SPOT, ON_DEMAND)
    story.metrics.offered = 60.0
    operator.settle()
    assert story.desired()[SPOT] > 0
    assert story.desired()[ON_DEMAND] == 0
    assert operator.statuses[SPOT]["price"]["source"] == "Spot"
    assert operator.statuses[SPOT]["price"]["at"] == "g5.xlarge/us-east-1b"

    operator.writes.clear()
    story.service.spot = {("g5.xlarge", "us-east-1a"): 2.1, ("g5.xlarge", "us-east-1b"): 1.9}
    story.pass_time(75.0)
    operator.settle()

    assert story.desired()[SPOT] == 0
    assert story.desired()[ON_DEMAND] > 0
    assert operator.reasons() == {ChangeReason.PRICE}
    assert operator.statuses[SPOT]["price"]["beforePerHour"] == "0.42"

    operator.writes.clear()
    story.service.spot = {("g5.xlarge", "us-east-1a"): 0.4, ("g5.xlarge", "us-east-1b"): 0.4}
    story.pass_time(75.0)
    operator.settle()
    assert story.desired()[ON_DEMAND] == 0
    assert operator.reasons() == {ChangeReason.PRICE}


@pytest.mark.parametrize("price", [0.0, 0.04, 4.3])
def test_an_implausible_price_is_told_and_moves_nothing(story: AwsStory, price: float) -> None:
    operator = an_operator(story, SPOT, ON_DEMAND)
    story.metrics.offered = 60.0
    operator.settle()
    before = story.desired()
    operator.writes.clear()
    story.service.spot = {("g5.xlarge", "us-east-1a"): price}
    story.pass_time(75.0)
    operator.settle()
    assert story.desired() == before
    assert operator.writes == []
    told = operator.condition(SPOT, "PriceCurrent")
    assert (told["status"], told["reason"]) == ("False", "PriceRefused")


def test_a_quota_of_0_is_said_within_a_cycle_and_the_next_pool_serves(story: AwsStory, tmp_path: Path) -> None:
    operator = an_operator(story, INF2, ON_DEMAND)
    story.metrics.offered = 60.0
    story.service.quotas[INF_QUOTA] = 0.0
    operator.cycle()
    assert story.desired()[INF2] == 0
    assert story.desired()[ON_DEMAND] > 0
    told = operator.condition(INF2, "QuotaSuffices")
    assert (told["status"], told["reason"]) == ("False", "QuotaZero")
    quota = operator.statuses[INF2]["quota"]
    assert (quota["limitVcpus"], quota["increaseToVcpus"]) == ("0", 4)
    # The alert SluiceQuotaZero is on this series.
    series = f'sluice_pool_quota_instances{{code="{INF_QUOTA}",pool="{INF2}"}} 0.0'
    assert series in operator.telemetry.exposition().decode()

    # So does the command, with the request to file, and what it is worth.
    manifests = tmp_path / "captions.yaml"
    manifests.write_text(yaml.safe_dump_all(operator.resources))
    result = CliRunner().invoke(quotas, [str(manifests), "--demand", "60", "-o", "json"])
    assert result.exit_code == 1, result.output
    (asked,) = json.loads(result.stdout)["quotas"]
    assert (asked["code"], asked["limit_vcpus"], asked["suffices"]) == (INF_QUOTA, 0.0, False)
    assert f"--quota-code {INF_QUOTA} --desired-value {asked['needed_vcpus']}" in asked["request"]
    assert json.loads(result.stdout)["worth_per_hour"] > 0

    # A quota that was raised is used as soon as it was read again.
    story.service.quotas[INF_QUOTA] = 64.0
    story.pass_time(75.0)
    operator.settle()
    assert story.desired()[INF2] > 0
    assert story.desired()[ON_DEMAND] == 0
    assert operator.condition(INF2, "QuotaSuffices")["status"] == "True"


def test_a_group_is_scaled_up_and_down_and_drains(story: AwsStory) -> None:
    operator = an_operator(story, ON_DEMAND)
    story.metrics.offered = 50.0
    operator.settle()
    up = story.instances(ON_DEMAND)
    assert len(up) >= 3

    # Workers protect their instances while they have sessions; the one without sessions goes first.
    idle, busy, busiest = up[0], up[1], up[2]
    story.metrics.sessions = dict.fromkeys(up, 7.0) | {idle: 0.0, busy: 3.0, busiest: 9.0}
    story.protect(ON_DEMAND, [busy, busiest], protected=True)
    story.metrics.offered = 1.0
    story.pass_time(15.0)
    operator.settle()

    assert story.desired()[ON_DEMAND] == 1
    left = story.instances(ON_DEMAND)
    assert left == sorted([busy, busiest])
    placement = operator.decisions[-1].pipelines[0]
    assert not placement.changes
    # Both still cost: the one that drains is seen beyond the desired capacity.
    (target,) = operator.reader.observe().snapshot.pipelines[0].targets.values()
    assert (target.desired, target.existing) == (1, 2)  # type: ignore[union-attr]

    # The sessions of one end, its worker lifts the protection, and the group terminates it.
    story.protect(ON_DEMAND, [busy], protected=False)
    story.moto.client("autoscaling").set_desired_capacity(AutoScalingGroupName=ON_DEMAND, DesiredCapacity=1)
    story.pass_time(15.0)
    assert story.instances(ON_DEMAND) == [busiest]
    assert operator.cycle() == 0


def test_a_rule_per_zone_adds_for_every_zone_of_the_group(story: AwsStory) -> None:
    """Auto Scaling spreads them evenly over the zones; moto does not."""
    rule = {"name": "busy", "metric": "rxQueuePressure", "above": "0.8", "addReplicas": 2, "per": "Zone"}
    operator = an_operator(story, ON_DEMAND, rules=[rule])
    story.metrics.offered = 1.0
    operator.settle()
    before = story.desired()[ON_DEMAND]
    story.metrics.pressure = 0.9
    operator.cycle()
    assert operator.statuses[ON_DEMAND]["zones"] == 2
    assert story.desired()[ON_DEMAND] == before + 2 * 2


def test_a_restart_without_aws_goes_on_with_prices_and_quotas_of_the_statuses(story: AwsStory) -> None:
    operator = an_operator(story, SPOT, INF2)
    story.metrics.offered = 60.0
    story.service.quotas[INF_QUOTA] = 8.0
    operator.settle()
    after = [
        {**each, "status": operator.statuses[each["metadata"]["name"]]} if each["kind"] == "ComputePool" else each
        for each in operator.resources
    ]
    restarted = Operator(story, after)
    restarted.reader._resources.account = NoAccount()
    pools = restarted.reader.observe().snapshot.pools
    assert pools[PoolName(SPOT)].spec.price_per_hour == 0.42
    quota = pools[PoolName(INF2)].quota
    assert quota is not None
    assert (quota.limit_vcpus, pools[PoolName(INF2)].quota_instances) == (8.0, 2)
