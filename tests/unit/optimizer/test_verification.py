from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer import verification
from optimizer.allocate import allocate
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import Basis, Composition, Mixing, Pipeline, Placement, PlacementKey, PoolName, Problem, StageName
from optimizer.plan import LimitKind
from optimizer.replay.replay import Replayed

Latency = Callable[[Pipeline, float], tuple[float, float]]
"""From a pipeline and what its plan is composed to, to latency and noise of its replay."""


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Latency], list[Pipeline]]]:
    """Return a way to say what replays take; it returns the list of what has been replayed."""
    asked: list[Pipeline] = []

    def use(latency: Latency) -> list[Pipeline]:
        def replay(pipeline: Pipeline, replicas: Any, batches: Any, *, decides_s: float) -> Replayed:
            assert decides_s == pipeline.sla.latency_s
            asked.append(pipeline)
            composed_s = predicted_latency_s(pipeline, replicas, batches, composition=Composition.RSS)
            assert composed_s is not None
            latency_s, half_width_s = latency(pipeline, composed_s)
            return Replayed(
                latency_s=latency_s,
                mean_s=latency_s / 2,
                half_width_s=half_width_s,
                items=1,
            )

        monkeypatch.setattr(verification, "replay", replay)
        return asked

    verification._replayed.cache_clear()  # other tests' replays are real
    yield use
    verification._replayed.cache_clear()


def captions(*, key: str = "x/captions", sla_s: float = 0.06, rate_rps: float = 200.0, most: int = 60) -> Pipeline:
    names = ("vad", "encoder", "decoder")
    return a_pipeline(
        *(
            a_stage(name, on("cpu", service=(0.01, 0.0), bounds=(0, most)), after=names[max(0, number - 1) : number])
            for number, name in enumerate(names)
        ),
        key=key,
        sla_s=sla_s,
        rate_rps=rate_rps,
    )


def composed(*pipelines: Pipeline, **more: Any) -> Problem:
    problem = a_problem(*pipelines, where=pools(cpu=(0.5, 500)), **more)
    return replace(problem, composition=Composition.RSS)


def test_what_does_not_run_makes_no_plan_be_replayed_again(replaying: Callable[[Latency], list[Pipeline]]) -> None:
    asked = replaying(lambda _, composed_s: (composed_s, 0.0))
    used, dear = on("cpu", service=(0.01, 0.0), bounds=(0, 60)), on("gpu", service=(0.01, 0.0), bounds=(0, 60))

    def plan(used: Placement, dear: Placement) -> None:
        pipeline = a_pipeline(a_stage("asr", used, dear), sla_s=0.02, rate_rps=200.0)
        problem = a_problem(pipeline, where=pools(cpu=(0.5, 500), gpu=(5.0, 500)))
        (answer,) = allocate(replace(problem, composition=Composition.RSS)).pipelines
        assert answer.replicas()[StageName("asr"), PoolName("gpu")] == 0

    plan(used, dear)
    assert len(asked) == 1
    plan(replace(used, current=3, max_replicas=50), replace(dear, service=dear.service.scaled(1.1), current=2))
    assert len(asked) == 1
    plan(replace(used, service=used.service.scaled(1.01)), dear)
    assert len(asked) == 2


def test_a_plan_far_below_its_sla_needs_no_replay(replaying: Callable[[Latency], list[Pipeline]]) -> None:
    asked = replaying(lambda pipeline, composed_s: (composed_s, 0.0))
    (answer,) = allocate(composed(captions(sla_s=10.0))).pipelines
    assert (answer.feasible, answer.replay.latency_s, answer.replay.target_latency_s) == (True, None, None)
    assert asked == []


def test_the_pipeline_whose_replay_misses_is_planned_for_a_tighter_target_and_no_other(
    replaying: Callable[[Latency], list[Pipeline]],
) -> None:
    """Six pipelines share a pool; the replay of one takes a quarter longer than composed."""
    calm = [captions(key=f"x/calm{number}", rate_rps=100.0 + number) for number in range(5)]
    late = captions(key="x/late", rate_rps=200.0)
    replaying(lambda pipeline, s: (s * (1.25 if pipeline.demand.entry_rate_rps == 200 else 1.0), 0.0))
    plan = allocate(composed(*calm, late))
    lucky = allocate(composed(*calm, late), replayed=False)
    answer = plan.of(late.key)
    assert plan.feasible
    assert answer.replay.latency_s is not None
    assert answer.replay.latency_s <= 0.06
    assert answer.replay.target_latency_s is not None
    assert answer.replay.target_latency_s < 0.06
    assert answer.cost_per_hour > lucky.of(late.key).cost_per_hour
    for pipeline in calm:
        assert plan.of(pipeline.key).replay.target_latency_s is None
        assert plan.of(pipeline.key).replicas() == lucky.of(pipeline.key).replicas()


