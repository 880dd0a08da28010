"""Share capacity and budget when not everything can be served, and name the binding constraint of each pipeline.

The minimum replicas of all pipelines come first, then pipelines by priority. Within one priority as many pipelines as
possible are served in full; the shares of the others are raised together. The searches per pipeline are limited.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, frexp, inf, isfinite, isqrt, log

import numpy as np
from numpy.typing import NDArray

from optimizer.fleet.fleet import Answer, Fleet, by_priority, own_budget
from optimizer.latency.predict import stage_load
from optimizer.latency.stage import capacity_rps
from optimizer.model import Mixing, Pipeline, PipelineKey, StageName
from optimizer.overload.knapsack import Columns, floor_of, select
from optimizer.overload.what_if import SLA, WhatIf
from optimizer.plan import Limit, LimitKind
from optimizer.search.greedy import cheapest
from optimizer.search.subproblem import TOLERANCE, Subproblem, Walk
from optimizer.search.tables import StageOptions, without_replicas

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

RESOLUTION = 256
"""Shares are raised in steps of 1 / RESOLUTION or finer; shares below 1 / RESOLUTION in steps of its powers."""

BUDGET = Limit(kind=LimitKind.BUDGET)

_SEARCHES = 100
"""The most searches for one pipeline while shares are raised, half of them while shares rise together; then its share
stays."""

FINE = 16
"""If only one pipeline with few placements is short, its share rises in steps down to 1 / (RESOLUTION · FINE)."""

_FRACTION = 0.1
"""The finest step of a share, as a share of the load of one replica."""

_FEW_PLACEMENTS = 12
"""The most placements of a pipeline for which a share is raised in fine steps: with more it takes long."""

_WHOLE = 1e-6
"""A share this near to a multiple of a step is that multiple."""

_PASSES = 3
"""How often each share is raised alone, within what the other pipelines leave."""

_ROUNDS = 4
"""How often plans made at new prices of pools and money are added to those from which `_selection` chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The share of a pipeline's demand that is served (0–1), how it is served, and the constraint that binds.

    `answer` is None where not even the minimum replicas fit. `limit` is None where the whole demand is served.
    """

    served: float
    answer: Answer | None
    limit: Limit | None


def share_out(fleet: Fleet, capacity: Counts, budget_per_hour: float) -> Mapping[PipelineKey, Share]:
    """Return how much of each pipeline's demand is served within `capacity` and `budget_per_hour`, and how.

    `capacity` is in units of `fleet.supply`, the budget in USD. The minimum replicas of all pipelines come before any
    SLA, by priority. Within one priority as many pipelines as possible are served in full. The shares of the others
    rise together; when one cannot rise further, the rest continue.
    """
    pipelines = by_priority(fleet.problem.pipelines)
    state = _State(fleet=fleet, capacity=capacity, budget_per_hour=budget_per_hour)
    shares: dict[PipelineKey, Share] = {}
    for pipeline in pipelines:
        minimum, limit = _minimum(state, pipeline)
        if minimum is None:
            shares[pipeline.key] = Share(served=0.0, answer=None, limit=limit)
        else:
            state.answers[pipeline.key] = minimum
            state.served[pipeline.key] = 0.0
    for priority in sorted({p.priority for p in pipelines}, reverse=True):
        group = [p for p in pipelines if p.priority == priority and p.key in state.answers]
        _serve_in_full(state, group)
        _level(state, [p for p in group if state.served[p.key] < 1])
    for pipeline in pipelines:
        if pipeline.key in state.answers:
            if state.served[pipeline.key] == 0:
                _with_all_options(state, pipeline)
            served, answer = state.served[pipeline.key], state.answers[pipeline.key]
            limit = None
            if served < 1:
                step = min(_step(pipeline), _reach(fleet, pipeline))
                # A multiple of the step, because tables for it are cached; at least half a step above `served`.
                more = (floor(served / step + 0.5) + 1) * step
                left, money = state.left_for(pipeline)
                limit = blame(state.what_if(pipeline), more, left, money, mixing=answer.mixing)
                limit = _named(state, pipeline) if limit == BUDGET else limit
            shares[pipeline.key] = Share(served=served, answer=answer, limit=limit)
    return shares


def blame(
    what_if: WhatIf, share: float, capacity: Counts, budget_per_hour: float, *, mixing: Mixing = Mixing.OVERFLOW
) -> Limit:
    """Return the constraint that keeps `share` of the demand from being served within `capacity` and `budget_per_hour`.

    It is the first constraint without which the share could be served, in the order: budgets, pools by name, bounds of
    the stages by name, SLA. Where lifting no single constraint helps, all but the SLA are lifted and put back one by
    one in the same order; the first that cannot be put back is returned. The SLA is returned where the share cannot be
    served even then.
    """
    pipeline, share = what_if.pipeline, min(share, 1.0)
    money = max(0.0, min(budget_per_hour, own_budget(pipeline)))
    if what_if.given_up:
        # Nothing is searched any more: money is what planned pipelines mostly lack, then the fullest pool.
        left = {limit: capacity[what_if.column(limit)] for limit in _pool_limits(pipeline)}
        return BUDGET if isfinite(money) else min(left, key=lambda limit: left[limit])

    def servable(lifted: Collection[Limit]) -> bool:
        at_most = inf if BUDGET in lifted else money
        return what_if.answer(share, capacity, at_most, lifted=lifted, mixing=mixing, exact=False) is not None

    def first_that_helps(limits: Sequence[Limit]) -> Limit | None:
        """Return the first of `limits` whose lifting alone helps; None at once if lifting all of them does not."""
        if not limits or not servable(limits):
            return None
        if len(limits) == 1:
            return limits[0]
        half = len(limits) // 2
        return first_that_helps(limits[:half]) or first_that_helps(limits[half:])

    budget = [BUDGET] if isfinite(money) else []
    short = what_if.short_alone(share, capacity, money)
    # For a stage that is short even alone, lifting the bounds of another does not help.
    bounds = [limit for limit in _bound_limits(pipeline) if all(limit.name == pipeline.stages[k].name for k in short)]
    for limits in (budget, [*_pool_limits(pipeline)], bounds, [SLA]):
        helps = first_that_helps(limits)
        if helps is not None:
            return helps
    every = [*budget, *_pool_limits(pipeline), *_bound_limits(pipeline)]
    if not servable(every):
        return SLA
    back, stuck = 0, len(every)  # with `back` put back it is servable, with `stuck` it is not
    while stuck - back > 1:
        middle = (back + stuck) // 2
        if servable(every[middle:]):
            back = middle
        else:
            stuck = middle
    return every[back]


def _named(state: "_State", pipeline: Pipeline) -> Limit:
    """Return the budget that leaves the pipeline least: its own and that of the fleet have no name, a group's has."""
    groups, left = state.fleet.budgets.of(pipeline.key), state.left_of_groups(pipeline.key)
    _, fleet = state.left(pipeline.key)
    if not groups.any() or left[groups].min() > min(own_budget(pipeline), fleet) - TOLERANCE:
        return BUDGET
    return Limit(kind=LimitKind.BUDGET, name=state.fleet.budgets.names[int(np.argmin(np.where(groups, left, inf)))])


