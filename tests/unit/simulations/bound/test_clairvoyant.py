"""What the bound counts with: each ingredient moves it as it must."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import a_placement, a_pool, a_spec, a_stage

from controller.core.state.spec import DemandUnit, PipelineSpec, PlacementSpec, PoolSpec
from optimizer.model import PipelineKey, ServiceLaw, Sla
from simulations.bound.clairvoyant import Bound, Epoch, clairvoyant_bound
from simulations.results.scoring import Clock
from simulations.scenario.scenario import Fault
from simulations.scenario.schedule import Schedule

CLOCK = Clock(duration_s=240.0, warmup_s=0.0, window_s=10.0)


def on(pool: str, *, service_s: float = 0.09, batch: int = 1, per_item_s: float = 0.0, **changes: Any) -> PlacementSpec:
    """A placement whose replica serves 11.1 requests a second, and takes 20 s to start."""
    placement = a_placement(pool, startup_s=changes.pop("startup_s", 20.0))
    law = ServiceLaw(fixed_s=service_s, per_item_s=per_item_s)
    return replace(placement, prior=replace(placement.prior, service=law, batch_sizes=(batch,), **changes))


def pipeline(*placements: PlacementSpec, **changes: Any) -> PipelineSpec:
    return replace(a_spec(a_stage("stage", *(placements or (on("gpu"),))), sla_s=1.0, budget=1e6), **changes)


def pool(name: str = "gpu", price: float = 1.0, instances: int | None = 20) -> PoolSpec:
    return a_pool(name, price=price, instances=instances).spec


def load(*rates_rps: float) -> Schedule:
    """Evenly spaced requests; each rate has an equal part of the run."""
    part_s = CLOCK.duration_s / len(rates_rps)
    start_s = np.concatenate([k * part_s + np.arange(0, part_s, 1 / rate) for k, rate in enumerate(rates_rps)])
    return Schedule(start_s=start_s, end_s=start_s)


def bound(
    spec: PipelineSpec | None = None,
    pools: Sequence[PoolSpec] = (pool(),),
    schedule: Schedule | None = None,
    *,
    faults: Sequence[dict[str, Any]] = (),
    changes: Sequence[Epoch] = (),
    required_share: float = 0.995,
) -> Bound:
    spec = spec or pipeline()
    return clairvoyant_bound(
        [spec],
        pools,
        {spec.key: schedule or load(10.0)},
        CLOCK,
        seeds={spec.key: 1},
        faults=[Fault.model_validate(fault) for fault in faults],
        changes=changes,
        required_share=required_share,
    )


def replica_hours(found: Bound) -> float:
    """At a price of 1 USD/h."""
    assert found.cost is not None
    return found.cost


ONE = CLOCK.duration_s / 3600
"""What one replica costs for the whole run; a little less will do, for the last window needs no start after it."""


def test_a_steady_load_costs_what_its_replica_costs() -> None:
    found = bound()
    assert replica_hours(found) == pytest.approx(ONE, rel=0.03)
    assert found.windows_share >= 0.995
    assert sum(found.cost_per_hour) * 10 / 3600 == pytest.approx(replica_hours(found))
    assert list(found.times_s) == [10.0 * k for k in range(24)]


def test_items_of_a_batch_share_its_time() -> None:
    alone = bound(pipeline(on("gpu", service_s=0.08, per_item_s=0.01)), schedule=load(43.0))
    together = bound(pipeline(on("gpu", service_s=0.08, per_item_s=0.01, batch=4)), schedule=load(43.0))
    assert replica_hours(alone) == pytest.approx(4 * ONE, rel=0.1)
    assert replica_hours(together) == pytest.approx(2 * ONE, rel=0.06)


def test_a_batch_is_no_larger_than_the_sla_lets_it_be() -> None:
    spec = pipeline(on("gpu", service_s=0.08, per_item_s=0.1, batch=8))
    assert replica_hours(bound(replace(spec, sla=Sla(latency_s=0.3)))) > replica_hours(bound(spec)) * 1.2
    assert bound(replace(spec, sla=Sla(latency_s=0.17))).cost is None


def test_replicas_are_paid_for_while_they_start() -> None:
    step = load(10.0, 20.0)
    quick = bound(pipeline(on("gpu", startup_s=20.0)), schedule=step)
    slow = bound(pipeline(on("gpu", startup_s=60.0)), schedule=step)
    assert replica_hours(slow) - replica_hours(quick) == pytest.approx(40 / 3600, rel=0.15)


def test_minimums_are_paid_for() -> None:
    assert replica_hours(bound(pipeline(on("gpu", min_replicas=3)))) == pytest.approx(3 * ONE)


def test_the_budget_is_a_cap() -> None:
    assert bound(pipeline(budget_per_hour=1.0)).cost is not None
    assert bound(pipeline(budget_per_hour=0.8)).cost is None


def test_a_placement_has_no_more_than_its_maximum() -> None:
    assert bound(pipeline(on("gpu", max_replicas=1)), schedule=load(20.0)).cost is None


def test_a_pool_has_no_more_than_its_instances() -> None:
    both = pipeline(on("gpu"), on("cpu"))
    prices = [
        replica_hours(bound(both, [pool(price=1.0, instances=count), pool("cpu", price=3.0)], load(20.0)))
        for count in (2, 1)
    ]
    assert prices == pytest.approx([2 * ONE, 4 * ONE], rel=0.05)
    assert bound(both, [pool(instances=1), pool("cpu", instances=0)], load(20.0)).cost is None


def test_replicas_share_an_instance() -> None:
    found = bound(pipeline(on("gpu", per_instance=2)), [pool(instances=1)], load(20.0))
    assert replica_hours(found) == pytest.approx(ONE, rel=0.03)


def test_who_is_to_serve_while_a_pool_is_unavailable_must_be_there_before() -> None:
    step = load(10.0, 10.0, 20.0, 10.0)
    spec = pipeline(on("gpu", startup_s=10.0))
    free = bound(spec, schedule=step)
    held = bound(spec, schedule=step, faults=[{"at": "60s", "for": "90s", "poolUnavailable": "gpu"}])
    assert replica_hours(held) - replica_hours(free) == pytest.approx(50 / 3600, rel=0.3)
    other = bound(spec, schedule=step, faults=[{"at": "200s", "poolUnavailable": "gpu"}])
    assert replica_hours(other) == pytest.approx(replica_hours(free), rel=0.03)


def test_a_pool_that_is_lost_serves_nothing() -> None:
    fault = {"at": "60s", "for": "60s", "poolLost": "gpu"}
    assert bound(faults=[fault]).cost is None
    both, pools = pipeline(on("gpu"), on("cpu")), [pool(), pool("cpu", price=3.0)]
    dearer = replica_hours(bound(both, pools, faults=[fault]))
    assert dearer > replica_hours(bound(both, pools)) + 2 * 60 / 3600


def test_minimums_of_a_pool_that_was_lost_are_not_owed() -> None:
    both = pipeline(on("gpu", min_replicas=4), on("cpu"))
    pools = [pool(), pool("cpu", price=0.1)]
    found = bound(both, pools, faults=[{"at": "120s", "poolLost": "gpu"}])
    assert replica_hours(found) == pytest.approx(2 * ONE, rel=0.1)


def test_a_price_counts_from_when_it_holds() -> None:
    spec = pipeline()
    dearer = Epoch(at_s=120.0, pipelines=(spec,), pools=(pool(price=3.0),))
    assert replica_hours(bound(spec, changes=[dearer])) == pytest.approx(2 * ONE, rel=0.05)


def test_after_a_rise_in_price_spend_is_excused_for_a_while() -> None:
    spec = pipeline(budget_per_hour=1.5)
    dearer = Epoch(at_s=20.0, pipelines=(spec,), pools=(pool(price=2.0),))
    cheap_again = Epoch(at_s=100.0, pipelines=(spec,), pools=(pool(),))
    assert bound(spec, changes=[dearer, cheap_again]).cost is not None
    assert bound(spec, changes=[dearer]).cost is None


def test_a_slow_stage_needs_more() -> None:
    fault = {"at": "0s", "slowStage": {"stage": "stage", "factor": 2}}
    assert replica_hours(bound(faults=[fault])) == pytest.approx(2 * ONE, rel=0.05)
    elsewhere = {"at": "0s", "slowStage": {"stage": "other", "factor": 2}}
    assert replica_hours(bound(faults=[elsewhere])) == pytest.approx(ONE, rel=0.03)


def test_streams_hold_slots() -> None:
    spec = pipeline(on("gpu", service_s=0.001, session_slots=10), unit=DemandUnit.STREAMS, chunk_s=0.5)
    start_s = np.zeros(38)
    streams = Schedule(start_s=start_s, end_s=start_s + CLOCK.duration_s)
    assert replica_hours(bound(spec, schedule=streams)) == pytest.approx(4 * ONE, rel=0.05)
    roomy = replace(on("gpu", service_s=0.001, session_slots=40))
    assert replica_hours(bound(pipeline(roomy, unit=DemandUnit.STREAMS, chunk_s=0.5), schedule=streams)) < 1.1 * ONE


def test_requests_hold_slots_while_they_are_served() -> None:
    spec = pipeline(on("gpu", service_s=0.09, batch=4, session_slots=2))
    assert replica_hours(bound(spec, schedule=load(40.0))) == pytest.approx(2 * ONE, rel=0.05)


def test_placements_below_the_quality_asked_for_do_not_count() -> None:
    spec = pipeline(on("gpu", wer=0.05), on("cpu", wer=0.2))
    pools = [pool(), pool("cpu", price=0.1)]
    assert replica_hours(bound(spec, pools)) == pytest.approx(0.1 * ONE, rel=0.03)
    assert replica_hours(bound(replace(spec, max_wer=0.1), pools)) == pytest.approx(ONE, rel=0.03)


def test_windows_with_few_items_ask_for_nothing() -> None:
    assert bound(schedule=load(1.9)).cost == pytest.approx(0.0, abs=1e-9)
    assert replica_hours(bound(schedule=load(2.0))) > 0.5 * ONE


def test_windows_may_be_given_up() -> None:
    rates = [10.0] * 24
    rates[12] = 200.0
    spike = load(*rates)
    strict, lenient = bound(schedule=spike), bound(schedule=spike, required_share=23 / 24)
    assert replica_hours(lenient) < replica_hours(strict) * 0.9
    assert lenient.windows_share == pytest.approx(23 / 24)


def test_what_is_less_than_a_window_may_not_be_given_up() -> None:
    spike = load(*[10.0] * 12, 200.0, *[10.0] * 11)
    strict = bound(schedule=spike, required_share=1.0)
    assert bound(schedule=spike, required_share=23.1 / 24).cost == pytest.approx(strict.cost)
    assert bound(schedule=spike, required_share=22.1 / 24).cost == pytest.approx(
        bound(schedule=spike, required_share=23 / 24).cost
    )


def test_a_share_of_the_items_may_be_late() -> None:
    spec = pipeline(on("gpu", startup_s=0.0))
    half = bound(replace(spec, sla=Sla(latency_s=1.0, percentile=50.0)))
    assert replica_hours(half) == pytest.approx(replica_hours(bound(spec)) * 50 / 95, rel=0.03)


def test_pipelines_share_a_pool() -> None:
    a, b = PipelineKey("speech/a"), PipelineKey("speech/b")
    specs = [replace(pipeline(), key=key) for key in (a, b)]
    answers = [
        clairvoyant_bound(
            specs, [pool(instances=count)], {a: load(10.0), b: load(10.0)}, CLOCK, seeds={a: 1, b: 2}
        ).cost
        for count in (2, 1)
    ]
    assert answers == [pytest.approx(2 * ONE, rel=0.03), None]


def test_the_last_window_may_be_shorter() -> None:
    spec = pipeline()
    clock = Clock(duration_s=235.0, warmup_s=0.0, window_s=10.0)
    found = clairvoyant_bound([spec], [pool()], {spec.key: load(10.0)}, clock, seeds={spec.key: 1})
    assert replica_hours(found) == pytest.approx(235 / 3600, rel=0.03)


def test_long_windows_are_cut_for_start_up_to_count() -> None:
    spec = pipeline()
    clock = Clock(duration_s=240.0, warmup_s=0.0, window_s=120.0)
    found = clairvoyant_bound([spec], [pool()], {spec.key: load(6.0, 10.0)}, clock, seeds={spec.key: 1})
    assert replica_hours(found) > 0.85 * ONE
