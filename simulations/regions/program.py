"""The day of several regions as a mixed integer program, solved by HiGHS. Pure.

Its variables are flows (streams of a region that another serves in an hour) and, for each region and hour, weights of
the steps of its costs. A region that serves users from afar has less of the SLA's latency left for its own work, so its
costs have tiers: the further its furthest users, the higher the cost of the same load. The tier is chosen once for the
day, because a SpeechPipeline states one latency for all hours. Costs by the hour are summed. Where capacity is paid for
the whole day, it costs what the most expensive hour needs, in every hour: its steps have one weight for all hours.

Where the weights are whole, they choose one step. Where they are not, they choose a point of the convex hull of the
steps: the cost is then a lower bound, and the program has few whole variables, those of the tiers.

Load without a place is a last resort: the program first finds the least such load, then the least cost with no more.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from simulations.regions.model import TOLERANCE, NotSolved, Pair, Region, Step, Tier, Way

Array = NDArray[np.float64]

GAP = 1e-3
"""By default the solver stops once the cost is proven to within this share."""
MOST_NODES = 20_000
"""By default the solver stops after this many nodes of its search, the same on every machine."""
_INFEASIBLE = 2
"""The status of `scipy.optimize.milp` for a program without any solution."""
_IN_USE = 1e-6
"""A step with less weight is not in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A solution of the program of a day.

    Attributes:
        flows: for each allowed pair of regions, the load in each hour.
        unserved: for each region, the load in each hour that has no place.
        tiers: the index of the tier that was chosen, by region; regions that serve nothing have none.
        steps: for each region, the steps with any weight in an hour, by the tier that was chosen.
        cost: USD for the day.
        bound: no solution of the same program costs less.
    """

    flows: Mapping[Pair, tuple[float, ...]]
    unserved: Mapping[str, tuple[float, ...]]
    tiers: Mapping[str, int]
    steps: Mapping[str, frozenset[Step]]
    cost: float
    bound: float

    def served(self, region: str, hour: int) -> float:
        """Return the load that `region` serves in `hour`."""
        return sum(loads[hour] for (_, to), loads in self.flows.items() if to == region)


def solved(
    regions: Sequence[Region],
    ways: Mapping[Pair, Way],
    *,
    whole: Collection[str] = (),
    left: float | None = 0.0,
    limits: Mapping[Pair, tuple[float, float]] | None = None,
    hour_h: float = 1.0,
    gap: float = GAP,
    nodes: int = MOST_NODES,
) -> Solved:
    """Return the cheapest solution for the day of `regions`, by the hull of the steps of those that are not `whole`.

    Args:
        regions: at least one; all have the same number of hours.
        ways: from users to other regions that may serve them; a pair without an entry is not allowed.
        whole: the regions that run one of their steps.
        left: how much load of the day may have no place; None: the least that cannot be avoided.
        limits: the least and the most load of the pairs in every hour.
        hour_h: the length of an hour of the day in hours.
        gap: the solver stops once the cost is proven to within this share.
        nodes: the solver stops after this many nodes of its search.

    Raises:
        NotSolved: there is no solution, such as where the load is above what the steps carry and `left`.
    """
    program = _Program(regions, ways, whole=whole, limits=limits or {}, hour_h=hour_h, gap=gap, nodes=nodes)
    return program.solved(left)


def hull(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the corners of the convex hull below `steps`."""
    kept: list[Step] = []
    for step in steps:
        while len(kept) > 1 and _above(kept[-2], kept[-1], step):
            kept.pop()
        kept.append(step)
    return tuple(kept)


def _above(first: Step, middle: Step, last: Step) -> bool:
    """Return whether `middle` is on or above the line from `first` to `last`."""
    slope = (middle.cost_per_hour - first.cost_per_hour) * (last.load - first.load)
    return slope >= (last.cost_per_hour - first.cost_per_hour) * (middle.load - first.load)


