"""Cron schedules: what they mean, and what is said of a text that is none."""

import re

import pytest

from controller.resources.cron import PATTERN, CronError, parse

EVERY_DAY = tuple(range(1, 32))


@pytest.mark.parametrize(
    ("text", "minutes", "hours"),
    [
        ("0 18 * * *", (0,), (18,)),
        ("*/20 8-10 * * *", (0, 20, 40), (8, 9, 10)),
        ("50/5,7 08,22 * * *", (7, 50, 55), (8, 22)),
        ("10-30/10   23  * * *", (10, 20, 30), (23,)),
    ],
)
def test_minutes_and_hours(text: str, minutes: tuple[int, ...], hours: tuple[int, ...]) -> None:
    assert (parse(text).minutes, parse(text).hours) == (minutes, hours)
    assert re.fullmatch(PATTERN, text), "the API server accepts it too"


@pytest.mark.parametrize(
    ("text", "days", "months", "weekdays"),
    [
        ("0 0 * * MON-FRI", None, tuple(range(1, 13)), (0, 1, 2, 3, 4)),
        ("0 0 * * 0", None, tuple(range(1, 13)), (6,)),
        ("0 0 * * 7", None, tuple(range(1, 13)), (6,)),
        ("0 0 * * 5-7", None, tuple(range(1, 13)), (4, 5, 6)),
        ("0 0 24,31 DEC *", (24, 31), (12,), None),
        ("0 0 1 */6 SAT", (1,), (1, 7), (5,)),
        ("0 0 1-31 * SUN", EVERY_DAY, tuple(range(1, 13)), (6,)),
        ("0 0 29 FEB *", (29,), (2,), None),
        ("0 0 * dec mon-Fri", None, (12,), (0, 1, 2, 3, 4)),
        ("0 0 ? * MON", None, tuple(range(1, 13)), (0,)),
        ("0 0 1 * ?", (1,), tuple(range(1, 13)), None),
        ("0 0 * * 1/2", None, tuple(range(1, 13)), (0, 2, 4)),
        ("0 0 * * 7/2", None, tuple(range(1, 13)), (6,)),
        ("0 0 1,* * MON", None, tuple(range(1, 13)), (0,)),
        ("0 0 1 * SUN,*", (1,), tuple(range(1, 13)), None),
        ("0 0 */2 * MON", tuple(range(1, 32, 2)), tuple(range(1, 13)), (0,)),
        ("0 0 */1 * MON", None, tuple(range(1, 13)), (0,)),
    ],
)
def test_days(
    text: str, days: tuple[int, ...] | None, months: tuple[int, ...], weekdays: tuple[int, ...] | None
) -> None:
    times = parse(text)
    assert (times.days, times.months, times.weekdays) == (days, months, weekdays)
    assert re.fullmatch(PATTERN, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 18 * *", "it has 4 of 5 fields"),
        ("@daily", "it has 1 of 5 fields"),
        ("0 0 18 * * *", "it has 6 of 5 fields"),
        ("60 18 * * *", "minute 60: must be *, a number from 0 to 59"),
        ("0 24 * * *", "hour 24: must be *, a number from 0 to 23"),
        ("0 0 0 * *", "day of month 0: must be"),
        ("0 0 * 13 *", "month 13: must be *, a number from 1 to 12 or JAN to DEC"),
        ("0 0 * * MON,FRY", "day of week FRY: must be *, a number from 0 to 7 or SUN to SAT"),
        ("*/0 0 * * *", "minute */0: must be"),
        ("0 , * * *", "hour : must be"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_its_rule(text: str, message: str) -> None:
    with pytest.raises(CronError, match=re.escape(message)):
        parse(text)
    assert not re.fullmatch(PATTERN, text), "the API server refuses it too"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 18-8 * * *", "hour 18-8: a range must not end before it begins"),
        ("0 0 30 FEB *", "never occurs: no month FEB has a day 30"),
        ("0 0 31 4,6,9,11 *", "never occurs: no month 4,6,9,11 has a day 31"),
    ],
)
def test_what_only_sluice_sees(text: str, message: str) -> None:
    with pytest.raises(CronError, match=re.escape(message)):
        parse(text)


def test_a_day_of_the_week_makes_up_for_a_day_that_no_month_has() -> None:
    assert parse("0 0 30 FEB MON").weekdays == (0,)
