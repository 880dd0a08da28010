"""When not everything can be served: who gets what, and which constraint is to blame.

Minimums first; then by priority, and within one priority as many pipelines whole as can be, at what is left the shares
of the others, the smallest first. Every step is bounded by the number of questions asked of the search.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil, floor, frexp, inf, isfinite, log

import numpy as np
from numpy.typing import NDArray

from optimizer.fleet.fleet import Answer, Fleet, by_priority, own_budget
from optimizer.latency.stage import capacity_rps
from optimizer.model import Pipeline, PipelineKey, StageName
from optimizer.overload.knapsack import Columns, floor_of, select
from optimizer.overload.what_if import SLA, WhatIf
from optimizer.plan import Limit, LimitKind
from optimizer.search.greedy import cheapest
from optimizer.search.subproblem import TOLERANCE, Subproblem, Walk
from optimizer.search.tables import Mixing, StageOptions, without_replicas

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

RESOLUTION = 256
"""Shares are raised in steps of 1 / RESOLUTION or finer; those below it, of the powers of that."""

BUDGET = Limit(kind=LimitKind.BUDGET)

_QUESTIONS = 100
"""Questions per pipeline while shares are raised, half of them for raising with others; then it stays where it is."""

FINE = 16
"""One short pipeline with few placements gets its share in steps of 1 / (RESOLUTION · FINE), or coarser where that is
less than a replica of many."""

_FRACTION = 0.1
"""Of the work of a replica: steps need be no finer."""

_FEW_PLACEMENTS = 12
"""Of all its stages together; with more, the last steps would take longer than all the others.

