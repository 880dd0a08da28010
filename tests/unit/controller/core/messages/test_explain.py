"""A decision in one sentence, and its five sections."""

from dataclasses import replace

import pytest
from builders import (
    ENCODER,
    NOW_S,
    VAD,
    a_spec,
    a_state,
)
from explained import decision_of, explain, growing, section
from planning import Planner

from controller.core.messages.explain import causes_of, explain_pipeline, reason_sentence
from controller.core.messages.sentences import HOLDS, change_words, demand_change, latency_of_sla, spend_of_budget
from controller.core.state.carry_over import DemandSample, FeedbackStep, PipelineMemory
from controller.core.state.decision import (
    ChangeReason,
    CrowdedReplica,
    Decision,
    Hold,
    HoldReason,
    PipelineDecision,
    Skew,
)
from controller.core.state.spec import Mode
from optimizer.model import PoolName, StageName
from optimizer.plan import Advice, Limit, LimitKind, PlacementPlan, PlacementStep, ReplayCheck, StagePlan, Step
from profiler.stages import Learned


def test_one_line_says_what_why_and_with_which_numbers(planner: Planner) -> None:
    decision = decision_of(growing(planner)).pipelines[0]
    demand = f"310 → {decision.demand.planned:.0f} streams"
    assert reason_sentence(decision) == (
        f"encoder 2→4 on inferentia (demand): demand {demand}; p95 268 ms of 500 ms; spend $2.50/h of $20.00/h"
    )


@pytest.mark.parametrize("reason", ChangeReason)
@pytest.mark.parametrize("latency_s", [0.2, 2.0])
def test_the_causes_of_a_line_are_its_changes_also_while_the_sla_is_missed(
    planner: Planner, reason: ChangeReason, latency_s: float
) -> None:
    planner.wants({VAD: 5, ENCODER: 7})
    state = replace(a_state(demand=50.0, replicas={VAD: 4, ENCODER: 4}), latency_s=latency_s)
    decision = decision_of(state).pipelines[0]
    assert len(decision.changes) == 2
    first, second = decision.changes
    decision = replace(decision, changes=(replace(first, reason=reason), second))
    sentence = reason_sentence(decision)
    assert sentence.startswith("SLA missed") == (latency_s > 0.5)
    assert causes_of(sentence) == list(change_words(decision))
    unchanged = reason_sentence(replace(decision, changes=()))
    assert causes_of(unchanged) == [unchanged]


def test_a_plan_is_of_even_sessions_where_they_are_not(planner: Planner) -> None:
    decision = decision_of(growing(planner)).pipelines[0]
    crowded = CrowdedReplica(pod="vad-0", placement=VAD[1], sessions=61.0, give_up=27)
    skew = Skew(stage=VAD[0], sessions=100.0, replicas=3, utilization=1.2, crowded=(crowded,))

    def planned(own: PipelineDecision) -> str:
        return next(line for line in explain_pipeline(own, NOW_S) if line.strip().startswith("planned: "))

    even, uneven = planned(decision), planned(replace(decision, skews=(skew,)))
    assert uneven == f"{even}, were the sessions of vad spread evenly"