@dataclass(slots=True, kw_only=True)
class _State:
    """The share and answer of each pipeline so far. All answers together keep `capacity` and `budget_per_hour`."""

    fleet: Fleet
    capacity: Counts
    budget_per_hour: float
    answers: dict[PipelineKey, Answer] = field(default_factory=dict)
    served: dict[PipelineKey, float] = field(default_factory=dict)
    what_ifs: dict[PipelineKey, WhatIf] = field(default_factory=dict)

    def what_if(self, pipeline: Pipeline) -> WhatIf:
        if pipeline.key not in self.what_ifs:
            self.what_ifs[pipeline.key] = WhatIf(self.fleet, pipeline)
        return self.what_ifs[pipeline.key]

    def left(self, *keys: PipelineKey) -> tuple[Counts, float]:
        """Return the capacity and the money (USD per hour) that all pipelines except `keys` leave."""
        others = [answer for key, answer in self.answers.items() if key not in keys]
        use = sum((answer.use for answer in others), np.zeros_like(self.capacity))
        return self.capacity - use, self.budget_per_hour - sum(answer.cost_per_hour for answer in others)

    def left_of_groups(self, *keys: PipelineKey) -> Array:
        """Return the money that all pipelines except `keys` leave of each group's budget, in USD per hour."""
        if not self.fleet.budgets.names:
            return self.fleet.budgets.per_hour
        return self.fleet.budgets.left(
            {key: answer.cost_per_hour for key, answer in self.answers.items() if key not in keys}
        )

    def left_for(self, pipeline: Pipeline) -> tuple[Counts, float]:
        """Return the capacity and the money that all others leave for `pipeline`; its own budget is not counted."""
        capacity, money = self.left(pipeline.key)
        return capacity, min(money, self.fleet.budgets.most(pipeline.key, self.left_of_groups(pipeline.key)))

    def answer(
        self,
        pipeline: Pipeline,
        share: float,
        *,
        prices: tuple[Array, float] | None = None,
        mixing: Mixing = Mixing.OVERFLOW,
        exact: bool = False,
    ) -> Answer | None:
        """Return how `share` of the pipeline's demand is served within what the other pipelines leave, or None.

        `prices` are the price of a unit of each pool and the price of money. None also after `_SEARCHES` searches.
        """
        what_if = self.what_if(pipeline)
        if what_if.searches > _SEARCHES:
            return None
        capacity, money = self.left_for(pipeline)
        pool_prices, money_price = prices or (None, 1.0)
        return what_if.answer(
            share,
            capacity,
            min(money, own_budget(pipeline)),
            pool_prices=pool_prices,
            money_price=money_price,
            mixing=mixing,
            exact=exact,
        )

    def keep(self, pipeline: Pipeline, share: float, answer: Answer) -> None:
        self.answers[pipeline.key] = answer
        self.served[pipeline.key] = share

    def tighten(self, pipeline: Pipeline) -> None:
        """Serve the pipeline's present share at least cost within what the other pipelines leave."""
        if self.answers[pipeline.key].mixing is Mixing.ANY or self.served[pipeline.key] == 0:
            return
        capacity, money = self.left_for(pipeline)
        better = self.what_if(pipeline).answer(
            self.served[pipeline.key], capacity, min(money, own_budget(pipeline)), mixing=Mixing.OVERFLOW
        )
        if better is not None:
            self.answers[pipeline.key] = better


