from dataclasses import replace

import numpy as np
import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.allocate import allocate
from optimizer.model import Composition, Mixing, Pipeline, PoolName, Problem, Routing, StageName
from optimizer.plan import PipelinePlan


def captions(*, sla_s: float = 0.12, rate_rps: float = 200.0, budget: float | None = None) -> Pipeline:
    return a_pipeline(
        a_stage("vad", on("cpu", service=(0.004, 0.0), bounds=(1, 20), per_instance=4), pass_ratio=0.5),
        a_stage(
            "encoder",
            on("inferentia", service=(0.02, 0.004), batches=(8,), wait_s=0.005, per_instance=2),
            on("gpu", service=(0.01, 0.001), batches=(16,), wait_s=0.005),
            after=["vad"],
        ),
        sla_s=sla_s,
        rate_rps=rate_rps,
        budget=budget,
    )


def only(plan_of: Pipeline) -> PipelinePlan:
    return allocate(a_problem(plan_of)).pipelines[0]


def test_a_plan_keeps_the_sla_and_says_what_it_costs() -> None:
    plan = allocate(a_problem(captions()))
    answer = plan.of(captions().key)
    assert plan.feasible
    assert (answer.served_fraction, answer.limited_by) == (1.0, None)
    assert answer.latency_s is not None
    assert answer.latency_s <= 0.12
    assert plan.cost_per_hour == pytest.approx(answer.cost_per_hour)
    assert plan.billed_per_hour >= plan.cost_per_hour
    assert (plan.lower_bound_per_hour, plan.gap, plan.packing) == (None, None, None)


def test_stages_see_what_the_stages_before_let_through() -> None:
    assert [stage.rate_rps for stage in only(captions()).stages] == [200.0, 100.0]


def test_every_placement_is_listed_those_without_replicas_too() -> None:
    encoder = only(captions()).stages[1]
    assert [placement.pool for placement in encoder.placements] == ["inferentia", "gpu"]
    assert min(placement.replicas for placement in encoder.placements) == 0


def test_the_steps_lead_from_the_cheapest_to_the_plan() -> None:
    relaxed, tight = only(captions(sla_s=10.0)), only(captions(sla_s=0.06))
    assert relaxed.steps == ()
    counts = dict(relaxed.replicas())
    for step in tight.steps:
        for change in step.changes:
            assert counts[step.stage, change.name] == change.before
            counts[step.stage, change.name] = change.after
    assert counts == tight.replicas()
    assert sum(step.cost_added_per_hour for step in tight.steps) == pytest.approx(
        tight.cost_per_hour - relaxed.cost_per_hour
    )
    assert relaxed.latency_s is not None
    assert sum(step.latency_saved_s for step in tight.steps) == pytest.approx(
        relaxed.latency_s - (tight.latency_s or 0)
    )


def test_the_bottleneck_is_where_the_next_dollar_goes() -> None:
    answer = only(captions())
    assert answer.next_step is not None
    assert answer.bottleneck == answer.next_step.stage


def test_no_demand_needs_the_minimums_whatever_the_sla() -> None:
    answer = only(captions(rate_rps=0.0, sla_s=0.001))
    assert answer.feasible
    assert sum(answer.replicas().values()) == 2
    assert answer.replicas()[StageName("encoder"), PoolName("inferentia")] == 1


def test_a_shortage_serves_a_share_within_the_sla() -> None:
    plan = allocate(a_problem(captions(rate_rps=1000.0, budget=1.0)))
    answer = plan.pipelines[0]
    assert not plan.feasible
    assert 0 < answer.served_fraction < 1
    assert str(answer.limited_by) == "Budget"
    assert answer.cost_per_hour <= 1.0
    assert answer.stages[0].rate_rps == pytest.approx(1000 * answer.served_fraction)


def test_minimums_beyond_the_budget_leave_no_replica() -> None:
    answer = only(captions(budget=0.1))
    assert set(answer.replicas().values()) == {0}
    assert (answer.cost_per_hour, answer.latency_s, answer.stages[0].utilization) == (0.0, None, None)


