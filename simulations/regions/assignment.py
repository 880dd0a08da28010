"""Where streams are served, by the hour: the cheapest assignment of the loads of regions to regions. Pure.

A day with few choices is solved as one program (`program.py`), to within its gap. A day with many is solved in parts,
because 24 hours of whole replicas in several regions are too many choices for one program:

1. With the convex hull of the steps instead of the steps, the day has few choices: one tier for each region. That
   program gives tiers, flows that are allowed, and a bound.
2. Each hour on its own, with a tier of its own and without streams that stay, costs at least as little as in any day:
   the sum of the hours is a bound too, and mostly the higher one. The tiers that the hours use are tried as well, if
   the caller asks for it (`hours_apart`, `used_tiers`).
3. With given tiers, the steps of regions that are paid for the whole day are chosen, and then the flows of each hour,
   within what the hours before and after it allow. An hour that becomes cheaper changes what its neighbours allow, so
   this is repeated while it saves.
4. While the cost is not near the bound, the tiers next to the best ones are tried, a region at a time.

Every change is kept only if it costs less, so the result is never above the flows of the first program.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulations.regions.model import TOLERANCE, Assignment, NotSolved, Pair, Region, Step, Tier, Way
from simulations.regions.program import GAP, Solved, solved

FEW_CHOICES = 400
"""A day with at most so many choices (steps of all tiers, hours and regions) is one program: it takes seconds."""
_HOUR_NODES = 200
"""The solver stops after this many nodes of its search in one hour; the bound does not depend on it."""
_HOUR_GAP = 2e-3
_ROUNDS = 3
_WORTH = 5e-4
"""Hours that others limit are chosen once more while that saves this share of the cost."""
_NEAR = 3e-3
"""No other tiers are tried once the cost is proven to within this share."""
_MOST_TIERS = 8
"""So many choices of tiers are tried at most; each takes about a second of one core for three regions."""


def assign(
    regions: Sequence[Region],
    ways: Mapping[Pair, Way],
    *,
    lost: str | None = None,
    may_leave: bool = False,
    hour_h: float = 1.0,
    gap: float = GAP,
    few: int = FEW_CHOICES,
    tiers: Mapping[str, int] | None = None,
    bound: float = 0.0,
) -> Assignment:
    """Return the cheapest assignment of the day that was found, with a bound.

    Args:
        regions: at least one; all have the same number of hours.
        ways: from users to other regions that may serve them; a pair without an entry is not allowed.
        lost: a region that serves no load and costs nothing. All of its users may be served elsewhere. The day repeats
            without it: streams stay from hour to hour as otherwise.
        may_leave: whether load may have no place. It has none only where no region can carry it.
        hour_h: the length of an hour of the day in hours.
        gap: one program is solved once the cost is proven to within this share.
        few: up to so many choices the day is one program.
        tiers: the tier of each region to try, beside those of the hull (`used_tiers`).
        bound: what is known of the least cost; the search ends near it.

    Raises:
        NotSolved: there is no assignment, such as where the load is above what the steps carry, without `may_leave`.
    """
    asked = _without(regions, lost)
    left = None if may_leave or lost is not None else 0.0
    names = {region.name for region in asked}
    if _choices(asked) <= few:
        found = solved(asked, ways, whole=names, left=left, hour_h=hour_h, gap=gap)
        return _Day(_on_tiers(asked, found.tiers), ways, found, hour_h).assignment(found.bound)
    relaxed = solved(asked, ways, left=left, hour_h=hour_h, gap=gap)
    return _Search(asked, ways, relaxed, hour_h).found(tiers, bound)


def hours_apart(regions: Sequence[Region], ways: Mapping[Pair, Way], hour_h: float = 1.0) -> list[Solved]:
    """Return the cheapest solution of each hour on its own: with tiers of its own, and without streams that stay.

    No day costs less than the sum of the bounds. Regions must be paid by the hour, and all load must have a place.
    """
    every = {region.name for region in regions}
    return [
        solved(
            _in_hour(regions, hour),
            ways,
            whole=every,
            hour_h=hour_h,
            gap=_HOUR_GAP,
            nodes=_HOUR_NODES,
        )
        for hour in range(len(regions[0].loads))
    ]


def used_tiers(regions: Sequence[Region], ways: Mapping[Pair, Way], parts: Sequence[Solved]) -> dict[str, int]:
    """Return the first tier of each region on which the flows of all `parts` of a day are allowed."""
    tiers: dict[str, int] = {}
    for region in regions:
        far_s = max(
            (
                ways[pair].time_s
                for part in parts
                for pair, loads in part.flows.items()
                if pair[1] == region.name and pair[0] != region.name and any(loads)
            ),
            default=0.0,
        )
        if region.tiers:
            tiers[region.name] = next(k for k, tier in enumerate(region.tiers) if tier.way_s >= far_s)
    return tiers


def _in_hour(regions: Sequence[Region], hour: int) -> list[Region]:
    """Return the regions in one hour, without steps for more than the load of all."""
    load = sum(region.loads[hour] for region in regions)
    return [
        replace(
            region,
            loads=(region.loads[hour],),
            tiers=tuple(replace(tier, steps=_up_to(tier.steps, load)) for tier in region.tiers),
        )
        for region in regions
    ]


def _up_to(steps: Sequence[Step], load: float) -> tuple[Step, ...]:
    """Return the steps up to the first that carries `load`."""
    return tuple(step for step, before in zip(steps, (None, *steps), strict=False) if not before or before.load < load)


def _without(regions: Sequence[Region], lost: str | None) -> list[Region]:
    """Return the regions as they are where one is lost: it serves nothing, and all of its users may go elsewhere."""
    return [replace(region, tiers=(), shiftable=1.0) if region.name == lost else region for region in regions]


def _on_tiers(regions: Sequence[Region], tiers: Mapping[str, int]) -> list[Region]:
    """Return the regions with one tier each, those that are chosen."""
    return [
        replace(region, tiers=(region.tiers[tiers[region.name]],)) if region.tiers else region for region in regions
    ]


def _choices(regions: Sequence[Region]) -> int:
    return sum(
        (1 if region.paid_for_day else len(region.loads)) * sum(len(tier.steps) for tier in region.tiers)
        for region in regions
    )


_Tiers = tuple[tuple[str, int], ...]


class _Search:
    """The search for the tiers of a day with many choices."""

    def __init__(self, regions: Sequence[Region], ways: Mapping[Pair, Way], relaxed: Solved, hour_h: float) -> None:
        self.regions, self.ways, self.hour_h = regions, ways, hour_h
        self.relaxed = relaxed
        self.left = sum(map(sum, relaxed.unserved.values()))
        self.for_day = {region.name for region in regions if region.paid_for_day}
        self.tried: dict[_Tiers, Assignment | None] = {}

    def found(self, tiers: Mapping[str, int] | None, bound: float) -> Assignment:
        """Return the best assignment of all tiers that are tried."""
        self._try(self.relaxed.tiers)
        if tiers is not None:
            self._try(tiers)
            while len(self.tried) < _MOST_TIERS and (step := self._next(max(bound, self.relaxed.bound))) is not None:
                self._try(step)
        return self._best()[1]

    def _try(self, tiers: Mapping[str, int]) -> None:
        key = tuple(tiers.items())
        if key not in self.tried:
            self.tried[key] = self._on(tiers)

    def _best(self) -> tuple[_Tiers, Assignment]:
        found = [(key, each) for key, each in self.tried.items() if each is not None]
        return min(found, key=lambda pair: pair[1].cost)

    def _next(self, bound: float) -> Mapping[str, int] | None:
        """Return tiers that are a step from the best ones; None: all were tried, or the best are near the bound."""
        best, assignment = self._best()
        if assignment.cost <= bound * (1 + _NEAR):
            return None
        most = {region.name: len(region.tiers) for region in self.regions}
        for step in (1, -1):
            for name, tier in best:
                other = {**dict(best), name: tier + step}
                if 0 <= tier + step < most[name] and tuple(other.items()) not in self.tried:
                    return other
        return None

    def _on(self, tiers: Mapping[str, int]) -> Assignment | None:
        """Return the assignment of a day on given tiers; None: not all load has a place that had one."""
        regions = _on_tiers(self.regions, tiers)
        left = self.left and self.left + TOLERANCE
        try:
            found = solved(regions, self.ways, whole=self.for_day, left=left, hour_h=self.hour_h)
        except NotSolved:
            return None
        day = _Day(regions, self.ways, found, self.hour_h)
        day.improve()
        return day.assignment(self.relaxed.bound)


def _at_limit(found: Solved, limits: Mapping[Pair, tuple[float, float]]) -> bool:
    """Return whether flows of an hour are as low or as high as streams that stay allow."""
    return any(
        TOLERANCE < low >= load - TOLERANCE or load >= high - TOLERANCE
        for pair, (low, high) in limits.items()
        for load in found.flows[pair]
    )


class _Day:
    """The flows of a day, hour by hour. Regions have one tier each, or none."""

    def __init__(self, regions: Sequence[Region], ways: Mapping[Pair, Way], found: Solved, hour_h: float) -> None:
        self.regions = {region.name: region for region in regions}
        self.tiers = {region.name: tier for region in regions for tier in region.tiers}
        self.hours = range(len(regions[0].loads))
        self.hour_h = hour_h
        self.ways = {pair: ways.get(pair, Way(time_s=0.0)) for pair in found.flows}
        self.flows = {pair: list(loads) for pair, loads in found.flows.items()}
        self.left = {name: list(loads) for name, loads in found.unserved.items()}

    def improve(self) -> None:
        """Choose the flows of each hour anew, and once more while that saves."""
        if all(region.paid_for_day for region in self.regions.values()):
            return
        flows, left, cost = self._kept(), self._kept_left(), self._by_hour()
        again = self._one_after_the_other()
        if again is None or self._by_hour() > cost:
            self.flows, self.left = flows, left
            again = set(self.hours)
        for _ in range(_ROUNDS):
            before = self._by_hour()
            again = {hour for hour in sorted(again) if self._improve(hour)}
            if self._by_hour() > before * (1 - _WORTH):
                return

    def _one_after_the_other(self) -> set[int] | None:
        """Choose the flows of each hour after those of the hour before; return the hours that this limited.

        None: streams that stay leave too little room in an hour.
        """
        limited: set[int] = set()
        for hour in self.hours:
            last = hour == self.hours[-1]
            limits = {
                pair: (low if hour else 0.0, high if last else math.inf)
                for pair in self.ways
                for low, high in (self._limits(pair, hour),)
            }
            found = self._solved(hour, limits)
            if found is None:
                return None
            self._set(hour, found)
            if hour == 0 or _at_limit(found, limits):
                limited.add(hour)
        return limited

    def _improve(self, hour: int) -> bool:
        """Choose the flows of an hour within what its neighbours allow; return whether that limits it."""
        # The flows are within their own limits, whatever the tolerance of the solver.
        limits = {
            pair: (min(low, loads[hour]), max(high, loads[hour]))
            for pair, loads in self.flows.items()
            for low, high in (self._limits(pair, hour),)
        }
        found = self._solved(hour, limits)
        if found is None:
            return False
        flows, left, cost = self._kept(), self._kept_left(), self._cost(hour)
        self._set(hour, found)
        if self._cost(hour) > cost:
            self.flows, self.left = flows, left
        return _at_limit(found, limits)

    def _solved(self, hour: int, limits: Mapping[Pair, tuple[float, float]]) -> Solved | None:
        """Return the cheapest flows of an hour with whole steps; None where there are none within the limits."""
        regions = _in_hour([self._paid_for(region) for region in self.regions.values()], hour)
        rest = sum(left[hour] for left in self.left.values())
        try:
            return solved(
                regions,
                self.ways,
                whole={region.name for region in regions},
                left=rest and rest + TOLERANCE,
                limits=limits,
                hour_h=self.hour_h,
                gap=_HOUR_GAP,
                nodes=_HOUR_NODES,
            )
        except NotSolved:
            return None

    def _set(self, hour: int, found: Solved) -> None:
        for pair, (load,) in found.flows.items():
            self.flows[pair][hour] = load
        for name, (load,) in found.unserved.items():
            self.left[name][hour] = load

    def _kept(self) -> dict[Pair, list[float]]:
        return {pair: list(loads) for pair, loads in self.flows.items()}

    def _kept_left(self) -> dict[str, list[float]]:
        return {name: list(loads) for name, loads in self.left.items()}

    def _paid_for(self, region: Region) -> Region:
        """Return a region as it is when what is paid for the day is there, at no price."""
        if not region.paid_for_day or not region.tiers:
            return region
        (tier,) = region.tiers
        most = max((self._step(region.name, each) for each in self.hours), key=lambda step: step.load)
        return replace(region, tiers=(Tier(way_s=tier.way_s, steps=(replace(most, cost_per_hour=0.0),)),))

    def _limits(self, pair: Pair, hour: int) -> tuple[float, float]:
        """Return the least and the most load of a pair in an hour: streams stay from the hour before, and for the next.

        Only so many may be there that those which stay have room in the next hour, whose flows are given.
        """
        users = self.regions[pair[0]]
        loads, after = self.flows[pair], (hour + 1) % len(self.hours)
        stay = users.stay(after)
        return users.stay(hour) * loads[hour - 1], loads[after] / stay if stay > 0 else math.inf

    def _step(self, name: str, hour: int) -> Step:
        """Return the first step that carries what a region serves in an hour."""
        served = sum(loads[hour] for (_, to), loads in self.flows.items() if to == name)
        steps = self.tiers[name].steps
        return next((step for step in steps if step.load >= served - TOLERANCE), steps[-1])

    def _by_hour(self) -> float:
        return sum(map(self._cost, self.hours))

    def _cost(self, hour: int) -> float:
        """Return the cost of an hour (USD) by the hour: what is paid for the day does not count."""
        steps = sum(self._step(name, hour).cost_per_hour for name in self.tiers if not self.regions[name].paid_for_day)
        return steps * self.hour_h + self._ways(hour)

    def _ways(self, hour: int) -> float:
        return sum(way.price_per_hour * self.flows[pair][hour] for pair, way in self.ways.items()) * self.hour_h

    def assignment(self, bound: float) -> Assignment:
        """Return the assignment of these flows."""
        steps = {
            name: tuple((tier, self._step(name, hour)) for hour in self.hours) for name, tier in self.tiers.items()
        }
        return Assignment(
            flows={pair: tuple(loads) for pair, loads in self.flows.items() if any(loads)},
            unserved={name: tuple(loads) for name, loads in self.left.items()},
            steps=steps,
            costs={name: self._paid(name, [step.cost_per_hour for _, step in own]) for name, own in steps.items()},
            ways=tuple(map(self._ways, self.hours)),
            bound=bound,
        )

    def _paid(self, name: str, by_hour: Sequence[float]) -> tuple[float, ...]:
        """Return the cost of a region in each hour (USD)."""
        if self.regions[name].paid_for_day:
            by_hour = [max(by_hour)] * len(by_hour)
        return tuple(cost * self.hour_h for cost in by_hour)
