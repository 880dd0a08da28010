"""What holds for every world: caps, missing data, independence, repeatability."""

import json
from dataclasses import replace

from builders import (
    NOW_S,
    a_placement,
    a_pool,
    a_rule,
    a_scaling,
    a_spec,
    a_stage,
    a_state,
    a_target,
    applied,
    pools,
    seen,
)
from explained import explain
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.messages.events import events
from controller.core.messages.explain import reason_sentence
from controller.core.messages.phrases import MOST_CHARACTERS
from controller.core.messages.sentences import missed
from controller.core.messages.summary import summary
from controller.core.plan.ledger import Ledger
from controller.core.record import decision_record, recorded_inputs
from controller.core.state.carry_over import DemandSample, PipelineMemory, PoolMemory, RuleMemory
from controller.core.state.decision import HoldReason
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, Snapshot, TargetMissing, TargetState
from controller.core.state.spec import Mode, PlacementSpec
from optimizer.model import Basis, Composition, StageName
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Reading

EXAMPLES = 25
POOLS = ("cpu", "inferentia", "gpu")
WORDS = ("0/3 nodes are available: 3 Insufficient cpu.", "0/3 nodes are available: 3 node(s) were unschedulable.")
absences = st.sampled_from(AbsenceReason).map(lambda reason: Absence(reason=reason, detail="for a test"))


def maybe(strategy: st.SearchStrategy[float]) -> st.SearchStrategy[Reading]:
    return st.one_of(strategy, strategy, strategy, absences)


@st.composite
def placements(draw: st.DrawFn, names: tuple[str, ...] = POOLS) -> tuple[PlacementSpec, ...]:
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    return tuple(
        a_placement(
            pool,
            service_s=draw(st.sampled_from([0.01, 0.05, 0.2])),
            bounds=(draw(st.integers(0, 2)), draw(st.integers(2, 9))),
            per_instance=draw(st.sampled_from([1, 2, 3])),
            startup_s=draw(st.sampled_from([0.0, 30.0])),
        )
        for pool in chosen
    )


@st.composite
def targets(draw: st.DrawFn) -> TargetState | TargetMissing:
    if draw(st.integers(0, 12)) == 0:
        return TargetMissing(reason="for a test")
    desired = draw(st.integers(0, 6))
    existing = max(0, desired + draw(st.integers(-1, 1)))
    return a_target(
        desired,
        existing=existing,
        ready=draw(st.integers(0, existing)),
        terminating=draw(st.sampled_from([0, 0, 0, 1])),
        pending_since_s=[NOW_S - draw(st.sampled_from([10.0, 600.0]))] if draw(st.integers(0, 5)) == 0 else [],
        words=draw(st.sampled_from(WORDS)),
    )


@st.composite
def states(draw: st.DrawFn, name: str, names: tuple[str, ...] = POOLS, *, healthy: bool = False) -> PipelineState:
    stages = [
        a_stage(
            f"stage{index}",
            *draw(placements(names)),
            after=[f"stage{index - 1}"] if index else [],
            pass_ratio=draw(st.sampled_from([1.0, 0.5])),
            rules=[a_rule(per_zone=draw(st.booleans()))] if draw(st.booleans()) else [],
        )
        for index in range(draw(st.integers(1, 3)))
    ]
    spec = a_spec(
        *stages,
        name=name,
        mode=Mode.AUTO if healthy else draw(st.sampled_from([Mode.AUTO, Mode.AUTO, Mode.AUTO, *Mode])),
        priority=draw(st.integers(0, 2)),
        budget=draw(st.sampled_from([1.0, 5.0, 20.0, 100.0])),
        scaling=a_scaling(
            up=draw(st.integers(1, 5)), down=draw(st.integers(1, 5)), down_s=draw(st.sampled_from([0.0, 300.0]))
        ),
        basis=draw(st.sampled_from([None, None, *Basis])),
    )
    demand = st.floats(0, 200)
    keys = spec.placement_keys()
    if healthy:
        replicas = {key: a_target(draw(st.integers(0, 6))) for key in keys}
        return a_state(spec, demand=draw(demand), replicas=replicas)
    before = draw(st.one_of(st.none(), demand))
    memory = PipelineMemory(
        demand=before,
        samples=() if before is None else (DemandSample(t_s=NOW_S - 100, observed=before, forecast=before),),
        rules={(StageName("stage0"), "busy"): RuleMemory(floor=draw(st.integers(1, 30)), fired=True)},
        excess_excused_until_s=draw(st.sampled_from([None, NOW_S + 30])),
    )
    samples = {key: seen(rx_queue_pressure=draw(maybe(st.floats(0, 1)))) for key in keys}
    if draw(st.integers(0, 3)) == 0:
        samples[keys[0]] = PlacementSamples(readings={})
    return a_state(
        spec,
        demand=draw(maybe(demand)),
        replicas={key: draw(targets()) for key in keys},
        samples=samples,
        memory=memory,
    )


