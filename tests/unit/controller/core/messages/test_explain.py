"""What a person reads: one line, columns, conditions, Events, and the five questions."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders import (
    ENCODER,
    NOW_S,
    VAD,
    a_placement,
    a_rule,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    default_stages,
    seen,
)
from planning import Planner

from controller.core.cycle import decide
from controller.core.messages.conditions import ConditionValue, conditions
from controller.core.messages.events import events
from controller.core.messages.explain import explain, reason_sentence
from controller.core.messages.summary import summary
from controller.core.state.carry_over import DemandSample, MetricsLoss, PipelineMemory
from controller.core.state.decision import Decision, HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, TargetMissing
from controller.core.state.spec import DemandUnit, Mode
from optimizer.model import StageName
from optimizer.plan import Limit, LimitKind, PlacementStep, Step
from profiler.samples import Absence, AbsenceReason, MetricsTier, Origin

MISSING = Absence(reason=AbsenceReason.STALE, detail="newest sample 90 s old")


def decision_of(state: PipelineState) -> Decision:
    return decide(a_snapshot(state), Policy())


def growing(planner: Planner) -> PipelineState:
    planner.wants({VAD: 4, ENCODER: 4})
    spec = replace(a_spec(budget=20.0), unit=DemandUnit.STREAMS, chunk_s=1.0)
    memory = PipelineMemory(demand=310.0, samples=(DemandSample(t_s=NOW_S - 15, observed=310.0, forecast=310.0),))
    return replace(a_state(spec, demand=420.0, replicas={VAD: 4, ENCODER: 2}, memory=memory), latency_s=0.268)


def by_type(decision: PipelineDecision) -> Mapping[str, ConditionValue]:
    return {condition.type: condition for condition in conditions(decision)}


def test_one_line_says_what_why_and_with_which_numbers(planner: Planner) -> None:
    decision = decision_of(growing(planner)).pipelines[0]
    demand = f"310 → {decision.demand:.0f} streams"
    assert reason_sentence(decision) == (
        f"encoder 2→4 on inferentia (demand): demand {demand}; p95 268 ms of 500 ms; $2.50/h of $20.00/h"
    )


def test_the_columns_tell_health_demand_latency_limit_and_cost(planner: Planner) -> None:
    columns = summary(decision_of(growing(planner)).pipelines[0])
    assert columns.health == "Scaling"
    assert columns.demand.endswith(" streams")
    assert columns.latency == "268 ms / 500 ms"
    assert columns.limited_by == "-"
    assert columns.cost == "$2.50/h / $20.00/h"
    assert columns.replicas == "vad:4 encoder:2→4"


def test_a_composed_latency_is_labelled(planner: Planner) -> None:
    spec = a_spec(a_stage("vad", a_placement("cpu")))
    decision = decision_of(a_state(spec, replicas={VAD: 1}, samples={VAD: seen(latency_p95=0.04)})).pipelines[0]
    assert summary(decision).latency == "40 ms (composed) / 500 ms"


def test_all_is_well(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    state = replace(a_state(replicas={VAD: 4, ENCODER: 4}), latency_s=0.2)
    found = by_type(decision_of(state).pipelines[0])
    assert {name: condition.status for name, condition in found.items()} == {
        "Ready": "True",
        "SLAMet": "True",
        "MetricsAvailable": "True",
        "TargetsFound": "True",
        "PoolsAvailable": "True",
        "WithinBudget": "True",
        "RuleMetricMissing": "False",
        "ScalesAccepted": "True",
        "Conflict": "False",
    }


@pytest.mark.parametrize(
    ("state", "condition", "status", "reason"),
    [
        (a_state(demand=MISSING, replicas={VAD: 1, ENCODER: 1}), "MetricsAvailable", "False", "MetricsMissing"),
        (a_state(demand=MISSING, replicas={VAD: 1, ENCODER: 1}), "Ready", "False", "MetricsMissing"),
        (a_state(replicas={VAD: TargetMissing(reason="gone")}), "TargetsFound", "False", "TargetMissing"),
        (replace(a_state(), latency_s=0.7), "SLAMet", "False", "Measured"),
        (replace(a_state(), latency_s=MISSING), "SLAMet", "Unknown", "Missing"),
        (a_state(a_spec(budget=1.0), replicas={VAD: 1, ENCODER: 4}), "WithinBudget", "False", "Draining"),
        (a_state(a_spec(a_stage("vad", a_placement("trainium")))), "Ready", "False", "PoolNotFound"),
        (
            a_state(a_spec(*default_stages(vad_rules=[a_rule()])), samples={VAD: seen(rx_queue_pressure=MISSING)}),
            "RuleMetricMissing",
            "True",
            "MetricsMissing",
        ),
        (a_state(a_spec(mode=Mode.PAUSED)), "Ready", "True", "Paused"),
    ],
)
def test_what_is_wrong_is_a_condition(
    planner: Planner, state: PipelineState, condition: str, status: str, reason: str
) -> None:
    found = by_type(decision_of(state).pipelines[0])[condition]
    assert (found.status, found.reason) == (status, reason)


def test_an_event_is_written_for_changes_and_for_conditions_that_flip(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    steady = replace(a_state(replicas={VAD: 4, ENCODER: 4}), latency_s=0.2)
    missed = replace(steady, latency_s=0.7)
    well = {name: condition.status for name, condition in by_type(decision_of(steady).pipelines[0]).items()}
    assert events(decision_of(steady).pipelines[0], well) == ()
    assert events(decision_of(steady).pipelines[0], {}) == ()
    (event,) = events(decision_of(missed).pipelines[0], well)
    assert (event.warning, event.reason) == (True, HoldReason.SLA_MISSED.value)
    (event,) = events(decision_of(steady).pipelines[0], {**well, "SLAMet": "False"})
    assert (event.warning, event.reason) == (False, "SLAMet")
    assert len(events(decision_of(missed).pipelines[0], {**well, "SLAMet": "Unknown"})) == 1
    assert events(decision_of(steady).pipelines[0], {**well, "SLAMet": "Unknown"}) == ()
    scaled = replace(steady, targets={**steady.targets, **a_state(replicas={ENCODER: 2}).targets})
    assert events(decision_of(scaled).pipelines[0], well)[0].reason == "Scaled"


def measured_by(state: PipelineState, origin: Origin) -> PipelineDecision:
    return decision_of(replace(state, metrics=origin)).pipelines[0]


def blind_for(seconds: float) -> PipelineState:
    """A pipeline whose demand of 200 requests/s was last seen that long ago."""
    loss = MetricsLoss(since_s=NOW_S - seconds, demand=200.0, growth_per_minute=0.01)
    memory = PipelineMemory(demand=200.0, metrics_lost=loss)
    return a_state(demand=MISSING, replicas={VAD: 4, ENCODER: 4}, memory=memory)


DIRECT = Origin(tier=MetricsTier.DIRECT_SCRAPE, because="Unavailable: Prometheus: refused")


def test_where_the_metrics_come_from_is_told_where_it_is_not_the_best_place(planner: Planner) -> None:
    steady = replace(a_state(replicas={VAD: 4, ENCODER: 4}), latency_s=0.2)
    found = by_type(measured_by(steady, Origin()))["MetricsAvailable"]
    assert (found.status, found.reason, found.message) == ("True", "Prometheus", "")
    found = by_type(measured_by(steady, DIRECT))["MetricsAvailable"]
    assert (found.status, found.reason) == ("True", "DirectScrape")
    assert "metrics are read from the pods directly (Unavailable: Prometheus: refused)" in found.message
    decision = decide(a_snapshot(replace(steady, metrics=DIRECT)), Policy())
    assert "metrics are read from the pods directly" in section(explain(decision, steady.spec.key), "Why")


def test_while_the_demand_is_lost_it_is_told_since_when_and_what_is_planned_for(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4}, runs_well=True)
    decision = measured_by(blind_for(120.0), DIRECT)
    found = by_type(decision)["MetricsAvailable"]
    assert (found.status, found.reason) == ("False", "MetricsMissing")
    assert (
        "demand has been missing for 120 s (Stale: newest sample 90 s old; Unavailable: Prometheus: refused)"
        in found.message
    )
    assert (
        "planned for the last known 200 requests/s plus a safety margin of 2%; no replica is removed" in found.message
    )
    lost = by_type(decision_of(blind_for(600.0)).pipelines[0])["MetricsAvailable"]
    assert (lost.status, lost.reason) == ("False", "MetricsLost")


def test_every_step_on_the_ladder_is_an_event_and_a_long_loss_is_one_more(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4}, runs_well=True)
    steady = replace(a_state(replicas={VAD: 4, ENCODER: 4}), latency_s=0.2)

    def told(decision: PipelineDecision, status: str, reason: str) -> list[tuple[bool, str]]:
        before = {name: condition.status for name, condition in by_type(decision).items()}
        found = events(decision, {**before, "MetricsAvailable": status}, {"MetricsAvailable": reason})
        return [(event.warning, event.reason) for event in found if "Metrics" in event.reason]

    healthy, fallen = measured_by(steady, Origin()), measured_by(steady, DIRECT)
    assert told(healthy, "True", "Prometheus") == told(fallen, "True", "DirectScrape") == []
    assert told(fallen, "True", "Prometheus") == [(True, "MetricsFromDirectScrape")]
    assert told(healthy, "True", "DirectScrape") == [(False, "MetricsFromPrometheus")]
    short, long = (decision_of(blind_for(seconds)).pipelines[0] for seconds in (30.0, 600.0))
    assert told(short, "True", "DirectScrape") == [(True, "MetricsMissing")]
    assert told(long, "False", "MetricsMissing") == [(True, "MetricsLost")]
    assert told(long, "False", "MetricsLost") == []
    assert told(healthy, "False", "MetricsLost") == [(False, "MetricsAvailable")]
    assert events(fallen, {}) == ()  # how it is from the start is no step


def section(lines: list[str], title: str) -> str:
    start = lines.index(title)
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith("  ")), len(lines))
    return "\n".join(lines[start + 1 : end])


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
    assert "scale-down waits: demand was higher within scaling.down.stabilization; 200 s left" in why


def test_a_plan_that_is_held_is_told(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 8})
    state = a_state(a_spec(mode=Mode.RECOMMEND), replicas={VAD: 4, ENCODER: 4})
    lines = explain(decision_of(state), state.spec.key)
    assert "planned but not applied: encoder 4→8 on inferentia" in section(lines, "What")
    assert "mode: Auto" in section(lines, "What would change it")


def test_the_steps_of_the_plan_and_the_next_dollar_are_told(planner: Planner) -> None:
    step = Step(
        stage=StageName("encoder"),
        changes=(PlacementStep(pool=ENCODER[1], before=1, after=2, batch=8),),
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
        replayed_latency_s=0.098,
        moved_replicas=10,
        switching_cost_per_hour=0.5,
    )
    assert (
        "planned: 100 ms ± 6% (replayed: 98 ms) at $6.00/h, changing 10 replicas (weighed as $0.50/h in the search)"
        in (section(sure, "Why"))
    )


def test_who_cannot_be_served_learns_what_it_would_take_and_what_can_be_had(planner: Planner) -> None:
    planner.served, planner.limited_by = 0.75, Limit(kind=LimitKind.BUDGET)
    decision = decision_of(growing(planner))
    lines = told(decision, required_budget_per_hour=31.191, best_latency_s=0.6551)
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


def test_a_pipeline_that_was_not_decided_is_an_error(planner: Planner) -> None:
    with pytest.raises(KeyError):
        explain(decision_of(a_state()), a_spec(name="other").key)
