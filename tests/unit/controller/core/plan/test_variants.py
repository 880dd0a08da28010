"""A switch between variants of a model says what it saves and what quality it costs; maxWer forbids it."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders import VAD, a_placement, a_pool, a_snapshot, a_spec, a_stage, a_state, default_stages, pools

from controller.core.cycle import decide
from controller.core.messages.explain import explain_pipeline, reason_sentence
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.decision import ChangeReason, PipelineDecision, VariantSwitch
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState
from controller.core.state.spec import CascadeSpec, Overrides, Pin, PipelineSpec, PlacementSpec
from optimizer.model import PlacementKey, PoolName, StageName, placement_name
from profiler.stages import Learned, Shares

FP16: PlacementKey = (StageName("asr"), placement_name("gpu", "fp16"))
INT8: PlacementKey = (StageName("asr"), placement_name("gpu", "int8"))
ON_FP16: Mapping[PlacementKey, int] = {VAD: 4, FP16: 8}
ON_INT8: Mapping[PlacementKey, int] = {VAD: 4, INT8: 4}


def variant(name: str, *, service_s: float, wer: float | None, noisy: float = 0.1) -> PlacementSpec:
    """A variant of the model of stage asr on pool gpu, whose instances cost $2 an hour."""
    own = a_placement("gpu", service_s=service_s)
    return replace(own, prior=replace(own.prior, variant=name, wer=wer), wer_by_slice={"noisy": noisy})


def a_choice(*, int8_wer: float | None = 0.081, **limits: float) -> PipelineSpec:
    vad = default_stages()[0]
    fp16 = variant("fp16", service_s=0.05, wer=0.078)
    int8 = variant("int8", service_s=0.02, wer=int8_wer, noisy=0.16)
    spec = a_spec(vad, replace(a_stage("asr", fp16, after=["vad"]), placements=(fp16, int8)))
    by_slice = {"noisy": limits["noisy"]} if "noisy" in limits else {}
    return replace(spec, max_wer=limits.get("max_wer"), max_wer_by_slice=by_slice)


def decided(spec: PipelineSpec, running: Mapping[PlacementKey, int]) -> PipelineDecision:
    """Return the second decision at a load that does not change."""
    state = a_state(spec, demand=100.0, replicas=running)
    (first,) = decide(a_snapshot(state), Policy()).pipelines
    return decide(a_snapshot(replace(state, memory=first.memory)), Policy()).pipelines[0]


def the_switch(decision: PipelineDecision) -> VariantSwitch:
    (switch,) = decision.switches
    return switch


def test_a_cheaper_variant_takes_over_and_the_decision_says_what_it_saves_and_costs() -> None:
    decision = decided(a_choice(max_wer=0.09), ON_FP16)
    assert decision.unconstrained[FP16] == 0
    assert decision.unconstrained[INT8] > 0
    assert decision.desired[FP16] == 8, "the replicas of before stay until the new ones are ready"
    assert {change.reason for change in decision.changes if change.stage == "asr"} == {ChangeReason.COST}
    switch = the_switch(decision)
    assert (switch.before, switch.after) == ((FP16[1],), (INT8[1],))
    kept = decided(a_choice(max_wer=0.08), ON_FP16)
    assert decision.plan is not None
    assert kept.plan is not None
    assert switch.saving_per_hour == pytest.approx(kept.plan.cost_per_hour - decision.plan.cost_per_hour)
    for text in (reason_sentence(decision), "\n".join(explain_pipeline(decision, 0.0))):
        assert "asr goes from gpu:fp16 to gpu:int8 (saves $" in text
        assert "word error rate 7.8%→8.1%, maxWer 9.0%" in text


def test_while_both_variants_run_the_decision_says_the_same_switch() -> None:
    first, later = (the_switch(decided(a_choice(), running)) for running in (ON_FP16, {**ON_FP16, INT8: 4}))
    assert (later.before, later.after) == (first.before, first.after)
    assert later.saving_per_hour == pytest.approx(first.saving_per_hour)


@pytest.mark.parametrize("limits", [{"max_wer": 0.08}, {"max_wer": 0.09, "noisy": 0.15}])
def test_a_variant_whose_errors_are_above_a_limit_is_not_used(limits: Mapping[str, float]) -> None:
    decision = decided(a_choice(**limits), ON_FP16)
    assert decision.unconstrained[INT8] == 0
    assert decision.switches == ()


def test_a_limit_that_falls_moves_the_stage_to_the_better_variant_and_says_why() -> None:
    decision = decided(a_choice(max_wer=0.08), ON_INT8)
    assert decision.unconstrained[FP16] > 0
    assert the_switch(decision).saving_per_hour is None
    assert "this load cannot be served on gpu:int8 within the limits" in reason_sentence(decision)
    assert decision.desired[INT8] >= 3, "what serves now stays until the better variant is ready"


def test_on_a_full_pool_a_variant_begins_with_a_replica_of_the_one_that_it_replaces() -> None:
    full = pools(a_pool("cpu", price=0.5), a_pool("gpu", price=2.0, instances=8, ready=8))
    state = a_state(a_choice(max_wer=0.09), demand=100.0, replicas={VAD: 2, FP16: 8})
    (first,) = decide(a_snapshot(state, fleet=full), Policy()).pipelines
    (decision,) = decide(a_snapshot(replace(state, memory=first.memory), fleet=full), Policy()).pipelines
    assert decision.unconstrained[INT8] > 0
    assert decision.desired[FP16] == 7
    assert {hold.detail for hold in decision.holds if "no capacity" in hold.detail} == {
        "no capacity on gpu:int8 within Pool/gpu"
    }


def test_errors_that_are_not_stated_are_said_to_be_unknown() -> None:
    decision = decided(a_choice(int8_wer=None), ON_FP16)
    assert the_switch(decision).wer_after is None
    assert "word error rate 7.8%→not stated, no maxWer" in reason_sentence(decision)


def test_the_same_variant_with_other_replicas_is_no_switch() -> None:
    decision = decided(a_choice(max_wer=0.08), {VAD: 4, FP16: 2})
    assert decision.changes
    assert decision.switches == ()


CPU: PlacementKey = (StageName("asr"), placement_name("cpu"))
GPU: PlacementKey = (StageName("asr"), placement_name("gpu"))


def a_cascade(*, share: float = 0.2, measured: float | None = None, **limits: float) -> PipelineState:
    """A large model on pool gpu, and a small one on pool cpu that is uncertain about `share` of the items."""
    vad, large, small = default_stages()[0], a_placement("gpu", service_s=0.09), a_placement("cpu", service_s=0.03)
    large, small = (replace(own, prior=replace(own.prior, wer=wer)) for own, wer in ((large, 0.07), (small, 0.10)))
    stage = a_stage("asr", large, small, after=["vad"])
    alone = {own.name: (own.prior.wer, own.wer_by_slice) for own in stage.placements}
    cascade = CascadeSpec(to=PoolName("gpu"), share=share, declared_share=share, alone=alone)
    spec = replace(a_spec(vad, replace(stage, cascade=cascade).with_share(share)), max_wer=limits.get("max_wer"))
    shares = Shares() if measured is None else Shares(cascade={stage.name: measured})
    return a_state(spec, demand=60.0, replicas={VAD: 4, GPU: 9}, memory=PipelineMemory(learned=Learned(shares=shares)))


def decided_twice(state: PipelineState) -> PipelineDecision:
    (first,) = decide(a_snapshot(state), Policy()).pipelines
    return decide(a_snapshot(replace(state, memory=first.memory)), Policy()).pipelines[0]


def test_a_cascade_takes_over_where_it_pays_and_the_decision_says_what_it_saves_and_costs() -> None:
    decision = decided_twice(a_cascade(max_wer=0.1))
    assert 0 < decision.unconstrained[GPU] < 9
    assert decision.unconstrained[CPU] > 0
    switch = the_switch(decision)
    assert (switch.before, switch.after) == ((GPU[1],), (GPU[1], CPU[1]))
    assert switch.saving_per_hour is not None
    assert switch.saving_per_hour > 0
    words = (
        r"asr goes from gpu to gpu and cpu \(saves \$\d+\.\d\d/h at this load, word error rate 7\.0%→9\.4%, maxWer 10"
    )
    assert re.search(words, reason_sentence(decision))
    print(reason_sentence(decision))


def test_the_errors_of_both_models_together_count_against_the_limit() -> None:
    """0.8 × 10 % + 0.2 × 7 % = 9.4 %."""
    decision = decided_twice(a_cascade(max_wer=0.093))
    assert decision.unconstrained[CPU] == 0
    assert decision.switches == ()
    assert decided_twice(a_cascade(max_wer=0.095)).unconstrained[CPU] > 0


def test_the_measured_share_takes_the_place_of_the_declared_one() -> None:
    """With half of the items going on the errors are 8.5 %, and the large model has more to do."""
    declared, measured = decided_twice(a_cascade()), decided_twice(a_cascade(measured=0.5))
    assert measured.unconstrained[GPU] > declared.unconstrained[GPU]
    assert decided_twice(a_cascade(measured=0.5, max_wer=0.09)).unconstrained[CPU] > 0
    assert decided_twice(a_cascade(max_wer=0.09)).unconstrained[CPU] == 0


def test_where_nearly_all_items_go_on_the_large_model_serves_alone() -> None:
    decision = decided_twice(a_cascade(measured=0.97))
    assert decision.unconstrained[CPU] == 0
    assert decision.switches == ()


def test_explain_says_how_many_items_go_on_and_what_both_models_make_together() -> None:
    text = "\n".join(explain_pipeline(decided_twice(a_cascade(measured=0.3)), 0.0))
    words = r"asr: 30\.\d% of the items go on to gpu \(declared 20\.0%\); both models together make 9\.1% word errors"
    assert re.search(words, text)


def test_pinned_replicas_of_an_ended_cascade_run_beside_a_last_model_that_can_take_all_items() -> None:
    """So its share can be measured again."""
    state = a_cascade(measured=0.05, max_wer=0.09)
    pins = Overrides(pins={CPU: Pin(replicas=3)})
    decision = decided_twice(replace(state, spec=replace(state.spec, overrides=pins)))
    assert decision.desired[CPU] == 3
    alone = decided_twice(a_cascade(measured=0.05, max_wer=0.09))
    assert decision.desired[GPU] >= alone.unconstrained[GPU] > 0
