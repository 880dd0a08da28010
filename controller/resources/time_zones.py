"""Time zones by their IANA names, read from the time zone data of the system, or else of the package `tzdata`."""

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from controller.core.state.schedule import TimeZone

FIRST_YEAR, LAST_YEAR = 2025, 2050
"""Changes of the offset are known in these years. Before and after, the nearest offset holds."""
_STEP = timedelta(days=1)
"""No zone changes its offset twice within this time."""


@cache
def zone_names() -> frozenset[str]:
    """Return the names of all time zones in the time zone data."""
    return frozenset(available_timezones())


@cache
def time_zone(name: str) -> TimeZone:
    """Return the time zone `name`, one of `zone_names()`, with its changes of the offset to the second."""
    zone = ZoneInfo(name)
    at, end = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC), datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC)
    first_s = before_s = _offset_s(zone, at)
    changes: list[tuple[float, float]] = []
    while at < end:
        later = at + _STEP
        if (offset_s := _offset_s(zone, later)) != before_s:
            changes.append((_change(zone, at, later).timestamp(), offset_s))
            before_s = offset_s
        at = later
    return TimeZone(name=name, first_offset_s=first_s, changes=tuple(changes))


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Return the first second with the offset of `after`, by bisection."""
    offset_s = _offset_s(zone, after)
    while after - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=(after - before) // timedelta(seconds=2))
        if _offset_s(zone, middle) == offset_s:
            after = middle
        else:
            before = middle
    return after


def _offset_s(zone: ZoneInfo, at: datetime) -> float:
    offset = at.astimezone(zone).utcoffset()
    assert offset is not None, "a ZoneInfo has an offset at every time"
    return offset.total_seconds()