A search over fewer options still saves nothing here: what a table costs is hardly its rows."""

_NEAR = 16
"""Levels between which what is known to be reached and what is not are halved: an estimate is as dear as a look."""

_WHOLE = 1e-6
"""A share is so near to a multiple of a step that it is that."""

_SCOUTS = 4
"""How often a search over few options begins anew from what all of them said."""

_PASSES = 3
"""How often every share is raised by itself, in what the others no longer need."""

_ROUNDS = 4
"""How often plans at other prices of pools and money are looked for, to choose who is served whole."""

_SMALL = 5
"""Groups up to this size: every set of one more pipeline is tried together."""


_MIDDLING = 16
"""In groups up to this size each that is left is tried together with all that are served whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a pipeline gets: the share of its demand and how it is served; no answer: not even its minimums."""

    served: float
    answer: Answer | None
    limit: Limit | None


def share_out(fleet: Fleet, capacity: Counts, budget_per_hour: float) -> Mapping[PipelineKey, Share]:
    """Return who gets what of `capacity` (units of the supply) and money, by priority, and what limits those cut short.

    Minimums come before anyone's SLA, those of the most important pipelines first. Within one priority as many
    pipelines as can be are served whole; the others get equal shares first, and what one cannot use goes to the rest.
    """
    pipelines = by_priority(fleet.problem.pipelines)
    books = _Books(fleet=fleet, capacity=capacity, budget_per_hour=budget_per_hour)
    shares: dict[PipelineKey, Share] = {}
    for pipeline in pipelines:
        minimum, limit = _minimum(books, pipeline)
        if minimum is None:
            shares[pipeline.key] = Share(served=0.0, answer=None, limit=limit)
        else:
            books.answers[pipeline.key] = minimum
            books.served[pipeline.key] = 0.0
    for priority in sorted({p.priority for p in pipelines}, reverse=True):
        group = [p for p in pipelines if p.priority == priority and p.key in books.answers]
        _serve_whole(books, group)
        _level(books, [p for p in group if books.served[p.key] < 1])
    for pipeline in pipelines:
        if pipeline.key in books.answers:
            if books.served[pipeline.key] == 0:
                _with_all_options(books, pipeline)
            served, answer = books.served[pipeline.key], books.answers[pipeline.key]
            limit = None
            if served < 1:
                step = min(_step(pipeline), _reach(fleet, pipeline))
                # On the grid, where the tables are known; less than half a step more is no help worth naming.
                more = (floor(served / step + 0.5) + 1) * step
                left, money = books.left(pipeline.key)
                limit = blame(books.question(pipeline), more, left, money, mixing=answer.mixing)
            shares[pipeline.key] = Share(served=served, answer=answer, limit=limit)
    return shares


def blame(
    question: WhatIf, share: float, capacity: Counts, budget_per_hour: float, *, mixing: Mixing = Mixing.OVERFLOW
) -> Limit:
    """Return the constraint that keeps `share` of the demand from being served within `capacity` and `budget_per_hour`.

    One whose lifting alone would help, if there is: of the budgets, the pools by name, the bounds of the stages by
    name and the SLA the first. Otherwise the first, in the same order, of a smallest set that helps together: all
    but the SLA are lifted and put back one by one, and the first that cannot be put back is it. The SLA where lifting
    all the others does not help.
    """
    pipeline, share = question.pipeline, min(share, 1.0)
    money = max(0.0, min(budget_per_hour, own_budget(pipeline)))

    def servable(lifted: Collection[Limit]) -> bool:
        at_most = inf if BUDGET in lifted else money
        return question.answer(share, capacity, at_most, lifted=lifted, mixing=mixing, exact=False) is not None

    def first_that_helps(limits: Sequence[Limit]) -> Limit | None:
        """Return the first of `limits` that helps alone: none does where all of them together do not."""
        if not limits or not servable(limits):
            return None
        if len(limits) == 1:
            return limits[0]
        half = len(limits) // 2
        return first_that_helps(limits[:half]) or first_that_helps(limits[half:])

    budget = [BUDGET] if isfinite(money) else []
    short = question.short_alone(share, capacity, money)
    # A stage that is short even by itself needs its own bounds lifted: those of another are no help.
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


@dataclass(slots=True, kw_only=True)
class _Books:
    """Who has what so far. `answers` together never take more than `capacity` and `budget_per_hour`."""

    fleet: Fleet
    capacity: Counts
    budget_per_hour: float
    answers: dict[PipelineKey, Answer] = field(default_factory=dict)
    served: dict[PipelineKey, float] = field(default_factory=dict)
    questions: dict[PipelineKey, WhatIf] = field(default_factory=dict)

    def question(self, pipeline: Pipeline) -> WhatIf:
        if pipeline.key not in self.questions:
            self.questions[pipeline.key] = WhatIf(self.fleet, pipeline)
        return self.questions[pipeline.key]

    def left(self, *keys: PipelineKey) -> tuple[Counts, float]:
        """Return the room and money that all but `keys` leave."""
        others = [answer for key, answer in self.answers.items() if key not in keys]
        use = sum((answer.use for answer in others), np.zeros_like(self.capacity))
        return self.capacity - use, self.budget_per_hour - sum(answer.cost_per_hour for answer in others)

    def ask(
        self,
        pipeline: Pipeline,
        share: float,
        *,
        prices: tuple[Array, float] | None = None,
        mixing: Mixing = Mixing.OVERFLOW,
        exact: bool = False,
    ) -> Answer | None:
        """Return how `share` of the pipeline is served in what the others leave, or None.

        `prices` are those of a unit of each pool, and of money.
        """
        question = self.question(pipeline)
        if question.asked > _QUESTIONS:
            return None
        capacity, money = self.left(pipeline.key)
        pool_prices, money_price = prices or (None, 1.0)
        return question.answer(
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
        """Serve the pipeline's share at least cost in what the others leave, where that saves something."""
        if self.answers[pipeline.key].mixing is Mixing.ANY or self.served[pipeline.key] == 0:
            return
        capacity, money = self.left(pipeline.key)
        better = self.question(pipeline).answer(
            self.served[pipeline.key], capacity, min(money, own_budget(pipeline)), mixing=Mixing.OVERFLOW
        )
        if better is not None:
            self.answers[pipeline.key] = better


