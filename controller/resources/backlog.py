"""Work that can wait: `spec.demand.backlog`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.resources.base import Check, Constraint, Part, constraint
from controller.resources.fields import DECIMAL_PATTERN, DROP_NULLS, DURATION_PATTERN, Moment, Query, duration_s

_ItemsPerHour = Annotated[
    str,
    Field(pattern=DECIMAL_PATTERN, max_length=19),
    Check(holds=lambda text: float(text) > 0, cel="double(self) > 0.0", rule="must be above 0"),
]
_MOST_S = 30 * 86_400
_Time = Annotated[
    str,
    Field(pattern=DURATION_PATTERN, max_length=32),
    Check(
        holds=lambda text: 60 <= duration_s(text) <= _MOST_S,
        cel="duration(self) >= duration('1m') && duration(self) <= duration('720h')",
        rule="must be from 1m to 720h",
    ),
]
ItemsPerReplica = Annotated[dict[str, _ItemsPerHour], Field(max_length=16), DROP_NULLS]


class Backlog(Part):
    """Items that are to be done by a deadline, at any latency."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda backlog: (backlog.deadline is None) != (backlog.within is None),
            cel="has(self.deadline) != has(self.within)",
            rule="set either deadline or within",
            field="deadline",
        ),
    )

    query: Query
    """PromQL for the number of items that are left, those in work included, such as the lag of a consumer group."""
    deadline: Moment | None = None
    """When the last item must be done. Either this or within is set."""
    within: _Time | None = None
    """In which time the last item must be done, from when the backlog was last empty; from 1m to 720h."""
    items_per_replica: ItemsPerReplica = Field(default_factory=dict)
    """Items per hour that one replica of a stage takes, by pool. It counts for placements without serviceTime, until
    the service time is measured."""
    shares_fragile: Literal["Allowed", "Never"] = "Never"
    """Whether replicas may be on interruptible (spot) pools that a pipeline without a backlog names too. Never: the
    nodes that an interruption leaves are for live streams. With several shards, Never excludes all such pools."""
