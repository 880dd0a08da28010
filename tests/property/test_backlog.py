"""Properties of work that can wait: live pipelines come first, caps hold, and the deadline is met where it can be."""

from dataclasses import replace

from backlogs import ASR, ITEM_S, a_backlog
from builders import NOW_S, a_placement, a_pool, a_snapshot, a_spec, a_stage, a_state, applied, pools
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.cycle import decide
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, Snapshot
from optimizer.model import PlacementKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason

ENCODER: PlacementKey = (StageName("encoder"), PoolName("gpu"))
MISSING = Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")
INTERVAL_S = 120.0
MARGIN = 0.85
"""The share of the replicas' rate that the plan uses at least: a single one is used at nine tenths."""


def live(demand: float, replicas: int) -> PipelineState:
    return a_state(a_spec(a_stage("encoder", a_placement("gpu"))), demand=demand, replicas={ENCODER: replicas})


def waiting(left: float | Absence, replicas: int, due_in_s: float, budget: float) -> PipelineState:
    state = a_state(a_backlog(due_s=NOW_S + due_in_s, budget=budget), demand=left, replicas={ASR: replicas})
    return replace(state, memory=replace(state.memory, begun_s=NOW_S, demand=0.5))


def world(*states: PipelineState, gpus: int) -> Snapshot:
    return a_snapshot(*states, fleet=pools(a_pool("gpu", instances=gpus, ready=gpus)))


@settings(max_examples=30, deadline=None)
@given(
    demand=st.floats(0, 300),
    serving=st.integers(0, 6),
    left=st.one_of(st.floats(0, 1e6), st.just(MISSING)),
    working=st.integers(0, 6),
    due_in_s=st.floats(-3600, 36_000),
    budget=st.floats(0, 20),
    fleet_budget=st.one_of(st.none(), st.floats(0, 20)),
    gpus=st.integers(6, 12),
)
def test_a_backlog_changes_nothing_for_live_pipelines_and_keeps_the_caps(
    demand: float,
    serving: int,
    left: float | Absence,
    working: int,
    due_in_s: float,
    budget: float,
    fleet_budget: float | None,
    gpus: int,
) -> None:
    policy = Policy(budget_per_hour=fleet_budget)
    own, other = live(demand, serving), waiting(left, working, due_in_s, budget)
    alone = decide(world(own, gpus=gpus), policy).pipelines[0]
    found = decide(world(own, other, gpus=gpus), policy)
    first, second = found.pipelines
    assert first.unconstrained == alone.unconstrained
    assert first.plan == alone.plan
    planned = first.unconstrained[ENCODER], second.unconstrained[ASR]
    kept = max(planned[0], first.desired[ENCODER])
    assert planned[1] <= max(0, gpus - kept)
    assert planned[1] <= budget + 1e-6
    before = serving + working
    after = first.desired[ENCODER] + second.desired[ASR]
    assert after <= max(gpus, before)
    if fleet_budget is not None:
        assert after <= max(fleet_budget + 1e-6, before)


@settings(max_examples=15, deadline=None)
@given(
    share=st.floats(0.05, MARGIN * 0.9),
    gpus=st.integers(2, 10),
    hours=st.floats(1.0, 4.0),
    lost=st.sets(st.integers(1, 20), max_size=4),
)
def test_the_deadline_is_met_where_capacity_suffices(share: float, gpus: int, hours: float, lost: set[int]) -> None:
    """The pool could do the items in `share` of the time; the number left is not known in the cycles `lost`."""
    due_s = NOW_S + hours * 3600
    left = share * gpus / ITEM_S * hours * 3600
    snapshot = world(waiting(left, 0, hours * 3600, 100.0), gpus=gpus)
    cycle = 0
    while left > 0 and snapshot.now_s < due_s:
        snapshot = applied(snapshot, decide(snapshot, Policy()), after_s=INTERVAL_S)
        (state,) = snapshot.pipelines
        left = max(0.0, left - state.desired(*ASR) / ITEM_S * INTERVAL_S)
        cycle += 1
        snapshot = replace(snapshot, pipelines=(replace(state, demand=MISSING if cycle in lost else left),))
    assert left == 0
