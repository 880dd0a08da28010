"""What live pipelines leave in later hours, and what a backlog can do with it."""

from dataclasses import replace

import pytest
from backlogs import ITEM_S, a_backlog
from builders import NOW_S, a_placement, a_pool, a_snapshot, a_spec, a_stage, a_state, pools

from controller.core.assess.optimizer_input import optimizer_pipeline
from controller.core.cycle import decide
from controller.core.plan import backlogs
from controller.core.plan.hours import Taken, later_replicas, periods_of, ranked, segments, with_courses
from controller.core.plan.schedule import Course, Period, Schedule, Segment, Work
from controller.core.state.decision import PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.schedule import EventFloor
from controller.core.state.snapshot import PipelineState
from controller.core.state.spec import Declared, PipelineSpec
from optimizer.model import Pipeline, PipelineKey, PlacementKey, Pool, PoolName, Problem, StageName
from profiler.samples import Absence, AbsenceReason

GPU, DEAR = PoolName("gpu"), PoolName("dear")
ENCODER: PlacementKey = (StageName("encoder"), GPU)
ASR_DEAR: PlacementKey = (StageName("asr"), DEAR)
ENCODER_DEAR: PlacementKey = (StageName("encoder"), DEAR)
PRICES = {GPU: 1.0, DEAR: 4.0}
HOUR_S = 3600.0
MISSING = Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")


def pool(name: PoolName, instances: int = 10) -> Pool:
    return Pool(name=name, price_per_hour=PRICES[name], instances=instances)


POOLS = {GPU: pool(GPU), DEAR: pool(DEAR)}
LIVE = a_spec(a_stage("encoder", a_placement("gpu"), a_placement("dear")))
"""A live pipeline of whose stage a replica does 20 items per second on either pool."""


def planned(spec: PipelineSpec, demand: float) -> Pipeline:
    return optimizer_pipeline(spec, demand, known_only=False)


def test_the_most_expensive_replicas_go_first_when_the_demand_falls() -> None:
    found = later_replicas(ranked(planned(LIVE, 100.0), PRICES), {ENCODER: 6, ENCODER_DEAR: 4}, 100.0, 50.0)
    assert (found[ENCODER], found[ENCODER_DEAR]) == (5, 0)


def test_the_cheapest_replicas_come_when_the_demand_rises() -> None:
    found = later_replicas(ranked(planned(LIVE, 100.0), PRICES), {ENCODER: 6, ENCODER_DEAR: 0}, 100.0, 400.0)
    assert (found[ENCODER], found[ENCODER_DEAR]) == (20, 4)


def test_the_last_replica_of_a_stage_stays() -> None:
    assert later_replicas(ranked(planned(LIVE, 100.0), PRICES), {ENCODER: 3}, 100.0, 0.0)[ENCODER] == 1


def test_a_stage_without_replicas_gets_some_when_a_demand_is_expected() -> None:
    assert later_replicas(ranked(planned(LIVE, 0.0), PRICES), {ENCODER: 0}, 0.0, 40.0)[ENCODER] == 4  # half used


def test_the_cheapest_capacity_comes_first_within_instances_and_replicas() -> None:
    spec = a_backlog(a_placement("gpu", service_s=ITEM_S, per_instance=2), a_placement("dear", service_s=ITEM_S))
    found = segments(planned(spec, 0.0), POOLS, {GPU: 3.0, DEAR: 30.0}, 1000.0)
    assert [each.rate_rps for each in found] == pytest.approx([6 / ITEM_S, 20 / ITEM_S])
    assert [each.item_cost for each in found] == pytest.approx([0.5 * ITEM_S / 3600, 4 * ITEM_S / 3600])
    assert found[0].use == {GPU: pytest.approx(ITEM_S / 2)}


def test_the_budget_cuts_the_capacity() -> None:
    spec = a_backlog(a_placement("gpu", service_s=ITEM_S), a_placement("dear", service_s=ITEM_S))
    found = segments(planned(spec, 0.0), POOLS, {GPU: 3.0, DEAR: 30.0}, 7.0)
    assert sum(each.rate_rps for each in found) == pytest.approx((3 + 1) / ITEM_S)
    assert segments(planned(spec, 0.0), POOLS, {GPU: 3.0, DEAR: 30.0}, 0.0) == ()


