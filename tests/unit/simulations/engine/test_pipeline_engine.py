"""What a cluster sees of the engine: counters, outcomes, what becomes of items and streams as replicas come and go."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from engine_specs import a_pipeline, a_placement, a_stage, an_engine, fingerprint, poisson, requests, streams
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.core.state.spec import PipelineSpec
from optimizer.model import BatchSettings, PlacementKey, PoolName, Routing, StageName
from simulations.engine.draws import reconnect_delay_s
from simulations.engine.pipeline_engine import HANDOVER_S, Conditions, PipelineEngine
from simulations.engine.state import LATENCY_BOUNDS_S
from simulations.results.scoring import Clock
from simulations.scenario.schedule import Schedule, chunk_times

CPU: PlacementKey = (StageName("asr"), PoolName("cpu"))


def captions(routing: Routing = Routing.LEAST_LOADED, *, slots: int | None = 40) -> PipelineSpec:
    """Filters, two pools, batches, memory, a fork and a join."""
    return a_pipeline(
        a_stage("vad", a_placement(fixed_s=0.004, cv=0.5), pass_ratio=0.5, routing=routing, queue_limit=20),
        a_stage(
            "encoder",
            a_placement(
                fixed_s=0.02, per_item_s=0.004, cv=0.3, batch_sizes=(4,), batch_wait_s=0.005, session_slots=slots
            ),
            a_placement("gpu", fixed_s=0.01, per_item_s=0.002, batch_sizes=(8,), concurrency=2, session_slots=slots),
            after=("vad",),
            routing=routing,
        ),
        a_stage("lm", a_placement(fixed_s=0.01, cv=1.0), after=("encoder",), pass_ratio=0.8, routing=routing),
        a_stage("tags", a_placement(fixed_s=0.01, cv=0.2, concurrency=3), after=("encoder",), routing=routing),
        a_stage("merge", a_placement(fixed_s=0.001), after=("lm", "tags"), routing=routing),
        chunk_s=0.2,
        sla_s=0.3,
    )  # fmt: skip


REPLICAS = {("vad", "cpu"): 2, ("encoder", "cpu"): 2, ("encoder", "gpu"): 1, ("lm", "cpu"): 3, ("tags", "cpu"): 1,
            ("merge", "cpu"): 1}  # fmt: skip


def conserved(engine: PipelineEngine) -> None:
    """No item is lost from sight: those of the ingress add up, and so do those of each replica and the tally's."""
    ingress, score, counters = engine.ingress(), engine.tally().score(), engine.counters()
    ended = ingress.served + ingress.filtered + ingress.shed + ingress.refused + ingress.lost
    assert ingress.offered == ended + ingress.in_flight
    assert score.offered == ingress.offered
    counted = (score.served, score.filtered, score.shed, score.refused)
    assert counted == (ingress.served, ingress.filtered, ingress.shed, ingress.refused)
    assert score.lost + score.in_flight == ingress.lost + ingress.in_flight
    inside = counters.queued + counters.in_service
    assert np.all(counters.arrived - counters.refused >= counters.completed + inside)
    assert np.all(counters.latency_counts.sum(axis=1) == counters.completed)


def disturbed(pieces: list[float], routing: Routing) -> PipelineEngine:
    """A run with replicas that are added, drained and killed; `pieces` are where `advance` stops besides."""
    engine = an_engine(captions(routing), streams(600, 20.0, mean_s=4.0), REPLICAS, duration_s=20.0)
    actions: dict[float, Callable[[], object]] = {
        4.0: lambda: engine.kill_replica(2),
        6.0: lambda: engine.drain_replica(3, 9.0),
        7.0: lambda: engine.add_replica((StageName("encoder"), PoolName("gpu"))),
        8.0: lambda: engine.slow_down(StageName("lm"), 2.0),
        9.5: lambda: engine.drain_replica(0, 30.0),
        12.0: lambda: engine.kill_replica(4),
    }
    for at_s in sorted({*pieces, *actions, 20.0}):
        engine.advance(at_s)
        if at_s in actions:
            actions[at_s]()
    return engine


