"""What holds for any bounds: order counts for nothing, strength for everything; and for decisions made inside them."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from builders import applied
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_worlds import policies, snapshots

from controller.core.bounds.mechanisms import MECHANISMS
from controller.core.bounds.missing_data import NEVER_DOWN
from controller.core.bounds.resolution import resolve
from controller.core.cycle import decide
from controller.core.plan.ledger import Ledger
from controller.core.state.bound import Bound, Level, Limits
from controller.core.state.decision import ChangeReason, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot
from optimizer.model import PlacementKey, PoolName, StageName
from profiler.samples import Absence

KEYS: tuple[PlacementKey, ...] = tuple(
    (StageName(stage), PoolName(pool)) for stage, pool in (("vad", "cpu"), ("vad", "gpu"), ("asr", "gpu"))
)
MOST = 12
OF_BOUNDS = {
    *(ChangeReason.RULE, ChangeReason.PINNED, ChangeReason.BOUNDS, ChangeReason.PROBE, ChangeReason.MEASURED_MISS),
    *(ChangeReason.NODES_LEAVING, ChangeReason.IDLE, ChangeReason.LEARNING, ChangeReason.POOL, ChangeReason.PLACEMENT),
}


@st.composite
def a_bound(draw: st.DrawFn) -> Bound:
    stage, pool = draw(st.sampled_from(KEYS))
    least, most = sorted((draw(st.integers(0, MOST)), draw(st.integers(0, MOST))))
    side = draw(st.sampled_from(["least", "most", "both"]))
    of_stage = draw(st.integers(0, 4)) == 0
    return Bound(
        mechanism=draw(st.sampled_from(MECHANISMS)),
        stage=stage,
        placement=None if of_stage else pool,
        least=least if side != "most" or of_stage else None,
        most=None if side == "least" or of_stage else most,
    )


some_bounds = st.lists(a_bound(), max_size=8)
counts = st.integers(0, MOST + 3)


def of_key(bounds: Sequence[Bound], key: PlacementKey) -> list[Bound]:
    return [bound for bound in bounds if bound.key == key]


def distance(bound: Bound, count: int) -> int:
    return max((bound.least or 0) - count, count - (count if bound.most is None else bound.most), 0)


def contains(limits: Limits, key: PlacementKey, count: int) -> bool:
    return limits.least(key) <= count <= limits.most(key)


@given(some_bounds, st.randoms(use_true_random=False), counts)
def test_the_order_of_bounds_makes_no_difference(bounds: list[Bound], random: object, count: int) -> None:
    shuffled = list(bounds)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = resolve(bounds, KEYS), resolve(shuffled, KEYS)
    assert one == other
    assert [one.clamped(key, count) for key in KEYS] == [other.clamped(key, count) for key in KEYS]


@given(some_bounds, a_bound(), counts)
def test_one_more_bound_never_moves_the_result_away_from_it(bounds: list[Bound], more: Bound, count: int) -> None:
    assume(more.key is not None)
    assert more.key is not None
    before = resolve(bounds, KEYS).clamped(more.key, count)
    after = resolve([*bounds, more], KEYS).clamped(more.key, count)
    assert distance(more, after) <= distance(more, before)


@given(some_bounds, st.sampled_from(Level), counts)
def test_a_stronger_level_is_never_broken_for_a_weaker_one(bounds: list[Bound], level: Level, count: int) -> None:
    stronger = resolve([bound for bound in bounds if bound.level <= level], KEYS)
    everything = resolve(bounds, KEYS)
    assert all(contains(stronger, key, everything.clamped(key, count)) for key in KEYS)


@given(some_bounds, counts)
def test_the_result_is_inside_all_bounds_of_the_strongest_level(bounds: list[Bound], count: int) -> None:
    limits = resolve(bounds, KEYS)
    for key in KEYS:
        own = of_key([bound for bound in bounds if bound.key is not None], key)
        first = [bound for bound in own if bound.level == min(each.level for each in own)]
        least = max((bound.least or 0 for bound in first), default=0)
        most = min((bound.most for bound in first if bound.most is not None), default=MOST + 9)
        if least <= most:
            assert all(distance(bound, limits.clamped(key, count)) == 0 for bound in first)


@given(some_bounds, counts)
def test_a_bound_that_is_not_kept_is_named_with_one_that_is_at_least_as_strong(bounds: list[Bound], count: int) -> None:
    limits = resolve(bounds, KEYS)
    for key in KEYS:
        for bound in of_key(bounds, key):
            if distance(bound, limits.clamped(key, count)):
                assert any(lost.bound == bound and lost.to.level <= bound.level for lost in limits.lost)


@given(some_bounds)
def test_no_floor_of_a_stage_is_above_what_its_placements_may_have(bounds: list[Bound]) -> None:
    limits = resolve(bounds, KEYS)
    for stage, side in limits.floors.items():
        assert side.count <= sum(limits.most(key) for key in KEYS if key[0] == stage)


def own_bounds(decision: PipelineDecision, *levels: Level) -> list[Bound]:
    return [bound for bound in decision.bounds if bound.level in levels and bound.mechanism.planned]


@settings(max_examples=60, deadline=None)
@given(snapshots(), policies)
def test_no_replica_is_added_beyond_a_bound_that_outranks_the_plan(snapshot: Snapshot, policy: Policy) -> None:
    for decision in decide(snapshot, policy).pipelines:
        strong = own_bounds(decision, Level.NOT_OURS, Level.CAP, Level.PERSON)
        for change in decision.changes:
            if change.after > change.before:
                limits = resolve(strong, [(change.stage, change.placement)])
                assert change.after <= limits.most((change.stage, change.placement))


@settings(max_examples=60, deadline=None)
@given(snapshots(), policies)
def test_without_data_a_placement_keeps_what_stronger_bounds_leave_it(snapshot: Snapshot, policy: Policy) -> None:
    ledger = Ledger(snapshot.pipelines, snapshot.pools, policy.budget_per_hour)
    for decision in decide(snapshot, policy).pipelines:
        above = any(ledger.above_cap(ledger.cost_per_hour(scope), scope) for scope in (None, decision.key))
        keys = tuple(decision.goal)
        limits = resolve((bound for bound in decision.bounds if bound.level <= NEVER_DOWN.level), keys)
        if not above and not ledger.shortage().pools:
            assert all(decision.goal[key] >= limits.least(key) for key in keys)


@settings(max_examples=60, deadline=None)
@given(snapshots(), policies)
def test_a_change_that_a_bound_is_the_reason_of_has_that_bound(snapshot: Snapshot, policy: Policy) -> None:
    for decision in decide(snapshot, policy).pipelines:
        for change in decision.changes:
            if change.reason in OF_BOUNDS:
                assert any(own.stage == change.stage and own.change is change.reason for own in decision.bounds)


@settings(max_examples=40, deadline=None)
@given(snapshots(healthy=True))
def test_the_same_inputs_move_no_placement_back_and_forth(snapshot: Snapshot) -> None:
    """Nothing changes but the replicas: no time passes, so no bound ends by its time."""
    changes: dict[tuple[str, PlacementKey], list[int]] = {}
    for _ in range(60):
        decision = decide(snapshot, Policy())
        for pipeline in decision.pipelines:
            for change in pipeline.changes:
                key = (pipeline.key, (change.stage, change.placement))
                changes.setdefault(key, [change.before]).append(change.after)
        if not any(pipeline.changes for pipeline in decision.pipelines):
            break
        snapshot = applied(snapshot, decision, after_s=0.0)
    else:
        raise AssertionError(f"changes without end: {changes}")
    for name, counted in changes.items():
        signs = [later > earlier for earlier, later in pairwise(counted)]
        turns = sum(one != other for one, other in pairwise(signs))
        assert turns <= 1, f"{name}: {counted}"


@settings(max_examples=40, deadline=None)
@given(snapshots())
def test_once_nothing_changes_the_same_snapshot_changes_nothing(snapshot: Snapshot) -> None:
    for _ in range(60):
        decision = decide(snapshot, Policy())
        if not any(pipeline.changes for pipeline in decision.pipelines):
            break
        snapshot = applied(snapshot, decision, after_s=0.0)
    again = decide(applied(snapshot, decision, after_s=0.0), Policy())
    assert not any(pipeline.changes for pipeline in again.pipelines)


@pytest.mark.extended
@settings(max_examples=25, deadline=None)
@given(snapshots())
def test_a_placement_that_changes_direction_does_so_because_a_bound_has_ended(snapshot: Snapshot) -> None:
    """Time passes, and nothing else changes but the replicas and what the decisions leave to the next one."""
    last: dict[tuple[str, PlacementKey], tuple[bool, PipelineDecision]] = {}
    bounds: dict[str, list[Bound]] = {}
    for _ in range(40):
        decision = decide(snapshot, Policy())
        for pipeline in decision.pipelines:
            in_force = bounds.setdefault(pipeline.key, [])
            for change in pipeline.changes:
                name, grows = (pipeline.key, (change.stage, change.placement)), change.after > change.before
                grew, before = last.get(name, (grows, pipeline))
                if grew is not grows:
                    ended = [own for own in in_force if own.until_s is not None and own.until_s <= decision.now_s]
                    window = before.demand.planned != pipeline.demand.planned  # the scale-down window has ended
                    # A placement without replicas no longer keeps the reading of its stage from being known.
                    read = any(
                        isinstance(old.reading, Absence) and not isinstance(new.reading, Absence)
                        for old, new in zip(before.rules, pipeline.rules, strict=True)
                    )
                    # The minimums of a pool that cannot deliver were above the budget: the plan had nothing but them,
                    # and a cap took them away. Without them there is a plan.
                    capped = any(old.reason is ChangeReason.BUDGET for old in before.changes)
                    # `ended` has bounds of other stages too, without which none serves.
                    assert window or ended or read or capped, f"{name}: {change}"
                last[name] = grows, pipeline
            in_force += pipeline.bounds
        snapshot = applied(snapshot, decision)
