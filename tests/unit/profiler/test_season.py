"""What a history says of the load to come: a rise before it comes, with its error, and nothing of a useless history."""

import math
import random
from collections.abc import Callable, Sequence

import pytest

from profiler.forecast import forecast, weighed_forecast
from profiler.samples import Absence
from profiler.season import DemandHistory, Season, finest_step_s, packed, period_before, season

DAY_S = 86_400.0
START_S = 120.0
NINE = 20 * DAY_S + 9 * 3600.0
Load = Callable[[float], float]


def opening(at_s: float) -> float:
    """A load that rises from 100 to 500 at nine every day, and falls at five."""
    return 500.0 if 9 * 3600.0 <= at_s % DAY_S < 17 * 3600.0 else 100.0


def noisy(load: Load, cv: float = 0.05, seed: int = 1) -> Load:
    rng = random.Random(seed)
    return lambda at_s: load(at_s) * max(0.0, 1 + rng.gauss(0, cv))


def history(
    past: Load,
    now_s: float,
    today: Load | None = None,
    *,
    gaps: Callable[[float], bool] = lambda _: False,
    unit: float | None = 1.0,
) -> DemandHistory:
    """The record of days as `past`, and since midnight as `today`; None: as `past` too."""
    begin_s, count = period_before(now_s, DAY_S, 7, 300.0)
    midnight_s = now_s // DAY_S * DAY_S

    def of(at_s: float) -> float:
        return past(at_s) if today is None or at_s < midnight_s else today(at_s)

    times_s = [begin_s + 300.0 * index for index in range(count)]
    levels = packed(None if gaps(at_s) else of(at_s) for at_s in times_s)
    return DemandHistory(begin_s=begin_s, step_s=300.0, season_s=DAY_S, most=7, levels=levels, unit=unit)


def samples(load: Load, now_s: float) -> list[tuple[float, float]]:
    return [(now_s - 300 + 15.0 * index, load(now_s - 300 + 15.0 * index)) for index in range(21)]


def seen(past: Load, today: Load, now_s: float) -> Season:
    found = season(history(past, now_s, today), samples(today, now_s), now_s, START_S)
    assert isinstance(found, Season)
    return found


def expected(past: Load, today: Load, now_s: float) -> float:
    return forecast(samples(today, now_s), now_s, START_S, seen(past, today, now_s))


def test_a_rise_that_comes_every_day_is_expected_one_start_up_before_it() -> None:
    assert expected(opening, opening, NINE - START_S) == pytest.approx(500.0)
    assert expected(opening, opening, NINE - 15 * 60) == pytest.approx(100.0), (
        "and not earlier than levels are recorded"
    )


@pytest.mark.parametrize("seed", range(8))
def test_noise_does_not_hide_it(seed: int) -> None:
    found = expected(noisy(opening, seed=seed), noisy(opening, seed=100 + seed), NINE - START_S)
    assert 420.0 < found < 560.0


def test_a_rise_is_as_high_as_the_load_of_today_says() -> None:
    assert expected(opening, lambda at_s: 0.5 * opening(at_s), NINE - START_S) == pytest.approx(250.0, rel=0.2)


def test_a_day_unlike_the_others_is_given_up_after_the_first_rise_that_does_not_come() -> None:
    """Past days rose at nine and again at half past one; this one does neither."""

    def twice(at_s: float) -> float:
        return opening(at_s) + (400.0 if at_s % DAY_S >= 13.5 * 3600.0 else 0.0)

    def holiday(_: float) -> float:
        return 100.0

    assert expected(twice, holiday, NINE - START_S) == pytest.approx(500.0), "nothing says so yet"
    assert expected(twice, holiday, NINE + 60.0) == pytest.approx(100.0, rel=0.1)
    assert expected(twice, holiday, NINE + 4.5 * 3600 - START_S) < 120.0


@pytest.mark.parametrize("seed", range(6))
def test_a_useless_history_costs_next_to_nothing(seed: int) -> None:
    rng = random.Random(seed)
    today = noisy(lambda _: 300.0, seed=seed)
    useless: Sequence[Load] = (
        lambda _: rng.uniform(0.0, 1000.0),
        lambda at_s: 300.0 if at_s % DAY_S < 4 * 3600.0 else 1200.0,
    )
    for past in useless:
        ratios = []
        for hour in range(0, 9, 2):
            now_s = NINE - hour * 3600.0 - 47.0
            recent = samples(today, now_s)
            found = season(history(past, now_s, today), recent, now_s, START_S)
            assert isinstance(found, Season)
            ratios.append(forecast(recent, now_s, START_S, found) / forecast(recent, now_s, START_S))
        assert 0.95 < sum(ratios) / len(ratios) < 1.05


