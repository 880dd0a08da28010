"""Random fleets that compete for pools, options drawn directly, and what an exact solver makes of them.

Each stage has two or three kinds of machines with a convex-looking, noisy trade of money for latency; the SLA binds.
Nothing is stored: a seed gives the same fleet again.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from problems import a_stage, on

from optimizer.fleet.lagrangian import share_pools
from optimizer.latency.composition import shape_of
from optimizer.model import Composition
from optimizer.search.subproblem import Subproblem
from optimizer.search.tables import StageOptions

Counts = NDArray[np.int64]

PRICES = (0.34, 0.76, 1.34, 1.0, 2.1)
PLENTY = 1_000_000


def a_subproblem(
    rng: random.Random, *, rows: int, stress: bool, composition: Composition, joins: bool = False
) -> Subproblem:
    tables: list[StageOptions] = []
    before: tuple[str, ...] = ()
    for number in range(rng.randint(4, 8)):
        tables.append(_table(rng, f"s{number}", before, rows, stress))
        before = (f"s{number}",)
        if joins and number in (1, 2):  # both take from the first, the fourth joins them
            before = ("s0",) if number == 1 else ("s1", "s2")
    subproblem = Subproblem(
        tables=tuple(tables),
        prices=tuple(table.cost_per_hour for table in tables),
        shape=shape_of([(table.stage.name, table.stage.after) for table in tables]),
        composition=composition,
        percentile=95.0,
        latency_s=np.inf,
        capacity=np.full(len(PRICES), PLENTY),
    )
    if joins:
        fast = subproblem.latency(tuple(int(np.argmin(table.percentile_s)) for table in tables))
        slow = subproblem.latency(tuple(0 for _ in tables))
    else:
        fast = sum(float(table.percentile_s.min()) for table in tables)
        slow = sum(float(table.percentile_s[0]) for table in tables)
    return replace(subproblem, latency_s=fast + (slow - fast) * rng.uniform(0.15, 0.6))


def _table(rng: random.Random, name: str, after: Sequence[str], rows: int, stress: bool) -> StageOptions:
    kinds = sorted(rng.sample(range(len(PRICES)), rng.randint(2, 4)))
    load = rng.uniform(1, 12)
    found = []
    for column, kind in enumerate(kinds):
        speed = PRICES[kind] ** rng.uniform(0.6, 1.1)
        service_s = rng.uniform(0.01, 0.05) / speed
        fewest = max(1, int(np.ceil(load / speed * rng.uniform(0.75, 1.5))))
        for count in range(fewest, fewest + max(2, rows // len(kinds))):
            busy = min(0.97, load / speed / count)
            wait = 1.7 * busy ** np.sqrt(2 * (count + 1)) / (count * (1 - busy))
            noise = rng.lognormvariate(0, 0.25) if stress else 1.0
            found.append((PRICES[kind] * count, service_s * (1 + wait) * noise, kind, column, count))
    found.sort()
    replicas = np.zeros((len(found), len(kinds)), dtype=np.int64)
    use = np.zeros((len(found), len(PRICES)), dtype=np.int64)
    for row, (_, _, kind, column, count) in enumerate(found):
        replicas[row, column] = use[row, kind] = count
    cost, latency = np.array([row[0] for row in found]), np.array([row[1] for row in found])
    return StageOptions(
        stage=a_stage(name, *(on(f"p{kind}", bounds=(0, 64)) for kind in kinds), after=after),
        replicas=replicas,
        batches=np.ones_like(replicas),
        cost_per_hour=cost,
        objective_per_hour=cost,
        mean_s=latency * 0.6,
        percentile_s=latency,
        utilization=np.full(len(found), 0.5),
        latency_error=np.zeros(len(found)),
        use=use,
    )


def a_fleet(
    pipelines: int,
    seed: int,
    *,
    rows: int = 20,
    stress: bool = False,
    composition: Composition = Composition.SUM,
    joins: bool = False,
) -> list[Subproblem]:
    rng = random.Random(f"{pipelines} {seed} {stress}")
    return [a_subproblem(rng, rows=rows, stress=stress, composition=composition, joins=joins) for _ in range(pipelines)]


def cut(subproblems: Sequence[Subproblem], share: float, *, pools: int = 2) -> Counts:
    """Return a room in which the most used `pools` hold only `share` of what the unconstrained optimum wants."""
    capacity = np.full(len(PRICES), PLENTY)
    free = share_pools(subproblems, capacity)
    assert free.choices is not None
    used = np.sum(
        [subproblem.use(choice) for subproblem, choice in zip(subproblems, free.choices, strict=True)], axis=0
    )
    most = np.argsort(-used, kind="stable")[:pools]
    capacity[most] = (used[most] * share).astype(np.int64)
    return capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What the MILP solver says: the cost of its plan (None: none found), a floor of any, whether there is none."""

    cost: float | None
    bound: float
    infeasible: bool


def solved(subproblems: Sequence[Subproblem], capacity: Counts, *, seconds: float = 60.0, gap: float = 0.0) -> Solved:
    """Return the answer of HiGHS to the same question, over the same tables, latencies added up."""
    from scipy import optimize, sparse  # not where the memory of a plan is measured

    costs, stage_of, pipeline_of, latency, use = [], [], [], [], []
    stage = 0
    for number, subproblem in enumerate(subproblems):
        for table, prices in zip(subproblem.tables, subproblem.prices, strict=True):
            costs.append(prices)
            latency.append(table.percentile_s)
            use.append(table.use)
            stage_of.append(np.full(len(table), stage))
            pipeline_of.append(np.full(len(table), number))
            stage += 1
    cost = np.concatenate(costs)
    columns = np.arange(len(cost))
    choose = sparse.csr_matrix((np.ones(len(cost)), (np.concatenate(stage_of), columns)), shape=(stage, len(cost)))
    late = sparse.csr_matrix(
        (np.concatenate(latency), (np.concatenate(pipeline_of), columns)), shape=(len(subproblems), len(cost))
    )
    scarce = capacity < PLENTY
    answer = optimize.milp(
        cost,
        integrality=np.ones(len(cost)),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(choose, 1, 1),
            optimize.LinearConstraint(late, -np.inf, [subproblem.latency_s for subproblem in subproblems]),
            optimize.LinearConstraint(np.concatenate(use)[:, scarce].T.astype(float), -np.inf, capacity[scarce]),
        ],
        options={"mip_rel_gap": gap, "time_limit": seconds},
    )
    return Solved(
        cost=None if answer.x is None else float(answer.fun),
        bound=-np.inf if answer.mip_dual_bound is None else float(answer.mip_dual_bound),
        infeasible=answer.status == 2,
    )
