"""Replicas that Sluice scaled count until someone sets their count, whatever became of the pipeline."""

from dataclasses import replace

import pytest
from builders import ENCODER, ENCODER_GPU, VAD, a_spec, a_target, default_stages

from controller.core.state.snapshot import TargetMissing, TargetState
from controller.core.state.spec import Mode, PipelineSpec
from controller.kube.orphans import Orphans, States
from optimizer.model import PlacementKey, PoolName

SPEC = a_spec()
RUNS: dict[PlacementKey, TargetState | TargetMissing] = {
    VAD: a_target(2),
    ENCODER: a_target(8),
    ENCODER_GPU: a_target(0),
}


def states(spec: PipelineSpec = SPEC) -> States:
    return {(spec.key, key): RUNS[key] for key in spec.placement_keys()}


def orphans_after(
    *specs: PipelineSpec, before: PipelineSpec = SPEC, now: dict[str, TargetState | TargetMissing]
) -> list[str]:
    """Return the names of the workloads that are orphans once `specs` are all there is, in the state `now`."""
    known = Orphans()
    assert known.to_read([before]) == ()
    known.remember([before], states(before))
    read = known.to_read(specs)
    found = known.settle({name: now.get(name[1].name, a_target(0)) for name in read})
    return sorted(own.target.name for each in found.values() for own in each)


ALL: dict[str, TargetState | TargetMissing] = {
    "vad-cpu": a_target(2),
    "encoder-inferentia": a_target(8),
    "encoder-gpu": a_target(0),
}


def test_a_deleted_pipeline_leaves_its_replicas_in_the_books() -> None:
    assert orphans_after(now=ALL) == ["encoder-inferentia", "vad-cpu"]


def test_so_does_a_placement_that_is_removed_or_moved_to_another_target() -> None:
    vad, encoder = default_stages()
    fewer = replace(SPEC, stages=(vad, replace(encoder, placements=encoder.placements[1:])))
    assert orphans_after(fewer, now=ALL) == ["encoder-inferentia"]


def test_under_another_name_the_workload_has_an_owner_again() -> None:
    assert orphans_after(replace(a_spec(name="renamed"), stages=SPEC.stages), now=ALL) == []


@pytest.mark.parametrize("count", [0, 3, 9])
def test_once_someone_set_another_count_it_is_theirs(count: int) -> None:
    assert orphans_after(now={**ALL, "encoder-inferentia": a_target(count)}) == ["vad-cpu"]


def test_a_workload_that_is_gone_costs_nothing_and_one_that_cannot_be_read_stays() -> None:
    gone, unread = TargetMissing(reason="not found"), TargetMissing(reason="403", unreadable=True)
    assert orphans_after(now={**ALL, "encoder-inferentia": gone, "vad-cpu": unread}) == ["vad-cpu"]


def test_what_sluice_never_scaled_is_none() -> None:
    assert orphans_after(before=replace(SPEC, mode=Mode.RECOMMEND), now=ALL) == []


def test_a_mode_that_changes_before_the_deletion_changes_nothing() -> None:
    known, paused = Orphans(), replace(SPEC, mode=Mode.PAUSED)
    known.remember([SPEC], states())
    known.to_read([paused])
    known.remember([paused], states(paused))
    assert {target.name for _, target in known.to_read([])} == {"vad-cpu", "encoder-inferentia", "encoder-gpu"}


def test_a_restart_reads_them_from_the_status_and_no_shape_of_it_raises() -> None:
    known = Orphans()
    own = {"namespace": "speech", "apiVersion": "apps/v1", "kind": "Deployment", "name": "asr", "pipeline": "speech/a"}
    written = {**own, "replicas": 8, "perInstance": 2}
    known.restore({PoolName("gpu"): {"orphans": [written, {**own, "replicas": "x"}, 7, None]}})
    ((name),) = known.to_read([])
    (orphan,) = known.settle({name: a_target(8)})[PoolName("gpu")]
    assert (orphan.target.name, orphan.replicas, orphan.per_instance, orphan.placed) == ("asr", 8, 2, 8)
