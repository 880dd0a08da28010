"""Values of an assignment: regions with the costs of their loads, the ways between them, and who serves what. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

Pair = tuple[str, str]
"""The region where users are, and the region that serves them."""

TOLERANCE = 1e-3
"""Loads (in the pipeline's unit) are known to within this: the tolerance of the solver."""


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
        tiers: ascending in `way_s`, the first for its own users (0). A region without tiers serves nothing.
        shiftable: the share (0–1) of its load that others may serve.
        kept: the share (0–1) of the streams of an hour that are open in the next, on average: they stay where they are.
        paid_for_day: whether its capacity is paid for the whole day.
    """

    name: str
    loads: tuple[float, ...]
    tiers: tuple[Tier, ...]
    shiftable: float = 1.0
    kept: float = 0.0
    paid_for_day: bool = False

    def stay(self, hour: int) -> float:
        """Return the share of the streams of the hour before that stay where they are in `hour`.

        The day repeats. Where the load falls by more than the streams that end, all places lose the same share.
        """
        before = self.loads[hour - 1]
        return min(self.kept, self.loads[hour] / before) if before > 0 and len(self.loads) > 1 else 0.0


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
    def left(self) -> float:
        """The load without a place, summed over the hours, in the pipeline's unit."""
        return sum(map(sum, self.unserved.values()))

    @property
    def leaves_load(self) -> bool:
        """Whether load has no place, beyond the tolerance of the solver."""
        return self.left > 2 * TOLERANCE

    def served(self, region: str, hour: int) -> float:
        """Return the load that `region` serves in `hour`."""
        return sum(loads[hour] for (_, to), loads in self.flows.items() if to == region)


class NotSolved(RuntimeError):
    """The solver found no assignment; the message has its text."""
