"""A replay shows what queues do to a plan, against theory where there is one."""

import math
from itertools import pairwise

import pytest
from problems import a_pipeline, a_stage, on

from optimizer.model import Demand, Pipeline, PlacementKey, PoolName, Routing, Stage, StageName
from optimizer.replay.replay import Replayed, replay

Counts = dict[PlacementKey, int]


def served(pipeline: Pipeline, *counts: int, items: int | None = None) -> Replayed | None:
    replicas = {
        (stage.name, stage.placements[0].name): count for stage, count in zip(pipeline.stages, counts, strict=True)
    }
    return replay(pipeline, replicas, {}, items=items)


def seen(pipeline: Pipeline, *counts: int, items: int | None = None) -> Replayed:
    answer = served(pipeline, *counts, items=items)
    assert answer is not None
    return answer


def sure(name: str, service_s: float, *after: str, pass_ratio: float = 1.0) -> Stage:
    return a_stage(name, on("cpu", service=(service_s, 0.0), cv=0.0), after=after, pass_ratio=pass_ratio)


def exponential(name: str, *after: str) -> Stage:
    return a_stage(name, on("cpu", service=(0.01, 0.0), cv=1.0), after=after, routing=Routing.PULL)


def test_two_exponential_servers_in_series_are_the_textbook() -> None:
    # Jackson: times in the two stages are independent and exponential with mean 1/(μ − λ) = 20 ms: Erlang-2.
    answer = seen(a_pipeline(exponential("a"), exponential("b", "a"), rate_rps=50), 1, 1, items=200_000)
    assert answer.mean_s == pytest.approx(0.040, rel=0.04)
    assert answer.latency_s == pytest.approx(0.020 * 4.7439, rel=0.05)
    assert answer.half_width_s < 0.05 * answer.latency_s
    alone = seen(a_pipeline(exponential("a"), rate_rps=50), 1, items=200_000)
    assert alone.latency_s == pytest.approx(0.020 * math.log(20), rel=0.06)


def test_a_replay_tells_how_far_luck_may_take_it() -> None:
    pipeline = a_pipeline(exponential("a"), rate_rps=70)
    exact = math.log(20) / (100 - 70)
    replicas: Counts = {(StageName("a"), PoolName("cpu")): 1}
    answers = [replay(pipeline, replicas, {}, items=20_000, seed=seed) for seed in range(30)]
    within = [answer is not None and abs(answer.latency_s - exact) <= answer.half_width_s for answer in answers]
    assert 20 <= sum(within) <= 30


def test_a_replay_is_no_longer_than_it_takes_to_tell_whether_a_latency_is_kept() -> None:
    stages = [exponential(f"s{k}", *([f"s{k - 1}"] if k else [])) for k in range(6)]
    pipeline = a_pipeline(*stages, rate_rps=90)
    replicas: Counts = {(stage.name, PoolName("cpu")): 1 for stage in stages}
    usual = replay(pipeline, replicas, {})
    assert usual is not None
    near, far = (replay(pipeline, replicas, {}, decides_s=factor * usual.latency_s) for factor in (1.0, 3.0))
    assert near is not None
    assert far is not None
    assert far.items < near.items
    assert far.latency_s == pytest.approx(usual.latency_s, abs=far.half_width_s + usual.half_width_s)


def test_items_that_are_served_for_minutes_do_not_meet_where_they_come_less_often() -> None:
    pipeline = a_pipeline(sure("a", 2000.0), rate_rps=1e-6)
    assert seen(pipeline, 1).latency_s == pytest.approx(2000.0, rel=0.01)


def test_a_short_replay_keeps_no_more_of_what_is_late_than_a_long_one() -> None:
    """Eighty queues, each a tenth above what it is held against."""
    replicas: Counts = {(StageName("a"), PoolName("cpu")): 1}
    kept = {False: 0, True: 0}
    for index in range(80):
        rate_rps = 60.0 + index % 35
        late_s = math.log(20) / (100 - rate_rps) / 1.1
        pipeline = a_pipeline(exponential("a"), rate_rps=rate_rps)
        for short in kept:
            answer = replay(pipeline, replicas, {}, decides_s=late_s if short else None, seed=index)
            kept[short] += answer is not None and answer.latency_s <= late_s
    assert kept[True] <= kept[False] + 2


