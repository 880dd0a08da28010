"""Seconds become units of work once, in the shell; what is decided with them needs no clock."""

from collections.abc import Iterator

import pytest

from controller.calibration import RUNS, reference, search_effort


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each question takes, the one that is compiled first."""
    took = [5.0, 0.4, 0.2, 0.1, 0.3, 0.2]
    times: Iterator[float] = iter([edge for each in took[1:] for edge in (100.0, 100.0 + each)])
    monkeypatch.setattr("controller.calibration.time.thread_time", lambda: next(times))
    return took


def test_the_limit_is_what_the_least_disturbed_run_would_do_in_the_time(seconds: list[float]) -> None:
    assert len(seconds) == RUNS + 1
    # 1000 units in 0.1 s: 20,000 in two seconds, rounded down to a power of two
    assert search_effort(2.0, solve=lambda: 1000) == 16_384


def test_there_is_always_some_work_allowed(seconds: list[float]) -> None:
    assert search_effort(1e-9, solve=lambda: 0) == 1


def test_the_question_it_measures_by_is_work_and_always_the_same() -> None:
    solve = reference()
    first = solve()
    assert first > 0
    assert solve() == first == reference()()
