"""A decision made of replica counts: bounds, what is kept, and what it changes."""

from baselines import CAPTIONS, a_detailed
from builders import ENCODER, ENCODER_GPU, VAD, a_placement, a_spec, a_stage, a_state, a_target

from controller.core.state.decision import Outcome
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, TargetMissing
from simulations.policies.autoscaler import decision_of


def bounded() -> PipelineState:
    return a_state(
        a_spec(a_stage("vad", a_placement("cpu", bounds=(2, 5)))), replicas={VAD: a_target(3, ready=2, terminating=1)}
    )


def test_replicas_stay_within_the_declared_bounds() -> None:
    world = a_detailed(bounded())
    for asked, given in ((9, 5), (1, 2), (4, 4)):
        decision = decision_of(world, {(CAPTIONS, *VAD): asked}, "why", Policy())
        assert decision.pipelines[0].desired[VAD] == given
        assert [(change.before, change.after) for change in decision.pipelines[0].changes] == [(3, given)]
        assert decision.pipelines[0].outcome is Outcome.SCALE


def test_what_is_not_named_keeps_what_it_has() -> None:
    world = a_detailed(a_state(replicas={VAD: 2, ENCODER: 3, ENCODER_GPU: 1}))
    decision = decision_of(world, {(CAPTIONS, *ENCODER): 4}, "why", Policy())
    assert dict(decision.pipelines[0].desired) == {VAD: 2, ENCODER: 4, ENCODER_GPU: 1}
    assert [change.placement for change in decision.pipelines[0].changes] == ["inferentia"]
    assert decision.pipelines[0].memory == world.pipelines[0].memory
    assert decision.reason == "why"


def test_a_workload_that_is_not_there_is_left_alone() -> None:
    world = a_detailed(a_state(replicas={VAD: TargetMissing(reason="gone"), ENCODER: 1}))
    decision = decision_of(world, {(CAPTIONS, *VAD): 4}, "why", Policy())
    assert decision.pipelines[0].desired[VAD] == 0
    assert decision.pipelines[0].changes == ()


def test_spend_is_that_of_the_books() -> None:
    world = a_detailed(a_state(replicas={VAD: a_target(4, terminating=2), ENCODER: 1}))
    decision = decision_of(world, {(CAPTIONS, *VAD): 9}, "why", Policy())
    assert decision.pipelines[0].spend_per_hour == 6 * 0.5 / 4 + 1.0  # terminating replicas cost until they have left
