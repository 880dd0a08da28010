"""Stabilisation acts on demand: D = clamp(previous D, lowest over the up window, highest over the down window)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builders import ENCODER, NOW_S, VAD, a_placement, a_scaling, a_snapshot, a_spec, a_stage, a_state, a_target, seen

from controller.core.assess.demand import DemandState, horizon_s, planning_demand, stabilised_demand
from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.state.carry_over import DemandSample, MetricsLoss, PipelineMemory
from controller.core.state.policy import Policy
from controller.core.state.schedule import EventFloor
from controller.core.state.snapshot import TargetState
from optimizer.model import PoolName
from profiler.samples import Absence, AbsenceReason, Reading

MISSING = Absence(reason=AbsenceReason.MISSING)


@pytest.fixture(autouse=True)
def last_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forecast the last value, so that a test says exactly what is forecast."""

    def forecast(samples: Sequence[tuple[float, float]], now_s: float, horizon_s: float) -> float:
        return samples[-1][1]

    monkeypatch.setattr("controller.core.assess.demand.forecast", forecast)
    monkeypatch.setattr("controller.core.assess.demand.growth", lambda *_: 0.0, raising=False)


def follow(
    *readings: Reading, up_s: float = 0.0, down_s: float = 60.0, interval_s: float = 15.0, startup_s: float = 0.0
) -> list[DemandState]:
    memory, found = PipelineMemory(), []
    spec = a_spec(a_stage("a", a_placement("cpu", startup_s=startup_s)), scaling=a_scaling(up_s=up_s, down_s=down_s))
    for index, reading in enumerate(readings):
        state = a_state(spec, demand=reading, memory=memory)
        answer = stabilised_demand(state, NOW_S + index * interval_s, interval_s)
        memory = PipelineMemory(demand=answer.demand, samples=answer.samples, metrics_lost=answer.loss)
        found.append(answer)
    return found


def demands(found: list[DemandState]) -> list[float | None]:
    return [answer.demand for answer in found]


def test_demand_rises_at_once_without_a_scale_up_window() -> None:
    assert demands(follow(10.0, 20.0, 50.0)) == [10, 20, 50]


def test_demand_rises_to_the_lowest_of_the_scale_up_window() -> None:
    assert demands(follow(10.0, 50.0, 40.0, 60.0, up_s=30.0)) == [10, 10, 10, 40]


def test_demand_falls_to_the_highest_of_the_scale_down_window() -> None:
    assert demands(follow(50.0, 10.0, 20.0, 10.0, 10.0, 10.0, down_s=60.0)) == [50, 50, 50, 50, 50, 20]


def test_a_held_demand_says_when_it_is_released() -> None:
    assert follow(50.0, 10.0)[-1].falls_at_s == NOW_S + 60
    assert follow(10.0, 10.0)[-1].falls_at_s is None


def test_room_to_rise_is_kept_until_what_was_decided_serves_and_what_was_seen_for_the_scale_down_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rises = iter([40.0, *[0.0] * 8])
    monkeypatch.setattr("controller.core.assess.demand.growth", lambda *_: next(rises))
    found = follow(50.0, *[10.0] * 8, down_s=90.0)
    # Without a start-up time a decision serves after the next cycle: until then, 30 s, room is kept.
    assert demands(found) == [90, 90, 90, 50, 50, 50, 50, 10, 10]
    assert found[0].forecast == 90
    assert found[1].falls_at_s == NOW_S + 30
    assert found[4].falls_at_s == NOW_S + 90


def test_room_to_rise_is_kept_no_longer_than_the_scale_down_window(monkeypatch: pytest.MonkeyPatch) -> None:
    rises = iter([40.0, 0.0, 0.0, 0.0])
    monkeypatch.setattr("controller.core.assess.demand.growth", lambda *_: next(rises))
    assert demands(follow(50.0, 10.0, 10.0, 10.0, down_s=15.0)) == [90, 90, 10, 10]


