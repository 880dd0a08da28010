"""What shifting streams between regions saves, and what a lost region costs."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.commands.plan_request import ask, budgets_of, specs_of
from controller.core.state.spec import DemandUnit, PipelineSpec
from controller.resources.fields import duration_s
from optimizer.model import Problem
from simulations.regions.assignment import Assignment, Pair, Region, Tier, Way, assign
from simulations.regions.costs import Costs, costs_of
from simulations.regions.scenario import Cluster, Regions

POINTS = 32
"""So many loads of a region are planned, from none to that of all users at their peaks together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What it costs if a region is lost for a whole day.

    Attributes:
        assignment: where its users are served.
        at_once: for each step of the day, how many of its streams the running replicas of the others have room for.
        startup_s: after that time the others are ready for the rest, in seconds.
    """

    assignment: Assignment
    at_once: tuple[float, ...]
    startup_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The day of a product in several regions.

    Attributes:
        regions: the regions as they were planned.
        alone: every region serves its own users.
        shifted: the cheapest assignment.
        bound: no assignment costs less, in USD for the day.
        losses: by region, what its loss costs.
    """

    regions: tuple[Region, ...]
    alone: Assignment
    shifted: Assignment
    bound: float
    losses: Mapping[str, Loss]

    @property
    def saving(self) -> float:
        """What shifting saves, in USD for the day."""
        return self.alone.cost - self.shifted.cost
