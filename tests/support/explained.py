"""Decisions about one pipeline, for tests of their texts."""

from collections.abc import Mapping
from dataclasses import replace

from builders import (
    ENCODER,
    NOW_S,
    VAD,
    a_snapshot,
    a_spec,
    a_state,
)
from planning import Planner

from controller.core.cycle import decide
from controller.core.messages.conditions import ConditionValue, conditions
from controller.core.messages.explain import explain_pipeline
from controller.core.state.carry_over import DemandSample, MetricsLoss, PipelineMemory
from controller.core.state.decision import Decision, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState
from controller.core.state.spec import DemandUnit
from optimizer.model import PipelineKey
from profiler.samples import Absence, AbsenceReason, MetricsTier, Origin

MISSING = Absence(reason=AbsenceReason.STALE, detail="newest sample 90 s old")


DIRECT = Origin(tier=MetricsTier.DIRECT_SCRAPE, because="Unavailable: Prometheus: refused")


def decision_of(state: PipelineState) -> Decision:
    return decide(a_snapshot(state), Policy())


def growing(planner: Planner) -> PipelineState:
    planner.wants({VAD: 4, ENCODER: 4})
    spec = replace(a_spec(budget=20.0), unit=DemandUnit.STREAMS, chunk_s=1.0)
    memory = PipelineMemory(demand=310.0, samples=(DemandSample(t_s=NOW_S - 15, observed=310.0, forecast=310.0),))
    return replace(a_state(spec, demand=420.0, replicas={VAD: 4, ENCODER: 2}, memory=memory), latency_s=0.268)


def by_type(decision: PipelineDecision) -> Mapping[str, ConditionValue]:
    return {condition.type: condition for condition in conditions(decision)}


def measured_by(state: PipelineState, origin: Origin) -> PipelineDecision:
    return decision_of(replace(state, metrics=origin)).pipelines[0]


def blind_for(seconds: float) -> PipelineState:
    """A pipeline whose demand of 200 requests/s was last seen that long ago."""
    loss = MetricsLoss(since_s=NOW_S - seconds, demand=200.0, growth_per_minute=0.01)
    memory = PipelineMemory(demand=200.0, metrics_lost=loss)
    return a_state(demand=MISSING, replicas={VAD: 4, ENCODER: 4}, memory=memory)


def explain(decision: Decision, key: PipelineKey) -> list[str]:
    """The explanation of the decision about one pipeline."""
    (own,) = (pipeline for pipeline in decision.pipelines if pipeline.key == key)
    return explain_pipeline(own, decision.now_s)


def section(lines: list[str], title: str) -> str:
    start = lines.index(title)
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith("  ")), len(lines))
    return "\n".join(lines[start + 1 : end])
