"""A stage of which not enough is known keeps its replicas, and doubles them while it refuses; learned numbers count."""

from dataclasses import replace

import pytest
from builders import NOW_S, a_placement, a_snapshot, a_spec, a_stage, a_state, a_target, default_pools, seen

from controller.core.assess.assessment import Assessment, assess
from controller.core.assess.availability import find_availability
from controller.core.assess.learning import with_learned_numbers
from controller.core.cycle import decide
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState
from controller.core.state.spec import UNDECLARED_CV, Declared, DemandUnit, PipelineSpec, PlacementSpec
from optimizer.model import PoolName, Routing, ServiceLaw, StageName
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