def _serve_in_full(state: _State, group: Sequence[Pipeline]) -> None:
    """Serve as many pipelines of `group` in full as possible, within what minimums and higher priorities leave."""
    if len(group) == 1:
        answer = state.answer(group[0], 1.0, mixing=Mixing.ANY, exact=True)
        if answer is not None:
            state.keep(group[0], 1.0, answer)
        return
    selection = _selection(state, group)
    if len(selection) < len(group):
        cheap = {p.key: state.answers[p.key] for p in group}
        state.answers.update(_frugal(state, group))
        moved = any(state.answers[key] is not answer for key, answer in cheap.items())
        other = _selection(state, group) if moved else {}
        if len(other) > len(selection):
            selection = other
        else:
            state.answers.update(cheap)
    for number, answer in selection.items():
        state.keep(group[number], 1.0, answer)
    for _ in range(2):
        for number in selection:
            state.tighten(group[number])
        before = len(selection)
        for number, pipeline in enumerate(group):
            if number not in selection:
                answer = state.answer(pipeline, 1.0)
                if answer is not None:
                    selection[number] = answer
                    state.keep(pipeline, 1.0, answer)
        if len(selection) == before:
            break


def _frugal(state: _State, group: Sequence[Pipeline]) -> Mapping[PipelineKey, Answer]:
    """Return minimum replicas that use less of the contended pools, for the pipelines that can have such."""
    in_full = [(p, state.answer(p, 1.0)) for p in group]
    capacity, money = state.left()
    groups = state.left_of_groups()
    occupied = np.zeros_like(capacity)
    for pipeline, answer in in_full:
        if answer is not None:
            occupied += answer.use - state.answers[pipeline.key].use
    # A pipeline that cannot be served beside the minimums of the others may need any pool that is used up.
    contended = (occupied > capacity) | ((capacity <= 0) & any(answer is None for _, answer in in_full))
    frugal: dict[PipelineKey, Answer] = {}
    weights = np.where(contended, 1.0 / np.maximum(state.capacity, 1), 0.0)
    for pipeline in group if contended.any() else ():
        now = state.answers[pipeline.key]
        if not now.complete:
            continue
        left = capacity + now.use
        paid = min(
            money + now.cost_per_hour,
            own_budget(pipeline),
            state.fleet.budgets.most(pipeline.key, groups) + now.cost_per_hour,
        )
        subproblem = state.what_if(pipeline).minimum(left)
        choice = cheapest(
            subproblem.priced([table.use @ weights + 1e-9 * table.cost_per_hour for table in subproblem.tables])
        )
        if choice is None or subproblem.cost_per_hour(choice) > paid + TOLERANCE:
            continue
        if subproblem.use(choice) @ weights < now.use @ weights - TOLERANCE:
            frugal[pipeline.key] = Answer(subproblem=subproblem, walk=Walk(visited=(choice,)))
            added = subproblem.cost_per_hour(choice) - now.cost_per_hour
            capacity, money = left - subproblem.use(choice), money - added
            groups[state.fleet.budgets.of(pipeline.key)] -= added
    return frugal