def test_a_miss_within_the_noise_is_planned_and_told(replaying: Callable[[Latency], list[Pipeline]]) -> None:
    replaying(lambda pipeline, _: (1.01 * pipeline.sla.latency_s, 0.02 * pipeline.sla.latency_s))
    (answer,) = allocate(composed(captions())).pipelines
    assert answer.feasible
    assert answer.replay.latency_s == pytest.approx(1.01 * 0.06)


def test_a_miss_within_the_noise_is_kept_where_nothing_tighter_can_be_planned(
    replaying: Callable[[Latency], list[Pipeline]],
) -> None:
    # With three replicas per stage the target cannot be any tighter than what is composed.
    replaying(lambda pipeline, s: (1.01 * pipeline.sla.latency_s, 0.02 * pipeline.sla.latency_s))
    loose = captions(most=3)
    (answer,) = allocate(composed(replace(loose, sla=replace(loose.sla, latency_s=1.0))), replayed=False).pipelines
    assert answer.latency_s is not None
    tight = replace(loose, sla=replace(loose.sla, latency_s=1.001 * answer.latency_s))
    (answer,) = allocate(composed(tight)).pipelines
    assert answer.feasible
    assert answer.replay.latency_s == pytest.approx(1.01 * tight.sla.latency_s)


def test_what_no_replay_keeps_is_no_feasible_plan(replaying: Callable[[Latency], list[Pipeline]]) -> None:
    asked = replaying(lambda pipeline, _: (1.2 * pipeline.sla.latency_s, 0.01 * pipeline.sla.latency_s))
    plan = allocate(composed(captions()))
    (answer,) = plan.pipelines
    assert not plan.feasible
    assert answer.served_fraction == 0
    assert answer.limited_by is not None
    assert answer.limited_by.kind in (LimitKind.SLA, LimitKind.BOUNDS)
    assert len(asked) < 40


def test_as_much_is_served_as_replays_keep_the_sla_for(replaying: Callable[[Latency], list[Pipeline]]) -> None:
    """The replay is late at more than 150 items/s whatever runs, and as composed below."""
    replaying(lambda pipeline, s: (1.1 * 0.06 if pipeline.demand.entry_rate_rps > 150 else s, 0.0))
    (answer,) = allocate(composed(captions(rate_rps=200.0))).pipelines
    assert not answer.feasible
    assert 0.5 < answer.served_fraction <= 0.75
    assert answer.replay.latency_s is not None
    assert answer.replay.latency_s <= 0.06
    assert answer.limited_by is not None


def test_loads_that_hardly_differ_need_one_replay(replaying: Callable[[Latency], list[Pipeline]]) -> None:
    asked = replaying(lambda pipeline, composed_s: (composed_s * 0.9, 0.0))
    for rate_rps in (200.1, 200.5, 200.9):
        (answer,) = allocate(composed(captions(rate_rps=rate_rps))).pipelines
        assert answer.replay.latency_s is not None
    assert [pipeline.demand.entry_rate_rps for pipeline in asked] == [pytest.approx(201.0)]


def test_a_load_whose_rounding_would_miss_is_replayed_as_it_is(
    replaying: Callable[[Latency], list[Pipeline]],
) -> None:
    replaying(lambda pipeline, s: (s if pipeline.demand.entry_rate_rps < 200.9 else 2 * s, 0.0))
    (answer,) = allocate(composed(captions(rate_rps=200.5))).pipelines
    assert answer.feasible
    assert answer.replay.target_latency_s is None


def test_plans_by_the_sum_of_percentiles_are_not_replayed(replaying: Callable[[Latency], list[Pipeline]]) -> None:
    asked = replaying(lambda pipeline, composed_s: (composed_s, 0.0))
    (answer,) = allocate(replace(composed(captions()), composition=Composition.SUM)).pipelines
    assert answer.replay.latency_s is None
    assert asked == []