def _serve_whole(books: _Books, group: Sequence[Pipeline]) -> None:
    """Serve as many of `group` whole as can be, in what the minimums and those more important leave."""
    if len(group) == 1:
        answer = books.ask(group[0], 1.0, mixing=Mixing.ANY, exact=True)
        if answer is not None:
            books.keep(group[0], 1.0, answer)
        return
    selection = _selection(books, group)
    if len(selection) < len(group):
        cheap = {p.key: books.answers[p.key] for p in group}
        books.answers.update(_frugal(books, group))
        moved = any(books.answers[key] is not answer for key, answer in cheap.items())
        other = _selection(books, group) if moved else {}
        if len(other) > len(selection):
            selection = other
        else:
            books.answers.update(cheap)
    minimums = {p.key: books.answers[p.key] for p in group}
    for number, answer in selection.items():
        books.keep(group[number], 1.0, answer)
    for _ in range(2):
        for number in selection:
            books.tighten(group[number])
        before = len(selection)
        for number, pipeline in enumerate(group):
            if number not in selection:
                answer = books.ask(pipeline, 1.0)
                if answer is not None:
                    selection[number] = answer
                    books.keep(pipeline, 1.0, answer)
        if len(selection) == before:
            break
    if len(group) <= _SMALL:
        _one_more(books, group, minimums)
    elif len(group) <= _MIDDLING:
        _each_besides(books, group, minimums)


def _frugal(books: _Books, group: Sequence[Pipeline]) -> Mapping[PipelineKey, Answer]:
    """Return other minimums that leave more of the pools there is not enough of for all; as they fit."""
    wishes = [(p, books.ask(p, 1.0)) for p in group]
    capacity, money = books.left()
    occupied = np.zeros_like(capacity)
    for pipeline, wish in wishes:
        if wish is not None:
            occupied += wish.use - books.answers[pipeline.key].use
    # One for which there is no way beside the minimums of the others may want any of what is gone.
    contended = (occupied > capacity) | ((capacity <= 0) & any(wish is None for _, wish in wishes))
    frugal: dict[PipelineKey, Answer] = {}
    weights = np.where(contended, 1.0 / np.maximum(books.capacity, 1), 0.0)
    for pipeline in group if contended.any() else ():
        now = books.answers[pipeline.key]
        if not now.complete:
            continue
        left, paid = capacity + now.use, min(money + now.cost_per_hour, own_budget(pipeline))
        subproblem = books.question(pipeline).minimum(left)
        choice = cheapest(
            subproblem.priced([table.use @ weights + 1e-9 * table.cost_per_hour for table in subproblem.tables])
        )
        if choice is None or subproblem.cost_per_hour(choice) > paid + TOLERANCE:
            continue
        if subproblem.use(choice) @ weights < now.use @ weights - TOLERANCE:
            frugal[pipeline.key] = Answer(subproblem=subproblem, walk=Walk(visited=(choice,)))
            capacity, money = (
                left - subproblem.use(choice),
                money + now.cost_per_hour - subproblem.cost_per_hour(choice),
            )
    return frugal


def _selection(books: _Books, group: Sequence[Pipeline]) -> dict[int, Answer]:
    """Return who of `group` is served whole and how, by position: plans at several prices, and the most that fit."""
    capacity, money = books.left()
    minimums = [books.answers[p.key] for p in group]
    paid = isfinite(money)

    def need(number: int, answer: Answer) -> Array:
        use = (answer.use - minimums[number].use).astype(float)
        cost = [answer.cost_per_hour - minimums[number].cost_per_hour] if paid else []
        return np.concatenate((use, cost))

    found: list[tuple[int, Answer, Array]] = []
    for number, pipeline in enumerate(group):
        answer = books.ask(pipeline, 1.0, exact=True)
        if answer is not None:
            found.append((number, answer, need(number, answer)))
    available = np.maximum(np.concatenate((capacity.astype(float), [money] if paid else [])), 0.0)
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
        if turn == _ROUNDS or len(best) == len(able) or not pool_prices.any():
            break
        # A price on money however small, so that among equals the cheapest is taken.
        money_price = max(float(selection.prices[-1]) if paid else 0.0, 1e-6 * float(pool_prices.max()))
        fresh, hope = [], float(selection.prices @ available)
        for number in able:
            answer = books.ask(group[number], 1.0, prices=(pool_prices, money_price), exact=True)
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


