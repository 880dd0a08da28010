"""Replicas that are to go: which get no new sessions, how long they wait, and what ends the wait.

The cycles here play against a Deployment that deletes the pods of the lowest cost first, and a Service that selects the
pods that are open. In each cycle the same share of the sessions ends, however old they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from builders import ENCODER, NOW_S, VAD, a_snapshot, a_spec, a_state, a_target, seen, with_sticky_encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.cycle import decide
from controller.core.messages.explain import explain_pipeline
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.decision import HoldReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import ServingReplica
from controller.core.state.spec import PipelineSpec

CAPACITY = 10.0
"""Sessions that a replica of the encoder serves in time; each sends an item per second."""
CYCLE_S = 15.0
PRICE_PER_HOUR = 1.0
CUT_COST = 0.01
BEFORE = 6
"""Replicas for a demand of 27."""


def a_sticky_spec(*, cut_cost: float = CUT_COST, budget: float = 100.0, kind: str = "") -> PipelineSpec:
    spec = with_sticky_encoder(a_spec(budget=budget), capacity=CAPACITY, kind=kind)
    down = replace(spec.scaling.down, stabilization_s=0.0)
    return replace(spec, scaling=replace(spec.scaling, session_cut_cost=cut_cost, down=down, tolerance=0.0))


@dataclass
class World:
    """The encoder's pods with their sessions, of which each cycle ends a share; `demand` is what the ingress says."""

    sessions: dict[str, float]
    demand: float
    ends: float = 0.2
    spec: PipelineSpec = field(default_factory=a_sticky_spec)
    labelled: bool = True
    reported: bool = True
    now_s: float = NOW_S
    memory: PipelineMemory = field(default_factory=PipelineMemory)
    shut: set[str] = field(default_factory=set)
    costs: dict[str, int] = field(default_factory=dict)
    cut: list[tuple[float, str, float]] = field(default_factory=list)

    def decided(self) -> PipelineDecision:
        serving = tuple(
            ServingReplica(
                name=name,
                deletion_cost=self.costs.get(name, 0),
                takes_sessions=name not in self.shut if self.labelled else None,
            )
            for name in self.sessions
        )
        target = replace(a_target(len(serving), ready=len(serving)), serving=serving)
        known: Mapping[str, float] = dict(self.sessions) if self.reported else {}
        state = a_state(
            self.spec,
            demand=self.demand,
            replicas={VAD: 4, ENCODER: target},
            samples={ENCODER: replace(seen(), sessions=known)},
            memory=self.memory,
        )
        (own,) = decide(a_snapshot(replace(state, latency_s=0.1), now_s=self.now_s), Policy()).pipelines
        return own

    def cycle(self) -> PipelineDecision:
        own = self.decided()
        self.memory, self.now_s = own.memory, self.now_s + CYCLE_S
        for pod, takes in own.takes_sessions.items():
            (self.shut.discard if takes else self.shut.add)(pod)
        for change in own.changes:
            if (change.stage, change.placement) != ENCODER:
                continue
            self.costs |= change.deletion_costs
            for _ in range(change.before - change.after):
                goes = min(self.sessions, key=lambda name: self.costs.get(name, 0))
                self.cut.append((self.now_s, goes, self.sessions.pop(goes)))
            for number in range(change.after - change.before):
                self.sessions[f"n-{self.now_s:g}-{number}"] = 0.0
        self.sessions = {name: held * (1 - self.ends) for name, held in self.sessions.items()}
        opened = [name for name in self.sessions if name not in self.shut]
        for name in opened:
            self.sessions[name] += max(0.0, self.demand - sum(self.sessions.values())) / len(opened)
        return own

    def run(self, cycles: int) -> list[PipelineDecision]:
        return [self.cycle() for _ in range(cycles)]


def reasons(own: PipelineDecision) -> set[HoldReason]:
    return {hold.reason for hold in own.holds}


def steady(**changes: object) -> World:
    """Return a world that has followed a demand of 27 with some replicas, and has one of 8 from now on."""
    world = World({f"e-{k}": 4.5 for k in range(BEFORE)}, demand=27.0, **changes)  # type: ignore[arg-type]
    world.run(6)
    assert not world.cut
    assert not world.shut
    assert len(world.sessions) == BEFORE
    world.demand = 8.0
    return world


def test_a_replica_that_is_to_go_gets_no_new_sessions_and_goes_when_few_are_left() -> None:
    world = steady()
    count = len(world.sessions)
    first = world.cycle()
    assert first.desired[ENCODER] == count
    assert HoldReason.CLOSING in reasons(first)
    assert 1 <= len(world.shut) < count
    world.run(60)
    assert len(world.sessions) < count
    at_once = steady(spec=a_sticky_spec(cut_cost=0.0))
    at_once.run(60)
    assert len(at_once.sessions) == len(world.sessions)
    assert sum(lost for *_, lost in world.cut) < sum(lost for *_, lost in at_once.cut) / 2
    assert not world.shut & world.sessions.keys()


