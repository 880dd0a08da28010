"""An AWS account on moto's server, and the operator's loop on the real API server: `pytest tests/integration -k aws`.

The time of the operator is moved on, so that prices are looked up again without waiting.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aws_stories import INF2, INF_QUOTA, ON_DEMAND, SPOT, AwsStory, a_pipeline, a_pool, aws_story, settled
from kubernetes import client

from controller.core.state.policy import Policy
from controller.health import Health
from controller.kube.actuator import Actuator, WriteOutcome
from controller.kube.auto_scaling import GroupActuator
from controller.kube.cluster import Cluster
from controller.kube.events import EventRecorder
from controller.kube.gateway import PIPELINES, POOLS, Gateway
from controller.kube.reader import Reader, Resources
from controller.kube.reporter import Reporter
from controller.kube.store import ResourceStore
from controller.loop import ControlLoop
from controller.telemetry import Telemetry
from simulations.lab.host.binaries import Binaries

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[3]
GROUP, VERSION = PIPELINES.api_version.split("/")


class World:
    """A namespace with a pipeline on Auto Scaling groups, and the operator that serves it, cycle by cycle."""

    def __init__(self, admin: client.ApiClient, gateway: Gateway, namespace: str, story: AwsStory) -> None:
        self.namespace, self.story = namespace, story
        self.suffix = f"-{namespace}"
        self.telemetry = Telemetry()
        self.manifests: list[dict[str, Any]] = []
        self.changes: list[tuple[str, str]] = []
        self._objects, self._core = client.CustomObjectsApi(admin), client.CoreV1Api(admin)
        pipelines, pools = ResourceStore(), ResourceStore()
        cluster = Cluster(gateway, namespaces=(namespace,))

        def resync() -> None:
            pipelines.resync(gateway.pages(PIPELINES))
            pools.resync(gateway.pages(POOLS))
            cluster.resync()

        self._resync = resync
        self._reader = Reader(
            gateway,
            story.metrics,
            Resources(pipelines, pools, ResourceStore(), namespaces=(namespace,), account=story.account),
            cluster=cluster,
            interval_s=15.0,
            reporting_grace_s=0.0,
            clock=story.clock,
        )
        self._reporter = Reporter(
            gateway, EventRecorder(gateway), pipelines=pipelines, pools=pools, budgets=ResourceStore(), interval_s=15.0
        )
        self._loop = ControlLoop(
            reader=self._reader,
            actuator=Actuator(
                gateway, written=cluster.written, groups=GroupActuator(story.account, permit=lambda: None)
            ),
            reporter=self._reporter,
            resync=resync,
            policy=Policy(interval_s=15.0),
            telemetry=self.telemetry,
            health=Health(),
        )

    def apply(self, *groups: str) -> None:
        for pool in (a_pool(group, self.suffix) for group in groups):
            self._objects.create_cluster_custom_object(GROUP, VERSION, "computepools", pool)
            self.manifests.append(pool)
        pipeline = a_pipeline(self.namespace, *groups, suffix=self.suffix)
        self._objects.create_namespaced_custom_object(GROUP, VERSION, self.namespace, "speechpipelines", pipeline)
        self.manifests.append(pipeline)

    def cycle(self) -> int:
        self._resync()
        _, writes = self._loop.cycle()
        assert {write.outcome for write in writes} <= {WriteOutcome.APPLIED}, writes
        self.changes += [(str(write.change.placement), write.change.reason.value) for write in writes]
        return len(writes)

    def settle(self) -> None:
        self.changes.clear()
        settled(self.cycle, self.story)

    def pool(self, group: str) -> dict[str, Any]:
        found: dict[str, Any] = self._objects.get_cluster_custom_object(
            GROUP, VERSION, "computepools", f"{group}{self.suffix}"
        )
        return found

    def condition(self, group: str, kind: str) -> tuple[str, str]:
        conditions = self.pool(group)["status"]["conditions"]
        return next((each["status"], each["reason"]) for each in conditions if each["type"] == kind)

    def placement(self, number: int = 0) -> dict[str, Any]:
        resource = self._objects.get_namespaced_custom_object(
            GROUP, VERSION, self.namespace, "speechpipelines", "captions"
        )
        placement: dict[str, Any] = resource["status"]["stages"][0]["placements"][number]
        return placement

    def events(self) -> set[str]:
        events = self._core.list_namespaced_event(self.namespace).items
        return {event.reason for event in events if event.source.component == "sluice"}

    def close(self) -> None:
        self._reader.close()
        self._reporter.close()
        self._objects.delete_collection_namespaced_custom_object(GROUP, VERSION, self.namespace, "speechpipelines")
        for pool in (each for each in self.manifests if each["kind"] == "ComputePool"):
            self._objects.delete_cluster_custom_object(GROUP, VERSION, "computepools", pool["metadata"]["name"])


@pytest.fixture
def world(
    admin: client.ApiClient, gateway: Gateway, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    with aws_story(monkeypatch, namespace) as story:
        world = World(admin, gateway, namespace, story)
        try:
            yield world
        finally:
            world.close()


def test_a_spot_price_rise_moves_the_work(world: World) -> None:
    story = world.story
    world.apply(SPOT, ON_DEMAND)
    story.metrics.offered = 60.0
    world.settle()
    assert (story.desired()[SPOT] > 0, story.desired()[ON_DEMAND]) == (True, 0)
    assert world.condition(SPOT, "PriceCurrent")[0] == "True"

    story.service.spot = {("g5.xlarge", "us-east-1a"): 2.1, ("g5.xlarge", "us-east-1b"): 1.9}
    story.pass_time(75.0)
    world.settle()

    assert (story.desired()[SPOT], story.desired()[ON_DEMAND] > 0) == (0, True)
    assert {reason for _, reason in world.changes} == {"Price"}
    price = world.pool(SPOT)["status"]["price"]
    assert (price["at"], price["beforePerHour"]) == ("g5.xlarge/us-east-1a", "0.42")
    assert "Scaled" in world.events()


def test_a_quota_of_0_is_said_within_a_cycle_in_the_command_and_by_an_alert(
    world: World, binaries: Binaries, tmp_path: Path
) -> None:
    story = world.story
    world.apply(INF2, ON_DEMAND)
    story.metrics.offered = 60.0
    story.service.quotas[INF_QUOTA] = 0.0

    world.cycle()

    assert (story.desired()[INF2], story.desired()[ON_DEMAND] > 0) == (0, True)
    assert world.condition(INF2, "QuotaSuffices") == ("False", "QuotaZero")
    assert world.pool(INF2)["status"]["quota"]["increaseToVcpus"] == 4
    exposed = next(
        line for line in world.telemetry.exposition().decode().splitlines() if "sluice_pool_quota_instances{" in line
    )
    assert exposed.endswith(" 0.0")
    assert "SluiceQuotaZero" in firing(binaries, exposed, tmp_path)

    manifests = tmp_path / "captions.yaml"
    manifests.write_text(yaml.safe_dump_all(world.manifests))
    told = subprocess.run(
        [sys.executable, "-m", "controller", "quotas", manifests, "--demand", "60", "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=ROOT,
        env=dict(os.environ),
    )
    assert told.returncode == 1, told.stderr
    (quota,) = json.loads(told.stdout)["quotas"]
    assert (quota["code"], quota["limit_vcpus"], quota["suffices"]) == (INF_QUOTA, 0.0, False)
    assert "request-service-quota-increase" in quota["request"]


def firing(binaries: Binaries, exposed: str, folder: Path) -> str:
    """Return what promtool says about the alerts that fire after ten minutes of a line of the exposition."""
    series, _, value = exposed.rpartition(" ")
    case = {
        "rule_files": [str(ROOT / "charts" / "sluice" / "rules.yaml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": series, "values": f"{float(value):g}x20"}],
                # Nothing is expected, so promtool prints what fires.
                "alert_rule_test": [{"eval_time": "10m", "alertname": "SluiceQuotaZero", "exp_alerts": []}],
            }
        ],
    }
    path = folder / "alert.yaml"
    path.write_text(yaml.safe_dump(case))
    result = subprocess.run(
        [binaries.promtool, "test", "rules", path], capture_output=True, text=True, check=False, timeout=60
    )
    return result.stdout + result.stderr


def test_a_group_is_scaled_up_and_down_and_drains(world: World) -> None:
    story = world.story
    world.apply(ON_DEMAND)
    story.metrics.offered = 50.0
    world.settle()
    up = story.instances(ON_DEMAND)
    assert len(up) >= 3
    assert world.placement()["ready"] == len(up)

    # Workers protect their instances while they have sessions; those without sessions go first.
    busy, busiest = up[1], up[2]
    story.metrics.sessions = dict.fromkeys(up, 0.0) | {busy: 3.0, busiest: 9.0}
    story.protect(ON_DEMAND, [busy, busiest], protected=True)
    story.metrics.offered = 1.0
    story.pass_time(15.0)
    world.settle()

    assert story.desired()[ON_DEMAND] == 1
    assert story.instances(ON_DEMAND) == sorted([busy, busiest])
    assert (world.placement()["desired"], world.placement()["ready"]) == (1, 2)

    # The sessions of one end, its worker lifts the protection, and the group terminates it.
    story.protect(ON_DEMAND, [busy], protected=False)
    story.moto.client("autoscaling").set_desired_capacity(AutoScalingGroupName=ON_DEMAND, DesiredCapacity=1)
    story.pass_time(15.0)
    world.cycle()
    assert story.instances(ON_DEMAND) == [busiest]