def test_a_join_waits_for_its_slowest_branch_and_forks_start_together() -> None:
    stages = (sure("a", 0.01), sure("b", 0.03, "a"), sure("c", 0.001, "a"), sure("d", 0.005, "b", "c"))
    answer = seen(a_pipeline(*stages, rate_rps=0.0), 1, 1, 1, 1)
    assert answer.latency_s == pytest.approx(0.045)
    assert answer.mean_s == pytest.approx(0.045, rel=1e-4)
    for ending, mean_s in ((stages[:1], 0.01), (stages[:2], 0.04), ((stages[0], stages[2]), 0.011)):
        assert seen(a_pipeline(*ending, rate_rps=0.0), *(1,) * len(ending)).mean_s == pytest.approx(mean_s, rel=1e-4)


@pytest.mark.parametrize(("one_s", "other_s"), [(0.03, 0.001), (0.001, 0.03)])
def test_several_last_stages_are_all_waited_for(one_s: float, other_s: float) -> None:
    stages = (sure("a", 0.01), sure("b", one_s, "a"), sure("c", other_s, "a"))
    answer = seen(a_pipeline(*stages, rate_rps=0.0), 1, 1, 1)
    assert answer.latency_s == pytest.approx(0.04)


def test_what_a_stage_drops_does_not_load_the_next() -> None:
    stages = (sure("vad", 0.001, pass_ratio=0.2), sure("asr", 0.03, "vad"))
    answer = seen(a_pipeline(*stages, rate_rps=100), 1, 1)
    assert answer.latency_s < 0.2
    assert served(a_pipeline(sure("vad", 0.001), sure("asr", 0.03, "vad"), rate_rps=100), 1, 1) is None


def test_fan_out_loads_the_next_stage_and_those_behind_it() -> None:
    stages = (sure("asr", 0.001, pass_ratio=3.0), sure("lm", 0.01, "asr"), sure("text", 0.01, "lm"))
    assert served(a_pipeline(*stages, rate_rps=30), 1, 1, 1) is not None
    assert served(a_pipeline(*stages, rate_rps=35), 1, 1, 2) is None
    assert served(a_pipeline(*stages, rate_rps=35), 1, 2, 1) is None


@pytest.mark.parametrize("ratio", [1.5, 3.0, 20.0])
@pytest.mark.parametrize("routing", [Routing.PULL, Routing.LEAST_LOADED])
def test_a_stage_behind_fan_out_waits_as_with_that_many_times_the_rate(ratio: float, routing: Routing) -> None:
    lm = a_stage("lm", on("cpu", service=(0.01, 0.0), cv=1.0), after=["asr"], routing=routing)

    def waited(rate_rps: float, pass_ratio: float) -> Replayed:
        stages = (sure("asr", 1e-6, pass_ratio=pass_ratio), lm)
        return seen(a_pipeline(*stages, rate_rps=rate_rps), 1, 2, items=60_000)

    fanned, offered = waited(140.0 / ratio, ratio), waited(140.0, 1.0)
    assert fanned.mean_s == pytest.approx(offered.mean_s, rel=0.08)
    assert fanned.latency_s == pytest.approx(offered.latency_s, rel=0.08)


def test_the_calls_of_a_stream_load_its_own_replica() -> None:
    lm = a_stage("lm", on("cpu", service=(0.02, 0.0), cv=0.0), after=["asr"], routing=Routing.STICKY)
    one, three = (
        seen(a_pipeline(sure("asr", 1e-6, pass_ratio=ratio), lm, rate_rps=20.0, sessions=4.0), 1, 2).mean_s
        for ratio in (1.0, 3.0)
    )
    assert three > 1.2 * one


def test_fan_out_does_not_bring_back_what_a_filter_has_dropped() -> None:
    # One item in ten is left, and makes three calls.
    stages = (sure("vad", 0.01, pass_ratio=0.1), sure("asr", 0.01, "vad", pass_ratio=3.0), sure("lm", 0.03, "asr"))
    answer = seen(a_pipeline(*stages, rate_rps=0.0), 1, 1, 1, items=20_000)
    assert answer.mean_s == pytest.approx(0.05)
    assert answer.items == pytest.approx(0.9 * 2_000, rel=0.1)


def test_an_item_that_causes_a_million_calls_is_not_replayed() -> None:
    names = ("a", "b", "c", "d")
    stages = [
        sure(name, 1e-9, *names[max(0, k - 1) : k], pass_ratio=100.0 if name != "d" else 1.0)
        for k, name in enumerate(names)
    ]
    assert served(a_pipeline(*stages, rate_rps=1.0), 1, 1, 1, 1) is None
    assert served(a_pipeline(*stages[:2], rate_rps=1.0), 1, 1) is not None


@pytest.mark.parametrize("counts", [(0, 1), (1, 0)])
def test_a_stage_without_replicas_has_no_replay(counts: tuple[int, int]) -> None:
    assert served(a_pipeline(sure("a", 0.01), sure("b", 0.01, "a"), rate_rps=10), *counts) is None


