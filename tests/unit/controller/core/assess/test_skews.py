"""Sticky sessions that are on too few replicas: who is named, what each should give up, and when nothing is said."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders import ENCODER, NOW_S, a_snapshot, a_spec, a_state, a_target, seen

from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.messages.explain import explain_pipeline
from controller.core.state.decision import PipelineDecision, Skew
from controller.core.state.policy import Policy
from controller.core.state.snapshot import ServingReplica
from controller.core.state.spec import DemandUnit, PipelineSpec
from optimizer.model import Routing
from profiler.samples import Reading

CAPACITY = 10.0
"""Items per second that a replica of the encoder takes; a stream sends one."""


def of_streams(routing: Routing = Routing.STICKY, unit: DemandUnit = DemandUnit.STREAMS) -> PipelineSpec:
    spec = a_spec()
    stages = tuple(
        replace(
            stage,
            routing=routing if stage.name == ENCODER[0] else Routing.LEAST_LOADED,
            placements=tuple(
                replace(
                    placement,
                    prior=replace(
                        placement.prior,
                        batch_sizes=(1,),
                        service=replace(placement.prior.service, fixed_s=1 / CAPACITY, per_item_s=0.0),
                    ),
                )
                if stage.name == ENCODER[0]
                else placement
                for placement in stage.placements
            ),
        )
        for stage in spec.stages
    )
    return replace(spec, unit=unit, chunk_s=1.0, stages=stages)


def decided(
    sessions: Mapping[str, float],
    *,
    spec: PipelineSpec | None = None,
    demand: float = 20.0,
    latency_s: Reading | None = None,
    leaving: frozenset[str] = frozenset(),
    ready: int | None = None,
) -> PipelineDecision:
    names = [f"e-{k}" for k in range(ready or len(sessions))]
    target = replace(a_target(len(names)), serving=tuple(ServingReplica(name=n, leaving=n in leaving) for n in names))
    state = a_state(
        spec or of_streams(),
        demand=demand,
        replicas={ENCODER: target},
        samples={ENCODER: replace(seen(), sessions=sessions)},
    )
    (own,) = decide(a_snapshot(replace(state, latency_s=latency_s)), Policy()).pipelines
    return own


def gives(own: PipelineDecision) -> dict[str, int]:
    return {replica.pod: replica.give_up for skew in own.skews for replica in skew.crowded}


def skew_of(own: PipelineDecision) -> Skew:
    (skew,) = own.skews
    return skew


def test_a_full_replica_beside_empty_ones_should_give_up_what_makes_them_even() -> None:
    own = decided({"e-0": 18.0, "e-1": 1.0, "e-2": 1.0})
    assert gives(own) == {"e-0": 11}
    assert skew_of(own).crowded[0].keep == 7
    assert skew_of(own).utilization > 1
    found = {condition.type: condition for condition in conditions(own)}["SessionsSpread"]
    assert (found.status, found.reason) == ("False", "Crowded")
    assert found.message.startswith("encoder: 18 of 20 sessions are on 1 of 3 replicas")
    assert "11 sessions move" in found.message
    assert any(found.message in line for line in explain_pipeline(own, NOW_S))


@pytest.mark.parametrize(
    "sessions",
    [
        {"e-0": 7.0, "e-1": 7.0, "e-2": 6.0},  # even
        {"e-0": 8.0, "e-1": 6.0, "e-2": 6.0},  # nearly even
        {"e-0": 20.0},  # no other replica
        {"e-0": math.nan, "e-1": 20.0},
        {"e-0": 1e9, "e-1": 1.0, "e-2": 1.0},  # more than there are streams
    ],
)
def test_no_advice_where_it_would_be_wrong_or_in_vain(sessions: Mapping[str, float]) -> None:
    assert decided(sessions, ready=3).skews == ()


def test_an_uneven_spread_that_costs_nothing_is_left_alone_until_the_sla_is_missed() -> None:
    calm = {"e-0": 5.0, "e-1": 1.0}
    assert decided(calm, demand=6.0).skews == ()
    assert gives(decided(calm, demand=6.0, latency_s=9.0)) == {"e-0": 2}


def test_a_replica_whose_sessions_are_unknown_neither_gives_nor_takes() -> None:
    assert gives(decided({"e-0": 18.0, "e-1": 2.0}, ready=3)) == {"e-0": 8}


def test_a_replica_whose_node_is_being_removed_takes_none() -> None:
    assert gives(decided({"e-0": 18.0, "e-1": 1.0, "e-2": 1.0}, leaving=frozenset({"e-2"}))) == {"e-0": 8}


def test_advice_that_is_followed_ends() -> None:
    sessions = {"e-0": 18.0, "e-1": 1.0, "e-2": 1.0}
    (crowded,) = skew_of(decided(sessions)).crowded
    moved = sessions["e-0"] - crowded.keep
    after = {"e-0": float(crowded.keep), "e-1": 1 + moved // 2, "e-2": 1 + moved - moved // 2}
    assert decided(after).skews == ()


def test_only_sticky_stages_are_looked_at() -> None:
    sessions = {"e-0": 18.0, "e-1": 1.0, "e-2": 1.0}
    assert decided(sessions, spec=of_streams(Routing.LEAST_LOADED)).skews == ()


def test_a_sticky_stage_that_reports_no_sessions_is_not_known_to_be_even() -> None:
    own = decided({}, ready=3)
    found = {condition.type: condition for condition in conditions(own)}["SessionsSpread"]
    assert (found.status, found.reason) == ("Unknown", "SessionsUnread")
    assert "encoder" in found.message
    assert decided({}, ready=1).sessions_unread == ()


def test_the_free_slots_of_the_others_bound_what_is_given_up() -> None:
    spec = of_streams()
    stages = tuple(
        replace(
            stage,
            placements=tuple(
                replace(placement, prior=replace(placement.prior, session_slots=3)) for placement in stage.placements
            ),
        )
        if stage.name == ENCODER[0]
        else stage
        for stage in spec.stages
    )
    own = decided({"e-0": 18.0, "e-1": 1.0, "e-2": 1.0}, spec=replace(spec, stages=stages))
    assert gives(own) == {"e-0": 4}
