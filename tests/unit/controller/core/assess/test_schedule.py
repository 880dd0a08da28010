"""Which entry of `spec.demand.atLeast` is in force, by the clocks of its time zone."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest

from controller.core.assess.schedule import highest_floor
from controller.core.state.schedule import CronFloor, CronWindows, EventFloor, TimeZone, WeeklyFloor
from controller.resources import cron
from controller.resources.time_zones import time_zone

EVERY_DAY = tuple(range(7))
WORKDAYS = tuple(range(5))


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def hours(
    from_: float, until: float, *, days: tuple[int, ...] = EVERY_DAY, zone: str = "UTC", demand: float = 400.0
) -> WeeklyFloor:
    return WeeklyFloor(
        name="hours", demand=demand, from_s=3600 * from_, until_s=3600 * until, days=days, zone=time_zone(zone)
    )


def events(schedule: str, *, for_s: float = 3600.0, zone: str = "UTC", demand: float = 400.0) -> CronFloor:
    times = cron.parse(schedule)
    windows = CronWindows(
        minutes=times.minutes,
        hours=times.hours,
        days=times.days,
        months=times.months,
        weekdays=times.weekdays,
        for_s=for_s,
        zone=time_zone(zone),
    )
    return CronFloor(name=schedule, demand=demand, windows=windows)


def is_active(floor: WeeklyFloor | EventFloor | CronFloor, when: str, ahead_s: float = 0.0) -> bool:
    return highest_floor((floor,), at(when), at(when) + ahead_s) is floor


def test_hours_begin_and_end_by_the_clock() -> None:
    floor = hours(8, 18)
    assert not is_active(floor, "2026-11-23T07:59:59Z")
    assert is_active(floor, "2026-11-23T08:00:00Z")
    assert is_active(floor, "2026-11-23T17:59:59Z")
    assert not is_active(floor, "2026-11-23T18:00:00Z")


def test_hours_count_as_long_before_as_replicas_need() -> None:
    assert is_active(hours(8, 18), "2026-11-23T07:55:00Z", ahead_s=300.0)
    assert not is_active(hours(8, 18), "2026-11-23T07:54:59Z", ahead_s=300.0)


def test_hours_within_the_time_ahead_count() -> None:
    assert is_active(hours(8, 8.5), "2026-11-23T07:00:00Z", ahead_s=7200.0)


def test_hours_are_those_of_the_given_days() -> None:
    floor = hours(8, 18, days=WORKDAYS)
    days = ["23", "24", "25", "26", "27", "28", "29"]  # 2026-11-23 is a Monday
    assert [is_active(floor, f"2026-11-{day}T12:00:00Z") for day in days] == [True] * 5 + [False] * 2


def test_hours_past_midnight_belong_to_the_day_on_which_they_begin() -> None:
    floor = hours(22, 6, days=(4,))
    assert not is_active(floor, "2026-11-27T05:00:00Z")
    assert is_active(floor, "2026-11-27T22:00:00Z")
    assert is_active(floor, "2026-11-28T05:59:59Z")
    assert not is_active(floor, "2026-11-28T06:00:00Z")
    assert not is_active(floor, "2026-11-28T22:00:00Z")


def test_a_whole_day_has_no_gap() -> None:
    floor = hours(0, 24, days=(0,))
    assert not is_active(floor, "2026-11-22T23:59:59Z")
    assert is_active(floor, "2026-11-23T00:00:00Z")
    assert is_active(floor, "2026-11-23T23:59:59Z")
    assert not is_active(floor, "2026-11-24T00:00:00Z")


def test_clocks_of_a_zone_count_before_and_after_daylight_saving() -> None:
    floor = hours(8, 18, zone="Europe/Berlin")
    for winter_or_summer in ("2026-03-28T08:00:00+01:00", "2026-03-29T08:00:00+02:00", "2026-10-25T08:00:00+01:00"):
        assert is_active(floor, winter_or_summer)
        assert not is_active(floor, winter_or_summer.replace("08:00:00", "07:59:59"))


def test_hours_that_begin_while_clocks_are_set_forward_begin_with_the_change() -> None:
    floor = hours(2.5, 8, zone="Europe/Berlin")  # 02:30 does not exist on this day
    assert not is_active(floor, "2026-03-29T00:59:59Z")
    assert is_active(floor, "2026-03-29T01:00:00Z")


def test_hours_that_end_while_clocks_are_set_forward_end_with_the_change() -> None:
    floor = hours(1, 2.5, zone="Europe/Berlin")
    assert is_active(floor, "2026-03-29T00:59:59Z")
    assert not is_active(floor, "2026-03-29T01:00:00Z")


def test_hours_with_an_hour_that_comes_twice_last_through_both() -> None:
    begins, ends = hours(2.5, 8, zone="Europe/Berlin"), hours(1, 2.5, zone="Europe/Berlin")
    assert not is_active(begins, "2026-10-25T02:29:59+02:00")
    assert is_active(begins, "2026-10-25T02:30:00+02:00")
    assert is_active(begins, "2026-10-25T02:00:00+01:00")
    assert is_active(ends, "2026-10-25T02:29:59+01:00")
    assert not is_active(ends, "2026-10-25T02:30:00+01:00")


@pytest.mark.parametrize(("zone", "offset"), [("Pacific/Kiritimati", "+14:00"), ("Pacific/Pago_Pago", "-11:00")])
def test_days_are_those_of_the_zone(zone: str, offset: str) -> None:
    floor = hours(0, 24, days=(0,), zone=zone)
    assert is_active(floor, f"2026-11-23T00:00:00{offset}")
    assert is_active(floor, f"2026-11-23T23:59:59{offset}")
    assert not is_active(floor, f"2026-11-22T23:59:59{offset}")
    assert not is_active(floor, f"2026-11-24T00:00:00{offset}")


def test_times_before_the_epoch_have_days_too() -> None:
    floor = WeeklyFloor(
        name="a", demand=1.0, from_s=0.0, until_s=86400.0, days=(2,), zone=TimeZone(name="UTC", first_offset_s=0.0)
    )
    assert highest_floor((floor,), -1.0, -1.0) is floor  # Wednesday, 31 December 1969
    assert highest_floor((floor,), 0.0, 0.0) is None


def test_an_event_happens_once() -> None:
    floor = EventFloor(name="a", demand=9.0, start_s=at("2026-12-24T18:00:00Z"), end_s=at("2026-12-24T20:00:00Z"))
    assert not is_active(floor, "2026-12-24T17:58:59Z", ahead_s=60.0)
    assert is_active(floor, "2026-12-24T17:59:00Z", ahead_s=60.0)
    assert is_active(floor, "2026-12-24T19:59:59Z")
    assert not is_active(floor, "2026-12-24T20:00:00Z")
    assert not is_active(floor, "2027-12-24T19:00:00Z")


def test_the_highest_entry_counts() -> None:
    low, high, over = hours(0, 24, demand=10.0), hours(8, 18, demand=400.0), hours(8, 9, demand=900.0)
    noon, night = at("2026-11-23T12:00:00Z"), at("2026-11-23T20:00:00Z")
    assert highest_floor((low, high, over), noon, noon) is high
    assert highest_floor((low, high, over), night, night) is low
    assert highest_floor((), noon, noon) is None


def test_expected_events_begin_by_the_schedule_and_last_as_long_as_stated() -> None:
    floor = events("0 18 * * MON-FRI", for_s=7200.0, zone="Europe/Berlin")
    assert not is_active(floor, "2026-11-23T17:59:59+01:00")
    assert is_active(floor, "2026-11-23T18:00:00+01:00")
    assert is_active(floor, "2026-11-23T19:59:59+01:00")
    assert not is_active(floor, "2026-11-23T20:00:00+01:00")
    assert not is_active(floor, "2026-11-22T18:30:00+01:00"), "a Sunday"
    assert is_active(floor, "2026-07-20T18:00:00+02:00"), "the clocks of the zone count"


def test_expected_events_count_as_long_before_as_replicas_need() -> None:
    assert is_active(events("30 7 1 * *"), "2026-12-01T07:25:00Z", ahead_s=300.0)
    assert not is_active(events("30 7 1 * *"), "2026-12-01T07:24:59Z", ahead_s=300.0)


def test_an_event_past_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    floor = events("0 23 31 12 *", for_s=10_800.0)
    assert is_active(floor, "2027-01-01T01:59:59Z")
    assert not is_active(floor, "2027-01-01T02:00:00Z")


def test_an_event_at_a_time_that_the_clocks_skip_begins_with_the_change() -> None:
    floor = events("30 2 * * *", for_s=600.0, zone="Europe/Berlin")
    assert not is_active(floor, "2026-03-29T00:59:59Z")
    assert is_active(floor, "2026-03-29T01:00:00Z")
    assert is_active(floor, "2026-03-29T01:09:59Z")
    assert not is_active(floor, "2026-03-29T01:10:00Z")


def test_an_event_at_a_time_that_the_clocks_show_twice_happens_twice() -> None:
    floor = events("30 2 * * *", for_s=600.0, zone="Europe/Berlin")
    assert is_active(floor, "2026-10-25T02:30:00+02:00")
    assert not is_active(floor, "2026-10-25T02:00:00+01:00")
    assert is_active(floor, "2026-10-25T02:30:00+01:00")


SCHEDULES = ("0 18 * * *", "*/45 1-3 * * *", "15 2 * 3,10 SUN", "0 0 29 2 *", "59 23 28-31 * *", "7 */5 13 * FRI")
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Kiritimati", "Asia/Kolkata")


def minutes_shown(zone: str, from_s: float, until_s: float) -> Iterator[tuple[float, datetime]]:
    """Yield every minute of the interval with the time that the clocks show, and at a change what they skip."""
    clocks, at_s = ZoneInfo(zone), from_s
    while at_s <= until_s:
        now = datetime.fromtimestamp(at_s, UTC).astimezone(clocks).replace(tzinfo=None)
        before = datetime.fromtimestamp(at_s - 60, UTC).astimezone(clocks).replace(tzinfo=None)
        yield at_s, now
        while (before := before + timedelta(minutes=1)) < now:
            yield at_s, before
        at_s += 60


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("zone", ZONES)
def test_events_are_those_found_minute_by_minute(schedule: str, zone: str) -> None:
    times, random = cron.parse(schedule), Random(schedule + zone)
    changes = [at_s for at_s, _ in time_zone(zone).changes if at_s < at("2028-12-31T00:00:00Z")]
    for _ in range(8):
        middle_s = random.choice(changes or [at("2028-02-29T00:00:00Z")]) + 60 * random.randint(-1500, 1500)
        for_s, ahead_s = 60.0 * random.randint(1, 300), 60.0 * random.randint(0, 300)
        found = any(
            shown.minute in times.minutes
            and shown.hour in times.hours
            and shown.month in times.months
            and (
                (times.days is None and times.weekdays is None)
                or (times.days is not None and shown.day in times.days)
                or (times.weekdays is not None and shown.weekday() in times.weekdays)
            )
            for at_s, shown in minutes_shown(zone, middle_s - for_s, middle_s + ahead_s)
            if at_s > middle_s - for_s
        )
        floor = events(schedule, for_s=for_s, zone=zone)
        assert (highest_floor((floor,), middle_s, middle_s + ahead_s) is floor) == found