def test_how_fast_a_load_rises_is_looked_for_farther_back_than_a_forecast_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[float, float]] = []

    def growth(samples: Sequence[tuple[float, float]], *_: float) -> float:
        asked[:] = [(t_s - NOW_S, load) for t_s, load in samples]
        return 0.0

    monkeypatch.setattr("controller.core.assess.demand.growth", growth)
    follow(*[float(index) for index in range(61)])
    # The last five minutes whole, of the five before them the lowest and the highest of each minute.
    assert [t_s for t_s, _ in asked if t_s >= 600] == [float(t_s) for t_s in range(600, 901, 15)]
    older = [t_s for t_s, _ in asked if t_s < 600]
    assert 300 <= older[0] <= 360
    assert 10 <= len(older) <= 12


@pytest.mark.parametrize("reading", [MISSING, float("nan"), float("inf"), -1.0])
def test_without_a_usable_reading_demand_stays(reading: Reading) -> None:
    answer = follow(10.0, reading)[-1]
    assert answer.demand == 10
    assert answer.forecast is None
    assert isinstance(answer.observed, Absence)


def test_a_demand_that_is_not_seen_is_planned_for_with_a_margin_that_grows_with_its_age_up_to_a_bound() -> None:
    found = demands(follow(100.0, *[MISSING] * 400))
    held = [demand for demand in found[1:] if demand is not None]
    assert held[:5] == pytest.approx([100.0, 100.25, 100.5, 100.75, 101.0])  # 1 % per minute, every 15 s
    assert held == sorted(held)
    assert held[-1] == 150.0


def test_no_demand_is_planned_for_that_no_reading_may_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.core.assess.demand.growth", lambda *_: 1e24)
    found = follow(1e24, 1e24, *[MISSING] * 200)
    assert max(demand for demand in demands(found) if demand is not None) == 1e24
    assert found[1].forecast == 1e24


def test_a_demand_that_was_rising_may_have_gone_on_to_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = [MISSING] * 5  # the fifth cycle is a minute after the first
    monkeypatch.setattr("controller.core.assess.demand.growth", lambda *_: 8.0)
    assert demands(follow(80.0, *gone))[1::4] == pytest.approx([88.0, 96.0])
    monkeypatch.setattr("controller.core.assess.demand.growth", lambda *_: 800.0)
    assert demands(follow(80.0, *gone))[1::4] == pytest.approx([880.0, 1100.0])


def test_the_margin_ends_with_the_loss_and_is_in_no_window() -> None:
    found = follow(100.0, *[MISSING] * 40, 100.0)
    assert found[-2].demand == pytest.approx(100 * (1 + 0.01 * 39 / 4))
    assert found[-1].demand == 100.0
    assert found[-1].loss is None


def test_a_clock_that_is_set_back_while_the_demand_is_lost_lowers_nothing() -> None:
    loss = MetricsLoss(since_s=NOW_S + 3600, demand=80.0, growth_per_minute=0.1)
    answer = stabilised_demand(a_state(demand=MISSING, memory=PipelineMemory(metrics_lost=loss)), NOW_S, 15.0)
    assert answer.demand == 80.0


def test_demand_never_seen_is_not_zero() -> None:
    assert demands(follow(MISSING, MISSING)) == [None, None]


def test_a_gap_does_not_shorten_the_scale_down_window() -> None:
    found = follow(50.0, *[MISSING] * 8, 10.0, 10.0)
    assert demands(found)[-1] == 50


def test_what_is_remembered_is_bounded_and_keeps_the_extremes() -> None:
    readings = [100.0 if index == 200 else float(index % 7) for index in range(3600)]
    found = follow(*readings, down_s=3600.0, interval_s=1.0)
    assert max(len(answer.samples) for answer in found) < 400
    assert found[-1].demand == 100


def test_room_to_rise_outlasts_a_long_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rises = iter([0.0, 80.0, *[0.0] * 60])
    monkeypatch.setattr("controller.core.assess.demand.growth", lambda *_: next(rises))
    found = demands(follow(*[20.0] * 3, *[10.0] * 59, down_s=900.0, startup_s=600.0))
    # A start-up and two cycles after second 15; a part of the window, 28 s, may go by on top.
    assert found[1:44] == [100.0] * 43
    assert found[-1] == 20


