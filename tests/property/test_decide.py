"""What holds for every world: caps, missing data, independence, repeatability."""

import json
from dataclasses import replace

from builders import (
    NOW_S,
    a_pool,
    applied,
    pools,
)
from explained import explain
from hypothesis import given, settings
from random_worlds import policies, snapshots, states

from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.messages.events import events
from controller.core.messages.explain import reason_sentence
from controller.core.messages.phrases import MOST_CHARACTERS
from controller.core.messages.sentences import missed
from controller.core.messages.summary import summary
from controller.core.plan.ledger import Ledger
from controller.core.record import decision_record, recorded_inputs
from controller.core.state.decision import HoldReason
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, Snapshot, TargetState
from optimizer.model import Basis
from profiler.samples import Absence, AbsenceReason

EXAMPLES = 25


def ledger_after(snapshot: Snapshot, policy: Policy) -> tuple[Ledger, Ledger]:
    before = Ledger(snapshot.pipelines, snapshot.pools, policy.budget_per_hour)
    after = Ledger(snapshot.pipelines, snapshot.pools, policy.budget_per_hour)
    for pipeline in decide(snapshot, policy).pipelines:
        for change in pipeline.changes:
            after.after[(pipeline.key, (change.stage, change.placement))] = change.after
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
    for state, pipeline in zip(snapshot.pipelines, decide(snapshot, policy).pipelines, strict=True):
        # The empty rest of nodes that others left is excused for replicas that serve, so that the last ones stay.
        serves = any(target.ready and target.desired for _, target in state.found())
        excused = pipeline.spend_per_hour if state.spec.basis is Basis.INSTANCES and serves else 0.0
        most = max(pipeline.spec.budget_per_hour, excused)
        assert pipeline.plan is None or pipeline.plan.cost_per_hour <= most + 1e-6


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
        placements = pipeline.spec.placements()
        below = any(count < placements[key].prior.min_replicas for key, count in pipeline.desired.items())
        ends = {HoldReason.WITHIN_TOLERANCE, HoldReason.SLA_UNREACHABLE}
        # A minimum that others leave no room for is told.
        assert {hold.reason for hold in pipeline.holds} <= ({*ends, HoldReason.AWAITING_CAPACITY} if below else ends)


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