def _one_more(books: _Books, group: Sequence[Pipeline], minimums: Mapping[PipelineKey, Answer]) -> None:
    """Try every larger set of a small group together, for as long as one is found."""
    count = sum(books.served[p.key] >= 1 for p in group)
    keys = [p.key for p in group]
    for size in range(count + 1, len(group) + 1):
        for chosen in combinations(keys, size):
            answers = _whole_together(books, chosen, {k: minimums[k] for k in keys if k not in chosen}, keys)
            if answers is not None:
                books.answers.update(answers)
                books.served.update({**dict.fromkeys(keys, 0.0), **dict.fromkeys(chosen, 1.0)})
                break
        else:
            return


def _each_besides(books: _Books, group: Sequence[Pipeline], minimums: Mapping[PipelineKey, Answer]) -> None:
    """Try each that is not whole together with all that are: they may all move."""
    keys = [p.key for p in group]
    for key in keys:
        chosen = [k for k in keys if books.served[k] >= 1 or k == key]
        if books.served[key] >= 1:
            continue
        answers = _whole_together(books, chosen, {k: minimums[k] for k in keys if k not in chosen}, keys)
        if answers is not None:
            books.answers.update(answers)
            books.served[key] = 1.0


def _whole_together(
    books: _Books, chosen: Sequence[PipelineKey], others: Mapping[PipelineKey, Answer], keys: Sequence[PipelineKey]
) -> Mapping[PipelineKey, Answer] | None:
    """Return how `chosen` are served whole beside the minimums of `others`, which may move to other pools for it."""
    capacity, money = books.left(*keys)
    left = capacity - sum((answer.use for answer in others.values()), np.zeros_like(capacity))
    rest = money - sum(answer.cost_per_hour for answer in others.values())
    if np.all(left >= 0):
        answers = books.fleet.together(dict.fromkeys(chosen, 1.0), left, rest)
        if answers is not None:
            return {**others, **answers}
    if not all(answer.complete for answer in others.values()):
        return None
    return books.fleet.together({**dict.fromkeys(others, 0.0), **dict.fromkeys(chosen, 1.0)}, capacity, money)


def _level(books: _Books, rest: Sequence[Pipeline]) -> None:
    """Raise the shares of `rest` together as far as they go, then those of the ones that can still rise."""
    active, level = list(rest), 0
    while len(active) > 1:
        level, raised = _raise_together(books, active, level)
        rising = (
            [p for p in active if books.ask(p, (level + 1) / RESOLUTION) is not None] if raised or not level else []
        )
        if len(rising) == len(active) or not rising:
            break  # each could rise, but not all: one after the other
        active = rising
    for _ in range(_PASSES):
        before = dict(books.served)
        for pipeline in rest:
            _raise(books, pipeline, step := _step(pipeline), below=ceil(1 / step))
        for pipeline in rest:
            books.tighten(pipeline)  # what that saves may raise another
        if books.served == before:
            break
    if len(rest) == 1 and _few_placements(rest[0]):
        served = books.served[rest[0].key]
        step = _step(rest[0])
        work = step / (served or 1.0) * books.answers[rest[0].key].replicas
        fine = next((parts for parts in (1, 2, 4, 8) if work <= parts * _FRACTION), FINE)
        if 0 < served < 1 and fine > 1:
            _raise(books, rest[0], step / fine, below=fine * (floor(served / step + _WHOLE) + 1), mix=False)
    for pipeline in rest:
        if books.served[pipeline.key] == 0:
            _raise_a_little(books, pipeline)
            books.tighten(pipeline)


def _step(pipeline: Pipeline) -> float:
    """Return the step of a pipeline's share: down to half of 1 / RESOLUTION, a power of 2 items per second.

    Loads are then asked about that were asked about before, when the demand was another.
    """
    mantissa, _ = frexp(pipeline.demand.entry_rate_rps)
    return 0.5 / (mantissa or 0.5) / RESOLUTION


def _few_placements(pipeline: Pipeline) -> bool:
    return sum(len(stage.placements) for stage in pipeline.stages) <= _FEW_PLACEMENTS