def test_one_line_without_a_change_says_why_there_is_none(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    steady = replace(a_state(demand=50.0, replicas={VAD: 4, ENCODER: 4}), latency_s=0.2)
    decision = decision_of(steady).pipelines[0]
    numbers = f"{demand_change(decision)}; {latency_of_sla(decision)}; {spend_of_budget(decision)}"
    assert reason_sentence(decision) == f"no change: {numbers}"
    held = replace(decision, holds=(Hold(reason=HoldReason.WITHIN_TOLERANCE),))
    assert reason_sentence(held) == (
        f"no change: current replicas meet the SLA and the saving is below scaling.tolerance; {numbers}"
    )


@pytest.mark.parametrize(
    ("hold", "brief", "whole"),
    [
        (
            Hold(reason=HoldReason.METRICS_MISSING, stage=StageName("encoder"), detail="arrivalRate on gpu: Stale"),
            "metrics are missing; no replica is removed",
            "encoder: metrics are missing; no replica is removed (arrivalRate on gpu: Stale)",
        ),
        (
            Hold(
                reason=HoldReason.FRAGMENTED, stage=StageName("encoder"), placement=ENCODER[1], detail="pod-0: no nodes"
            ),
            "encoder on inferentia: no node can schedule this pod; planned without it",
            f"encoder on inferentia: {HOLDS[HoldReason.FRAGMENTED]} (pod-0: no nodes)",
        ),
        (
            Hold(reason=HoldReason.STEP_LIMITED, stage=StageName("encoder")),
            "encoder: limited by maxStep",
            "encoder: limited by maxStep",
        ),
    ],
)
def test_a_hold_is_short_in_one_line_and_has_its_details_in_the_explanation(
    planner: Planner, hold: Hold, brief: str, whole: str
) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    held = replace(decision_of(a_state(replicas={VAD: 4, ENCODER: 4})).pipelines[0], holds=(hold,))
    assert reason_sentence(held).startswith(f"no change: {brief}; demand")
    assert section(explain_pipeline(held, NOW_S), "Why not now").strip() == whole


def test_the_five_questions_are_answered_when_the_budget_binds(planner: Planner) -> None:
    planner.served, planner.limited_by = 0.75, Limit(kind=LimitKind.BUDGET)
    state = growing(planner)
    lines = explain(decision_of(state), state.spec.key)
    assert "encoder 2→4 on inferentia" in section(lines, "What")
    assert "p95 268 ms of 500 ms" in section(lines, "Why")
    assert "limited by the budget of $20.00/h: 75% of the demand can be served within the SLA" in section(
        lines, "Why not more"
    )
    assert "the ingress admits" in section(lines, "Why not more")
    assert section(lines, "Why not now").strip() == "-"
    assert "a budget above $20.00/h" in section(lines, "What would change it")


def test_a_hold_says_why_not_now_and_for_how_long(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    memory = PipelineMemory(demand=50, samples=(DemandSample(t_s=NOW_S - 100, observed=50, forecast=50),))
    state = a_state(demand=10.0, replicas={VAD: 4, ENCODER: 4}, memory=memory)
    why = section(explain(decision_of(state), state.spec.key), "Why not now")
    assert "scale-down waits: demand was higher within scaling.scaleDown.stabilization; 200 s left" in why


def test_a_plan_that_is_held_is_told(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 8})
    state = a_state(a_spec(mode=Mode.RECOMMEND), replicas={VAD: 4, ENCODER: 4})
    lines = explain(decision_of(state), state.spec.key)
    assert "planned but not applied: encoder 4→8 on inferentia" in section(lines, "What")
    assert "mode: Auto" in section(lines, "What would change it")


def test_the_steps_of_the_plan_and_the_next_dollar_are_told(planner: Planner) -> None:
    step = Step(
        stage=StageName("encoder"),
        changes=(PlacementStep(name=ENCODER[1], before=1, after=2, batch=8),),
        latency_saved_s=0.06,
        cost_added_per_hour=0.38,
    )
    decision = decision_of(growing(planner))
    pipeline = decision.pipelines[0]
    assert pipeline.plan is not None
    told = replace(decision, pipelines=(replace(pipeline, plan=replace(pipeline.plan, steps=(step,), next_step=step)),))
    lines = explain(told, pipeline.key)
    words = "encoder +1 on inferentia: −60 ms for $0.38/h"
    assert words in section(lines, "Why")
    assert words in section(lines, "Why not more")


def told(decision: Decision, **plan: object) -> list[str]:
    """Explain the decision as if its plan had said `plan`."""
    (pipeline,) = decision.pipelines
    assert pipeline.plan is not None
    changed = replace(pipeline, plan=replace(pipeline.plan, **plan))  # type: ignore[arg-type]
    return explain(replace(decision, pipelines=(changed,)), pipeline.key)


def test_a_promise_is_told_with_its_error_bar_its_replay_and_what_it_moves(planner: Planner) -> None:
    decision = decision_of(growing(planner))
    assert "planned: 100 ms at $6.00/h" in section(told(decision), "Why")
    sure = told(
        decision,
        latency_error=0.06,
        replay=ReplayCheck(latency_s=0.1, composed_s=0.11),
        moved_replicas=10,
        switching_cost_per_hour=0.5,
    )
    assert "planned: 100 ms ± 6% (replayed) at $6.00/h, changing 10 replicas (weighed as $0.50/h in the search)" in (
        section(sure, "Why")
    )


def test_who_cannot_be_served_learns_what_it_would_take_and_what_can_be_had(planner: Planner) -> None:
    planner.served, planner.limited_by = 0.75, Limit(kind=LimitKind.BUDGET)
    decision = decision_of(growing(planner))
    lines = told(decision, advice=Advice(required_budget_per_hour=31.191, best_latency_s=0.6551))
    assert "serving the whole demand within the SLA needs $31.20/h" in section(lines, "Why not more")
    assert "best latency for the whole demand within $20.00/h: 655 ms" in section(lines, "Why not more")
    assert "a budget of $31.20/h" in section(lines, "What would change it")


def test_a_cheaper_plan_that_is_not_worth_the_moves_is_told(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 19}, runs_well=True)
    state = a_state(replicas={VAD: 4, ENCODER: 20})
    decision = decision_of(state)
    assert not decision.pipelines[0].changes
    assert "a plan that costs $0.88/h less would change 1 replica" in section(
        told(decision, cost_per_hour=19.62), "Why not now"
    )


