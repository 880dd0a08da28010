"""The search: give the next dollar to the stage where it buys most latency, then see what can be taken back.

Steepest descent on the cost/latency frontiers with completion, a drop pass and exchanges between pairs of stages. It
is the engine and the explanation; `optimizer.merge` proves how good it is.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from optimizer.case import TOLERANCE, Case, Choice, Walk, with_row
from optimizer.composition import Latency, end_to_end
from optimizer.model import Composition

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

_EXCHANGE_LIMIT = 5_000_000  # pairs of rows: more take gigabytes and minutes
_EXCHANGE_BLOCK = 512


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
        choice = with_row(choice, best[1], best[2])
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
            best = *gain, with_row(choice, stage, row)
    return None if best is None else best[2]


def _completion(view: _View, choice: Choice, latency_s: float) -> Choice | None:
    """Return the cheapest change of one stage that meets the latency."""
    best: tuple[float, Choice] | None = None
    for stage, added, latencies, fits in zip(view.stages, view.added, view.latencies, view.fits, strict=True):
        enough = (latencies <= latency_s) & fits
        if enough.any():
            row = int(np.argmin(np.where(enough, added, np.inf)))
            if best is None or added[row] < best[0] - TOLERANCE:
                best = float(added[row]), with_row(choice, stage, row)
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
                best = with_row(with_row(choice, one, pair[0]), two, pair[1])
                best_price = case.price(best) - TOLERANCE
                break
    return best


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