def test_a_pool_that_does_not_exist_has_no_capacity_in_later_hours() -> None:
    """Its price counts as 0, so it would come first."""
    gone = PoolName("gone")
    spec = a_backlog(a_placement("gone", service_s=ITEM_S), a_placement("dear", service_s=ITEM_S))
    own = {gone: Pool(name=gone, price_per_hour=0.0, instances=4), DEAR: POOLS[DEAR]}
    problem = Problem(pipelines=(planned(spec, 1.0),), pools=own)
    taken = [Taken(instances={}, per_hour={})]
    (period,) = periods_of(problem, spec.key, taken, HOUR_S, without={gone})
    assert [each.use.keys() for each in period.segments] == [{DEAR}]


def test_what_a_course_takes_later_is_not_taken_now() -> None:
    """A backlog that waits one period: the instances that it takes then are free until then, and no longer."""
    periods = tuple(
        Period(length_s=HOUR_S, segments=(Segment(rate_rps=5.0, item_cost=0.001, use={GPU: 2.0}),)) for _ in range(3)
    )
    found = Schedule(rates=(0.0, 5.0, 0.0), done=(0.0, 1.0, 0.0), cost=1.0, complete=True, even_rps=2.0, even=False)
    course = Course(work=Work(left=1.0), periods=periods, time_s=3 * HOUR_S, found=found)
    taken = [Taken(instances={GPU: 3.0}, per_hour={})] * 4
    later = with_courses(taken, {PipelineKey("speech/a"): course}, HOUR_S)
    assert [each.instances[GPU] for each in later] == [3.0, 13.0, 3.0, 3.0]
    assert [sum(each.per_hour.values()) for each in later] == pytest.approx([0.0, 18.0, 0.0, 0.0])


def test_all_stages_are_needed_for_an_item() -> None:
    stages = a_stage("asr", a_placement("gpu", service_s=ITEM_S)), a_stage("text", a_placement("dear", service_s=1.0))
    spec = replace(a_backlog(), stages=stages)
    found = segments(planned(spec, 0.0), POOLS, {GPU: 4.0, DEAR: 1.0}, 1000.0)
    assert sum(each.rate_rps for each in found) == pytest.approx(1.0)  # of the one instance for text
    assert found[0].item_cost == pytest.approx((ITEM_S * 1 + 1.0 * 4) / 3600)


PLACEMENTS = a_placement("gpu", service_s=ITEM_S), a_placement("dear", service_s=ITEM_S)


def world(budget: float | None = None, **spec: object) -> tuple[PipelineState, ...]:
    """Return a live pipeline that needs all of pool gpu for four hours by declaration, and a backlog due in eight."""
    floor = EventFloor(name="day", demand=190.0, start_s=0.0, end_s=NOW_S + 4 * HOUR_S)
    live = a_spec(a_stage("encoder", a_placement("gpu")))
    first = a_state(replace(live, at_least=(floor,)), demand=1.0, replicas={ENCODER: 10})
    own = a_backlog(*PLACEMENTS, due_s=NOW_S + 8 * HOUR_S, **spec)  # type: ignore[arg-type]
    second = a_state(own, demand=20_000.0, replicas={})
    return first, replace(second, memory=replace(second.memory, begun_s=NOW_S))


FLEET = pools(a_pool("gpu", instances=10, ready=10), a_pool("dear", price=4.0, instances=10, ready=10))


def test_a_backlog_waits_for_hours_that_a_live_pipeline_leaves() -> None:
    own = decide(a_snapshot(*world(), fleet=FLEET), Policy()).pipelines[1]
    assert sum(own.desired.values()) == 0
    assert own.backlog is not None
    assert own.backlog.met is True
    assert own.backlog.waits_until_s == pytest.approx(NOW_S + 4 * HOUR_S, abs=HOUR_S)
    assert own.backlog.finish_s is not None
    assert NOW_S + 4 * HOUR_S < own.backlog.finish_s <= NOW_S + 8 * HOUR_S
    assert own.backlog.cost == pytest.approx(20_000 * ITEM_S / 3600, rel=0.1)  # on the cheap pool


