"""What holds for every question to the optimizer, and how close its answers come to trying everything."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import a_pipeline, a_stage, on, pools

from optimizer.allocate import allocate
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import (
    Composition,
    Demand,
    GroupBudget,
    Pipeline,
    PipelineKey,
    Placement,
    PlacementKey,
    PoolName,
    Problem,
    Routing,
    Stage,
    StageName,
    whole_instances,
)
from optimizer.plan import LimitKind, PipelinePlan, Plan

POOLS = ("cpu", "inferentia", "gpu")
SLACK = 1e-6
Allocation = dict[PlacementKey, int]


@st.composite
def placements(draw: st.DrawFn, pool: str, most: int) -> Placement:
    batch = draw(st.sampled_from(((1,), (1,), (4,), (1, 4))))
    low = draw(st.sampled_from((0, 0, 0, 1)))
    return on(
        pool,
        service=(draw(st.sampled_from((0.005, 0.01, 0.02))), draw(st.sampled_from((0.0, 0.002)))),
        cv=draw(st.sampled_from((0.0, 0.3))),
        bounds=(low, draw(st.integers(1, most))),
        per_instance=draw(st.sampled_from((1, 2, 3))),
        batches=batch,
        wait_s=draw(st.sampled_from((0.0, 0.005))),
    )


@st.composite
def stages(draw: st.DrawFn, name: str, after: tuple[str, ...], most: int) -> Stage:
    names = draw(st.lists(st.sampled_from(POOLS), min_size=1, max_size=2, unique=True))
    return a_stage(
        name,
        *(draw(placements(pool, most)) for pool in names),
        after=after,
        pass_ratio=draw(st.sampled_from((1.0, 1.0, 0.5))) if not after else 1.0,
        routing=draw(st.sampled_from((Routing.LEAST_LOADED, Routing.STICKY))),
    )


@st.composite
def pipelines(draw: st.DrawFn, key: str = "speech/captions", most: int = 4, joins: bool = False) -> Pipeline:
    count = draw(st.integers(1, 3))
    shapes = [((), ("a",), ("b",))] + ([((), ("a",), ("a",))] if joins else [])
    after = draw(st.sampled_from(shapes))
    return a_pipeline(
        *(draw(stages(name, after[index], most)) for index, name in enumerate("abc"[:count])),
        key=key,
        rate_rps=draw(st.sampled_from((0.0, 20.0, 100.0, 300.0))),
        sla_s=draw(st.sampled_from((0.03, 0.06, 0.12))),
        budget=draw(st.one_of(st.none(), st.floats(0.5, 12))),
        priority=draw(st.integers(0, 2)),
    )


@st.composite
def problems(draw: st.DrawFn, count: int = 3, *, joins: bool = True) -> Problem:
    return Problem(
        pipelines=tuple(
            draw(pipelines(key=f"speech/p{index}", joins=joins)) for index in range(draw(st.integers(1, count)))
        ),
        pools=pools(
            cpu=(0.3, draw(st.integers(0, 8))),
            inferentia=(0.8, draw(st.integers(0, 6))),
            gpu=(1.7, draw(st.integers(0, 5))),
        ),
        budget_per_hour=draw(st.one_of(st.none(), st.floats(0.5, 20))),
        composition=draw(st.sampled_from(Composition)),
    )


def cost_per_hour(problem: Problem, pipeline: Pipeline, allocation: Allocation) -> float:
    return sum(
        problem.pools[p.pool].replica_price_per_hour(p) * allocation[stage.name, p.name]
        for stage in pipeline.stages
        for p in stage.placements
    )


def check_limits(problem: Problem, plan: Plan) -> None:
    total = 0.0
    for pipeline in problem.pipelines:
        answer = plan.of(pipeline.key)
        cost = cost_per_hour(problem, pipeline, dict(answer.replicas()))
        assert cost == pytest.approx(answer.cost_per_hour, abs=SLACK)
        assert pipeline.budget_per_hour is None or cost <= pipeline.budget_per_hour + SLACK
        total += cost
    assert problem.budget_per_hour is None or total <= problem.budget_per_hour + SLACK
    for budget in problem.budgets:
        assert (
            sum(own.cost_per_hour for own in plan.pipelines if own.key in budget.pipelines) <= budget.per_hour + SLACK
        )
    for pool in plan.pools:
        assert pool.instances <= pool.limit
        used = [
            (p.per_instance, plan.of(pipeline.key).replicas()[stage.name, p.name])
            for pipeline, stage, p in problem.placements()
            if p.pool == pool.name
        ]
        assert whole_instances(used) == pool.instances


@settings(max_examples=40, deadline=None)
@given(problems())
def test_no_plan_exceeds_a_budget_or_a_pool(problem: Problem) -> None:
    check_limits(problem, allocate(problem))


@st.composite
def grouped(draw: st.DrawFn) -> Problem:
    """Return a problem whose pipelines are in up to three groups with budgets, which may overlap."""
    problem = draw(problems(count=6, joins=draw(st.booleans())))
    keys = [pipeline.key for pipeline in problem.pipelines]
    return replace(
        problem,
        budgets=tuple(
            GroupBudget(
                name=name, per_hour=draw(st.floats(0, 15)), pipelines=frozenset(draw(st.sets(st.sampled_from(keys))))
            )
            for name in "xyz"[: draw(st.integers(1, 3))]
        ),
    )


@settings(max_examples=60, deadline=None)
@given(grouped())
def test_no_plan_exceeds_the_budget_of_a_group(problem: Problem) -> None:
    plan = allocate(problem)
    check_limits(problem, plan)
    for pipeline in plan.pipelines:
        if (limit := pipeline.limited_by) is not None and limit.kind is LimitKind.BUDGET and limit.name is not None:
            (budget,) = (budget for budget in problem.budgets if budget.name == limit.name)
            assert pipeline.key in budget.pipelines


@settings(max_examples=25, deadline=None)
@given(problems())
def test_what_a_plan_promises_is_what_its_replicas_are_predicted_to_do(problem: Problem) -> None:
    plan = allocate(problem)
    for pipeline in problem.pipelines:
        answer = plan.of(pipeline.key)
        assert answer.feasible == (answer.served_fraction >= 1) == (answer.limited_by is None)
        if answer.served_fraction == 0 or pipeline.demand.entry_rate_rps == 0:
            continue
        served = replace(pipeline, demand=pipeline.demand.scaled(answer.served_fraction))
        batches = {(stage.name, p.name): p.batch for stage in answer.stages for p in stage.placements}
        latency_s = predicted_latency_s(served, answer.replicas(), batches, composition=problem.composition)
        replayed = answer.replay
        assert latency_s == pytest.approx(answer.latency_s if replayed.latency_s is None else replayed.composed_s)
        assert latency_s is not None
        assert latency_s <= replayed.composed_limit_s(pipeline.sla.latency_s) + SLACK
        if latency_s > pipeline.sla.latency_s + SLACK:  # only where a replay has shown that the SLA is kept
            assert replayed.latency_s is not None
            assert replayed.latency_s <= pipeline.sla.latency_s


@settings(max_examples=30, deadline=None)
@given(problems(count=1), st.floats(0.5, 15), st.floats(1.0, 3.0))
def test_more_budget_never_gives_a_worse_plan(problem: Problem, budget: float, factor: float) -> None:
    pipeline = problem.pipelines[0]

    def at(amount: float) -> Plan:
        return allocate(replace(problem, pipelines=(replace(pipeline, budget_per_hour=amount),), budget_per_hour=None))

    less, more = at(budget), at(budget * factor)
    assert more.pipelines[0].served_fraction >= less.pipelines[0].served_fraction
    if less.feasible:
        assert more.cost_per_hour <= less.cost_per_hour + SLACK


def renamed(problem: Problem) -> Problem:
    """Return the problem with other names in the same order, listed backwards where the order has no meaning."""
    pool = {name: PoolName(f"x-{name}") for name in problem.pools}
    stage = {name: StageName(f"stage-{name}") for name in "abc"}
    return replace(
        problem,
        pools={
            pool[name]: replace(problem.pools[name], name=pool[name]) for name in sorted(problem.pools, reverse=True)
        },
        pipelines=tuple(
            replace(
                p,
                key=PipelineKey(f"x/{p.key}"),
                stages=tuple(
                    replace(
                        s,
                        name=stage[s.name],
                        after=tuple(stage[name] for name in s.after),
                        placements=tuple(replace(q, pool=pool[q.pool]) for q in s.placements),
                    )
                    for s in listed(p.stages)
                ),
            )
            for p in reversed(problem.pipelines)
        ),
    )


def listed(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Swap the two branches of a fork."""
    if len(stages) == 3 and stages[1].after == stages[2].after:
        return (stages[0], stages[2], stages[1])
    return stages


