import pytest

from controller.resources.fields import clock_s, duration_s, moment_s, quantity_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("160ms", 0.16), ("1m30s", 90.0), ("1500us", 0.0015), ("1.5h", 5400.0), ("0s", 0.0), ("0.0001us", 0.0)],
)
def test_durations_are_seconds_in_whole_nanoseconds(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("24Gi", 24 * 2**30), ("1.5G", 1.5e9), ("512", 512.0), ("1k", 1000.0), ("2Ti", 2 * 2**40)]
)
def test_quantities_are_bytes(text: str, size: float) -> None:
    assert quantity_bytes(text) == size


def test_times_of_day_are_seconds_since_midnight() -> None:
    assert [clock_s(text) for text in ("00:00", "08:30", "24:00")] == [0.0, 30600.0, 86400.0]


def test_moments_are_seconds_since_the_epoch_whatever_their_offset() -> None:
    assert moment_s("2026-12-24T18:00:00Z") == moment_s("2026-12-24T19:00:00+01:00") == 1798135200.0
