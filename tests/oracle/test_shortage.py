"""What is said when it cannot be done, against trying everything and against an exact solver (HiGHS)."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools
from scipy import optimize, sparse

from optimizer.allocate import allocate
from optimizer.fleet.fleet import Fleet
from optimizer.model import Composition, Mixing, Pipeline, Problem, Sla, Stage
from optimizer.overload.overload import RESOLUTION, share_out
from optimizer.plan import LimitKind
from optimizer.reports.advice import PRECISION, advise
from optimizer.reports.curve import frontier
from optimizer.search.subproblem import Subproblem
from optimizer.search.tables import supply_of

CLOSE = 1e-6


def a_small_pipeline(rng: random.Random, key: str = "x/a", *, most: int = 4, joins: bool = False) -> Pipeline:
    after = {"b": ["a"], "c": ["a"] if joins else ["b"]}
    stages = [
        a_stage(
            name,
            *(
                on(
                    pool,
                    service=(rng.choice((0.008, 0.015, 0.03)), rng.choice((0.0, 0.002))),
                    bounds=(rng.choice((0, 0, 1)), rng.randint(1, most)),
                    per_instance=rng.choice((1, 2)),
                    batches=rng.choice(((1,), (1, 4))),
                )
                for pool in rng.sample(("cpu", "inferentia", "gpu"), rng.choice((1, 2)))
            ),
            after=after.get(name, []),
        )
        for name in "abc"[: 3 if joins else rng.choice((1, 2, 3))]
    ]
    return a_pipeline(*stages, key=key, rate_rps=rng.choice((30.0, 90.0, 200.0)), sla_s=rng.choice((0.05, 0.1, 0.2)))


def a_small_problem(seed: int, *, composition: Composition = Composition.SUM, joins: bool = False) -> Problem:
    rng = random.Random(seed)
    problem = a_problem(
        replace(a_small_pipeline(rng, joins=joins), budget_per_hour=rng.choice((None, None, 3.0, 6.0))),
        where=pools(cpu=(0.4, rng.randint(0, 6)), inferentia=(0.8, rng.randint(0, 6)), gpu=(1.7, rng.randint(0, 6))),
    )
    return replace(problem, composition=composition)


def choices(problem: Problem) -> tuple[Subproblem, list[tuple[float, float]]]:
    """Return every choice that carries the load within the pools: cost and latency."""
    supply = supply_of(problem)
    subproblem = Fleet(problem, supply).subproblem(problem.pipelines[0], 1.0, Mixing.OVERFLOW).within(supply.limits)
    rows = itertools.product(*(range(len(table)) for table in subproblem.tables))
    return subproblem, [
        (subproblem.cost_per_hour(row), subproblem.latency(row)) for row in rows if subproblem.fits(row)
    ]


@pytest.mark.parametrize("composition", Composition)
@pytest.mark.parametrize("joins", [False, True])
def test_required_budget_and_best_latency_are_those_of_trying_everything(composition: Composition, joins: bool) -> None:
    budgets = latencies = 0
    for seed in range(40):
        problem = a_small_problem(seed, composition=composition, joins=joins)
        (pipeline,) = problem.pipelines
        _, every = choices(problem)
        fleet = Fleet(problem, supply_of(problem))
        advice = advise(fleet, pipeline, fleet.supply.limits)
        enough = [cost for cost, latency in every if latency <= pipeline.sla.latency_s]
        if enough:
            budgets += 1
            needed = advice.required_budget_per_hour
            assert needed is not None
            if composition is Composition.SUM:
                assert needed == pytest.approx(min(enough), abs=CLOSE)
            else:  # replays decide which of the choices keep the SLA
                rich = replace(problem, pipelines=(replace(pipeline, budget_per_hour=needed + CLOSE),))
                assert allocate(rich).feasible
        money = math.inf if pipeline.budget_per_hour is None else pipeline.budget_per_hour
        paid = [latency for cost, latency in every if cost <= money + CLOSE]
        if paid:
            latencies += 1
            assert advice.best_latency_s is not None
            assert advice.best_latency_s <= min(paid) * (1 + 2 * PRECISION)
            assert advice.best_latency_s >= min(paid) * (1 - CLOSE)
    assert budgets >= 8
    assert latencies >= 8


def test_the_required_budget_is_enough_and_less_is_not() -> None:
    checked = 0
    for seed in range(60):
        problem = a_small_problem(seed)
        (pipeline,) = problem.pipelines
        fleet = Fleet(problem, supply_of(problem))
        needed = advise(fleet, pipeline, fleet.supply.limits).required_budget_per_hour
        if needed is None:
            assert not allocate(problem).feasible
            continue
        checked += 1
        at = [
            allocate(replace(problem, pipelines=(replace(pipeline, budget_per_hour=amount),)))
            for amount in (needed + CLOSE, needed - 0.01)
        ]
        assert [plan.feasible for plan in at] == [True, False], seed
    assert checked >= 20


@pytest.mark.parametrize("composition", Composition)
@pytest.mark.parametrize("joins", [False, True])
def test_the_frontier_is_that_of_trying_everything(composition: Composition, joins: bool) -> None:
    corners = hit = 0
    for seed in range(25):
        problem = a_small_problem(seed, composition=composition, joins=joins)
        _, every = choices(problem)
        best: list[tuple[float, float]] = []
        for cost, latency in sorted((round(cost, 6), latency) for cost, latency in every):
            if math.isfinite(latency) and (not best or latency < best[-1][1] * (1 - CLOSE)):
                best.append((cost, latency))
        if not best:
            continue
        curve = frontier(problem, problem.pipelines[0].key)
        found = [(corner.cost_per_hour, corner.latency_s) for corner in curve.corners]
        assert not curve.thinned
        # Where overflow cannot be any faster, a mix of pools may be.
        fastest = [corner for corner in found if corner[1] < best[-1][1] * (1 - CLOSE)]
        best = [corner for corner in best if not fastest or corner[0] < fastest[0][0] - CLOSE]
        assert len(found) == len(best) + len(fastest)
        corners += len(best)
        hit += sum(
            any(abs(c - cost) <= CLOSE and t == pytest.approx(latency, rel=10 * CLOSE) for c, t in found)
            for cost, latency in best
        )
    assert corners >= 50
    assert hit == corners


def lifted(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield every constraint of a problem of one pipeline by name, and the problem without it."""
    (pipeline,) = problem.pipelines

    def one(changed: Pipeline) -> Problem:
        return replace(problem, pipelines=(changed,))

    yield "Budget", one(replace(pipeline, budget_per_hour=None))
    for name, pool in problem.pools.items():
        yield f"Pool/{name}", replace(problem, pools={**problem.pools, name: replace(pool, instances=500)})
    for stage in pipeline.stages:
        stages = tuple(unbounded(other) if other is stage else other for other in pipeline.stages)
        yield f"Bounds/{stage.name}", one(replace(pipeline, stages=stages))
    yield "Sla", one(replace(pipeline, sla=Sla(latency_s=1e6, percentile=pipeline.sla.percentile)))


