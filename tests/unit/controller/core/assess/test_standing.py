"""Pipelines that a cycle does not assess: what they hold, and until when their last decision stands."""

from collections.abc import Collection
from dataclasses import replace

import pytest
import sharing
from builders import a_placement, a_pool, a_snapshot, a_spec, a_stage, a_state, a_target, applied, pools, seen

from controller.core import cycle
from controller.core.assess.neighbours import neighbours_of
from controller.core.assess.standing import Levels, has_moved, is_settled, levels, may_stand, standing
from controller.core.cycle import decide
from controller.core.state.carry_over import PriceMemory
from controller.core.state.decision import Decision, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import BudgetState, PipelineState, ServingReplica, Snapshot, TargetState
from controller.core.state.spec import BudgetSpec, LabelSelector, Mode
from optimizer.model import PipelineKey, PlacementKey, PoolName, StageName
from profiler.samples import MISSING, AtLeast, Reading

ASR: PlacementKey = (StageName("asr"), PoolName("gpu"))


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pipelines are a large fleet here."""
    monkeypatch.setattr(cycle, "AT_ONCE", 1)


def a_pipeline(name: str, demand: float, running: int = 1) -> PipelineState:
    stage = a_stage("asr", a_placement("gpu", bounds=(1, 40)))
    return a_state(a_spec(stage, name=name), demand=demand, replicas={ASR: running})


def a_fleet(*states: PipelineState, instances: int = 40, budget: float | None = None) -> Snapshot:
    snapshot = a_snapshot(*states, fleet=pools(a_pool("gpu", instances=instances, ready=instances)))
    if budget is None:
        return snapshot
    spec = BudgetSpec(name="team", uid="uid-team", generation=1, per_hour=budget, selector=LabelSelector(labels={}))
    return replace(snapshot, budgets=(BudgetState(spec=spec, namespaces=frozenset({"speech"})),))


def settled(snapshot: Snapshot, policy: Policy | None = None) -> tuple[Snapshot, Decision]:
    """Return the fleet after some cycles of a constant load, with the decision of the last one."""
    policy = policy or Policy()
    for _ in range(6):
        decision = decide(snapshot, policy)
        snapshot = applied(snapshot, decision)
    return snapshot, decide(snapshot, policy)


def without(snapshot: Snapshot, name: str) -> Snapshot:
    """Return the fleet in which the pipeline `name` stands."""
    stands = next(state for state in snapshot.pipelines if state.spec.name == name)
    rest = tuple(state for state in snapshot.pipelines if state.spec.name != name)
    return replace(snapshot, pipelines=rest, standing=(standing(stands, snapshot.now_s, None),))


def own(decision: Decision, name: str) -> PipelineDecision:
    return next(pipeline for pipeline in decision.pipelines if pipeline.spec.name == name)


def grown(snapshot: Snapshot, name: str, demand: float) -> Snapshot:
    states = (replace(s, demand=demand) if s.spec.name == name else s for s in snapshot.pipelines)
    return replace(snapshot, pipelines=tuple(states))


class TestOthersDecideAsBesideAPipelineThatIsAssessed:
    @pytest.mark.parametrize("instances", [40, 9])
    def test_in_its_pools(self, instances: int) -> None:
        snapshot, _ = settled(a_fleet(a_pipeline("captions", 60), a_pipeline("archive", 30), instances=instances))
        snapshot = grown(snapshot, "captions", 400)
        both, one = decide(snapshot, Policy()), decide(without(snapshot, "archive"), Policy())
        assert own(one, "captions").desired == own(both, "captions").desired
        assert own(one, "captions").changes

    def test_under_the_budget_of_the_fleet(self) -> None:
        snapshot, _ = settled(a_fleet(a_pipeline("captions", 60), a_pipeline("archive", 30)), Policy())
        snapshot, policy = grown(snapshot, "captions", 400), Policy(budget_per_hour=5.0)
        one = decide(without(snapshot, "archive"), policy)
        spent = own(one, "captions").desired[ASR] + next(
            state.desired(*ASR) for state in snapshot.pipelines if state.spec.name == "archive"
        )
        assert own(one, "captions").changes
        assert spent == 5

    def test_under_a_budget_of_both(self) -> None:
        snapshot, before = settled(a_fleet(a_pipeline("captions", 60), a_pipeline("archive", 30), budget=5.0))
        snapshot = grown(snapshot, "captions", 400)
        both, one = decide(snapshot, Policy()), decide(without(snapshot, "archive"), Policy())
        (budget,) = one.budgets
        held = own(before, "archive").desired[ASR]
        assert own(one, "captions").desired[ASR] + held == 5
        assert budget.pipelines == both.budgets[0].pipelines
        assert budget.spend_per_hour == pytest.approx(both.budgets[0].spend_per_hour)


MANY = [f"p{index:02d}" for index in range(24)]


def batches(size: int = 4) -> list[list[str]]:
    return [MANY[begin : begin + size] for begin in range(0, len(MANY), size)]


def of_batch(snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    """Return the fleet in which all but `names` stand."""
    stand = tuple(standing(each, 0.0, None) for each in snapshot.pipelines if each.spec.name not in names)
    rest = tuple(each for each in snapshot.pipelines if each.spec.name in names)
    return replace(snapshot, pipelines=rest, standing=stand)


def running(snapshot: Snapshot) -> dict[str, int]:
    return {state.spec.name: state.desired(*ASR) for state in snapshot.pipelines}


def after(snapshot: Snapshot, names: Collection[str], policy: Policy) -> Snapshot:
    """Return the fleet after a cycle that assesses only `names`; replicas are ready or gone at once."""
    changed = applied(of_batch(snapshot, names), decide(of_batch(snapshot, names), policy))
    states = {state.spec.name: state for state in changed.pipelines}
    return replace(
        snapshot,
        now_s=snapshot.now_s + policy.interval_s,
        pipelines=tuple(states.get(state.spec.name, state) for state in snapshot.pipelines),
    )


class TestAnExcessIsSharedWithThoseThatStand:
    """A limit falls below what is used: those that a cycle assesses must not give everything for all others."""

    def fleet(self, *, instances: int = 400, budget: float | None = None, important: int = 0) -> Snapshot:
        """Return 24 pipelines with 6 replicas each (USD 1/h), the first `important` ones with a higher priority."""
        states = [a_pipeline(name, 80, 6) for name in MANY]
        states = [
            replace(state, spec=replace(state.spec, priority=9 if index < important else 0))
            for index, state in enumerate(states)
        ]
        snapshot, _ = settled(a_fleet(*states, instances=instances, budget=budget))
        return snapshot

    @pytest.mark.parametrize("what", ["budget", "fleet budget", "pool"])
    def test_no_pipeline_loses_everything_and_the_limit_is_kept_in_the_end(self, what: str) -> None:
        snapshot = self.fleet(budget=1000.0)
        before = running(snapshot)
        used = sum(before.values())
        limit = round(0.9 * used)
        policy = Policy(budget_per_hour=float(limit) if what == "fleet budget" else None)
        if what == "budget":
            (budget,) = snapshot.budgets
            snapshot = replace(snapshot, budgets=(replace(budget, spec=replace(budget.spec, per_hour=float(limit))),))
        if what == "pool":
            pool = snapshot.pools[PoolName("gpu")]
            fewer = replace(pool, spec=replace(pool.spec, instances=limit), ready_instances=limit)
            snapshot = replace(snapshot, pools={PoolName("gpu"): fewer})
        for names in batches() * 5:
            had = running(snapshot)
            snapshot = after(snapshot, names, policy)
            has = running(snapshot)
            assert sum(has[name] for name in names) >= 0.7 * sum(had[name] for name in names)
            assert sum(has.values()) <= sum(had.values())
        assert sum(running(snapshot).values()) <= limit
        assert sum(running(snapshot).values()) >= limit - 2
        assert min(running(snapshot).values()) >= 1

    def test_a_more_important_pipeline_gives_nothing_while_others_stand_that_can(self) -> None:
        snapshot = self.fleet(important=4)
        before = running(snapshot)
        policy = Policy(budget_per_hour=0.9 * sum(before.values()))
        has = running(after(snapshot, MANY[:8], policy))
        assert [has[name] for name in MANY[:4]] == [before[name] for name in MANY[:4]]
        assert sum(has[name] for name in MANY[4:8]) < sum(before[name] for name in MANY[4:8])

    def test_nothing_is_added_above_the_limit(self) -> None:
        snapshot = self.fleet()
        before = running(snapshot)
        policy = Policy(budget_per_hour=0.9 * sum(before.values()))
        snapshot = grown(snapshot, MANY[0], 800)
        has = running(after(snapshot, MANY[:4], policy))
        assert sum(has.values()) <= sum(before.values())

    def test_a_price_that_rises_is_excused_for_those_that_stand_too(self) -> None:
        snapshot = self.fleet()
        before = running(snapshot)
        policy = Policy(budget_per_hour=1.02 * sum(before.values()))
        pool = snapshot.pools[PoolName("gpu")]
        dearer = replace(pool, spec=replace(pool.spec, price_per_hour=1.1), priced=PriceMemory(per_hour=1.0))
        snapshot = replace(snapshot, pools={PoolName("gpu"): dearer})
        assert running(after(snapshot, MANY[:4], policy)) == before


@pytest.mark.parametrize("busy", [0.5, MISSING])
def test_a_neighbour_that_stands_counts_as_one_that_is_assessed(busy: Reading) -> None:
    def on(name: str, *nodes: str) -> PipelineState:
        replicas = tuple(ServingReplica(name=f"{name}-{index}", node=node) for index, node in enumerate(nodes))
        stage = a_stage("asr", a_placement("gpu", bounds=(1, 40), per_instance=4))
        target = replace(a_target(len(nodes)), serving=replicas)
        return a_state(a_spec(stage, name=name), replicas={ASR: target}, samples={ASR: seen(utilization=busy)})

    snapshot = a_fleet(on("captions", "node-1", "node-2"), on("archive", "node-1", "node-1", "node-3"))
    both, one = neighbours_of(snapshot), neighbours_of(without(snapshot, "archive"))
    captions = PipelineKey("speech/captions")
    assert len(both[captions][ASR]) == 2
    assert one == {captions: both[captions]}


class TestAPipelineMayStandOnlyWhileItIsSettled:
    def state_of(self) -> tuple[PipelineState, PipelineDecision]:
        snapshot, decision = settled(a_fleet(a_pipeline("captions", 60), a_pipeline("archive", 30)))
        return snapshot.pipelines[0], decision.pipelines[0]

    def test_a_constant_load_settles(self) -> None:
        assert is_settled(*self.state_of())

    @pytest.mark.parametrize(
        "target",
        [
            pytest.param(lambda t: replace(t, ready=t.ready - 1), id="a replica is not ready"),
            pytest.param(lambda t: replace(t, terminating=1), id="a replica ends"),
            pytest.param(lambda t: replace(t, desired=t.desired + 1), id="another wrote replicas"),
        ],
    )
    def test_not_while_replicas_start_or_stop(self, target: object) -> None:
        state, decision = self.state_of()
        found = state.targets[ASR]
        assert isinstance(found, TargetState)
        changed = target(found)  # type: ignore[operator]
        assert not is_settled(replace(state, targets={ASR: changed}), decision)

    def test_not_without_a_demand(self) -> None:
        state, decision = self.state_of()
        assert not is_settled(replace(state, demand=MISSING), decision)

    def test_without_load_it_settles_once_nothing_waits_for_a_time(self) -> None:
        idle = a_pipeline("captions", 0)
        scaling = replace(idle.spec.scaling, idle_after_s=60.0)
        stages = tuple(
            replace(
                stage,
                placements=tuple(replace(own, prior=replace(own.prior, min_replicas=0)) for own in stage.placements),
            )
            for stage in idle.spec.stages
        )
        zero = replace(idle, spec=replace(idle.spec, scaling=scaling, stages=stages))
        for name, state in (("least", idle), ("zero", zero)):
            snapshot = a_fleet(state, a_pipeline("archive", 30))
            cycles = list[bool]()
            for _ in range(60):
                decision = decide(snapshot, Policy())
                cycles.append(is_settled(snapshot.pipelines[0], decision.pipelines[0]))
                snapshot = replace(applied(snapshot, decision), now_s=snapshot.now_s + 15.0)
            assert cycles[-1]
            found = levels(snapshot.pipelines[0], decision.pipelines[0])
            assert has_moved(found, 0.1, None)
            assert not has_moved(found, 0.0, None)
            if name == "zero":
                assert not any(cycles[: int(60 / 15)])
                assert snapshot.pipelines[0].desired(*ASR) == 0

    def test_a_pause_without_an_end_settles(self) -> None:
        paused = a_pipeline("captions", 60, 3)
        paused = replace(paused, spec=replace(paused.spec, mode=Mode.PAUSED))
        snapshot, decision = settled(a_fleet(paused, a_pipeline("archive", 30)))
        assert is_settled(snapshot.pipelines[0], decision.pipelines[0])
        (hold,) = decision.pipelines[0].holds
        ends = replace(decision.pipelines[0], holds=(replace(hold, until_s=snapshot.now_s + 600),))
        assert not is_settled(snapshot.pipelines[0], ends)

    def test_not_while_it_changes(self) -> None:
        snapshot, _ = settled(a_fleet(a_pipeline("captions", 60), a_pipeline("archive", 30)))
        snapshot = grown(snapshot, "captions", 400)
        assert not is_settled(snapshot.pipelines[0], decide(snapshot, Policy()).pipelines[0])

    def test_the_limits_are_what_was_planned_for_and_the_sla(self) -> None:
        state, decision = self.state_of()
        found = levels(state, decision)
        assert found.least == pytest.approx(50)
        assert 60 <= found.most <= 1.2 * 60
        assert found.latency_s == state.spec.sla.latency_s

    @pytest.mark.parametrize(
        ("demand", "latency_s", "moved"),
        [
            (100.0, None, False),
            (40.0, None, False),
            (39.9, None, True),
            (100.1, None, True),
            (0.0, None, True),
            (MISSING, None, True),
            (50.0, 0.5, False),
            (50.0, 0.51, True),
            (50.0, MISSING, True),
            (50.0, AtLeast(0.4), True),
        ],
    )
    def test_a_rise_a_fall_a_missed_sla_and_missing_data_end_it(
        self, demand: Reading, latency_s: Reading | None, moved: bool
    ) -> None:
        assert has_moved(Levels(least=40.0, most=100.0, latency_s=0.5), demand, latency_s) is moved


def test_a_pipeline_that_depends_on_others_or_on_the_time_never_stands() -> None:
    borrower, lender = sharing.borrowing(), sharing.owning()
    assert not may_stand(borrower, {lender.key}, ())
    assert not may_stand(lender, {lender.key}, ())
    plain = a_pipeline("captions", 1).spec
    assert may_stand(plain, {PipelineKey("speech/other")}, ())
    assert not may_stand(plain, (), {PoolName("gpu")})