def test_a_stage_measured_slower_than_its_law_is_replayed_slower() -> None:
    plain = a_stage("a", on("cpu", service=(0.01, 0.0)))
    slow = Stage(name=plain.name, placements=plain.placements, latency_factor=1.5)
    one, other = (seen(a_pipeline(stage, rate_rps=50), 1).latency_s for stage in (plain, slow))
    assert other == pytest.approx(1.5 * one)


def test_a_saturated_replica_waits_as_if_it_had_no_more_capacity() -> None:
    def stage(saturation_rps: float | None) -> Stage:
        return a_stage("a", on("cpu", service=(0.01, 0.0), saturation_rps=saturation_rps))

    free, saturated = (seen(a_pipeline(stage(rps), rate_rps=50), 1).latency_s for rps in (None, 60.0))
    assert saturated > 1.5 * free
    assert served(a_pipeline(stage(49.0), rate_rps=50), 1) is None


def test_streams_at_even_intervals_wait_less_than_requests_at_random() -> None:
    streams, requests = (
        seen(a_pipeline(sure("a", 0.01), rate_rps=80, sessions=sessions), 1).latency_s for sessions in (16.0, None)
    )
    assert streams < 0.7 * requests


def test_burstier_arrivals_wait_longer() -> None:
    latencies = []
    for cv2 in (0.0, 0.5, 1.0, 3.0):
        pipeline = a_pipeline(sure("a", 0.01))
        pipeline = Pipeline(
            key=pipeline.key,
            stages=pipeline.stages,
            demand=Demand(entry_rate_rps=80, arrival_cv2=cv2),
            sla=pipeline.sla,
        )
        latencies.append(seen(pipeline, 1).latency_s)
    assert all(more > 1.2 * less for less, more in pairwise(latencies))
    assert latencies[0] == pytest.approx(0.01)


@pytest.mark.parametrize(("rate_rps", "sessions"), [(1e-300, None), (2e9, 1e9), (100.0, 1e12), (0.0, 0.0)])
def test_absurd_loads_are_answered(rate_rps: float, sessions: float | None) -> None:
    stage = a_stage("a", on("cpu", service=(1e-9, 0.0)), routing=Routing.PULL)
    answer = seen(a_pipeline(stage, rate_rps=rate_rps, sessions=sessions), 8)
    assert answer.items <= 200_000
    assert 0 < answer.latency_s < 1e-6


def test_the_order_of_the_stages_does_not_matter() -> None:
    a, b, c, d = exponential("a"), exponential("b", "a"), exponential("c", "a"), exponential("d", "b", "c")
    one, other = a_pipeline(a, b, c, d, rate_rps=50), a_pipeline(a, c, b, d, rate_rps=50)
    assert seen(one, 1, 1, 1, 1).latency_s == seen(other, 1, 1, 1, 1).latency_s


def test_of_a_large_pipeline_a_part_is_replayed_with_the_same_result() -> None:
    stages = [
        a_stage("asr", on("gpu", service=(0.02, 0.002), cv=0.3, batches=(8,)), routing=Routing.STICKY),
        a_stage("lm", on("gpu", service=(0.03, 0.0), cv=0.5), after=["asr"], routing=Routing.LEAST_LOADED),
    ]
    pipeline = a_pipeline(*stages, rate_rps=10_000, sessions=3_000, sla_s=0.25)
    replicas: Counts = {(StageName("asr"), PoolName("gpu")): 60, (StageName("lm"), PoolName("gpu")): 360}
    whole = replay(pipeline, replicas, {}, items=150_000)
    part = replay(pipeline, replicas, {}, decides_s=0.25)
    assert whole is not None
    assert part is not None
    assert part.items < 60_000
    assert part.latency_s == pytest.approx(whole.latency_s, rel=0.06)


def test_a_replay_lasts_long_enough_for_its_queues_to_fill() -> None:
    # 20,000 items per second for a latency of a quarter of a second: 5,000 items would end before the first are late.
    stage = a_stage("asr", on("gpu", service=(0.05, 0.01), cv=0.2, batches=(16,)), routing=Routing.STICKY)
    pipeline = a_pipeline(stage, rate_rps=20_000, sessions=20_000, sla_s=0.4)
    replicas: Counts = {(StageName("asr"), PoolName("gpu")): 290}
    usual, long = replay(pipeline, replicas, {}, decides_s=0.4), replay(pipeline, replicas, {}, items=400_000)
    assert usual is not None
    assert long is not None
    assert usual.latency_s == pytest.approx(long.latency_s, rel=0.05)