@settings(max_examples=15, deadline=None)
@given(problems())
def test_names_and_the_order_of_things_change_nothing(problem: Problem) -> None:
    plan, other = allocate(problem), allocate(renamed(problem))
    for pipeline in problem.pipelines:
        mine, theirs = plan.of(pipeline.key), other.of(PipelineKey(f"x/{pipeline.key}"))
        assert mine.served_fraction == theirs.served_fraction
        if listed(pipeline.stages) == pipeline.stages:  # of two that are alike the first listed is named
            assert mine.bottleneck == theirs.bottleneck.removeprefix("stage-")
        assert {(f"stage-{s}", f"x-{p}"): count for (s, p), count in mine.replicas().items()} == theirs.replicas()


def everything(problem: Problem, limit_s: float) -> float:
    """Return the least cost of one pipeline at full demand over every allocation there is (infinite: none).

    `limit_s` is the longest composed latency of an allocation.
    """
    (pipeline,) = problem.pipelines
    options = [
        [
            dict(zip([(stage.name, p.name) for p in stage.placements], counts, strict=True))
            for counts in itertools.product(*(range(least(problem, p), p.max_replicas + 1) for p in stage.placements))
            if any(counts)
        ]
        for stage in pipeline.stages
    ]
    best = math.inf
    for parts in itertools.product(*options):
        allocation: Allocation = {key: count for part in parts for key, count in part.items()}
        cost = cost_per_hour(problem, pipeline, allocation)
        if cost < best - 1e-9 and fits(problem, pipeline, allocation) and meets(problem, pipeline, allocation, limit_s):
            best = cost
    return best


