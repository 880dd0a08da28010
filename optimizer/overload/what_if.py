"""Serve one pipeline under changed conditions: another share, latency, budget, bound or pool.

Tables and search are the same as for a plan, so that an answer is the plan that these conditions would lead to.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import comb, inf, isfinite

import numpy as np
from numpy.typing import NDArray

from optimizer.fleet.fleet import MIXED_PAIRS, Answer, Fleet, serve
from optimizer.latency.composition import shape_of
from optimizer.latency.predict import stage_load
from optimizer.latency.stage import StageLoad, capacity_rps
from optimizer.model import Mixing, Pipeline, Placement, Stage
from optimizer.plan import Limit, LimitKind
from optimizer.runtime.compiled import compiled
from optimizer.runtime.effort import TABLE
from optimizer.search.subproblem import TOLERANCE, Subproblem
from optimizer.search.tables import StageOptions, Supply, enough_replicas, stage_options

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

SLA = Limit(kind=LimitKind.SLA)

_SLACK = 1e-9
"""Relative tolerance of latencies, for rounding."""

_COARSE_SEARCHES = 5

_PAIRS = 12
"""The most pairs of placements for which a search mixes pools; `MIXED_PAIRS` limits all such searches together."""


@dataclass(frozen=True, slots=True)
class _Infeasible:
    """An infeasible request; larger requests or smaller limits fail too."""

    share: float
    capacity: Counts
    budget_per_hour: float
    mixing: Mixing

    def covers(self, share: float, capacity: Counts, budget_per_hour: float, mixing: Mixing) -> bool:
        """Return whether the request of the arguments is infeasible because this one is."""
        return (
            share >= self.share
            and budget_per_hour <= self.budget_per_hour
            and (mixing is Mixing.OVERFLOW or self.mixing is Mixing.ANY)
            and bool(np.all(capacity <= self.capacity))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A request in which lifted limits are replaced by values that do not limit."""

    share: float
    stages: tuple[Stage, ...]
    supply: Supply
    capacity: Counts
    latency_s: float


