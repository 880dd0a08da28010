"""Numbers for readers."""

import pytest

from simulations.report import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.996, "99.6 %"),
        (0.9996, "99.96 %"),
        (0.99999, "99.999 %"),
        (0.9999999, "over 99.999 %"),
        (0.0004, "0.04 %"),
        (1e-9, "under 0.001 %"),
        (0.5, "50.0 %"),
        (1.1, "110.0 %"),
    ],
)
def test_a_share_never_looks_like_all_or_nothing_when_it_is_not(value: float | None, text: str) -> None:
    assert formats.share(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "$0.00"),
        (0.0421, "$0.042"),
        (0.5, "$0.50"),
        (0.758, "$0.758"),
        (9.899, "$9.90"),
        (1234.5, "$1,234.50"),
    ],
)
def test_money(value: float | None, text: str) -> None:
    assert formats.money(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61, "1:01"), (3599.6, "1:00:00"), (7322, "2:02:02")])
def test_a_moment_of_a_run(seconds: float, text: str) -> None:
    assert formats.clock(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(10, "10 s"), (90, "1.5 min"), (3000, "50 min"), (86400, "24 h")])
def test_a_length_of_time(seconds: float, text: str) -> None:
    assert formats.span(seconds) == text


def test_a_spread_is_told_where_there_is_one() -> None:
    assert formats.spread((9.7, 10.1), formats.money) == "$9.70 to $10.10"
    assert formats.spread((9.7, 9.7), formats.money) == ""
    assert formats.spread((9.7, 9.7001), formats.money) == ""
    assert formats.spread(None, formats.money) == ""


def test_an_infinite_latency_is_no_number() -> None:
    assert formats.latency(None) == "no answer"
    assert formats.latency(0.25) == "250 ms"


def test_lists_counts_and_changes() -> None:
    assert formats.listed(["a"]) == "a"
    assert formats.listed(["a", "b", "c"]) == "a, b and c"
    assert formats.plural(1, "seed") == "1 seed"
    assert formats.plural(1200, "window") == "1,200 windows"
    assert formats.change(-0.234) == "−23 %"
    assert formats.change(0.87) == "+87 %"
    assert formats.count(1234.6) == "1,235"
    assert formats.count(2.25) == "2.2"