def least(problem: Problem, placement: Placement) -> int:
    """Return the minimum of a placement, as far as its pool holds it."""
    return min(placement.min_replicas, int(problem.pools[placement.pool].instances * placement.per_instance))


def fits(problem: Problem, pipeline: Pipeline, allocation: Allocation) -> bool:
    return all(
        whole_instances(
            (p.per_instance, allocation[stage.name, p.name])
            for stage in pipeline.stages
            for p in stage.placements
            if p.pool == name
        )
        <= pool.instances
        for name, pool in problem.pools.items()
    )


def meets(problem: Problem, pipeline: Pipeline, allocation: Allocation, limit_s: float) -> bool:
    sizes = [
        [((stage.name, p.name), size) for size in p.batch_sizes] for stage in pipeline.stages for p in stage.placements
    ]
    for batches in itertools.product(*sizes):
        latency_s = predicted_latency_s(pipeline, allocation, dict(batches), composition=problem.composition)
        if latency_s is not None and latency_s <= limit_s:
            return True
    return False


@st.composite
def small(draw: st.DrawFn) -> Problem:
    problem = draw(problems(count=1))
    pipeline = replace(
        draw(pipelines(most=3, joins=True)),
        budget_per_hour=None,
        demand=Demand(entry_rate_rps=draw(st.sampled_from((50.0, 150.0)))),
    )
    return replace(problem, pipelines=(pipeline,), budget_per_hour=None)


def test_plans_come_close_to_trying_everything() -> None:
    gaps: list[float] = []

    @settings(max_examples=30, deadline=None, database=None)
    @given(small())
    def compare(problem: Problem) -> None:
        plan = allocate(problem)
        if plan.feasible:
            (own,), sla_s = plan.pipelines, problem.pipelines[0].sla.latency_s
            # Replays may let a plan use more than the SLA by the composed latency, or less.
            limit_s = own.replay.composed_limit_s(sla_s)
            best = everything(problem, limit_s)
            assert plan.cost_per_hour >= best - SLACK  # never better than the best there is
            gaps.append(plan.cost_per_hour / best - 1)

    compare()
    exact = sum(gap <= SLACK for gap in gaps)
    print(f"{len(gaps)} feasible, {exact} optimal, mean gap {sum(gaps) / len(gaps):.2%}, largest {max(gaps):.1%}")
    assert exact >= 0.8 * len(gaps)


@given(
    stages("b", ("a",), 6),
    st.sampled_from((2.0, 3.0, 7.5)),
    st.sampled_from((5.0, 20.0, 60.0)),
    st.sampled_from((0.03, 0.06, 0.12)),
    st.sampled_from(Composition),
)
def test_a_stage_after_fan_out_is_planned_as_for_that_many_times_the_rate(
    behind: Stage, ratio: float, rate_rps: float, sla_s: float, composition: Composition
) -> None:
    """Without the replay, in which the calls of an item come together."""
    instant = on("entry", service=(1e-9, 0.0), cv=0.0, bounds=(1, 1))

    def planned(pass_ratio: float, offered_rps: float) -> PipelinePlan:
        asked = a_pipeline(a_stage("a", instant, pass_ratio=pass_ratio), behind, rate_rps=offered_rps, sla_s=sla_s)
        where = pools(entry=(0.0, 1), cpu=(0.3, 8), inferentia=(0.8, 6), gpu=(1.7, 5))
        problem = Problem(pipelines=(asked,), pools=where, composition=composition)
        return allocate(problem, replayed=False).of(asked.key)

    fanned, offered = planned(ratio, rate_rps), planned(1.0, rate_rps * ratio)
    assert fanned.feasible == offered.feasible
    if fanned.feasible:
        assert (fanned.replicas(), fanned.cost_per_hour) == (offered.replicas(), offered.cost_per_hour)
        assert fanned.latency_s == pytest.approx(offered.latency_s)
    # Shares are searched in steps of the load at the entry.
    assert fanned.served_fraction == pytest.approx(offered.served_fraction, abs=0.01)