def unbounded(stage: Stage) -> Stage:
    return replace(stage, placements=tuple(replace(p, min_replicas=0, max_replicas=200) for p in stage.placements))


def test_what_limits_is_what_would_help() -> None:
    # A quota and a shard's allowance bound a pool like its instances; the cycle names them, which knows the account.
    named = dict.fromkeys(set(LimitKind) - {LimitKind.QUOTA, LimitKind.ALLOWANCE}, 0)
    alone = 0
    for seed in range(70):
        problem = a_small_problem(seed)
        (answer,) = allocate(problem).pipelines
        if answer.feasible:
            continue
        assert answer.limited_by is not None
        helps = [
            name
            for name, without in lifted(problem)
            if allocate(without).pipelines[0].served_fraction > answer.served_fraction + 0.5 / RESOLUTION
        ]
        if helps:
            alone += 1
            assert str(answer.limited_by) in helps, (seed, helps)
        named[answer.limited_by.kind] += 1
    assert alone >= 20
    assert all(named.values()), named


def a_short_fleet(seed: int) -> Problem:
    rng = random.Random(seed)
    count = rng.choice((3, 4, 6, 8))
    pipelines = [a_small_pipeline(rng, f"x/p{number}", most=8) for number in range(count)]
    plenty = a_problem(*pipelines, where=pools(cpu=(0.4, 99), inferentia=(0.8, 99), gpu=(1.7, 99)))
    plan = allocate(plenty)
    limits = {str(pool.name): max(1, round(rng.uniform(0.4, 0.9) * pool.instances)) for pool in plan.pools}
    problem = replace(
        plenty,
        pools=pools(cpu=(0.4, limits["cpu"]), inferentia=(0.8, limits["inferentia"]), gpu=(1.7, limits["gpu"])),
    )
    return replace(problem, budget_per_hour=rng.choice((None, 0.6 * plan.cost_per_hour)))