@pytest.mark.parametrize("routing", list(Routing))
def test_every_item_has_one_outcome_whatever_happens_to_replicas(routing: Routing) -> None:
    engine = disturbed([], routing)

    conserved(engine)
    ingress = engine.ingress()
    assert min(ingress.served, ingress.filtered, ingress.lost, ingress.sessions_cut) > 0
    assert ingress.offered == len(chunk_times(streams(600, 20.0, mean_s=4.0), 0.2, 20.0, 1)[0])


@given(pieces=st.lists(st.floats(0.001, 19.999), max_size=12), routing=st.sampled_from(list(Routing)))
@example(pieces=[5.24609375], routing=Routing.PULL)  # an item filtered in one branch waits in the other
@settings(max_examples=25, deadline=None)
def test_where_the_run_is_interrupted_changes_nothing(pieces: list[float], routing: Routing) -> None:
    assert fingerprint(disturbed(pieces, routing)) == fingerprint(disturbed([], routing))


def test_a_seed_gives_the_same_run_and_another_a_different_one() -> None:
    def run(seed: int) -> tuple[object, ...]:
        engine = an_engine(captions(), streams(50, 10.0, mean_s=4.0), REPLICAS, duration_s=10.0, seed=seed)
        engine.advance(10.0)
        return fingerprint(engine)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_single_server_serves_in_order_by_the_clock() -> None:
    """Lindley's recursion by hand: 0.01 s each, at 0, 0.004 and 0.1 s."""
    engine = an_engine(a_pipeline(a_stage("asr")), requests([0.0, 0.004, 0.1]), {("asr", "cpu"): 1}, duration_s=1.0)
    engine.advance(1.0)

    counters = engine.counters()
    assert counters.latency_sum_s[0] == pytest.approx(0.01 + 0.016 + 0.01)
    assert counters.busy_s[0] == pytest.approx(0.03)
    assert engine.ingress().latency_sum_s == pytest.approx(0.036)
    below = [
        int(counters.latency_counts[0, : LATENCY_BOUNDS_S.index(bound_s) + 1].sum()) for bound_s in (0.005, 0.01, 0.02)
    ]
    assert below == [0, 2, 3]


def test_a_batch_starts_when_it_is_full_or_its_oldest_item_has_waited_long_enough() -> None:
    placement = a_placement(fixed_s=0.1, per_item_s=0.01, batch_sizes=(3,), batch_wait_s=0.05)
    pipeline = a_pipeline(a_stage("asr", placement))
    engine = an_engine(pipeline, requests([1.0, 1.01, 1.02, 2.0, 2.03]), {("asr", "cpu"): 1}, duration_s=5.0)
    engine.advance(1.02)
    assert engine.counters().in_service[0] == 3
    engine.advance(2.049)
    assert engine.counters().queued[0] == 2
    engine.advance(2.051)
    assert engine.counters().in_service[0] == 2
    engine.advance(5.0)

    counters = engine.counters()
    assert (counters.batches[0], counters.completed[0]) == (2, 5)
    assert counters.busy_s[0] == pytest.approx(0.13 + 0.12)
    assert counters.service_s[0] == pytest.approx(3 * 0.13 + 2 * 0.12)


def test_a_full_queue_refuses_and_three_refusals_lose_the_item() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(fixed_s=0.5), queue_limit=1), sla_s=10.0)
    engine = an_engine(pipeline, requests([0.1] * 11), {("asr", "cpu"): 4}, duration_s=10.0)
    engine.advance(10.0)

    ingress = engine.ingress()
    assert (ingress.served, ingress.lost) == (8, 3)
    assert engine.counters().refused.sum() == 9
    assert ingress.retries == 6
    conserved(engine)


