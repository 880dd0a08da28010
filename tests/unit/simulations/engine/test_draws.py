"""How long a client waits before it connects again."""

import pytest

from simulations.engine.draws import reconnect_delay_s

LONGEST_S = {1: 1.0, 2: 2.0, 3: 4.0, 4: 8.0, 5: 16.0, 6: 30.0, 7: 30.0, 40: 30.0, 2000: 30.0}
"""The longest delay after each failed attempt."""
SESSIONS = range(2000)


@pytest.mark.parametrize(("attempt", "longest_s"), LONGEST_S.items())
def test_delays_double_from_one_second_to_thirty_and_of_each_half_to_all_is_waited(
    attempt: int, longest_s: float
) -> None:
    shares = sorted(reconnect_delay_s(7, session, attempt) / longest_s for session in SESSIONS)
    assert 0.5 <= shares[0] < 0.51
    assert 0.99 < shares[-1] <= 1.0
    assert sum(shares) / len(shares) == pytest.approx(0.75, abs=0.02), "all of them are as likely"


def test_streams_that_are_refused_together_do_not_come_back_together() -> None:
    assert len({reconnect_delay_s(7, session, 3) for session in SESSIONS}) == len(SESSIONS)


def test_each_attempt_of_a_stream_is_drawn_anew() -> None:
    shares = {reconnect_delay_s(7, 1, attempt) / 30.0 for attempt in range(6, 106)}
    assert len(shares) == 100
    assert sum(shares) / len(shares) == pytest.approx(0.75, abs=0.06)


def test_the_same_seed_gives_the_same_delays_and_another_gives_others() -> None:
    def delays(seed: int) -> list[float]:
        return [reconnect_delay_s(seed, session, attempt) for session in range(20) for attempt in (1, 2, 3)]

    assert delays(7) == delays(7)
    assert not set(delays(7)) & set(delays(8))
