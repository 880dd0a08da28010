"""Drains of crowded replicas: when sessions are cut, which, how many, and what prevents it.

The cycles here play against a Deployment that deletes the pods of the lowest cost first, and an ingress that attaches
a stream that was cut to the replica with the fewest.
"""

from dataclasses import dataclass, field, replace

import pytest
from builders import ENCODER, NOW_S, VAD, a_snapshot, a_spec, a_state, a_target, seen, with_sticky_encoder

from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.messages.explain import explain_pipeline, reason_sentence
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.decision import ChangeReason, DrainStep, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import ServingReplica
from controller.core.state.spec import PipelineSpec
from profiler.samples import Absence, AbsenceReason, Reading

CAPACITY = 10.0
"""Sessions that a replica of the encoder serves in time; each sends an item per second."""
CUT_COST_S = 60.0
CYCLE_S = 15.0
LATE_S, EARLY_S = 9.0, 0.1
START_CYCLES = 3


def a_sticky_spec(*, cut_cost_s: float | None = CUT_COST_S, budget: float = 100.0, kind: str = "") -> PipelineSpec:
    spec = with_sticky_encoder(a_spec(budget=budget), capacity=CAPACITY, kind=kind)
    return replace(spec, scaling=replace(spec.scaling, cut_cost_s=cut_cost_s))


@dataclass
class World:
    """The encoder's pods with their sessions; `starting` has how many cycles each new pod needs until it is ready."""

    sessions: dict[str, float]
    spec: PipelineSpec = field(default_factory=a_sticky_spec)
    starting: dict[str, int] = field(default_factory=dict)
    latency_s: Reading | None = None
    """The measured latency where it is not what the replicas show."""
    memory: PipelineMemory = field(default_factory=PipelineMemory)
    now_s: float = NOW_S
    cut: list[tuple[float, str, float]] = field(default_factory=list)
    costs: dict[str, int] = field(default_factory=dict)
    made: int = 0
    unread: int = 0
    """Cycles until a new replica reports its sessions."""
    young: dict[str, int] = field(default_factory=dict)
    slow: int = 0
    """Cycles that a pod that goes takes to drain."""
    going: list[int] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(self.sessions.values())

    def measured_s(self) -> Reading:
        if self.latency_s is not None:
            return self.latency_s
        return LATE_S if any(held > CAPACITY for held in self.sessions.values()) else EARLY_S

    def decided(self) -> PipelineDecision:
        serving = tuple(
            ServingReplica(name=name, leaving=False, deletion_cost=self.costs.get(name, 0)) for name in self.sessions
        )
        known = {name: held for name, held in self.sessions.items() if not self.young.get(name)}
        desired = len(self.sessions) + len(self.starting)
        waits = [self.now_s - CYCLE_S] * len(self.starting)
        target = a_target(desired, ready=len(serving), starting_since_s=waits, terminating=len(self.going))
        state = a_state(
            self.spec,
            demand=self.total,
            replicas={VAD: 4, ENCODER: replace(target, serving=serving)},
            samples={ENCODER: replace(seen(), sessions=known)},
            memory=self.memory,
        )
        (own,) = decide(a_snapshot(replace(state, latency_s=self.measured_s()), now_s=self.now_s), Policy()).pipelines
        return own

    def cycle(self) -> PipelineDecision:
        own = self.decided()
        self.memory, self.now_s = own.memory, self.now_s + CYCLE_S
        self.young = {name: left - 1 for name, left in self.young.items() if left > 1}
        self.going = [left - 1 for left in self.going if left > 1]
        self.starting = {name: left - 1 for name, left in self.starting.items()}
        for name in [name for name, left in self.starting.items() if left <= 0]:
            del self.starting[name]
            self.sessions[name] = 0.0
            self.young[name] = self.unread
        for change in own.changes:
            if (change.stage, change.placement) != ENCODER:
                continue
            self.costs |= change.deletion_costs
            for _ in range(change.after - change.before):
                self.made += 1
                self.starting[f"n-{self.made}"] = START_CYCLES
            for _ in range(change.before - change.after):
                if self.starting:
                    self.starting.popitem()
                    continue
                goes = min(self.sessions, key=lambda name: self.costs.get(name, 0))
                lost = self.sessions.pop(goes)
                self.going.append(self.slow)
                if lost:
                    self.cut.append((self.now_s, goes, lost))
                for _ in range(round(lost)):
                    self.sessions[min(self.sessions, key=lambda name: self.sessions[name])] += 1
        return own

    def run(self, cycles: int) -> list[PipelineDecision]:
        return [self.cycle() for _ in range(cycles)]