def test_what_is_dropped_of_a_long_window_leaves_it_no_sooner() -> None:
    found = demands(follow(100.0, 99.0, 99.0, 99.0, *[10.0] * 50, down_s=600.0))
    assert all(demand is not None and demand >= 99 for demand in found[:44]), "the last 99 is seen at second 45"
    assert found[46] == 10


def test_one_missing_reading_does_not_keep_room_for_the_whole_window(monkeypatch: pytest.MonkeyPatch) -> None:
    rises = iter([40.0, *[0.0] * 9])
    monkeypatch.setattr("controller.core.assess.demand.growth", lambda *_: next(rises, 0.0))
    found = demands(follow(50.0, MISSING, *[50.0] * 6, down_s=300.0))
    assert found[2:4] == [90.0, 90.0]
    assert found[-1] == 50


def test_what_is_decided_now_has_to_serve_after_the_slowest_start_up() -> None:
    stages = (
        a_stage("a", a_placement("cpu", startup_s=5.0)),
        a_stage("b", a_placement("cpu"), a_placement("gpu", startup_s=40.0), after=["a"]),
    )
    assert horizon_s(a_spec(*stages), 15.0) == 55.0


def test_the_forecast_sees_only_what_was_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[tuple[float, float]]] = []

    def forecast(samples: Sequence[tuple[float, float]], now_s: float, horizon_s: float) -> float:
        asked.append(samples)
        return 7.0

    monkeypatch.setattr("controller.core.assess.demand.forecast", forecast)
    held = DemandSample(t_s=NOW_S - 15, observed=None, forecast=9.0)
    old = DemandSample(t_s=NOW_S - 30, observed=5.0, forecast=9.0)
    state = a_state(demand=6.0, memory=PipelineMemory(demand=9.0, samples=(old, held)))
    assert stabilised_demand(state, NOW_S, 15.0).forecast == 7.0
    assert asked == [[(NOW_S - 30, 5.0), (NOW_S, 6.0)]]


def test_a_clock_that_is_set_back_lowers_nothing_before_the_window_has_passed() -> None:
    spec = a_spec(scaling=a_scaling(down_s=60.0))
    ahead = DemandSample(t_s=NOW_S + 3600, observed=80.0, forecast=80.0)
    memory = PipelineMemory(demand=80.0, samples=(ahead,))
    found: list[float | None] = []
    for cycle in range(6):
        answer = stabilised_demand(a_state(spec, demand=5.0, memory=memory), NOW_S + 15 * cycle, 15.0)
        memory = PipelineMemory(demand=answer.demand, samples=answer.samples)
        found.append(answer.demand)
    assert found == [80.0, 80.0, 80.0, 80.0, 80.0, 5.0]


@pytest.mark.parametrize("reading", [-1.0, float("nan"), float("inf"), 1e200])
def test_a_demand_that_no_load_can_be_is_missing(reading: float) -> None:
    answer = follow(10.0, reading)[-1]
    assert isinstance(answer.observed, Absence)
    assert answer.demand == 10.0


NIGHT = PipelineMemory(demand=40.0, samples=(DemandSample(t_s=NOW_S - 15, observed=40.0, forecast=40.0),))


def unasked(
    demand: Reading = MISSING,
    *,
    arrivals: Reading = 0.0,
    replicas: int | TargetState = 2,
    memory: PipelineMemory = NIGHT,
) -> DemandState:
    """Return the demand of a pipeline whose entry stage `vad` has these replicas and arrivals."""
    samples = {VAD: seen(arrival_rate=arrivals)}
    state = a_state(demand=demand, replicas={VAD: replicas, ENCODER: 2}, samples=samples, memory=memory)
    return stabilised_demand(state, NOW_S, 15.0)


def test_an_empty_answer_is_a_demand_of_zero_where_no_items_arrive() -> None:
    answer = unasked()
    assert (answer.observed, answer.no_arrivals_at, answer.loss) == (0.0, (VAD[0],), None)
    assert answer.demand == 40.0, "the scale-down window holds it as after any reading of 0"
    assert unasked(7.0).no_arrivals_at == ()


