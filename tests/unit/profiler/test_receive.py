"""A replica takes as many packets as it was seen to take: a limit once packets are lost, and only then."""

from dataclasses import replace
from typing import Any

import pytest

from optimizer.model import Demand, Placement, PlacementKey, PoolName, Routing, ServiceLaw, Sla, StageName
from profiler.profile import profile_pipeline
from profiler.receive import KEPT_S, RISING_TIME_CONSTANT_S, learned_receive_limits, limit_rps
from profiler.samples import Absence, AbsenceReason, DeviceQuantity, PlacementSamples, Quantity, Reading
from profiler.stages import Learned, PipelineInput, PlacementInput, ReceiveLimit, StageInput

VAD, CPU = StageName("vad"), PoolName("cpu")
KEY: PlacementKey = (VAD, CPU)
MISSING = Absence(reason=AbsenceReason.MISSING)
NOW_S = 1000.0


def pipeline(
    *,
    packets: Reading = 4000.0,
    items: Reading = 250.0,
    pressure: Reading = 0.2,
    replicas: int = 2,
    settled: bool = True,
) -> PipelineInput:
    """Two replicas that get 16 packets per item: 20 ms of audio each, in chunks of 320 ms."""
    placement = PlacementInput(
        prior=Placement(pool=CPU, service=ServiceLaw(fixed_s=0.002)),
        replicas=replicas,
        batch=1,
        samples=PlacementSamples(
            readings={
                Quantity.ARRIVAL_RATE: items,
                Quantity.COMPLETION_RATE: items,
                Quantity.RX_QUEUE_PRESSURE: pressure,
            },
            devices={DeviceQuantity.RX_PACKETS_RPS: packets},
        ),
    )
    stage = StageInput(
        name=VAD,
        after=(),
        pass_ratio=1.0,
        routing=Routing.LEAST_LOADED,
        window_s=60.0,
        placements=(placement,),
        settled=settled,
    )
    demand = Demand(entry_rate_rps=250.0)
    return PipelineInput(stages=(stage,), sla=Sla(latency_s=0.5), latency_s=None, demand=demand)


def after(before: ReceiveLimit | None = None, **seen: object) -> ReceiveLimit | None:
    learned = Learned(receive_limits={} if before is None else {KEY: before})
    return learned_receive_limits(pipeline(**seen), learned, now_s=NOW_S).get(KEY)  # type: ignore[arg-type]


TAKEN = ReceiveLimit(packets_per_s=2000.0, packets_per_item=16.0)


def test_while_nothing_is_lost_there_is_no_limit() -> None:
    assert after() == TAKEN
    assert limit_rps(after(), NOW_S) is None
    assert after(replace(TAKEN, packets_per_s=3000.0)) == replace(TAKEN, packets_per_s=3000.0)


def test_once_packets_are_lost_a_replica_takes_what_reached_its_server() -> None:
    # 4,500 packets arrive each second, of which those of 256 items are read: 16 for each.
    lost = after(TAKEN, packets=4500.0, items=256.0, pressure=1.0)
    assert lost == ReceiveLimit(packets_per_s=2048.0, packets_per_item=16.0, lost_at_s=NOW_S)
    assert limit_rps(lost, NOW_S) == 128.0


def test_a_loss_at_a_lower_load_does_not_lower_the_limit() -> None:
    limit = replace(TAKEN, lost_at_s=NOW_S - 60)
    assert after(limit, packets=400.0, items=25.0, pressure=1.0) == replace(TAKEN, lost_at_s=NOW_S)


def test_more_packets_without_a_loss_raise_it_at_once() -> None:
    limit = replace(TAKEN, lost_at_s=NOW_S - 60)
    found = after(limit, packets=6000.0, items=375.0)
    assert found == ReceiveLimit(packets_per_s=3000.0, packets_per_item=16.0, lost_at_s=NOW_S - 60)


def test_packets_per_item_follow_slowly_and_only_without_losses() -> None:
    found = after(TAKEN, packets=8000.0, items=250.0)
    assert found is not None
    assert found.packets_per_item == pytest.approx(16 + 0.3 * 16)
    lossy = after(TAKEN, packets=8000.0, items=250.0, pressure=1.0)
    assert lossy is not None
    assert lossy.packets_per_item == 16


def test_nothing_is_learned_of_a_loss_while_replicas_start_or_stop() -> None:
    assert after(TAKEN, packets=9000.0, pressure=1.0, settled=False) == TAKEN


@pytest.mark.parametrize(
    "unread",
    [
        {"packets": MISSING},
        {"items": MISSING},
        {"pressure": MISSING},
        {"replicas": 0},
        {"packets": 0.0},
        {"items": 0.1},
    ],
)
def test_without_data_it_stays_as_it_was(unread: dict[str, Any]) -> None:
    assert after(TAKEN, **unread) == TAKEN
    assert after(**unread) is None


def test_an_hour_after_the_last_loss_it_begins_to_rise() -> None:
    limit = replace(TAKEN, lost_at_s=NOW_S)
    assert limit_rps(limit, NOW_S + KEPT_S) == 125.0
    assert limit_rps(limit, NOW_S + KEPT_S + RISING_TIME_CONSTANT_S) == pytest.approx(125 * 2.71828, rel=1e-4)
    assert limit_rps(limit, NOW_S + 1e12) is not None


def test_the_plan_is_made_with_the_limit_where_it_is_below_the_service_time() -> None:
    # A service time of 2 ms allows 500 items/s.
    profile, learned = profile_pipeline(pipeline(pressure=1.0), Learned(), now_s=NOW_S, interval_s=15.0)
    assert profile.stages[0].placements[0].saturation_rps == pytest.approx(125.0, rel=0.01)
    assert learned.receive_limits[KEY].lost_at_s == NOW_S
    profile, learned = profile_pipeline(pipeline(), learned, now_s=NOW_S + 15, interval_s=15.0)
    assert profile.stages[0].placements[0].saturation_rps == pytest.approx(125.0, rel=0.01)
    profile, _ = profile_pipeline(pipeline(packets=17000.0, items=1062.5), learned, now_s=NOW_S + 30, interval_s=15.0)
    assert profile.stages[0].placements[0].saturation_rps is None


def test_without_losses_the_service_time_alone_counts() -> None:
    profile, _ = profile_pipeline(pipeline(), Learned(), now_s=NOW_S, interval_s=15.0)
    assert profile.stages[0].placements[0].saturation_rps is None