def test_an_item_without_an_answer_for_ten_slas_is_lost_and_no_stage_after_sees_it() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(fixed_s=0.3)), a_stage("lm", after=("asr",)), sla_s=0.1)
    engine = an_engine(pipeline, requests([0.0] * 6), {("asr", "cpu"): 1, ("lm", "cpu"): 1}, duration_s=10.0)
    engine.advance(1.5)
    assert engine.ingress().lost == 3, "as soon as the time is over, though two are still queued"
    engine.advance(10.0)

    assert (engine.ingress().served, engine.ingress().lost) == (3, 3)
    assert engine.counters().completed.tolist() == [6, 3]
    conserved(engine)


def test_items_wait_at_a_stage_without_replicas_and_are_lost_when_none_comes() -> None:
    engine = an_engine(a_pipeline(a_stage("asr"), sla_s=0.1), requests([0.0, 1.5, 1.6]), {}, duration_s=10.0)
    engine.advance(2.0)
    assert engine.ingress().lost == 1
    engine.add_replica(CPU)
    engine.advance(10.0)

    assert (engine.ingress().served, engine.ingress().lost) == (2, 1)
    assert engine.ingress().latency_sum_s == pytest.approx(1.0 + 0.51 + 0.42)


def test_a_killed_replica_has_its_items_sent_elsewhere() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(fixed_s=0.1)))
    engine = an_engine(pipeline, requests([0.0] * 6), {("asr", "cpu"): 2}, duration_s=5.0)
    engine.advance(0.05)
    engine.kill_replica(0)
    assert engine.counters().queued.tolist() == [0, 5]
    engine.advance(5.0)

    counters = engine.counters()
    assert counters.completed.tolist() == [0, 6]
    assert (engine.ingress().retries, engine.ingress().served) == (3, 6)
    with pytest.raises(ValueError, match="number: 0"):
        engine.kill_replica(0)


def test_a_draining_replica_serves_what_it_has_and_ends_when_it_is_empty() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(fixed_s=0.4)))
    engine = an_engine(pipeline, requests([0.0, 0.0, 0.0, 0.0, 0.5]), {("asr", "cpu"): 2}, duration_s=5.0)
    engine.advance(0.1)
    engine.drain_replica(0, 60.0)
    engine.advance(0.7)
    assert not engine.ended()
    engine.advance(5.0)

    ((number, at_s),) = engine.ended()
    assert number == 0
    assert at_s == pytest.approx(0.8)
    assert not engine.ended(), "each is told once"
    assert engine.counters().completed.tolist() == [2, 3]
    assert engine.ingress().retries == 0


def test_a_draining_replica_without_work_is_handed_over_first() -> None:
    engine = an_engine(a_pipeline(a_stage("asr")), requests([]), {("asr", "cpu"): 1}, duration_s=5.0)
    engine.advance(1.0)
    engine.drain_replica(0, 60.0)
    engine.advance(5.0)

    assert engine.ended() == [(0, 1.0 + HANDOVER_S)]


def test_streams_are_pinned_and_stay_on_a_draining_replica_until_they_end_or_are_cut() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(session_slots=10)), chunk_s=0.1)
    schedule = Schedule(start_s=np.zeros(4), end_s=np.array([1.0, 2.0, 8.0, 8.0]))
    engine = an_engine(pipeline, schedule, {("asr", "cpu"): 2}, duration_s=10.0)
    engine.advance(0.5)
    assert engine.counters().sessions.tolist() == [2, 2]
    engine.drain_replica(0, 5.0)
    engine.advance(4.9)
    drained = engine.counters()
    assert drained.sessions.tolist() == [1, 1]
    engine.advance(10.0)

    assert engine.counters().arrived[0] - drained.arrived[0] <= 2, "cut at 5 s, and nothing after that"
    assert engine.ingress().sessions_cut == 1
    [(number, ended_s)] = engine.ended()
    assert number == 0
    assert 5.0 <= ended_s < 5.1
    assert engine.ingress().lost == 0