def _selection(state: _State, group: Sequence[Pipeline]) -> dict[int, Answer]:
    """Return which pipelines of `group` are served in full, by position, and how.

    The knapsack chooses as many as possible, from plans made at several prices of pools and money.
    """
    capacity, money = state.left()
    minimums = [state.answers[p.key] for p in group]
    paid = isfinite(money)
    members = state.fleet.budgets.members(group)
    moneys = np.concatenate((state.left_of_groups(), [money] if paid else []))

    def need(number: int, answer: Answer) -> Array:
        use = (answer.use - minimums[number].use).astype(float)
        cost = answer.cost_per_hour - minimums[number].cost_per_hour
        return np.concatenate((use, cost * members[number], [cost] if paid else []))

    found: list[tuple[int, Answer, Array]] = []
    for number, pipeline in enumerate(group):
        answer = state.answer(pipeline, 1.0, exact=True)
        if answer is not None:
            found.append((number, answer, need(number, answer)))
    available = np.maximum(np.concatenate((capacity.astype(float), moneys)), 0.0)
    able = [number for number, _, _ in found]
    best: dict[int, Answer] = {}
    for turn in range(_ROUNDS + 1 if found else 0):
        found.sort(key=lambda column: column[0])
        columns = Columns(
            owner=np.array([number for number, _, _ in found], dtype=np.int64),
            need=np.array([occupied for _, _, occupied in found]),
            available=available,
        )
        selection = select(columns)
        if len(selection.columns) > len(best):
            best = {found[column][0]: found[column][1] for column in selection.columns}
        pool_prices = selection.prices[: len(capacity)]
        group_prices = selection.prices[len(capacity) : len(capacity) + members.shape[1]]
        if turn == _ROUNDS or len(best) == len(able) or not (pool_prices.any() or group_prices.any()):
            break
        fleet_price = float(selection.prices[-1]) if paid else 0.0
        fresh, hope = [], float(selection.prices @ available)
        for number in able:
            # A small price on money takes the cheapest among equals.
            money_price = max(fleet_price + float(group_prices @ members[number]), 1e-6 * float(pool_prices.max()))
            money_price = money_price or 1.0  # nothing that it uses is scarce
            answer = state.answer(group[number], 1.0, prices=(pool_prices, money_price), exact=True)
            if answer is None:
                continue
            occupied = need(number, answer)
            hope += max(0.0, 1.0 - float(occupied @ selection.prices))
            if not any(other == number and np.allclose(occupied, old) for other, _, old in found):
                fresh.append((number, answer, occupied))
        if not fresh or floor_of(hope) <= len(best):
            break
        found += fresh
    return best


