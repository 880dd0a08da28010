"""The history of the demand that forecasts use: `spec.demand.history`."""

from typing import Annotated, ClassVar

from pydantic import Field

from controller.resources.base import Constraint, Part, constraint
from controller.resources.fields import PositiveDuration, Query, duration_s
from profiler.season import LEAST_STEP_S, MOST_LEVELS, MOST_SEASONS

_LEAST_SEASON = "10m"


class History(Part):
    """The demand of past days or weeks, which is read from Prometheus once an hour and used in the forecast."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda history: duration_s(history.season) >= duration_s(_LEAST_SEASON),
            cel=f"duration(self.season) >= duration('{_LEAST_SEASON}')",
            rule=f"must be at least {_LEAST_SEASON}",
            field="season",
        ),
        constraint(
            holds=lambda history: history.resolution is None or duration_s(history.resolution) >= LEAST_STEP_S,
            cel=f"!has(self.resolution) || duration(self.resolution) >= duration('{LEAST_STEP_S:g}s')",
            rule=f"must be at least {LEAST_STEP_S:g}s",
            field="resolution",
        ),
        constraint(
            holds=lambda history: (
                history.resolution is None
                or duration_s(history.season) * history.seasons <= MOST_LEVELS * duration_s(history.resolution)
            ),
            cel="!has(self.resolution) || duration(self.season).getSeconds() * self.seasons <= "
            f"{MOST_LEVELS} * duration(self.resolution).getSeconds()",
            rule=f"must be at least season × seasons / {MOST_LEVELS}: more levels are not kept",
            field="resolution",
        ),
    )

    query: Query | None = None
    """PromQL for the past demand, such as that of a recording rule. By default demand.query. With another query, no
    load is expected after a time without any, because the two may differ in their unit."""
    season: PositiveDuration = "24h"
    """Time after which the demand repeats; at least 10m."""
    seasons: Annotated[int, Field(ge=1, le=MOST_SEASONS)] = 7
    """Number of past seasons to read. Days that repeat weekly need 7 or more."""
    resolution: PositiveDuration | None = None
    """Time between two levels, at least 15s. Rises between two levels are expected at the first of them. By default as
    short as 2016 levels allow: 5m for 7 days."""
