"""A missed SLA comes first in every text: since when, how bad, what is done, and what would help."""

from dataclasses import replace

import pytest
from builders import (
    ENCODER,
    NOW_S,
    VAD,
    a_pool,
    a_snapshot,
    a_spec,
    a_state,
    a_target,
    applied,
    default_pools,
    seen,
)
from explained import MISSING, by_type, decision_of
from planning import Planner

from controller.core.cycle import decide
from controller.core.messages.events import events
from controller.core.messages.explain import explain_pipeline, reason_sentence
from controller.core.messages.phrases import MOST_CHARACTERS, timestamp
from controller.core.messages.relief import relief
from controller.core.messages.summary import health, summary
from controller.core.state.carry_over import PipelineMemory, PoolMemory
from controller.core.state.decision import Hold, HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, ServingReplica
from controller.core.state.spec import DemandUnit, Mode
from optimizer.model import pool_of
from optimizer.plan import Limit, LimitKind
from profiler.stages import LatencySource

RUNNING = {VAD: 4, ENCODER: 4}


def late(**more: object) -> PipelineState:
    """A pipeline whose measured p95 is 812 ms of 500 ms."""
    return replace(a_state(demand=50.0, replicas=RUNNING), latency_s=0.812, **more)  # type: ignore[arg-type]


def first_section(decision: PipelineDecision) -> list[str]:
    lines = explain_pipeline(decision, NOW_S)
    end = next(index for index, line in enumerate(lines) if index and not line.startswith("  "))
    return [line.strip() for line in lines[:end]]


def test_a_missed_sla_is_first_in_health_conditions_events_and_explanation(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 6})
    state = late(memory=PipelineMemory(demand=50.0, missed_since_s=NOW_S - 95))
    decision = decision_of(state).pipelines[0]
    words = f"SLA missed since {timestamp(NOW_S - 95)}: p95 812 ms of 500 ms"
    assert (health(decision).value, summary(decision)["health"]) == ("SLAMissed", "SLAMissed")
    found = by_type(decision)
    assert found["Ready"].message.startswith(words)
    assert (found["SLAMet"].status, found["SLAMet"].message[: len(words)]) == ("False", words)
    assert reason_sentence(decision).startswith(words)
    assert reason_sentence(decision).count("p95") == 1
    told = events(decision, {name: "True" for name in found if name not in {"Conflict", "Shedding"}})
    assert [event.reason for event in told][:2] == ["SLAMissed", "Scaled"]
    assert all(event.message.startswith(words) for event in told[:2])
    assert first_section(decision)[:2] == ["SLA missed", words.replace(": p95", ", for 95 s: p95")]


def test_nothing_of_it_is_said_while_the_sla_is_met_or_the_latency_is_unknown(planner: Planner) -> None:
    planner.wants(RUNNING)
    for latency_s in (0.5, MISSING):
        decision = decision_of(replace(late(), latency_s=latency_s)).pipelines[0]
        assert "SLA missed" not in "\n".join([*explain_pipeline(decision, NOW_S), reason_sentence(decision)])
        assert health(decision).value == "OK"


def test_the_time_of_the_miss_survives_cycles_and_gaps_and_ends_when_the_sla_is_met(planner: Planner) -> None:
    planner.wants(RUNNING)
    world = a_snapshot(late())
    since: list[float | None] = []
    for latency_s in (0.812, 0.812, MISSING, 0.6, 0.4, 0.812):
        state = replace(world.pipelines[0], latency_s=latency_s)
        world = replace(world, pipelines=(state,))
        decision = decide(world, Policy())
        miss = decision.pipelines[0].miss
        since.append(None if miss is None else miss.since_s - NOW_S)
        world = applied(world, decision)
    assert since == [0.0, 0.0, None, 0.0, None, 75.0]


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.PAUSED, Mode.RECOMMEND])
@pytest.mark.parametrize("source", list(LatencySource))
def test_no_text_says_that_the_sla_is_met_while_it_is_missed(
    planner: Planner, mode: Mode, source: LatencySource
) -> None:
    planner.wants(RUNNING, runs_well=True)
    decision = decision_of(replace(late(), spec=a_spec(mode=mode))).pipelines[0]
    decision = replace(decision, profile=replace(decision.profile, latency_source=source))
    held = replace(decision, holds=(*decision.holds, Hold(reason=HoldReason.WITHIN_TOLERANCE)))
    text = "\n".join([*explain_pipeline(held, NOW_S), reason_sentence(held)])
    assert "the plan meets the SLA; more" not in text
    assert "current replicas meet the SLA" not in text
    assert health(held).value == "SLAMissed"


def test_what_is_done_names_the_replicas_their_pool_and_when_they_are_ready(planner: Planner) -> None:
    """Two replicas have had a node for 30 s and 10 s. Ready ones took 45 s."""
    planner.wants({VAD: 4, ENCODER: 6})
    serving = tuple(ServingReplica(name=f"e-{index}", startup_s=45.0) for index in range(4))
    target = replace(
        a_target(6, ready=4, starting_since_s=[NOW_S - 30, NOW_S - 10]),
        serving=serving,
    )
    decision = decision_of(late(targets={**late().targets, ENCODER: target})).pipelines[0]
    words = "2 replicas starting on inferentia (encoder), ready in about 35 s (start-up 45 s, measured)"
    assert f"being done: {words}" in first_section(decision)
    assert words in by_type(decision)["SLAMet"].message
    assert "would help" not in by_type(decision)["SLAMet"].message


