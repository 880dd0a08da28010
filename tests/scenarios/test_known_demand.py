"""From 8:00 at least 400 requests/s: a day of `spec.demand.atLeast` in cycles of `decide`, with real plans."""

from dataclasses import replace
from datetime import datetime

from builders import ENCODER, VAD, a_placement, a_pool, a_scaling, a_snapshot, a_spec, a_stage, a_state, applied, pools

from controller.core.cycle import decide
from controller.core.messages.explain import explain_pipeline, reason_sentence
from controller.core.messages.summary import summary
from controller.core.state.decision import ChangeReason, HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.schedule import DemandFloor, EventFloor, WeeklyFloor
from controller.core.state.snapshot import Snapshot
from controller.resources.time_zones import time_zone
from profiler.samples import Absence, AbsenceReason, Reading

STARTUP_S = 120.0
BUSINESS_HOURS = WeeklyFloor(
    name="business-hours",
    demand=400.0,
    from_s=8 * 3600.0,
    until_s=18 * 3600.0,
    days=(0, 1, 2, 3, 4),
    zone=time_zone("Europe/Berlin"),
)
MISSING = Absence(reason=AbsenceReason.UNAVAILABLE, detail="refused")


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def a_morning(*floors: DemandFloor, demand: Reading = 40.0, idle_after_s: float | None = None) -> Snapshot:
    spec = a_spec(
        a_stage("vad", a_placement("cpu", service_s=0.01, per_instance=4, bounds=(0, 40), startup_s=5.0)),
        a_stage("encoder", a_placement("inferentia", bounds=(0, 60), startup_s=STARTUP_S), after=["vad"]),
        scaling=replace(a_scaling(down_s=60.0), idle_after_s=idle_after_s),
    )
    state = a_state(replace(spec, at_least=floors), demand=demand, replicas={VAD: 2, ENCODER: 5})
    fleet = pools(a_pool("cpu", price=0.5), a_pool("inferentia", instances=60, ready=60))
    return a_snapshot(state, fleet=fleet, now_s=at("2026-11-23T07:50:00+01:00"))


def followed(snapshot: Snapshot, until: str, demand: Reading = 40.0) -> tuple[Snapshot, PipelineDecision]:
    """Return the world at `until`, and the last decision before it."""
    decision = None
    while snapshot.now_s < at(until):
        snapshot = replace(snapshot, pipelines=(replace(snapshot.pipelines[0], demand=demand),))
        answer = decide(snapshot, Policy())
        decision = answer.pipelines[0]
        snapshot = applied(snapshot, answer)
    assert decision is not None
    return snapshot, decision


def encoders(snapshot: Snapshot) -> int:
    return snapshot.pipelines[0].desired(*ENCODER)


def test_replicas_for_the_known_demand_start_one_start_up_time_before_and_go_after_it() -> None:
    night, before = followed(a_morning(BUSINESS_HOURS), "2026-11-23T07:57:45+01:00")
    assert before.demand.planned == before.memory.demand
    assert encoders(night) < 10

    # A cycle of 15 s and a start-up of 120 s before 8:00.
    morning, first = followed(night, "2026-11-23T07:58:00+01:00")
    assert (first.demand.planned, first.demand.known) == (400.0, BUSINESS_HOURS)
    assert {change.reason for change in first.changes} == {ChangeReason.DEMAND}
    assert encoders(morning) > 400 * 0.05

    noon, during = followed(morning, "2026-11-23T08:10:00+01:00")
    assert encoders(noon) == encoders(morning)
    assert during.memory.demand is not None
    assert during.memory.demand < 60, "the floor is no observation"

    evening = replace(noon, now_s=at("2026-11-23T17:59:30+01:00"))
    last, _ = followed(evening, "2026-11-23T18:00:00+01:00")
    assert encoders(last) == encoders(morning)
    fewer = decide(last, Policy()).pipelines[0]
    assert {change.reason for change in fewer.changes} == {ChangeReason.DEMAND}
    assert "demand 400 → " in reason_sentence(fewer)
    after, _ = followed(last, "2026-11-23T18:05:00+01:00")
    assert encoders(after) < 10


