"""One pipeline, asked what it would take if something were different: another share, latency, budget, bound or pool.

The same tables and the same search as the plan's, so that an answer is what a plan under those circumstances would be.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import comb, inf, isfinite

import numpy as np
from numpy.typing import NDArray

from optimizer.fleet.fleet import MIXED_PAIRS, Answer, Fleet
from optimizer.latency.composition import shape_of
from optimizer.latency.predict import stage_load
from optimizer.latency.stage import capacity_rps
from optimizer.model import Demand, Pipeline, Placement, PoolName, Stage
from optimizer.plan import Limit, LimitKind
from optimizer.runtime.compiled import compiled
from optimizer.search.exact import TooLarge, cheapest_exact
from optimizer.search.greedy import cheapest, search
from optimizer.search.subproblem import TOLERANCE, Subproblem, Walk
from optimizer.search.tables import Mixing, StageOptions, Supply, enough_replicas, stage_options

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

SLA = Limit(kind=LimitKind.SLA)

_SLACK = 1e-9
"""Relative: rounding must not turn a stage away."""

_PAIRS = 12
"""As `MIXED_PAIRS`, which is for all answers together: so many in one."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What there was no way to serve: neither is there one for more, or with less."""

    share: float
    capacity: Counts
    budget_per_hour: float
    mixing: Mixing
    exact: bool
    at_cost: bool

    def covers(self, share: float, capacity: Counts, budget_per_hour: float, mixing: Mixing) -> bool:
        """Return whether the refusal answers this question too."""
        return (
            share >= self.share
            and budget_per_hour <= self.budget_per_hour
            and (mixing is Mixing.OVERFLOW or self.mixing is Mixing.ANY)
            and bool(np.all(capacity <= self.capacity))
        )

    def repeated(self, share: float, capacity: Counts, budget_per_hour: float, exact: bool) -> bool:
        """Return whether this very question was refused, perhaps with less mixing: overflow alone has no way again."""
        asked = self.share, self.budget_per_hour, self.exact
        return self.at_cost and asked == (share, budget_per_hour, exact) and np.array_equal(capacity, self.capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A question with what is lifted left out."""

    share: float
    stages: tuple[Stage, ...]
    supply: Supply
    capacity: Counts
    latency_s: float


class WhatIf:
    """A pipeline of a fleet, and what may be asked about it. Remembers tables, cases and refusals: no other state.

    `asked` counts the answers looked for, which is what bounds the work of those who ask.
    """

    def __init__(self, fleet: Fleet, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.asked = 0
        self._mixed = 0
        self._pairs = sum(comb(len(stage.placements), 2) for stage in pipeline.stages)
        self._fleet = fleet
        self._tables: dict[tuple[int, float, Mixing, bool, tuple[int, ...]], StageOptions] = {}
        self._subproblems: dict[tuple[float, Mixing], Subproblem] = {}
        self._refused: list[_Refusal] = []
        self._order = list(range(len(pipeline.stages)))
        self._serial = shape_of([(stage.name, stage.after) for stage in pipeline.stages]).serial

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

        `capacity` is in the units of the fleet's supply. `latency_s` takes the place of the SLA's. `lifted` are limits
        of pools and stages, and that of the SLA, which do not hold. Without `pool_prices` cheapest is what a plan
        counts: money and switching. With them (per unit) it is `money_price` times the money plus the price of what is
        taken. `mixing` says how far stages may run on several pools where overflow alone leaves no way. Not `exact`:
        the cheapest that the search found.
        """
        plain = not lifted and latency_s is None
        if plain and any(no.covers(share, capacity, budget_per_hour, mixing) for no in self._refused):
            return None
        self.asked += 1
        at_cost = plain and pool_prices is None
        answer = self._answer(
            self._asked(share, frozenset(lifted), capacity, latency_s),
            budget_per_hour,
            pool_prices=pool_prices,
            money_price=money_price,
            mixing=mixing,
            exact=exact,
            overflow=not (
                at_cost and any(no.repeated(share, capacity, budget_per_hour, exact) for no in self._refused)
            ),
        )
        if plain and answer is None:
            self._refused.append(_Refusal(share, capacity.copy(), budget_per_hour, mixing, exact, at_cost))
        return answer

    def strain(self, share: float, capacity: Counts, budget_per_hour: float) -> float:
        """Return about how many times `capacity` and the budget would have to be to serve `share`; infinite: no number.

        An estimate for a search to go by: of the scarcest of them, for an allocation that takes little of all.
        """
        answer = self.guide(share, capacity, budget_per_hour)
        if answer is None:
            return inf
        occupied = float((answer.use / np.maximum(capacity, 1e-3)).max(initial=0.0))
        return max(occupied, answer.cost_per_hour / max(budget_per_hour, 1e-9))

    def scout(self, answers: Sequence[Answer]) -> "WhatIf":
        """Return the same question over fewer options, those like the ones of `answers`: quick, and good for a guess.

        Of each stage the placements that `answers` use, those that must run, and the cheapest for the load; of their
        batch limits those used, the next ones and the largest.
        """
        stages = tuple(self._like(stage, answers, index) for index, stage in enumerate(self.pipeline.stages))
        fleet = Fleet(self._fleet.problem, self._fleet.supply, targets=self._fleet.targets)
        return WhatIf(fleet, replace(self.pipeline, stages=stages))

    def guide(self, share: float, capacity: Counts, budget_per_hour: float) -> Answer | None:
        """Return a way to serve `share` that takes little of all, were there no end of room and money."""
        asked = self._asked(share, frozenset(), np.full_like(capacity, np.iinfo(np.int64).max), None)
        if self._stuck(asked, inf):
            return None
        subproblem = self._subproblem(asked, Mixing.OVERFLOW)
        weights = 1.0 / np.maximum(capacity, 1e-3)
        walk = _serve(_priced(subproblem, weights, 1.0 / max(budget_per_hour, 1e-9)), inf, exact=False)
        return None if walk is None else Answer(subproblem=subproblem, walk=walk)

    def minimum(self, capacity: Counts) -> Subproblem:
        """Return the question to run what must run at least, with no load: no placement needs more than the floor."""
        pipeline, fleet = self.pipeline, self._fleet
        stages = tuple(
            replace(
                stage,
                placements=tuple(
                    replace(
                        p,
                        max_replicas=min(p.max_replicas, max(p.min_replicas, stage.min_replicas)),
                        batch_sizes=p.batch_sizes[:1],
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

    def alone(self, index: int, share: float, capacity: Counts, budget_per_hour: float) -> bool:
        """Return whether the stage at `index` could be served, were it the only one: otherwise nothing can be."""
        asked = self._asked(share, frozenset(), capacity, None)
        return self._first_row(asked, index, budget_per_hour) is not None

    def short_alone(self, share: float, capacity: Counts, budget_per_hour: float) -> list[int]:
        """Return the positions of the stages that could not be served even if there were no others.

        First those that carry the least share of their load at best.
        """
        asked = self._asked(share, frozenset(), capacity, None)
        short = [k for k in range(len(asked.stages)) if self._first_row(asked, k, budget_per_hour) is None]
        return sorted(short, key=lambda k: self._carried(asked, k))

    def _carried(self, asked: "_Asked", index: int) -> float:
        stage = asked.stages[index]
        most = self._highest(stage, asked.supply)
        carried = sum(n * capacity_rps(p, p.batch_sizes[-1]) for n, p in zip(most, stage.placements, strict=True) if n)
        return carried / self.pipeline.visit_ratios[stage.name]

    def _like(self, stage: Stage, answers: Sequence[Answer], index: int) -> Stage:
        supply = self._fleet.supply
        used: dict[PoolName, set[int]] = {}
        for answer in answers:
            table, row = answer.subproblem.tables[index], answer.choice[index]
            for placement, count, batch in zip(
                table.stage.placements, table.replicas[row].tolist(), table.batches[row].tolist(), strict=True
            ):
                if count:
                    used.setdefault(placement.pool, set()).add(batch)
        able = [p for p in stage.placements if supply.most(p) and not self._too_inaccurate(p)] or stage.placements
        able = sorted(able, key=lambda p: supply.price_per_hour(p) / capacity_rps(p, p.batch_sizes[-1]))
        cheapest = {p.pool for p in able[:2]}
        kept = []
        for placement in stage.placements:
            if placement.pool in used or placement.pool in cheapest or placement.min_replicas:
                sizes, near = placement.batch_sizes, {len(placement.batch_sizes) - 1}
                for batch in used.get(placement.pool, ()):
                    at = sizes.index(batch)
                    near |= {max(at - 1, 0), at, min(at + 1, len(sizes) - 1)}
                kept.append(replace(placement, batch_sizes=tuple(sizes[at] for at in sorted(near))))
        return replace(stage, placements=tuple(kept))

    def _too_inaccurate(self, placement: Placement) -> bool:
        most = self.pipeline.max_wer
        return placement.wer is not None and most is not None and placement.wer > most

    def _answer(
        self,
        asked: "_Asked",
        budget_per_hour: float,
        *,
        pool_prices: Array | None,
        money_price: float,
        mixing: Mixing,
        exact: bool,
        overflow: bool,
    ) -> Answer | None:
        if overflow and not self._stuck(asked, budget_per_hour):
            subproblem = self._subproblem(asked, Mixing.OVERFLOW)
            walk = _serve(_priced(subproblem, pool_prices, money_price), budget_per_hour, exact=exact)
            if walk is not None:
                return Answer(subproblem=subproblem, walk=walk)
        if mixing is Mixing.OVERFLOW or self._mixed >= MIXED_PAIRS or self._pairs > _PAIRS:
            return None
        self._mixed += self._pairs
        if not self._may_mix(asked, budget_per_hour):
            return None
        mixed = self._subproblem(asked, Mixing.ANY)
        walk = _serve(mixed, budget_per_hour, exact=False)
        return None if walk is None else Answer(subproblem=mixed, walk=walk, mixing=Mixing.ANY)

    def _may_mix(self, asked: "_Asked", budget_per_hour: float) -> bool:
        """Return whether any mix of pools could help: overflow alone has a way were there room, and none as it is.

        Money never justifies a mix: a stage on two kinds of hardware is harder to run, and a smaller budget must not
        find a cheaper plan than a larger one.
        """
        if all(len(stage.placements) == 1 for stage in asked.stages):
            return False
        paid = isfinite(budget_per_hour) and not self._stuck(asked, inf)
        if paid and _serve(self._subproblem(asked, Mixing.OVERFLOW), inf, exact=False) is not None:
            return False
        roomy = replace(asked, capacity=np.full_like(asked.capacity, np.iinfo(np.int64).max))
        if self._stuck(roomy, budget_per_hour):
            return False
        return _serve(self._subproblem(roomy, Mixing.OVERFLOW), budget_per_hour, exact=False) is not None

    def _asked(self, share: float, lifted: frozenset[Limit], capacity: Counts, latency_s: float | None) -> "_Asked":
        demand, supply = self.pipeline.demand.scaled(share), self._fleet.supply
        if SLA in lifted or (latency_s is None and demand.entry_rate_rps <= 0):
            latency_s = inf
        elif latency_s is None:
            target = self._fleet.targets.get(self.pipeline.key)
            latency_s = self.pipeline.sla.latency_s if target is None else target.latency_s
        stages = self.pipeline.stages
        if any(limit.kind in (LimitKind.POOL, LimitKind.BOUNDS) for limit in lifted):
            stages = tuple(self._stage(stage, demand, lifted) for stage in stages)
            free = np.array([Limit(kind=LimitKind.POOL, name=name) in lifted for name in supply.pools])
            ample = _ample(stages, supply)
            supply = replace(supply, limits=np.where(free, ample, supply.limits))
            capacity = np.where(free, ample, capacity)
        return _Asked(share=share, stages=stages, supply=supply, capacity=capacity, latency_s=latency_s)

    def _stuck(self, asked: "_Asked", budget_per_hour: float) -> bool:
        """Return whether the stages cannot be served, as far as each by itself and their least needs tell.

        The stage that was in the way last time is looked at first: where it is again, no other table is needed.
        """
        use, cost = np.zeros_like(asked.capacity), 0.0
        for position, index in enumerate(self._order):
            least = self._first_row(asked, index, budget_per_hour)
            if least is not None:
                use, cost = use + least[0], cost + least[1]
            if least is None or np.any(use > asked.capacity) or cost > budget_per_hour + TOLERANCE:
                self._order.insert(0, self._order.pop(position))
                return True
        return False

    def _first_row(self, asked: "_Asked", index: int, budget_per_hour: float) -> tuple[Counts, float] | None:
        """Return what a stage takes at least, of each pool and of money; None where it cannot be served by itself."""
        table = self._table(asked, index, Mixing.OVERFLOW)
        use = np.empty_like(asked.capacity)
        cost = _least(
            table.use,
            table.cost_per_hour,
            table.percentile_s,
            # With joins only the mean is sure to be no more than the whole.
            table.percentile_s if self._serial else table.mean_s,
            asked.capacity,
            budget_per_hour + TOLERANCE,
            asked.latency_s * (1 + _SLACK),
            use,
        )
        return (use, cost) if cost < inf else None

    def _subproblem(self, asked: "_Asked", mixing: Mixing) -> Subproblem:
        key = asked.share, mixing
        subproblem = self._subproblems.get(key) or self._fleet.subproblem(self.pipeline, asked.share, mixing)
        if asked.stages is not self.pipeline.stages:
            tables = tuple(self._table(asked, index, mixing) for index in range(len(asked.stages)))
            subproblem = replace(subproblem, tables=tables, prices=tuple(table.objective_per_hour for table in tables))
        if subproblem.latency_s != asked.latency_s:
            subproblem = subproblem.for_latency(asked.latency_s)
        subproblem = subproblem.within(asked.capacity)
        if asked.stages is self.pipeline.stages:
            self._subproblems[key] = subproblem  # with its tables flat, once it is searched
        return subproblem

    def _stage(self, stage: Stage, demand: Demand, lifted: frozenset[Limit]) -> Stage:
        if Limit(kind=LimitKind.BOUNDS, name=stage.name) not in lifted:
            return stage
        rate = demand.entry_rate_rps * self.pipeline.visit_ratios[stage.name]
        return replace(
            stage,
            min_replicas=1,
            placements=tuple(_unbounded(placement, stage, rate, demand.sessions) for placement in stage.placements),
        )

    def _table(self, asked: "_Asked", index: int, mixing: Mixing) -> StageOptions:
        stage = asked.stages[index]
        key = (index, asked.share, mixing, stage is not self.pipeline.stages[index], self._highest(stage, asked.supply))
        if key not in self._tables:
            self._tables[key] = stage_options(
                stage,
                stage_load(
                    replace(self.pipeline, demand=self.pipeline.demand.scaled(asked.share)),
                    self.pipeline.stages[index],
                ),
                asked.supply,
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
    """Return the least cost of the rows within all limits, infinite where there are none.

    What these take at least of each pool is written to `least_use`. One of the latencies within its limit is enough.
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


def _serve(subproblem: Subproblem, budget_per_hour: float, *, exact: bool) -> Walk | None:
    """Return the way to the cheapest choice within room, latency and budget, or None.

    At prices other than the cost, a choice that breaks the budget gives way to the one that costs least.
    """
    at_cost = all(
        np.array_equal(prices, table.cost_per_hour)
        for prices, table in zip(subproblem.prices, subproblem.tables, strict=True)
    )
    at_most = budget_per_hour if at_cost else inf
    walk = search(subproblem, at_most)
    if exact or walk is None:
        try:
            best = cheapest_exact(subproblem, at_most if walk is None else subproblem.price(walk.answer))
        except TooLarge:
            best = None
        if best is not None and (walk is None or subproblem.price(best) < subproblem.price(walk.answer) - TOLERANCE):
            walk = (walk or Walk(visited=(cheapest(subproblem) or best,))).to(best)
    if walk is None or subproblem.cost_per_hour(walk.answer) <= budget_per_hour + TOLERANCE:
        return walk
    if at_cost:
        return None if exact else _serve(subproblem, budget_per_hour, exact=True)
    return _serve(subproblem.priced([table.cost_per_hour for table in subproblem.tables]), budget_per_hour, exact=exact)


def _priced(subproblem: Subproblem, pool_prices: Array | None, money_price: float) -> Subproblem:
    if pool_prices is None:
        return subproblem
    return subproblem.priced(
        [money_price * table.cost_per_hour + table.use @ pool_prices for table in subproblem.tables]
    )


def _unbounded(placement: Placement, stage: Stage, rate_rps: float, sessions: float | None) -> Placement:
    """Return the placement with no minimum and as many replicas allowed as can make a difference."""
    enough = enough_replicas(placement, stage.routing, rate_rps, sessions, placement.batch_sizes[-1])
    return replace(placement, min_replicas=0, max_replicas=max(placement.max_replicas, enough))


def _ample(stages: Collection[Stage], supply: Supply) -> int:
    """Return units that hold every replica of `stages` on one pool."""
    replicas = sum(p.max_replicas for stage in stages for p in stage.placements)
    return int(replicas * supply.units_per_instance.max(initial=1))