def _level(state: _State, rest: Sequence[Pipeline]) -> None:
    """Raise the shares of `rest` together as far as possible, then one by one the shares that can still rise."""
    active, level = list(rest), 0
    while len(active) > 1:
        level, raised = _raise_together(state, active, level)
        rising = (
            [p for p in active if state.answer(p, (level + 1) / RESOLUTION) is not None] if raised or not level else []
        )
        if len(rising) == len(active) or not rising:
            break  # each could rise, but not all together
        active = rising
    for _ in range(_PASSES):
        before = dict(state.served)
        for pipeline in rest:
            _raise(state, pipeline, step := _step(pipeline), below=ceil(1 / step))
        for pipeline in rest:
            state.tighten(pipeline)  # what it saves may raise another
        if state.served == before:
            break
    if len(rest) == 1 and _few_placements(rest[0]):
        served = state.served[rest[0].key]
        step = _step(rest[0])
        work = step / (served or 1.0) * state.answers[rest[0].key].replicas
        fine = next((parts for parts in (1, 2, 4, 8) if work <= parts * _FRACTION), FINE)
        if 0 < served < 1 and fine > 1:
            _raise(state, rest[0], step / fine, below=fine * (floor(served / step + _WHOLE) + 1), mix=False)
    for pipeline in rest:
        if state.served[pipeline.key] == 0:
            _raise_a_little(state, pipeline)
            state.tighten(pipeline)


def _step(pipeline: Pipeline) -> float:
    """Return the step in which a pipeline's share rises, between 0.5 / RESOLUTION and 1 / RESOLUTION.

    A step is a power of 2 in items per second, so that the same loads occur again, and their subproblems are reused,
    when the demand changes.
    """
    mantissa, _ = frexp(pipeline.demand.entry_rate_rps)
    return 0.5 / (mantissa or 0.5) / RESOLUTION


def _few_placements(pipeline: Pipeline) -> bool:
    return sum(len(stage.placements) for stage in pipeline.stages) <= _FEW_PLACEMENTS


def _raise_together(state: _State, active: Sequence[Pipeline], low: int) -> tuple[int, bool]:
    """Raise all of `active` from level `low` to the highest common level; return that level, and whether it rose."""
    found: dict[PipelineKey, Answer] = {}
    capacity, money = state.left(*(p.key for p in active))
    groups = state.left_of_groups(*(p.key for p in active))

    def reaches(level: int) -> bool:
        answers = _together_at(state, active, level / RESOLUTION, capacity, money, groups)
        if answers is not None:
            found.clear()
            found.update(answers)
        return answers is not None

    coarse = any(state.fleet.exhausted(pipeline) for pipeline in active)
    level = _highest(low, RESOLUTION, reaches, geometric=coarse)
    for pipeline in active if found else ():
        state.keep(pipeline, level / RESOLUTION, found[pipeline.key])
    return level, bool(found)