def test_time_outside_the_stages_is_a_line_of_its_own() -> None:
    def why(overhead_s: float | None) -> str:
        memory = PipelineMemory(learned=Learned(overhead_s=overhead_s))
        decision = decision_of(a_state(replicas={VAD: 1, ENCODER: 1}, memory=memory))
        return section(explain(decision, decision.pipelines[0].key), "Why")

    assert "overhead: 100 ms of p95 are outside the stages; they are left 401 ms of 500 ms" in why(0.1)
    assert "overhead" not in why(None)


def test_while_the_measured_latency_exceeds_the_sla_nothing_says_that_it_is_met(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    missed = replace(a_state(demand=50.0, replicas={VAD: 4, ENCODER: 4}), latency_s=0.8)
    found = decision_of(missed)

    def told_with(*holds: Hold, step: bool = False) -> tuple[str, str]:
        own = found.pipelines[0]
        memory = own.memory
        if step:
            tried = FeedbackStep(stage=ENCODER[0], at_s=NOW_S, before_s=0.8, demand=50.0, replicas=5)
            memory = replace(memory, feedback=replace(memory.feedback, step=tried))
        lines = explain(replace(found, pipelines=(replace(own, holds=holds, memory=memory),)), own.key)
        assert "the plan meets the SLA; more replicas would only add cost" not in section(lines, "Why not more")
        return section(lines, "Why not more"), section(lines, "What would change it")

    more, change = told_with()
    assert "by the model the plan meets the SLA; measured, it is missed" in more
    assert "replicas are added if p95 stays above 500 ms in the next cycles" in change
    assert "the effect of the step at stage encoder is observed" in told_with(step=True)[1]
    assert "less time outside the stages" in told_with(Hold(reason=HoldReason.UNEXPLAINED, detail="p95 800 ms"))[1]
    no_room = Hold(reason=HoldReason.SLA_MISSED, stage=ENCODER[0], detail="no room")
    assert "a higher replicas.max of stage encoder" in told_with(no_room)[1]


def test_a_mix_of_pools_says_what_it_saves(planner: Planner) -> None:
    decision = decision_of(growing(planner))
    encoder = StagePlan(
        name=StageName("encoder"),
        rate_rps=5.0,
        utilization=0.5,
        latency_s=0.1,
        mean_s=0.05,
        placements=tuple(
            PlacementPlan(name=PoolName(pool), replicas=count, batch=8)
            for pool, count in (("inferentia", 1), ("cpu", 0), ("gpu", 2))
        ),
        mixing_saves_per_hour=1.5,
    )
    words = "encoder runs on inferentia and gpu: cheaper together than on one of them alone, saves $1.50/h"
    assert words in section(told(decision, stages=(encoder,)), "Why")
    assert not any("together" in line for line in section(told(decision, stages=()), "Why"))
