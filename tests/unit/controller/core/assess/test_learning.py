"""A stage of which not enough is known keeps its replicas, and doubles them while it refuses; learned numbers count."""

from dataclasses import replace

import pytest
from builders import (
    NOW_S,
    a_placement,
    a_pool,
    a_snapshot,
    a_spec,
    a_stage,
    a_state,
    a_target,
    default_pools,
    pools,
    seen,
)

from controller.core.assess.assessment import Assessment, assess
from controller.core.assess.availability import find_availability
from controller.core.assess.learning import with_learned_numbers
from controller.core.cycle import decide
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.decision import ChangeReason
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState
from controller.core.state.spec import UNDECLARED_CV, Declared, DemandUnit, PipelineSpec, PlacementSpec
from optimizer.model import PoolName, Routing, ServiceLaw, StageName
from profiler.law import BatchTimes
from profiler.samples import Absence, AbsenceReason, Reading
from profiler.stages import Learned

ASR, KEY = StageName("asr"), (StageName("asr"), PoolName("cpu"))
UNSUPPORTED = Absence(reason=AbsenceReason.UNSUPPORTED)


def a_server(*, memory: bool = False, service: bool = True, cv: bool = True, startup: bool = True) -> PlacementSpec:
    placement = a_placement("cpu", service_s=0.01)
    declared = Declared(service=service, cv=service and cv, startup=startup, memory=memory)
    return replace(placement, declared=declared)


def streams(placement: PlacementSpec) -> PipelineSpec:
    stage = replace(a_stage("asr", placement), routing=Routing.STICKY)
    return replace(a_spec(stage), unit=DemandUnit.STREAMS, chunk_s=1.0)


def a_stage_that_refuses(
    *,
    refused: Reading = 0.5,
    sessions: Reading = UNSUPPORTED,
    placement: PlacementSpec | None = None,
    learned: Learned | None = None,
    moved_s_ago: float = 1e6,
) -> PipelineState:
    """Four replicas, 100 streams offered."""
    return a_state(
        streams(placement or a_server()),
        demand=100.0,
        replicas={KEY: a_target(4)},
        samples={KEY: seen(session_refusals=refused, sessions=sessions)},
        memory=PipelineMemory(learned=learned or Learned(), stages_moved_at_s={ASR: NOW_S - moved_s_ago}),
    )


def assessed(state: PipelineState) -> Assessment:
    world = a_snapshot(state)
    return assess(state, world, find_availability(world), Policy())


class TestRefusals:
    def test_a_stage_that_refuses_doubles_while_nothing_says_how_many_it_holds(self) -> None:
        assert assessed(a_stage_that_refuses()).learning.floors == {ASR: 8}

    def test_it_doubles_once_per_window(self) -> None:
        assert assessed(a_stage_that_refuses(moved_s_ago=30.0)).learning.floors == {ASR: 4}

    def test_once_the_slots_are_known_the_plan_says_how_many_replicas(self) -> None:
        first = assessed(a_stage_that_refuses(sessions=40.0))
        assert first.learned.session_slots == {KEY: 10}
        assert first.learning.floors == {}
        state = a_stage_that_refuses(sessions=40.0, learned=first.learned)
        decision = decide(a_snapshot(state, fleet=default_pools()), Policy())
        (pipeline,) = decision.pipelines
        assert [(change.before, change.after) for change in pipeline.changes] == [(4, 11)], "a slot for 101 streams"

    def test_refusals_while_all_offered_streams_are_held_double_nothing(self) -> None:
        """They have another cause: clients without rights, another model of the server."""
        found = assessed(a_stage_that_refuses(sessions=100.0))
        assert found.learning.floors == {}
        assert found.learned.session_slots == {}
        assert assessed(a_stage_that_refuses(sessions=40.0)).learned.session_slots == {KEY: 10}

    @pytest.mark.parametrize("refused", [0.0, UNSUPPORTED])
    def test_without_refusals_nothing_is_added(self, refused: Reading) -> None:
        assessment = assessed(a_stage_that_refuses(refused=refused))
        assert assessment.learning.floors == {}
        assert not assessment.never_down, "a server need not export refusals"

    def test_declared_memory_is_believed(self) -> None:
        assert assessed(a_stage_that_refuses(placement=a_server(memory=True))).learning.floors == {}

    def test_a_stage_whose_service_law_is_not_known_keeps_its_replicas_and_doubles_too(self) -> None:
        bare = a_server(service=False)
        assert assessed(a_stage_that_refuses(placement=bare)).learning.floors == {ASR: 8}
        assert assessed(a_stage_that_refuses(placement=bare, refused=0.0)).learning.floors == {ASR: 4}


