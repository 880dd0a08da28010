"""Free mixes of two placements, against brute force over all pairs of replica counts and against a MILP solver."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from mixed_loads import LOADS, a_mixed_problem
from problems import a_pipeline, a_problem, a_stage, on, pools
from scipy import optimize

from optimizer.fleet.fleet import Fleet
from optimizer.latency.predict import stage_load
from optimizer.latency.stage import predict_all
from optimizer.model import Composition, Mixing, Pipeline, Problem, Routing, Stage
from optimizer.plan import Plan
from optimizer.reports.certificate import certified_plan
from optimizer.search.tables import RESOLUTION, supply_of

Point = tuple[float, float, float]


def a_small_problem(seed: int, mixing: Mixing, *, pool_limits: bool = False) -> Problem:
    """Return a pipeline of two stages, each on two of three kinds of machines, of which few of each are needed."""
    rng = random.Random(seed)
    routing = rng.choice((Routing.LEAST_LOADED, Routing.PULL, Routing.ROUND_ROBIN, Routing.RANDOM))
    stages: list[Stage] = []
    for name in ("a", "b"):
        times = {"cpu": rng.uniform(0.05, 0.09), "inferentia": rng.uniform(0.02, 0.05), "gpu": rng.uniform(0.006, 0.02)}
        placements = [
            on(pool, service=(times[pool], 0.0), cv=rng.choice((0.1, 0.5)), bounds=(rng.choice((0, 0, 1)), 7))
            for pool in rng.sample(sorted(times), 2)
        ]
        stage = a_stage(name, *placements, after=[stages[-1].name] if stages else [], routing=routing)
        stages.append(replace(stage, mixing=mixing))
    few = rng.randint(1, 3) if pool_limits else 20
    pipeline = a_pipeline(*stages, rate_rps=rng.uniform(20, 90), sla_s=rng.uniform(0.08, 0.3))
    return a_problem(pipeline, where=pools(cpu=(0.3, 20), inferentia=(0.9, 20), gpu=(3.1, few)))


def all_pairs(pipeline: Pipeline, stage: Stage) -> Iterator[tuple[Point, tuple[int, ...]]]:
    """Yield (cost, mean, percentile) and replicas of every pair of counts of two placements that carries the load."""
    price = {"cpu": 0.3, "inferentia": 0.9, "gpu": 3.1}
    ranges = [range(p.min_replicas, p.max_replicas + 1) for p in stage.placements]
    rows = np.array([row for row in product(*ranges) if sum(row)])
    found = predict_all(
        stage_load(pipeline, stage),
        stage.placements,
        rows,
        [p.batch_sizes[0] for p in stage.placements],
        routing=stage.routing,
        percentile=pipeline.sla.percentile,
    )
    for row, mean_s, percentile_s in zip(rows.tolist(), found.mean_s, found.percentile_s, strict=True):
        if np.isfinite(percentile_s):
            cost = sum(count * price[p.pool] for count, p in zip(row, stage.placements, strict=True))
            yield (cost, float(mean_s), float(percentile_s)), tuple(row)


def cheapest_of_all(problem: Problem, *, limited: bool) -> float | None:
    """Return the least cost of all pairs of pairs whose percentiles add up to the SLA, None without one."""
    (pipeline,) = problem.pipelines
    first, second = (list(all_pairs(pipeline, stage)) for stage in pipeline.stages)
    costs = [
        one[0] + two[0]
        for (one, own), (two, other) in product(first, second)
        if one[2] + two[2] <= pipeline.sla.latency_s and (not limited or within(problem, pipeline.stages, (own, other)))
    ]
    return min(costs, default=None)


def within(problem: Problem, stages: tuple[Stage, ...], replicas: tuple[tuple[int, ...], ...]) -> bool:
    used: dict[str, int] = {}
    for stage, counts in zip(stages, replicas, strict=True):
        for placement, count in zip(stage.placements, counts, strict=True):
            used[placement.pool] = used.get(placement.pool, 0) + count
    return all(count <= problem.pools[name].instances for name, count in used.items())  # type: ignore[index]


def test_plans_are_the_cheapest_of_all_pairs() -> None:
    mixed = 0
    for seed in range(120):
        problem = a_small_problem(seed, Mixing.FREE)
        plan, best = certified_plan(problem), cheapest_of_all(problem, limited=True)
        assert plan.feasible == (best is not None)
        if best is None:
            continue
        # Latencies of a stage within a thousandth count as equal, so that the dearer one may be listed.
        assert best - 1e-9 <= plan.cost_per_hour, seed
        if plan.cost_per_hour > best + 1e-9:
            looser = replace(problem, pipelines=(with_sla(problem.pipelines[0], 1 - RESOLUTION),))
            assert plan.cost_per_hour <= (cheapest_of_all(looser, limited=True) or np.inf) + 1e-9, seed
        assert plan.lower_bound_per_hour is not None
        assert plan.proven_optimal
        mixed += mixes(plan)
    assert mixed >= 10


def with_sla(pipeline: Pipeline, factor: float) -> Pipeline:
    return replace(pipeline, sla=replace(pipeline.sla, latency_s=pipeline.sla.latency_s * factor))


def mixes(plan: Plan) -> bool:
    return any(stage.mixing_saves_per_hour is not None for pipeline in plan.pipelines for stage in pipeline.stages)


def test_bounds_hold_for_all_pairs_where_pools_are_scarce() -> None:
    for seed in range(120):
        problem = a_small_problem(seed, Mixing.FREE, pool_limits=True)
        plan, best = certified_plan(problem), cheapest_of_all(problem, limited=True)
        if plan.feasible and best is not None:
            assert plan.lower_bound_per_hour is not None
            assert plan.lower_bound_per_hour <= best * (1 + 2e-3), seed
            assert plan.cost_per_hour >= best - 1e-9, seed


@pytest.mark.parametrize("load", LOADS)
def test_free_mixes_never_cost_more_than_overflow(load: str) -> None:
    for seed in range(12):
        for composition in Composition:
            free, overflow = (
                certified_plan(replace(a_mixed_problem(load, seed, mixing), composition=composition))
                for mixing in (Mixing.FREE, Mixing.OVERFLOW)
            )
            assert free.cost_per_hour <= overflow.cost_per_hour + 1e-9
            assert free.feasible >= overflow.feasible
            if free.lower_bound_per_hour is not None:
                assert free.lower_bound_per_hour <= free.cost_per_hour + 1e-9


def test_plans_cost_as_much_as_those_of_a_milp_solver() -> None:
    for seed in range(20):
        problem = replace(a_mixed_problem("small", seed, Mixing.FREE), composition=Composition.SUM)
        plan = certified_plan(problem)
        best = optimum(problem)
        assert plan.feasible == (best is not None)
        if best is not None and plan.lower_bound_per_hour is not None:
            assert plan.cost_per_hour == pytest.approx(best)
            assert plan.lower_bound_per_hour <= best + 1e-6


def optimum(problem: Problem) -> float | None:
    """Return the least cost of a row per stage whose percentiles add up to the SLA, by HiGHS; columns are mixed."""
    (pipeline,) = problem.pipelines
    tables = Fleet(problem, supply_of(problem)).subproblem(pipeline, 1.0).tables
    owner = np.concatenate([np.full(len(table), number) for number, table in enumerate(tables)])
    late = np.concatenate([table.percentile_s for table in tables]) / pipeline.sla.latency_s * 1e3
    answer = optimize.milp(
        np.concatenate([table.cost_per_hour for table in tables]),
        integrality=np.ones(len(owner)),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(np.arange(len(tables))[:, None] == owner, 1, 1),
            optimize.LinearConstraint(late[None], -np.inf, 1e3),
        ],
        options={"mip_rel_gap": 0},
    )
    return float(answer.fun) if answer.success else None


def test_unlisted_mixes_are_no_better_than_the_rows_that_stand_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import optimizer.search.tables as tables

    whole = [certified_plan(a_small_problem(seed, Mixing.FREE)) for seed in range(60)]
    monkeypatch.setattr(tables, "_FREE_LIMIT", 3)
    monkeypatch.setattr(tables, "_CANDIDATES", 12)
    tables._TABLES.clear()
    gaps = 0
    for seed, best in enumerate(whole):
        problem = a_small_problem(seed, Mixing.FREE)
        problem = replace(problem, pools={name: replace(pool, instances=21) for name, pool in problem.pools.items()})
        plan = certified_plan(problem)
        if best.feasible and plan.lower_bound_per_hour is not None:
            assert plan.lower_bound_per_hour <= best.cost_per_hour + 1e-9
            gaps += not plan.proven_optimal
    tables._TABLES.clear()
    assert gaps > 0


def test_with_one_placement_mixing_makes_no_difference() -> None:
    stage = a_stage("a", on("gpu", service=(0.02, 0.0)))
    plans = [
        certified_plan(a_problem(a_pipeline(replace(stage, mixing=mixing), rate_rps=130.0)))
        for mixing in (Mixing.FREE, Mixing.OVERFLOW)
    ]
    assert plans[0] == plans[1]


def test_of_mixes_that_cost_the_same_the_preferred_placement_has_more() -> None:
    for first, second in (("inferentia", "gpu"), ("gpu", "inferentia")):
        stage = replace(
            a_stage("a", *(on(pool, service=(0.02, 0.0), cv=0.0) for pool in (first, second))), mixing=Mixing.FREE
        )
        where = pools(inferentia=(1.0, 20), gpu=(1.0, 20))
        plan = certified_plan(a_problem(a_pipeline(stage, rate_rps=130.0), where=where))
        counts = {p.name: p.replicas for p in plan.pipelines[0].stages[0].placements}
        assert counts[first] > 0  # type: ignore[index]
        assert counts[second] == 0  # type: ignore[index]
