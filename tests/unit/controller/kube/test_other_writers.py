from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from builders import ENCODER, VAD, a_spec, a_target

from controller.core.state.decision import ChangeReason, ReplicaChange
from controller.core.state.snapshot import TargetMissing, TargetState
from controller.core.state.spec import Target
from controller.kube.actuator import Write, WriteOutcome
from controller.kube.gateway import (
    AUTOSCALERS,
    SCALED_OBJECTS,
    VERTICAL_AUTOSCALERS,
    Forbidden,
    KubeError,
    NotFound,
    Resource,
)
from controller.kube.other_writers import OTHER_WRITERS, OtherWriter, Ownership
from optimizer.model import PlacementKey

SPEC = a_spec()


@dataclass
class Lists:
    """Has what is watched; a kind that is not in it is not installed."""

    items: dict[Resource, list[dict[str, Any]]] = field(default_factory=dict)
    error: KubeError | None = None

    def watched(self, resource: Resource) -> list[OtherWriter]:
        if self.error:
            raise self.error
        if resource not in self.items:
            raise NotFound("no such kind")
        return [kept for item in self.items[resource] if (kept := OTHER_WRITERS[resource](item)) is not None]


def autoscaler(called: str, namespace: str = "speech", **target: str) -> dict[str, Any]:
    return {"metadata": {"name": called, "namespace": namespace}, "spec": {"scaleTargetRef": target}}


def a_write(after: int, outcome: WriteOutcome = WriteOutcome.APPLIED, detail: str = "") -> Write:
    change = ReplicaChange(
        stage=ENCODER[0],
        placement=ENCODER[1],
        target=Target(api_version="apps/v1", kind="Deployment", name="encoder-inferentia"),
        before=1,
        after=after,
        reason=ChangeReason.DEMAND,
        resource_version="1",
    )
    return Write(pipeline=SPEC.key, change=change, outcome=outcome, detail=detail)


def targets(encoder: int) -> Mapping[PlacementKey, TargetState | TargetMissing]:
    return {VAD: a_target(1), ENCODER: a_target(encoder)}


def test_what_was_written_is_told_until_it_is_found_to_be_changed() -> None:
    known = Ownership()
    known.wrote([a_write(5)])
    assert known.written(SPEC, targets(5)) == {ENCODER: 5}
    known.wrote([])
    assert known.written(SPEC, {ENCODER: TargetMissing(reason="gone")}) == {}
    assert known.written(SPEC, targets(2)) == {ENCODER: 5}
    assert known.written(SPEC, targets(2)) == {}


def test_what_was_not_taken_is_told_for_one_cycle_and_was_not_written() -> None:
    known = Ownership()
    known.wrote([a_write(5)])
    known.wrote([a_write(6, WriteOutcome.FORBIDDEN, "403")])
    assert known.refused(SPEC) == {ENCODER: "403"}
    assert known.written(SPEC, targets(1)) == {}
    known.wrote([])
    assert known.refused(SPEC) == {}


def test_a_workload_that_has_gone_is_no_refusal() -> None:
    known = Ownership()
    known.wrote([a_write(5, WriteOutcome.NOT_FOUND, "404")])
    assert known.refused(SPEC) == {}


def test_autoscalers_are_known_by_their_target_in_their_namespace() -> None:
    inferentia = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "encoder-inferentia"}
    items = {
        AUTOSCALERS: [
            autoscaler("other-namespace", "notes", **inferentia),
            autoscaler("other-kind", **{**inferentia, "kind": "StatefulSet"}),
            autoscaler("asr", **inferentia),
        ],
        SCALED_OBJECTS: [autoscaler("vad", name="vad-cpu")],
    }
    known = Ownership()
    known.refresh(Lists(items).watched)
    assert known.autoscalers(SPEC) == {ENCODER: "HorizontalPodAutoscaler/asr", VAD: "ScaledObject/vad"}


def test_a_scaled_object_that_follows_the_decision_is_no_other_autoscaler_nor_is_the_one_made_for_it() -> None:
    inferentia = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "encoder-inferentia"}
    theirs = autoscaler("encoder", **inferentia)
    metadata = {"pipeline": "captions", "stage": "encoder"}
    theirs["spec"]["triggers"] = [{"type": "external", "metadata": metadata}]
    made = autoscaler("keda-hpa-encoder", **inferentia)
    made["metadata"]["ownerReferences"] = [{"kind": "ScaledObject", "name": "encoder"}]
    lists = Lists({AUTOSCALERS: [made], SCALED_OBJECTS: [theirs]})
    known = Ownership()
    known.refresh(lists.watched)
    assert known.followers(SPEC) == {ENCODER: "ScaledObject/encoder"}
    assert known.autoscalers(SPEC) == {}
    metadata["pipeline"] = "notes"
    known.refresh(lists.watched)
    assert known.followers(SPEC) == {}
    assert known.autoscalers(SPEC) == {ENCODER: "ScaledObject/encoder"}
    lists.items = {AUTOSCALERS: [made]}
    known.refresh(lists.watched)
    assert known.autoscalers(SPEC) == {ENCODER: "HorizontalPodAutoscaler/keda-hpa-encoder"}


def test_autoscalers_that_cannot_be_read_for_a_moment_stay_known() -> None:
    lists = Lists({AUTOSCALERS: [autoscaler("asr", kind="Deployment", name="vad-cpu")]})
    known = Ownership()
    known.refresh(lists.watched)
    lists.error = Forbidden("403")
    known.refresh(lists.watched)
    assert known.autoscalers(SPEC) == {VAD: "HorizontalPodAutoscaler/asr"}
    lists.error, lists.items = None, {}
    known.refresh(lists.watched)
    assert known.autoscalers(SPEC) == {}


def test_what_changes_the_requests_of_pods_is_known_unless_it_only_recommends() -> None:
    def vertical(name: str, of: str, **policy: str) -> dict[str, Any]:
        reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": of}
        metadata = {"name": name, "namespace": "speech"}
        return {"metadata": metadata, "spec": {"targetRef": reference, "updatePolicy": policy}}

    known = Ownership()
    lists = {VERTICAL_AUTOSCALERS: [vertical("a", "vad-cpu", updateMode="Off"), vertical("b", "encoder-inferentia")]}
    known.refresh(Lists(lists).watched)
    assert known.resizers(SPEC) == {ENCODER: "VerticalPodAutoscaler/b"}
    assert known.autoscalers(SPEC) == {}
