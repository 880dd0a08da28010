"""The declared least demand of known times: weekly hours, and events that happen once (`spec.demand.atLeast`)."""

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


DemandFloor = WeeklyFloor | EventFloor
"""One entry of `spec.demand.atLeast`, in the pipeline's unit."""
