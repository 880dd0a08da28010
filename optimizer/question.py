"""One pipeline, asked what it would take if something were different: another share, latency, budget, bound or pool.

The same tables and the same search as the plan's, so that an answer is what a plan under those circumstances would be.
"""

from collections.abc import Collection
from dataclasses import replace
from math import ceil, comb, inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from optimizer.case import TOLERANCE, Case, Walk
from optimizer.evaluate import stage_load
from optimizer.fleet import Answer, Fleet
from optimizer.greedy import cheapest, search
from optimizer.latency import capacity_rps
from optimizer.merge import TooLarge, cheapest_exact
from optimizer.model import Demand, Pipeline, Placement, Routing, Stage
from optimizer.options import Mixing, StageOptions, Supply, stage_options
from optimizer.plan import Limit, LimitKind

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

SLA = Limit(kind=LimitKind.SLA)

_PLENTY = 10.0
"""Separate queues with replicas for this many times the load hardly ever wait: more cannot help."""


_MIXED = 12
_PAIRS = 40
"""Mixes of any two pools make tables of ten thousands of rows: so often at most, and so many pairs of placements."""


class Question:
    """A pipeline of a fleet, and what may be asked about it. Remembers tables, holds no other state.

    `asked` counts the answers looked for, which is what bounds the work of those who ask.
    """

    def __init__(self, fleet: Fleet, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.asked = 0
        self._mixed = 0
        self._pairs = sum(comb(len(stage.placements), 2) for stage in pipeline.stages)
        self._fleet = fleet
        self._tables: dict[tuple[int, float, Mixing, bool, tuple[int, ...]], StageOptions] = {}

    def answer(
        self,
        share: float,
        room: Counts,
        budget_per_hour: float = inf,
        *,
        latency_s: float | None = None,
        lifted: Collection[Limit] = (),
        pool_prices: Array | None = None,
        money_price: float = 1.0,
        mixing: Mixing = Mixing.ANY,
        exact: bool = True,
    ) -> Answer | None:
        """Return the cheapest way to serve `share` of the demand within `room` and `budget_per_hour`, or None.

        `room` is in the units of the fleet's supply. `latency_s` takes the place of the SLA's. `lifted` are limits of
        pools and stages, and that of the SLA, which do not hold. Without `pool_prices` cheapest is what a plan counts:
        money and switching. With them (per unit) it is `money_price` times the money plus the price of what is taken.
        `mixing` says how far stages may run on several pools where overflow alone leaves no way. Not `exact`: the
        cheapest that the search found.
        """
        self.asked += 1
        case = self._case(share, Mixing.OVERFLOW, frozenset(lifted), room)
        if SLA in lifted:
            case = replace(case, latency_s=inf)
        elif latency_s is not None:
            case = replace(case, latency_s=latency_s)
        if any(len(table) == 0 for table in case.tables):
            return None
        walk = _serve(_priced(case, pool_prices, money_price), budget_per_hour, exact=exact)
        if walk is not None:
            return Answer(case=case, walk=walk)
        if mixing is Mixing.OVERFLOW or self._mixed >= _MIXED or self._pairs > _PAIRS:
            return None
        self._mixed += 1
        if not self._may_mix(case, share, budget_per_hour):
            return None
        mixed = replace(self._case(share, Mixing.ANY, frozenset(lifted), room), latency_s=case.latency_s)
        walk = _serve(mixed, budget_per_hour, exact=False)
        return None if walk is None else Answer(case=mixed, walk=walk, mixing=Mixing.ANY)

    @staticmethod
    def _may_mix(case: Case, share: float, budget_per_hour: float) -> bool:
        """Return whether any mix of pools could help: overflow alone has a way, were there room.

        Money justifies a mix only when not all can be served, as in the plan of the whole.
        """
        if all(len(table.stage.placements) == 1 for table in case.tables):
            return False
        roomy = case.within(np.full_like(case.room, np.iinfo(np.int64).max))
        return _serve(roomy, budget_per_hour if share >= 1 else inf, exact=False) is not None

    def _case(self, share: float, mixing: Mixing, lifted: frozenset[Limit], room: Counts) -> Case:
        base = self._fleet.case(self.pipeline, share, mixing)
        if not any(limit.kind in (LimitKind.POOL, LimitKind.BOUNDS) for limit in lifted):
            return base.within(room)
        demand = self.pipeline.demand.scaled(share)
        stages = [self._stage(stage, demand, lifted) for stage in self.pipeline.stages]
        free = np.array([Limit(kind=LimitKind.POOL, name=name) in lifted for name in self._fleet.supply.pools])
        ample = _ample(stages, self._fleet.supply)
        supply = replace(self._fleet.supply, limits=np.where(free, ample, self._fleet.supply.limits))
        tables = tuple(
            table if stage is table.stage and not changed else self._table(index, stage, share, mixing, supply)
            for index, (stage, table) in enumerate(zip(stages, base.tables, strict=True))
            for changed in [self._highest(stage, supply) != self._highest(stage, self._fleet.supply)]
        )
        return replace(
            base,
            tables=tables,
            prices=tuple(table.objective_per_hour for table in tables),
            room=np.where(free, ample, room),
        )

    def _stage(self, stage: Stage, demand: Demand, lifted: frozenset[Limit]) -> Stage:
        if Limit(kind=LimitKind.BOUNDS, name=stage.name) not in lifted:
            return stage
        rate = demand.entry_rate_rps * self.pipeline.visit_ratios[stage.name]
        return replace(
            stage,
            min_replicas=1,
            placements=tuple(_unbounded(placement, stage, rate, demand.sessions) for placement in stage.placements),
        )

    def _table(self, index: int, stage: Stage, share: float, mixing: Mixing, supply: Supply) -> StageOptions:
        unbounded = stage is not self.pipeline.stages[index]
        key = (index, share, mixing, unbounded, self._highest(stage, supply))
        if key not in self._tables:
            self._tables[key] = stage_options(
                stage,
                stage_load(
                    replace(self.pipeline, demand=self.pipeline.demand.scaled(share)), self.pipeline.stages[index]
                ),
                supply,
                percentile=self.pipeline.sla.percentile,
                max_wer=self.pipeline.max_wer,
                switching_cost_per_hour=self._fleet.problem.switching_cost_per_hour,
                mixing=mixing,
            )
        return self._tables[key]

    @staticmethod
    def _highest(stage: Stage, supply: Supply) -> tuple[int, ...]:
        """Return how many replicas there may be: all that a table takes from the limits of the pools."""
        return tuple(min(p.max_replicas, supply.most(p)) for p in stage.placements)


def _serve(case: Case, budget_per_hour: float, *, exact: bool) -> Walk | None:
    """Return the way to the cheapest choice within room, latency and budget, or None.

    At prices other than the cost, a choice that breaks the budget gives way to the one that costs least.
    """
    at_cost = all(
        np.array_equal(prices, table.cost_per_hour) for prices, table in zip(case.prices, case.tables, strict=True)
    )
    at_most = budget_per_hour if at_cost else inf
    walk = search(case, at_most)
    if exact or walk is None:
        try:
            best = cheapest_exact(case, at_most if walk is None else case.price(walk.answer))
        except TooLarge:
            best = None
        if best is not None and (walk is None or case.price(best) < case.price(walk.answer) - TOLERANCE):
            walk = (walk or Walk(visited=(cheapest(case) or best,))).to(best)
    if walk is None or case.cost_per_hour(walk.answer) <= budget_per_hour + TOLERANCE:
        return walk
    if at_cost:
        return None if exact else _serve(case, budget_per_hour, exact=True)
    return _serve(case.priced([table.cost_per_hour for table in case.tables]), budget_per_hour, exact=exact)


def _priced(case: Case, pool_prices: Array | None, money_price: float) -> Case:
    if pool_prices is None:
        return case
    return case.priced([money_price * table.cost_per_hour + table.use @ pool_prices for table in case.tables])


def _unbounded(placement: Placement, stage: Stage, rate_rps: float, sessions: float | None) -> Placement:
    """Return the placement with no minimum and as many replicas allowed as can make a difference."""
    need = rate_rps / capacity_rps(placement, placement.batch_sizes[-1])
    shared = stage.routing not in (Routing.RANDOM, Routing.STICKY)
    # Replicas that share a queue wait no longer once there are some times the root of the load more than it needs.
    count = need / 0.9 + 5 * sqrt(need) + 5 if shared else _PLENTY * need + 1
    if placement.session_slots is not None and sessions is not None:
        count = max(count, sessions / placement.session_slots)
    most = max(placement.max_replicas, ceil(count)) if isfinite(count) else placement.max_replicas
    return replace(placement, min_replicas=0, max_replicas=most)


def _ample(stages: Collection[Stage], supply: Supply) -> int:
    """Return units that hold every replica of `stages` on one pool."""
    replicas = sum(p.max_replicas for stage in stages for p in stage.placements)
    return int(replicas * supply.units_per_instance.max(initial=1))
