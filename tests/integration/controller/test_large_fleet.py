"""A fleet that is planned in turns, on the real API server: what nothing costs, and what one change does.

The turns are made small here, so that sixty pipelines are many.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from large_fleets import LargeFleet, Maker
from synthetic_metrics import SyntheticMetrics

from controller.core import cycle
from controller.core.plan import large_fleet
from controller.core.state.decision import Decision, HoldReason
from controller.core.state.policy import Policy
from controller.health import Health
from controller.kube import turns
from controller.kube.actuator import Actuator
from controller.kube.cluster import Cluster
from controller.kube.events import EventRecorder
from controller.kube.gateway import DEPLOYMENTS, PIPELINES, POOLS, Gateway, Resource
from controller.kube.reader import Reader, Resources
from controller.kube.reporter import Reporter
from controller.kube.store import ResourceStore
from controller.loop import ControlLoop
from controller.telemetry import Telemetry
from simulations.lab.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.lab

PIPELINES_MADE = 60
_NUMBERS = count()
"""The namespaces of an earlier fleet may still be there."""


class Operator:
    """An operator that has just been started, and what it asks of the API server."""

    def __init__(self, kubeconfig: Path, fleet: LargeFleet, parts: ExitStack) -> None:
        self.requests: Counter[str] = Counter()
        gateway = parts.enter_context(Gateway(kubeconfig, on_request=lambda verb: self.requests.update([verb])))
        pipelines, pools = ResourceStore(), ResourceStore()
        cluster = Cluster(gateway, namespaces=fleet.namespaces)

        def resync() -> None:
            pipelines.resync(gateway.pages(PIPELINES))
            pools.resync(gateway.pages(POOLS))
            cluster.resync()

        self.resync = resync
        reader = Reader(
            gateway,
            SyntheticMetrics(tails=False),
            Resources(pipelines, pools, ResourceStore(), namespaces=fleet.namespaces),
            cluster=cluster,
            interval_s=15.0,
            reporting_grace_s=0.0,
        )
        reporter = Reporter(
            gateway, EventRecorder(gateway), pipelines=pipelines, pools=pools, budgets=ResourceStore(), interval_s=15.0
        )
        parts.enter_context(closing(reader))
        parts.enter_context(closing(reporter))
        self.loop = ControlLoop(
            reader=reader,
            actuator=Actuator(gateway, written=cluster.written),
            reporter=reporter,
            resync=resync,
            policy=Policy(interval_s=15.0),
            telemetry=Telemetry(),
            health=Health(),
        )

    def cycle(self) -> Decision:
        decision, _ = self.loop.cycle()
        return decision


def waiting(decision: Decision) -> int:
    return sum(HoldReason.AWAITING_TURN in {hold.reason for hold in pipeline.holds} for pipeline in decision.pipelines)


def of_fleet(maker: Maker, objects: LargeFleet, kind: Resource) -> Iterator[dict[str, Any]]:
    items = (each for page in maker.gateway.pages(kind) for each in page.items)
    return (each for each in items if each["metadata"]["namespace"] in objects.namespaces)


def readiness(maker: Maker, objects: LargeFleet) -> Counter[str]:
    found = (each.get("status", {}).get("conditions", []) for each in of_fleet(maker, objects, PIPELINES))
    return Counter(each["reason"] for conditions in found for each in conditions if each["type"] == "Ready")


class UntilAPause(threading.Event):
    """Is set with the first pause that is to be made."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None or timeout > 0:
            self.set()
        return self.is_set()


