"""Curves for capacity planning: the least cost of each latency, and the cost per unit of load at different loads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log

import numpy as np
from numpy.typing import NDArray

from optimizer.fleet.fleet import Answer, Fleet
from optimizer.model import Demand, PipelineKey, Problem, StageName
from optimizer.overload.what_if import WhatIf
from optimizer.plan import PlacementPlan, Plan
from optimizer.reports.advice import fastest
from optimizer.reports.certificate import certified_plan
from optimizer.search.subproblem import TOLERANCE
from optimizer.search.tables import supply_of

Counts = NDArray[np.int64]

MOST_CORNERS = 200
"""The most corners shown; more are thinned evenly on a logarithmic scale of latency."""

_STEP = 1e-6
"""Relative difference of latencies below which two corners count as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corner:
    """One plan of the frontier: within pools and bounds no other is both cheaper and faster.

    `placements` has each stage, in the order of the pipeline, with all its placements, also those without replicas.
    """

    latency_s: float
    cost_per_hour: float
    placements: tuple[tuple[StageName, tuple[PlacementPlan, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The frontier: its corners from the cheapest plan to the fastest. `thinned` is True if some are left out."""

    corners: tuple[Corner, ...]
    thinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """The plan at one demand, and the pipeline's cost per hour for each item per second and for each session, in USD.

    A cost is None where the demand has no such load, or not all of the demand is served.
    """

    demand: Demand
    plan: Plan
    cost_per_rps_hour: float | None
    cost_per_session_hour: float | None


def frontier(problem: Problem, key: PipelineKey, *, most_corners: int = MOST_CORNERS) -> Frontier:
    """Return the cost and latency of the best plans of the pipeline `key`, as if it were alone on the pools.

    The corners lead from the cheapest allocation that carries the load to the fastest; each one is the cheapest plan
    found with a lower latency than the one before. Budgets and the SLA's latency do not apply, but its percentile does.
    There is no corner if the load cannot be carried. With more than `most_corners` the frontier is thinned.

    Raises:
        KeyError: no pipeline has this key.
    """
    what_if, capacity = _alone(problem, key)
    answer = what_if.answer(1.0, capacity, latency_s=inf, pool_prices=np.zeros(len(capacity)))
    if answer is None:
        return Frontier(corners=(), thinned=False)
    quickest = fastest(what_if, capacity)
    assert quickest is not None, "what carries the load has a latency"
    corners = _corners(what_if, capacity, answer, quickest, most_corners, cells=0)
    if len(corners) <= most_corners:
        return Frontier(corners=tuple(corners), thinned=False)
    cells = max(1, most_corners // 2 - 1)
    return Frontier(
        corners=tuple(_corners(what_if, capacity, answer, quickest, most_corners, cells=cells)), thinned=True
    )


def _corners(
    what_if: WhatIf, capacity: Counts, cheapest: Answer, quickest: Answer, most: int, *, cells: int
) -> list[Corner]:
    """Return the corners from `cheapest` to `quickest`; the first `most` + 1 of them where there are more.

    `cells` above 0 thins them: latency is divided into that many intervals, equal on a logarithmic scale, with at most
    two corners in each.
    """
    slow, quick = _latency(cheapest), _latency(quickest)
    corners: list[Corner] = []
    answer: Answer | None = cheapest
    before = -1
    while answer is not None and len(corners) <= most:
        corner = _corner(answer)
        if corners and corner.latency_s >= corners[-1].latency_s:
            break  # latencies as small as rounding errors
        while corners and corner.cost_per_hour <= corners[-1].cost_per_hour + TOLERANCE:
            corners.pop()  # the new one is as cheap, and faster
        corners.append(corner)
        below = corner.latency_s * (1 - _STEP)
        if cells and slow > quick:
            cell = int(cells * log(slow / corner.latency_s) / log(slow / quick))
            if cell == before:
                below = min(below, slow * (quick / slow) ** ((cell + 1) / cells))
            before = cell
        if below < quick:
            if corner.latency_s <= quick:
                break
            below = quick
        answer = what_if.answer(1.0, capacity, latency_s=below, pool_prices=np.zeros(len(capacity)))
    return corners


def load_sweep(problem: Problem, key: PipelineKey, demands: Sequence[Demand]) -> tuple[LoadPoint, ...]:
    """Return the plan of the whole problem for each of `demands` as demand of the pipeline `key`, in the order given.

    The plans have their lower bounds.

    Raises:
        KeyError: no pipeline has this key.
    """
    points = []
    for demand in demands:
        pipelines = tuple(replace(p, demand=demand) if p.key == key else p for p in problem.pipelines)
        plan = certified_plan(replace(problem, pipelines=pipelines))
        mine = plan.of(key)

        def per(load: float | None, cost: float = mine.cost_per_hour, served: bool = mine.feasible) -> float | None:
            return cost / load if served and load else None

        points.append(
            LoadPoint(
                demand=demand,
                plan=plan,
                cost_per_rps_hour=per(demand.entry_rate_rps),
                cost_per_session_hour=per(demand.sessions),
            )
        )
    return tuple(points)


def _alone(problem: Problem, key: PipelineKey) -> tuple[WhatIf, Counts]:
    """Return the pipeline without budgets and switching costs, and the capacity of all pools."""
    matching = [pipeline for pipeline in problem.pipelines if pipeline.key == key]
    if not matching:
        raise KeyError(key)
    pipeline = replace(matching[0], budget_per_hour=None)
    alone = replace(problem, pipelines=(pipeline,), budget_per_hour=None, budgets=(), switching_cost_per_hour=0.0)
    supply = supply_of(alone)
    return WhatIf(Fleet(alone, supply), pipeline), supply.limits


def _latency(answer: Answer) -> float:
    return answer.subproblem.latency(answer.choice)


def _corner(answer: Answer) -> Corner:
    placements = tuple(
        (table.stage.name, tuple(PlacementPlan(name=p.name, replicas=n, batch=b) for p, n, b in table.placed(row)))
        for table, row in zip(answer.subproblem.tables, answer.choice, strict=True)
    )
    return Corner(latency_s=_latency(answer), cost_per_hour=answer.cost_per_hour, placements=placements)
