"""The search: give the next dollar to the stage where it buys most latency, then see what can be taken back.

Steepest descent on the cost/latency frontiers with completion, a drop pass and exchanges between pairs of stages. It
is the engine and the explanation; `optimizer.merge` proves how good it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from optimizer.composition import Latency, Shape, end_to_end
from optimizer.model import Composition
from optimizer.options import StageOptions

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]
Choice = tuple[int, ...]
"""One row of each stage's table."""

TOLERANCE = 1e-9
_EXCHANGE_LIMIT = 5_000_000  # pairs of rows: more take gigabytes and minutes
_EXCHANGE_BLOCK = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pipeline to serve at least cost: its tables, the latency allowed and the room in the pools.

    `prices` are what each row costs the search (USD per hour); `room` is in the units of the pools.
    """

    tables: tuple[StageOptions, ...]
    prices: tuple[Array, ...]
    shape: Shape
    composition: Composition
    percentile: float
    latency_s: float
    room: Counts

    def within(self, room: Counts) -> "Case":
        """Return the same question with another room."""
        return replace(self, room=room)

    def priced(self, prices: Sequence[Array]) -> "Case":
        """Return the same question at other prices."""
        return replace(self, prices=tuple(prices))

    def price(self, choice: Choice) -> float:
        """Return what `choice` costs the search."""
        return float(sum(prices[row] for prices, row in zip(self.prices, choice, strict=True)))

    def cost_per_hour(self, choice: Choice) -> float:
        """Return what the replicas of `choice` cost, in USD per hour."""
        return float(sum(table.cost_per_hour[row] for table, row in zip(self.tables, choice, strict=True)))

    def use(self, choice: Choice) -> Counts:
        """Return the units of each pool that `choice` takes."""
        return np.asarray(sum(table.use[row] for table, row in zip(self.tables, choice, strict=True)), dtype=np.int64)

    def fits(self, choice: Choice) -> bool:
        """Return whether `choice` fits the room."""
        return bool(np.all(self.use(choice) <= self.room))

    def latency(self, choice: Choice) -> float:
        """Return the latency of the pipeline under `choice`, at its percentile, in seconds."""
        return float(self._latency([np.array(row) for row in choice]))

    def latencies(self, choice: Choice, stage: int) -> Array:
        """Return the latency for every row of `stage`, the other stages as in `choice`."""
        rows = [np.array([row]) for row in choice]
        rows[stage] = np.arange(len(self.tables[stage]))
        return self._latency(rows)

    def exchanged(self, choice: Choice, changed: tuple[int, int], rows: tuple[Counts, Counts]) -> Array:
        """Return the latencies with two stages `changed` to the pairs of `rows`."""
        every = [np.array([row]) for row in choice]
        for stage, new in zip(changed, rows, strict=True):
            every[stage] = new
        return self._latency(every)

    def fitting(self, choice: Choice, stage: int) -> Mask:
        """Return which rows of `stage` fit the room, the other stages as in `choice`."""
        others = self.use(choice) - self.tables[stage].use[choice[stage]]
        return np.asarray(np.all(others + self.tables[stage].use <= self.room, axis=1))

    def _latency(self, rows: Sequence[Counts]) -> Array:
        parts = [
            Latency(mean_s=table.mean_s[row], percentile_s=table.percentile_s[row])
            for table, row in zip(self.tables, rows, strict=True)
        ]
        return end_to_end(self.shape, parts, composition=self.composition, percentile=self.percentile).percentile_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What the search visited, from the cheapest allocation that carries the load to its answer."""

    visited: tuple[Choice, ...]

    @property
    def answer(self) -> Choice:
        """Return the choice the search ended with."""
        return self.visited[-1]

    def to(self, choice: Choice) -> "Walk":
        """Return the walk extended to `choice`, one stage at a time."""
        visited = list(self.visited)
        for stage, row in enumerate(choice):
            if visited[-1][stage] != row:
                visited.append(_with(visited[-1], stage, row))
        return Walk(visited=tuple(visited))

    def direct(self, case: Case) -> "Walk":
        """Return the walk without its detours: moves that a later move of the same stage made cheaper again."""
        moves = [
            (stage, new[stage])
            for old, new in pairwise(self.visited)
            for stage in range(len(new))
            if old[stage] != new[stage]
        ]
        visited = [self.visited[0]]
        for position, (stage, row) in enumerate(moves):
            later = [next_row for other, next_row in moves[position + 1 :] if other == stage]
            detour = any(case.prices[stage][after] < case.prices[stage][row] + TOLERANCE for after in later)
            if not detour and visited[-1][stage] != row:
                visited.append(_with(visited[-1], stage, row))
        return Walk(visited=tuple(visited))


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What changing one stage at a time leads to, from one choice: per row of each stage, prices, latency, room."""

    stages: tuple[int, ...]
    added: tuple[Array, ...]
    latencies: tuple[Array, ...]
    fits: tuple[Mask, ...]


def search(case: Case, at_most: float = np.inf) -> Walk | None:
    """Return the way to a cheap choice that meets the latency within the room, or None when none was found.

    It does not look beyond the price `at_most`.
    """
    start = cheapest(case)
    if start is None or (case.shape.serial and _best_latency(case) > case.latency_s):
        return None
    walk = _descend(case, Walk(visited=(start,)), at_most)
    return None if walk is None else _tighten(case, walk)


def cheapest(case: Case) -> Choice | None:
    """Return the cheapest choice that carries the load within the room, whatever its latency.

    Where the cheapest rows together need more than there is, the change that frees most for its price comes first.
    """
    if any(len(table) == 0 for table in case.tables):
        return None
    choice: Choice = tuple(int(np.argmin(prices)) for prices in case.prices)
    while not case.fits(choice):
        used = case.use(choice)
        excess = float(np.maximum(used - case.room, 0).sum())
        best: tuple[float, int, int] | None = None
        for stage in _by_name(case):
            others = used - case.tables[stage].use[choice[stage]]
            freed = excess - np.maximum(others + case.tables[stage].use - case.room, 0).sum(axis=1)
            added = case.prices[stage] - case.prices[stage][choice[stage]]
            value = np.where(freed > 0, np.maximum(added, 0.0) / np.where(freed > 0, freed, 1.0), np.inf)
            row = int(np.argmin(value))
            if np.isfinite(value[row]) and (best is None or value[row] < best[0]):
                best = (float(value[row]), stage, row)
        if best is None:
            return None
        choice = _with(choice, best[1], best[2])
    return choice


def steepest(case: Case, choice: Choice) -> Choice | None:
    """Return the change of one stage that buys most latency for its price, or None when nothing does."""
    return _steepest(_view(case, choice), choice, case.latency(choice))


def _view(case: Case, choice: Choice) -> _View:
    stages = _by_name(case)
    return _View(
        stages=stages,
        added=tuple(case.prices[stage] - case.prices[stage][choice[stage]] for stage in stages),
        latencies=tuple(case.latencies(choice, stage) for stage in stages),
        fits=tuple(case.fitting(choice, stage) for stage in stages),
    )


def _steepest(view: _View, choice: Choice, now: float) -> Choice | None:
    best: tuple[float, float, Choice] | None = None
    for stage, added, latencies, fits in zip(view.stages, view.added, view.latencies, view.fits, strict=True):
        saved = now - latencies
        useful = (saved > TOLERANCE) & fits
        per_dollar = np.where(useful, saved / np.maximum(added, TOLERANCE), 0.0)
        row = int(np.argmax(per_dollar))
        gain = float(per_dollar[row]), float(saved[row])
        if useful[row] and (best is None or gain > best[:2]):
            best = *gain, _with(choice, stage, row)
    return None if best is None else best[2]


def _completion(view: _View, choice: Choice, latency_s: float) -> Choice | None:
    """Return the cheapest change of one stage that meets the latency."""
    best: tuple[float, Choice] | None = None
    for stage, added, latencies, fits in zip(view.stages, view.added, view.latencies, view.fits, strict=True):
        enough = (latencies <= latency_s) & fits
        if enough.any():
            row = int(np.argmin(np.where(enough, added, np.inf)))
            if best is None or added[row] < best[0] - TOLERANCE:
                best = float(added[row]), _with(choice, stage, row)
    return None if best is None else best[1]


def _descend(case: Case, walk: Walk, at_most: float) -> Walk | None:
    """Go down the steepest edges; at every point note the cheapest single change that already suffices."""
    best: Walk | None = None
    while case.price(walk.answer) <= at_most + TOLERANCE:
        now = case.latency(walk.answer)
        if now <= case.latency_s:
            return walk
        view = _view(case, walk.answer)
        last = _completion(view, walk.answer, case.latency_s)
        if last is not None and case.price(last) < at_most - TOLERANCE:
            best, at_most = Walk(visited=(*walk.visited, last)), case.price(last)
        step = _steepest(view, walk.answer, now)
        if step is None:
            return best
        walk = Walk(visited=(*walk.visited, step))
    return best


def _tighten(case: Case, walk: Walk) -> Walk:
    """Take back what is not needed, one stage and then two at a time, until nothing more is saved."""
    while True:
        better = _completion(_view(case, walk.answer), walk.answer, case.latency_s)
        if better is None or case.price(better) >= case.price(walk.answer) - TOLERANCE:
            better = _exchange(case, walk.answer)
        if better is None:
            return walk
        walk = walk.to(better)


def _exchange(case: Case, choice: Choice) -> Choice | None:
    """Return the cheapest change of two stages that saves something, or None; too many are not looked at."""
    sizes = [len(table) for table in case.tables]
    if sum(one * two for one, two in combinations(sizes, 2)) > _EXCHANGE_LIMIT:
        return None
    best, best_price = None, case.price(choice) - TOLERANCE
    for one, two in combinations(_by_name(case), 2):
        rest = case.price(choice) - case.prices[one][choice[one]] - case.prices[two][choice[two]]
        prices = rest + case.prices[one][:, None] + case.prices[two][None, :]
        first, second = np.nonzero(prices < best_price)
        order = np.argsort(prices[first, second], kind="stable")
        first, second = first[order], second[order]
        tables = case.tables[one].use, case.tables[two].use
        others = case.use(choice) - tables[0][choice[one]] - tables[1][choice[two]]
        for block in range(0, len(first), _EXCHANGE_BLOCK):
            rows = first[block : block + _EXCHANGE_BLOCK], second[block : block + _EXCHANGE_BLOCK]
            fits = np.all(others + tables[0][rows[0]] + tables[1][rows[1]] <= case.room, axis=1)
            enough = np.nonzero(fits & (case.exchanged(choice, (one, two), rows) <= case.latency_s))[0]
            if len(enough):
                pair = int(rows[0][enough[0]]), int(rows[1][enough[0]])
                best = _with(_with(choice, one, pair[0]), two, pair[1])
                best_price = case.price(best) - TOLERANCE
                break
    return best


def _with(choice: Choice, stage: int, row: int) -> Choice:
    return (*choice[:stage], row, *choice[stage + 1 :])


def _best_latency(case: Case) -> float:
    """Return a latency that no choice undercuts."""
    parts = [
        Latency(mean_s=table.mean_s.min(), percentile_s=table.mean_s.min() + (table.percentile_s - table.mean_s).min())
        if case.composition is Composition.RSS
        else Latency(mean_s=table.mean_s.min(), percentile_s=table.percentile_s.min())
        for table in case.tables
    ]
    return float(end_to_end(case.shape, parts, composition=case.composition, percentile=case.percentile).percentile_s)


def _by_name(case: Case) -> tuple[int, ...]:
    """Return the stages in an order that does not depend on the one they were given in."""
    return tuple(sorted(range(len(case.tables)), key=lambda stage: case.tables[stage].stage.name))
