"""Replicas that are desired and not ready, and when they are expected to be."""

import pytest
from builders import (
    ENCODER,
    NOW_S,
    VAD,
    a_placement,
    a_pool,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    a_target,
    default_pools,
    default_stages,
)
from planning import Planner

from controller.core.cycle import decide
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.decision import StartingReplicas
from controller.core.state.policy import Policy
from controller.core.state.snapshot import NodePoolState, PipelineState, PoolState, TargetState
from optimizer.model import pool_of
from profiler.stages import Learned


def starting(state: PipelineState, inferentia: PoolState | None = None) -> StartingReplicas | None:
    fleet = dict(default_pools())
    if inferentia is not None:
        fleet[pool_of(ENCODER[1])] = inferentia
    decision = decide(a_snapshot(state, fleet=fleet), Policy()).pipelines[0]
    return next((each for each in decision.starting if each.stage == "encoder"), None)


@pytest.mark.parametrize(
    ("target", "count", "ready_in_s"),
    [
        (a_target(4), None, None),
        (a_target(6, ready=4, existing=4), 2, 30.0),  # not created yet: they get a node at once
        (a_target(6, ready=4, starting_since_s=[NOW_S - 20, NOW_S - 5]), 2, 25.0),
        (a_target(6, ready=4, starting_since_s=[NOW_S - 90, NOW_S - 60]), 2, None),  # overdue
        (a_target(6, ready=4, starting_since_s=[NOW_S - 5], pending_since_s=[NOW_S - 5]), 2, None),
        (a_target(6, ready=4, stranded_since_s=[NOW_S - 5, NOW_S - 5]), 2, None),
    ],
)
def test_replicas_are_expected_after_their_startup_unless_one_has_no_node(
    planner: Planner, target: TargetState, count: int | None, ready_in_s: float | None
) -> None:
    planner.wants({VAD: 4, ENCODER: 6 if count else 4})
    spec = a_spec(default_stages()[0], a_stage("encoder", a_placement("inferentia", startup_s=30.0), after=["vad"]))
    found = starting(a_state(spec, replicas={VAD: 4, ENCODER: target}))
    assert (None if found is None else found.count) == count
    assert found is None or (found.ready_in_s, found.measured) == (ready_in_s, False)


def test_a_pending_replica_of_an_elastic_pool_waits_for_its_node_first(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 5})
    spec = a_spec(default_stages()[0], a_stage("encoder", a_placement("inferentia", startup_s=30.0), after=["vad"]))
    elastic = a_pool("inferentia", node_pool=NodePoolState(instances=20, launch_s=80.0))
    memory = PipelineMemory(learned=Learned(startups_s={ENCODER: 40.0}))
    state = a_state(spec, replicas={VAD: 4, ENCODER: a_target(5, ready=4, pending_since_s=[NOW_S - 20])}, memory=memory)
    found = starting(state, inferentia=elastic)
    assert found is not None
    assert (found.count, found.ready_in_s, found.startup_s, found.measured) == (1, 100.0, 40.0, True)
