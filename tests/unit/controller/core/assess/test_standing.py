"""Pipelines that a cycle does not assess: what they hold, and until when their last decision stands."""

from dataclasses import replace

import pytest
import sharing
from builders import a_placement, a_pool, a_snapshot, a_spec, a_stage, a_state, a_target, applied, pools, seen

from controller.core import cycle
from controller.core.assess.neighbours import neighbours_of
from controller.core.assess.standing import Levels, has_moved, is_settled, levels, may_stand, standing
from controller.core.cycle import decide
from controller.core.state.decision import Decision, PipelineDecision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import BudgetState, PipelineState, ServingReplica, Snapshot, TargetState
from controller.core.state.spec import BudgetSpec, LabelSelector
from optimizer.model import PipelineKey, PlacementKey, PoolName, StageName
from profiler.samples import MISSING, Reading

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
        assert not is_settled(replace(state, demand=0.0), decision)

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