def test_what_users_see_is_a_number_or_unknown_and_never_0(planner: Planner) -> None:
    planner.wants(RUNNING)
    decision = decision_of(late(spec=replace(a_spec(), unit=DemandUnit.STREAMS, chunk_s=1.0))).pipelines[0]
    limited = replace(decision, admissible=31.0)
    lines = first_section(limited)
    assert "refused: 19 of 50 streams, above status.admissible" in lines
    assert "late: more than 5% of the items that are served" in lines
    assert any(line.startswith("cut: unknown") for line in lines)
    assert "refused: 19 of 50 streams" in by_type(limited)["SLAMet"].message
    blind = replace(limited, demand=replace(limited.demand, observed=MISSING))
    assert "refused: unknown, because the demand is missing" in first_section(blind)
    assert any("what the ingress itself refuses is unknown" in line for line in first_section(decision))
    busy = decision_of(late(samples={**late().samples, ENCODER: seen(session_refusals=0.3)})).pipelines[0]
    assert "refused: 0.3 streams/s at stage encoder, no slot is free" in first_section(busy)


def test_where_nothing_is_done_it_says_what_would_help(planner: Planner) -> None:
    planner.wants(RUNNING)
    base = replace(decision_of(late()).pipelines[0], changes=())
    assert base.plan is not None

    def told(**plan: object) -> str:
        changed = replace(base, plan=replace(base.plan, feasible=False, **plan))  # type: ignore[type-var]
        assert f"would help: {relief(changed)}" in first_section(changed)
        assert f"would help: {relief(changed)}" in by_type(changed)["SLAMet"].message
        return relief(changed)

    assert told(limited_by=Limit(kind=LimitKind.BUDGET)) == "a budget above $100.00/h"
    assert "more instances of pool gpu" in told(limited_by=Limit(kind=LimitKind.POOL, name="gpu"))
    assert "a higher replicas.max of stage vad" in told(limited_by=Limit(kind=LimitKind.BOUNDS, name="vad"))
    slow, *others = base.profile.stages
    slow = replace(slow, placements=tuple(replace(own, service_factor=1.6, measured=True) for own in slow.placements))
    slower = replace(base, profile=replace(base.profile, stages=(slow, *others)))
    assert "a faster vad on cpu, whose service time is 1.6 × the declared one" in relief(slower)
    out = Hold(reason=HoldReason.POOL_UNAVAILABLE, stage=ENCODER[0], placement=ENCODER[1])
    assert relief(replace(base, holds=(out,))) == "replicas that start on inferentia"
    assert relief(replace(base, spec=a_spec(mode=Mode.PAUSED))) == "mode: Auto (it is Paused)"


def test_a_second_problem_keeps_the_pipeline_from_being_ready(planner: Planner) -> None:
    planner.wants(RUNNING)
    decision = decision_of(late()).pipelines[0]
    assert by_type(decision)["Ready"].status == "True"
    conflicting = replace(decision, holds=(Hold(reason=HoldReason.CONFLICT, stage=VAD[0], detail="an HPA"),))
    ready = by_type(conflicting)["Ready"]
    assert (ready.status, ready.reason) == ("False", "SLAMissed")
    assert HoldReason.CONFLICT.value not in ready.message
    assert "another controller scales this workload" in ready.message
    assert len(ready.message) <= MOST_CHARACTERS


def test_what_sluice_does_next_by_itself_is_being_done(planner: Planner) -> None:
    planner.wants(RUNNING)
    decision = decision_of(late()).pipelines[0]
    words = "replicas are added if p95 stays above 500 ms in the next cycles"
    assert f"being done: {words}" in first_section(decision)
    assert not any(line.startswith("would help") for line in first_section(decision))
    stuck = replace(decision, holds=(Hold(reason=HoldReason.OVERHEAD, detail="300 ms of it are outside the stages"),))
    assert "being done: nothing; no replica is starting" in first_section(stuck)
    assert "would help: less time outside the stages" in "\n".join(first_section(stuck))


def test_a_pool_that_fails_while_the_budget_binds_are_both_named_although_replicas_are_removed(
    planner: Planner,
) -> None:
    planner.wants({VAD: 4, ENCODER: 3})
    planner.served, planner.limited_by = 0.5, Limit(kind=LimitKind.BUDGET)
    outage = PoolMemory(unavailable_until_s=NOW_S + 200, backoff_s=300.0, reason="pod-0: no nodes")
    fleet = {**default_pools(), pool_of(ENCODER[1]): a_pool("inferentia", memory=outage)}
    target = a_target(4, ready=3, pending_since_s=[NOW_S - 400])
    state = late(targets={**late().targets, ENCODER: target})
    (decision,) = decide(a_snapshot(state, fleet=fleet), Policy()).pipelines
    assert [(change.before, change.after) for change in decision.changes] == [(4, 3)]
    words = "would help: replicas that start on inferentia, or a budget above $100.00/h"
    assert words in first_section(decision)
    assert words in reason_sentence(decision)
    assert words in by_type(decision)["SLAMet"].message
