"""The loop while another replica leads, and while this one may not write."""

import threading
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

from builders import a_snapshot, a_state

from controller.core.assess.standing import standing
from controller.core.state.policy import Policy
from controller.health import Health
from controller.kube.gateway import KubeError, NotLeading
from controller.kube.leadership import Leadership
from controller.kube.reader import Observation
from controller.loop import ControlLoop
from controller.telemetry import Telemetry


class Scripted(Leadership):
    """Waits as often as `standings` has entries, each told or raised once; then it leads."""

    def __init__(self, *standings: str | KubeError) -> None:
        self.standings = list(standings)
        self.told: str | KubeError = ""

    def wait(self, timeout_s: float) -> bool:
        if not self.standings:
            return True
        self.told = self.standings.pop(0)
        return False

    def standing(self) -> str:
        if isinstance(self.told, KubeError):
            raise self.told
        return self.told


def a_loop(
    health: Health,
    *,
    resync: Callable[[], None],
    watch: Callable[[], None] = lambda: None,
    permit: Callable[[], None] = lambda: None,
    observe: Callable[[], Observation] | None = None,
    telemetry: Telemetry | None = None,
) -> ControlLoop:
    return ControlLoop(
        reader=Mock(observe=observe or Mock()),
        actuator=Mock(apply=lambda _: (), write_settings=lambda _: ()),
        reporter=Mock(report=lambda *_: frozenset(), unwritten=lambda _: frozenset()),
        resync=resync,
        watch=watch,
        policy=Policy(),
        telemetry=telemetry or Telemetry(),
        health=health,
        permit=permit,
    )


def test_a_standby_is_ready_with_the_resources_read_once_and_reads_them_again_when_it_leads() -> None:
    health, resync = Health(), Mock()
    loop = a_loop(health, resync=resync)

    loop.stand_by(threading.Event(), Scripted("standby, leader is a_1", "standby, leader is a_1"))

    assert (health.problem, health.state) == (None, "standby, leader is a_1")
    assert resync.call_count == 1
    loop._prepare()
    assert resync.call_count == 2, "the former leader may have written since"


def test_a_standby_that_cannot_take_over_is_not_ready_and_says_why() -> None:
    health = Health()
    a_loop(health, resync=Mock()).stand_by(threading.Event(), Scripted(KubeError("leases: connection refused")))
    assert health.problem == "leases: connection refused"

    a_loop(health, resync=Mock(side_effect=KubeError("no CRDs"))).stand_by(threading.Event(), Scripted("standby"))
    assert health.problem == "no CRDs"


def test_a_replica_that_may_not_write_has_no_cycle_and_is_not_ready() -> None:
    health, stop = Health(), threading.Event()

    def permit() -> None:
        stop.set()  # after this cycle
        raise NotLeading("the lease was last renewed 9 s ago")

    resync = Mock(side_effect=stop.set)
    a_loop(health, resync=resync, permit=permit).run(stop)

    assert health.problem == "the lease was last renewed 9 s ago"
    resync.assert_not_called()


def test_the_first_cycle_does_not_share_its_time_with_the_watches_which_begin_after_it_whatever_became_of_it() -> None:
    happened: list[str] = []
    stop = threading.Event()

    def resync() -> None:
        happened.append("read")
        raise KubeError("429")

    def watch() -> None:
        happened.append("watch")
        stop.set()

    a_loop(Health(), resync=resync, watch=watch).run(stop)

    assert happened == ["read", "watch"]


def test_a_standby_watches_what_changes_until_it_leads() -> None:
    watch = Mock()
    a_loop(Health(), resync=Mock(), watch=watch).stand_by(threading.Event(), Scripted("standby"))
    watch.assert_called_once()


def test_a_cycle_counts_the_time_above_the_sla_of_pipelines_that_it_does_not_assess() -> None:
    state, telemetry = a_state(), Telemetry()
    snapshot = replace(a_snapshot(), pipelines=(), standing=(standing(state, None, None),))
    observation = Observation(
        snapshot=snapshot, pipelines={}, pools={}, invalid_pipelines=(), invalid_pools=(), late={state.spec.key: True}
    )
    later = replace(observation, snapshot=replace(snapshot, now_s=snapshot.now_s + 15.0))
    observe = Mock(side_effect=[observation, later])
    loop = a_loop(Health(), resync=Mock(), observe=observe, telemetry=telemetry)
    for _ in range(2):
        loop.cycle()
    labels = 'namespace="speech",pipeline="captions"'
    lines = telemetry.exposition().decode().splitlines()
    assert f"sluice_pipeline_sla_missed_seconds_total{{{labels}}} 15.0" in lines
    assert f"sluice_pipeline_sla_known_seconds_total{{{labels}}} 15.0" in lines
