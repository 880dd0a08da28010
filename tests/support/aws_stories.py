"""A pipeline on plain instances of three Auto Scaling groups, whose pools ask AWS for prices and a quota."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aws_service import AwsService, aws_service
from moto_account import REGION, MotoAccount, moto_account
from typing_extensions import override

from controller.aws.account import AwsAccount
from controller.aws.clients import AwsClients
from controller.aws.groups import AwsGroups
from controller.aws.prices import AwsPrices
from controller.aws.quotas import AwsQuotas
from controller.core.state.cloud import AwsPrice, PriceQuote, QuotaSource
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Quantity
from profiler.sources.base import ReadAnswer, ReadRequest

SPOT, ON_DEMAND, INF2 = "asr-spot", "asr-on-demand", "asr-inf2"
"""The names of the groups, which begin those of the pools."""
INF_QUOTA = "L-1945791B"
_TYPES: Mapping[str, tuple[str, str]] = {
    SPOT: ("g5.xlarge", "Spot"),
    ON_DEMAND: ("g5.xlarge", "OnDemand"),
    INF2: ("inf2.xlarge", "OnDemand"),
}
RATE_RPS = 15.0
"""What one instance serves at a good latency, about: its service time is 50 ms."""


@dataclass
class Clock:
    """The time of this machine, moved on by tests that do not want to wait."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass
class Metrics:
    """A `MetricSource` of one pipeline: its demand, what every instance serves, and sessions by the instance."""

    offered: float = 0.0
    sessions: dict[str, float] = field(default_factory=dict)
    pressure: float = 0.0

    def read(self, request: ReadRequest) -> ReadAnswer:
        missing = Absence(reason=AbsenceReason.MISSING)
        seen = {Quantity.ARRIVAL_RATE: 1.0, Quantity.COMPLETION_RATE: 1.0, Quantity.RX_QUEUE_PRESSURE: self.pressure}
        return ReadAnswer(
            placements={
                (target.pipeline, target.stage, target.placement): PlacementSamples(
                    readings=seen if target.pods else {},
                    sessions={pod: self.sessions[pod] for pod in target.pods if pod in self.sessions},
                )
                for target in request.placements
            },
            scalars={key: self.offered if query == "offered" else missing for key, query in request.scalars.items()},
            problems=(),
        )


class SteppedAccount(AwsAccount):
    """Asks AWS in the thread of the test, for what is due when a cycle names it."""

    def __init__(self, *ports: Any, **settings: Any) -> None:
        super().__init__(*ports, **settings)
        self.close()  # no threads of its own

    @override
    def watch(
        self,
        prices: Mapping[AwsPrice, PriceQuote | None],
        quotas: Collection[QuotaSource],
        groups: Collection[str] = (),
    ) -> None:
        super().watch(prices, quotas, groups)
        self.refresh()


@dataclass
class AwsStory:
    """The account as the operator sees it at `service.url`, and as its owner does."""

    moto: MotoAccount
    service: AwsService
    account: AwsAccount
    clock: Clock
    metrics: Metrics = field(default_factory=Metrics)

    def pass_time(self, seconds: float) -> None:
        """Let time pass; the next cycle asks for everything that is due by then."""
        self.clock.ahead_s += seconds

    def desired(self) -> Mapping[str, int]:
        """Return the desired capacity of the groups."""
        return {name: self.moto.desired(name) for name in (SPOT, ON_DEMAND, INF2)}

    def instances(self, name: str) -> list[str]:
        """Return the IDs of the instances of a group."""
        found = self.moto.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        return sorted(each["InstanceId"] for each in found["AutoScalingGroups"][0]["Instances"])

    def protect(self, name: str, instances: list[str], protected: bool) -> None:
        """Protect instances from scale-in, as a worker does while it has sessions."""
        self.moto.client("autoscaling").set_instance_protection(
            AutoScalingGroupName=name, InstanceIds=instances, ProtectedFromScaleIn=protected
        )


@contextmanager
def aws_story(monkeypatch: pytest.MonkeyPatch, namespace: str) -> Iterator[AwsStory]:
    """Run moto's server with three groups for `namespace`, and the account of an operator that asks it."""
    with moto_account() as moto, aws_service(moto.url) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL", service.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        for name in _TYPES:
            moto.make_group(name, minimum=0, maximum=10, desired=0, namespace=namespace)
        service.on_demand = {"g5.xlarge": 1.006, "inf2.xlarge": 0.7582}
        service.spot = {("g5.xlarge", "us-east-1a"): 0.40, ("g5.xlarge", "us-east-1b"): 0.42}
        service.quotas = {INF_QUOTA: 64.0}
        clients, clock = AwsClients(region=REGION), Clock()
        account = SteppedAccount(
            AwsPrices(clients.client),
            AwsQuotas(clients.client),
            lambda: AwsGroups(clients.client, REGION),
            clock=clock,
            jitter=lambda: 0.5,
        )
        yield AwsStory(moto=moto, service=service, account=account, clock=clock)


def a_pool(group: str, suffix: str = "") -> dict[str, Any]:
    """Return the manifest of the pool of a group, named like the group and `suffix`."""
    instance_type, purchase = _TYPES[group]
    capacity: dict[str, Any] = {"autoScalingGroup": group}
    if group == INF2:
        capacity["quota"] = {"family": "Inf", "region": REGION}
    aws = {"instanceType": instance_type, "region": REGION, "purchase": purchase, "refresh": "1m"}
    return {
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "ComputePool",
        "metadata": {"name": f"{group}{suffix}"},
        "spec": {
            "device": "Inferentia" if group == INF2 else "GPU",
            "nodeSelector": {"sluice.dev/pool": f"{group}{suffix}"},
            "price": {"aws": aws},
            "capacity": capacity,
        },
    }


def a_pipeline(namespace: str, *groups: str, suffix: str = "", **changes: Any) -> dict[str, Any]:
    """Return the manifest of a pipeline of one stage on these groups, whose demand is the query `offered`."""
    placements = [
        {
            "pool": f"{group}{suffix}",
            "target": {"apiVersion": "sluice.dev/v1alpha1", "kind": "AutoScalingGroup", "name": group},
            "replicas": {"min": 0, "max": 10},
            "perInstance": 1,
            "serviceTime": {"fixed": "50ms", "cv": "0.3"},
            "startup": "1s",
        }
        for group in groups
    ]
    return {
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "SpeechPipeline",
        "metadata": {"name": "captions", "namespace": namespace},
        "spec": {
            "demand": {"unit": "Requests", "query": "offered"},
            "sla": {"latency": "500ms"},
            "budget": {"perHour": "40"},
            "scaling": {"scaleDown": {"stabilization": "0s", "drain": "0s"}},
            "stages": [{"name": "asr", "placements": placements, **changes}],
        },
    }


def settled(cycle: Callable[[], int], story: AwsStory, cycles: int = 12) -> int:
    """Run cycles of 15 s until three in a row change nothing; return how many it took. `cycle` returns its changes."""
    quiet = 0
    for number in range(1, cycles + 1):
        quiet = 0 if cycle() else quiet + 1
        story.pass_time(15.0)
        if quiet == 3:
            return number
    raise AssertionError(f"changes after {cycles} cycles: {story.desired()}")
