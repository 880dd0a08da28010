"""Serve one pipeline at least cost, or several together within the pools and budgets that they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np
from numpy.typing import NDArray

from optimizer.fleet.budgets import Budgets
from optimizer.fleet.lagrangian import share_pools
from optimizer.latency.composition import shape_of
from optimizer.latency.predict import stage_load
from optimizer.model import Basis, Composition, Mixing, Pipeline, PipelineKey, Problem
from optimizer.runtime.cache import BoundedCache
from optimizer.runtime.effort import TABLE, Account
from optimizer.search.exact import lower_bound, solve
from optimizer.search.greedy import cheapest, search
from optimizer.search.subproblem import TOLERANCE, Choice, Subproblem, Walk, with_row
from optimizer.search.tables import Supply, stage_options, with_unlisted

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

MIXED_PAIRS = 48
"""The most pairs of placements of a pipeline for which mixes of any two pools are tried: each pair adds many rows."""

_FEW = 4
"""Fleets of up to this many pipelines are solved one by one first; their lower bound comes from searches with proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a pipeline is served: the subproblem that was solved, and the search's walk to the chosen rows.

    `mixing` says how stages were allowed to use several pools.
    """

    subproblem: Subproblem
    walk: Walk
    mixing: Mixing = Mixing.OVERFLOW

    @property
    def choice(self) -> Choice:
        """Return the chosen row of each stage's table."""
        return self.walk.answer

    @property
    def cost_per_hour(self) -> float:
        """Return the cost of the replicas, in USD per hour."""
        return self.subproblem.cost_per_hour(self.choice)

    @property
    def use(self) -> Counts:
        """Return the units of each pool that the replicas use, shape (pools,)."""
        return self.subproblem.use(self.choice)

    @property
    def replicas(self) -> int:
        """Return the number of replicas of all stages."""
        return sum(
            int(table.replicas[row].sum()) for table, row in zip(self.subproblem.tables, self.choice, strict=True)
        )

    @property
    def complete(self) -> bool:
        """Return whether every stage has a replica."""
        return all(table.replicas[row].any() for table, row in zip(self.subproblem.tables, self.choice, strict=True))

    @property
    def mixes(self) -> bool:
        """Return whether a stage has replicas of several placements beside one another, not in a cascade."""
        return any(
            table.stage.cascade is None and np.count_nonzero(table.replicas[row]) > 1
            for table, row in zip(self.subproblem.tables, self.choice, strict=True)
        )


