"""What is added, removed and added again at the same load stays, for longer each time."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from builders import ENCODER, NOW_S, VAD, a_snapshot, a_spec, a_state
from planning import Planner

from controller.core.bounds.alternation import REST_S, WITHIN_S
from controller.core.cycle import decide
from controller.core.state.carry_over import PipelineMemory, Turn
from controller.core.state.decision import HoldReason, PipelineDecision
from controller.core.state.policy import Policy

STEP_S = 400.0


class World:
    """A pipeline whose plan changes from time to time, for any reason."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.state = a_state(a_spec(), demand=100.0, replicas={VAD: 4, ENCODER: 2})
        self.now_s = NOW_S
        self.decision: PipelineDecision

    def plans(self, encoders: int, *, demand: float = 100.0, later_s: float = STEP_S) -> int:
        """Return the encoders after a cycle in which `encoders` are planned; all are ready."""
        self.planner.wants({VAD: 4, ENCODER: encoders})
        self.now_s += later_s
        state = replace(self.state, demand=demand)
        (self.decision,) = decide(a_snapshot(state, now_s=self.now_s), Policy()).pipelines
        desired = {key: count for key, count in self.decision.desired.items() if count}
        fresh = a_state(self.state.spec, demand=demand, replicas=desired)
        self.state = replace(fresh, memory=replace(self.decision.memory, samples=()))
        return self.decision.desired[ENCODER]


@pytest.fixture
def world(planner: Planner) -> World:
    return World(planner)


def test_it_is_stopped_and_for_longer_each_time(world: World) -> None:
    assert [world.plans(count) for count in (6, 2, 6)] == [6, 2, 6]
    rests_s = []
    for _ in range(3):
        began_s = world.now_s
        assert world.plans(2) == 6
        (hold,) = (hold for hold in world.decision.holds if hold.reason is HoldReason.ALTERNATING)
        while world.plans(2) == 6:
            assert world.now_s < began_s + 100 * REST_S
        rests_s.append(world.now_s - began_s)
        assert hold.until_s is not None
        assert world.now_s - STEP_S < hold.until_s <= world.now_s
        assert world.plans(6) == 6
    assert all(after >= 1.5 * before for before, after in pairwise(rests_s))


@pytest.mark.parametrize(
    ("demands", "later_s"),
    [((50.0, 100.0, 50.0, 100.0, 50.0), STEP_S), ((100.0,) * 5, WITHIN_S + 3 * STEP_S)],
    ids=["the load changes", "hours apart"],
)
def test_what_has_a_reason_goes_on(world: World, demands: Sequence[float], later_s: float) -> None:
    counts = [6, 2, 6, 2, 6]
    found = [world.plans(count, demand=demand, later_s=later_s) for count, demand in zip(counts, demands, strict=True)]
    assert found == counts


def test_a_wave_in_small_steps_is_a_change_of_load(world: World) -> None:
    up = list(range(3, 9))
    wave = [*up, *reversed(up[:-1])] * 3
    assert [world.plans(count, demand=20.0 * count) for count in wave] == wave


def test_caps_and_growth_go_before_it(world: World) -> None:
    alternated = {ENCODER: Turn(at_s=NOW_S, added=True, lowest=100.0, highest=100.0, turns=2)}
    world.state = a_state(demand=100.0, replicas={VAD: 4, ENCODER: 6}, memory=PipelineMemory(turns=alternated))
    assert world.plans(2, later_s=15.0) == 6
    assert world.plans(8, later_s=15.0) == 8
    world.state = replace(world.state, spec=a_spec(budget=3.0), memory=PipelineMemory(turns=alternated))
    assert world.plans(2, later_s=15.0) == 2
