"""Random questions for the search of one pipeline, by family and seed. Nothing is stored: a seed gives the same again.

"queueing": 4–8 stages on 2–5 kinds of machines at prices like those of a cloud; tables from the latency model.
"stress": tables drawn directly, long, noisy and far from convex.
The SLA binds. With limits, the pools that the cheapest plan uses most hold less than it wants; some have no plan then.
"""

import random
from dataclasses import replace

import numpy as np
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.latency.composition import shape_of
from optimizer.latency.predict import stage_load
from optimizer.model import Composition, Pipeline, Problem, Stage
from optimizer.search.exact import solve
from optimizer.search.subproblem import Subproblem
from optimizer.search.tables import StageOptions, stage_options, supply_of

FAMILIES = ("queueing", "stress")

# USD per hour, time of a batch and of each item in it, relative to the CPU's.
MACHINES = {
    "cpu": (0.357, 1.0, 1.0),
    "arm": (0.29, 1.15, 1.15),
    "t4": (0.526, 0.45, 0.16),
    "inferentia": (0.758, 0.4, 0.09),
    "a10": (1.006, 0.3, 0.06),
}
_PLENTY = 100_000


def a_subproblem(family: str, seed: int, *, limits: bool, composition: Composition = Composition.SUM) -> Subproblem:
    """Return the question number `seed` of a family."""
    rng = random.Random(f"{family} {seed}")
    subproblem = _stress(rng) if family == "stress" else tables_of(_queueing(rng))
    subproblem = _with_sla(replace(subproblem, composition=composition), rng)
    return _with_limits(subproblem, rng) if limits else subproblem


def a_queueing_problem(seed: int) -> Problem:
    """Return the pipeline of `a_case("queueing", seed)` before its tables were made."""
    return _queueing(random.Random(f"queueing {seed}"))


def tables_of(problem: Problem) -> Subproblem:
    """Return the question of a problem with one pipeline."""
    pipeline, supply = problem.pipelines[0], supply_of(problem)
    tables = tuple(
        stage_options(stage, stage_load(pipeline, stage), supply, percentile=pipeline.sla.percentile)
        for stage in pipeline.stages
    )
    return Subproblem(
        tables=tables,
        prices=tuple(table.objective_per_hour for table in tables),
        shape=shape_of([(stage.name, stage.after) for stage in pipeline.stages]),
        composition=problem.composition,
        percentile=pipeline.sla.percentile,
        latency_s=pipeline.sla.latency_s,
        capacity=supply.limits,
    )


def _queueing(rng: random.Random) -> Problem:
    names = sorted(rng.sample(sorted(MACHINES), rng.randint(2, 5)))
    stages: list[Stage] = []
    for number in range(rng.randint(4, 8)):
        fixed, per_item = rng.uniform(0.004, 0.03), rng.uniform(0.003, 0.03)
        chosen = rng.sample(names, rng.randint(2, min(3, len(names))))
        placements = []
        for name in chosen:
            _, one, each = MACHINES[name]
            noise = rng.uniform(0.8, 1.25)
            placements.append(
                on(
                    name,
                    service=(fixed * one * noise, per_item * each * noise),
                    cv=rng.choice((0.1, 0.3, 0.6, 1.0)),
                    bounds=(0, 64),
                    per_instance=1 if name != "cpu" else rng.choice((1, 2, 4)),
                    batches=(1,) if rng.random() < 0.4 else (1, 2, 4, 8, 16, 32),
                )
            )
        stages.append(a_stage(f"s{number}", *placements, after=[stages[-1].name] if stages else []))
    pipeline: Pipeline = a_pipeline(*stages, rate_rps=float(round(10 ** rng.uniform(1.3, 2.7))), sla_s=1.0)
    return a_problem(pipeline, where=pools(**{name: (MACHINES[name][0], _PLENTY) for name in names}))


def _stress(rng: random.Random) -> Subproblem:
    kinds = rng.randint(2, 5)
    prices = [rng.uniform(0.2, 3.0) for _ in range(kinds)]
    stages: list[str] = []
    tables: list[StageOptions] = []
    for number in range(rng.randint(4, 8)):
        columns: list[tuple[float, float, float, list[int]]] = []
        for pool in rng.sample(range(kinds), rng.randint(2, kinds)):
            base, spread = rng.uniform(0.02, 0.3) / prices[pool] ** 0.5, rng.uniform(0.3, 1.0)
            for count in range(rng.randint(1, 4), rng.randint(8, 60)):
                noise = rng.lognormvariate(0, 0.25)
                mean = base * (0.2 + spread / count**0.7) * noise
                use = [0] * kinds
                use[pool] = count
                columns.append((prices[pool] * count, mean, mean * rng.uniform(1.3, 3.0), use))
        columns.sort(key=lambda row: row[0])
        stage = a_stage(f"s{number}", *(on(f"p{pool}") for pool in range(kinds)), after=stages[-1:])
        stages.append(f"s{number}")
        price, mean_s, percentile_s, uses = (np.array(column) for column in zip(*columns, strict=True))
        tables.append(
            StageOptions(
                stage=stage,
                replicas=uses.copy(),
                batches=np.ones_like(uses),
                cost_per_hour=price,
                objective_per_hour=price,
                mean_s=mean_s,
                percentile_s=percentile_s,
                utilization=np.full(len(price), 0.5),
                use=uses,
            )
        )
    return Subproblem(
        tables=tuple(tables),
        prices=tuple(table.objective_per_hour for table in tables),
        shape=shape_of([(table.stage.name, table.stage.after) for table in tables]),
        composition=Composition.SUM,
        percentile=95.0,
        latency_s=np.inf,
        capacity=np.full(kinds, _PLENTY),
    )


def _with_sla(subproblem: Subproblem, rng: random.Random) -> Subproblem:
    """Ask for a latency between that of the cheapest rows and that of the fastest."""
    slow = subproblem.latency(tuple(int(np.argmin(prices)) for prices in subproblem.prices))
    fast = subproblem.latency(tuple(int(np.argmin(table.percentile_s)) for table in subproblem.tables))
    return replace(subproblem, latency_s=fast * (slow / fast) ** rng.uniform(0.1, 0.8))


def _with_limits(subproblem: Subproblem, rng: random.Random) -> Subproblem:
    solution = solve(subproblem)
    assert solution.walk is not None
    use = subproblem.use(solution.walk.answer)
    capacity = subproblem.capacity.copy()
    for pool in np.argsort(-use, kind="stable")[: rng.randint(1, 2)]:
        capacity[pool] = int(use[pool] * rng.uniform(0.5, 0.95))
    for pool in range(len(capacity)):
        if capacity[pool] == _PLENTY and rng.random() < 0.5:
            capacity[pool] = int(use[pool] + 1 + rng.randint(0, 6))
    return subproblem.within(capacity)
