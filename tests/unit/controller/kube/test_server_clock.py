import logging
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from controller.kube.server_clock import ServerClock

NOW_S = 1_795_651_200.3


class Machines:
    """An operator and an API server whose clock is `ahead_s`; `passed_s` have passed on both."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s
        self.passed_s = 0.0
        self.jumped_s = 0.0
        self.clock = ServerClock(wall=lambda: NOW_S + self.passed_s + self.jumped_s, steady=lambda: self.passed_s)

    @property
    def server_s(self) -> float:
        return NOW_S + self.passed_s + self.ahead_s

    def answer(self, *, takes_s: float = 0.05, times: int = 1) -> None:
        for _ in range(times):
            sent_s = self.passed_s
            self.passed_s += takes_s / 2
            date = format_datetime(datetime.fromtimestamp(int(self.server_s), UTC), usegmt=True)
            self.passed_s += takes_s / 2
            self.clock.answered(date, sent_s)
            self.passed_s += 0.37  # anywhere in a second


@pytest.mark.parametrize("ahead_s", [-3600.0, -300.0, 42.0, 86_400.0])
def test_a_clock_that_differs_is_measured_and_the_servers_is_used(ahead_s: float) -> None:
    machines = Machines(ahead_s)
    machines.answer(times=10)
    assert machines.clock.skew_s() == pytest.approx(ahead_s, abs=0.5)
    assert machines.clock.now_s() == pytest.approx(machines.server_s, abs=0.5)


@pytest.mark.parametrize("ahead_s", [-1.0, 0.0, 1.0])
def test_clocks_that_hardly_differ_leave_the_operators_as_it_is(ahead_s: float) -> None:
    machines = Machines(ahead_s)
    for _ in range(20):
        machines.answer()
        assert machines.clock.now_s() == NOW_S + machines.passed_s


def test_clocks_whose_difference_is_around_the_tolerated_one_never_step_back() -> None:
    machines = Machines(2.4)
    machines.answer(times=40)
    before_s = machines.clock.now_s()
    for number in range(100):
        machines.jumped_s = 0.4 + 0.3 * (number % 2)  # the operator's clock is slewed
        machines.passed_s += 0.1
        now_s = machines.clock.now_s()
        assert now_s > before_s
        before_s = now_s
    machines.jumped_s = 2.4
    assert machines.clock.now_s() == NOW_S + machines.passed_s + machines.jumped_s, "its own again"


def test_before_the_first_answers_nothing_is_known() -> None:
    machines = Machines(300.0)
    machines.answer(times=2)
    assert machines.clock.skew_s() is None
    assert machines.clock.now_s() == NOW_S + machines.passed_s


def test_a_clock_that_is_set_while_the_operator_runs_moves_no_deadline() -> None:
    machines = Machines(0.0)
    machines.answer(times=10)
    machines.jumped_s = -3600.0
    assert machines.clock.now_s() == pytest.approx(machines.server_s, abs=0.5)
    assert machines.clock.skew_s() == pytest.approx(3600.0, abs=0.5)


def test_a_server_whose_clock_is_set_is_followed() -> None:
    machines = Machines(0.0)
    machines.answer(times=40)
    machines.ahead_s = 600.0
    machines.answer(times=40)
    assert machines.clock.skew_s() == pytest.approx(600.0, abs=0.5)


def test_of_several_servers_the_clock_of_most_counts() -> None:
    machines = Machines(0.0)
    for number in range(30):
        machines.ahead_s = 500.0 if number % 3 == 0 else 0.0
        machines.answer()
    assert machines.clock.skew_s() == pytest.approx(0.0, abs=0.6)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Wed, 99 Nov 2026 02:00:00 GMT"])
def test_an_answer_without_a_date_is_not_used(date: str | None) -> None:
    machines = Machines(0.0)
    for _ in range(5):
        machines.clock.answered(date, machines.passed_s)
    assert machines.clock.skew_s() is None


def test_an_answer_that_took_long_is_not_used() -> None:
    machines = Machines(0.0)
    machines.answer(takes_s=8.0, times=5)
    assert machines.clock.skew_s() is None


def test_a_large_difference_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    machines = Machines(-90.0)
    machines.answer(times=5)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            machines.clock.now_s()
    (record,) = caplog.records
    assert "-90 s" in record.getMessage()