@pytest.mark.parametrize("reason", [reason for reason in AbsenceReason if reason is not AbsenceReason.MISSING])
def test_a_demand_that_is_absent_for_another_reason_stays_absent(reason: AbsenceReason) -> None:
    assert isinstance(unasked(Absence(reason=reason)).observed, Absence)


def test_where_ingress_pods_crashed_while_items_still_arrive_the_demand_stays_absent() -> None:
    for arrivals in (0.02, 40.0):
        answer = unasked(arrivals=arrivals)
        assert isinstance(answer.observed, Absence)
        assert answer.loss is not None
        assert answer.demand == 40.0


@pytest.mark.parametrize("reason", list(AbsenceReason))
def test_arrivals_that_are_not_measured_show_nothing(reason: AbsenceReason) -> None:
    assert isinstance(unasked(arrivals=Absence(reason=reason)).observed, Absence)


def test_a_stage_without_ready_replicas_shows_nothing() -> None:
    for replicas in (0, a_target(2, ready=0)):
        assert isinstance(unasked(replicas=replicas).observed, Absence)


def test_a_demand_that_was_never_observed_is_not_zero_because_no_items_arrive() -> None:
    assert isinstance(unasked(memory=PipelineMemory()).observed, Absence)


def test_every_entry_stage_and_each_of_its_placements_must_receive_nothing() -> None:
    left = a_stage("left", a_placement("cpu"), a_placement("gpu"))
    spec = a_spec(
        left, a_stage("right", a_placement("cpu")), a_stage("join", a_placement("cpu"), after=["left", "right"])
    )
    keys = spec.placement_keys()
    quiet = dict.fromkeys(keys[:3], seen(arrival_rate=0.0))
    for busy in (None, *keys[:3]):
        samples = quiet if busy is None else {**quiet, busy: seen(arrival_rate=1.0)}
        state = a_state(spec, demand=MISSING, replicas=dict.fromkeys(keys, 1), samples=samples, memory=NIGHT)
        answer = stabilised_demand(state, NOW_S, 15.0)
        assert answer.no_arrivals_at == (("left", "right") if busy is None else ())


def idled(*readings: Reading, after_s: float | None = 60.0, down_s: float = 30.0) -> list[DemandState]:
    """Return the demand of a pipeline with `scaling.idleAfter` in cycles of 15 s."""
    spec = replace(a_spec(), scaling=replace(a_scaling(down_s=down_s), idle_after_s=after_s))
    memory, found = PipelineMemory(), []
    for index, reading in enumerate(readings):
        state = a_state(spec, demand=reading, memory=memory)
        answer = stabilised_demand(state, NOW_S + 15 * index, 15.0)
        memory = PipelineMemory(
            demand=answer.demand,
            samples=answer.samples,
            metrics_lost=answer.loss,
            idle_since_s=answer.idle_since_s,
        )
        found.append(answer)
    return found


def idle_cycles(found: list[DemandState]) -> list[int]:
    return [index for index, answer in enumerate(found) if answer.idle]


def test_a_pipeline_is_idle_once_its_demand_was_zero_for_the_whole_time() -> None:
    found = idled(9.0, *[0.0] * 6, 1.0, *[0.0] * 5)
    assert idle_cycles(found) == [5, 6, 12]
    assert [answer.demand for answer in found[4:8]] == [0.0, 0.0, 0.0, 1.0]


def test_the_scale_down_window_is_over_before_a_pipeline_is_idle() -> None:
    assert idle_cycles(idled(9.0, *[0.0] * 8, down_s=90.0)) == [7, 8]


def test_without_idle_after_a_pipeline_is_never_idle() -> None:
    found = idled(9.0, *[0.0] * 100, after_s=None)
    assert idle_cycles(found) == []
    assert found[-1].idle_since_s is None


def test_time_without_data_is_not_time_without_demand() -> None:
    assert idle_cycles(idled(9.0, *[0.0] * 4, MISSING, *[0.0] * 5)) == [10]
    assert idle_cycles(idled(9.0, *[0.0] * 2, *[MISSING] * 20)) == []


