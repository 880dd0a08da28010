"""What a single-pool autoscaler gets of a stage, and how a person would split an SLA."""

import math
from dataclasses import replace

import pytest
from baselines import CAPTIONS, a_detailed, a_reading
from builders import ENCODER, ENCODER_GPU, VAD, a_placement, a_spec, a_stage, a_state, a_target

from controller.core.state.snapshot import TargetMissing
from controller.core.state.spec import DemandUnit
from optimizer.model import PoolName, ServiceLaw, StageName
from simulations.policies.deployments import (
    carried_out,
    ceil,
    first_placements,
    latency_targets,
    offered_rates,
    placements,
    slots_rate_rps,
)


def test_it_gets_the_first_placement_and_its_readings() -> None:
    world = a_detailed(
        a_state(replicas={VAD: 1, ENCODER: 2, ENCODER_GPU: 3}),
        replicas={ENCODER: [a_reading(queued=2, in_service=1, arrival_rps=7), a_reading(queued=4, arrival_rps=5)]},
    )
    works = {work.name: work for work in first_placements(world)}
    assert list(works) == [(CAPTIONS, *VAD), (CAPTIONS, *ENCODER)]
    encoder = works[(CAPTIONS, *ENCODER)]
    assert (encoder.ongoing, encoder.arrival_rate_rps, encoder.target.desired) == (7, 12, 2)


def moved(ready: int, *, wanted: int = 3, missing: bool = False) -> dict[tuple[str, str], int]:
    """What becomes of a stage with 4 replicas on inferentia (2 to 9), which is to have `wanted` on gpu (0 to 5)."""
    stage = a_stage("encoder", a_placement("inferentia", bounds=(2, 9)), a_placement("gpu", bounds=(0, 5)))
    state = a_state(a_spec(stage), replicas={ENCODER: 4, ENCODER_GPU: a_target(wanted, ready=ready)})
    if missing:
        state = replace(state, targets={**state.targets, ENCODER_GPU: TargetMissing(reason="gone")})
    found = carried_out(state, stage, PoolName("gpu"), wanted)
    return {(name, pool): count for (_, name, pool), count in found.items()}


def test_what_is_replaced_stays_until_what_replaces_it_is_ready_and_leaves_its_minimum() -> None:
    assert moved(ready=2) == {ENCODER: 4, ENCODER_GPU: 3}
    assert moved(ready=3) == {ENCODER: 2, ENCODER_GPU: 3}
    assert moved(ready=5, wanted=8) == {ENCODER: 2, ENCODER_GPU: 5}, "more than its bounds allow is never ready"


def test_nothing_moves_to_a_workload_that_is_not_there() -> None:
    assert moved(ready=0, missing=True) == {}


def test_a_stage_without_any_minimum_keeps_one_replica_of_its_first_placement() -> None:
    stage = a_stage("encoder", a_placement("inferentia"), a_placement("gpu"))
    state = a_state(a_spec(stage))
    first, second = placements(a_detailed(state), state, stage)
    assert (first.least, second.least) == (1, 0)
    stage = a_stage("encoder", a_placement("inferentia"), a_placement("gpu", bounds=(2, 9)))
    state = a_state(a_spec(stage))
    first, second = placements(a_detailed(state), state, stage)
    assert (first.least, second.least) == (0, 2)


def test_a_workload_that_cannot_be_read_is_not_there() -> None:
    world = a_detailed(a_state(replicas={VAD: TargetMissing(reason="gone"), ENCODER: 1}))
    assert [work.name for work in first_placements(world)] == [(CAPTIONS, *ENCODER)]


def test_targets_split_the_sla_along_the_longest_way() -> None:
    spec = a_spec(
        a_stage("vad", a_placement("cpu", service_s=0.01)),
        a_stage("fast", a_placement("cpu", service_s=0.01), after=["vad"]),
        a_stage("slow", a_placement("cpu", service_s=0.02), after=["vad"]),
        a_stage("join", a_placement("cpu", service_s=0.01), after=["fast", "slow"]),
    )
    targets = latency_targets(spec, 0.4)
    assert targets == pytest.approx({"vad": 0.1, "fast": 0.4 / 3, "slow": 0.2, "join": 0.1})


def test_every_target_leaves_time_for_a_lone_item_and_batches_share_the_rest() -> None:
    batched = a_placement("gpu")
    law = ServiceLaw(fixed_s=0.02, per_item_s=0.01)
    batched = replace(batched, prior=replace(batched.prior, service=law, batch_sizes=(8,), batch_wait_s=0.01))
    spec = a_spec(a_stage("vad", a_placement("cpu", service_s=0.01)), a_stage("encoder", batched, after=["vad"]))
    targets = latency_targets(spec, 0.17)  # 0.01 and 0.04 for lone items; 0.12 left, shared as 0.01 to 0.11
    assert targets == pytest.approx({"vad": 0.02, "encoder": 0.15})
    assert latency_targets(spec, 0.025) == pytest.approx({"vad": 0.005, "encoder": 0.02})


def test_demand_comes_from_the_ingress_by_the_pass_ratios() -> None:
    spec = a_spec(
        a_stage("vad", a_placement("cpu"), pass_ratio=0.5), a_stage("encoder", a_placement("gpu"), after=["vad"])
    )
    assert offered_rates(a_detailed(a_state(spec), offered_rps=40.0), spec) == {"vad": 40.0, "encoder": 20.0}
    assert offered_rates(a_detailed(a_state(spec)), spec) is None


def test_session_slots_bound_the_rate_of_a_replica_of_streams() -> None:
    placement = a_placement("gpu")
    placement = replace(placement, prior=replace(placement.prior, session_slots=10))
    spec = a_spec(a_stage("vad", a_placement("cpu"), pass_ratio=0.5), a_stage("encoder", placement, after=["vad"]))
    streams = replace(spec, unit=DemandUnit.STREAMS, chunk_s=0.5)
    assert (
        slots_rate_rps(streams, StageName("encoder"), placement) == 10.0
    )  # ten streams, two items a second, half pass
    assert slots_rate_rps(streams, StageName("vad"), spec.stages[0].placements[0]) == math.inf
    assert slots_rate_rps(spec, StageName("encoder"), placement) == math.inf  # requests hold a slot while they are in


def test_rounding_up_forgives_rounding_errors() -> None:
    assert [ceil(0.1 * 3 * 10), ceil(3.0000001), ceil(2.0)] == [3, 4, 2]