def test_no_replica_is_started_on_a_day_without_known_demand() -> None:
    sunday = replace(a_morning(BUSINESS_HOURS), now_s=at("2026-11-22T09:00:00+01:00"))
    assert encoders(followed(sunday, "2026-11-22T09:05:00+01:00")[0]) < 10


def test_more_load_than_known_is_planned_for_as_ever() -> None:
    busy = replace(a_morning(BUSINESS_HOURS), now_s=at("2026-11-23T12:00:00+01:00"))
    _, decision = followed(busy, "2026-11-23T12:01:00+01:00", demand=700.0)
    assert decision.demand.planned is not None
    assert decision.demand.planned >= 700.0
    assert decision.demand.known is None
    assert summary(decision)["demand"].endswith("requests/s")


def test_people_are_told_which_entry_it_is_planned_for() -> None:
    noon = replace(a_morning(BUSINESS_HOURS), now_s=at("2026-11-23T12:00:00+01:00"))
    _, decision = followed(noon, "2026-11-23T12:01:00+01:00")
    assert "demand 400 requests/s;" in reason_sentence(decision)
    lines = explain_pipeline(decision, noon.now_s)
    line = "  demand 400 requests/s (observed 40, forecast 40; known in advance: demand.atLeast business-hours)"
    assert line in lines
    assert summary(decision)["demand"] == "400 requests/s (atLeast business-hours)"


def test_known_demand_counts_while_the_demand_is_missing_and_is_not_raised_by_the_margin() -> None:
    noon = replace(a_morning(BUSINESS_HOURS), now_s=at("2026-11-23T12:00:00+01:00"))
    seen, _ = followed(replace(noon, now_s=noon.now_s - 86_400 * 2), "2026-11-21T12:01:00+01:00")
    lost = replace(seen, now_s=at("2026-11-23T12:00:00+01:00"))
    found, decision = followed(lost, "2026-11-23T12:30:00+01:00", demand=MISSING)
    assert decision.demand.planned == 400.0
    assert encoders(found) > 20
    assert 1.2 < decision.metrics.margin <= 1.5, "the margin is that of the last observed demand"
    assert any(
        "planned for 400 requests/s: demand.atLeast business-hours; no replica" in line
        for line in explain_pipeline(decision, lost.now_s)
    )


def test_known_demand_counts_before_the_first_observation() -> None:
    noon = replace(a_morning(BUSINESS_HOURS), now_s=at("2026-11-23T12:00:00+01:00"))
    first = decide(replace(noon, pipelines=(replace(noon.pipelines[0], demand=MISSING),)), Policy()).pipelines[0]
    assert {change.reason for change in first.changes} == {ChangeReason.DEMAND}, "it is no safety margin"
    found, decision = followed(noon, "2026-11-23T12:00:30+01:00", demand=MISSING)
    assert (decision.demand.planned, decision.memory.demand) == (400.0, None)
    assert encoders(found) > 20


def test_an_event_wakes_an_idle_pipeline_which_is_idle_again_after_it() -> None:
    event = EventFloor(
        name="concert", demand=100.0, start_s=at("2026-11-23T09:00:00+01:00"), end_s=at("2026-11-23T10:00:00+01:00")
    )
    quiet, asleep = followed(a_morning(event, idle_after_s=60.0), "2026-11-23T08:30:00+01:00", demand=0.0)
    assert encoders(quiet) == 0
    assert HoldReason.IDLE in {hold.reason for hold in asleep.holds}
    awake, decision = followed(quiet, "2026-11-23T09:00:00+01:00", demand=0.0)
    assert encoders(awake) > 5
    assert decision.demand.known == event
    assert encoders(followed(awake, "2026-11-23T10:05:00+01:00", demand=0.0)[0]) == 0


def test_known_demand_of_zero_wakes_nothing() -> None:
    event = EventFloor(
        name="nothing", demand=0.0, start_s=at("2026-11-23T07:00:00+01:00"), end_s=at("2026-11-23T10:00:00+01:00")
    )
    quiet, _ = followed(a_morning(event, idle_after_s=60.0), "2026-11-23T08:30:00+01:00", demand=0.0)
    assert encoders(quiet) == 0