Answers = Mapping[PipelineKey, Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The composed latency that a pipeline is planned for instead of its SLA, because of what a replay has shown."""

    latency_s: float
    composition: Composition


def serve(subproblem: Subproblem, budget_per_hour: float, *, exact: bool = True) -> Walk | None:
    """Return the walk to a choice that meets the latency within the capacity and the budget, or None if none was found.

    With `exact` it is the cheapest choice unless branches share stages or the proof takes too long. Otherwise it is the
    cheapest that was found.
    """
    costs = tuple(table.cost_per_hour for table in subproblem.tables)
    prices_are_costs = all(np.array_equal(prices, cost) for prices, cost in zip(subproblem.prices, costs, strict=True))
    at_most = budget_per_hour if prices_are_costs else np.inf
    walk = None if exact else search(subproblem, at_most)
    if walk is None:
        walk = solve(subproblem, at_most).walk
    if walk is None or subproblem.cost_per_hour(walk.answer) <= budget_per_hour + TOLERANCE:
        return walk
    if prices_are_costs:
        return serve(subproblem, budget_per_hour) if not exact else None
    return serve(subproblem.priced(costs), budget_per_hour, exact=exact)  # what saves switching may exceed the budget


_SUBPROBLEMS: BoundedCache[Subproblem] = BoundedCache(512)


class Fleet:
    """The search for plans of a problem's pipelines, for any shares of their demand. Its state is a cache of results.

    `pool_prices` are the prices of a unit of each pool from which searches start, in the order of `Supply.pools`; after
    a search that served all pipelines in full they are the prices that it found (None: no search yet). `targets`
    replace the SLAs of the pipelines that they name. `shares_before` are the shares served of a similar demand, from
    which searches for a share start.
    """

    def __init__(
        self,
        problem: Problem,
        supply: Supply,
        *,
        pool_prices: Array | None = None,
        targets: Mapping[PipelineKey, Target] | None = None,
        shares_before: Mapping[PipelineKey, float] | None = None,
    ) -> None:
        self.problem = problem
        self.supply = supply
        self.budgets = Budgets(problem)
        self.targets = targets or {}
        self.shares_before = shares_before or {}
        self._subproblems: dict[tuple[PipelineKey, float, Mixing], Subproblem] = {}
        self._answers: dict[tuple[PipelineKey, float, bytes, bool], Answer | None] = {}
        self._bounds: dict[tuple[PipelineKey, ...], float] = {}
        self.pool_prices: Array | None = pool_prices

    def account(self, pipeline: Pipeline) -> Account | None:
        """Return the account of the work for `pipeline`; None where work is not counted."""
        return None if self.problem.effort is None else self.problem.effort.own.get(pipeline.key)

    def charge(self, pipeline: Pipeline, units: float) -> None:
        """Charge the account of `pipeline` with `units` of work."""
        account = self.account(pipeline)
        if account is not None:
            account.charge(units)

    def exhausted(self, pipeline: Pipeline) -> bool:
        """Return whether nothing is left in the account of `pipeline`."""
        account = self.account(pipeline)
        return account is not None and account.exhausted

    def supply_for(self, pipeline: Pipeline) -> Supply:
        """Return the supply at the prices with which the pipeline is searched.

        What it pays for whole instances depends on all replicas together. It is never less than the shares of instances
        at the lowest price of a node, so budgets and bounds hold for these too (`optimizer.fleet.whole_instances`).
        """
        pools = self.problem.pools
        if pipeline.basis is Basis.REPLICAS or not any(pool.node_prices_per_hour for pool in pools.values()):
            return self.supply
        least = [pools[name].least_price_per_hour for name in self.supply.pools]
        return replace(self.supply, prices_per_hour=np.array(least, dtype=np.float64))

    def subproblem(self, pipeline: Pipeline, share: float, mixing: Mixing = Mixing.OVERFLOW) -> Subproblem:
        """Return the subproblem of serving `share` of the demand with all pools; without load no latency is limited."""
        key = (pipeline.key, share, mixing)
        if key not in self._subproblems:
            problem, supply = self.problem, self.supply_for(pipeline)
            target = self.targets.get(pipeline.key)
            if target is None:
                target = Target(latency_s=pipeline.sla.latency_s, composition=problem.composition)
            pools = supply.pools, *(a.tobytes() for a in (supply.prices_per_hour, supply.units_per_instance))
            anonymous = replace(pipeline, key=PipelineKey(""), priority=0, budget_per_hour=None)
            value = anonymous, share, mixing, target, problem.switching_cost_per_hour, pools, supply.limits.tobytes()
            self.charge(pipeline, sum(TABLE * len(stage.placements) ** 2 for stage in pipeline.stages))
            found = _SUBPROBLEMS.get(value) or _SUBPROBLEMS.put(
                value, self._subproblem(pipeline, share, mixing, target)
            )
            self._subproblems[key] = found.charging(self.account(pipeline))
        return self._subproblems[key]

    def _subproblem(self, pipeline: Pipeline, share: float, mixing: Mixing, target: Target) -> Subproblem:
        scaled = pipeline.scaled(share)
        tables = tuple(
            stage_options(
                stage,
                stage_load(scaled, stage),
                self.supply_for(pipeline),
                percentile=pipeline.sla.percentile,
                max_wer=pipeline.max_wer,
                switching_cost_per_hour=self.problem.switching_cost_per_hour,
                mixing=mixing,
            )
            for stage in pipeline.stages
        )
        return Subproblem(
            tables=tables,
            prices=tuple(table.objective_per_hour for table in tables),
            shape=shape_of([(stage.name, stage.after) for stage in pipeline.stages]),
            composition=target.composition,
            percentile=pipeline.sla.percentile,
            latency_s=target.latency_s if scaled.demand.entry_rate_rps > 0 else np.inf,
            capacity=self.supply.limits,
        )

    def alone(self, pipeline: Pipeline, share: float, capacity: Counts, *, exact: bool = True) -> Answer | None:
        """Return how `share` of the pipeline's demand is served as if it were the only pipeline, or None.

        The limits are `capacity` (units of the supply) and the pipeline's own budget.
        """
        key = (pipeline.key, share, capacity.tobytes(), exact)
        if key not in self._answers:
            self._answers[key] = self._alone(pipeline, share, capacity, exact)
        return self._answers[key]

    def together(
        self, shares: Mapping[PipelineKey, float], capacity: Counts, budget_per_hour: float, *, exact: bool = True
    ) -> Answers | None:
        """Return how all of `shares` are served within `capacity` and the budgets, or None if no way was found.

        The budgets are `budget_per_hour` for all of them and those of the problem's groups.

        `Problem.search_effort` limits the search for pool prices, and may be exceeded by a hundred evaluations of each
        option. It does not limit searches of single pipelines. There is one with proof (at most two million partial
        choices) for each pipeline of a fleet of up to four, and one without proof for each where no prices lead to a
        plan.
        """
        pipelines = [pipeline for pipeline in by_priority(self.problem.pipelines) if pipeline.key in shares]
        answers: Answers | None = None
        if len(pipelines) <= _FEW:  # a few are solved one by one first, which also gives the steps of each
            answers = self._each(pipelines, shares, capacity, exact)
            if answers is None:
                return None
        if answers is None or not (_within(answers, capacity) and self._affordable(answers)):
            answers = self._priced(pipelines, shares, capacity, budget_per_hour, exact)
        if answers is None:
            answers = self._one_by_one(pipelines, shares, capacity, exact and self.problem.search_effort is None)
        if answers is None:
            return None
        if _cost(answers) > budget_per_hour + TOLERANCE or not self._affordable(answers):
            return self.together(shares, capacity, budget_per_hour) if not exact else None
        return answers

    def lower_bound_per_hour(self, answers: Answers) -> float | None:
        """Return a proven lower bound of the cost of serving all demands in full, in USD per hour; None if unknown.

        `answers` serve all demands in full; the bound is never above their cost.
        """
        pipelines = by_priority(self.problem.pipelines)
        mixing = Mixing.ANY if any(answer.mixing is Mixing.ANY for answer in answers.values()) else Mixing.OVERFLOW
        bound = self._bound(pipelines, answers, mixing)
        if bound is None:
            return None
        coarse = (_coarseness(self.subproblem(p, 1.0, mixing), answers[p.key].cost_per_hour) for p in pipelines)
        return bound * (1 - max(coarse, default=0.0))

    def _bound(self, pipelines: Sequence[Pipeline], answers: Answers, mixing: Mixing) -> float | None:
        """Return a lower bound of the cost of plans of rows of the tables and unlisted mixes; None if unknown."""
        known = self._bounds.get((*(pipeline.key for pipeline in pipelines),))
        subproblems = [self.subproblem(pipeline, 1.0, mixing) for pipeline in pipelines]
        free = any(table.ignores_pools for subproblem in subproblems for table in subproblem.tables)
        if known is not None and mixing is Mixing.OVERFLOW and self.problem.switching_cost_per_hour == 0 and not free:
            return known
        subproblems = [_by_cost(subproblem) for subproblem in subproblems]
        cost = _cost(answers)
        if free:  # mixes that use less of a pool may be missing: the bound is that of pools without limits
            unlimited = np.full_like(self.supply.limits, np.iinfo(np.int64).max)
            apart = sum(lower_bound(subproblem.within(unlimited), cost) for subproblem in subproblems)
            return min(apart, cost)
        if len(subproblems) > _FEW:
            shared = share_pools(
                subproblems,
                self.supply.limits,
                search_effort=self.problem.search_effort,
                account=self.problem.joint,
                start=self.pool_prices,
                prove=False,
            )
            return min(shared.bound, cost) if np.isfinite(shared.bound) else None
        apart = sum(
            lower_bound(subproblem, answers[p.key].cost_per_hour)
            for p, subproblem in zip(pipelines, subproblems, strict=True)
        )
        if len(subproblems) < 2 or apart >= cost - TOLERANCE:
            return min(apart, cost) if np.isfinite(apart) else None
        shared = share_pools(
            subproblems,
            self.supply.limits,
            search_effort=self.problem.search_effort,
            account=self.problem.joint,
            start=self.pool_prices,
        )
        bound = max(apart, shared.bound) if np.isfinite(shared.bound) else apart
        return min(bound, cost)

    def _priced(
        self,
        pipelines: Sequence[Pipeline],
        shares: Mapping[PipelineKey, float],
        capacity: Counts,
        budget_per_hour: float,
        exact: bool,
    ) -> Answers | None:
        """Return answers found by prices on the pools, or None if no prices led to a plan."""
        subproblems = [self.subproblem(pipeline, shares[pipeline.key]).within(capacity) for pipeline in pipelines]
        shared = share_pools(
            subproblems,
            capacity,
            own_budgets=[own_budget(pipeline) for pipeline in pipelines],
            group_budgets=self.budgets.per_hour,
            members=self.budgets.members(pipelines),
            # Where prices are costs, the least price is the least cost: a limit on it does not help.
            budget_per_hour=budget_per_hour if self.problem.switching_cost_per_hour else np.inf,
            start=self.pool_prices,
            search_effort=self.problem.search_effort,
            account=self.problem.joint,
            prove=exact,
        )
        choices, bound = shared.choices, shared.bound
        if choices is None:
            return None
        if all(share == 1.0 for share in shares.values()) and np.array_equal(capacity, self.supply.limits):
            self._bounds[*(pipeline.key for pipeline in pipelines),] = bound
            self.pool_prices = shared.unit_prices
        return {
            pipeline.key: Answer(subproblem=subproblem, walk=_way(subproblem, choice))
            for pipeline, subproblem, choice in zip(pipelines, subproblems, choices, strict=True)
        }

    def most(self, pipeline: Pipeline) -> float:
        """Return the most that the pipeline may cost: its own budget, and those of its groups; infinite without."""
        return min(own_budget(pipeline), self.budgets.most(pipeline.key, self.budgets.per_hour))

    def _affordable(self, answers: Answers) -> bool:
        if not self.budgets.names:
            return True
        left = self.budgets.left({key: answer.cost_per_hour for key, answer in answers.items()})
        return bool(np.all(left >= -TOLERANCE))

    def _each(
        self, pipelines: Sequence[Pipeline], shares: Mapping[PipelineKey, float], capacity: Counts, exact: bool
    ) -> Answers | None:
        """Return how each pipeline is served as if it were alone; None if one of them cannot be served."""
        answers: dict[PipelineKey, Answer] = {}
        for pipeline in pipelines:
            answer = self.alone(pipeline, shares[pipeline.key], capacity, exact=exact)
            if answer is None:
                return None
            answers[pipeline.key] = answer
        return answers

    def _one_by_one(
        self, pipelines: Sequence[Pipeline], shares: Mapping[PipelineKey, float], capacity: Counts, exact: bool
    ) -> Answers | None:
        """Return answers in which stages may mix pools, or None.

        Each pipeline is served as if it were alone. If these answers exceed the capacity together, pipelines are served
        one after the other.
        """
        answers = self._each(pipelines, shares, capacity, exact)
        if answers is None or _within(answers, capacity):
            return answers
        if np.any(sum(_least(self.subproblem(pipeline, shares[pipeline.key])) for pipeline in pipelines) > capacity):
            return None
        return self._in_turn(self._by_need(pipelines, shares, capacity), shares, capacity)

    def _alone(self, pipeline: Pipeline, share: float, capacity: Counts, exact: bool) -> Answer | None:
        budget, subproblem = self.most(pipeline), self.subproblem(pipeline, share)
        walk = serve(subproblem, budget, exact=exact)
        if walk is not None and np.all(subproblem.use(walk.answer) <= capacity):
            return Answer(subproblem=subproblem.within(capacity), walk=walk)
        limited = subproblem.within(capacity)
        walk = serve(limited, budget, exact=exact)
        if walk is not None:
            return Answer(subproblem=limited, walk=walk)
        # Stages may compete for a pool that none of them fills: then any mix of pools is tried. Not for want of money,
        # or a smaller budget could lead to a cheaper plan than a larger one.
        if any(len(table) == 0 for table in subproblem.tables):
            return None
        if np.isfinite(budget) and serve(limited, np.inf, exact=False) is not None:
            return None
        roomy = subproblem.within(np.full_like(capacity, np.iinfo(np.int64).max))
        return None if serve(roomy, np.inf, exact=False) is None else self._mixed(pipeline, share, capacity, budget)

    def _mixed(self, pipeline: Pipeline, share: float, capacity: Counts, budget: float) -> Answer | None:
        if sum(comb(len(stage.placements), 2) for stage in pipeline.stages) > MIXED_PAIRS:
            return None
        subproblem = self.subproblem(pipeline, share, Mixing.ANY).within(capacity)
        walk = serve(subproblem, budget, exact=False)
        return None if walk is None else Answer(subproblem=subproblem, walk=walk, mixing=Mixing.ANY)

    def _by_need(
        self, pipelines: Sequence[Pipeline], shares: Mapping[PipelineKey, float], capacity: Counts
    ) -> Sequence[Pipeline]:
        """Return the pipelines by their need of the contended pools, the greatest first.

        The need is the rise of the pipeline's price when it uses as little of these pools as it can, divided by the
        units of them that it would use alone.
        """
        unshared = {p.key: self._unshared(p, shares[p.key]) for p in pipelines}
        contended = np.sum([use for _, use in unshared.values()], axis=0) > capacity

        def need(pipeline: Pipeline) -> float:
            price, use = unshared[pipeline.key]
            subproblem = self.subproblem(pipeline, shares[pipeline.key])
            walk = search(subproblem.within(np.where(contended, np.minimum(_least(subproblem), capacity), capacity)))
            units = int(use[contended].sum())
            if walk is None or units == 0:
                return np.inf if units else 0.0
            return (subproblem.price(walk.answer) - price) / units

        needs = {pipeline.key: need(pipeline) for pipeline in pipelines}
        return sorted(pipelines, key=lambda pipeline: -needs[pipeline.key])

    def _unshared(self, pipeline: Pipeline, share: float) -> tuple[float, Counts]:
        """Return the price and the use of the pools of the pipeline's choice as if it were alone."""
        subproblem = self.subproblem(pipeline, share)
        walk = search(subproblem)
        if walk is None:
            return 0.0, np.zeros_like(subproblem.capacity)
        return subproblem.price(walk.answer), subproblem.use(walk.answer)

    def _in_turn(
        self, pipelines: Sequence[Pipeline], shares: Mapping[PipelineKey, float], capacity: Counts
    ) -> dict[PipelineKey, Answer] | None:
        """Return answers for the pipelines one after the other; each leaves the later ones their least use of pools."""
        least = {p.key: _least(self.subproblem(p, shares[p.key])) for p in pipelines}
        answers: dict[PipelineKey, Answer] = {}
        for position, pipeline in enumerate(pipelines):
            later = sum((least[p.key] for p in pipelines[position + 1 :]), np.zeros_like(capacity))
            answer = self.alone(pipeline, shares[pipeline.key], capacity - _use(answers, capacity) - later, exact=False)
            if answer is None:
                return None
            answers[pipeline.key] = answer
        return answers


def _by_cost(subproblem: Subproblem) -> Subproblem:
    """Return the subproblem of the least cost, in which a row stands for the mixes that a table does not list."""
    tables = tuple(with_unlisted(table) for table in subproblem.tables)
    return replace(subproblem, tables=tables, prices=tuple(table.cost_per_hour for table in tables))


def _coarseness(subproblem: Subproblem, cost_per_hour: float) -> float:
    """Return the share by which a plan with allocations that the tables leave out may be cheaper than one without."""
    least = [float(table.cost_per_hour.min(initial=np.inf)) for table in subproblem.tables]
    return max(
        (
            table.coarseness
            for table, own in zip(subproblem.tables, least, strict=True)
            if table.coarse_from_per_hour + sum(least) - own < cost_per_hour - TOLERANCE
        ),
        default=0.0,
    )


def by_priority(pipelines: Sequence[Pipeline]) -> list[Pipeline]:
    """Return the pipelines by falling priority; those of equal priority by name."""
    return sorted(pipelines, key=lambda pipeline: (-pipeline.priority, pipeline.key))


def own_budget(pipeline: Pipeline) -> float:
    """Return the pipeline's own budget, in USD per hour; infinite if it has none."""
    return np.inf if pipeline.budget_per_hour is None else pipeline.budget_per_hour


def _least(subproblem: Subproblem) -> Counts:
    if any(len(table) == 0 for table in subproblem.tables):
        return np.zeros_like(subproblem.capacity)
    return np.asarray(sum(table.use.min(axis=0) for table in subproblem.tables), dtype=np.int64)


def _use(answers: Answers, capacity: Counts) -> Counts:
    return np.asarray(sum((answer.use for answer in answers.values()), np.zeros_like(capacity)), dtype=np.int64)


def _within(answers: Answers, capacity: Counts) -> bool:
    return bool(np.all(_use(answers, capacity) <= capacity))


def _cost(answers: Answers) -> float:
    return sum(answer.cost_per_hour for answer in answers.values())


def _way(subproblem: Subproblem, choice: Choice) -> Walk:
    """Return the walk from the cheapest allocation to `choice`; steps that save most latency per dollar come first."""
    start = cheapest(subproblem) or choice

    def rate(stage: int) -> tuple[float, str]:
        table = subproblem.tables[stage]
        saved = float(min(table.percentile_s[start[stage]], 1e12) - min(table.percentile_s[choice[stage]], 1e12))
        added = float(subproblem.prices[stage][choice[stage]] - subproblem.prices[stage][start[stage]])
        return (-np.inf if added <= TOLERANCE else -saved / added), table.stage.name

    visited = [start]
    for stage in sorted((k for k in range(len(choice)) if start[k] != choice[k]), key=rate):
        visited.append(with_row(visited[-1], stage, choice[stage]))
    return Walk(visited=tuple(visited))