@st.composite
def snapshots(draw: st.DrawFn, *, healthy: bool = False) -> Snapshot:
    memories = st.sampled_from(
        [PoolMemory(), PoolMemory(unavailable_until_s=NOW_S + 60, backoff_s=600.0, reason="full")]
    )
    return Snapshot(
        now_s=NOW_S,
        pipelines=tuple(draw(states(name, healthy=healthy)) for name in "ab"[: draw(st.integers(1, 2))]),
        pools=pools(
            *(
                a_pool(
                    name,
                    price=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
                    instances=draw(st.sampled_from([0, 3, 10, 40] if healthy else [0, 3, 10, 40, None])),
                    ready=draw(st.integers(0, 20)),
                    zones=draw(st.integers(0, 3)),
                    memory=PoolMemory() if healthy else draw(memories),
                )
                for name in (POOLS if healthy else draw(st.sampled_from([POOLS, POOLS, POOLS[:2]])))
            )
        ),
    )


policies = st.sampled_from(
    [
        Policy(),
        Policy(budget_per_hour=10.0),
        Policy(latency_headroom=0.1, search_effort=1000, composition=Composition.RSS),
    ]
)


def ledger_after(snapshot: Snapshot, policy: Policy) -> tuple[Ledger, Ledger]:
    before = Ledger(snapshot.pipelines, snapshot.pools, policy.budget_per_hour)
    after = Ledger(snapshot.pipelines, snapshot.pools, policy.budget_per_hour)
    for pipeline in decide(snapshot, policy).pipelines:
        for change in pipeline.changes:
            after.after[(pipeline.key, (change.stage, change.pool))] = change.after
    return before, after


@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshots(), policies)
def test_our_changes_never_take_spend_above_a_cap(snapshot: Snapshot, policy: Policy) -> None:
    before, after = ledger_after(snapshot, policy)
    # What a pipeline pays for the empty rest of nodes also depends on the replicas of others.
    own = [s.spec.key for s in snapshot.pipelines if s.spec.basis is Basis.REPLICAS or len(snapshot.pipelines) == 1]
    for scope in (None, *own):
        spend = after.spend_per_hour(scope)
        assert not after.above_cap(spend, scope) or spend <= before.spend_per_hour(scope) + 1e-9


@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshots(), policies)
def test_no_plan_costs_more_than_its_budget(snapshot: Snapshot, policy: Policy) -> None:
    for pipeline in decide(snapshot, policy).pipelines:
        assert pipeline.plan is None or pipeline.plan.cost_per_hour <= pipeline.spec.budget_per_hour + 1e-6


@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshots(), policies)
def test_our_changes_never_ask_for_more_of_a_pool_than_there_is(snapshot: Snapshot, policy: Policy) -> None:
    before, after = ledger_after(snapshot, policy)
    for pool in snapshot.pools:
        assert not after.overfull(pool) or after.instances(pool) <= before.instances(pool)
        occupied = [books.after.occupied.instances(pool) for books in (before, after)]
        assert not after.crowded(pool) or occupied[1] <= occupied[0], "what leaves is there until it has left"


