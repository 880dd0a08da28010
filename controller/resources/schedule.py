"""The least demand of known times: entries of `spec.demand.atLeast` and `spec.demand.expected`."""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controller.resources import cron
from controller.resources.base import Breach, Constraint, ListSet, Part, constraint
from controller.resources.fields import (
    ClockTime,
    DecimalString,
    EndTime,
    Label,
    Moment,
    PositiveDuration,
    ZoneName,
)
from controller.resources.parsing import nearest_name
from controller.resources.time_zones import zone_names

MAX_FLOORS = 16
MAX_SCHEDULE = 128


def _unknown_zone(entry: "LeastDemand | CronEntry") -> Iterator[Breach]:
    if entry.time_zone is not None and entry.time_zone not in zone_names():
        nearest = nearest_name(entry.time_zone, sorted(zone_names()))
        hint = f"; did you mean {nearest}?" if nearest else ""
        yield Breach(path=("timeZone",), rule=f"must be an IANA time zone such as Europe/Berlin{hint}")


_ZONE = Constraint(find=_unknown_zone, cel=None, rule="must be an IANA time zone", field="timeZone")
"""Only the machine that evaluates the schedule knows its time zone data."""


def _bad_schedule(entry: "CronEntry") -> Iterator[Breach]:
    try:
        cron.parse(entry.schedule)
    except cron.CronError as error:
        yield Breach(path=("schedule",), rule=str(error))


class CronEntry(Part):
    """Times that repeat by a cron schedule."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        Constraint(
            find=_bad_schedule, cel=f"self.schedule.matches('{cron.PATTERN}')", rule=cron.RULE, field="schedule"
        ),
        _ZONE,
    )

    schedule: Annotated[str, Field(max_length=MAX_SCHEDULE)]
    """When it begins, as a cron schedule: minute, hour, day of month, month and day of week, such as
    "0 18 * * MON-FRI". The names are those of English."""
    time_zone: ZoneName | None = None
    """IANA name of the time zone of the schedule, such as Europe/Berlin. By default UTC."""
    for_: Annotated[PositiveDuration, Field(alias="for")]
    """How long it lasts each time."""


class ExpectedDemand(CronEntry):
    """A demand that is known in advance and repeats: events by a cron schedule."""

    at_least: DecimalString
    """Least demand to plan for during the events, in the pipeline's unit."""


_WEEKLY = "(has(self.from) || has(self.until))"
_ONCE = "(has(self.start) || has(self.end))"


class LeastDemand(Part):
    """A demand that is known in advance: weekly hours (from, until) or an event that happens once (start, end)."""

    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda entry: _weekly(entry) != _once(entry),
            cel=f"{_WEEKLY} != {_ONCE}",
            rule="needs either from and until, or start and end",
        ),
        constraint(
            holds=lambda entry: not _weekly(entry) or (entry.from_ is not None and entry.until is not None),
            cel=f"!{_WEEKLY} || (has(self.from) && has(self.until))",
            rule="from and until must be given together",
        ),
        constraint(
            holds=lambda entry: not _once(entry) or (entry.start is not None and entry.end is not None),
            cel=f"!{_ONCE} || (has(self.start) && has(self.end))",
            rule="start and end must be given together",
        ),
        constraint(
            holds=lambda entry: _weekly(entry) or not _once(entry) or (entry.days is None and entry.time_zone is None),
            cel=f"{_WEEKLY} || !{_ONCE} || (!has(self.days) && !has(self.timeZone))",
            rule="days and timeZone are allowed only with from and until",
        ),
        constraint(
            holds=lambda entry: entry.from_ is None or entry.from_ != entry.until,
            cel="!has(self.from) || !has(self.until) || self.from != self.until",
            rule='must not be equal to from; a whole day is from "00:00" until "24:00"',
            field="until",
        ),
        constraint(
            holds=lambda entry: (
                entry.start is None
                or entry.end is None
                or datetime.fromisoformat(entry.start) < datetime.fromisoformat(entry.end)
            ),
            cel="!has(self.start) || !has(self.end) || timestamp(self.start) < timestamp(self.end)",
            rule="must be after start",
            field="end",
        ),
        _ZONE,
    )

    name: Label
    """Name of the entry, unique within the pipeline."""
    demand: DecimalString
    """Least demand to plan for, in the pipeline's unit."""
    from_: Annotated[ClockTime | None, Field(alias="from")] = None
    """Time of day at which the hours begin, such as "08:00"."""
    until: EndTime | None = None
    """Time of day at which the hours end, such as "18:00" or "24:00". If it is before from, they end on the next
    day."""
    days: Annotated[
        list[Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]] | None,
        ListSet(),
        Field(min_length=1, max_length=7),
    ] = None
    """Days of the week on which the hours begin. By default every day."""
    time_zone: ZoneName | None = None
    """IANA name of the time zone of from, until and days, such as Europe/Berlin. By default UTC."""
    start: Moment | None = None
    """When an event begins, as an RFC 3339 time such as 2026-12-24T18:00:00Z."""
    end: Moment | None = None
    """When the event ends."""


def _weekly(entry: LeastDemand) -> bool:
    return entry.from_ is not None or entry.until is not None


def _once(entry: LeastDemand) -> bool:
    return entry.start is not None or entry.end is not None