def steps(own: PipelineDecision) -> list[DrainStep]:
    return [drain.step for drain in own.drains]


def spread_message(own: PipelineDecision) -> str:
    return {condition.type: condition for condition in conditions(own)}["SessionsSpread"].message


def test_sessions_that_stay_on_a_full_replica_are_cut_once_they_have_missed_for_as_long_as_a_cut_costs() -> None:
    world = World({"e-0": 18.0, "e-1": 0.0, "e-2": 0.0})
    decisions = world.run(20)
    assert [(name, lost) for _, name, lost in world.cut] == [("e-0", 18.0)]
    assert world.cut[0][0] - NOW_S >= CUT_COST_S
    assert max(world.sessions.values()) <= CAPACITY
    assert steps(decisions[0]) == [DrainStep.MISSING]
    (change,) = [change for own in decisions for change in own.changes if change.reason is ChangeReason.REBALANCE]
    assert (change.stage, change.placement, change.before - change.after) == (*ENCODER, 1)
    assert decisions[-1].drains == ()


def test_what_becomes_of_the_full_replica_is_said() -> None:
    world = World({"e-0": 18.0, "e-1": 0.0, "e-2": 0.0})
    own = world.cycle()
    words = "e-0 (18 sessions) is drained once they have missed the SLA for 60 s"
    assert words in spread_message(own)
    assert any(words in line for line in explain_pipeline(own, NOW_S))


def test_the_others_get_a_replica_first_where_they_cannot_take_the_sessions() -> None:
    world = World({"e-0": 12.0, "e-1": 6.0, "e-2": 6.0}, spec=a_sticky_spec(cut_cost_s=15.0))
    decisions = world.run(40)
    seen_steps = [step for own in decisions for step in steps(own)]
    assert DrainStep.MAKING_ROOM in seen_steps
    assert [(name, lost) for _, name, lost in world.cut] == [("e-0", 12.0)]
    assert max(world.sessions.values()) <= CAPACITY


def test_a_replica_that_does_not_report_its_sessions_yet_is_waited_for() -> None:
    world = World({"e-0": 12.0, "e-1": 6.0, "e-2": 6.0}, spec=a_sticky_spec(cut_cost_s=15.0), unread=3)
    decisions = world.run(40)
    planned = max(own.unconstrained[ENCODER] for own in decisions[:1])
    assert max(own.desired[ENCODER] for own in decisions) == planned
    assert [name for _, name, _ in world.cut] == ["e-0"]


def test_no_more_sessions_are_cut_in_an_hour_than_there_are() -> None:
    """The latency exceeds the SLA whatever is drained, and a client comes back to where it was."""

    class Stubborn(World):
        def cycle(self) -> PipelineDecision:
            own = super().cycle()
            full = max(self.sessions, key=lambda name: self.sessions[name])
            self.sessions = {name: self.total if name == full else 0.0 for name in self.sessions}
            return own

    world = Stubborn({"e-0": 18.0, "e-1": 0.0, "e-2": 0.0}, latency_s=LATE_S)
    decisions = world.run(200)  # 50 minutes
    assert sum(lost for _, _, lost in world.cut) <= world.total
    assert steps(decisions[-1]) == [DrainStep.RESTING]
    assert "within an hour" in spread_message(decisions[-1])
    assert len(world.cut) == 1
    world.run(60)
    assert len(world.cut) == 2


@pytest.mark.parametrize("latency_s", [EARLY_S, Absence(reason=AbsenceReason.STALE)])
def test_nothing_is_cut_while_no_measured_latency_says_that_the_sla_is_missed(latency_s: Reading) -> None:
    """The capacity that makes the replica look full may be a wrong declaration."""
    world = World({"e-0": 18.0, "e-1": 0.0, "e-2": 0.0}, latency_s=latency_s)
    world.run(40)
    assert world.cut == []


def test_nothing_is_cut_while_the_miss_is_not_that_of_a_full_replica() -> None:
    world = World({"e-0": 6.0, "e-1": 1.0}, latency_s=LATE_S)
    decisions = world.run(40)
    assert world.cut == []
    assert any(own.skews for own in decisions)


