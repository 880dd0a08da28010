"""The bounds that are known before the plan, and the optimizer's input inside them."""

from dataclasses import replace

from bounded import bounded, most_of
from builders import (
    ENCODER,
    ENCODER_GPU,
    NOW_S,
    VAD,
    a_placement,
    a_pool,
    a_rule,
    a_scaling,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    default_stages,
    pools,
)

from controller.core.assess.assessment import Assessment
from controller.core.bounds.idle import idle_stages
from controller.core.bounds.missing_data import NEVER_DOWN
from controller.core.bounds.not_ours import POOLS, SPEND
from controller.core.bounds.outages import PATIENT_TRIAL, TRIAL
from controller.core.bounds.rules import RULE
from controller.core.bounds.stated import outside_limits
from controller.core.state.bound import Evidence
from controller.core.state.carry_over import PipelineMemory, PoolMemory, RuleMemory
from controller.core.state.snapshot import TargetMissing
from optimizer.model import StageName
from profiler.samples import Absence, AbsenceReason

RUNNING = {VAD: 2, ENCODER: 3}
MISSING = Absence(reason=AbsenceReason.MISSING)


def test_with_all_data_nothing_must_be_kept() -> None:
    assert not bounded(a_state(replicas=RUNNING)).bounds.kept


def test_without_demand_all_replicas_are_kept_on_the_evidence_of_the_pipeline() -> None:
    assessment = bounded(a_state(demand=MISSING, replicas=RUNNING))
    assert assessment.bounds.kept == RUNNING
    assert {bound.evidence for bound in assessment.bounds.of(NEVER_DOWN)} == {Evidence.PIPELINE}


def test_a_workload_that_cannot_be_read_makes_the_spend_unknown() -> None:
    for unreadable in (True, False):
        target = TargetMissing(reason="no answer", unreadable=unreadable)
        assessment = bounded(a_state(replicas={VAD: 2, ENCODER: target}))
        assert bool(most_of(assessment, SPEND)) is unreadable


def test_replicas_on_a_pool_that_does_not_exist_stay() -> None:
    state = a_state(replicas=RUNNING)
    assessment = bounded(state, a_snapshot(state, fleet=pools(a_pool("cpu"), a_pool("gpu"))))
    assert assessment.bounds.kept == {ENCODER: 3}
    assert most_of(assessment, POOLS) == {ENCODER: 3}
    assert most_of(assessment, SPEND)


def test_a_floor_of_a_rule_is_no_bound_of_the_first_plan() -> None:
    memory = PipelineMemory(rules={(StageName("vad"), "busy"): RuleMemory(floor=6, fired=True)})
    state = a_state(a_spec(*default_stages(vad_rules=[a_rule()])), replicas=RUNNING, memory=memory)
    assessment = bounded(state)
    assert [(bound.stage, bound.least) for bound in assessment.bounds.of(RULE)] == [("vad", 6)]
    assert assessment.pipeline.stages[0].min_replicas == 1


class TestTrial:
    """A pool whose failure is over, before a replica has become ready there."""

    def on_trial(self, demand: float) -> Assessment:
        state = a_state(demand=demand, replicas={VAD: 2, ENCODER: 3})
        after = PoolMemory(unavailable_until_s=NOW_S - 1, backoff_s=600.0, reason="full")
        fleet = pools(a_pool("cpu"), a_pool("inferentia", memory=after), a_pool("gpu"))
        return bounded(state, a_snapshot(state, fleet=fleet))

    def test_while_the_sla_is_met_plans_may_use_the_pool(self) -> None:
        assessment = self.on_trial(10.0)
        assert most_of(assessment, PATIENT_TRIAL) == {ENCODER: 4}
        assert assessment.pipeline.stages[1].placements[0].max_replicas == 20

    def test_missing_replicas_go_elsewhere(self) -> None:
        assessment = self.on_trial(1000.0)
        assert most_of(assessment, TRIAL) == {ENCODER: 4}
        assert [placement.max_replicas for placement in assessment.pipeline.stages[1].placements] == [4, 20]


def test_bounds_are_broken_by_too_few_too_many_and_none() -> None:
    spec = a_spec(a_stage("vad", a_placement("cpu", bounds=(2, 4))))
    for replicas, broken in ((0, True), (1, True), (2, False), (4, False), (5, True)):
        assert outside_limits(bounded(a_state(spec, replicas={VAD: replicas}))) is broken


def test_a_placement_with_too_many_errors_may_have_no_replica() -> None:
    spec = a_spec()
    vad, encoder = spec.stages
    poor = replace(encoder.placements[0], prior=replace(encoder.placements[0].prior, wer=0.2))
    spec = replace(spec, max_wer=0.1, stages=(vad, replace(encoder, placements=(poor, encoder.placements[1]))))
    assessment = bounded(a_state(spec, replicas=RUNNING))
    assert assessment.bounds.reach.most(ENCODER) == 0
    assert assessment.bounds.reach.most(ENCODER_GPU) == 20


def test_an_idle_stage_may_have_no_replica() -> None:
    for minimum, idle in ((0, True), (1, False)):
        stages = (
            a_stage("vad", a_placement("cpu")),
            a_stage("asr", a_placement("cpu", bounds=(minimum, 4)), after=["vad"]),
        )
        spec = a_spec(*stages, scaling=replace(a_scaling(down_s=30.0), idle_after_s=60.0))
        asleep = bounded(a_state(spec, demand=0.0, memory=PipelineMemory(demand=0.0, idle_since_s=NOW_S - 90)))
        assert idle_stages(asleep) == ({"vad", "asr"} if idle else {"vad"})
        assert outside_limits(asleep) is not idle
        assert not idle_stages(bounded(a_state(spec, demand=0.1, memory=asleep.state.memory)))
