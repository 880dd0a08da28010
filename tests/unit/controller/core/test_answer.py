"""The decision of a cycle: what changes, what holds, and what is carried over."""

from dataclasses import replace

import pytest
from builders import ENCODER, NOW_S, VAD, a_pool, a_snapshot, a_spec, a_state, a_target, pools, seen
from planning import Planner

from controller.core.cycle import decide
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.decision import HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState
from controller.core.state.spec import Mode
from profiler.samples import Absence, AbsenceReason, MetricsTier, Origin

RUNNING = {VAD: 4, ENCODER: 4}


def decided(state: PipelineState, now_s: float = NOW_S) -> PipelineDecision:
    return decide(a_snapshot(state, now_s=now_s), Policy()).pipelines[0]


def test_a_change_is_decided_on_the_version_that_was_read(planner: Planner) -> None:
    planner.wants({VAD: 6, ENCODER: 4})
    state = a_state(replicas={VAD: replace(a_target(4), resource_version="77"), ENCODER: 4})
    (change,) = decided(state).changes
    assert (change.before, change.after, change.resource_version) == (4, 6, "77")
    assert change.target.name == "vad-cpu"


def test_the_batches_of_a_plan_are_kept_only_while_it_is_followed(planner: Planner) -> None:
    planner.wants({VAD: 6, ENCODER: 4})
    state = a_state(replicas=RUNNING, memory=PipelineMemory(batches={VAD: 7}))
    assert decided(state).memory.batches[VAD] == 1
    paused = replace(state, spec=a_spec(mode=Mode.PAUSED))
    assert decided(paused).memory.batches == {VAD: 7}


def test_what_the_profiler_learned_is_carried_over(planner: Planner) -> None:
    planner.wants(RUNNING)
    measured = seen(completion_rate=10.0, service_time=0.1, batch_size=1.0)
    memory = decided(a_state(replicas=RUNNING, samples={ENCODER: measured})).memory
    assert memory.learned.pass_ratios == {}, "nothing was measured of what is passed on"
    assert memory.learned.service_factors == {ENCODER: pytest.approx(2.0)}, "of what was measured"


def test_while_the_demand_is_missing_the_time_and_the_margin_are_known(planner: Planner) -> None:
    planner.wants(RUNNING)
    first = decided(a_state(demand=100.0, replicas=RUNNING))
    missing = replace(
        a_state(demand=Absence(reason=AbsenceReason.UNAVAILABLE), replicas=RUNNING, memory=first.memory),
        metrics=Origin(tier=MetricsTier.DIRECT_SCRAPE, because="Prometheus does not answer"),
    )
    lost = decided(missing, NOW_S + 15)
    later = decided(replace(missing, memory=lost.memory), NOW_S + 75)
    assert lost.metrics.tier is later.metrics.tier is MetricsTier.HOLDING
    assert later.metrics.because == "Prometheus does not answer"
    assert (later.metrics.lost_since_s, later.metrics.lost_for_s) == (NOW_S + 15, 60.0)
    assert later.metrics.margin == pytest.approx((later.demand.planned or 0.0) / (lost.demand.planned or 1.0))
    assert later.metrics.margin > 1


def test_a_refused_change_is_a_hold_with_the_servers_reason(planner: Planner) -> None:
    planner.wants(RUNNING)
    (hold,) = decided(replace(a_state(replicas=RUNNING), refused={ENCODER: "403 forbidden"})).holds
    assert (hold.reason, hold.stage, hold.detail) == (HoldReason.SCALE_REFUSED, "encoder", "inferentia: 403 forbidden")


def test_a_pool_has_its_use_now_and_after_the_changes(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 6})
    fleet = pools(a_pool("cpu"), a_pool("inferentia", instances=9, unaccounted={2: 1}), a_pool("gpu"))
    decision = decide(a_snapshot(a_state(replicas=RUNNING), fleet=fleet), Policy())
    assert [pool.name for pool in decision.pools] == ["cpu", "gpu", "inferentia"]
    pool = decision.pools[2]
    assert (pool.in_use, pool.planned, pool.limit) == (4.5, 7, 9)