def test_a_closed_replica_keeps_its_streams_and_gets_no_new_ones_until_it_is_opened() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(session_slots=20)), chunk_s=0.1)
    schedule = Schedule(
        start_s=np.array([0.0, 0.0, 2.0, 2.1, 2.2, 2.3, 5.0, 5.1]),
        end_s=np.array([9.0, 9.0, 9.0, 4.0, 4.0, 4.0, 9.0, 9.0]),
    )
    engine = an_engine(pipeline, schedule, {("asr", "cpu"): 2}, duration_s=10.0)
    engine.advance(1.0)
    engine.open_replica(0, takes_streams=False)
    engine.open_replica(0, takes_streams=False)
    engine.advance(3.0)
    assert engine.counters().sessions.tolist() == [1, 5]
    before = engine.counters().completed[0]
    engine.advance(4.5)
    assert engine.counters().completed[0] > before, "it serves the stream that it has"
    engine.open_replica(0, takes_streams=True)
    engine.advance(6.0)
    assert engine.counters().sessions[0] >= 2, "it gets the next one: it has the fewest"
    assert not engine.ended()
    assert engine.ingress().sessions_cut == 0


def test_a_closed_replica_may_drain_and_be_killed() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(session_slots=20)), chunk_s=0.1)
    schedule = Schedule(start_s=np.zeros(6), end_s=np.full(6, 3.0))
    engine = an_engine(pipeline, schedule, {("asr", "cpu"): 3}, duration_s=5.0)
    engine.advance(1.0)
    engine.open_replica(0, takes_streams=False)
    engine.open_replica(1, takes_streams=False)
    engine.kill_replica(0)
    engine.drain_replica(1, 60.0)
    engine.advance(5.0)
    assert engine.ingress().sessions_cut == 2
    assert [number for number, _ in engine.ended()] == [1]
    with pytest.raises(ValueError, match="number: 0"):
        engine.open_replica(0, takes_streams=True)
    conserved(engine)


def test_streams_are_handed_over_to_the_replicas_with_the_fewest_and_none_is_cut() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(session_slots=10)), chunk_s=0.1)
    schedule = Schedule(start_s=np.zeros(9), end_s=np.full(9, 9.0))
    engine = an_engine(pipeline, schedule, {("asr", "cpu"): 1}, duration_s=10.0)
    engine.advance(0.5)
    for _ in range(2):
        engine.add_replica((StageName("asr"), PoolName("cpu")))
    engine.advance(1.0)
    assert engine.counters().sessions.tolist() == [9, 0, 0]
    engine.hand_over(0, 4)
    assert engine.counters().sessions.tolist() == [4, 3, 2]
    engine.hand_over(0, 4)  # nothing is moved twice
    assert engine.counters().sessions.tolist() == [4, 3, 2]
    before = engine.counters().arrived.copy()
    engine.advance(2.0)
    assert ((engine.counters().arrived - before) == [40, 30, 20]).all()
    engine.drain_replica(0, 8.0)
    engine.hand_over(0, 0)
    engine.advance(3.0)
    assert engine.counters().sessions.tolist() == [0, 4, 5]
    assert [number for number, _ in engine.ended()] == [0], "long before its drain ends"
    engine.advance(10.0)
    assert (engine.ingress().sessions_cut, engine.ingress().lost) == (0, 0)


def test_streams_beyond_the_slots_are_refused_and_free_ones_are_given_to_later_streams() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(session_slots=2)), chunk_s=0.1)
    schedule = Schedule(start_s=np.array([0.0, 0.0, 0.5, 3.0]), end_s=np.array([2.0, 9.0, 9.0, 9.0]))
    engine = an_engine(pipeline, schedule, {("asr", "cpu"): 1}, duration_s=9.0, conditions=Conditions(reconnects=False))
    engine.advance(9.0)

    ingress = engine.ingress()
    assert ingress.refused == 85, "the third stream's, from 0.5 s to 9 s"
    assert engine.counters().refused_sessions.tolist() == [1]
    assert (ingress.lost, ingress.served) == (0, ingress.offered - 85 - ingress.in_flight)
    conserved(engine)