class WhatIf:
    """Searches for one pipeline of a fleet under changed conditions.

    It keeps tables, subproblems and infeasible requests for later searches. `searches` counts the searches, so that
    callers can limit their work. Once the account of the pipeline is exhausted, `_COARSE_SEARCHES` more are made; later
    ones find nothing.
    """

    def __init__(self, fleet: Fleet, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.searches = 0
        self._coarse = 0
        self._mixed = 0
        self._pairs = sum(comb(len(stage.placements), 2) for stage in pipeline.stages)
        self._fleet = fleet
        self._tables: dict[tuple[int, float, Mixing, bool, tuple[int, ...]], StageOptions] = {}
        self._subproblems: dict[tuple[float, Mixing], Subproblem] = {}
        self._infeasible: list[_Infeasible] = []
        self._order = list(range(len(pipeline.stages)))
        self._serial = shape_of([(stage.name, stage.after) for stage in pipeline.stages]).serial

    @property
    def given_up(self) -> bool:
        """Return whether no more searches are made."""
        return self._coarse > _COARSE_SEARCHES

    def column(self, limit: Limit) -> int:
        """Return the position of the pool that `limit` names in the fleet's supply."""
        return self._fleet.supply.pools.index(limit.name)

    def answer(
        self,
        share: float,
        capacity: Counts,
        budget_per_hour: float = inf,
        *,
        latency_s: float | None = None,
        lifted: Collection[Limit] = (),
        pool_prices: Array | None = None,
        money_price: float = 1.0,
        mixing: Mixing = Mixing.ANY,
        exact: bool = True,
    ) -> Answer | None:
        """Return the cheapest way to serve `share` of the demand within `capacity` and `budget_per_hour`, or None.

        `capacity` is in units of the fleet's supply. `latency_s` replaces the latency of the SLA. `lifted` are limits
        (of pools, of stage bounds, or the SLA) that do not apply. Without `pool_prices` cost plus switching cost is
        minimised; with them (price of a unit of each pool) `money_price` · cost + the price of the units used.
        `mixing` says how stages may run on several pools where overflow alone is infeasible. Without `exact` the
        greedy search's result is enough if it finds one.
        """
        plain = not lifted and latency_s is None
        if plain and any(refusal.covers(share, capacity, budget_per_hour, mixing) for refusal in self._infeasible):
            return None
        self.searches += 1
        if self._fleet.exhausted(self.pipeline):
            self._coarse += 1
            if self.given_up:
                return None
        answer = self._answer(
            self._request(share, frozenset(lifted), capacity, latency_s),
            budget_per_hour,
            pool_prices=pool_prices,
            money_price=money_price,
            mixing=mixing,
            exact=exact,
        )
        if plain and answer is None:
            self._infeasible.append(_Infeasible(share, capacity.copy(), budget_per_hour, mixing))
        return answer

    def minimum(self, capacity: Counts) -> Subproblem:
        """Return the subproblem of running the minimum replicas within `capacity`, without load."""
        pipeline, fleet = self.pipeline, self._fleet
        stages = tuple(
            replace(
                stage,
                placements=tuple(
                    replace(
                        p,
                        max_replicas=min(p.max_replicas, max(p.min_replicas, stage.min_replicas)),
                        batch_sizes=p.batch_sizes[:1],
                        batch_waits_s=(),
                    )
                    for p in stage.placements
                ),
            )
            for stage in pipeline.stages
        )
        subproblem = Fleet(fleet.problem, fleet.supply, targets=fleet.targets).subproblem(
            replace(pipeline, stages=stages), 0.0
        )
        return subproblem.within(capacity).priced([table.cost_per_hour for table in subproblem.tables])

    def short_alone(self, share: float, capacity: Counts, budget_per_hour: float) -> list[int]:
        """Return the positions of the stages that cannot carry the share `share` of the demand on their own.

        Each stage is tested with all of `capacity` and the whole budget for itself.

        The stage that carries the least comes first.
        """
        request = self._request(share, frozenset(), capacity, None)
        short = [k for k in range(len(request.stages)) if self._first_row(request, k, budget_per_hour) is None]
        return sorted(short, key=lambda k: self._carried(request, k))

    def _carried(self, request: _Request, index: int) -> float:
        stage = request.stages[index]
        most = self._highest(stage, request.supply)
        carried = sum(n * capacity_rps(p, p.batch_sizes[-1]) for n, p in zip(most, stage.placements, strict=True) if n)
        return carried / self.pipeline.visit_ratios[stage.name]

    def _answer(
        self,
        request: _Request,
        budget_per_hour: float,
        *,
        pool_prices: Array | None,
        money_price: float,
        mixing: Mixing,
        exact: bool,
    ) -> Answer | None:
        if not self._stuck(request, budget_per_hour):
            subproblem = self._subproblem(request, Mixing.OVERFLOW)
            walk = serve(_priced(subproblem, pool_prices, money_price), budget_per_hour, exact=exact)
            if walk is not None:
                return Answer(subproblem=subproblem, walk=walk)
        if mixing is Mixing.OVERFLOW or self._mixed >= MIXED_PAIRS or self._pairs > _PAIRS:
            return None
        self._mixed += self._pairs
        if not self._may_mix(request, budget_per_hour):
            return None
        mixed = self._subproblem(request, Mixing.ANY)
        walk = serve(mixed, budget_per_hour, exact=False)
        return None if walk is None else Answer(subproblem=mixed, walk=walk, mixing=Mixing.ANY)

    def _may_mix(self, request: _Request, budget_per_hour: float) -> bool:
        """Return whether a mix of pools could help: overflow is infeasible within the capacity, and feasible without.

        A shortage of money never justifies a mix: a stage on two kinds of hardware is harder to run, and a smaller
        budget must not lead to a cheaper plan than a larger one.
        """
        if all(len(stage.placements) == 1 for stage in request.stages):
            return False
        paid = isfinite(budget_per_hour) and not self._stuck(request, inf)
        if paid and serve(self._subproblem(request, Mixing.OVERFLOW), inf, exact=False) is not None:
            return False
        roomy = replace(request, capacity=np.full_like(request.capacity, np.iinfo(np.int64).max))
        if self._stuck(roomy, budget_per_hour):
            return False
        return serve(self._subproblem(roomy, Mixing.OVERFLOW), budget_per_hour, exact=False) is not None

    def _request(self, share: float, lifted: frozenset[Limit], capacity: Counts, latency_s: float | None) -> _Request:
        demand, supply = self.pipeline.demand.scaled(share), self._fleet.supply_for(self.pipeline)
        if SLA in lifted or (latency_s is None and demand.entry_rate_rps <= 0):
            latency_s = inf
        elif latency_s is None:
            target = self._fleet.targets.get(self.pipeline.key)
            latency_s = self.pipeline.sla.latency_s if target is None else target.latency_s
        stages = self.pipeline.stages
        if any(limit.kind in (LimitKind.POOL, LimitKind.BOUNDS) for limit in lifted):
            stages = tuple(self._stage(k, share, lifted) for k in range(len(stages)))
            free = np.array([Limit(kind=LimitKind.POOL, name=name) in lifted for name in supply.pools])
            ample = _ample(stages, supply)
            supply = replace(supply, limits=np.where(free, ample, supply.limits))
            capacity = np.where(free, ample, capacity)
        return _Request(share=share, stages=stages, supply=supply, capacity=capacity, latency_s=latency_s)

    def _stuck(self, request: _Request, budget_per_hour: float) -> bool:
        """Return whether one stage alone, or the least needs of all stages together, exceed the limits.

        The stage at which the last request failed is tried first: if it fails again, no other table is needed.
        """
        use, cost = np.zeros_like(request.capacity), 0.0
        for position, index in enumerate(self._order):
            least = self._first_row(request, index, budget_per_hour)
            if least is not None:
                use, cost = use + least[0], cost + least[1]
            if least is None or np.any(use > request.capacity) or cost > budget_per_hour + TOLERANCE:
                self._order.insert(0, self._order.pop(position))
                return True
        return False

    def _first_row(self, request: _Request, index: int, budget_per_hour: float) -> tuple[Counts, float] | None:
        """Return the least use of each pool and the least cost of a stage; None where the stage fails even alone."""
        table = self._table(request, index, Mixing.OVERFLOW)
        use = np.empty_like(request.capacity)
        cost = _least(
            table.use,
            table.cost_per_hour,
            table.percentile_s,
            # With joins only the mean of a stage is known not to exceed the latency of the pipeline.
            table.percentile_s if self._serial else table.mean_s,
            request.capacity,
            budget_per_hour + TOLERANCE,
            request.latency_s * (1 + _SLACK),
            use,
        )
        return (use, cost) if cost < inf else None

    def _subproblem(self, request: _Request, mixing: Mixing) -> Subproblem:
        key = request.share, mixing
        subproblem = self._subproblems.get(key) or self._fleet.subproblem(self.pipeline, request.share, mixing)
        if request.stages is not self.pipeline.stages:
            tables = tuple(self._table(request, index, mixing) for index in range(len(request.stages)))
            subproblem = replace(subproblem, tables=tables, prices=tuple(table.objective_per_hour for table in tables))
        if subproblem.latency_s != request.latency_s:
            subproblem = subproblem.for_latency(request.latency_s)
        subproblem = subproblem.within(request.capacity)
        if request.stages is self.pipeline.stages:
            self._subproblems[key] = subproblem  # kept with its flat arrays, once it is searched
        return subproblem

    def _stage(self, index: int, share: float, lifted: frozenset[Limit]) -> Stage:
        stage = self.pipeline.stages[index]
        if Limit(kind=LimitKind.BOUNDS, name=stage.name) not in lifted:
            return stage
        load = _load(self.pipeline.scaled(share), index)
        return replace(
            stage,
            min_replicas=1,
            placements=tuple(_unbounded(p, stage, load.rate_rps, load.sessions) for p in stage.placements),
        )

    def _table(self, request: _Request, index: int, mixing: Mixing) -> StageOptions:
        stage = request.stages[index]
        key = (
            index,
            request.share,
            mixing,
            stage is not self.pipeline.stages[index],
            self._highest(stage, request.supply),
        )
        if key not in self._tables:
            self._fleet.charge(self.pipeline, TABLE * len(stage.placements) ** 2)
            self._tables[key] = stage_options(
                stage,
                _load(self.pipeline.scaled(request.share), index),
                request.supply,
                percentile=self.pipeline.sla.percentile,
                max_wer=self.pipeline.max_wer,
                switching_cost_per_hour=self._fleet.problem.switching_cost_per_hour,
                mixing=mixing,
            )
        return self._tables[key]

    @staticmethod
    def _highest(stage: Stage, supply: Supply) -> tuple[int, ...]:
        """Return the most replicas of each placement. A table depends on the limits of the pools only through them."""
        return tuple(min(p.max_replicas, supply.most(p)) for p in stage.placements)


def _load(pipeline: Pipeline, index: int) -> StageLoad:
    return stage_load(pipeline, pipeline.stages[index])


@compiled
def _least(
    use: Counts,
    cost: Array,
    latency: Array,
    other_latency: Array,
    capacity: Counts,
    most_cost: float,
    most_latency: float,
    least_use: Counts,
) -> float:
    """Return the least cost of the rows within all limits, infinite if there are none.

    The least use of each pool by these rows is written to `least_use`. A row keeps `most_latency` if one of its two
    latencies does.
    """
    least = np.inf
    for row in range(len(cost)):
        usable = cost[row] <= most_cost and min(latency[row], other_latency[row]) <= most_latency
        for pool in range(len(capacity)):
            usable = usable and use[row, pool] <= capacity[pool]
        if usable:
            for pool in range(len(capacity)):
                occupied = use[row, pool]
                least_use[pool] = occupied if least == np.inf else min(least_use[pool], occupied)
            least = min(least, cost[row])
    return least


def _priced(subproblem: Subproblem, pool_prices: Array | None, money_price: float) -> Subproblem:
    if pool_prices is None:
        return subproblem
    return subproblem.priced(
        [money_price * table.cost_per_hour + table.use @ pool_prices for table in subproblem.tables]
    )


def _unbounded(placement: Placement, stage: Stage, rate_rps: float, sessions: float | None) -> Placement:
    """Return the placement without a minimum, and with a maximum that no longer limits it."""
    enough = enough_replicas(placement, stage.routing, rate_rps, sessions, placement.batch_sizes[-1])
    return replace(placement, min_replicas=0, max_replicas=max(placement.max_replicas, enough))


def _ample(stages: Collection[Stage], supply: Supply) -> int:
    """Return a number of units large enough for every replica of `stages` on one pool."""
    replicas = sum(p.max_replicas for stage in stages for p in stage.placements)
    return int(replicas * supply.units_per_instance.max(initial=1))
