"""Resolves the bounds of a pipeline into limits. Contradictions are settled here and nowhere else."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf

from controller.core.state.bound import NO_LEAST, NO_MOST, Bound, Limits, Lost, Side
from optimizer.model import PlacementKey, StageName


def resolve(bounds: Iterable[Bound], keys: Sequence[PlacementKey]) -> Limits:
    """Return the limits that follow from `bounds` for the placements `keys`, whatever the order of the bounds.

    The bounds count level by level, the strongest first. Each one narrows what the stronger levels have left, as far as
    these allow: where it asks for replicas outside of that, the nearest count that they allow is taken, and the bound
    has lost to the stronger one. Within a level, a least count that contradicts a most count loses to it.
    """
    of_key: dict[PlacementKey, list[Bound]] = {}
    of_stage: dict[StageName, list[Bound]] = {}
    for bound in bounds:
        if (key := bound.key) is None:
            of_stage.setdefault(bound.stage, []).append(bound)
        else:
            of_key.setdefault(key, []).append(bound)
    for stage, own in of_stage.items():  # a stage without replicas has none on any pool
        for key in keys:
            if key[0] == stage:
                of_key.setdefault(key, []).extend(bound for bound in own if bound.most == 0)
    lower: dict[PlacementKey, Side] = {}
    upper: dict[PlacementKey, Side] = {}
    lost: list[Lost] = []
    for key in keys:
        least, most, losers = _narrowed(of_key.get(key, ()))
        if least.bound is not None:
            lower[key] = least
        if most.bound is not None:
            upper[key] = most
        lost += losers
    floors = dict(_floors(of_stage, keys, upper, lost))
    return Limits(lower=lower, upper=upper, floors=floors, lost=tuple(lost))


def _rank(bound: Bound) -> tuple[object, ...]:
    """Return a key by which equal bounds have one order, so that the order in which they were stated does not count."""
    return (
        *(bound.level, bound.mechanism.name, bound.stage, bound.placement or ""),
        *(inf if side is None else side for side in (bound.least, bound.most, bound.until_s, bound.since_s)),
    )


def _narrowed(bounds: Sequence[Bound]) -> tuple[Side, Side, list[Lost]]:
    """Return both sides of what `bounds`, which are of one placement, allow, and those that are not kept in full."""
    if len(bounds) == 1 and (bounds[0].least or 0) <= (inf if bounds[0].most is None else bounds[0].most):
        return *_sides(bounds[0]), []
    least, most = NO_LEAST, NO_MOST
    lost: list[Lost] = []
    for _, level in groupby(sorted(bounds, key=_rank), key=lambda bound: bound.level):
        own = list(level)
        for bound in own:
            if bound.most is not None and bound.most < most.count:
                if bound.most < least.count and least.bound is not None:
                    lost.append(Lost(bound=bound, to=least.bound))
                most = Side(count=max(bound.most, least.count), bound=bound)
        for bound in own:
            if bound.least is not None and bound.least > least.count:
                if bound.least > most.count and most.bound is not None and most.bound is not bound:
                    lost.append(Lost(bound=bound, to=most.bound))
                least = Side(count=min(bound.least, most.count), bound=bound) if least.count < most.count else least
    return least, most, lost


def _sides(bound: Bound) -> tuple[Side, Side]:
    return (
        NO_LEAST if not bound.least else Side(count=bound.least, bound=bound),
        NO_MOST if bound.most is None else Side(count=bound.most, bound=bound),
    )


def _floors(
    of_stage: Mapping[StageName, Sequence[Bound]],
    keys: Sequence[PlacementKey],
    upper: Mapping[PlacementKey, Side],
    lost: list[Lost],
) -> Iterator[tuple[StageName, Side]]:
    """Yield the least replicas of every stage that has a floor, as far as its placements allow; add those that lose."""
    for stage, bounds in of_stage.items():
        floor = NO_LEAST
        sides = [upper.get(key, NO_MOST) for key in keys if key[0] == stage]
        most = sum(side.count for side in sides)
        for bound in sorted(bounds, key=_rank):
            if bound.least is not None and bound.least > floor.count:
                if bound.least > most:
                    strongest = min((side.bound for side in sides if side.bound is not None), key=_rank)
                    lost.append(Lost(bound=bound, to=strongest))
                floor = Side(count=bound.least, bound=bound)
        if floor.bound is not None:
            yield stage, Side(count=min(floor.count, most), bound=floor.bound)
