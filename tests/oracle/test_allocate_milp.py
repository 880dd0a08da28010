"""Plans for pipelines that compete for pools, against an exact solver over the same tables (HiGHS)."""

import random

import numpy as np
import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools
from scipy import optimize, sparse

from optimizer.allocate import allocate
from optimizer.fleet.fleet import Fleet
from optimizer.model import Mixing, Pipeline, Problem
from optimizer.plan import Plan
from optimizer.reports.certificate import certified_plan
from optimizer.search.tables import supply_of


def optimum(problem: Problem, mixing: Mixing) -> float | None:
    """Return the least cost at which every pipeline keeps its SLA, or None: one row of each stage's table."""
    supply = supply_of(problem)
    fleet = Fleet(problem, supply)
    costs: list[float] = []
    stage_of, latency_rows, use_rows = [], [], []
    for number, pipeline in enumerate(problem.pipelines):
        subproblem = fleet.subproblem(pipeline, 1.0, mixing)
        for index, table in enumerate(subproblem.tables):
            for row in range(len(table)):
                costs.append(float(table.cost_per_hour[row]))
                stage_of.append((number, index))
                latency_rows.append((number, float(table.percentile_s[row])))
                use_rows.append(table.use[row])
            if not len(table):
                return None
    stages = sorted(set(stage_of))
    choose = sparse.csr_matrix(
        (np.ones(len(costs)), ([stages.index(stage) for stage in stage_of], range(len(costs)))),
        shape=(len(stages), len(costs)),
    )
    latency = np.zeros((len(problem.pipelines), len(costs)))
    for column, (number, percentile_s) in enumerate(latency_rows):
        latency[number, column] = percentile_s
    answer = optimize.milp(
        np.array(costs),
        integrality=np.ones(len(costs)),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(choose, 1, 1),
            optimize.LinearConstraint(latency, -np.inf, [p.sla.latency_s for p in problem.pipelines]),
            optimize.LinearConstraint(np.array(use_rows).T, -np.inf, supply.limits),
        ],
        options={"mip_rel_gap": 0},
    )
    return float(answer.fun) if answer.success else None


def a_fleet(seed: int) -> Problem:
    rng = random.Random(seed)

    def pipeline(number: int) -> Pipeline:
        stages = [
            a_stage(
                name,
                *(
                    on(
                        pool,
                        service=(rng.choice((0.008, 0.015, 0.03)), 0.0),
                        bounds=(0, 20),
                        per_instance=rng.choice((1, 2)),
                    )
                    for pool in rng.sample(("cpu", "inferentia", "gpu"), 2)
                ),
                after=after,
            )
            for name, after in (("a", []), ("b", ["a"]), ("c", ["b"]))
        ]
        return a_pipeline(
            *stages, key=f"x/p{number}", rate_rps=rng.choice((50, 100, 200)), sla_s=rng.choice((0.09, 0.15))
        )

    plenty = a_problem(
        *(pipeline(n) for n in range(rng.choice((2, 3, 4)))),
        where=pools(cpu=(0.4, 99), inferentia=(0.8, 99), gpu=(1.7, 99)),
    )
    wanted = {pool.name: pool.instances for pool in allocate(plenty).pools}
    most = max(wanted, key=lambda name: wanted[name])
    limits = {str(name): 20 if name != most else max(1, round(0.6 * wanted[most])) for name in wanted}
    return a_problem(
        *plenty.pipelines,
        where=pools(cpu=(0.4, limits["cpu"]), inferentia=(0.8, limits["inferentia"]), gpu=(1.7, limits["gpu"])),
    )


def check(plan: Plan, best: float | None) -> float | None:
    if not plan.feasible:
        return None
    assert best is not None
    assert plan.cost_per_hour >= best - 1e-6
    assert plan.lower_bound_per_hour is not None
    assert plan.lower_bound_per_hour <= best + 1e-6
    return plan.cost_per_hour / best - 1


def test_fleets_come_close_to_the_optimum_and_the_bound_holds() -> None:
    gaps, missed, infeasible, own = [], 0, 0, []
    for seed in range(40):
        problem = a_fleet(seed)
        plan = certified_plan(problem)
        best = optimum(problem, Mixing.OVERFLOW)
        if plan.feasible and best is None:
            best = optimum(problem, Mixing.ANY)
            continue
        gap = check(plan, best)
        if gap is not None:
            gaps.append(gap)
            own.append(plan.gap or 0.0)
        elif best is None:
            infeasible += 1
        else:
            missed += 1
    print(
        f"{len(gaps)} plans: gap to the optimum mean {np.mean(gaps):.2%}, largest {max(gaps):.1%}; own certificate "
        f"mean {np.mean(own):.2%}; {infeasible} infeasible, {missed} missed"
    )
    assert np.mean(gaps) <= 0.02
    assert missed <= 1


def test_a_single_pipeline_is_planned_optimally() -> None:
    for seed in range(12):
        problem = a_fleet(seed)
        for pipeline in problem.pipelines:
            alone = Problem(pipelines=(pipeline,), pools=problem.pools)
            plan, best = certified_plan(alone), optimum(alone, Mixing.OVERFLOW)
            if plan.feasible and best is not None:
                assert plan.cost_per_hour == pytest.approx(best)
                assert plan.proven_optimal