def _raise_together(books: _Books, active: Sequence[Pipeline], low: int) -> tuple[int, bool]:
    """Raise all of `active` from `low` to the highest level they can have together; return it, and whether it rose."""
    found: dict[PipelineKey, Answer] = {}
    capacity, money = books.left(*(p.key for p in active))

    def reaches(level: int) -> bool:
        answers = _together_at(books, active, level / RESOLUTION, capacity, money)
        if answers is not None:
            found.clear()
            found.update(answers)
        return answers is not None

    def strain(level: int) -> float:
        return _strain(books, active, level / RESOLUTION, capacity, money)

    level = _highest(low, RESOLUTION, reaches, strain)
    for pipeline in active if found else ():
        books.keep(pipeline, level / RESOLUTION, found[pipeline.key])
    return level, bool(found)


def _strain(books: _Books, active: Sequence[Pipeline], share: float, capacity: Counts, money: float) -> float:
    """Return about how many times what there is it would take to serve `share` of all of `active`."""
    total = 0.0
    for pipeline in active:
        own = books.question(pipeline).strain(share, capacity, min(money, own_budget(pipeline)))
        total += own
        if not isfinite(total):
            return inf
    return total


def _together_at(
    books: _Books, active: Sequence[Pipeline], share: float, capacity: Counts, money: float
) -> Mapping[PipelineKey, Answer] | None:
    """Return how all of `active` get `share`: what each would take alone, or else a way around each other."""
    answers: dict[PipelineKey, Answer] = {}
    for pipeline in active:
        question = books.question(pipeline)
        answer = None
        if question.asked <= _QUESTIONS // 2:
            at_most = min(money, own_budget(pipeline))
            answer = question.answer(share, capacity, at_most, mixing=Mixing.OVERFLOW, exact=False)
        if answer is None:
            return None
        answers[pipeline.key] = answer
    use = np.sum([answer.use for answer in answers.values()], axis=0)
    cost = sum(answer.cost_per_hour for answer in answers.values())
    if np.all(use <= capacity) and cost <= money + TOLERANCE:
        return answers
    if len(active) > _SMALL:
        return _in_turn(books, active, share, capacity, money, answers)
    return books.fleet.together({p.key: share for p in active}, capacity, money)


def _in_turn(
    books: _Books,
    active: Sequence[Pipeline],
    share: float,
    capacity: Counts,
    money: float,
    wishes: Mapping[PipelineKey, Answer],
) -> Mapping[PipelineKey, Answer] | None:
    """Serve one after the other, those with the fewest ways around the contended pools first, or return None.

    Each leaves the later ones what their stages cannot do without.
    """
    least = {key: _least(answer.subproblem) for key, answer in wishes.items()}
    later = np.sum(list(least.values()), axis=0)
    contended = np.sum([answer.use for answer in wishes.values()], axis=0) > capacity
    if np.any(later > capacity):
        return None
    order = sorted(active, key=lambda p: (-int(least[p.key][contended].sum()), p.key))
    answers: dict[PipelineKey, Answer] = {}
    left = capacity
    for pipeline in order:
        later = later - least[pipeline.key]
        answer = wishes.get(pipeline.key)
        if answer is None or np.any(answer.use > left - later) or answer.cost_per_hour > money + TOLERANCE:
            answer = books.question(pipeline).answer(
                share, left - later, min(money, own_budget(pipeline)), mixing=Mixing.OVERFLOW, exact=False
            )
        if answer is None:
            return None
        answers[pipeline.key] = answer
        left, money = left - answer.use, money - answer.cost_per_hour
    return answers


def _raise(books: _Books, pipeline: Pipeline, unit: float, *, below: int, mix: bool = True) -> None:
    """Raise the share of one pipeline as far as it goes in what the others leave, in steps of `unit`.

    `below` is a level known not to be reached, unless by a mix of pools that overflow does not make. No share is
    more than 1.
    """
    found: list[Answer] = []
    question = books.question(pipeline)
    capacity, money = books.left(pipeline.key)
    money = min(money, own_budget(pipeline))

    def share(level: int) -> float:
        return min(1.0, level * unit)

    def reaches(level: int, mixing: Mixing = Mixing.OVERFLOW) -> bool:
        answer = books.ask(pipeline, share(level), mixing=mixing)
        found.extend([] if answer is None else [answer])
        return answer is not None

    def strain(level: int) -> float:
        return question.strain(share(level), capacity, money)

    low, high = floor(books.served[pipeline.key] / unit + _WHOLE), below
    guess = floor(books.fleet.shares_before.get(pipeline.key, 0.0) / unit + _WHOLE)
    if low < guess < high:
        low, high = _near(guess, low, high, reaches)
    elif low and not reaches(low + 1):
        high = low + 1
    elif low:
        low += 1
    if high - low > 1 and below >= RESOLUTION:
        high = _alone(question, low, high, share, capacity, money)
        if not _few_placements(pipeline):
            low, high = _scouted(question, low, high, share, capacity, money, reaches, found)
    level = _highest(low, high, reaches, strain)
    if mix and reaches(level + 1, Mixing.ANY):
        level, step = level + 1, 1
        while level + step <= below and reaches(level + step, Mixing.ANY):
            level, step = level + step, 2 * step
        high = min(level + step, below + 1)
        level = _highest(level, high, lambda more: reaches(more, Mixing.ANY))
    if found:
        books.keep(pipeline, share(level), found[-1])


