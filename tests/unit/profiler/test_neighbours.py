"""How replicas on one instance slow each other: what is learned of it from windows of a day, and how plans use it."""

import math
import random
from collections.abc import Mapping

import pytest

from profiler.batch_times import with_measurement
from profiler.neighbours import (
    MOST_ADDITION,
    MOST_NEIGHBOURS,
    NOTHING,
    Interference,
    Neighbour,
    additions,
    alone,
    crowding,
    with_exposure,
)

WINDOW_S, CYCLE_S = 60.0, 15.0
WEIGHT = CYCLE_S / WINDOW_S


def a_day(true: Mapping[str, float], *, noise: float = 0.03, cycles: int = 240, seed: int = 1) -> Interference:
    """What is known after an hour of a load that rises and falls, and with it batches and busy neighbours."""
    draws, known = random.Random(seed), NOTHING
    for cycle in range(cycles):
        load = 0.5 + 0.4 * math.sin(cycle / 20)
        batch = 1 + 8 * load
        exposures = {name: max(0.0, 0.9 * load + draws.gauss(0, 0.1)) for name in ("speech/a/lm", "speech/a/encoder")}
        slowed = 1 + sum(true.get(name, 0.0) * exposure for name, exposure in exposures.items())
        time_s = (0.005 + 0.002 * batch) * slowed * (1 + draws.gauss(0, noise))
        known = with_exposure(known, batch, time_s, exposures, weight=WEIGHT, age_s=CYCLE_S)
    return known


@pytest.mark.parametrize(("lm", "encoder"), [(0.0, 0.0), (0.5, 0.5), (1.0, 0.0), (2.0, 0.5)])
def test_what_a_busy_neighbour_adds_is_told_from_what_larger_batches_add(lm: float, encoder: float) -> None:
    found = additions(a_day({"speech/a/lm": lm, "speech/a/encoder": encoder}))
    assert found["speech/a/lm"] == pytest.approx(lm, abs=0.2 + 0.1 * lm)
    assert found["speech/a/encoder"] == pytest.approx(encoder, abs=0.2)


def test_what_scatters_too_much_or_was_hardly_compared_is_not_known() -> None:
    true = {"speech/a/lm": 2.0}
    assert additions(a_day(true, noise=0.5, cycles=40)) == {}
    assert additions(a_day(true, cycles=10)) == {}
    assert additions(NOTHING) == {}


def test_a_neighbour_that_is_always_as_busy_is_not_known() -> None:
    known = NOTHING
    for _ in range(200):
        known = with_exposure(known, 4.0, 0.02, {"speech/a/lm": 0.6}, weight=WEIGHT, age_s=CYCLE_S)
    assert additions(known) == {}
    (own,) = crowding(known, [Neighbour(name="speech/a/lm", count=1, busy=0.6, planned=0.8)]).unknown
    assert own == "speech/a/lm"


def test_absurd_samples_do_little_harm() -> None:
    known = a_day({"speech/a/lm": 1.0})
    for time_s in (1e9, 1e-9):
        known = with_exposure(known, 5.0, time_s, {"speech/a/lm": 1e12}, weight=WEIGHT, age_s=CYCLE_S)
    assert all(0 <= addition <= MOST_ADDITION for addition in additions(known).values())


def test_a_plan_counts_on_full_instances_and_neighbours_that_become_busy() -> None:
    known = a_day({"speech/a/lm": 1.0})
    (x,) = [own for name, own in additions(known).items() if name == "speech/a/lm"]
    found = crowding(known, [Neighbour(name="speech/a/lm", count=0.5, busy=0.4, planned=0.8)])
    assert (found.now, found.planned) == pytest.approx((1 + 0.2 * x, 1 + 0.8 * x))
    assert found.growth == pytest.approx((1 + 0.8 * x) / (1 + 0.2 * x))
    busier = crowding(known, [Neighbour(name="speech/a/lm", count=1, busy=1.0, planned=0.1)])
    assert busier.growth == 1  # nothing is saved because a neighbour may calm down


def test_a_law_that_is_learned_beside_neighbours_is_that_of_a_replica_alone() -> None:
    draws, known, times = random.Random(1), NOTHING, None
    for cycle in range(240):
        busy = max(0.0, 0.5 + 0.4 * math.sin(cycle / 20) + draws.gauss(0, 0.05))
        time_s = 0.02 * (1 + busy) * (1 + draws.gauss(0, 0.02))
        known = with_exposure(known, 4.0, time_s, {"speech/a/lm": busy}, weight=WEIGHT, age_s=CYCLE_S)
        times = with_measurement(times, 4.0, time_s, weight=WEIGHT, age_s=CYCLE_S)
    assert times is not None
    (size,) = alone(times, known).by_size
    assert size.time_s == pytest.approx(0.02, rel=0.07)
    assert times.by_size[0].time_s > 0.025


def test_neighbours_come_and_go_and_three_are_told_apart() -> None:
    known = a_day({"speech/a/lm": 1.0})
    for name in ("b", "c", "d", "e"):
        exposures = {"speech/a/lm": 0.5, f"speech/{name}/asr": 0.5}
        known = with_exposure(known, 5.0, 0.015, exposures, weight=WEIGHT, age_s=CYCLE_S)
    assert "speech/a/lm" in known.neighbours
    assert "speech/e/asr" in known.neighbours
    assert len(known.neighbours) == MOST_NEIGHBOURS
    assert additions(known)["speech/a/lm"] == pytest.approx(1.0, abs=0.3)


def test_an_edited_status_is_refused() -> None:
    with pytest.raises(ValueError, match="must fit the numbers"):
        Interference(neighbours=("speech/a/lm",))