def _together_at(
    state: _State, active: Sequence[Pipeline], share: float, capacity: Counts, money: float, groups: Array
) -> Mapping[PipelineKey, Answer] | None:
    """Return how each of `active` gets `share` as if it were alone; None where these answers do not fit together."""
    answers: dict[PipelineKey, Answer] = {}
    for pipeline in active:
        what_if = state.what_if(pipeline)
        answer = None
        if what_if.searches <= _SEARCHES // 2:
            at_most = min(money, own_budget(pipeline), state.fleet.budgets.most(pipeline.key, groups))
            answer = what_if.answer(share, capacity, at_most, mixing=Mixing.OVERFLOW, exact=False)
        if answer is None:
            return None
        answers[pipeline.key] = answer
    use = np.sum([answer.use for answer in answers.values()], axis=0)
    costs = {key: answer.cost_per_hour for key, answer in answers.items()}
    spent = state.fleet.budgets.per_hour - state.fleet.budgets.left(costs)
    if np.all(use <= capacity) and sum(costs.values()) <= money + TOLERANCE and np.all(spent <= groups + TOLERANCE):
        return answers
    return None


def _raise(state: _State, pipeline: Pipeline, unit: float, *, below: int, mix: bool = True) -> None:
    """Raise the share of one pipeline as far as possible within what the other pipelines leave, in steps of `unit`.

    A level is a number of steps. The caller knows that level `below` is not reached, except perhaps by a mix of pools
    other than overflow, which is tried with `mix`. No share exceeds 1.
    """
    found: list[Answer] = []

    def share(level: int) -> float:
        return min(1.0, level * unit)

    def reaches(level: int, mixing: Mixing = Mixing.OVERFLOW) -> bool:
        answer = state.answer(pipeline, share(level), mixing=mixing)
        found.extend([] if answer is None else [answer])
        return answer is not None

    low, high = floor(state.served[pipeline.key] / unit + _WHOLE), below
    guess = floor(state.fleet.shares_before.get(pipeline.key, 0.0) / unit + _WHOLE)
    if low < guess < high:
        low, high = _near(guess, low, high, reaches)
    elif low and not reaches(low + 1):
        high = low + 1
    elif low:
        low += 1
    level = _highest(low, high, reaches, geometric=state.fleet.exhausted(pipeline))
    if mix and reaches(level + 1, Mixing.ANY):
        level, step = level + 1, 1
        while level + step <= below and reaches(level + step, Mixing.ANY):
            level, step = level + step, 2 * step
        high = min(level + step, below + 1)
        level = _highest(level, high, lambda more: reaches(more, Mixing.ANY))
    if found:
        state.keep(pipeline, share(level), found[-1])


def _near(guess: int, low: int, high: int, reaches: Callable[[int], bool]) -> tuple[int, int]:
    """Return narrower limits of the highest level reached, found in growing steps from `guess`.

    The first is `low` or a level that is reached, the second `high` or a level that is not.
    """
    step = 1
    if reaches(guess):
        low = guess
        while low + step < high:
            if not reaches(low + step):
                return low, low + step
            low, step = low + step, 2 * step
        return low, high
    high = guess
    while high - step > low:
        if reaches(high - step):
            return high - step, high
        high, step = high - step, 2 * step
    return low, high


def _highest(low: int, high: int, reaches: Callable[[int], bool], *, geometric: bool = False) -> int:
    """Return the highest level from `low` to `high` - 1 that is reached; `low` itself is not tried.

    Level `low` + 1 is tried first: often no load can be served at all, and then one search shows that. The last call
    of `reaches` that returned True was for the level returned. With `geometric`, the level between two others is their
    geometric mean: a few trials then come near any level, in proportion to it.
    """
    middle = low + 1
    while high - low > 1:
        if reaches(middle):
            low = middle
        else:
            high = middle
        middle = max(low + 1, isqrt(low * high)) if geometric else (low + high) // 2
    return low


def _raise_a_little(state: _State, pipeline: Pipeline) -> None:
    """Raise the share of a pipeline that serves nothing yet, in steps small enough for a demand far above capacity."""
    power = max(2, 1 + floor(-log(_reach(state.fleet, pipeline), RESOLUTION)))
    if state.answer(pipeline, float(RESOLUTION) ** -(power + 1)) is None:
        return  # no load can be served
    for unit in (float(RESOLUTION) ** -power, float(RESOLUTION) ** -(power + 1)):
        if state.served[pipeline.key] == 0:
            _raise(state, pipeline, unit, below=RESOLUTION)


