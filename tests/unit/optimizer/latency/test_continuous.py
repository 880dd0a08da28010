"""Servers that batch continuously: exact where theory is, and close to an event simulation elsewhere."""

from itertools import pairwise

import numpy as np
import pytest
from event_simulation import arrivals, simulate_continuous

from optimizer.latency.stage import Prediction, StageLoad, capacity_rps, predict
from optimizer.model import Batching, InvalidProblem, Placement, PoolName, Routing, ServiceLaw


def a_placement(law: ServiceLaw, limit: int, engines: int = 1) -> Placement:
    return Placement(
        pool=PoolName("gpu"),
        service=law,
        max_replicas=50,
        concurrency=engines,
        batching=Batching.CONTINUOUS,
        batch_sizes=(limit,),
    )


def predicted(placement: Placement, rate_rps: float, replicas: int = 1, *, first: bool = False) -> Prediction:
    routing = Routing.LEAST_LOADED
    answer = predict(
        StageLoad(rate_rps=rate_rps, first_answer=first),
        placement,
        replicas,
        batch=placement.batch_sizes[-1],
        routing=routing,
        percentile=95.0,
    )
    assert answer is not None
    return answer


def test_a_law_that_is_all_per_item_is_one_processor_that_is_shared() -> None:
    # M/G/1 processor sharing: the mean time is s / (1 − ρ), whatever the distribution.
    for cv in (0.2, 1.0):
        placement = a_placement(ServiceLaw(per_item_s=0.1, cv=cv), 64)
        assert predicted(placement, 6.0).mean_s == pytest.approx(0.1 / (1 - 0.6), rel=0.01)


def test_a_law_without_a_part_per_item_is_places_without_a_queue() -> None:
    placement = a_placement(ServiceLaw(fixed_s=2.0, cv=0.5), 100)
    answer = predicted(placement, 10.0)
    assert answer.mean_s == pytest.approx(2.0, rel=1e-3)
    assert answer.percentile_s == pytest.approx(2.0 * 1.94, rel=0.03)  # gamma with a cv of 0.5


def test_capacity_counts_what_is_shared_and_what_stalls_everybody() -> None:
    law = ServiceLaw(fixed_s=0.2172, per_item_s=0.00306, prefill_s=0.0056)
    assert capacity_rps(a_placement(law, 64), 64) == pytest.approx(1 / (0.0056 + law.mean_s(64) / 64))
    assert capacity_rps(a_placement(law, 64, engines=2), 64) == pytest.approx(
        2 * capacity_rps(a_placement(law, 64), 64)
    )


@pytest.mark.parametrize(("replicas", "limit"), [(1, 16), (4, 8), (8, 4)])
@pytest.mark.parametrize("prefill_s", [0.0, 0.02])
@pytest.mark.parametrize("load", [0.4, 0.8])
def test_the_time_in_the_stage_is_that_of_an_event_simulation(
    replicas: int, limit: int, prefill_s: float, load: float
) -> None:
    law = ServiceLaw(fixed_s=1.0, per_item_s=0.05, floor_s=1.2, prefill_s=prefill_s, cv=0.5)
    placement = a_placement(law, limit)
    rate_rps = load * replicas * capacity_rps(placement, limit)
    times_s = arrivals(rate_rps, 1.0, 20_000, 5)
    spent = simulate_continuous(
        times_s,
        replicas=replicas,
        limit=limit,
        time_s=np.array([law.mean_s(running) for running in range(limit + 1)]),
        prefill_s=prefill_s,
        cv=0.5,
        routing=Routing.LEAST_LOADED,
        seed=5,
    )[2_000:]
    answer = predicted(placement, rate_rps, replicas)
    assert answer.mean_s == pytest.approx(spent.mean(), rel=0.05)
    assert answer.percentile_s == pytest.approx(np.percentile(spent, 95), rel=0.08)


def test_the_first_answer_comes_after_the_wait_and_the_prefill() -> None:
    law = ServiceLaw(fixed_s=1.0, per_item_s=0.05, prefill_s=0.02, cv=0.5)
    alone = predicted(a_placement(law, 16), 0.01, first=True)
    assert alone.mean_s == pytest.approx(0.02, rel=0.01)
    busy = predicted(a_placement(law, 16), 0.85 * capacity_rps(a_placement(law, 16), 16), first=True)
    assert alone.mean_s < busy.mean_s < predicted(a_placement(law, 16), 6.0).mean_s
    # Without a known prefill the whole answer is the safe side.
    unknown = a_placement(ServiceLaw(fixed_s=1.0, cv=0.5), 16)
    assert predicted(unknown, 1.0, first=True).mean_s == predicted(unknown, 1.0).mean_s


def test_more_replicas_are_never_slower() -> None:
    law = ServiceLaw(fixed_s=1.0, per_item_s=0.1, prefill_s=0.01, cv=0.5)
    placement = a_placement(law, 8)
    rate_rps = 0.88 * 3 * capacity_rps(placement, 8)
    times = [predicted(placement, rate_rps, replicas).percentile_s for replicas in range(3, 40)]
    assert all(after <= before * 1.001 for before, after in pairwise(times))


def test_a_wait_needs_dynamic_and_a_prefill_continuous_batching() -> None:
    law = ServiceLaw(fixed_s=1.0, prefill_s=0.1)
    with pytest.raises(InvalidProblem, match=r"prefill_s: 0\.1: needs continuous batching"):
        Placement(pool=PoolName("gpu"), service=law)
    with pytest.raises(InvalidProblem, match=r"batch_wait_s: 0\.5: must be 0 with continuous batching"):
        Placement(pool=PoolName("gpu"), service=law, batching=Batching.CONTINUOUS, batch_wait_s=0.5)