def _near(guess: int, low: int, high: int, reaches: Callable[[int], bool]) -> tuple[int, int]:
    """Return a level that is reached, or `low`, and one that is not, or `high`: looking from `guess` ever farther."""
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


def _scouted(
    question: WhatIf,
    low: int,
    high: int,
    share: Callable[[int], float],
    capacity: Counts,
    money: float,
    reaches: Callable[[int], bool],
    found: Sequence[Answer],
) -> tuple[int, int]:
    """Return a level that is reached and one that is not, nearer than `low` and `high`: a few options tell where.

    What they say is asked of all options before it counts.
    """
    whole = question.guide(share(high), capacity, money) or question.guide(share(high - 1), capacity, money)
    if whole is None or high - low <= 1:
        return low, high
    if low == 0:
        if not reaches(1):
            return 0, 1
        low = 1
    for _ in range(_SCOUTS):
        if high - low <= 1:
            break
        guides = [whole, *found[-1:], *filter(None, [question.guide(share(low), capacity, money)])]
        scout = question.scout(guides)

        def seen(level: int, scout: WhatIf = scout) -> bool:
            answer = scout.answer(share(level), capacity, money, mixing=Mixing.OVERFLOW, exact=False)
            return answer is not None

        def occupied(level: int, scout: WhatIf = scout) -> float:
            return scout.strain(share(level), capacity, money)

        level = _highest(low, high, seen, occupied)
        if level > low and not reaches(level):
            high = level
            continue
        low = level
        if low + 1 < high:
            if reaches(low + 1):
                low += 1
            else:
                high = low + 1
    return low, high


def _alone(question: WhatIf, low: int, high: int, share: Callable[[int], float], capacity: Counts, money: float) -> int:
    """Return the level from `low` + 1 to `high` that a stage by itself does not reach, `high` if they all do below.

    One table of one stage for each look instead of those of all.
    """
    for index in question.short_alone(share(high), capacity, money):
        reached = low
        while high - reached > 1:
            middle = high - 1 if reached == low and high < RESOLUTION else (reached + high) // 2
            if question.alone(index, share(middle), capacity, money):
                reached = middle
            else:
                high = middle
    return high


def _highest(low: int, high: int, reaches: Callable[[int], bool], strain: Callable[[int], float] | None = None) -> int:
    """Return the highest level from `low` to below `high` that is reached; `low` itself is not asked for.

    `strain` tells about how many times what there is a level takes: it looks where the line through its latest two
    values is 1, unless that is known already, every third time in the middle, and there too when they are near. The
    last level that was reached is the answer.
    """
    looks: list[tuple[int, float]] = []

    def look(level: int) -> None:
        occupied = inf if strain is None or high - low <= _NEAR else strain(level)
        if isfinite(occupied):
            looks.append((level, occupied))

    look(high)
    turn = 0
    while high - low > 1:
        turn += 1
        level = (low + high) // 2
        if turn == 1 and strain is not None and high - low > _NEAR and not looks:
            # Not for the room or the money: a stage that is short alone says how far, otherwise perhaps for any load.
            level = high - 1 if high < RESOLUTION else low + 1
        elif turn % 3 and looks and high - low > _NEAR:
            at, occupied = looks[-1]
            before, took = looks[-2] if len(looks) > 1 else (0, 0.0)
            if (occupied - took) * (at - before) > 0:
                guess = floor(at + (1 - occupied) * (at - before) / (occupied - took))
                level = guess if low < guess < high else level
        if reaches(level):
            low = level
        else:
            high = level
        look(level)
    return low


