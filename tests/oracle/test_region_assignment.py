"""The assignment of streams to regions is the cheapest: every choice of replicas is tried on small problems.

A day with many choices is solved in parts. Small days are solved in parts too, to compare them with every choice: their
bound is never above the best one, and their cost is that of flows that are allowed.
"""

import itertools
import math
import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
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


def cheapest(regions: Sequence[Region], ways: Mapping[Pair, Way]) -> float:
    """Return the cost of the best of all choices of steps; the flows of each are a linear program of their own."""
    hours = range(len(regions[0].loads))
    every = [[(tier, step) for tier in region.tiers for step in tier.steps] for region in regions for _ in hours]
    return min(cost_of(regions, ways, choice) for choice in itertools.product(*every))


def cost_of(regions: Sequence[Region], ways: Mapping[Pair, Way], choice: Sequence[tuple[Tier, Step]]) -> float:
    hours = len(regions[0].loads)
    names = [region.name for region in regions]
    chosen = {(name, hour): choice[k * hours + hour] for k, name in enumerate(names) for hour in range(hours)}
    cost = 0.0
    for region in regions:
        own = [chosen[region.name, hour] for hour in range(hours)]
        if len({tier.way_s for tier, _ in own}) > 1:
            return math.inf
        prices = [step.cost_per_hour for _, step in own]
        cost += hours * max(prices) if region.paid_for_day else sum(prices)
    flows = [(i, j, h) for i in names for j in names for h in range(hours) if i == j or (i, j) in ways]
    at = {flow: k for k, flow in enumerate(flows)}
    price = [0.0 if i == j else ways[i, j].price_per_hour for i, j, _ in flows]
    equal, loads, most, room = [], [], [], []

    def row(terms: Mapping[int, float]) -> list[float]:
        return [terms.get(k, 0.0) for k in range(len(flows))]

    for region in regions:
        i = region.name
        for h in range(hours):
            equal.append(row({at[i, j, h]: 1.0 for j in names if (i, j, h) in at}))
            loads.append(region.loads[h])
            most.append(row({at[i, j, h]: 1.0 for j in names if j != i and (i, j, h) in at}))
            room.append(region.shiftable * region.loads[h])
            tier, step = chosen[i, h]
            most.append(row({at[k, i, h]: 1.0 for k in names if (k, i, h) in at}))
            room.append(step.load)
            if tier.way_s < FAR_S:
                most.append(row({at[k, i, h]: 1.0 for k in names if k != i and (k, i, h) in at}))
                room.append(0.0)
            stay = min(region.kept, region.loads[h] / region.loads[h - 1])
            for j in names:
                if (i, j, h) in at:
                    most.append(row({at[i, j, h]: -1.0, at[i, j, (h - 1) % hours]: stay}))
                    room.append(0.0)
    found = linprog(np.array(price), A_ub=most, b_ub=room, A_eq=equal, b_eq=loads)
    return cost + float(found.fun) if found.status == 0 else math.inf


@pytest.mark.parametrize("seed", range(24))
def test_no_choice_of_replicas_is_cheaper(seed: int) -> None:
    regions, ways = problem(seed)
    found = assign(regions, ways)
    best = cheapest(regions, ways)
    assert found.cost == pytest.approx(best, rel=2 * GAP, abs=1e-6)
    assert found.bound <= best * (1 + 1e-6)


def check_flows(regions: Sequence[Region], ways: Mapping[Pair, Way], found: Assignment) -> None:
    """See that all load is served where it may be, by replicas that carry it, on one tier, and that streams stay."""
    for region in regions:
        own = {to: loads for (users, to), loads in found.flows.items() if users == region.name}
        assert all(to == region.name or (region.name, to) in ways for to in own)
        assert len({tier.way_s for tier, _ in found.steps[region.name]}) == 1
        for hour, load in enumerate(region.loads):
            assert sum(loads[hour] for loads in own.values()) == pytest.approx(load, abs=0.01)
            away = sum(loads[hour] for to, loads in own.items() if to != region.name)
            assert away <= region.shiftable * load + 0.01
            stay = min(region.kept, load / region.loads[hour - 1])
            assert all(loads[hour] >= stay * loads[hour - 1] - 0.01 for loads in own.values())
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
