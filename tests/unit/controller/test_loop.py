"""The loop while another replica leads and while this one may not write, its pauses, and a defect in its words."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from builders import a_snapshot, a_spec, a_state

from controller import loop
from controller.core.assess.standing import standing
from controller.core.messages.explain import reason_sentence
from controller.core.state.decision import PipelineDecision
from controller.core.state.policy import Policy
from controller.health import Health
from controller.kube.gateway import KubeError, NotLeading
from controller.kube.leadership import Leadership
from controller.kube.reader import Observation
from controller.loop import ControlLoop
from controller.telemetry import Telemetry
from optimizer.model import PipelineKey


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
    is_delayed: Callable[[], bool] = lambda: False,
    unwritten: Callable[[], int] = lambda: 0,
    report: Callable[..., frozenset[PipelineKey]] = lambda *_: frozenset(),
) -> ControlLoop:
    return ControlLoop(
        reader=Mock(observe=observe or Mock(), remember=lambda *_, **__: unwritten()),
        actuator=Mock(apply=lambda _: (), write_settings=lambda _: ()),
        reporter=Mock(report=report, unwritten=lambda _: frozenset(), is_delayed=is_delayed),
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
    control = a_loop(Health(), resync=Mock(), observe=observe, telemetry=telemetry)
    for _ in range(2):
        control.cycle()
    labels = 'namespace="speech",pipeline="captions"'
    lines = telemetry.exposition().decode().splitlines()
    assert f"sluice_pipeline_sla_missed_seconds_total{{{labels}}} 15.0" in lines
    assert f"sluice_pipeline_sla_known_seconds_total{{{labels}}} 15.0" in lines


def test_a_decision_without_words_ends_no_cycle_and_all_are_scaled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def sentence(decision: PipelineDecision) -> str:
        if decision.key == "speech/a":
            raise ValueError("year 8269 is out of range")
        return reason_sentence(decision)

    monkeypatch.setattr(loop, "reason_sentence", sentence)
    snapshot = a_snapshot(*(a_state(a_spec(name=name), demand=50.0) for name in ("a", "b")))
    observation = Observation(snapshot=snapshot, pipelines={}, pools={}, invalid_pipelines=(), invalid_pools=())
    keys = frozenset(state.spec.key for state in snapshot.pipelines)
    actuator = Mock(apply=Mock(return_value=()))
    control = ControlLoop(
        reader=Mock(observe=Mock(return_value=observation), remember=Mock(return_value=0)),
        actuator=actuator,
        reporter=Mock(report=Mock(return_value=keys), unwritten=Mock(return_value=frozenset()), is_delayed=Mock()),
        resync=Mock(),
        policy=Policy(),
        telemetry=Telemetry(),
        health=Health(),
    )

    control.cycle()

    ((acting,), _) = actuator.apply.call_args
    assert {own.key for own in acting} == keys
    (said,) = [record.message for record in caplog.records if record.name == "sluice.decision"]
    assert "speech/a: internal error: ValueError: year 8269 is out of range; speech/b: " in said
    assert any(record.exc_info for record in caplog.records if "speech/a" in record.message)


class Pauses(threading.Event):
    """Ends no wait early, notes how long each was to be, and is set after the last cycle."""

    def __init__(self) -> None:
        super().__init__()
        self.noted_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.noted_s.append(timeout)
        return self.is_set()


def pauses_s(*cycles: tuple[int, int] | None, is_delayed: bool = False) -> list[float]:
    """Return the pauses after `cycles` of a large fleet; None is one that fails.

    Of each there are how many pipelines it leaves without a plan, and how many with a status that is not written yet.
    """
    return run_through(*cycles, is_delayed=is_delayed)[0]


def run_through(*cycles: tuple[int, int] | None, is_delayed: bool = False) -> tuple[list[float], list[bool]]:
    """Return the pauses after `cycles`, as in `pauses_s`, and whether each of them had more time for statuses."""
    stop, left, unwritten, more_time = Pauses(), list(cycles), list[int](), list[bool]()

    def report(*arguments: Any) -> frozenset[PipelineKey]:
        more_time.append(arguments[3])
        return frozenset()

    def observe() -> Observation:
        counts = left.pop(0)
        if not left:
            stop.set()
        if counts is None:
            raise KubeError("500")
        unwritten.append(counts[1])
        snapshot = a_snapshot(a_state(demand=50.0))
        # One more stands with a plan, so the fleet is one that is planned in turns.
        waiting = [standing(a_state(a_spec(name=f"p{at}")), None, None) for at in range(counts[0])]
        planned = standing(a_state(a_spec(name="planned")), None, snapshot.now_s)
        snapshot = replace(snapshot, standing=(*waiting, planned))
        return Observation(snapshot=snapshot, pipelines={}, pools={}, invalid_pipelines=(), invalid_pools=())

    a_loop(
        Health(),
        resync=Mock(),
        observe=observe,
        is_delayed=lambda: is_delayed,
        unwritten=lambda: unwritten[-1],
        report=report,
    ).run(stop)
    return stop.noted_s, more_time


def test_until_all_pipelines_have_their_first_plan_and_its_status_the_next_cycle_begins_at_once() -> None:
    *first, last = pauses_s((20, 0), (10, 5), (0, 10), (0, 3), (0, 0))
    assert max(first) <= 0
    assert last > 10, "all have both"


def test_first_statuses_have_more_time_until_all_are_written_or_what_is_left_lasts() -> None:
    _, more_time = run_through((20, 0), (10, 5), (0, 10), (0, 0), (0, 5))
    assert more_time == [True, True, True, True, False]
    _, more_time = run_through((20, 0), (20, 0), (20, 10), (10, 0), (0, 0))
    assert more_time == [True, True, False, False, True]
    _, more_time = run_through((0, 30), (0, 20))
    assert more_time == [False, False], "no pipeline gets its first plan"


def test_a_fleet_whose_pipelines_stay_without_a_plan_or_status_has_its_usual_pauses() -> None:
    _, *lasting = pauses_s((20, 0), (20, 0), (10, 10), (10, 30))
    assert min(lasting) > 10


def test_statuses_alone_that_wait_for_a_later_cycle_do_not_hasten_it() -> None:
    assert min(pauses_s((0, 30), (0, 20), (0, 10))) > 10
    _, stuck, after = pauses_s((5, 10), (0, 15), (0, 10))
    assert min(stuck, after) > 10, "what is planned has not its status, and no more is planned"


def test_how_many_statuses_of_a_large_fleet_are_still_to_be_written_is_a_metric() -> None:
    telemetry, counts = Telemetry(), [3, 0]
    snapshot = a_snapshot(a_state(demand=50.0))
    observation = Observation(snapshot=snapshot, pipelines={}, pools={}, invalid_pipelines=(), invalid_pools=())
    observe = Mock(return_value=observation)
    loop = a_loop(Health(), resync=Mock(), observe=observe, telemetry=telemetry, unwritten=lambda: counts.pop(0))
    for expected in (3.0, 0.0):
        loop.cycle()
        assert f"sluice_pending_status_pipelines {expected}" in telemetry.exposition().decode().splitlines()


def test_after_a_failed_cycle_and_for_a_server_that_asks_to_wait_there_is_a_pause() -> None:
    _, failed, after = pauses_s((20, 0), None, (10, 0))
    assert failed > 10
    assert after <= 0
    assert min(pauses_s((20, 0), (10, 0), is_delayed=True)) > 10


def test_the_record_of_a_large_fleet_is_not_logged_however_few_are_assessed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for others in ((), (standing(a_state(a_spec(name="other")), None, None),)):
        snapshot = replace(a_snapshot(a_state(demand=50.0)), standing=others)
        observation = Observation(snapshot=snapshot, pipelines={}, pools={}, invalid_pipelines=(), invalid_pools=())
        a_loop(Health(), resync=Mock(), observe=Mock(return_value=observation)).cycle()
    alone, beside = (record.__dict__["record"] for record in caplog.records if record.name == "sluice.decision")
    assert alone is not None
    assert beside is None
