"""What the cost of a run was spent on: parts that add up to the whole. Pure.

Each part is the difference between two costs, the cost of one more thing that a real run needs. So parts may be
negative, and their sum is the cost of the run, whatever the load.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class CostPart(Enum):
    """A part of the cost of a run, in the order in which a report shows them."""

    WORK = "work"
    """The work itself: on the cheapest pool of each stage, in full batches, in fractions of replicas."""
    POOLS = "pools"
    """Pools that are not the cheapest for the work: for the latency, for a small load, or because of a limit."""
    ROUNDING = "rounding"
    """Whole replicas, and declared minimums."""
    QUEUES = "queues"
    """Replicas so that queues are short: utilisation below 100 %, batches that are not full."""
    GROWTH = "growth"
    """The plan for the forecast and the rise until new replicas are ready, instead of the observed demand."""
    WINDOW = "window"
    """The plan for the highest demand of the scale-down window, instead of the forecast."""
    STARTING = "starting"
    """Replicas that are paid for and not ready."""
    HELD = "held"
    """Ready replicas beyond those planned: tolerance, step limits, floors. Negative: fewer are ready than planned."""
    DRAINING = "draining"
    """Replicas that finish their sessions."""
    INSTANCES = "instances"
    """Whole instances, where these are paid for."""


MEANINGS: Mapping[CostPart, str] = {
    CostPart.WORK: "the work itself: cheapest pools, full batches, fractions of replicas",
    CostPart.POOLS: "pools that are not the cheapest for the work",
    CostPart.ROUNDING: "whole replicas and declared minimums",
    CostPart.QUEUES: "short queues: utilisation below 100 %, batches that are not full",
    CostPart.GROWTH: "room for the forecast and the rise until new replicas are ready",
    CostPart.WINDOW: "the highest demand of the scale-down window",
    CostPart.STARTING: "replicas that start",
    CostPart.HELD: "ready replicas beyond the plan: tolerance, steps, floors",
    CostPart.DRAINING: "replicas that drain",
    CostPart.INSTANCES: "whole instances",
}
"""What a report says of each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBreakdown:
    """The cost of a run in USD by part; every part has an entry."""

    parts: Mapping[CostPart, float]

    @property
    def total(self) -> float:
        """Return the cost of the run in USD."""
        return sum(self.parts.values())

    def share(self, part: CostPart) -> float | None:
        """Return what share (0–1) of the cost `part` is; None for a run that cost nothing."""
        return self.parts[part] / self.total if self.total else None


def mean_breakdown(found: Iterable[CostBreakdown | None]) -> CostBreakdown | None:
    """Return the mean of the breakdowns of several runs; None unless every run has one."""
    each = list(found)
    known = [breakdown for breakdown in each if breakdown is not None]
    if not each or len(known) < len(each):
        return None
    return CostBreakdown(parts={part: sum(one.parts[part] for one in known) / len(known) for part in CostPart})
