"""Random questions that cannot be answered in full, and how many pipelines an exact solver (HiGHS) serves whole.

A seed gives the same question again; nothing is stored.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from instances import a_queueing_problem, tables_of
from problems import a_pipeline, a_problem, a_stage, on, pools
from scipy import optimize, sparse

from optimizer.allocate import allocate
from optimizer.fleet.fleet import Fleet
from optimizer.model import Pipeline, PipelineKey, Placement, Pool, PoolName, Problem, Stage
from optimizer.search.exact import solve
from optimizer.search.subproblem import Subproblem
from optimizer.search.tables import supply_of

SHORT_OF = ("budget", "pools", "bounds", "latency")


def an_overload(stages: int, placements: int, short_of: str, seed: int) -> Problem:
    """Return one pipeline whose whole demand `short_of` forbids."""
    rng = random.Random(f"overload {stages} {placements} {seed}")
    problem = _a_long_pipeline(rng, stages, placements)
    (pipeline,), plan = problem.pipelines, allocate(problem)
    share = rng.uniform(0.2, 0.9)
    if short_of == "budget":
        return replace(problem, pipelines=(replace(pipeline, budget_per_hour=share * plan.cost_per_hour),))
    if short_of == "pools":
        # Every pool at once, or the stages would go to another one; one instance for each minimum there may be.
        instances = round(share * sum(pool.instances for pool in plan.pools) / len(problem.pools)) + stages
        limited = {name: replace(pool, instances=instances) for name, pool in problem.pools.items()}
        more = replace(pipeline.demand, entry_rate_rps=100 * pipeline.demand.entry_rate_rps)
        return replace(problem, pools=limited, pipelines=(replace(pipeline, demand=more),))
    if short_of == "bounds":
        narrow = rng.randrange(stages)
        changed = [
            replace(stage, placements=tuple(_at_most(1, p) for p in stage.placements)) if number == narrow else stage
            for number, stage in enumerate(pipeline.stages)
        ]
        much = replace(pipeline.demand, entry_rate_rps=100 * pipeline.demand.entry_rate_rps)
        return replace(problem, pipelines=(replace(pipeline, stages=tuple(changed), demand=much),))
    assert short_of == "latency", short_of
    fastest = sum(float(table.percentile_s.min()) for table in tables_of(problem).tables)
    # Below what it takes with as many replicas as there may be, though perhaps not for a smaller share of the load.
    return replace(
        problem, pipelines=(replace(pipeline, sla=replace(pipeline.sla, latency_s=rng.uniform(0.6, 0.98) * fastest)),)
    )


def _a_long_pipeline(rng: random.Random, stages: int, placements: int) -> Problem:
    names = [f"p{number}" for number in range(placements)]
    made: list[Stage] = []
    for number in range(stages):
        fixed, per_item = rng.uniform(0.004, 0.03), rng.uniform(0.003, 0.03)
        chosen = []
        for kind, name in enumerate(names):
            speed = 0.75**kind * rng.uniform(0.8, 1.25)
            chosen.append(
                on(
                    name,
                    service=(fixed * speed, per_item * speed * 0.7**kind),
                    cv=rng.choice((0.1, 0.3, 0.6, 1.0)),
                    bounds=(0, 64),
                    per_instance=rng.choice((1, 2, 4)),
                    batches=(1,) if rng.random() < 0.4 else (1, 2, 4, 8, 16, 32),
                )
            )
        made.append(a_stage(f"s{number:02}", *chosen, after=[made[-1].name] if made else []))
    pipeline = a_pipeline(*made, rate_rps=10 ** rng.uniform(2.0, 2.7), sla_s=0.15 * stages)
    return a_problem(pipeline, where=pools(**{name: (0.4 * 1.35**kind, 10_000) for kind, name in enumerate(names)}))


def _at_most(count: int, placement: Placement) -> Placement:
    return replace(placement, max_replicas=count)


def a_poor_fleet(count: int, seed: int, way: float, *, priorities: Sequence[int]) -> Problem:
    """Return `count` pipelines of the queueing family and a budget `way` between two costs.

    From that of carrying every load at whatever latency to that of meeting every SLA.
    """
    rng = random.Random(f"poor {count} {seed}")
    chosen: list[Pipeline] = []
    where: dict[PoolName, Pool] = {}
    bare = met = 0.0
    number = 0
    while len(chosen) < count:
        problem = a_queueing_problem(1000 * (seed + 1) + number)
        number += 1
        (pipeline,), subproblem = problem.pipelines, tables_of(problem)
        slow = subproblem.latency(tuple(int(np.argmin(prices)) for prices in subproblem.prices))
        fast = subproblem.latency(tuple(int(np.argmin(table.percentile_s)) for table in subproblem.tables))
        sla = replace(pipeline.sla, latency_s=fast * (slow / fast) ** rng.uniform(0.1, 0.8))
        priority = rng.choice(priorities)
        solution = solve(replace(subproblem, latency_s=sla.latency_s))
        assert solution.walk is not None
        met += subproblem.price(solution.walk.answer)
        bare += sum(float(prices.min()) for prices in subproblem.prices)
        key = PipelineKey(f"bench/p{len(chosen):03}")
        chosen.append(replace(pipeline, key=key, sla=sla, priority=priority))
        where.update(problem.pools)
    return Problem(pipelines=tuple(chosen), pools=where, budget_per_hour=bare + way * (met - bare))


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The pipelines of one priority: how many the solver serves whole, and how many nobody can."""

    priority: int
    found: int
    at_most: int