def test_a_refused_stream_comes_back_until_it_finds_a_slot() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(session_slots=1)), chunk_s=0.1)
    schedule = Schedule(start_s=np.array([0.0, 0.0]), end_s=np.array([5.0, 60.0]))
    engine = an_engine(pipeline, schedule, {("asr", "cpu"): 1}, duration_s=60.0)
    engine.advance(5.0)
    missed = engine.ingress().refused
    assert 49 <= missed <= 51, "no slot is free before the first stream ends"
    engine.advance(60.0)

    # Attempts after at most 1, 2 and 4 s each: the first one that comes after 5 s comes before 5 + 8 s.
    assert missed <= engine.ingress().refused <= 131
    assert engine.ingress().served >= 600 - 131
    conserved(engine)


def test_a_refused_stream_comes_back_when_the_client_in_the_lab_does() -> None:
    """Session numbers count from 1 there, and so do attempts."""
    pipeline = a_pipeline(a_stage("asr", a_placement(session_slots=1)), chunk_s=0.1)
    schedule = Schedule(start_s=np.array([0.0, 0.0]), end_s=np.array([4.0, 60.0]))
    engine = an_engine(pipeline, schedule, {("asr", "cpu"): 1}, duration_s=60.0, seed=5)
    engine.advance(60.0)

    attempts_s = np.cumsum([0.0, *(reconnect_delay_s(5, 2, attempt) for attempt in range(1, 5))])
    assert engine.ingress().refused == pytest.approx(attempts_s[attempts_s > 4.0][0] / 0.1, abs=1)


def test_a_hundred_streams_that_find_no_replica_at_the_start_are_all_served_once_there_is_one() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(fixed_s=0.001, session_slots=200)), chunk_s=0.1)
    engine = an_engine(pipeline, Schedule(start_s=np.zeros(100), end_s=np.full(100, 120.0)), {}, duration_s=120.0)
    engine.advance(20.0)
    assert (engine.ingress().served, engine.ingress().lost) == (0, 0), "nothing was accepted"
    assert engine.ingress().refused > 100 * 100
    engine.add_replica((StageName("asr"), PoolName("cpu")))
    engine.advance(60.0)
    before = engine.ingress()
    engine.advance(119.0)

    after = engine.ingress()
    assert after.active_streams == 100
    assert after.refused == before.refused, "all are back within 30 s"
    assert after.served - before.served >= 100 * 585


def test_the_gauge_of_offered_streams_keeps_a_refused_one_for_half_a_minute() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(session_slots=1)), chunk_s=0.1)
    schedule = Schedule(start_s=np.array([0.0, 1.0]), end_s=np.array([100.0, 90.0]))

    def seen(at_s: float, *, reconnects: bool) -> int:
        engine = an_engine(
            pipeline, schedule, {("asr", "cpu"): 1}, duration_s=100.0, conditions=Conditions(reconnects=reconnects)
        )
        engine.advance(at_s)
        return engine.ingress().active_streams

    assert [seen(t, reconnects=False) for t in (0.5, 2.0, 30.9, 31.1)] == [1, 2, 2, 1]
    assert [seen(t, reconnects=True) for t in (31.1, 60.0, 89.0)] == [2, 2, 2]


def test_what_voice_activity_detection_would_filter_is_filtered_for_refused_streams_too() -> None:
    vad = a_stage("vad", a_placement(fixed_s=0.001), pass_ratio=0.3)
    pipeline = a_pipeline(vad, a_stage("asr", a_placement(fixed_s=0.001, session_slots=1), after=("vad",)), chunk_s=0.1)
    schedule = Schedule(start_s=np.zeros(40), end_s=np.full(40, 60.0))
    replicas = {("vad", "cpu"): 4, ("asr", "cpu"): 1}
    few = an_engine(pipeline, schedule, replicas, duration_s=60.0)
    many = an_engine(pipeline, schedule, {**replicas, ("asr", "cpu"): 40}, duration_s=60.0)
    few.advance(60.0)
    many.advance(60.0)

    assert few.ingress().refused > 1000
    assert many.ingress().refused == 0
    # The same draw, whether the item is sent or not; those in flight at the end have no outcome yet.
    assert few.ingress().filtered == pytest.approx(many.ingress().filtered, abs=40)