def most_whole(problem: Problem) -> int | None:
    """Return how many pipelines can be whole, all the others at their minimums (None: not even those fit)."""
    supply = supply_of(problem)
    fleet = Fleet(problem, supply)
    choose, at_most, use, costs, whole = [], [], [], [], []
    latency: list[tuple[int, float]] = []
    width = 0
    for number, pipeline in enumerate(problem.pipelines):
        for share in (0.0, 1.0):
            subproblem = fleet.subproblem(pipeline, share)
            for table in subproblem.tables:
                choose.append((number, share, range(width, width + len(table))))
                width += len(table)
                use.extend(table.use.tolist())
                costs.extend(table.cost_per_hour.tolist())
                latency.extend((number if share else -1, value) for value in table.percentile_s.tolist())
        whole.append(number)
    variables = width + len(whole)
    rows = sparse.lil_matrix((len(choose), variables))
    for row, (number, share, columns) in enumerate(choose):
        rows[row, list(columns)] = 1.0
        rows[row, width + number] = -1.0 if share else 1.0
        at_most.append(0.0 if share else 1.0)
    slow = np.zeros((len(whole), variables))
    for column, (number, value) in enumerate(latency):
        if number >= 0:
            slow[number, column] = value
    for number, pipeline in enumerate(problem.pipelines):
        slow[number, width + number] = -pipeline.sla.latency_s
    budget = np.inf if problem.budget_per_hour is None else problem.budget_per_hour
    none = [0.0] * len(whole)
    answer = optimize.milp(
        np.array([0.0] * width + [-1.0] * len(whole)),
        integrality=np.ones(variables),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(rows.tocsr(), at_most, at_most),
            optimize.LinearConstraint(slow, -np.inf, 0.0),
            optimize.LinearConstraint(
                np.vstack((np.array(use), np.zeros((len(whole), len(supply.limits))))).T, -np.inf, supply.limits
            ),
            optimize.LinearConstraint(np.array([*costs, *none])[None], -np.inf, budget),
        ],
        options={"mip_rel_gap": 0},
    )
    return round(-answer.fun) if answer.success else None


@pytest.mark.extended
def test_as_many_as_possible_are_served_whole() -> None:
    best = found = exact = subproblems = 0
    for seed in range(52):
        problem = a_short_fleet(seed)
        most = most_whole(problem)
        supply = supply_of(problem)
        budget = math.inf if problem.budget_per_hour is None else problem.budget_per_hour
        shares = share_out(Fleet(problem, supply), supply.limits, budget).values()
        if most is None or any(share.answer is None for share in shares):
            continue
        served = sum(share.served >= 1 for share in shares)
        subproblems, best, found, exact = subproblems + 1, best + most, found + served, exact + (served >= most)
    assert subproblems >= 20
    assert found >= 0.99 * best, (
        f"{found} whole of {best} possible; {exact} of {subproblems} fleets with all that can be"
    )


@pytest.mark.extended
def test_shares_of_the_rest_leave_no_room_for_the_smallest_to_rise() -> None:
    risen = 0
    for seed in range(20):
        problem = a_short_fleet(seed)
        supply = supply_of(problem)
        fleet = Fleet(problem, supply)
        budget = math.inf if problem.budget_per_hour is None else problem.budget_per_hour
        shares = share_out(fleet, supply.limits, budget)
        use = np.sum([share.answer.use for share in shares.values() if share.answer], axis=0)
        cost = sum(share.answer.cost_per_hour for share in shares.values() if share.answer)
        assert np.all(use <= supply.limits)
        assert cost <= budget + CLOSE
        for pipeline in problem.pipelines:
            share = shares[pipeline.key]
            if share.answer is None or share.served >= 1:
                continue
            capacity = supply.limits - use + share.answer.use
            more = fleet.alone(pipeline, share.served + 1 / RESOLUTION, capacity, exact=False)
            assert more is None or more.cost_per_hour > budget - cost + share.answer.cost_per_hour
            risen += 1
    assert risen >= 10