def most_whole(problem: Problem, *, seconds: float = 60.0) -> list[Level] | None:
    """Return how many of each priority can be whole while all keep their minimums, None: not even those fit.

    One priority after the other, what the solver found for those before kept. Latencies are added up.
    """
    supply = supply_of(problem)
    fleet = Fleet(problem, supply)
    subproblems: list[tuple[int, bool, Subproblem]] = [
        (number, share > 0, fleet.subproblem(pipeline, share))
        for number, pipeline in enumerate(problem.pipelines)
        for share in (0.0, 1.0)
    ]
    count = len(problem.pipelines)
    blocks = [(number, whole, table) for number, whole, subproblem in subproblems for table in subproblem.tables]
    sizes = np.array([len(table) for _, _, table in blocks])
    width = int(sizes.sum())
    block_of = np.repeat(np.arange(len(blocks)), sizes)
    owner = np.array([number for number, _, _ in blocks])
    whole = np.array([is_whole for _, is_whole, _ in blocks])
    columns = np.arange(width)
    rows_chosen = sparse.csr_matrix((np.ones(width), (block_of, columns)), shape=(len(blocks), width))
    linked = sparse.csr_matrix(
        (np.where(whole, -1.0, 1.0), (np.arange(len(blocks)), owner)), shape=(len(blocks), count)
    )
    latency = np.concatenate(
        [table.percentile_s if is_whole else 0 * table.cost_per_hour for _, is_whole, table in blocks]
    )
    slow = sparse.csr_matrix((latency, (owner[block_of], columns)), shape=(count, width))
    allowed = sparse.diags([-pipeline.sla.latency_s for pipeline in problem.pipelines])
    use = sparse.csr_matrix(np.concatenate([table.use for _, _, table in blocks]).T.astype(float))
    cost = np.concatenate([table.cost_per_hour for _, _, table in blocks])
    own = sparse.csr_matrix((cost, (owner[block_of], columns)), shape=(count, width))
    at_most = [np.inf if p.budget_per_hour is None else p.budget_per_hour for p in problem.pipelines]
    budget = np.inf if problem.budget_per_hour is None else problem.budget_per_hour
    nobody = sparse.csr_matrix((1, count))
    constraints = [
        optimize.LinearConstraint(sparse.hstack((rows_chosen, linked)).tocsr(), ~whole * 1.0, ~whole * 1.0),
        optimize.LinearConstraint(sparse.hstack((slow, allowed)).tocsr(), -np.inf, 0.0),
        optimize.LinearConstraint(
            sparse.hstack((use, sparse.csr_matrix((use.shape[0], count)))).tocsr(), -np.inf, supply.limits
        ),
        optimize.LinearConstraint(
            sparse.hstack((own, sparse.csr_matrix((count, count)))).tocsr(), -np.inf, np.array(at_most)
        ),
        optimize.LinearConstraint(sparse.hstack((sparse.csr_matrix(cost[None]), nobody)).tocsr(), -np.inf, budget),
    ]
    levels: list[Level] = []
    for priority in sorted({pipeline.priority for pipeline in problem.pipelines}, reverse=True):
        mine = np.array([pipeline.priority == priority for pipeline in problem.pipelines], dtype=float)
        objective = np.concatenate((np.zeros(width), -mine))
        answer = optimize.milp(
            objective,
            integrality=np.ones(width + count),
            bounds=optimize.Bounds(0, 1),
            constraints=constraints,
            options={"mip_rel_gap": 0, "time_limit": seconds},
        )
        if answer.x is None:
            assert answer.status != 1, "the solver found nothing in its time"
            return None
        found = round(-answer.fun)
        levels.append(Level(priority=priority, found=found, at_most=int(np.floor(-answer.mip_dual_bound + 1e-6))))
        constraints.append(optimize.LinearConstraint(-objective[None], found, np.inf))
    return levels
