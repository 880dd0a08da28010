"""Cron schedules as Kubernetes' CronJobs have them: five fields with `*` or `?`, lists, ranges, steps, and names."""

import re
from dataclasses import dataclass

RULE = 'must be a cron schedule: minute, hour, day of month, month and day of week, such as "0 18 * * MON-FRI"'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """A field of a schedule with its numbers, and `names` of the numbers from the least one. `number` matches one.

    `end` is where `*` and ranges without an end stop.
    """

    title: str
    least: int
    most: int
    end: int
    number: str
    names: tuple[str, ...] = ()

    def value(self, text: str) -> int:
        name = text.upper()
        return self.least + self.names.index(name) if name in self.names else int(text)


_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIELDS = (
    _Field(title="minute", least=0, most=59, end=59, number="[0-5]?[0-9]"),
    _Field(title="hour", least=0, most=23, end=23, number="(?:[01]?[0-9]|2[0-3])"),
    _Field(title="day of month", least=1, most=31, end=31, number="(?:0?[1-9]|[12][0-9]|3[01])"),
    _Field(
        title="month", least=1, most=12, end=12, number=f"(?:0?[1-9]|1[0-2]|(?i:{'|'.join(_MONTHS)}))", names=_MONTHS
    ),
    _Field(
        title="day of week", least=0, most=7, end=6, number=f"(?:[0-7]|(?i:{'|'.join(_WEEKDAYS)}))", names=_WEEKDAYS
    ),
)
_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _pattern(number: str) -> str:
    part = f"(?:[*?]|{number}(?:-{number})?)(?:/[1-9][0-9]?)?"
    return f"{part}(?:,{part})*"


PATTERN = f"^{' +'.join(_pattern(field.number) for field in _FIELDS)}$"
"""What CEL checks of a schedule: all but the order of ranges, and that it has a time at all."""


class CronError(ValueError):
    """A text is no cron schedule; the message says which field is wrong, its value, and the rule that it breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """The times of a schedule, as in `controller.core.state.schedule.CronFloor`."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...] | None
    months: tuple[int, ...]
    weekdays: tuple[int, ...] | None


def parse(text: str) -> Cron:
    """Return the times of the cron schedule `text`.

    Raises:
        CronError: `text` is no schedule, or has no time.
    """
    parts = [part for part in text.split(" ") if part]
    if len(parts) != len(_FIELDS):
        raise CronError(f"{RULE}; it has {len(parts)} of 5 fields")
    minutes, hours, days, months, weekdays = (_numbers(field, part) for field, part in zip(_FIELDS, parts, strict=True))
    # As in CronJobs, * chooses no days: the other field alone does. Where both choose, a day needs only one of them.
    chosen_days = None if _has_star(parts[2]) else days
    chosen_weekdays = None if _has_star(parts[4]) else weekdays
    if (
        chosen_weekdays is None
        and chosen_days is not None
        and min(days) > max(_LONGEST_MONTHS[month - 1] for month in months)
    ):
        raise CronError(f"never occurs: no month {parts[3]} has a day {parts[2]}")
    return Cron(
        minutes=minutes,
        hours=hours,
        days=chosen_days,
        months=months,
        # Cron's week begins on Sunday, day 0 or 7; Python's on Monday.
        weekdays=None if chosen_weekdays is None else tuple(sorted({(day - 1) % 7 for day in chosen_weekdays})),
    )


def _has_star(text: str) -> bool:
    """Whether a part of the field is `*` or `?`, without a step above 1."""
    return not {"*", "?", "*/1", "?/1"}.isdisjoint(text.split(","))


def _numbers(field: _Field, text: str) -> tuple[int, ...]:
    numbers: set[int] = set()
    for part in text.split(","):
        if not re.fullmatch(_pattern(field.number), part):
            names = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
            raise CronError(
                f"{field.title} {part}: must be *, a number from {field.least} to {field.most}{names}, or a range, "
                "with a step such as */5 where wanted"
            )
        chosen, _, step = part.partition("/")
        first, _, last = chosen.partition("-")
        every = first in {"*", "?"}
        low = field.least if every else field.value(first)
        high = field.value(last) if last else max(low, field.end) if every or step else low
        if low > high:
            raise CronError(f"{field.title} {part}: a range must not end before it begins")
        numbers.update(range(low, high + 1, int(step or 1)))
    return tuple(sorted(numbers))