def test_where_seasons_disagree_less_is_sure() -> None:
    """Five days of the week open, two do not: the two make the rise unsure."""

    def week(at_s: float) -> float:
        return opening(at_s) if int(at_s // DAY_S) % 7 < 5 else 100.0

    wednesday_s = NINE + 3 * DAY_S - START_S
    assert 100.0 < expected(noisy(week), noisy(week, seed=2), wednesday_s) < 500.0
    change = seen(week, week, wednesday_s).change(START_S)
    assert change is not None
    assert change.error > 50.0
    assert 0.0 < change.sure < change.expected


def test_a_fall_and_a_rise_after_it_are_seen_ahead() -> None:

    def lunch(at_s: float) -> float:
        return 500.0 if not 12 * 3600 <= at_s % DAY_S < 12.25 * 3600 else 100.0

    noon_s = NINE + 3 * 3600.0
    found = seen(lunch, lunch, noon_s + 10 * 60)
    assert found.level == pytest.approx(100.0)
    assert found.highest_sure(600.0) == pytest.approx(500.0)
    change = seen(lunch, lunch, noon_s - 60.0).change(START_S)
    assert change is not None
    assert change.expected == pytest.approx(-400.0)
    assert seen(lunch, lunch, noon_s + 2 * 60).highest_sure(240.0) == pytest.approx(100.0)


def test_gaps_are_not_zeros() -> None:
    """The outage of a scrape at nine on one day is no fall, and hides no rise."""

    def outage(at_s: float) -> bool:
        return 19 * DAY_S + 8.9 * 3600 < at_s < 19 * DAY_S + 9.5 * 3600

    now_s = NINE - START_S
    whole = season(history(opening, now_s), samples(opening, now_s), now_s, START_S)
    torn = season(history(opening, now_s, gaps=outage), samples(opening, now_s), now_s, START_S)
    assert isinstance(whole, Season)
    assert isinstance(torn, Season)
    assert torn.highest_sure(START_S) == pytest.approx(whole.highest_sure(START_S))


@pytest.mark.parametrize("factor", [0.001, 1000.0])
def test_a_history_in_another_unit_is_used_in_that_of_the_demand(factor: float) -> None:
    now_s = NINE - START_S
    for unit, says in ((1 / factor, Season), (None, Absence)):
        other = history(lambda at_s: factor * opening(at_s), now_s, unit=unit)
        found = season(other, samples(opening, now_s), now_s, START_S)
        assert isinstance(found, says)
        if isinstance(found, Season):
            assert forecast(samples(opening, now_s), now_s, START_S, found) == pytest.approx(500.0)


def test_a_load_that_opens_every_day_from_nothing_is_expected() -> None:

    def nights(at_s: float) -> float:
        return 0.0 if at_s % DAY_S < 9 * 3600.0 else 500.0

    assert expected(nights, nights, NINE - START_S) == pytest.approx(500.0)


def test_less_than_a_season_says_nothing() -> None:
    short = DemandHistory(begin_s=0.0, step_s=300.0, season_s=DAY_S, most=7, levels=packed([5.0] * 100))
    found = season(short, [(30_000.0, 5.0)], 30_000.0, START_S)
    assert isinstance(found, Absence)
    assert "less than one season" in found.detail
    empty = DemandHistory(begin_s=0.0, step_s=300.0, season_s=DAY_S, most=7, levels=packed([None] * 1000))
    assert isinstance(season(empty, [(300_000.0, 5.0)], 300_000.0, START_S), Absence)


def test_the_trust_is_a_share() -> None:
    now_s = NINE - START_S
    found = weighed_forecast(samples(opening, now_s), now_s, START_S, seen(opening, opening, now_s))
    assert found.trust == pytest.approx(1.0)
    assert weighed_forecast(samples(opening, now_s), now_s, START_S).trust == 0.0


def test_a_history_is_bounded_in_memory() -> None:
    for seasons in range(1, 29):
        step_s = finest_step_s(DAY_S, seasons)
        assert step_s == math.ceil(step_s)
        _, count = period_before(NINE, DAY_S, seasons, step_s)
        assert 4 * count < 10_000
    assert finest_step_s(DAY_S, 7) == 300.0
    assert finest_step_s(600.0, 7) == 15.0


def test_what_the_season_explains_is_taken_out_of_the_samples() -> None:
    now_s = NINE + 2 * 3600.0

    def rising(at_s: float) -> float:
        return 100.0 + at_s % DAY_S / 100.0

    rest = seen(rising, rising, now_s).without_season(samples(rising, now_s))
    assert rest is not None
    assert max(load for _, load in rest) - min(load for _, load in rest) < 0.3
