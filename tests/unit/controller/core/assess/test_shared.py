from dataclasses import replace

import pytest
from bounded import all_bounded
from builders import seen
from sharing import ASR, BORROWER, ENCODER, OWNER, SHARED, borrowing, of, owning, the_world

from controller.core.assess.assessment import Assessment, assess, observed_uses
from controller.core.assess.optimizer_input import optimizer_pipeline
from controller.core.assess.shared import linked, planned_with, with_shared_stages
from controller.core.cycle import decide
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot
from optimizer.model import Pipeline, PipelineKey, Sharing
from profiler.samples import Absence, AbsenceReason


def pipelines(*demands: float) -> dict[PipelineKey, Pipeline]:
    specs = owning(), borrowing()
    made = {spec.key: optimizer_pipeline(spec, load) for spec, load in zip(specs, demands, strict=True)}
    return dict(linked(made, specs))


def sharing_of(pipeline: Pipeline) -> Sharing:
    (found,) = (stage.sharing for stage in pipeline.stages if stage.sharing is not None)
    return found


def assessed(snapshot: Snapshot) -> dict[PipelineKey, Assessment]:
    shared = observed_uses(snapshot)
    found = [assess(state, snapshot, Policy(), shared=shared) for state in snapshot.pipelines]
    return {assessment.key: assessment for assessment in with_shared_stages(found)}


def test_each_user_sees_the_load_of_the_other_and_pays_for_its_items() -> None:
    found = pipelines(10.0, 30.0)
    owner, borrower = sharing_of(found[OWNER]), sharing_of(found[BORROWER])
    assert (owner.other_rps, owner.cost_share, owner.borrowed) == (30, 0.25, False)
    assert (borrower.other_rps, borrower.cost_share, borrower.borrowed) == (10, 0.75, True)


def test_without_any_load_the_cost_is_split_equally() -> None:
    assert [sharing_of(own).cost_share for own in pipelines(0.0, 0.0).values()] == [0.5, 0.5]


def test_what_is_measured_of_a_shared_stage_is_learned_by_its_owner_alone() -> None:
    slow = seen(arrival_rate=20.0, completion_rate=20.0, service_time=0.08, batch_size=1.0)
    snapshot = the_world(demands=(10.0, 10.0), samples={ENCODER: slow})
    decision = decide(snapshot, Policy())
    assert of(decision, OWNER).memory.learned.service_factors[ENCODER] == pytest.approx(1.6)
    assert ASR not in of(decision, BORROWER).memory.learned.service_factors
    read = next(stage for stage in of(decision, BORROWER).profile.stages if stage.name == "asr")
    assert read.placements[0].service_factor == pytest.approx(1.6)


def test_the_pass_ratio_of_a_shared_stage_is_the_declared_one() -> None:
    busy = seen(arrival_rate=80.0, completion_rate=80.0)
    snapshot = the_world(demands=(40.0, 40.0), samples={ENCODER: busy})
    for state, name in zip(snapshot.pipelines, ("encoder", "asr"), strict=True):
        profile = next(own for own in of(decide(snapshot, Policy()), state.spec.key).profile.stages if own.name == name)
        assert profile.pass_ratio == 1
        assert isinstance(profile.pass_ratio_measured, Absence)


def test_a_missing_demand_of_another_user_keeps_the_replicas() -> None:
    missing = Absence(reason=AbsenceReason.UNAVAILABLE)
    found = assessed(the_world(demands=(10.0, missing), encoders=6))
    assert found[OWNER].missing.demands == {"encoder"}
    assert all_bounded(the_world(demands=(10.0, missing), encoders=6))[OWNER].bounds.kept == {ENCODER: 6}
    assert found[BORROWER].missing.demands == frozenset()


def test_what_does_not_belong_to_those_planned_together_is_planned_as_it_runs() -> None:
    borrower = assessed(the_world(encoders=3))[BORROWER]
    alone = planned_with(borrower.pipeline, borrower, {BORROWER})
    (placement,) = alone.stages[0].placements
    assert (placement.min_replicas, placement.max_replicas) == (3, 3)
    assert planned_with(borrower.pipeline, borrower, {OWNER, BORROWER}) == borrower.pipeline


def test_the_streams_of_all_users_are_known_or_none_is() -> None:
    snapshot = the_world()
    assert observed_uses(snapshot)[SHARED].of_others(OWNER) == 0  # requests hold no slot between items
    assert observed_uses(replace(snapshot, pipelines=snapshot.pipelines[:1])) == {}