def test_what_is_idle_stays_so_while_the_demand_query_has_no_series() -> None:
    found = idled(9.0, *[0.0] * 5, *[MISSING] * 40, 0.0, 3.0)
    assert idle_cycles(found) == list(range(5, 47))
    assert isinstance(found[40].observed, Absence)
    assert (found[40].demand, found[-1].demand) == (0.0, 3.0)


@pytest.mark.parametrize("reason", [AbsenceReason.UNAVAILABLE, AbsenceReason.STALE, AbsenceReason.NOT_A_NUMBER])
def test_what_is_idle_wakes_when_new_demand_could_not_be_seen_for_as_long(reason: AbsenceReason) -> None:
    found = idled(9.0, *[0.0] * 5, *[Absence(reason=reason)] * 40)
    assert idle_cycles(found) == [5, 6, 7, 8, 9], "the source was lost in cycle 6, and idleAfter is four cycles"


def floored(demand: Reading, floor: float, *, memory: PipelineMemory | None = None, in_s: float = 0.0) -> DemandState:
    """Return the demand of a pipeline whose replicas start in 100 s, with an event in `in_s`."""
    event = EventFloor(name="event", demand=floor, start_s=NOW_S + in_s, end_s=NOW_S + in_s + 1.0)
    spec = replace(a_spec(a_stage("a", a_placement("cpu", startup_s=100.0))), at_least=(event,))
    return planning_demand(a_state(spec, demand=demand, memory=memory), NOW_S, 15.0)


def test_known_demand_is_a_floor_and_no_observation() -> None:
    answer = floored(10.0, 400.0)
    assert (answer.demand, answer.stabilized, answer.forecast) == (400.0, 10.0, 10.0)
    assert [(sample.observed, sample.forecast, sample.peak) for sample in answer.samples] == [(10.0, 10.0, 10.0)]
    assert answer.from_floor


def test_known_demand_below_the_load_changes_nothing() -> None:
    answer = floored(500.0, 400.0)
    assert (answer.demand, answer.from_floor) == (500.0, False)


def test_known_demand_counts_from_one_cycle_and_start_up_time_before() -> None:
    assert floored(10.0, 400.0, in_s=115.0).demand == 400.0
    assert floored(10.0, 400.0, in_s=115.1).demand == 10.0


def test_known_demand_counts_a_launch_earlier_where_nodes_are_launched() -> None:
    event = EventFloor(name="event", demand=400.0, start_s=NOW_S + 295.0, end_s=NOW_S + 296.0)
    spec = replace(a_spec(a_stage("a", a_placement("cpu", startup_s=100.0))), at_least=(event,))
    state = a_state(spec, demand=10.0)
    cpu = spec.stages[0].placements[0].pool
    assert planning_demand(state, NOW_S, 15.0, {cpu: 180.0}).demand == 400.0
    assert planning_demand(state, NOW_S, 15.0, {cpu: 179.0}).demand == 10.0


def test_a_demand_that_known_demand_exceeds_is_not_said_to_fall_soon() -> None:
    earlier = (DemandSample(t_s=NOW_S - 100, observed=50, forecast=50),)
    memory = PipelineMemory(demand=50, samples=earlier)
    assert floored(10.0, 40.0, memory=memory).falls_at_s == NOW_S + 200
    assert floored(10.0, 60.0, memory=memory).falls_at_s is None


def test_known_demand_counts_before_any_observation() -> None:
    answer = floored(MISSING, 400.0)
    assert (answer.demand, answer.stabilized) == (400.0, None)
    assert answer.loss is not None
    assert answer.loss.demand is None