def _raise_a_little(books: _Books, pipeline: Pipeline) -> None:
    """Raise the share of a pipeline whose demand is so many times its capacity that it is lost in the resolution."""
    power = max(2, 1 + floor(-log(_reach(books.fleet, pipeline), RESOLUTION)))
    if books.ask(pipeline, float(RESOLUTION) ** -(power + 1)) is None:
        return  # not for the load
    for unit in (float(RESOLUTION) ** -power, float(RESOLUTION) ** -(power + 1)):
        if books.served[pipeline.key] == 0:
            _raise(books, pipeline, unit, below=RESOLUTION)


def _reach(fleet: Fleet, pipeline: Pipeline) -> float:
    """Return a share above which the replicas there may be cannot serve; of one item per second where there are none.

    It keeps questions about an absurd demand as small as what can be done about it.
    """
    demand, share = pipeline.demand, 1.0
    for stage in pipeline.stages:
        most = [(min(p.max_replicas, fleet.supply.most(p)), p) for p in stage.placements]
        rate = demand.entry_rate_rps * pipeline.visit_ratios[stage.name]
        carried = sum(count * capacity_rps(p, p.batch_sizes[-1]) for count, p in most)
        share = min(share, (carried or 1.0) / rate if rate > 0 else 1.0)
        slots = sum(inf if p.session_slots is None else count * p.session_slots for count, p in most if count)
        share = min(share, (slots or 1.0) / demand.sessions if demand.sessions else 1.0)
    return share


def _minimum(books: _Books, pipeline: Pipeline) -> tuple[Answer | None, Limit | None]:
    """Return the cheapest way to keep stages at their minimum, all that have room; or nothing, and what forbids it."""
    capacity, money = books.left()
    subproblem = books.question(pipeline).minimum(capacity)
    choice = cheapest(subproblem)
    if choice is None:
        subproblem = _those_with_room(subproblem)
        choice = cheapest(subproblem)
    assert choice is not None, "stages that do not run always have room"
    if subproblem.cost_per_hour(choice) > min(own_budget(pipeline), money) + TOLERANCE:
        return None, BUDGET
    if not subproblem.use(choice).any():
        return None, blame(books.question(pipeline), 0.0, capacity, money)
    return Answer(subproblem=subproblem, walk=Walk(visited=(choice,))), None


def _with_all_options(books: _Books, pipeline: Pipeline) -> None:
    """Look at the minimums of a pipeline again, over all that its stages may run: what else it could do is told too."""
    answer = books.answers[pipeline.key]
    if not answer.complete:
        return
    capacity, money = books.left(pipeline.key)
    whole = books.fleet.subproblem(pipeline, 0.0).within(capacity)
    subproblem = whole.priced([table.cost_per_hour for table in whole.tables])
    choice = cheapest(subproblem)
    if choice is not None and subproblem.cost_per_hour(choice) <= min(answer.cost_per_hour, money) + TOLERANCE:
        books.answers[pipeline.key] = Answer(subproblem=subproblem, walk=Walk(visited=(choice,)))


def _those_with_room(subproblem: Subproblem) -> Subproblem:
    """Return the case with as many stages as find room, those nearest to the entry first; the others run nothing."""
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


def _least(subproblem: Subproblem) -> Counts:
    """Return the units of each pool that the stages cannot do without."""
    return np.asarray(np.sum([table.use.min(axis=0) for table in subproblem.tables], axis=0), dtype=np.int64)


def _pool_limits(pipeline: Pipeline) -> Iterator[Limit]:
    for name in sorted({p.pool for stage in pipeline.stages for p in stage.placements}):
        yield Limit(kind=LimitKind.POOL, name=name)


def _bound_limits(pipeline: Pipeline) -> Iterator[Limit]:
    names: list[StageName] = sorted(stage.name for stage in pipeline.stages)
    for name in names:
        yield Limit(kind=LimitKind.BOUNDS, name=name)