def test_a_request_holds_a_slot_of_its_own_while_it_is_in_a_stage_with_memory() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(fixed_s=1.0, session_slots=2)))
    engine = an_engine(pipeline, requests([0.0, 0.0, 0.0, 2.5]), {("asr", "cpu"): 1}, duration_s=9.0)
    engine.advance(9.0)

    assert (engine.ingress().served, engine.ingress().lost) == (3, 1)
    assert engine.counters().refused_sessions.tolist() == [1]


def test_an_item_that_a_full_queue_refuses_is_no_refused_session() -> None:
    stage = a_stage("asr", a_placement(fixed_s=1.0, session_slots=9), queue_limit=1)
    engine = an_engine(a_pipeline(stage), requests([0.0, 0.1, 0.2]), {("asr", "cpu"): 1}, duration_s=9.0)
    engine.advance(9.0)

    counters = engine.counters()
    assert (counters.refused.tolist(), counters.refused_sessions.tolist()) == ([1], [0])


def test_what_is_not_admissible_is_shed() -> None:
    limited = an_engine(
        a_pipeline(a_stage("asr"), chunk_s=0.1),
        Schedule(start_s=np.array([0.0, 0.1, 0.2]), end_s=np.array([1.0, 5.0, 5.0])),
        {("asr", "cpu"): 4},
        duration_s=5.0,
    )
    limited.admissible = 2
    limited.advance(5.0)
    shed = limited.ingress().shed
    assert 8 <= shed <= 48, "from 0.2 s until it comes back after the first stream's end, within 1 + 2 s"
    assert limited.ingress().served == limited.ingress().offered - shed - limited.ingress().in_flight

    bucket = an_engine(
        a_pipeline(a_stage("asr")), requests(np.arange(1, 1001) / 100), {("asr", "cpu"): 4}, duration_s=10.0
    )
    bucket.admissible = 50.0
    bucket.advance(10.0)
    assert bucket.ingress().shed == pytest.approx(500, abs=2)
    assert bucket.admissible == 50.0


def test_a_stream_goes_to_one_replica_under_sticky_routing() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(fixed_s=0.001), routing=Routing.STICKY), chunk_s=0.1)
    schedule = Schedule(start_s=np.zeros(3), end_s=np.full(3, 10.0))
    engine = an_engine(pipeline, schedule, {("asr", "cpu"): 4}, duration_s=10.0)
    engine.advance(10.0)

    assert sorted(engine.counters().arrived.tolist()) == [0, 100, 100, 100]
    assert engine.ingress().sessions_cut == 0


@pytest.mark.parametrize("routing", [Routing.ROUND_ROBIN, Routing.RANDOM, Routing.LEAST_LOADED])
def test_replicas_get_work_in_proportion_to_their_capacity(routing: Routing) -> None:
    fast, slow = a_placement("gpu", fixed_s=0.005), a_placement("cpu", fixed_s=0.015)
    pipeline = a_pipeline(a_stage("asr", fast, slow, routing=routing))
    engine = an_engine(pipeline, poisson(480.0, 60.0), {("asr", "gpu"): 2, ("asr", "cpu"): 3}, duration_s=60.0)
    engine.advance(60.0)

    arrived = engine.counters().arrived
    share = arrived[:2].sum() / arrived.sum()
    assert share == pytest.approx(400 / 600, abs=0.03)


def test_a_slow_stage_takes_its_factor_longer_for_batches_that_start_from_then_on() -> None:
    engine = an_engine(
        a_pipeline(a_stage("asr", a_placement(fixed_s=0.1))),
        requests([0.0, 1.0, 2.0]),
        {("asr", "cpu"): 1},
        duration_s=5.0,
    )
    engine.advance(0.05)
    engine.slow_down(StageName("asr"), 3.0)
    engine.advance(1.5)
    engine.slow_down(StageName("asr"), 1.0)
    engine.advance(5.0)

    assert engine.ingress().latency_sum_s == pytest.approx(0.1 + 0.3 + 0.1)