class TestLearnedNumbers:
    LEARNED = Learned(cvs={KEY: 0.7}, startups_s={KEY: 33.0}, session_slots={KEY: 12})

    def filled(self, placement: PlacementSpec) -> PlacementSpec:
        state = a_state(a_spec(a_stage("asr", placement)), memory=PipelineMemory(learned=self.LEARNED))
        (pipeline,) = with_learned_numbers(a_snapshot(state)).pipelines
        (filled,) = pipeline.spec.stages[0].placements
        return filled

    def test_they_take_the_place_of_those_that_are_not_declared(self) -> None:
        found = self.filled(a_server(cv=False, startup=False))
        assert found.prior.service.cv == pytest.approx(0.7, rel=0.01)
        assert (found.prior.service.fixed_s, found.startup_s, found.prior.session_slots) == (0.01, 33.0, 12)

    def test_declared_numbers_stay(self) -> None:
        declared = replace(a_stage("asr", a_server(memory=True)).placements[0])
        assert self.filled(a_server(memory=True)) == declared

    def test_the_law_of_a_server_without_any_is_that_of_the_profile(self) -> None:
        bare = a_server(service=False)
        placeholder = replace(bare, prior=replace(bare.prior, service=ServiceLaw(fixed_s=0.05, cv=UNDECLARED_CV)))
        assert self.filled(placeholder).prior.service.cv == UNDECLARED_CV


GPU = (ASR, PoolName("gpu"))


def two_pools(*, room: float = 0.5, known: bool = True, budget: float = 100.0) -> PipelineState:
    """Eight replicas on a measured pool, none on another that declares nothing; `room` is latency over SLA."""
    nothing = Declared(service=False, cv=False, startup=False, memory=False)
    placements = [replace(a_placement(pool, service_s=0.05), declared=nothing) for pool in ("cpu", "gpu")]
    spec = a_spec(a_stage("asr", *placements), sla_s=1.0, budget=budget)
    times = BatchTimes(weight=50.0 if known else 0.5, batch=1.0, time_s=0.05)
    return replace(
        a_state(
            spec,
            demand=100.0,
            replicas={KEY: a_target(8)},
            samples={KEY: seen(arrival_rate=100.0, completion_rate=100.0, service_time=0.05, utilization=0.6)},
            memory=PipelineMemory(learned=Learned(batch_times={KEY: times}, cvs={KEY: 0.3})),
        ),
        latency_s=room,
    )


FLEET = pools(a_pool("cpu", price=1.0, instances=40), a_pool("gpu", price=1.0, instances=40))


def replicas_after(state: PipelineState) -> dict[tuple[StageName, PoolName], int]:
    (pipeline,) = decide(a_snapshot(state, fleet=FLEET), Policy()).pipelines
    return dict(pipeline.desired)


class TestProbe:
    def test_one_replica_is_started_where_nothing_was_measured(self) -> None:
        (pipeline,) = decide(a_snapshot(two_pools(), fleet=FLEET), Policy()).pipelines
        assert pipeline.desired[GPU] == 1
        assert {change.reason for change in pipeline.changes if change.pool == "gpu"} == {ChangeReason.PROBE}

    def test_it_is_not_while_the_latency_leaves_no_room(self) -> None:
        assert replicas_after(two_pools(room=0.95))[GPU] == 0

    def test_it_is_not_while_the_law_of_what_runs_is_not_known(self) -> None:
        found = replicas_after(two_pools(known=False))
        assert found[GPU] == 0
        assert found[KEY] >= 8, "what carries the load stays"

    def test_it_is_not_above_the_budget(self) -> None:
        state = two_pools()
        planned = decide(a_snapshot(state, fleet=FLEET), Policy()).pipelines[0].plan
        assert planned is not None
        assert replicas_after(two_pools(budget=planned.cost_per_hour + 0.5))[GPU] == 0

    def test_a_placement_without_numbers_is_a_fallback_where_the_measured_pool_has_too_few_instances(self) -> None:
        short = pools(a_pool("cpu", price=1.0, instances=3), a_pool("gpu", price=0.1, instances=40))
        (pipeline,) = decide(a_snapshot(two_pools(), fleet=short), Policy()).pipelines
        assert pipeline.plan is not None
        assert pipeline.plan.replicas()[GPU] > 0
        enough = pools(a_pool("cpu", price=1.0, instances=40), a_pool("gpu", price=0.1, instances=40))
        (pipeline,) = decide(a_snapshot(two_pools(), fleet=enough), Policy()).pipelines
        assert pipeline.plan is not None
        assert pipeline.plan.replicas().get(GPU, 0) == 0, "a lower price alone is no reason"
