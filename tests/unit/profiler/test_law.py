"""A service law is learned from the batches that a placement serves, with an error bar that says when it is known."""

import math
import random

import pytest

from optimizer.model import InvalidProblem, ServiceLaw
from profiler.law import ENOUGH_WEIGHT, KNOWN, BatchTimes, FittedLaw, fitted_law, with_measurement

TRUE = ServiceLaw(fixed_s=0.014, per_item_s=0.003)
INTERVAL_S = 15.0


def measured(sizes: list[float], *, noise: float = 0.02) -> BatchTimes:
    """Return what has been measured after one window for each of `sizes`, with this relative noise."""
    rng, times = random.Random(1), None
    for size in sizes:
        time_s = TRUE.mean_s(size) * (1 + rng.gauss(0, noise))
        times = with_measurement(times, size, time_s, weight=1.0, age_s=INTERVAL_S)
    assert times is not None
    return times


def fit(sizes: list[float], limit: int = 8, *, noise: float = 0.02) -> FittedLaw:
    return fitted_law(measured(sizes, noise=noise), limit, cv=0.3)


def test_batches_of_different_sizes_show_both_parts_of_the_law() -> None:
    found = fit([1, 2, 3, 4, 5, 6, 7, 8] * 4)
    assert found.known
    assert found.relative_error < 0.05
    assert found.law.fixed_s == pytest.approx(TRUE.fixed_s, rel=0.1)
    assert found.law.per_item_s == pytest.approx(TRUE.per_item_s, rel=0.1)
    assert found.law.cv == 0.3


def test_twice_the_error_holds_the_truth_of_a_full_batch_in_most_cases() -> None:
    inside = 0
    for seed in range(200):
        rng, times = random.Random(seed), None
        for _ in range(12):
            size = rng.uniform(2, 5)
            time_s = TRUE.mean_s(size) * (1 + rng.gauss(0, 0.05))
            times = with_measurement(times, size, time_s, weight=1.0, age_s=INTERVAL_S)
        assert times is not None
        found = fitted_law(times, 8, cv=0.3)
        inside += abs(found.law.mean_s(8) / TRUE.mean_s(8) - 1) <= 2 * found.relative_error
    assert inside >= 170


def test_equal_batches_do_not_show_what_a_full_one_takes() -> None:
    found = fit([2.0] * 8, limit=16)
    assert not found.known
    assert found.relative_error > KNOWN
    assert found.law.mean_s(2) == pytest.approx(TRUE.mean_s(2), rel=0.02)
    assert found.law.mean_s(16) > TRUE.mean_s(16), "it errs towards longer batches"


def test_what_is_not_shown_after_long_is_planned_with_all_the_same() -> None:
    found = fit([2.0] * int(ENOUGH_WEIGHT + 2), limit=16)
    assert found.known
    assert found.law.mean_s(16) > TRUE.mean_s(16)


def test_two_measurements_are_too_few_however_well_they_fit() -> None:
    assert not fit([1.0, 8.0], noise=0.0).known


def test_a_server_without_batches_has_a_fixed_time_alone() -> None:
    found = fit([1.0] * 5, limit=1)
    assert found.known
    assert found.law.per_item_s == 0
    assert found.law.fixed_s == pytest.approx(TRUE.mean_s(1), rel=0.03)


def test_a_time_that_falls_with_the_batch_is_never_fitted_as_such() -> None:
    times = None
    for size, time_s in [(1.0, 0.05), (8.0, 0.02)] * 6:
        times = with_measurement(times, size, time_s, weight=1.0, age_s=INTERVAL_S)
    assert times is not None
    law = fitted_law(times, 8, cv=0.3).law
    assert law.per_item_s >= 0
    assert law.fixed_s >= 0


def test_a_new_release_is_followed_within_hours() -> None:
    times = measured([1, 4, 8] * 40)
    slower = TRUE.scaled(3)
    for _ in range(3 * 240):  # three hours of cycles
        times = with_measurement(times, 4.0, slower.mean_s(4), weight=1.0, age_s=INTERVAL_S)
    assert fitted_law(times, 8, cv=0.3).law.mean_s(4) == pytest.approx(slower.mean_s(4), rel=0.05)


def test_the_order_of_measurements_matters_only_by_their_age() -> None:
    one, other = measured([1, 8, 4], noise=0.0), measured([8, 4, 1], noise=0.0)
    assert one.time_s == pytest.approx(other.time_s, rel=0.02)
    assert one.covariance == pytest.approx(other.covariance, rel=0.05)


@pytest.mark.parametrize(
    "changes", [{"weight": 0.0}, {"batch": -1.0}, {"time_s": float("inf")}, {"batch_variance": -1.0}]
)
def test_what_nothing_can_have_measured_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidProblem, match=next(iter(changes))):
        BatchTimes(**{"weight": 1.0, "batch": 2.0, "time_s": 0.02, **changes})


@pytest.mark.parametrize("absurd_s", [1e-24, 1e-6, 1000.0, 1e24])
def test_an_absurd_first_measurement_is_replaced_by_the_next(absurd_s: float) -> None:
    times = with_measurement(None, 4.0, absurd_s, weight=0.25, age_s=INTERVAL_S)
    times = with_measurement(times, 4.0, TRUE.mean_s(4), weight=0.25, age_s=INTERVAL_S)
    assert fitted_law(times, 4, cv=0.3).law.mean_s(4) == pytest.approx(TRUE.mean_s(4))


@pytest.mark.parametrize("absurd_s", [1e-6, 1000.0, 1e24])
def test_an_absurd_measurement_later_changes_a_known_law_little(absurd_s: float) -> None:
    before = measured([1, 2, 3, 4, 5, 6, 7, 8] * 4)
    after = with_measurement(before, 4.0, absurd_s, weight=0.25, age_s=INTERVAL_S)
    found = fitted_law(after, 8, cv=0.3)
    assert found.known
    assert found.law.mean_s(4) == pytest.approx(fitted_law(before, 8, cv=0.3).law.mean_s(4), rel=0.05)


def test_a_release_that_is_ten_times_slower_is_followed_within_the_memory() -> None:
    times = measured([4.0] * 60)
    for _ in range(240):  # an hour
        times = with_measurement(times, 4.0, 10 * TRUE.mean_s(4), weight=0.25, age_s=INTERVAL_S)
    assert fitted_law(times, 4, cv=0.3).law.mean_s(4) > 5 * TRUE.mean_s(4)


@pytest.mark.parametrize("limit", [1, 8, 1024])
def test_every_law_that_a_status_may_hold_can_be_fitted(limit: int) -> None:
    """An edited status must not stop the cycle of all pipelines."""
    rng, accepted = random.Random(1), 0
    values = [1e-320, 1e-200, 1e-30, 1e-9, 1e-3, 1.0, 1e9, 1e24, 1e200]
    for _ in range(20_000):
        weight, batch, time_s, batch_variance, time_variance, covariance = rng.choices(values, k=6)
        try:
            times = BatchTimes(
                weight=weight,
                batch=batch,
                time_s=time_s,
                batch_variance=batch_variance,
                time_variance=time_variance,
                covariance=rng.choice([-covariance, 0.0, covariance]),
            )
        except InvalidProblem:
            continue
        accepted += 1
        assert math.isfinite(fitted_law(times, limit, cv=0.3).relative_error)
    assert accepted > 50