def test_a_replay_that_leaves_a_part_of_the_sla_makes_the_plan_cheaper(
    replaying: Callable[[Latency], list[Pipeline]],
) -> None:
    replaying(lambda pipeline, composed_s: (composed_s, 0.0))
    (exact,) = allocate(composed(captions(sla_s=0.05))).pipelines
    verification._replayed.cache_clear()
    replaying(lambda pipeline, composed_s: (0.7 * composed_s, 0.0))
    (cheaper,) = allocate(composed(captions(sla_s=0.05))).pipelines
    assert cheaper.cost_per_hour < exact.cost_per_hour
    assert cheaper.replay.composed_s is not None
    assert cheaper.replay.composed_s > 0.05
    assert cheaper.replay.target_latency_s is not None
    assert cheaper.replay.composed_s <= cheaper.replay.target_latency_s == cheaper.replay.composed_limit_s(0.05)
    assert cheaper.latency_s is not None
    assert cheaper.latency_s == cheaper.replay.latency_s == pytest.approx(0.7 * cheaper.replay.composed_s)
    assert cheaper.latency_s <= 0.05


@pytest.mark.parametrize("basis", Basis)
def test_a_later_target_whose_replay_is_late_is_refused(
    replaying: Callable[[Latency], list[Pipeline]], basis: Basis
) -> None:
    # Up to the SLA a plan takes half as long as it is composed to, beyond it twice as long.
    replaying(lambda pipeline, composed_s: ((0.5 if composed_s <= 0.05 else 2.0) * composed_s, 0.0))
    (kept,) = allocate(composed(replace(captions(sla_s=0.05), basis=basis))).pipelines
    assert kept.feasible
    assert kept.replay.latency_s is not None
    assert kept.replay.latency_s <= 0.025
    assert kept.replay.refused_target_s is not None
    assert kept.replay.leaves_unused(0.05)


def test_the_noise_of_a_replay_counts_against_a_later_target(
    replaying: Callable[[Latency], list[Pipeline]],
) -> None:
    replaying(lambda pipeline, composed_s: (0.7 * composed_s, 0.03))
    (kept,) = allocate(composed(captions(sla_s=0.05))).pipelines
    assert kept.replay.composed_s is not None
    assert kept.replay.composed_s <= 0.05


def test_replicas_keep_the_sla_by_their_composed_latency_or_else_by_a_replay(
    replaying: Callable[[Latency], list[Pipeline]],
) -> None:
    asked = replaying(lambda pipeline, composed_s: (0.7 * composed_s, 0.0))
    (plan,) = allocate(composed(captions(sla_s=0.05))).pipelines
    replicas, few = plan.replicas(), {key: 2 * count // 3 for key, count in plan.replicas().items()}
    asked.clear()
    verification._replayed.cache_clear()

    def keeps(
        running: Mapping[PlacementKey, int] = replicas,
        *,
        sla_s: float = 0.05,
        limit_s: float = 0.05,
        composition: Composition = Composition.RSS,
        replays: bool = True,
    ) -> bool:
        asking = captions(sla_s=sla_s)
        return verification.keeps_sla(asking, running, {}, composition, limit_s=limit_s, replays=replays)

    assert keeps(sla_s=1.0, limit_s=1.0)
    assert keeps(limit_s=1.0)
    assert asked == []
    assert keeps()
    assert len(asked) == 1
    assert not keeps(replays=False)
    assert not keeps(composition=Composition.SUM)
    assert not keeps(few)


def test_a_replay_decides_wherever_a_stage_mixes_placements(replaying: Callable[[Latency], list[Pipeline]]) -> None:
    """The model errs more for mixes than for single placements, also on the unsafe side."""
    stage = replace(
        a_stage("encoder", on("gpu", service=(0.02, 0.0)), on("inferentia", service=(0.05, 0.0))), mixing=Mixing.FREE
    )
    pipeline = a_pipeline(stage, rate_rps=100.0, sla_s=2.0)
    problem = replace(
        a_problem(pipeline, where=pools(gpu=(3.0, 20), inferentia=(0.6, 20))), composition=Composition.RSS
    )
    asked = replaying(lambda pipeline, composed_s: (0.9 * pipeline.sla.latency_s, 0.0))
    (plan,) = allocate(replace(problem, pipelines=(with_bounds(pipeline),))).pipelines
    assert all(placement.replicas for placement in plan.stages[0].placements)
    assert plan.replay.latency_s == pytest.approx(1.8)
    asked.clear()
    verification._replayed.cache_clear()
    replaying(lambda pipeline, composed_s: (1.1 * pipeline.sla.latency_s, 0.0))
    keeps = verification.keeps_sla(pipeline, plan.replicas(), {}, Composition.RSS, limit_s=2.0, replays=True)
    assert not keeps


def with_bounds(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with too few replicas of each placement for the load."""
    return pipeline.bounded(lambda stage, placement: (0, 2 if placement.name == "gpu" else 4))
