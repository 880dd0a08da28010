"""A time zone is its offsets from UTC with the times at which they change."""

from datetime import UTC, datetime

import pytest

from controller.resources.time_zones import FIRST_YEAR, LAST_YEAR, time_zone, zone_names


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_utc_never_changes() -> None:
    assert (time_zone("UTC").first_offset_s, time_zone("UTC").changes) == (0.0, ())


def test_daylight_saving_begins_and_ends_to_the_second() -> None:
    berlin = time_zone("Europe/Berlin")
    assert berlin.first_offset_s == 3600.0
    assert (at("2026-03-29T01:00:00Z"), 7200.0) in berlin.changes
    assert (at("2026-10-25T01:00:00Z"), 3600.0) in berlin.changes
    assert len(berlin.changes) == 2 * (LAST_YEAR - FIRST_YEAR + 1)


def test_a_zone_far_from_utc_with_half_an_hour_of_daylight_saving() -> None:
    assert (at("2026-04-05T02:00:00+11:00"), 37800.0) in time_zone("Australia/Lord_Howe").changes


def test_names_are_those_of_iana() -> None:
    assert {"UTC", "Europe/Berlin", "America/New_York"} <= zone_names()
    assert "Europe" not in zone_names()


@pytest.mark.parametrize("name", ["Africa/Casablanca", "America/New_York", "Asia/Kolkata", "Pacific/Kiritimati"])
def test_offsets_are_those_of_the_time_zone_data(name: str) -> None:
    from zoneinfo import ZoneInfo

    zone = time_zone(name)
    for hour in range(0, 24 * 365 * 3, 7):
        now_s = at("2026-01-01T00:00:00Z") + 3600 * hour
        expected = datetime.fromtimestamp(now_s, UTC).astimezone(ZoneInfo(name)).utcoffset()
        found = next((offset_s for at_s, offset_s in reversed(zone.changes) if at_s <= now_s), zone.first_offset_s)
        assert expected is not None
        assert found == expected.total_seconds()
