"""Which pipelines of a large fleet a cycle assesses."""

import math
from collections.abc import Collection
from dataclasses import replace

import pytest
import sharing
from builders import a_placement, a_pool, a_spec, a_stage, a_state, applied, pools

from controller.core import cycle
from controller.core.assess.demand import horizon_s
from controller.core.cycle import decide
from controller.core.plan import large_fleet
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import BudgetState, PipelineState, Snapshot, TargetState
from controller.core.state.spec import BudgetSpec, HistorySpec, LabelSelector, PipelineSpec
from controller.kube import turns
from controller.kube.turns import EVERY, Chosen, Seen, Turns
from controller.telemetry import Telemetry
from optimizer.model import PipelineKey, PlacementKey, PoolName, StageName
from profiler.samples import MISSING, AtLeast, Reading

ASR: PlacementKey = (StageName("asr"), PoolName("gpu"))
NAMES = [f"p{number:02}" for number in range(16)]


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen pipelines are a large fleet here, of which six are assessed in a cycle."""
    monkeypatch.setattr(cycle, "AT_ONCE", 1)
    monkeypatch.setattr(turns, "AT_ONCE", 4)
    monkeypatch.setattr(turns, "MOST", 6)
    monkeypatch.setattr(turns, "PER_TURN", 3)
    monkeypatch.setattr(turns, "FIRST_UNWRITTEN", 1)
    monkeypatch.setattr(large_fleet, "PER_TURN", 3)


class Fleet:
    """A cluster whose pipelines have a constant load, and the cycles of an operator on it, which the test changes."""

    def __init__(self, *, instances: int = 100) -> None:
        self.states = {name: self.a_pipeline(name) for name in NAMES}
        self.versions = dict.fromkeys(NAMES, 0)
        self.pools = pools(a_pool("gpu", instances=instances, ready=instances), a_pool("cpu"))
        self.start()
        self.planned_before: Collection[str] = ()
        self.unwritten: set[str] = set()
        self.news = frozenset[PipelineKey]()
        self.now_s = 1_000_000.0
        self.last: Decision | None = None
        self.budgets: tuple[BudgetState, ...] = ()

    def start(self) -> None:
        """Start an operator, which knows nothing of what another has assessed."""
        self.turns, self.telemetry = Turns(), Telemetry()

    def a_pipeline(self, name: str) -> PipelineState:
        stage = a_stage("asr", a_placement("gpu" if name < "p08" else "cpu", bounds=(1, 40)))
        key = (StageName("asr"), PoolName("gpu" if name < "p08" else "cpu"))
        return a_state(a_spec(stage, name=name), demand=10.0, replicas={key: 1})

    def seen(self, spec: PipelineSpec) -> Seen:
        return Seen(uid=spec.uid, version=1, workloads=self.versions[spec.name])

    def cycle(self, latency_s: Reading | None = None) -> set[str]:
        """Run a cycle and return the names of the pipelines that it assessed."""
        specs = [state.spec for state in self.states.values()]
        names = {spec.key: spec.name for spec in specs}
        chosen = self.turns.choose(specs, self.seen, lambda uid: uid.removeprefix("uid-") in self.planned_before)
        self.check(chosen, names)
        others = [
            self.turns.as_read(state, None if state.planned is None else state.planned.at_s)
            for state in self.states.values()
            if state.spec.key in chosen.others
        ]
        snapshot = Snapshot(
            now_s=self.now_s,
            pipelines=tuple(state for state in self.states.values() if state.spec.key in chosen.assessed),
            pools=self.pools,
            budgets=self.budgets,
            standing=(*chosen.standing.values(), *others),
        )
        late = self.turns.look(
            [spec for spec in specs if spec.key not in chosen.assessed],
            lambda spec: (self.states[spec.name].demand, latency_s),
        )
        self.last = decide(snapshot, Policy(interval_s=15.0))
        self.telemetry.succeeded(snapshot, self.last, 0.1, 0, late=late)
        written = {key for key in chosen.assessed if names[key] not in self.unwritten}
        self.turns.conclude(snapshot, self.last, chosen.seen, news=self.news & chosen.assessed, written=written)
        for state in applied(snapshot, self.last).pipelines:
            if state.targets != self.states[state.spec.name].targets:
                self.versions[state.spec.name] += 1
            self.states[state.spec.name] = state
        self.now_s += 15.0
        return {names[key] for key in chosen.assessed}

    def check(self, chosen: Chosen, names: dict[PipelineKey, str]) -> None:
        """Every pipeline is assessed, stands as it was, or is read to stand; never two of these."""
        parts = [chosen.assessed, chosen.standing.keys(), chosen.others]
        assert sum(map(len, parts)) == len(names)
        assert set().union(*parts) == names.keys()

    def settle(self) -> None:
        for _ in range(20):
            self.cycle()

    def change(self, name: str, **fields: object) -> None:
        self.states[name] = replace(self.states[name], **fields)  # type: ignore[arg-type]


@pytest.fixture
def fleet() -> Fleet:
    found = Fleet()
    found.settle()
    return found


def test_a_small_fleet_is_assessed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 16)
    assert Fleet().cycle() == set(NAMES)


def test_at_a_first_start_as_many_are_assessed_as_a_cycle_plans() -> None:
    fleet = Fleet()
    cycles = [fleet.cycle() for _ in range(6)]
    assert len(cycles[0]) == 3
    assert set().union(*cycles) == set(NAMES)


def test_after_a_restart_plans_stand_and_as_many_are_assessed_as_a_cycle_can() -> None:
    fleet = Fleet()
    fleet.settle()
    fleet.start()
    fleet.planned_before = NAMES
    cycles = [fleet.cycle() for _ in range(3)]
    assert [len(each) for each in cycles] == [6, 6, 6]
    assert set().union(*cycles) == set(NAMES)


def metrics(fleet: Fleet, name: str) -> dict[str, float]:
    """Return the series of a metric of the last cycle by the value of their last label."""
    lines = (line.split() for line in fleet.telemetry.exposition().decode().splitlines())
    return {
        labels.partition("{")[2].rstrip('"}').rpartition('"')[2]: float(value)
        for labels, *_, value in lines
        if labels.partition("{")[0] == f"sluice_{name}"
    }


class TestAgesOfPlans:
    def test_at_a_first_start_those_that_no_cycle_has_planned_are_counted_and_have_no_age(self) -> None:
        fleet = Fleet()
        fleet.cycle()
        assert metrics(fleet, "planned_ratio") == {"": 3 / 16}
        assert metrics(fleet, "never_planned_pipelines") == {"": 13}
        assert metrics(fleet, "planned_age_seconds") == {"median": 0.0, "oldest": 0.0}
        fleet.cycle()
        assert metrics(fleet, "never_planned_pipelines") == {"": 10}
        assert metrics(fleet, "planned_age_seconds") == {"median": 0.0, "oldest": 15.0}

    def test_at_rest_two_of_sixteen_are_planned_in_each_cycle_and_none_is_older_than_eight(self, fleet: Fleet) -> None:
        for _ in range(3):
            assert len(fleet.cycle()) == 2
            assert metrics(fleet, "planned_ratio") == {"": 2 / 16}
            assert metrics(fleet, "planned_age_seconds") == {"median": 60.0, "oldest": 105.0}
            assert metrics(fleet, "never_planned_pipelines") == {"": 0}

    def test_after_a_restart_plans_are_as_old_as_they_are(self, fleet: Fleet) -> None:
        fleet.start()
        fleet.planned_before = NAMES
        for unassessed in (10, 4):
            assert len(fleet.cycle()) == 6
            planned_at_s = [state.planned.at_s for state in fleet.states.values() if state.planned is not None]
            assert metrics(fleet, "planned_age_seconds")["oldest"] == fleet.now_s - 15.0 - min(planned_at_s) > 100
            assert metrics(fleet, "planned_ratio") == {"": 6 / 16}
            assert metrics(fleet, "never_planned_pipelines") == {"": 0}
            assert metrics(fleet, "never_assessed_pipelines") == {"": unassessed}


class TestTimeAboveTheSla:
    def counted_of(self, fleet: Fleet, name: str, latency_s: Reading | None) -> tuple[float, float]:
        """Return for how long the latency was above the SLA, and known, in a cycle that does not assess `name`."""
        metric = ("pipeline_sla_missed_seconds_total", "pipeline_sla_known_seconds_total")
        before = [metrics(fleet, each)[name] for each in metric]
        assert name not in fleet.cycle(latency_s)
        missed, known = (metrics(fleet, each)[name] - was for each, was in zip(metric, before, strict=True))
        return missed, known

    @pytest.mark.parametrize(
        ("latency_s", "missed", "known"),
        [
            pytest.param(0.4, 0.0, 15.0, id="within the SLA"),
            pytest.param(0.6, 15.0, 15.0, id="above the SLA"),
            pytest.param(AtLeast(0.6), 15.0, 15.0, id="at least above the SLA"),
            pytest.param(AtLeast(0.4), 0.0, 0.0, id="at least within the SLA"),
            pytest.param(MISSING, 0.0, 0.0, id="no answer"),
            pytest.param(None, 0.0, 0.0, id="no query"),
        ],
    )
    def test_a_pipeline_that_stands_has_the_time_in_which_its_latency_was_read(
        self, fleet: Fleet, latency_s: Reading | None, missed: float, known: float
    ) -> None:
        assert self.counted_of(fleet, standing_next(fleet), latency_s) == (missed, known)

    @pytest.mark.parametrize(("latency_s", "seconds"), [(0.6, (15.0, 15.0)), (MISSING, (0.0, 0.0))])
    def test_so_has_one_that_changed_and_is_cut_from_the_turn(
        self, fleet: Fleet, latency_s: Reading, seconds: tuple[float, float]
    ) -> None:
        for name in NAMES:
            fleet.versions[name] += 1
        cut = max(fleet.cycle(0.4))
        for name in NAMES:
            fleet.versions[name] += 1
        assert self.counted_of(fleet, cut, latency_s) == seconds


def test_of_a_fleet_at_rest_each_is_assessed_once_in_so_many_cycles(fleet: Fleet) -> None:
    cycles = [fleet.cycle() for _ in range(EVERY)]
    assert all(len(each) == math.ceil(16 / EVERY) for each in cycles)
    assert set().union(*cycles) == set(NAMES)


def standing_next(fleet: Fleet) -> str:
    """Return a pipeline that was just assessed, so that its turn is the last one."""
    return max(fleet.cycle())


@pytest.mark.parametrize(
    ("fields", "latency_s"),
    [
        pytest.param({"demand": 60.0}, None, id="more demand than planned for"),
        pytest.param({"demand": 8.0}, None, id="much less demand than before"),
        pytest.param({"demand": MISSING}, None, id="demand is not known"),
        pytest.param({"demand": 0.0}, None, id="no demand"),
    ],
)
def test_a_demand_that_matters_is_assessed_in_the_next_cycle(
    fleet: Fleet, fields: dict[str, object], latency_s: float | None
) -> None:
    name = standing_next(fleet)
    fleet.change(name, **fields)
    assert name not in fleet.cycle(latency_s)
    assert name in fleet.cycle(latency_s)


def test_a_missed_sla_is_assessed_in_the_next_cycle(fleet: Fleet) -> None:
    name = standing_next(fleet)
    assert name not in fleet.cycle(latency_s=0.6)
    again = set().union(*(fleet.cycle(latency_s=0.6) for _ in range(3)))
    assert name in again


def test_a_small_fall_waits_for_its_turn(fleet: Fleet) -> None:
    name = standing_next(fleet)
    fleet.change(name, demand=9.0)
    assert name not in fleet.cycle() | fleet.cycle()


def test_a_workload_that_changed_is_assessed_at_once(fleet: Fleet) -> None:
    name = standing_next(fleet)
    fleet.versions[name] += 1
    assert name in fleet.cycle()


def test_a_price_that_changed_is_assessed_by_all_on_the_pool_and_by_no_other(fleet: Fleet) -> None:
    gpu = fleet.pools[PoolName("gpu")]
    fleet.pools = {**fleet.pools, gpu.spec.name: replace(gpu, spec=replace(gpu.spec, price_per_hour=2.0))}
    fleet.cycle()
    assert fleet.cycle() <= set(NAMES[:8])


def test_where_one_lacks_a_pool_those_that_hold_it_are_assessed() -> None:
    fleet = Fleet(instances=8)
    fleet.settle()
    fleet.change("p00", demand=60.0)
    fleet.cycle()
    seen = [fleet.cycle() for _ in range(4)]
    assert set(NAMES[:8]) <= set().union(*seen)


def test_where_a_pool_has_less_than_is_used_the_least_important_are_assessed_first() -> None:
    fleet = Fleet(instances=16)
    for name in NAMES[:4]:
        fleet.change(name, spec=replace(fleet.states[name].spec, priority=5))
    fleet.settle()
    gpu = fleet.pools[PoolName("gpu")]
    fewer = replace(gpu, spec=replace(gpu.spec, instances=6), ready_instances=6)
    fleet.pools = {**fleet.pools, gpu.spec.name: fewer}
    fleet.cycle()
    assert len(set(NAMES[4:8]) & fleet.cycle()) >= 3
    fleet.settle()
    ran = {name: fleet.states[name].desired(StageName("asr"), PoolName("gpu")) for name in NAMES[:8]}
    assert sum(ran.values()) <= 6
    assert [ran[name] for name in NAMES[:4]] == [1, 1, 1, 1]


def test_a_new_budget_is_assessed_by_all_in_its_namespaces(fleet: Fleet) -> None:
    spec = BudgetSpec(name="team", uid="uid-team", generation=1, per_hour=12.0, selector=LabelSelector(labels={}))
    fleet.budgets = (BudgetState(spec=spec, namespaces=frozenset({"speech"})),)
    assert set(NAMES) <= set().union(*(fleet.cycle() for _ in range(6)))


def test_a_burst_does_not_wait_for_pipelines_without_load(fleet: Fleet) -> None:
    for name in NAMES[:12]:
        fleet.change(name, demand=0.0)
    fleet.settle()
    name = max(set(NAMES[12:]) & fleet.cycle() or {NAMES[12]})
    fleet.change(name, demand=60.0)
    fleet.cycle()
    assert name in fleet.cycle()


def test_what_changed_comes_before_what_is_only_under_way(fleet: Fleet) -> None:
    for name in NAMES[:12]:  # a replica of each is not ready for long
        key = next(iter(fleet.states[name].targets))
        target = fleet.states[name].targets[key]
        assert isinstance(target, TargetState)
        fleet.change(name, targets={key: replace(target, desired=2, existing=2, ready=1)})
        fleet.versions[name] += 1
    fleet.cycle()
    fleet.cycle()
    fleet.versions["p15"] += 1
    assert "p15" in fleet.cycle()


def test_a_demand_with_a_history_is_assessed_several_times_before_it_can_open(fleet: Fleet) -> None:
    own = fleet.states["p03"].spec
    history = HistorySpec(season_s=86_400.0, seasons=7, step_s=300.0)
    fleet.change("p03", spec=replace(own, history=history))
    fleet.versions["p03"] += 1
    fleet.settle()
    cycles = ["p03" in fleet.cycle() for _ in range(2 * EVERY)]
    longest = max(len(run) for run in "".join("x" if each else "." for each in cycles).split("x"))
    assert (longest + 1) * 15.0 <= max(15.0, horizon_s(own, 15.0) / 4)


def test_no_more_are_assessed_than_a_cycle_can_and_the_longest_unassessed_first(fleet: Fleet) -> None:
    for name in NAMES:
        fleet.versions[name] += 1
    first = fleet.cycle()
    assert len(first) == 6
    assert not fleet.cycle() & first


def test_news_are_assessed_again_until_the_status_has_them(fleet: Fleet) -> None:
    fleet.unwritten, fleet.news = {"p03"}, frozenset({PipelineKey("speech/p03")})
    while "p03" not in fleet.cycle():
        pass
    fleet.news = frozenset()
    assert "p03" in fleet.cycle()
    assert fleet.turns.unwritten == 1
    fleet.unwritten = set()
    assert "p03" in fleet.cycle()
    assert fleet.turns.unwritten == 0
    assert "p03" not in fleet.cycle()


def test_news_without_a_status_have_their_turn_although_all_others_change_in_every_cycle(fleet: Fleet) -> None:
    fleet.unwritten, fleet.news = {"p03"}, frozenset({PipelineKey("speech/p03")})
    while "p03" not in fleet.cycle():
        pass
    fleet.news = frozenset()
    assessed = list[set[str]]()
    for _ in range(2):
        for name in set(NAMES) - {"p03"}:
            fleet.versions[name] += 1
        assessed.append(fleet.cycle())
    assert all("p03" in each for each in assessed)


def test_a_status_without_news_may_wait(fleet: Fleet) -> None:
    fleet.unwritten = {"p03"}
    while "p03" not in fleet.cycle():
        pass
    assert "p03" not in fleet.cycle()


def test_pipelines_that_share_a_stage_are_always_assessed(fleet: Fleet) -> None:
    owner, borrower = sharing.owning(), sharing.borrowing()
    specs = [*(state.spec for state in fleet.states.values()), owner, borrower]
    fleet.versions |= {owner.name: 0, borrower.name: 0}
    for _ in range(3):
        assert {owner.key, borrower.key} <= fleet.turns.choose(specs, fleet.seen, lambda _: True).assessed


def test_a_deleted_pipeline_is_forgotten(fleet: Fleet) -> None:
    del fleet.states["p05"]
    fleet.cycle()
    fleet.states["p05"] = fleet.a_pipeline("p05")
    assert PipelineKey("speech/p05") not in {
        each.key
        for each in fleet.turns.choose(
            [s.spec for s in fleet.states.values()], fleet.seen, lambda _: False
        ).standing.values()
    }