@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshots(), policies)
def test_without_demand_or_samples_only_a_cap_takes_replicas_away(snapshot: Snapshot, policy: Policy) -> None:
    decision = decide(snapshot, policy)
    ledger = Ledger(snapshot.pipelines, snapshot.pools, policy.budget_per_hour)
    for state, pipeline in zip(snapshot.pipelines, decision.pipelines, strict=True):
        blind = isinstance(state.demand, Absence) or any(
            not state.samples[key].readings and isinstance(target, TargetState) and target.ready
            for key, target in state.targets.items()
        )
        above = any(ledger.above_cap(ledger.cost_per_hour(scope), scope) for scope in (None, state.spec.key))
        broken = pipeline.memory.failures or any(
            memory.unavailable_until_s is not None for memory in (pool.memory for pool in decision.pools)
        )
        if blind and not above and not broken:
            assert all(change.after > change.before for change in pipeline.changes)


@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshots(), policies)
def test_the_same_snapshot_gives_the_same_decision_and_words_for_it(snapshot: Snapshot, policy: Policy) -> None:
    decision = decide(snapshot, policy)
    assert decide(snapshot, policy) == decision
    for pipeline in decision.pipelines:
        assert reason_sentence(pipeline)
        assert summary(pipeline)
        assert explain(decision, pipeline.key)
        before = {condition.type: condition.status for condition in conditions(pipeline)}
        assert len(events(pipeline, before)) == bool(pipeline.changes)
        assert missed(pipeline) == reason_sentence(pipeline).startswith("SLA missed") == (pipeline.miss is not None)
        assert missed(pipeline) == (summary(pipeline)["health"] == "SLAMissed")
        told = [each.message for each in conditions(pipeline)] + [each.message for each in events(pipeline, {})]
        assert all(len(message) <= MOST_CHARACTERS for message in told)


@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshots(), policies)
def test_a_record_survives_json_and_is_decided_again(snapshot: Snapshot, policy: Policy) -> None:
    decision = decide(snapshot, policy)
    record = json.loads(json.dumps(decision_record(snapshot, decision), allow_nan=False))
    assert recorded_inputs(record)[0] == snapshot
    assert decide(*recorded_inputs(record)) == decision


@settings(max_examples=EXAMPLES, deadline=None)
@given(snapshots(healthy=True))
def test_under_constant_load_changes_come_to_an_end_where_the_plan_leads(snapshot: Snapshot) -> None:
    for _ in range(60):
        decision = decide(snapshot, Policy())
        if not any(pipeline.changes for pipeline in decision.pipelines):
            break
        snapshot = applied(snapshot, decision)
    again = decide(applied(snapshot, decision), Policy())
    for pipeline in (*decision.pipelines, *again.pipelines):
        assert not pipeline.changes
        assert {hold.reason for hold in pipeline.holds} <= {HoldReason.WITHIN_TOLERANCE, HoldReason.SLA_UNREACHABLE}


@settings(max_examples=EXAMPLES, deadline=None)
@given(states("a", names=("cpu",), healthy=True), states("b", names=("gpu",)))
def test_what_happens_to_one_pipeline_is_nothing_to_another_on_other_pools(
    one: PipelineState, other: PipelineState
) -> None:
    fleet = pools(a_pool("cpu"), a_pool("gpu"))
    alone = decide(Snapshot(now_s=NOW_S, pipelines=(one,), pools=fleet), Policy()).pipelines[0]
    blind = replace(other, demand=Absence(reason=AbsenceReason.MISSING), samples={})
    for neighbour in (other, blind):
        beside = decide(Snapshot(now_s=NOW_S, pipelines=(one, neighbour), pools=fleet), Policy()).pipelines[0]
        assert beside == alone