def test_without_a_price_of_cuts_replicas_go_at_once_with_their_sessions() -> None:
    world = steady(spec=a_sticky_spec(cut_cost=0.0))
    count = len(world.sessions)
    assert world.cycle().desired[ENCODER] < count
    assert sum(lost for *_, lost in world.cut) > 5.0
    assert not world.shut


def test_sessions_that_never_end_are_cut_once_the_wait_has_cost_as_much() -> None:
    world = steady(ends=0.0)
    began_s = world.now_s
    while not world.cut and world.now_s < began_s + 7200:
        world.cycle()
    at_s, _, lost = world.cut[0]
    worth_s = lost * CUT_COST / PRICE_PER_HOUR * 3600
    assert worth_s <= at_s - began_s <= worth_s + 2 * CYCLE_S


def test_a_demand_that_comes_back_opens_the_replica() -> None:
    world = steady(ends=0.02)
    world.cycle()
    assert world.shut
    world.demand = 27.0
    count = len(world.sessions)
    own = world.cycle()
    assert not world.shut
    assert own.desired[ENCODER] >= count
    assert own.closings == ()
    assert not world.cut


def test_a_pod_without_the_label_waits_and_is_not_labelled() -> None:
    world = steady(labelled=False)
    count = len(world.sessions)
    own = world.cycle()
    assert own.desired[ENCODER] == count
    assert own.takes_sessions == {}
    assert any("no label sluice.dev/sessions" in line for line in explain_pipeline(own, NOW_S))


def test_replicas_that_report_no_sessions_count_as_having_their_share() -> None:
    world = steady(reported=False)
    count = len(world.sessions)
    own = world.cycle()
    assert own.desired[ENCODER] == count
    assert own.demand.planned is not None
    assert {closing.sessions for closing in own.closings} == {own.demand.planned / count}


def test_a_budget_that_fell_is_kept_at_once() -> None:
    world = steady(ends=0.0)
    world.cycle()
    count = len(world.sessions)
    world.spec = a_sticky_spec(budget=world.decided().spend_per_hour - 0.5)
    assert world.cycle().desired[ENCODER] < count


def test_a_controller_that_ignores_deletion_costs_is_not_waited_for() -> None:
    world = steady(spec=a_sticky_spec(kind="StatefulSet"))
    count = len(world.sessions)
    assert world.cycle().desired[ENCODER] < count


def test_without_the_price_only_pods_that_sluice_has_closed_are_opened() -> None:
    world = steady(ends=0.0)
    world.cycle()
    closed = set(world.shut)
    assert closed
    other = next(name for name in world.sessions if name not in closed)
    world.shut.add(other)  # by a person
    world.spec = a_sticky_spec(cut_cost=0.0)
    world.demand = 27.0
    own = world.decided()
    assert own.takes_sessions == dict.fromkeys(closed, True)


def test_what_waits_is_explained() -> None:
    own = steady().cycle()
    (closing, *_) = own.closings
    line = f"encoder: {closing.pod} is to go and has"
    assert any(line in each and "gets no new ones" in each for each in explain_pipeline(own, NOW_S))


@settings(max_examples=15, deadline=None)
@given(
    held=st.lists(st.floats(0, 10), min_size=2, max_size=6),
    demand=st.floats(1, 30),
    ends=st.floats(0, 0.5),
    cut_cost=st.floats(0.0001, 0.1),
)
def test_the_wait_never_costs_more_than_the_cuts_of_the_sessions_at_its_begin(
    held: list[float], demand: float, ends: float, cut_cost: float
) -> None:
    world = World({f"e-{k}": own for k, own in enumerate(held)}, demand=sum(held), ends=ends)
    world.spec = a_sticky_spec(cut_cost=cut_cost)
    world.run(3)
    world.demand = demand
    since: dict[str, tuple[float, float]] = {}
    for _ in range(25):
        own = world.decided()
        for closing in own.closings:
            begun_s, most = since.setdefault(closing.pod, (world.now_s, closing.sessions))
            since[closing.pod] = (begun_s, max(most, closing.sessions))
            waited = (world.now_s - begun_s) / 3600 * PRICE_PER_HOUR
            assert waited <= most * cut_cost + 1e-9
        waiting = {closing.pod for closing in own.closings}
        since = {pod: begun for pod, begun in since.items() if pod in waiting}
        open_pods = [name for name in world.sessions if own.takes_sessions.get(name, name not in world.shut)]
        assert open_pods, "new sessions have a replica"
        world.cycle()