class _Infeasible(NotSolved):
    """The load is above what can be carried."""


class _Program:
    """The program: columns are numbered as they are declared, rows are added one by one."""

    def __init__(
        self,
        regions: Sequence[Region],
        ways: Mapping[Pair, Way],
        *,
        whole: Collection[str],
        limits: Mapping[Pair, tuple[float, float]],
        hour_h: float,
        gap: float,
        nodes: int,
    ) -> None:
        self.regions = {
            region.name: region
            if region.name in whole
            else replace(region, tiers=tuple(replace(tier, steps=hull(tier.steps)) for tier in region.tiers))
            for region in regions
        }
        self.hours = range(len(regions[0].loads))
        self.hour_h = hour_h
        self.options = {"mip_rel_gap": gap, "node_limit": nodes}
        self.ways = {(region.name, region.name): Way(time_s=0.0) for region in regions if region.tiers} | {
            pair: way for pair, way in ways.items() if _reaches(way, self.regions[pair[1]].tiers)
        }
        self.costs: list[float] = []
        self.whole: list[int] = []
        self.bounds: list[tuple[float, float]] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []
        self.flow = {
            (pair, hour): self._column(way.price_per_hour * hour_h, *limits.get(pair, (0.0, np.inf)))
            for pair, way in self.ways.items()
            for hour in self.hours
        }
        self.left = {(name, hour): self._column(0.0, 0.0, np.inf) for name in self.regions for hour in self.hours}
        self.tier: dict[str, list[int]] = {}
        self.weight: dict[tuple[str, int], dict[tuple[int, int], int]] = {}
        for region in self.regions.values():
            self._costs(region, whole=region.name in whole)
            self._loads(region)

    def _column(self, cost: float, low: float, high: float, *, whole: bool = False) -> int:
        self.costs.append(cost)
        self.bounds.append((low, high))
        self.whole.append(int(whole))
        return len(self.costs) - 1

    def _row(self, terms: Mapping[int, float], low: float = -np.inf, high: float = np.inf) -> None:
        self.rows.append((dict(terms), low, high))

    def _costs(self, region: Region, *, whole: bool) -> None:
        """Declare the tiers and the weights of a region, and bind its flows to them in every hour."""
        if not region.tiers:
            return
        tiers = range(len(region.tiers))
        chosen = self.tier[region.name] = [self._column(0.0, 0.0, 1.0, whole=len(tiers) > 1) for _ in tiers]
        self._row(dict.fromkeys(chosen, 1.0), 1.0, 1.0)
        weights: dict[tuple[int, int], int] = {}
        for hour in self.hours:
            if not (weights and region.paid_for_day):
                hours = len(self.hours) if region.paid_for_day else 1
                weights = self._weights(region, hours * self.hour_h, chosen, whole=whole)
            self.weight[region.name, hour] = weights
            for tier in tiers:
                # What comes from further than the tier before may only be served on this tier or a later one.
                near = region.tiers[tier - 1].way_s if tier else -1.0
                flows = {
                    self.flow[pair, hour]: 1.0
                    for pair, way in self.ways.items()
                    if pair[1] == region.name and way.time_s > near
                }
                room = {column: -region.tiers[t].steps[k].load for (t, k), column in weights.items() if t >= tier}
                if flows:
                    self._row({**flows, **room}, high=0.0)

    def _weights(
        self, region: Region, hours: float, chosen: Sequence[int], *, whole: bool
    ) -> dict[tuple[int, int], int]:
        """Declare the weights of the steps of a region, which is paid for so many hours."""
        weights = {
            (tier, k): self._column(step.cost_per_hour * hours, 0.0, 1.0, whole=whole)
            for tier, own in enumerate(region.tiers)
            for k, step in enumerate(own.steps)
        }
        for tier, column in enumerate(chosen):
            self._row({**{weights[t, k]: 1.0 for t, k in weights if t == tier}, column: -1.0}, 0.0, 0.0)
        return weights

    def _loads(self, region: Region) -> None:
        """State where the load of a region goes."""
        own = [pair for pair in self.ways if pair[0] == region.name]
        away = [pair for pair in own if pair[1] != region.name]
        for hour in self.hours:
            load = region.loads[hour]
            flows = {self.flow[pair, hour]: 1.0 for pair in own}
            self._row({**flows, self.left[region.name, hour]: 1.0}, load, load)
            if away and region.shiftable < 1:
                self._row({self.flow[pair, hour]: 1.0 for pair in away}, high=region.shiftable * load)
            before = hour - 1 if hour else self.hours[-1]
            if stay := region.stay(hour):
                for pair in own:
                    self._row({self.flow[pair, hour]: 1.0, self.flow[pair, before]: -stay}, low=0.0)

    def solved(self, left: float | None) -> Solved:
        """Solve the program and read its columns; `left` is the load that may have no place."""
        columns = list(self.left.values())
        unbounded = [self.bounds[column] for column in columns]
        if not left:
            for column in columns:
                self.bounds[column] = (0.0, 0.0)
            try:
                return self._read(*self._least(np.array(self.costs)))
            except _Infeasible:
                if left is not None:
                    raise
            for column, bounds in zip(columns, unbounded, strict=True):
                self.bounds[column] = bounds
            weights = np.zeros(len(self.costs))
            weights[columns] = 1.0
            x, _ = self._least(weights)
            left = float(weights @ x) + TOLERANCE
        self._row(dict.fromkeys(columns, 1.0), high=left)
        return self._read(*self._least(np.array(self.costs)))

    def _least(self, objective: Array) -> tuple[Array, float]:
        """Return the columns with the least value of `objective`, and a bound that no columns undercut."""
        entries = [(row, column, value) for row, (terms, *_) in enumerate(self.rows) for column, value in terms.items()]
        rows, columns, values = (np.array(part) for part in zip(*entries, strict=True))
        shape = len(self.rows), len(self.costs)
        low, high = np.array(self.bounds).T
        found = milp(
            objective,
            constraints=LinearConstraint(
                coo_array((values.astype(np.float64), (rows, columns)), shape=shape).tocsr(),
                np.array([low for _, low, _ in self.rows]),
                np.array([high for *_, high in self.rows]),
            ),
            bounds=Bounds(low, high),
            integrality=np.array(self.whole),
            options=self.options,
        )
        if found.x is None:
            raise (_Infeasible if found.status == _INFEASIBLE else NotSolved)(str(found.message))
        # A program without whole variables is a linear one, and has no other bound than its solution.
        return found.x, float(found.fun if found.mip_dual_bound is None else found.mip_dual_bound)

    def _read(self, x: Array, bound: float) -> Solved:
        tiers = {name: max(range(len(columns)), key=lambda t: x[columns[t]]) for name, columns in self.tier.items()}
        steps = {
            name: frozenset(
                self.regions[name].tiers[tier].steps[k]
                for hour in self.hours
                for (t, k), column in self.weight[name, hour].items()
                if t == tier and x[column] > _IN_USE
            )
            for name, tier in tiers.items()
        }
        return Solved(
            flows={pair: tuple(_positive(x[self.flow[pair, hour]]) for hour in self.hours) for pair in self.ways},
            unserved={name: tuple(_positive(x[self.left[name, hour]]) for hour in self.hours) for name in self.regions},
            tiers=tiers,
            steps=steps,
            cost=float(np.array(self.costs) @ x),
            bound=bound,
        )


def _reaches(way: Way, tiers: Sequence[Tier]) -> bool:
    return bool(tiers) and way.time_s <= tiers[-1].way_s


def _positive(value: float) -> float:
    """Return a flow without the solver's tolerance."""
    return float(value) if value > TOLERANCE else 0.0