def _reach(fleet: Fleet, pipeline: Pipeline) -> float:
    """Return a share (at most 1) of the demand above which even the most replicas allowed cannot serve.

    For a stage without replicas it is the share of one item per second. It keeps tables small where the demand is far
    above all capacity.
    """
    share = 1.0
    for stage in pipeline.stages:
        most = [(min(p.max_replicas, fleet.supply.most(p)), p) for p in stage.placements]
        load = stage_load(pipeline, stage)
        carried = sum(count * capacity_rps(p, p.batch_sizes[-1]) for count, p in most)
        share = min(share, (carried or 1.0) / load.rate_rps if load.rate_rps > 0 else 1.0)
        slots = sum(inf if p.session_slots is None else count * p.session_slots for count, p in most if count)
        share = min(share, (slots or 1.0) / load.sessions if load.sessions else 1.0)
    return share


def _minimum(state: _State, pipeline: Pipeline) -> tuple[Answer | None, Limit | None]:
    """Return the cheapest answer with minimum replicas, of as many stages as fit, and None.

    Where nothing fits, return None and the binding constraint.
    """
    capacity, money = state.left_for(pipeline)
    subproblem = state.what_if(pipeline).minimum(capacity)
    choice = cheapest(subproblem)
    if choice is None:
        subproblem = _those_with_room(subproblem)
        choice = cheapest(subproblem)
    assert choice is not None, "stages that do not run always have room"
    if subproblem.cost_per_hour(choice) > min(own_budget(pipeline), money) + TOLERANCE:
        return None, _named(state, pipeline)
    if not subproblem.use(choice).any():
        return None, blame(state.what_if(pipeline), 0.0, capacity, money)
    return Answer(subproblem=subproblem, walk=Walk(visited=(choice,))), None


def _with_all_options(state: _State, pipeline: Pipeline) -> None:
    """Replace the minimum replicas of a pipeline by a choice of its whole tables, so that its plan has a next step."""
    answer = state.answers[pipeline.key]
    if not answer.complete:
        return
    capacity, money = state.left_for(pipeline)
    whole = state.fleet.subproblem(pipeline, 0.0).within(capacity)
    subproblem = whole.priced([table.cost_per_hour for table in whole.tables])
    choice = cheapest(subproblem)
    if choice is not None and subproblem.cost_per_hour(choice) <= min(answer.cost_per_hour, money) + TOLERANCE:
        state.answers[pipeline.key] = Answer(subproblem=subproblem, walk=Walk(visited=(choice,)))


def _those_with_room(subproblem: Subproblem) -> Subproblem:
    """Return the subproblem with as many stages as fit, nearest to the entry first; other stages have no replicas."""
    depth: dict[StageName, int] = {}
    for table in subproblem.tables:
        depth[table.stage.name] = 1 + max((depth[name] for name in table.stage.after), default=0)
    tables = [without_replicas(table) for table in subproblem.tables]
    for stage, table in sorted(
        enumerate(subproblem.tables), key=lambda entry: (depth[entry[1].stage.name], entry[1].stage.name)
    ):
        tried = [*tables[:stage], table, *tables[stage + 1 :]]
        if cheapest(_over(subproblem, tried)) is not None:
            tables = tried
    return _over(subproblem, tables)


def _over(subproblem: Subproblem, tables: Sequence[StageOptions]) -> Subproblem:
    return replace(subproblem, tables=tuple(tables), prices=tuple(table.cost_per_hour for table in tables))


def _pool_limits(pipeline: Pipeline) -> Iterator[Limit]:
    for name in sorted({p.pool for stage in pipeline.stages for p in stage.placements}):
        yield Limit(kind=LimitKind.POOL, name=name)


def _bound_limits(pipeline: Pipeline) -> Iterator[Limit]:
    names: list[StageName] = sorted(stage.name for stage in pipeline.stages)
    for name in names:
        yield Limit(kind=LimitKind.BOUNDS, name=name)