def test_batches_that_start_after_a_change_of_settings_are_formed_by_them() -> None:
    arrivals = [0.0, *(0.01 * k for k in range(1, 5)), 2.0, *(2.0 + 0.01 * k for k in range(1, 5)), 4.0]
    engine = an_engine(
        a_pipeline(a_stage("asr", a_placement(fixed_s=0.1, batch_sizes=(1, 4)))),
        requests(arrivals),
        {("asr", "cpu"): 1},
        duration_s=6.0,
    )
    engine.advance(1.5)
    assert engine.counters().batches.sum() == 2, "one alone, then four"
    engine.set_batching(CPU, BatchSettings(limit=1))
    engine.advance(3.5)
    assert engine.counters().batches.sum() == 2 + 5
    engine.set_batching(CPU, BatchSettings(limit=4, wait_s=0.5))
    engine.advance(4.2)
    assert engine.counters().in_service.sum() == 0, "it waits for others"
    engine.advance(6.0)
    assert engine.counters().completed.sum() == len(arrivals)


@pytest.mark.parametrize("limit", [5, 100])
def test_a_batch_limit_that_is_not_declared_is_refused(limit: int) -> None:
    engine = an_engine(captions(), streams(600, 20.0, mean_s=4.0), REPLICAS, duration_s=20.0)
    key = (StageName("encoder"), PoolName("cpu"))
    with pytest.raises(ValueError, match="with a limit that is declared"):
        engine.set_batching(key, BatchSettings(limit=limit))


@pytest.mark.parametrize(("factor", "sent"), [(1.0, 1.0), (1.5, 1.5), (3.0, 3.0)])
def test_what_clients_send_again_loads_the_stages_and_is_offered_once(factor: float, sent: float) -> None:
    pipeline = a_pipeline(a_stage("vad", pass_ratio=0.5), a_stage("asr", after=["vad"]))
    engine = an_engine(pipeline, poisson(20.0, 200.0), {("vad", "cpu"): 2, ("asr", "cpu"): 2}, duration_s=200.0)
    engine.repeat(factor)
    engine.advance(200.0)
    ingress, counters = engine.ingress(), engine.counters()
    conserved(engine)
    vad, asr = (counters.arrived[counters.placement == place].sum() for place in (0, 1))
    assert ingress.offered == pytest.approx(20 * 200, rel=0.05)
    assert vad / ingress.offered == pytest.approx(sent, rel=0.03)
    assert asr / vad == pytest.approx(0.5, rel=0.05)
    assert ingress.latency_counts.sum() == ingress.served


def test_where_the_run_is_interrupted_changes_nothing_of_what_is_sent_again() -> None:
    def run(stops_s: tuple[float, ...]) -> tuple[object, ...]:
        stages = a_stage("vad"), a_stage("left", after=["vad"]), a_stage("right", after=["vad"])
        join = a_stage("join", after=["left", "right"])
        replicas = {(str(stage.name), "cpu"): 1 for stage in (*stages, join)}
        engine = an_engine(a_pipeline(*stages, join), poisson(30.0, 40.0), replicas, duration_s=40.0)
        engine.repeat(2.5)
        for stop_s in stops_s:
            engine.advance(stop_s)
            if stop_s == 20.0:
                engine.repeat(1.0)
        conserved(engine)
        return fingerprint(engine)

    assert run((20.0, 40.0)) == run((3.0, 9.5, 20.0, 27.0, 40.0))


@pytest.mark.parametrize("factor", [0.5, 10.5, math.nan])
def test_a_factor_of_retries_outside_its_range_is_refused(factor: float) -> None:
    engine = an_engine(a_pipeline(a_stage("vad")), requests([]), {}, duration_s=1.0)
    with pytest.raises(ValueError, match="must be from 1 to 10"):
        engine.repeat(factor)


