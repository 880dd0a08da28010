"""The declared least demand of known times: `spec.demand.atLeast` (weekly hours, events that happen once) and
`spec.demand.expected` (events by a cron schedule)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeZone:
    """A time zone as its offsets from UTC in seconds: `first_offset_s`, and from each time in `changes` a new one.

    `changes` are pairs of time, in seconds since the epoch, and offset, in the order of time. A zone of a decision is a
    value, so that the decision can be repeated on a machine with other time zone data.
    """

    name: str
    first_offset_s: float
    changes: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeeklyFloor:
    """The demand is at least `demand` on each of `days` from `from_s` to `until_s`, in seconds since local midnight.

    Monday is day 0. Hours whose `until_s` is not after `from_s` end on the next day.
    """

    name: str
    demand: float
    from_s: float
    until_s: float
    days: tuple[int, ...]
    zone: TimeZone


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFloor:
    """The demand is at least `demand` from `start_s` to `end_s`, in seconds since the epoch."""

    name: str
    demand: float
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CronWindows:
    """The times from every time of a cron schedule until `for_s` seconds later, by the clocks of `zone`.

    `days` are those of the month, `weekdays` those of the week with Monday as day 0; None: all. Where both are set, a
    day needs only one of them.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...] | None
    months: tuple[int, ...]
    weekdays: tuple[int, ...] | None
    for_s: float
    zone: TimeZone


@dataclass(frozen=True, slots=True, kw_only=True)
class CronFloor:
    """The demand is at least `demand` in each of `windows`. `name` is the text of their schedule."""

    name: str
    demand: float
    windows: CronWindows


DemandFloor = WeeklyFloor | EventFloor | CronFloor
"""One entry of `spec.demand.atLeast` or `spec.demand.expected`, in the pipeline's unit."""


def field_of(floor: DemandFloor) -> str:
    """Return the field of `spec.demand` that `floor` is an entry of."""
    return "expected" if isinstance(floor, CronFloor) else "atLeast"


def declared_as(floor: DemandFloor) -> str:
    """Return the field and the name of `floor`, such as `demand.atLeast business-hours`, for texts."""
    return f"demand.{field_of(floor)} {floor.name}"
