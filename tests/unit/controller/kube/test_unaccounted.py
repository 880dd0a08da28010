"""What runs unseen stays in the books, as it was last."""

from collections import Counter
from dataclasses import replace

from builders import ENCODER, VAD, a_placement, a_spec, a_stage, a_target

from controller.core.state.snapshot import TargetMissing, TargetState
from controller.core.state.spec import PipelineSpec
from controller.kube.unaccounted import Counted, Targets, UnaccountedReplicas
from optimizer.model import PlacementKey

SPEC = a_spec(a_stage("vad", a_placement("cpu", per_instance=4)), a_stage("encoder", a_placement("inferentia")))
UNREADABLE = TargetMissing(reason="403 Forbidden", unreadable=True)
GONE = TargetMissing(reason="not found")


def targets(replicas: dict[PlacementKey, TargetState | TargetMissing], *specs: PipelineSpec) -> Targets:
    return {(spec.key, key): target for spec in specs or (SPEC,) for key, target in replicas.items()}


def seen(unaccounted: UnaccountedReplicas) -> None:
    unaccounted.valid_before([SPEC], [])
    found = unaccounted.count([SPEC], [], targets({VAD: a_target(6), ENCODER: a_target(3, existing=2, terminating=1)}))
    assert found == {}


def test_a_workload_that_cannot_be_read_counts_as_it_was_for_as_long_as_that_lasts() -> None:
    unaccounted = UnaccountedReplicas()
    seen(unaccounted)
    for _ in range(2):
        assert unaccounted.count([SPEC], [], targets({VAD: UNREADABLE, ENCODER: UNREADABLE})) == {
            "cpu": Counted(placed=Counter({4: 6})),
            "inferentia": Counted(placed=Counter({1: 3})),
        }
    assert unaccounted.count([SPEC], [], targets({VAD: a_target(5), ENCODER: UNREADABLE})) == {
        "inferentia": Counted(placed=Counter({1: 3}))
    }


def test_what_is_gone_or_was_never_seen_does_not_count() -> None:
    unaccounted = UnaccountedReplicas()
    assert unaccounted.count([SPEC], [], targets({VAD: UNREADABLE, ENCODER: UNREADABLE})) == {}
    seen(unaccounted)
    assert unaccounted.count([SPEC], [], targets({VAD: GONE, ENCODER: GONE})) == {}
    assert unaccounted.count([SPEC], [], targets({VAD: UNREADABLE, ENCODER: UNREADABLE})) == {}


def test_a_pipeline_that_was_made_invalid_counts_by_what_it_asked_for_before() -> None:
    unaccounted = UnaccountedReplicas()
    seen(unaccounted)
    (before,) = unaccounted.valid_before([], [SPEC.uid, "never valid"])
    assert before == SPEC
    assert unaccounted.count([], [before], targets({VAD: a_target(7), ENCODER: UNREADABLE})) == {
        "cpu": Counted(placed=Counter({4: 7})),
        "inferentia": Counted(placed=Counter({1: 3})),
    }
    assert unaccounted.valid_before([], []) == (), "a pipeline that is deleted is forgotten"
    assert unaccounted.valid_before([], [SPEC.uid]) == ()


def test_a_workload_of_another_pipeline_counts_there_alone() -> None:
    copy = a_spec(*SPEC.stages, name="copy")
    unaccounted = UnaccountedReplicas()
    read: dict[PlacementKey, TargetState | TargetMissing] = {VAD: a_target(6), ENCODER: a_target(3)}
    lost: dict[PlacementKey, TargetState | TargetMissing] = {VAD: UNREADABLE, ENCODER: UNREADABLE}
    for own, counted in (
        (read, {}),
        (lost, {"cpu": Counted(placed=Counter({4: 6})), "inferentia": Counted(placed=Counter({1: 3}))}),
    ):
        shared = {key: replace(target, owner=SPEC.key) for key, target in own.items()}
        assert unaccounted.count([SPEC, copy], [], {**targets(own), **targets(shared, copy)}) == counted
