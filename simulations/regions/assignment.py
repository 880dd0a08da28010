"""Where streams are served, by the hour: the cheapest assignment of the loads of regions to regions. Pure.

A mixed integer program, solved by HiGHS. Its variables are flows (streams of a region that another serves in an hour)
and, for each region and hour, one step of its costs: the replicas that carry a load within a latency. A region that
serves users from afar has less of the SLA's latency left for its own work, so its costs have tiers: the further its
furthest users, the higher the cost of the same load. The tier is chosen once for the day, because a SpeechPipeline
states one latency for all hours.

Costs by the hour are summed. Where capacity is paid for the whole day, it costs what the most expensive hour needs, in
every hour.

Load without a place is a last resort: the program first finds the least such load, then the cheapest assignment that
leaves no more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

Array = NDArray[np.float64]
Pair = tuple[str, str]
"""The region where users are, and the region that serves them."""

GAP = 1e-3
"""By default the solver stops once the cost is proven to within this share."""
MOST_NODES = 20_000
"""The solver stops after this many nodes of its search, the same on every machine."""
_LEFT_TOLERANCE = 1e-3
"""So much more load than the least may have no place: the tolerance of the solver."""


_INFEASIBLE = 2
"""The status of `scipy.optimize.milp` for a program without any solution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Replicas that carry at most `load` (in the pipeline's unit) and cost `cost_per_hour` (USD)."""

    load: float
    cost_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The costs of a region where the way to its furthest users takes at most `way_s` of the SLA (s).

    `steps` ascend strictly in load and in cost; the first is paid even without load.
    """

    way_s: float
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region: what its users offer in each hour, and what serving costs there.

    Attributes:
        loads: the load of its own users, one entry for each hour of the day.
        tiers: ascending in `way_s`, the first for its own users (0).
        shiftable: the share (0–1) of its load that others may serve.
        kept: the share (0–1) of the streams of an hour that last into the next: they stay where they are.
        paid_for_day: whether its capacity is paid for the whole day.
    """

    name: str
    loads: tuple[float, ...]
    tiers: tuple[Tier, ...]
    shiftable: float = 1.0
    kept: float = 0.0
    paid_for_day: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The way from users to a region that serves them: its time (s), and its price for a stream and hour (USD)."""

    time_s: float
    price_per_hour: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Where streams are served, and what that costs.

    Attributes:
        flows: for each pair of regions with any, the load in each hour.
        unserved: for each region, the load in each hour that has no place.
        steps: for each region, the tier and the step in each hour.
        costs: for each region, USD in each hour; capacity paid for the day costs the same in every hour.
        ways: USD for the ways, in each hour.
        bound: no assignment that leaves as little unserved costs less, in USD for the day, by the same steps.
    """

    flows: Mapping[Pair, tuple[float, ...]]
    unserved: Mapping[str, tuple[float, ...]]
    steps: Mapping[str, tuple[tuple[Tier, Step], ...]]
    costs: Mapping[str, tuple[float, ...]]
    ways: tuple[float, ...]
    bound: float

    @property
    def cost(self) -> float:
        """The cost of the day in USD."""
        return sum(sum(each) for each in self.costs.values()) + sum(self.ways)

    @property
    def leaves_load(self) -> bool:
        """Whether load has no place, beyond the tolerance of the solver."""
        return sum(map(sum, self.unserved.values())) > 2 * _LEFT_TOLERANCE

    def served(self, region: str, hour: int) -> float:
        """Return the load that `region` serves in `hour`."""
        return sum(loads[hour] for (_, to), loads in self.flows.items() if to == region)


class NotSolved(RuntimeError):
    """The solver found no assignment; the message has its text."""


def assign(
    regions: Sequence[Region],
    ways: Mapping[Pair, Way],
    *,
    lost: str | None = None,
    may_leave: bool = False,
    hour_h: float = 1.0,
    gap: float = GAP,
) -> Assignment:
    """Return the cheapest assignment of the day.

    Args:
        regions: at least one; all have the same number of hours.
        ways: from users to other regions that may serve them; a pair without an entry is not allowed.
        lost: a region that serves no load and costs nothing. Streams then move at once: `shiftable` and `kept` do not
            count.
        may_leave: whether load may have no place. It has none only where no region can carry it.
        hour_h: the length of an hour of the day in hours.
        gap: the solver stops once the cost is proven to within this share.

    Raises:
        NotSolved: there is no assignment, such as where the load is above what the steps carry, without `may_leave`.
    """
    program = _Program(regions, ways, lost=lost, may_leave=may_leave or lost is not None, hour_h=hour_h)
    return program.solved(gap)


class _Infeasible(NotSolved):
    """The load is above what can be carried."""


class _Program:
    """The program: columns are numbered as they are declared, rows are added one by one."""

    def __init__(
        self,
        regions: Sequence[Region],
        ways: Mapping[Pair, Way],
        *,
        lost: str | None,
        may_leave: bool,
        hour_h: float,
    ) -> None:
        self.regions = {region.name: region for region in regions}
        self.hours = range(len(regions[0].loads))
        self.hour_h = hour_h
        self.lost = lost
        self.ways = {(region.name, region.name): Way(time_s=0.0) for region in regions if region.name != lost} | {
            pair: way for pair, way in ways.items() if pair[1] != lost and self._reachable(pair[1], way)
        }
        self.costs: list[float] = []
        self.integral: list[int] = []
        self.upper: list[float] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []
        self.flow = {
            (pair, hour): self._column(way.price_per_hour * hour_h, np.inf)
            for pair, way in self.ways.items()
            for hour in self.hours
        }
        self.left = {
            (region.name, hour): self._column(0.0, np.inf if may_leave else 0.0)
            for region in regions
            for hour in self.hours
        }
        self.chosen: dict[tuple[str, int], dict[tuple[int, int], int]] = {}
        for region in regions:
            if region.name != lost:
                self._costs(region)
            self._loads(region)

    def _reachable(self, to: str, way: Way) -> bool:
        return way.time_s <= self.regions[to].tiers[-1].way_s

    def _column(self, cost: float, upper: float, *, whole: bool = False) -> int:
        self.costs.append(cost)
        self.upper.append(upper)
        self.integral.append(int(whole))
        return len(self.costs) - 1

    def _row(self, terms: Mapping[int, float], low: float = -np.inf, high: float = np.inf) -> None:
        self.rows.append((dict(terms), low, high))

    def _costs(self, region: Region) -> None:
        """Declare the steps of a region, and bind its flows to them in every hour."""
        tiers = range(len(region.tiers))
        if region.paid_for_day:
            # The most expensive hour is paid in all: one step for the day.
            every = dict.fromkeys(self.hours, self._steps(region, len(self.hours) * self.hour_h))
        else:
            every = {hour: self._steps(region, self.hour_h) for hour in self.hours}
            fixed = [self._column(0.0, 1.0, whole=True) for _ in tiers]
            self._row(dict.fromkeys(fixed, 1.0), 1.0, 1.0)
            for steps in every.values():
                for tier, column in enumerate(fixed):
                    self._row({**{steps[t, k]: 1.0 for t, k in steps if t == tier}, column: -1.0}, high=0.0)
        for hour, steps in every.items():
            self.chosen[region.name, hour] = steps
            for tier in tiers:
                # What comes from further than the tier before may only be served on this tier or a later one.
                near = region.tiers[tier - 1].way_s if tier else -1.0
                flows = {
                    self.flow[pair, hour]: 1.0
                    for pair, way in self.ways.items()
                    if pair[1] == region.name and way.time_s > near
                }
                room = {column: -region.tiers[t].steps[k].load for (t, k), column in steps.items() if t >= tier}
                if flows:
                    self._row({**flows, **room}, high=0.0)

    def _steps(self, region: Region, hours: float) -> dict[tuple[int, int], int]:
        """Declare one choice among the steps of a region, which is paid for so many hours."""
        steps = {
            (tier, k): self._column(step.cost_per_hour * hours, 1.0, whole=True)
            for tier, own in enumerate(region.tiers)
            for k, step in enumerate(own.steps)
        }
        self._row(dict.fromkeys(steps.values(), 1.0), 1.0, 1.0)
        return steps

    def _loads(self, region: Region) -> None:
        """State where the load of a region goes."""
        own = [pair for pair in self.ways if pair[0] == region.name]
        away = [pair for pair in own if pair[1] != region.name]
        for hour in self.hours:
            load = region.loads[hour]
            flows = {self.flow[pair, hour]: 1.0 for pair in own}
            self._row({**flows, self.left[region.name, hour]: 1.0}, load, load)
            if self.lost is not None:
                continue
            if away:
                self._row({self.flow[pair, hour]: 1.0 for pair in away}, high=region.shiftable * load)
            before = region.loads[hour - 1]
            stay = min(region.kept, load / before) if before > 0 and len(self.hours) > 1 else 0.0
            for pair in own if stay > 0 else ():
                self._row(
                    {self.flow[pair, hour]: 1.0, self.flow[pair, hour - 1 if hour else self.hours[-1]]: -stay}, low=0.0
                )

    def solved(self, gap: float) -> Assignment:
        """Solve the program and read the assignment from its columns."""
        may_leave = [column for column in self.left.values() if self.upper[column]]
        for column in may_leave:
            self.upper[column] = 0.0
        costs = np.array(self.costs)
        try:
            return self._read(*self._least(costs, gap))
        except _Infeasible:
            if not may_leave:
                raise
        weights = np.zeros(len(self.costs))
        for column in may_leave:
            self.upper[column], weights[column] = np.inf, 1.0
        x, _ = self._least(weights, gap)
        self._row(dict.fromkeys(may_leave, 1.0), high=float(weights @ x) + _LEFT_TOLERANCE)
        return self._read(*self._least(costs, gap))

    def _least(self, objective: Array, gap: float) -> tuple[Array, float]:
        """Return the columns with the least value of `objective`, and a bound that no columns undercut."""
        entries = [(row, column, value) for row, (terms, *_) in enumerate(self.rows) for column, value in terms.items()]
        rows, columns, values = (np.array(part) for part in zip(*entries, strict=True))
        shape = len(self.rows), len(self.costs)
        found = milp(
            objective,
            constraints=LinearConstraint(
                coo_array((values.astype(np.float64), (rows, columns)), shape=shape).tocsr(),
                np.array([low for _, low, _ in self.rows]),
                np.array([high for *_, high in self.rows]),
            ),
            bounds=Bounds(np.zeros(shape[1]), np.array(self.upper)),
            integrality=np.array(self.integral),
            options={"mip_rel_gap": gap, "node_limit": MOST_NODES},
        )
        if found.x is None:
            raise (_Infeasible if found.status == _INFEASIBLE else NotSolved)(str(found.message))
        return found.x, float(found.mip_dual_bound)

    def _read(self, x: Array, bound: float) -> Assignment:
        flows = {
            pair: loads
            for pair in self.ways
            if any(loads := tuple(_positive(x[self.flow[pair, hour]]) for hour in self.hours))
        }
        unserved = {name: tuple(_positive(x[self.left[name, hour]]) for hour in self.hours) for name in self.regions}
        served = {
            (name, hour): sum(loads[hour] for (_, to), loads in flows.items() if to == name)
            for name in self.regions
            for hour in self.hours
        }
        steps = {
            name: tuple(self._chosen(name, hour, x, served[name, hour]) for hour in self.hours)
            for name in self._served()
        }
        costs = {name: self._cost(name, steps[name]) for name in steps}
        return Assignment(
            flows=flows,
            unserved=unserved,
            steps=steps,
            costs=costs,
            ways=tuple(
                float(
                    sum(self.ways[pair].price_per_hour * self.hour_h * x[self.flow[pair, hour]] for pair in self.ways)
                )
                for hour in self.hours
            ),
            bound=bound,
        )

    def _served(self) -> Iterator[str]:
        return (name for name in self.regions if name != self.lost)

    def _chosen(self, name: str, hour: int, x: Array, served: float) -> tuple[Tier, Step]:
        """Return the tier that was chosen, and its first step that carries what is served."""
        steps = self.chosen[name, hour]
        tier, most = max(steps, key=lambda key: x[steps[key]])
        found = self.regions[name].tiers[tier]
        for step in found.steps[:most]:
            if step.load >= served - _LEFT_TOLERANCE:
                return found, step
        return found, found.steps[most]

    def _cost(self, name: str, steps: Sequence[tuple[Tier, Step]]) -> tuple[float, ...]:
        by_hour = [step.cost_per_hour for _, step in steps]
        if self.regions[name].paid_for_day:
            by_hour = [max(by_hour)] * len(by_hour)
        return tuple(cost * self.hour_h for cost in by_hour)


def _positive(value: float) -> float:
    """Return a flow without the solver's tolerance."""
    return float(value) if value > _LEFT_TOLERANCE else 0.0
