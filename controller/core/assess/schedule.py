"""Which declared least demand is in force: the highest entry of `spec.demand.atLeast` and `spec.demand.expected` that
is active in an interval."""

from collections.abc import Iterator, Sequence
from datetime import date

from controller.core.state.schedule import CronFloor, CronWindows, DemandFloor, EventFloor, TimeZone, WeeklyFloor

_DAY_S = 86_400.0
_FIRST_DAY = 3
"""The epoch began on a Thursday."""
_EPOCH = date(1970, 1, 1).toordinal()


def highest_floor(floors: Sequence[DemandFloor], from_s: float, until_s: float) -> DemandFloor | None:
    """Return the entry with the highest demand of those active at any time from `from_s` to `until_s`, None: none is.

    Both times are included. Of entries with the same demand, the first one declared is returned.
    """
    active = [floor for floor in floors if _is_active(floor, from_s, until_s)]
    return max(active, key=lambda floor: floor.demand, default=None)


def _is_active(floor: DemandFloor, from_s: float, until_s: float) -> bool:
    if isinstance(floor, EventFloor):
        return floor.start_s <= until_s and floor.end_s > from_s
    if isinstance(floor, CronFloor):
        return is_open(floor.windows, from_s, until_s)
    return any(start_s <= until_s and end_s > from_s for start_s, end_s in _hours(floor, from_s, until_s))


def _hours(floor: WeeklyFloor, from_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    """Yield start and end of the hours of `floor` on all days that may overlap `from_s` to `until_s`."""
    offsets_s = [offset_s for _, _, offset_s in _offsets(floor.zone)]
    first_s, last_s = from_s + min(offsets_s), until_s + max(offsets_s)
    # Hours end on the next day at the latest.
    for day in range(int(first_s // _DAY_S) - 1, int(last_s // _DAY_S) + 1):
        if (day + _FIRST_DAY) % 7 in floor.days:
            midnight_s = day * _DAY_S
            ends_next_day = floor.until_s <= floor.from_s
            end_s = midnight_s + floor.until_s + (_DAY_S if ends_next_day else 0.0)
            yield _first(floor.zone, midnight_s + floor.from_s), _last(floor.zone, end_s)


def is_open(windows: CronWindows, from_s: float, until_s: float) -> bool:
    """Return whether one of `windows` is open at any time from `from_s` to `until_s`, both included."""
    return _occurs(windows, from_s - windows.for_s, until_s)


def _occurs(windows: CronWindows, after_s: float, until_s: float) -> bool:
    """Return whether a time of the schedule is later than `after_s` and not later than `until_s`.

    Times that the clocks skip when they are set forward occur at the change. Times that they show twice occur twice.
    """
    before_s: float | None = None
    for start_s, end_s, offset_s in _offsets(windows.zone):
        if (
            before_s is not None
            and after_s < start_s <= until_s
            and _has(windows, start_s + before_s, start_s + offset_s)
        ):
            return True
        # A time at `after_s` is too early; times are whole minutes, so half a second excludes it alone.
        first_s, last_s = max(start_s, after_s + 0.5), min(end_s, until_s + 0.5)
        if _has(windows, first_s + offset_s, last_s + offset_s):
            return True
        before_s = offset_s
    return False


def _has(windows: CronWindows, from_s: float, until_s: float) -> bool:
    """Return whether the schedule has a time from `from_s` to before `until_s`, both as shown by the clocks."""
    if until_s <= from_s:
        return False
    for day in range(int(from_s // _DAY_S), int(until_s // _DAY_S) + 1):
        if _on(windows, day):
            for hour in windows.hours:
                hour_s = day * _DAY_S + hour * 3600.0
                if hour_s >= until_s or hour_s + 3600.0 <= from_s:
                    continue
                if any(from_s <= hour_s + 60.0 * minute < until_s for minute in windows.minutes):
                    return True
    return False


def _on(windows: CronWindows, day: int) -> bool:
    """Return whether the schedule has times on `day`, counted from the epoch."""
    calendar = date.fromordinal(_EPOCH + day)
    if calendar.month not in windows.months:
        return False
    named = [
        number in chosen
        for number, chosen in ((calendar.day, windows.days), (calendar.weekday(), windows.weekdays))
        if chosen is not None
    ]
    return not named or any(named)


def _first(zone: TimeZone, local_s: float) -> float:
    """Return the first time at which the clocks of `zone` show `local_s` or later.

    `local_s` counts as if local time were UTC. When clocks are set forward, they skip it: the time of the change is
    returned.
    """
    for start_s, end_s, offset_s in _offsets(zone):
        if max(start_s, local_s - offset_s) < end_s:
            return max(start_s, local_s - offset_s)
    raise AssertionError("the last offset has no end")


def _last(zone: TimeZone, local_s: float) -> float:
    """Return the last time until which the clocks of `zone` show less than `local_s`.

    When clocks are set back, they show `local_s` twice: the second time is returned.
    """
    return max(
        min(end_s, local_s - offset_s)
        for start_s, end_s, offset_s in _offsets(zone)
        if min(end_s, local_s - offset_s) > start_s
    )


def _offsets(zone: TimeZone) -> Iterator[tuple[float, float, float]]:
    """Yield start, end and offset of every interval of one offset."""
    starts = (float("-inf"), *(at_s for at_s, _ in zone.changes))
    ends = (*(at_s for at_s, _ in zone.changes), float("inf"))
    offsets = (zone.first_offset_s, *(offset_s for _, offset_s in zone.changes))
    yield from zip(starts, ends, offsets, strict=True)
