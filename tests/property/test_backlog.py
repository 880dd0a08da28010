"""Properties of work that can wait: live pipelines come first, caps hold, and the deadline is met where it can be."""

from dataclasses import dataclass, replace

from backlogs import ASR, ITEM_S, a_backlog
from builders import NOW_S, a_placement, a_pool, a_snapshot, a_spec, a_stage, a_state, a_target, applied, pools
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.cycle import decide
from controller.core.state.policy import Policy
from controller.core.state.schedule import EventFloor
from controller.core.state.snapshot import PipelineState, Snapshot
from optimizer.model import PlacementKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason

ENCODER: PlacementKey = (StageName("encoder"), PoolName("gpu"))
ASR_DEAR: PlacementKey = (StageName("asr"), PoolName("dear"))
HOUR_S = 3600.0
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


@settings(max_examples=40, deadline=None)
@given(
    demand=st.floats(0, 300),
    serving=st.integers(0, 6),
    cheap=st.integers(0, 6),
    dear=st.integers(0, 6),
    ready=st.tuples(st.booleans(), st.booleans()),
    left=st.floats(1000, 20_000),
    fleet_budget=st.one_of(st.none(), st.floats(5, 40)),
)
def test_where_a_live_pipeline_lacks_capacity_what_uses_it_beyond_the_plan_goes_at_once_and_no_more(
    demand: float,
    serving: int,
    cheap: int,
    dear: int,
    ready: tuple[bool, bool],
    left: float,
    fleet_budget: float | None,
) -> None:
    spec = a_backlog(a_placement("gpu", service_s=ITEM_S), a_placement("dear", service_s=ITEM_S), due_s=NOW_S + HOUR_S)
    targets = {
        key: a_target(count, ready=count if up else 0)
        for key, count, up in zip((ASR, ASR_DEAR), (cheap, dear), ready, strict=True)
    }
    own = a_state(spec, demand=left, replicas=targets)
    own = replace(own, memory=replace(own.memory, begun_s=NOW_S, demand=0.5))
    gpus = max(1, serving + cheap)  # nothing is free
    fleet = pools(a_pool("gpu", instances=gpus, ready=gpus), a_pool("dear", price=3.0, instances=12, ready=12))
    policy = Policy(budget_per_hour=fleet_budget)
    first, second = decide(a_snapshot(live(demand, serving), own, fleet=fleet), policy).pipelines
    before = {ASR: cheap, ASR_DEAR: dear}
    for key, count in second.desired.items():
        assert count >= min(before[key], second.unconstrained[key])
    if first.desired[ENCODER] < first.unconstrained[ENCODER]:
        assert second.desired[ASR] <= second.unconstrained[ASR]


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


STEP_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of a run: the items left at the deadline, the cost (USD), and how often the first replica started."""

    left: float
    cost: float
    starts: int
    waited_s: float


def day(until_s: float) -> PipelineState:
    """Return a live pipeline that has little load, and is declared to need all of pool gpu until `until_s`."""
    floor = EventFloor(name="day", demand=190.0, start_s=0.0, end_s=until_s)
    return a_state(
        replace(a_spec(a_stage("encoder", a_placement("gpu"))), at_least=(floor,)), demand=1.0, replicas={ENCODER: 10}
    )


def run_of(left: float, hours: float, night_s: float | None, believed_s: float, startup_s: float = 0.0) -> Run:
    """Return the run of a backlog due in `hours` beside a day that is declared to end at `believed_s`.

    It ends at `night_s`, None: it never does, and is prolonged for as long as it was declared. Times are from now on.
    """
    spec = a_backlog(
        a_placement("gpu", service_s=ITEM_S, startup_s=startup_s),
        a_placement("dear", service_s=ITEM_S, startup_s=startup_s, bounds=(0, 6)),
        due_s=NOW_S + hours * HOUR_S,
    )
    waiting = a_state(spec, demand=left, replicas={})
    waiting = replace(waiting, memory=replace(waiting.memory, begun_s=NOW_S))
    fleet = pools(a_pool("gpu", instances=10, ready=10), a_pool("dear", price=4.0, instances=6, ready=6))
    snapshot = a_snapshot(day(NOW_S + believed_s), waiting, fleet=fleet)
    cost, starts, waited_s, before = 0.0, 0, 0.0, 0
    while left > 0 and snapshot.now_s < NOW_S + hours * HOUR_S:
        snapshot = applied(snapshot, decide(snapshot, Policy()), after_s=STEP_S)
        live, state = snapshot.pipelines
        cheap, dear = state.desired(*ASR), state.desired(*ASR_DEAR)
        late_s = startup_s if cheap + dear > before else 0.0
        left = max(0.0, left - (cheap + dear) / ITEM_S * (STEP_S - late_s))
        cost += (cheap + 4 * dear) * STEP_S / HOUR_S
        starts += not before and bool(cheap + dear)
        waited_s += 0.0 if cheap + dear else STEP_S
        before = cheap + dear
        ends_s = snapshot.now_s + believed_s if night_s is None else NOW_S + night_s
        live = replace(live, spec=day(ends_s).spec)
        snapshot = replace(snapshot, pipelines=(live, replace(state, demand=left)))
    return Run(left=left, cost=cost, starts=starts, waited_s=waited_s)


def test_work_waits_for_the_night_meets_the_deadline_and_costs_less() -> None:
    items = 40_000.0
    found = run_of(items, 8, 4 * HOUR_S, 4 * HOUR_S)
    unknown = run_of(items, 8, None, 100 * HOUR_S)  # nothing ends before the deadline: the even pace
    assert (found.left, unknown.left) == (0, 0)
    assert found.waited_s >= 3 * HOUR_S
    assert unknown.waited_s == 0
    assert found.cost <= 0.5 * unknown.cost
    assert found.starts == 1


@settings(max_examples=10, deadline=None)
@given(
    share=st.floats(0.05, 0.8),
    hours=st.floats(3.0, 9.0),
    believed=st.floats(0.2, 1.2),
    startup_s=st.sampled_from([0.0, 300.0, 600.0]),
)
def test_a_night_that_never_comes_costs_no_deadline(
    share: float, hours: float, believed: float, startup_s: float
) -> None:
    """The six replicas of the dear pool could do the items in `share` of the time after one start-up."""
    items = share * MARGIN * 6 / ITEM_S * (hours * HOUR_S - startup_s - STEP_S)
    found = run_of(items, hours, None, believed * hours * HOUR_S, startup_s)
    assert found.left == 0
    assert found.starts <= 2
