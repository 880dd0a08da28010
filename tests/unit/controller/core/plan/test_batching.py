"""The batch settings that are written for servers: when others are chosen, and what plans count on meanwhile."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builders import a_placement, a_snapshot, a_spec, a_stage, a_state, applied

from controller.core.assess.batching import SYNC_S
from controller.core.assess.optimizer_input import optimizer_pipeline
from controller.core.cycle import decide
from controller.core.state.carry_over import BatchMemory, PipelineMemory
from controller.core.state.decision import HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import BatchingState, Snapshot
from controller.core.state.spec import AppliedBatching, ConfigKey, Mode, PipelineSpec
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import BatchSettings, Composition, PipelineKey, PlacementKey, PoolName, ServiceLaw, StageName

ASR: PlacementKey = (StageName("asr"), PoolName("gpu"))
AT = ConfigKey(config_map="captions-batching", key="asr")
SMALL, LARGE, PATIENT = BatchSettings(limit=1), BatchSettings(limit=8), BatchSettings(limit=8, wait_s=0.6)
POLICY = Policy(composition=Composition.SUM)


def a_pipeline(
    sizes: Sequence[int] = (1, 8), waits_s: Sequence[float] = (0.0,), tolerance: float = 0.1
) -> PipelineSpec:
    """One stage that takes 40 ms for a batch and 2 ms more for each item of it: batches save most of the replicas."""
    own = a_placement("gpu", bounds=(1, 20))
    own = replace(
        own,
        prior=replace(own.prior, service=ServiceLaw(fixed_s=0.04, per_item_s=0.002, cv=0.1)),
        applied=AppliedBatching(at=AT, sizes=tuple(sizes), waits_s=tuple(waits_s)),
    )
    own = replace(own, prior=own.applied.free(own.prior)) if own.applied else own
    spec = a_spec(a_stage("asr", own))
    return replace(spec, scaling=replace(spec.scaling, tolerance=tolerance))


def a_world(
    spec: PipelineSpec,
    found: BatchingState,
    *,
    replicas: int = 8,
    demand: float = 100.0,
    memory: PipelineMemory | None = None,
) -> Snapshot:
    state = a_state(spec, demand=demand, replicas={ASR: replicas}, memory=memory)
    return a_snapshot(replace(state, batching={ASR: found}))


def decision_of(world: Snapshot) -> PipelineDecision:
    (decision,) = decide(world, POLICY).pipelines
    return decision


def later(world: Snapshot, decision: PipelineDecision, *, after_s: float, now: BatchSettings | None = None) -> Snapshot:
    """Return the world `after_s` seconds after a decision, with the settings that it wrote, or those of `now`."""
    (state,) = applied(world, decide(world, POLICY), after_s=after_s).pipelines
    written = {(own.stage, own.placement): own.settings for own in decision.batch_writes}
    before = world.pipelines[0].batching[ASR]
    settings = now or written.get(ASR, before.settings)
    state = replace(state, batching={ASR: BatchingState(settings=settings)})
    return replace(world, now_s=world.now_s + after_s, pipelines=(state,))


def served_within_sla(world: Snapshot, decision: PipelineDecision, settings: BatchSettings) -> bool:
    """Return whether the desired replicas meet the SLA with these batch settings."""
    spec = world.pipelines[0].spec
    placement = spec.stages[0].placements[0]
    fixed = replace(placement, prior=placement.prior.with_settings(settings))
    pipeline = optimizer_pipeline(
        replace(spec, stages=(replace(spec.stages[0], placements=(fixed,)),)), decision.demand.planned or 0.0
    )
    late_s = predicted_latency_s(pipeline, decision.desired, {}, composition=Composition.SUM)
    return late_s is not None and late_s <= spec.sla.latency_s


def test_settings_that_save_enough_are_written() -> None:
    decision = decision_of(a_world(a_pipeline(), BatchingState(settings=SMALL)))
    (write,) = decision.batch_writes
    assert (write.settings, write.before, write.at, write.restores) == (LARGE, SMALL, AT, False)


def test_replicas_meet_the_sla_with_both_settings_until_the_servers_have_the_new_ones() -> None:
    world = a_world(a_pipeline(), BatchingState(settings=SMALL))
    first = decision = decision_of(world)
    needed = decision.unconstrained[ASR]
    assert served_within_sla(world, decision, SMALL)
    assert served_within_sla(world, decision, LARGE)
    passed_s = 0.0
    while passed_s + 30.0 < SYNC_S:
        world, passed_s = later(world, decision, after_s=30.0), passed_s + 30.0
        decision = decision_of(world)
        assert decision.batch_writes == ()
        assert decision.unconstrained[ASR] == needed
        assert served_within_sla(world, decision, SMALL)
    # Seen last when they were replaced.
    world = later(world, decision, after_s=SYNC_S)
    decision = decision_of(world)
    assert decision.unconstrained[ASR] < needed
    assert not served_within_sla(world, replace(decision, desired=decision.unconstrained), SMALL)
    assert first.batch_writes


def test_what_the_servers_have_already_counts_at_once() -> None:
    had = decision_of(a_world(a_pipeline(), BatchingState(settings=LARGE)))
    assert had.batch_writes == ()
    new = decision_of(a_world(a_pipeline(), BatchingState(settings=SMALL)))
    assert had.unconstrained[ASR] < new.unconstrained[ASR]


def test_scale_ups_do_not_wait_for_the_settings() -> None:
    world = a_world(a_pipeline(), BatchingState(settings=SMALL), replicas=2)
    decision = decision_of(world)
    assert decision.batch_writes
    assert decision.desired[ASR] > 2


@pytest.mark.parametrize(("tolerance", "written"), [(0.1, True), (0.95, False)])
def test_settings_in_force_stay_while_others_save_less_than_the_tolerance(tolerance: float, *, written: bool) -> None:
    decision = decision_of(a_world(a_pipeline(tolerance=tolerance), BatchingState(settings=SMALL)))
    assert bool(decision.batch_writes) == written


def test_settings_that_the_sla_needs_are_written_whatever_they_save() -> None:
    spec = a_pipeline(tolerance=0.95)
    limited = replace(spec.stages[0].placements[0].prior, max_replicas=3)
    spec = replace(
        spec,
        stages=(replace(spec.stages[0], placements=(replace(spec.stages[0].placements[0], prior=limited),)),),
    )
    assert decision_of(a_world(spec, BatchingState(settings=SMALL), replicas=3)).batch_writes


def test_a_shorter_wait_is_written_where_the_sla_is_missed_with_the_one_in_force() -> None:
    spec = a_pipeline(sizes=(8,), waits_s=(0.0, 0.6))
    found = decision_of(a_world(spec, BatchingState(settings=PATIENT), demand=10.0, replicas=1))
    (write,) = found.batch_writes
    assert write.settings == LARGE


def test_the_same_load_does_not_change_the_settings_back_and_forth() -> None:
    world = a_world(a_pipeline(), BatchingState(settings=SMALL))
    written: list[BatchSettings] = []
    for turn in range(40):
        world = replace(world, pipelines=(replace(world.pipelines[0], demand=100.0 + 8.0 * (-1) ** turn),))
        decision = decision_of(world)
        written += [own.settings for own in decision.batch_writes]
        world = later(world, decision, after_s=60.0)
    assert written == [LARGE]


def test_an_edit_by_another_client_is_written_over() -> None:
    world = a_world(a_pipeline(), BatchingState(settings=LARGE))
    decision = decision_of(world)
    world = later(world, decision, after_s=15.0, now=SMALL)
    edited = decision_of(world)
    (write,) = edited.batch_writes
    assert (write.settings, write.before, write.restores) == (LARGE, SMALL, True)
    assert served_within_sla(world, edited, SMALL), "servers may have the edit already"


@pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.PAUSED])
def test_a_pipeline_that_does_not_act_leaves_an_edit_alone_and_goes_on_with_it(mode: Mode) -> None:
    memory = PipelineMemory(batching={ASR: BatchMemory(decided=LARGE)})
    spec = replace(a_pipeline(tolerance=0.95), mode=mode)
    world = a_world(spec, BatchingState(settings=SMALL), memory=memory)
    decision = decision_of(world)
    assert decision.batch_writes == ()
    (state,) = later(world, decision, after_s=15.0).pipelines
    resumed = replace(world, pipelines=(replace(state, spec=replace(spec, mode=Mode.AUTO)),))
    assert decision_of(resumed).batch_writes == ()


@pytest.mark.parametrize(
    "found", [BatchingState(problem="cannot be read: why"), BatchingState(settings=SMALL, refused="cannot be written")]
)
def test_what_cannot_be_written_is_a_hold_and_the_replicas_are_scaled_with_the_settings_of_before(
    found: BatchingState,
) -> None:
    memory = PipelineMemory(batching={ASR: BatchMemory(decided=LARGE, seen=((SMALL, 0.0),))})
    world = a_world(a_pipeline(), found, replicas=2, memory=memory)
    decision = decision_of(world)
    held = [hold for hold in decision.holds if hold.reason is HoldReason.BATCHING_NOT_WRITTEN]
    assert [(hold.stage, hold.placement) for hold in held] == [ASR]
    assert held[0].detail in (found.problem, found.refused)
    assert decision.desired[ASR] > 2
    assert served_within_sla(world, replace(decision, desired=decision.unconstrained), SMALL)


def test_a_missing_value_is_written_even_if_it_is_what_servers_have_without_one() -> None:
    (write,) = decision_of(a_world(a_pipeline(), BatchingState())).batch_writes
    assert (write.settings, write.before) == (LARGE, None)


def test_settings_that_the_spec_no_longer_allows_are_replaced() -> None:
    (write,) = decision_of(
        a_world(a_pipeline(sizes=(4, 8), tolerance=0.95), BatchingState(settings=SMALL))
    ).batch_writes
    assert write.settings.limit in (4, 8)


def test_each_pipeline_of_a_fleet_chooses_beside_the_plans_of_the_others() -> None:
    first = a_world(a_pipeline(), BatchingState(settings=SMALL)).pipelines[0]
    other = replace(first.spec, key=PipelineKey("speech/other"), name="other", uid="other")
    second = replace(first, spec=other, demand=50.0)
    one, two = decide(a_snapshot(first, second), POLICY).pipelines
    assert [write.settings for own in (one, two) for write in own.batch_writes] == [LARGE, LARGE]
    alone = decision_of(a_snapshot(first))
    assert one.unconstrained == alone.unconstrained


def test_plans_without_settings_to_write_are_as_before() -> None:
    spec = a_pipeline()
    own = replace(spec.stages[0].placements[0], applied=None)
    spec = replace(spec, stages=(replace(spec.stages[0], placements=(own,)),))
    state = a_state(spec, demand=100.0, replicas={ASR: 8})
    decision = decision_of(a_snapshot(state))
    assert decision.batch_writes == ()
    assert decision.memory.batching == {}
    assert (
        decision.unconstrained[ASR]
        < decision_of(a_world(a_pipeline(), BatchingState(settings=SMALL))).unconstrained[ASR]
    )
