"""The assignment of streams to regions is the cheapest: every choice of replicas is tried on small problems.

A day with many choices is solved in parts. Small days are solved in parts too, to compare them with every choice: their
bound is never above the best one, and their cost is that of flows that are allowed.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from simulations.regions.assignment import assign, hours_apart, used_tiers
from simulations.regions.model import Assignment, Pair, Region, Step, Tier, Way
from simulations.regions.program import GAP, solved

NEAR_S, FAR_S = 0.0, 0.1


def problem(seed: int, *, by_hour: bool = False) -> tuple[list[Region], dict[Pair, Way]]:
    """Two regions with two hours, two or three steps and one or two tiers; sometimes paid for the day.

    With `by_hour`, all are paid by the hour, have two tiers, and keep more than half of their streams.
    """
    rng = random.Random(seed)
    regions = []
    for name in ("east", "west"):
        loads, costs = [0.0, rng.uniform(5, 10), rng.uniform(12, 20)], [0.0, rng.uniform(1, 3), rng.uniform(3, 5)]
        near = tuple(Step(load=load, cost_per_hour=cost) for load, cost in zip(loads, costs, strict=True))
        far = tuple(Step(load=step.load * 0.8, cost_per_hour=step.cost_per_hour * 1.1) for step in near[:2])
        tiers = [Tier(way_s=NEAR_S, steps=near), Tier(way_s=FAR_S, steps=far)]
        regions.append(
            Region(
                name=name,
                loads=(rng.uniform(1, 9), rng.uniform(1, 9)),
                tiers=tuple(tiers[: 2 if by_hour else rng.choice([1, 2, 2])]),
                shiftable=rng.choice([0.3, 1.0]),
                kept=0.6 if by_hour else rng.choice([0.0, 0.6]),
                paid_for_day=not by_hour and rng.random() < 0.3,
            )
        )
    pairs = [("east", "west"), ("west", "east")]
    ways = {pair: Way(time_s=FAR_S, price_per_hour=rng.choice([0.0, 0.05])) for pair in pairs if rng.random() < 0.9}
    return regions, ways


def three_regions(seed: int, *, hours: int, load: float = 1.0) -> tuple[list[Region], dict[Pair, Way]]:
    """Three regions with one hour and two tiers, or two hours and one tier; a higher `load` has no place for all."""
    rng = random.Random(1000 * hours + seed)
    regions = []
    for name in ("east", "west", "north"):
        steps = [Step(load=0.0, cost_per_hour=rng.uniform(0, 1)), Step(load=rng.uniform(6, 12), cost_per_hour=2.0)]
        if hours == 1 or name == "east":
            steps.append(Step(load=rng.uniform(13, 20), cost_per_hour=rng.uniform(3, 5)))
        far = tuple(Step(load=step.load * 0.8, cost_per_hour=step.cost_per_hour * 1.1) for step in steps)
        near = Tier(way_s=NEAR_S, steps=tuple(steps))
        regions.append(
            Region(
                name=name,
                loads=tuple(load * rng.uniform(1, 9) for _ in range(hours)),
                tiers=(near, Tier(way_s=FAR_S, steps=far)) if hours == 1 else (Tier(way_s=FAR_S, steps=far),),
                shiftable=rng.choice([0.3, 1.0]),
                kept=rng.choice([0.0, 0.6]),
                paid_for_day=rng.random() < 0.3,
            )
        )
    pairs = itertools.permutations(("east", "west", "north"), 2)
    return regions, {
        pair: Way(time_s=FAR_S, price_per_hour=rng.choice([0.0, 0.05])) for pair in pairs if rng.random() < 0.8
    }


Choice = dict[str, tuple[Tier, list[Step]]]
"""By region, its tier and its step in each hour; a lost region has no entry."""


def choices(regions: Sequence[Region], lost: str | None) -> Iterator[Choice]:
    """Yield all choices of a tier for the day and of a step for each hour."""
    own = [
        [
            (tier, list(steps))
            for tier in region.tiers
            for steps in itertools.product(tier.steps, repeat=len(region.loads))
        ]
        for region in regions
        if region.name != lost
    ]
    names = [region.name for region in regions if region.name != lost]
    for each in itertools.product(*own):
        yield dict(zip(names, each, strict=True))


def cheapest(
    regions: Sequence[Region], ways: Mapping[Pair, Way], *, lost: str | None = None, left: float = 0.0
) -> float:
    """Return the cost of the best of all choices of steps, where up to `left` of the load has no place.

    Choices whose steps cost as much as the best one are left out.
    """
    best = math.inf
    for choice in sorted(choices(regions, lost), key=lambda each: paid(regions, each)):
        cost = paid(regions, choice)
        if cost >= best:
            break
        best = min(best, cost + Flows(regions, ways, choice, lost).cost(left))
    return best


def least_left(regions: Sequence[Region], ways: Mapping[Pair, Way], *, lost: str | None = None) -> float:
    """Return the least load that has no place, of all choices of tiers with their largest steps."""
    largest = [
        replace(region, tiers=tuple(replace(tier, steps=tier.steps[-1:]) for tier in region.tiers))
        for region in regions
    ]
    return min(Flows(regions, ways, choice, lost).left() for choice in choices(largest, lost))


def paid(regions: Sequence[Region], choice: Choice) -> float:
    cost = 0.0
    for region in regions:
        _, steps = choice.get(region.name, (None, []))
        prices = [step.cost_per_hour for step in steps]
        cost += len(prices) * max(prices, default=0.0) if region.paid_for_day else sum(prices)
    return cost


class Flows:
    """The flows on given steps: a linear program of its own."""

    def __init__(
        self, regions: Sequence[Region], ways: Mapping[Pair, Way], choice: Choice, lost: str | None = None
    ) -> None:
        hours = len(regions[0].loads)
        names = [region.name for region in regions]
        pairs = [(i, j) for i in names for j in names if j != lost and (i == j or (i, j) in ways)]
        flows = [(i, j, h) for i, j in pairs for h in range(hours)]
        at = {flow: k for k, flow in enumerate(flows)} | {
            (i, "", h): len(flows) + n for n, (i, h) in enumerate(itertools.product(names, range(hours)))
        }
        self.price = np.array([0.0 if i == j or not j else ways[i, j].price_per_hour for i, j, _ in at])
        self.unserved = np.array([float(not j) for _, j, _ in at])
        self.equal: list[list[float]] = []
        self.loads: list[float] = []
        self.most: list[list[float]] = []
        self.room: list[float] = []

        def row(terms: Mapping[int, float]) -> list[float]:
            return [terms.get(k, 0.0) for k in range(len(at))]

        for region in regions:
            i = region.name
            for h, load in enumerate(region.loads):
                self.equal.append(row({at[i, j, h]: 1.0 for j in (*names, "") if (i, j, h) in at}))
                self.loads.append(load)
                if i != lost:
                    self.most.append(row({at[i, j, h]: 1.0 for j in names if j != i and (i, j, h) in at}))
                    self.room.append(region.shiftable * load)
                    tier, steps = choice[i]
                    self.most.append(row({at[k, i, h]: 1.0 for k in names if (k, i, h) in at}))
                    self.room.append(steps[h].load)
                    if tier.way_s < FAR_S:
                        self.most.append(row({at[k, i, h]: 1.0 for k in names if k != i and (k, i, h) in at}))
                        self.room.append(0.0)
                stay = min(region.kept, load / region.loads[h - 1]) if hours > 1 else 0.0
                for j in names:
                    if stay and (i, j, h) in at:
                        self.most.append(row({at[i, j, h]: -1.0, at[i, j, (h - 1) % hours]: stay}))
                        self.room.append(0.0)

    def cost(self, left: float) -> float:
        return self._least(self.price, [*self.most, list(self.unserved)], [*self.room, left])

    def left(self) -> float:
        return self._least(self.unserved, self.most, self.room)

    def _least(self, objective: NDArray[np.float64], most: list[list[float]], room: list[float]) -> float:
        found = linprog(objective, A_ub=most, b_ub=room, A_eq=self.equal, b_eq=self.loads)
        return float(found.fun) if found.status == 0 else math.inf


@pytest.mark.parametrize("seed", range(24))
def test_no_choice_of_replicas_is_cheaper(seed: int) -> None:
    regions, ways = problem(seed)
    found = assign(regions, ways)
    best = cheapest(regions, ways)
    assert found.cost == pytest.approx(best, rel=2 * GAP, abs=1e-6)
    assert found.bound <= best * (1 + 1e-6)


def check_flows(
    regions: Sequence[Region], ways: Mapping[Pair, Way], found: Assignment, lost: str | None = None
) -> None:
    """See that load is served where it may be, by replicas that carry it, on one tier, and that streams stay."""
    for region in regions:
        own = {to: loads for (users, to), loads in found.flows.items() if users == region.name}
        assert all(to == region.name or (region.name, to) in ways for to in own)
        assert lost not in own
        for hour, load in enumerate(region.loads):
            unserved = found.unserved[region.name][hour]
            assert sum(loads[hour] for loads in own.values()) + unserved == pytest.approx(load, abs=0.01)
            stay = min(region.kept, load / region.loads[hour - 1]) if len(region.loads) > 1 else 0.0
            assert all(loads[hour] >= stay * loads[hour - 1] - 0.01 for loads in own.values())
            if region.name == lost:
                continue
            away = sum(loads[hour] for to, loads in own.items() if to != region.name)
            assert away <= region.shiftable * load + 0.01
            assert len({tier.way_s for tier, _ in found.steps[region.name]}) == 1
            tier, step = found.steps[region.name][hour]
            assert found.served(region.name, hour) <= step.load + 0.01
            far = [users for (users, to), loads in found.flows.items() if to == region.name != users and loads[hour]]
            assert not far or tier.way_s >= FAR_S


@pytest.mark.parametrize("seed", range(12))
def test_a_day_by_the_hour_in_parts_is_allowed(seed: int) -> None:
    """Steps of a third of the load leave room above the best; how much at the size of a day, its bound says."""
    regions, ways = problem(seed, by_hour=True)
    best = cheapest(regions, ways)
    parts = hours_apart(regions, ways)
    assert sum(part.bound for part in parts) <= best * (1 + 1e-6)
    found = assign(regions, ways, few=0, tiers=used_tiers(regions, ways, parts))
    assert found.bound <= best * (1 + 1e-6)
    check_flows(regions, ways, found)
    assert best * (1 - 1e-4) - 1e-6 <= found.cost <= best * 1.5


@pytest.mark.parametrize("seed", range(12))
def test_a_mixed_day_in_parts_is_allowed(seed: int) -> None:
    regions, ways = problem(seed)
    best = cheapest(regions, ways)
    found = assign(regions, ways, few=0)
    for_day = [region.name for region in regions if region.paid_for_day]
    assert max(found.bound, solved(regions, ways, whole=for_day).bound) <= best * (1 + 1e-6)
    check_flows(regions, ways, found)
    assert found.cost >= best * (1 - 1e-4) - 1e-6


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("hours", [1, 2])
def test_no_choice_of_replicas_of_three_regions_is_cheaper(hours: int, seed: int) -> None:
    regions, ways = three_regions(seed, hours=hours)
    check_least(regions, ways)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("hours", [1, 2])
def test_as_little_load_as_possible_has_no_place_and_no_choice_is_cheaper(hours: int, seed: int) -> None:
    regions, ways = three_regions(seed, hours=hours, load=4)
    assert check_least(regions, ways) > 1


@pytest.mark.parametrize("lost", ["east", "west", "north"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("hours", [1, 2])
def test_without_a_lost_region_no_choice_is_cheaper(hours: int, seed: int, lost: str) -> None:
    regions, ways = three_regions(seed, hours=hours)
    check_least(regions, ways, lost)


def check_least(regions: Sequence[Region], ways: Mapping[Pair, Way], lost: str | None = None) -> float:
    """See that an assignment leaves the least load without a place, and then costs the least; return that load."""
    found = assign(regions, ways, lost=lost, may_leave=True)
    check_flows(regions, ways, found, lost)
    left = least_left(regions, ways, lost=lost)
    assert left - 0.01 <= found.left <= left * (1 + GAP) + 0.01
    best = cheapest(regions, ways, lost=lost, left=left + 1e-6)
    assert found.cost == pytest.approx(best, rel=2 * GAP, abs=1e-6)
    assert found.bound <= best * (1 + 1e-6)
    return left


@pytest.mark.parametrize("lost", ["east", None])
@pytest.mark.parametrize("seed", range(6))
def test_a_day_in_parts_leaves_the_least_load_without_a_place(seed: int, lost: str | None) -> None:
    regions, ways = three_regions(seed, hours=2, load=2)
    found = assign(regions, ways, lost=lost, may_leave=True, few=0)
    check_flows(regions, ways, found, lost)
    left = least_left(regions, ways, lost=lost)
    assert left - 0.01 <= found.left <= left * (1 + GAP) + 0.01
    assert found.bound <= cheapest(regions, ways, lost=lost, left=left + 1e-6) * (1 + 1e-6)
    assert found.cost >= cheapest(regions, ways, lost=lost, left=found.left + 1e-6) * (1 - 1e-4)
