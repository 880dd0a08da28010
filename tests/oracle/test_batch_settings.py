"""Plans that choose batch limits and waits, or must keep the SLA with several, against looking at every choice."""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from problems import a_pipeline, a_problem, a_stage, on

from optimizer.allocate import allocate
from optimizer.fleet.fleet import Fleet
from optimizer.latency.predict import stage_load
from optimizer.latency.stage import predict_all
from optimizer.model import BatchSettings, Composition, Mixing, Pipeline, Placement, PoolName, Stage
from optimizer.search.exact import solve
from optimizer.search.tables import supply_of

WAITS = (0.0, 0.004, 0.02)
LIMITS = (1, 4, 16)
MOST = 7
PRICES = {PoolName("cpu"): 0.5, PoolName("gpu"): 2.0}  # those of `a_problem`


def a_pipeline_of(seed: int) -> Pipeline:
    """Return a pipeline with one or two placements per stage, which choose limits and waits, or have several."""
    rng = random.Random(seed)

    def placement(pool: str) -> Placement:
        own = on(
            pool,
            service=(rng.uniform(0.004, 0.02), rng.uniform(0.0005, 0.004)),
            bounds=(0, MOST),
            batches=rng.choice((LIMITS, (4,))),
            wait_s=(first := rng.choice((0, 1))) and WAITS[1],
        )
        match rng.choice(("waits", "in force", "fixed")):
            case "waits":
                return replace(own, batch_waits_s=WAITS[first:])
            case "in force":
                values = [BatchSettings(limit=rng.choice(LIMITS), wait_s=rng.choice(WAITS)) for _ in range(2)]
                return own.with_settings(values[0], tuple(values))
        return own

    stages = [
        a_stage(name, *(placement(pool) for pool in rng.choice((("cpu",), ("cpu", "gpu")))), after=after)
        for name, after in (("a", ()), ("b", ("a",)))
    ]
    return a_pipeline(*stages, rate_rps=rng.uniform(50, 600), sla_s=rng.uniform(0.05, 0.25))


def choices(pipeline: Pipeline, stage: Stage) -> dict[float, float]:
    """Return the least percentile (s) of a stage by its cost, over all replicas, batch limits and batch waits."""
    options = [
        [
            (0, p.batch_sizes[0], p.batch_wait_s),
            *product(range(1, p.max_replicas + 1), p.batch_sizes, p.batch_waits_s or (p.batch_wait_s,)),
        ]
        for p in stage.placements
    ]
    rows = [row for row in product(*options) if any(replicas for replicas, _, _ in row)]
    if len(stage.placements) > 1:  # one placement alone, or one that overflows to the other, as the tables have them
        rows = [row for row in rows if any(n in (0, MOST) for n, _, _ in row)]
    answer = predict_all(
        stage_load(pipeline, stage),
        stage.placements,
        np.array([[n for n, _, _ in row] for row in rows]),
        np.array([[limit for _, limit, _ in row] for row in rows]),
        routing=stage.routing,
        percentile=pipeline.sla.percentile,
        waits_s=np.array([[wait_s for _, _, wait_s in row] for row in rows]),
    )
    found: dict[float, float] = {}
    for row, late_s in zip(rows, answer.percentile_s.tolist(), strict=True):
        cost = sum(n * PRICES[p.pool] for (n, _, _), p in zip(row, stage.placements, strict=True))
        found[cost] = min(found.get(cost, np.inf), late_s)
    return found


def test_plans_are_the_cheapest_over_all_limits_and_waits() -> None:
    feasible = 0
    for seed in range(60):
        pipeline = a_pipeline_of(seed)
        problem = replace(a_problem(pipeline), composition=Composition.SUM)
        one, two = (choices(pipeline, stage) for stage in pipeline.stages)
        costs = [
            a + b
            for (a, first_s), (b, then_s) in product(one.items(), two.items())
            if first_s + then_s <= pipeline.sla.latency_s
        ]
        subproblem = Fleet(problem, supply_of(problem)).subproblem(pipeline, 1.0, Mixing.OVERFLOW)
        walk = solve(subproblem).walk
        assert (walk is not None) == bool(costs), seed
        if walk is not None:
            feasible += 1
            assert subproblem.price(walk.answer) == pytest.approx(min(costs), rel=1e-6), seed
    assert 20 <= feasible <= 58


def test_a_plan_reports_a_wait_that_it_may_choose() -> None:
    placement = replace(on("cpu", batches=(4, 8), service=(0.01, 0.001)), batch_waits_s=WAITS)
    pipeline = a_pipeline(a_stage("a", placement), rate_rps=300.0, sla_s=0.1)
    (own,) = allocate(a_problem(pipeline)).of(pipeline.key).stages[0].placements
    assert own.wait_s in WAITS
    assert own.batch in (4, 8)


def test_what_is_predicted_for_several_settings_is_the_worst_of_them() -> None:
    placement = on("cpu", batches=(4,), service=(0.01, 0.001))
    values = (BatchSettings(limit=2, wait_s=0.0), BatchSettings(limit=8, wait_s=0.03))
    pipeline = a_pipeline(a_stage("a", placement), rate_rps=300.0, sla_s=0.1)

    def late(own: Placement) -> np.ndarray:
        stage = replace(pipeline.stages[0], placements=(own,))
        rows = np.arange(1, 8)[:, None]
        return predict_all(
            stage_load(pipeline, stage), (own,), rows, (own.batch_sizes[0],), routing=stage.routing, percentile=95
        ).percentile_s

    both = late(placement.with_settings(values[0], values))
    each = [late(placement.with_settings(own)) for own in values]
    assert np.array_equal(both, np.maximum(*each))
    assert np.any(both > each[0])
    assert np.any(both > each[1])