def test_without_a_known_service_time_nothing_waits() -> None:
    """How much the night can do is not known either."""
    live, own = world()

    def with_a_second_stage(declared: bool) -> PipelineDecision:
        text = replace(a_placement("dear", service_s=0.01), declared=Declared(service=declared))
        spec = replace(own.spec, stages=(*own.spec.stages, a_stage("text", text)))
        state = replace(a_state(spec, demand=20_000.0), memory=own.memory)
        return decide(a_snapshot(live, state, fleet=FLEET), Policy()).pipelines[1]

    assert sum(with_a_second_stage(declared=True).desired.values()) == 0
    found = with_a_second_stage(declared=False)
    assert all(found.desired[key] > 0 for key in (ASR_DEAR, (StageName("text"), DEAR)))
    assert found.backlog is not None
    assert found.backlog.waits_until_s is None


def test_what_an_earlier_backlog_is_scheduled_to_use_is_not_free_for_the_next() -> None:
    """The first needs all of the night; the second, with half as many items, works by day."""
    live, first = world(priority=5)
    first = replace(first, demand=3.6 * HOUR_S * 9 / ITEM_S)
    _, second = world(name="second")
    found = decide(a_snapshot(live, first, second, fleet=FLEET), Policy()).pipelines
    alone = decide(a_snapshot(live, second, fleet=FLEET), Policy()).pipelines
    assert sum(alone[1].desired.values()) == 0
    assert sum(found[2].desired.values()) > 0


def test_of_many_backlogs_the_last_ones_keep_the_even_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them would count on the same night."""
    live, first = world(priority=5)
    _, last = world(name="last")
    last = replace(last, demand=5_000.0)  # both have room in the night

    def waiting() -> list[bool]:
        found = decide(a_snapshot(live, replace(first, demand=5_000.0), last, fleet=FLEET), Policy()).pipelines
        assert all(own.backlog is not None and own.backlog.met for own in found[1:])
        return [sum(own.desired.values()) == 0 for own in found[1:]]

    assert waiting() == [True, True]
    monkeypatch.setattr(backlogs, "APART", 1)
    assert waiting() == [True, False]


def test_an_earlier_backlog_that_waits_leaves_the_next_period_to_itself() -> None:
    """It takes what is free from the end of the day on, also for a next one whose periods are shorter."""
    live, first = world(priority=5)
    first = replace(first, demand=3.6 * HOUR_S * 9 / ITEM_S)
    for due_in_s in (6 * HOUR_S, 7 * HOUR_S, 12 * HOUR_S):
        own = a_backlog(*PLACEMENTS, due_s=NOW_S + due_in_s, name="second")
        second = a_state(own, demand=2_000.0)
        second = replace(second, memory=replace(second.memory, begun_s=NOW_S))
        found = decide(a_snapshot(live, first, second, fleet=FLEET), Policy()).pipelines
        assert (sum(found[2].desired.values()) == 0) is (due_in_s > 8 * HOUR_S)


def test_the_liveness_probe_sees_progress_with_every_backlog() -> None:
    live, own = world()
    others = [world(name=f"archive-{number}")[1] for number in range(5)]
    beats: list[None] = []
    decide(a_snapshot(live, own, *others, fleet=FLEET), Policy(), beat=lambda: beats.append(None))
    assert len(beats) >= 6


def test_without_an_answer_a_backlog_that_waits_goes_on_waiting_and_starts_in_time() -> None:
    live, own = world()
    first = decide(a_snapshot(live, own, fleet=FLEET), Policy()).pipelines[1]
    missing = replace(own, memory=first.memory, demand=MISSING)
    soon = decide(replace(a_snapshot(live, missing, fleet=FLEET), now_s=NOW_S + 60), Policy()).pipelines[1]
    assert sum(soon.desired.values()) == 0
    late = decide(replace(a_snapshot(live, missing, fleet=FLEET), now_s=NOW_S + 6.5 * HOUR_S), Policy()).pipelines[1]
    assert sum(late.desired.values()) > 0


def test_replicas_that_a_live_pipeline_is_about_to_give_up_are_waited_for() -> None:
    """Its demand has fallen, and it removes its replicas in this cycle: nothing starts on the expensive pool."""
    live = a_state(a_spec(a_stage("encoder", a_placement("gpu"))), demand=1.0, replicas={ENCODER: 10})
    _, own = world()
    found = decide(a_snapshot(live, own, fleet=FLEET), Policy()).pipelines
    assert found[0].desired[ENCODER] < 10
    assert found[1].desired[ASR_DEAR] == 0