@pytest.fixture
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet of more than ten pipelines is assessed and planned in turns of 15."""
    monkeypatch.setattr(cycle, "AT_ONCE", 10)
    monkeypatch.setattr(turns, "AT_ONCE", 10)
    monkeypatch.setattr(turns, "MOST", 25)
    monkeypatch.setattr(turns, "PER_TURN", 15)
    monkeypatch.setattr(large_fleet, "PER_TURN", 15)


@pytest.fixture
def fleet(control_plane: ControlPlane, operator_kubeconfig: Path) -> Iterator[tuple[LargeFleet, Maker]]:
    assert operator_kubeconfig.exists(), "the CRDs are there"
    fleet = LargeFleet(pipelines=PIPELINES_MADE, prefix=f"large-{next(_NUMBERS)}")
    with closing(Maker(control_plane.kubeconfig)) as maker:
        maker.create(fleet)
        yield fleet, maker
        maker.remove(fleet)


def with_one_more(
    maker: Maker, pipeline: dict[str, Any], deployments: list[dict[str, Any]]
) -> tuple[int, Callable[[], int]]:
    """Let the first placement of a pipeline have one more replica than now at least; return that, and what it has."""
    namespace, target = pipeline["metadata"]["namespace"], deployments[0]["metadata"]["name"]

    def now() -> int:
        replicas: int = maker.gateway.get(DEPLOYMENTS, namespace, target)["spec"]["replicas"]
        return replicas

    least = now() + 1
    pipeline["spec"]["stages"][0]["placements"][0]["replicas"]["min"] = least
    path = PIPELINES.path(namespace, pipeline["metadata"]["name"])
    maker.call("PATCH", path, {"spec": {"stages": pipeline["spec"]["stages"]}})
    return least, now


def test_turns_settle_cost_nothing_survive_a_restart_and_answer_a_change_within_a_cycle(
    fleet: tuple[LargeFleet, Maker], operator_kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle, "AT_ONCE", 10)
    monkeypatch.setattr(large_fleet, "PER_TURN", 25)
    objects, maker = fleet
    with ExitStack() as parts:
        operator = Operator(operator_kubeconfig, objects, parts)
        assert waiting(operator.cycle()) == PIPELINES_MADE - 25
        quiet = 0
        before = maker.versions(objects)
        for _ in range(40):
            maker.play_pods(objects)
            operator.resync()
            decision = operator.cycle()
            now = maker.versions(objects)
            quiet = quiet + 1 if now == before and not waiting(decision) else 0
            before = now
            if quiet == 3:
                break
        assert quiet == 3, "it does not come to rest"

        operator.requests.clear()
        for _ in range(3):
            operator.cycle()
        assert operator.requests == {}, "everything that a cycle reads is watched"
        assert maker.versions(objects) == before

        operator = Operator(operator_kubeconfig, objects, parts)
        for _ in range(3):
            assert not waiting(operator.cycle()), "the statuses have the plans"
        assert maker.versions(objects) == before, "a restart with nothing changed writes nothing"

        least, asked = with_one_more(maker, *next(iter(objects.resources())))
        operator.resync()
        operator.requests.clear()
        operator.cycle()
        assert asked() == least
        del operator.requests["GET"]
        assert operator.requests == {"PATCH": 2, "POST": 1}, "a status, a scale and an Event"


@pytest.mark.usefixtures("small_turns")
def test_a_fleet_that_is_assessed_in_turns_has_statuses_from_the_start_settles_and_answers_a_change(
    fleet: tuple[LargeFleet, Maker], operator_kubeconfig: Path
) -> None:
    objects, maker = fleet

    def replicas_of() -> dict[str, int]:
        return {each["metadata"]["name"]: each["spec"]["replicas"] for each in of_fleet(maker, objects, DEPLOYMENTS)}

    with ExitStack() as parts:
        assert readiness(maker, objects) == {"NotAssessed": PIPELINES_MADE}, "each has a status without an operator"
        operator = Operator(operator_kubeconfig, objects, parts)
        assert len(operator.cycle().pipelines) == 15
        assert readiness(maker, objects)["NotAssessed"] == PIPELINES_MADE - 15
        quiet = 0
        before = replicas_of()
        for _ in range(80):
            maker.play_pods(objects)
            operator.resync()
            operator.cycle()
            now = replicas_of()
            quiet = quiet + 1 if now == before else 0
            before = now
            if quiet == turns.EVERY + 1:
                break
        assert quiet == turns.EVERY + 1, "it does not come to rest"
        assert "NotAssessed" not in readiness(maker, objects)
        assert len(operator.cycle().pipelines) <= 25

        operator = Operator(operator_kubeconfig, objects, parts)
        for _ in range(4):
            assert not waiting(operator.cycle()), "the statuses have the plans"
        assert replicas_of() == before, "a restart with nothing changed scales nothing"

        least, asked = with_one_more(maker, *list(objects.resources())[-1])
        operator.resync()
        operator.cycle()
        assert asked() == least


@pytest.mark.usefixtures("small_turns")
def test_the_first_pause_comes_when_every_pipeline_has_its_first_plan_and_status(
    fleet: tuple[LargeFleet, Maker], operator_kubeconfig: Path
) -> None:
    objects, maker = fleet
    with ExitStack() as parts:
        Operator(operator_kubeconfig, objects, parts).loop.run(UntilAPause())
        found = readiness(maker, objects)
    assert found.total() == PIPELINES_MADE
    assert not {"NotAssessed", "AwaitingTurn"} & found.keys()