def test_a_replica_that_is_sped_up_keeps_its_speed_beside_neighbours() -> None:
    engine = an_engine(a_pipeline(a_stage("vad")), requests([0.0, 1.0, 2.0]), {("vad", "cpu"): 1}, duration_s=3.0)
    engine.speed_up(0, 0.5)
    engine.advance(0.9)
    engine.crowd(0, 3.0)
    engine.advance(1.9)
    engine.speed_up(0, 2.0)
    engine.advance(3.0)
    assert engine.counters().busy_s[0] == pytest.approx(0.01 * (2 + 6 + 3))


def test_what_is_filtered_depends_on_the_seed_and_the_number_of_the_item_alone() -> None:
    pipeline = a_pipeline(a_stage("vad", pass_ratio=0.3), a_stage("lm", after=("vad",)))
    served = []
    for replicas in (1, 3):
        engine = an_engine(
            pipeline, poisson(50.0, 100.0), {("vad", "cpu"): replicas, ("lm", "cpu"): 1}, duration_s=200.0
        )
        engine.advance(200.0)
        counts = engine.ingress()
        assert counts.served / counts.offered == pytest.approx(0.3, abs=0.03)
        served.append(counts.served)
    assert served[0] == served[1]


def test_a_join_waits_for_both_branches_and_the_last_one_decides() -> None:
    pipeline = a_pipeline(
        a_stage("in", a_placement(fixed_s=0.01)),
        a_stage("slow", a_placement(fixed_s=0.20), after=("in",)),
        a_stage("fast", a_placement(fixed_s=0.05), after=("in",)),
        a_stage("out", a_placement(fixed_s=0.02), after=("slow", "fast")),
    )
    replicas = {(name, "cpu"): 1 for name in ("in", "slow", "fast", "out")}
    engine = an_engine(pipeline, requests([0.0]), replicas, duration_s=1.0)
    engine.advance(1.0)

    assert engine.ingress().latency_sum_s == pytest.approx(0.01 + 0.20 + 0.02)
    assert engine.counters().completed.tolist() == [1, 1, 1, 1]


def test_memory_does_not_grow_with_the_number_of_items() -> None:
    schedule = Schedule(start_s=np.zeros(5), end_s=np.full(5, 400.0))
    pipeline = a_pipeline(a_stage("asr", a_placement(fixed_s=0.001)), chunk_s=0.01)
    engine = an_engine(pipeline, schedule, {("asr", "cpu"): 2}, duration_s=400.0)
    size = sum(array.nbytes for array in itertools.chain(engine._state, engine._tally.arrays))
    engine.advance(400.0)

    assert engine.ingress().offered > 190_000
    assert sum(array.nbytes for array in itertools.chain(engine._state, engine._tally.arrays)) == size


def test_room_for_items_is_made_where_many_are_under_way() -> None:
    pipeline = a_pipeline(a_stage("asr", a_placement(fixed_s=1.0), queue_limit=100_000), sla_s=10.0)
    engine = an_engine(pipeline, poisson(2000.0, 20.0), {("asr", "cpu"): 1}, duration_s=20.0)
    engine.advance(20.0)

    assert engine.counters().queued[0] > 39_000
    conserved(engine)


def test_mistakes_are_named() -> None:
    engine = an_engine(a_pipeline(a_stage("asr")), requests([]), {("asr", "cpu"): 1}, duration_s=5.0)
    engine.advance(1.0)
    with pytest.raises(ValueError, match=r"until_s: 0\.5"):
        engine.advance(0.5)
    with pytest.raises(ValueError, match="key"):
        engine.add_replica((StageName("asr"), PoolName("gpu")))
    with pytest.raises(ValueError, match="stage: 'lm'"):
        engine.slow_down(StageName("lm"), 2.0)
    with pytest.raises(ValueError, match="factor: nan"):
        engine.slow_down(StageName("asr"), math.nan)
    with pytest.raises(ValueError, match="after: lm"):
        PipelineEngine(
            a_pipeline(a_stage("asr", after=("lm",)), a_stage("lm")),
            requests([]),
            clock=Clock(duration_s=1.0, warmup_s=0.0, window_s=1.0),
            seed=1,
        )
