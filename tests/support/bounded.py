"""Assessments with their bounds, as a cycle makes them before it plans."""

from builders import a_snapshot

from controller.core.assess.assessment import Assessment, assess, observed_uses
from controller.core.assess.shared import with_shared_stages
from controller.core.bounds.availability import find_availability
from controller.core.bounds.elastic_pools import launches_s
from controller.core.bounds.stated import with_bounds
from controller.core.state.bound import Mechanism
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, Snapshot
from optimizer.model import PipelineKey, PlacementKey, StageName


def all_bounded(snapshot: Snapshot, policy: Policy | None = None) -> dict[PipelineKey, Assessment]:
    policy, launches, shared = policy or Policy(), launches_s(snapshot), observed_uses(snapshot)
    assessments = with_shared_stages(
        [assess(state, snapshot, policy, launches_s=launches, shared=shared) for state in snapshot.pipelines]
    )
    return {each.key: each for each in with_bounds(assessments, snapshot, find_availability(snapshot), policy)}


def bounded(state: PipelineState, snapshot: Snapshot | None = None) -> Assessment:
    return all_bounded(snapshot or a_snapshot(state))[state.spec.key]


def floors_of(assessment: Assessment, mechanism: Mechanism) -> dict[StageName, int | None]:
    return {bound.stage: bound.least for bound in assessment.bounds.of(mechanism)}


def most_of(assessment: Assessment, mechanism: Mechanism) -> dict[PlacementKey, int | None]:
    return {bound.key: bound.most for bound in assessment.bounds.of(mechanism) if bound.key is not None}