def test_by_default_nothing_is_cut() -> None:
    world = World({"e-0": 18.0, "e-1": 0.0, "e-2": 0.0}, spec=a_sticky_spec(cut_cost_s=None))
    assert all(own.skews and not own.drains for own in world.run(20))
    assert world.cut == []


def test_a_controller_that_does_not_remove_a_chosen_replica_is_named() -> None:
    world = World({"e-0": 18.0, "e-1": 0.0, "e-2": 0.0}, spec=a_sticky_spec(kind="StatefulSet"))
    decisions = world.run(20)
    assert {step for own in decisions for step in steps(own)} == {DrainStep.UNABLE}
    assert "cannot be drained" in spread_message(decisions[-1])
    assert not any(change.reason is ChangeReason.REBALANCE for own in decisions for change in own.changes)


def test_a_refused_change_cuts_nothing_and_does_not_count() -> None:
    world = World({"e-0": 18.0, "e-1": 0.0, "e-2": 0.0})
    for _ in range(20):
        own = world.decided()
        world.memory, world.now_s = own.memory, world.now_s + CYCLE_S
    assert world.memory.drains[ENCODER[0]].cut == 0
    world.run(3)
    assert [name for _, name, _ in world.cut] == ["e-0"]


def test_the_time_of_the_misses_survives_a_restart_and_a_clock_that_was_set_back_counts_for_nothing() -> None:
    world = World({"e-0": 18.0, "e-1": 0.0, "e-2": 0.0})
    world.run(3)
    missed_s = world.memory.drains[ENCODER[0]].missed_s
    world.now_s -= 3600
    world.run(1)
    assert world.memory.drains[ENCODER[0]].missed_s == missed_s
    world.now_s += 3600  # two cycles at most
    world.run(1)
    assert world.memory.drains[ENCODER[0]].missed_s <= missed_s + 2 * CYCLE_S


def test_a_budget_without_room_for_another_replica_keeps_the_sessions_where_they_are() -> None:
    sessions = {"e-0": 12.0, "e-1": 6.0, "e-2": 6.0}
    spend = World(dict(sessions)).decided().spend_per_hour
    world = World(sessions, spec=a_sticky_spec(cut_cost_s=15.0, budget=spend + 0.01))
    decisions = world.run(40)
    assert all(own.spend_per_hour <= world.spec.budget_per_hour for own in decisions)
    assert world.cut == []
    assert steps(decisions[-1]) == [DrainStep.MAKING_ROOM]
    assert decisions[-1].unmet


def test_the_first_scale_down_window_does_not_keep_a_crowded_replica() -> None:
    """Streams may all be there from the first second on."""
    world = World({"e-0": 18.0, "e-1": 0.0, "e-2": 0.0}, memory=PipelineMemory(begun_s=NOW_S))
    world.run(8)  # two minutes of five
    assert [name for _, name, _ in world.cut] == ["e-0"]


def test_the_measured_miss_adds_nothing_that_sessions_which_stay_do_not_use() -> None:
    world = World({"e-0": 12.0, "e-1": 6.0, "e-2": 6.0})
    before = world.decided().unconstrained[ENCODER]
    decisions = world.run(8)
    assert all(own.unconstrained[ENCODER] <= before + 1 for own in decisions)


def test_where_nothing_moves_the_sessions_the_summary_says_that_they_are_why_the_sla_is_missed() -> None:
    world = World({"e-0": 18.0, "e-1": 0.0, "e-2": 0.0}, spec=a_sticky_spec(cut_cost_s=None))
    words = [reason_sentence(own) for own in world.run(60)]
    (last,) = [each for each in words if "sessions stay on crowded replicas" in each][-1:]
    assert "so that more replicas do not help (encoder)" in last
    assert "would help: sessions that leave the crowded replicas of encoder" in last


def test_one_replica_drains_at_a_time() -> None:
    world = World(dict.fromkeys(["e-0", "e-1"], 16.0) | dict.fromkeys([f"e-{k}" for k in range(2, 8)], 0.0), slow=4)
    decisions = world.run(30)
    first, second = world.cut
    assert second[0] - first[0] > 4 * CYCLE_S
    assert sum(change.reason is ChangeReason.REBALANCE for own in decisions for change in own.changes) == 2