def test_a_stage_that_cannot_run_has_no_latency_and_the_pipeline_none_either() -> None:
    answer = allocate(a_problem(captions(), where=pools(cpu=(0.5, 9), inferentia=(1.0, 0), gpu=(2.0, 0)))).pipelines[0]
    vad, encoder = answer.stages
    assert (answer.served_fraction, answer.latency_s, answer.next_step, answer.steps) == (0.0, None, None, ())
    assert (encoder.utilization, encoder.latency_s) == (None, None)
    assert [placement.replicas for placement in encoder.placements] == [0, 0]
    assert [placement.replicas for placement in vad.placements] == [1]


def test_whole_instances_are_counted_per_pool() -> None:
    plan = allocate(a_problem(captions()))
    vad = plan.pipelines[0].replicas()[StageName("vad"), PoolName("cpu")]
    assert {pool.name: pool.instances for pool in plan.pools}[PoolName("cpu")] == -(-vad // 4)


def test_switching_costs_keep_what_runs() -> None:
    pipeline = a_pipeline(a_stage("a", on("cpu", service=(0.02, 0.0), current=5)), sla_s=1.0)
    moving, staying = a_problem(pipeline), a_problem(pipeline, switching=1.0)
    assert sum(allocate(moving).pipelines[0].replicas().values()) == 3
    plan = allocate(staying)
    assert sum(plan.pipelines[0].replicas().values()) == 5
    assert plan.cost_per_hour == pytest.approx(2.5)


def test_a_join_is_planned_for_its_slower_branch() -> None:
    fast, slow = on("cpu", service=(0.005, 0.0)), on("cpu", service=(0.03, 0.0))
    forked = a_pipeline(
        a_stage("entry", fast),
        a_stage("quick", fast, after=["entry"]),
        a_stage("heavy", slow, after=["entry"]),
        a_stage("merge", fast, after=["quick", "heavy"]),
        sla_s=0.09,
    )
    answer = allocate(a_problem(forked)).pipelines[0]
    assert answer.feasible
    assert answer.replicas()[StageName("quick"), PoolName("cpu")] == 1


def test_nothing_to_plan_costs_nothing() -> None:
    plan = allocate(a_problem())
    assert (plan.pipelines, plan.cost_per_hour, plan.feasible) == ((), 0, True)


def deciding(current: int, *, rate_rps: float, switching: float) -> PipelinePlan:
    """Small replicas, of which `current` run."""
    pipeline = a_pipeline(
        a_stage("a", on("cpu", service=(0.02, 0.0), cv=0.0, bounds=(0, 400), per_instance=10, current=current)),
        rate_rps=rate_rps,
        sla_s=1.0,
    )
    return allocate(a_problem(pipeline, where=pools(cpu=(1.0, 40)), switching=switching)).pipelines[0]


def test_a_small_saving_does_not_move_ten_replicas_and_a_large_one_does() -> None:
    stays, moves = deciding(210, rate_rps=9000.0, switching=0.3), deciding(300, rate_rps=9000.0, switching=0.05)
    assert sum(deciding(210, rate_rps=9000.0, switching=0.0).replicas().values()) == 200
    assert sum(stays.replicas().values()) == 210
    assert sum(moves.replicas().values()) == 200


def test_a_cheaper_pool_is_moved_to_when_the_saving_outweighs_the_moves() -> None:
    def where_to(price: float) -> dict[str, int]:
        stage = a_stage("a", on("cpu", service=(0.02, 0.0), current=3), on("gpu", service=(0.02, 0.0)))
        problem = a_problem(a_pipeline(stage, sla_s=1.0), where=pools(cpu=(1.0, 20), gpu=(price, 20)), switching=0.1)
        return {pool: count for (_, pool), count in allocate(problem).pipelines[0].replicas().items()}

    assert where_to(0.95) == {"cpu": 3, "gpu": 0}  # saves 0.15 $/h, and six moves cost 0.60
    assert where_to(0.5) == {"cpu": 0, "gpu": 3}


def test_streams_that_stay_with_their_replica_are_whole() -> None:
    """A replica that holds two streams of 62 % each falls behind for ever, however little the others have to do."""

    def replicas(streams: int) -> int:
        pipeline = a_pipeline(
            a_stage("synth", on("gpu", service=(0.2, 0.0), cv=0.1, bounds=(0, 400), slots=8), routing=Routing.STICKY),
            rate_rps=streams / 0.32,
            sessions=float(streams),
            sla_s=1.0,
        )
        (answer,) = allocate(a_problem(pipeline, where=pools(gpu=(1.0, 400)))).pipelines
        assert answer.feasible
        return sum(answer.replicas().values())

    assert [replicas(streams) for streams in (1, 4, 10, 100)] == [1, 4, 10, 100]


@pytest.mark.parametrize("most", [300, 1_000, 10_000, 1_000_000])
def test_how_many_replicas_there_may_be_changes_no_plan_that_needs_fewer(most: int) -> None:
    pipeline = a_pipeline(
        a_stage("asr", on("cpu", service=(0.04, 0.005), cv=0.1, bounds=(0, most), batches=(8,))),
        rate_rps=4_000.0,
        sla_s=0.06,
    )
    plan = allocate(a_problem(pipeline, where=pools(cpu=(1.0, most))))
    few = allocate(a_problem(pipeline, where=pools(cpu=(1.0, 300))))
    assert plan.cost_per_hour == few.cost_per_hour


def test_a_budget_is_no_reason_to_mix_pools() -> None:
    """What is served for less money must not be cheaper than what is served when there is more."""

    def cost(budget: float) -> float | None:
        stages = [
            a_stage(
                name,
                on("inferentia", service=(0.05, 0.0), bounds=(0, 4)),
                on("cpu", service=(0.09, 0.0), bounds=(0, 12)),
                after=after,
            )
            for name, after in (("a", []), ("b", ["a"]))
        ]
        pipeline = a_pipeline(*stages, rate_rps=30.0, sla_s=0.5, budget=budget)
        plan = allocate(a_problem(pipeline, where=pools(inferentia=(1.0, 3), cpu=(0.8, 20))))
        return plan.cost_per_hour if plan.feasible else None

    costs = [cost(budget) for budget in np.arange(2.0, 12.0, 0.2).tolist()]
    found = [one for one in costs if one is not None]
    assert len(set(found)) == 1
    assert costs.index(found[0]) == len(costs) - len(found), "a larger budget has no plan where a smaller one has"


def test_where_the_model_was_never_measured_the_plan_says_so_and_is_replayed() -> None:
    pipeline = a_pipeline(a_stage("asr", on("cpu", service=(0.02, 0.0), cv=4.0)), rate_rps=50.0, sla_s=10.0)
    (answer,) = allocate(replace(a_problem(pipeline), composition=Composition.RSS)).pipelines
    assert answer.stages[0].latency_error == 1.0
    assert answer.replay.latency_s is not None


def a_mixing_problem(mixing: Mixing) -> Problem:
    stage = a_stage("encoder", on("gpu", service=(0.02, 0.0)), on("inferentia", service=(0.05, 0.0)))
    pipeline = a_pipeline(replace(stage, mixing=mixing), rate_rps=101.0, sla_s=0.3)
    return a_problem(pipeline, where=pools(gpu=(3.0, 20), inferentia=(1.4, 20)))


def test_a_free_mix_says_what_it_saves_over_one_placement() -> None:
    free, overflow = (allocate(a_mixing_problem(mixing)) for mixing in (Mixing.FREE, Mixing.OVERFLOW))
    (stage,) = free.pipelines[0].stages
    assert all(placement.replicas for placement in stage.placements)
    assert stage.mixing_saves_per_hour == pytest.approx(overflow.cost_per_hour - free.cost_per_hour)
    assert free.cost_per_hour < overflow.cost_per_hour
    assert overflow.pipelines[0].stages[0].mixing_saves_per_hour is None


def test_where_free_mixes_save_nothing_the_plan_is_that_of_overflow() -> None:
    problems = [a_mixing_problem(mixing) for mixing in (Mixing.FREE, Mixing.OVERFLOW)]
    plans = [allocate(replace(problem, pools=pools(gpu=(0.1, 20), inferentia=(1.4, 20)))) for problem in problems]
    assert plans[0] == plans[1]