class TestContradictions:
    """A number that contradicts what is seen is not believed: what arrives was sent."""

    OLD = PipelineMemory(contradicted_since_s=NOW_S - 90)

    def demand(self, query: Reading, arriving: float, memory: PipelineMemory = OLD) -> DemandState:
        samples = {VAD: seen(arrival_rate=arriving)}
        state = a_state(demand=query, replicas={VAD: a_target(4), ENCODER: a_target(4)}, samples=samples, memory=memory)
        return stabilised_demand(state, NOW_S, 15.0)

    @pytest.mark.parametrize("query", [0.0, 20.0, 100.0, 150.0])
    def test_a_query_that_says_less_than_arrives_lowers_nothing(self, query: float) -> None:
        found = self.demand(query, 200.0)
        assert found.observed == found.demand == 200.0
        assert found.contradiction is not None
        assert (found.contradiction.queried, found.contradiction.arriving) == (query, 200.0)

    @pytest.mark.parametrize("query", [161.0, 200.0, 5000.0])
    def test_rates_that_lag_a_little_contradict_nothing(self, query: float) -> None:
        assert (self.demand(query, 200.0).observed, self.demand(query, 200.0).contradiction) == (query, None)

    def test_single_items_after_the_last_stream_are_none(self) -> None:
        assert self.demand(0.0, 0.5).observed == 0.0

    def test_a_stage_of_several_pipelines_shows_the_load_of_all(self) -> None:
        state = a_state(demand=20.0, replicas={VAD: 4}, samples={VAD: seen(arrival_rate=200.0)})
        assert stabilised_demand(state, NOW_S, 15.0, shared={VAD[0]}).observed == 20.0

    def test_a_demand_of_which_nothing_arrives_is_told_after_ten_minutes_and_counts(self) -> None:
        first = self.demand(200.0, 0.0)
        assert (first.quiet_since_s, first.contradiction) == (NOW_S, None)
        later = self.demand(200.0, 0.0, PipelineMemory(demand=200.0, quiet_since_s=NOW_S - 600))
        assert later.observed == 200.0
        assert later.contradiction is not None
        assert later.contradiction.since_s == NOW_S - 600
        assert self.demand(200.0, 3.0, PipelineMemory(quiet_since_s=NOW_S - 600)).quiet_since_s is None

    def test_both_numbers_are_in_the_condition(self) -> None:
        samples = {VAD: seen(arrival_rate=200.0)}
        state = a_state(demand=0.0, replicas={VAD: 4, ENCODER: 13}, samples=samples, memory=self.OLD)
        (decision,) = decide(a_snapshot(state), Policy()).pipelines
        (told,) = (each for each in conditions(decision) if each.type == "MetricsAvailable")
        assert (told.status, told.reason) == ("False", "MetricsMissing")
        assert "demand.query reports 0, but 200 arrive at this stage; that counts" in told.message
        assert not any(change.after < change.before and change.stage == ENCODER[0] for change in decision.changes)


def test_the_samples_are_of_the_horizon_and_bounded() -> None:
    """A start-up and launch of 13 minutes is tried on a record that is longer than that."""
    spec = a_spec(a_stage("a", a_placement("gpu", startup_s=720.0)))
    memory = PipelineMemory()
    for index in range(400):
        state = a_state(spec, demand=100.0 + index % 7, memory=memory)
        found = stabilised_demand(state, NOW_S + index * 5.0, 5.0, {PoolName("gpu"): 60.0})
        memory = PipelineMemory(demand=found.demand, samples=found.samples)
    times_s = [sample.t_s for sample in found.samples]
    assert times_s[-1] - times_s[0] >= 785.0 + 200.0
    assert len(times_s) <= 60 + 100 + 40


def test_of_a_demand_that_falls_the_window_of_the_arrivals_is_no_contradiction_that_is_told() -> None:
    memory, told = PipelineMemory(demand=200.0), []
    for cycle in range(8):
        state = a_state(demand=50.0, replicas={VAD: 4}, samples={VAD: seen(arrival_rate=180.0)}, memory=memory)
        found = stabilised_demand(state, NOW_S + 15.0 * cycle, 15.0)
        assert found.observed == 180.0
        memory = PipelineMemory(demand=200.0, contradicted_since_s=found.contradicted_since_s)
        told.append(found.contradiction is not None)
    assert told == [False] * 6 + [True] * 2


def test_a_few_items_by_chance_contradict_no_small_demand() -> None:
    """Of 2 requests per second, 150 in a minute are no rarity."""
    state = a_state(demand=2.0, replicas={VAD: 1}, samples={VAD: seen(arrival_rate=2.6)})
    assert stabilised_demand(state, NOW_S, 15.0).observed == 2.0
