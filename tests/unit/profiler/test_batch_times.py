"""The service times of batches are remembered by size, within bounds, and what contradicts them replaces them."""

import math
import random

import pytest

from optimizer.model import InvalidProblem, ServiceLaw
from profiler.batch_times import MOST_WEIGHT, BatchTimes, SizeTimes, with_measurement

TRUE = ServiceLaw(fixed_s=0.014, per_item_s=0.003)
INTERVAL_S = 15.0


def measured(sizes: list[float], law: ServiceLaw = TRUE, times: BatchTimes | None = None) -> BatchTimes:
    """Return `times` with one measurement of `law` for each of `sizes`."""
    for size in sizes:
        times = with_measurement(times, size, law.mean_s(size), weight=1.0, age_s=INTERVAL_S)
    assert times is not None
    return times


def test_each_size_keeps_its_own_mean() -> None:
    found = measured([1.0, 8.0, 4.0] * 5)
    assert [own.batch for own in found.sizes] == pytest.approx([1.0, 4.0, 8.0])
    assert [own.time_s for own in found.sizes] == pytest.approx([TRUE.mean_s(size) for size in (1, 4, 8)])


def test_the_order_of_measurements_matters_only_by_their_age() -> None:
    one, other = measured([1, 8, 4]), measured([8, 4, 1])
    assert one.time_s == pytest.approx(other.time_s, rel=0.02)
    assert [own.time_s for own in one.sizes] == pytest.approx([own.time_s for own in other.sizes])


def test_the_memory_is_bounded_however_long_and_varied_the_load_is() -> None:
    rng = random.Random(1)
    found = measured([2 ** rng.uniform(0, 10) for _ in range(20_000)])
    assert len(found.sizes) <= math.log(1024, 1.5) + 2
    assert max(own.weight for own in found.sizes) <= MOST_WEIGHT


def test_a_busy_hour_is_still_known_in_the_evening() -> None:
    found = measured([2.0] * 4 * 60 * 8, times=measured([14.0] * 60))
    assert found.sizes[-1].batch == pytest.approx(14.0)
    assert found.sizes[-1].weight > 10


def test_what_has_not_been_seen_for_days_is_forgotten() -> None:
    found = with_measurement(measured([14.0] * 60), 2.0, TRUE.mean_s(2), weight=1.0, age_s=5 * 86400)
    assert [own.batch for own in found.sizes] == [2.0]


def test_a_new_release_takes_the_weight_of_sizes_that_were_measured_before_it() -> None:
    before = measured([2.0, 6.0, 14.0] * 20)
    after = measured([6.0] * 10, TRUE.scaled(2), before)
    assert after.sizes[0].weight < before.sizes[0].weight / 10
    same = measured([6.0] * 10, TRUE, before)
    assert same.sizes[0].weight > before.sizes[0].weight * 0.9


def test_the_scatter_of_measurements_is_learned() -> None:
    rng, times = random.Random(1), None
    for _ in range(300):
        time_s = TRUE.mean_s(4) * (1 + rng.gauss(0, 0.1))
        times = with_measurement(times, 4.0, time_s, weight=1.0, age_s=INTERVAL_S)
    assert times is not None
    assert math.sqrt(times.variance) == pytest.approx(0.1, rel=0.2)


def test_a_status_from_before_sizes_were_kept_apart_has_one() -> None:
    old = BatchTimes(weight=12.0, batch=3.0, time_s=0.02)
    assert old.by_size == (SizeTimes(weight=12.0, batch=3.0, time_s=0.02),)
    assert len(measured([12.0], times=old).sizes) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": 0.0},
        {"batch": -1.0},
        {"time_s": float("inf")},
        {"variance": -1.0},
        {"variance": float("nan")},
        {"sizes": (SizeTimes(weight=1.0, batch=2.0, time_s=1.0), SizeTimes(weight=1.0, batch=2.0, time_s=1.0))},
    ],
)
def test_what_nothing_can_have_measured_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidProblem, match=next(iter(changes))):
        BatchTimes(**{"weight": 1.0, "batch": 2.0, "time_s": 0.02, **changes})  # type: ignore[arg-type]


def test_a_size_that_nothing_can_have_measured_is_refused() -> None:
    with pytest.raises(InvalidProblem, match="time_s"):
        SizeTimes(weight=1.0, batch=2.0, time_s=0.0)
