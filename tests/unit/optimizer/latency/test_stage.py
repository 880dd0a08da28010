import numpy as np
import pytest
from problems import on

from optimizer.latency.stage import Prediction, StageLoad, capacity_rps, predict, predict_all
from optimizer.model import Placement, Routing


def at(
    placement: Placement,
    replicas: int,
    rate_rps: float = 50.0,
    *,
    sessions: float | None = None,
    periodic: bool = False,
    batch: int | None = None,
    routing: Routing = Routing.LEAST_LOADED,
) -> Prediction | None:
    load = StageLoad(rate_rps=rate_rps, sessions=sessions, periodic=periodic)
    return predict(load, placement, replicas, batch=batch or placement.batch_sizes[-1], routing=routing, percentile=95)


def p95(answer: Prediction | None) -> float:
    assert answer is not None
    return answer.percentile_s


def test_capacity_is_full_batches_on_every_slot_but_never_above_what_was_observed() -> None:
    assert capacity_rps(on("x", service=(0.02, 0.01)), 8) == pytest.approx(80)
    assert capacity_rps(on("x", service=(0.02, 0.01), concurrency=3), 8) == pytest.approx(240)
    assert capacity_rps(on("x", service=(0.02, 0.01), saturation_rps=60), 8) == 60


def test_nothing_to_do_takes_the_service_time() -> None:
    answer = at(on("x", service=(0.02, 0.0), cv=0.0), 1, rate_rps=0.0)
    assert answer is not None
    assert (answer.mean_s, answer.percentile_s, answer.utilization) == (0.02, 0.02, 0.0)


@pytest.mark.parametrize("routing", Routing)
@pytest.mark.parametrize("batches", [(1,), (8,)])
def test_more_replicas_are_faster(routing: Routing, batches: tuple[int, ...]) -> None:
    placement = on("x", service=(0.02, 0.002), batches=batches)
    few, many = at(placement, 3, 80.0, routing=routing), at(placement, 6, 80.0, routing=routing)
    assert p95(few) > p95(many)


def test_overload_has_no_latency() -> None:
    assert at(on("x", service=(0.02, 0.0)), 1, rate_rps=46.0) is None
    assert at(on("x", service=(0.02, 0.0)), 0, rate_rps=1.0) is None


def test_a_saturated_replica_is_as_busy_as_its_observed_cap_says() -> None:
    answer = at(on("x", service=(0.02, 0.0), saturation_rps=25), 4, rate_rps=50.0)
    assert answer is not None
    assert answer.utilization == pytest.approx(0.5)


def test_chance_is_worse_than_looking_and_one_queue_is_best() -> None:
    placement = on("x", service=(0.02, 0.0))
    random, looking, pull = (
        p95(at(placement, 6, 240.0, routing=routing))
        for routing in (Routing.RANDOM, Routing.LEAST_LOADED, Routing.PULL)
    )
    assert random > looking > pull


def test_periodic_streams_queue_less_than_poisson_items() -> None:
    placement = on("x", service=(0.02, 0.0), cv=0.0)
    poisson = at(placement, 2, 80.0, sessions=26, routing=Routing.STICKY)
    periodic = at(placement, 2, 80.0, sessions=26, routing=Routing.STICKY, periodic=True)
    assert p95(periodic) < p95(poisson)


def test_waiting_for_a_batch_costs_at_low_load() -> None:
    eager, patient = (
        p95(at(on("x", service=(0.02, 0.002), cv=0.0, batches=(8,), wait_s=wait), 1, 0.5)) for wait in (0.0, 0.01)
    )
    assert patient >= eager + 0.008


def test_sessions_need_slots_on_all_placements_together() -> None:
    one, two = on("x", slots=10), on("y", slots=20)
    answer = predict_all(
        StageLoad(rate_rps=10.0, sessions=35),
        (one, two),
        np.array([[4, 0], [3, 0], [1, 1], [2, 1]]),
        (1, 1),
        routing=Routing.STICKY,
        percentile=95,
    )
    assert list(np.isfinite(answer.percentile_s)) == [True, False, False, True]


def test_requests_hold_a_slot_while_they_are_in_the_stage() -> None:
    roomy, tight = (on("x", service=(1.0, 0.0), concurrency=100, slots=slots) for slots in (20, 12))
    assert at(roomy, 1, rate_rps=10.0) is not None  # 10 inside on average, 15 at times
    assert at(tight, 1, rate_rps=10.0) is None


def test_a_mix_is_as_busy_everywhere_and_between_its_parts_in_latency() -> None:
    fast, slow = on("x", service=(0.01, 0.0)), on("y", service=(0.04, 0.0))
    replicas = np.array([[2, 0], [0, 8], [1, 4]])
    answer = predict_all(
        StageLoad(rate_rps=100.0), (fast, slow), replicas, (1, 1), routing=Routing.RANDOM, percentile=95
    )
    assert answer.utilization == pytest.approx([0.5, 0.5, 0.5])
    assert answer.percentile_s[0] < answer.percentile_s[2] < answer.percentile_s[1]
    assert answer.mean_s[2] == pytest.approx((answer.mean_s[0] + answer.mean_s[1]) / 2)


@pytest.mark.parametrize("routing", [Routing.PULL, Routing.LEAST_LOADED, Routing.ROUND_ROBIN, Routing.RANDOM])
@pytest.mark.parametrize("batches", [(1,), (8,)])
def test_replicas_of_two_equal_placements_share_one_queue(routing: Routing, batches: tuple[int, ...]) -> None:
    one, two = (on(pool, service=(0.02, 0.002), batches=batches) for pool in ("x", "y"))
    load = StageLoad(rate_rps=0.7 * 5 * capacity_rps(one, batches[0]))
    found = predict_all(
        load, (one, two), np.array([[5, 0], [3, 2]]), (batches[0],) * 2, routing=routing, percentile=95.0
    )
    assert found.mean_s[1] == pytest.approx(found.mean_s[0])
    assert found.percentile_s[1] == pytest.approx(found.percentile_s[0], rel=1e-4)


def test_the_latency_of_a_mix_has_a_wider_error_bar() -> None:
    fast, slow = on("x", service=(0.02, 0.0)), on("y", service=(0.08, 0.0))
    found = predict_all(
        StageLoad(rate_rps=70.0),
        (fast, slow),
        np.array([[2, 0], [2, 1]]),
        (1, 1),
        routing=Routing.LEAST_LOADED,
        percentile=95.0,
    )
    assert found.error[1] > 4 * found.error[0]
