"""Tracks what changes workloads: Sluice's own writes, refused writes, and the autoscalers of others."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from controller.core.state.snapshot import TargetMissing, TargetState
from controller.core.state.spec import PipelineSpec, Target
from controller.kube.actuator import Write, WriteOutcome
from controller.kube.followers import Followed, followed
from controller.kube.gateway import (
    AUTOSCALERS,
    SCALED_OBJECTS,
    VERTICAL_AUTOSCALERS,
    Json,
    KubeError,
    NotFound,
    Resource,
)
from controller.kube.readable import readable
from optimizer.model import PipelineKey, PlacementKey

_LOG = logging.getLogger(__name__)
_NOT_REFUSED = frozenset({WriteOutcome.NOT_FOUND, WriteOutcome.NOT_LEADING, WriteOutcome.SKIPPED})
"""Failures that `refused` leaves out because they are reported elsewhere: a missing target, another leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherWriter:
    """An object of another controller as `Kind/name`, and the namespace and the workload that it is about (`of`).

    `made_for` is the ScaledObject that KEDA made it for, if any; `follows` what sets the replicas, if that is Sluice's
    recommendation and nothing else.
    """

    name: str
    of: tuple[str, Target]
    made_for: str | None = None
    follows: Followed | None = None


class Ownership:
    """Knows the outcomes of Sluice's writes in earlier cycles, and what else changes workloads of the cluster."""

    def __init__(self) -> None:
        self._written: dict[tuple[PipelineKey, PlacementKey], int] = {}
        self._refused: dict[tuple[PipelineKey, PlacementKey], str] = {}
        self._others: dict[Resource, Mapping[tuple[str, Target], OtherWriter]] = {}
        self._problems: dict[Resource, str] = {}

    def refresh(self, watched: Callable[[Resource], Iterable[OtherWriter]]) -> None:
        """Take the present other writers of each kind; of a kind that is not known at present, the last known stay."""
        for resource in OTHER_WRITERS:
            try:
                self._others[resource] = {each.of: each for each in watched(resource)}
                self._problems.pop(resource, None)
            except NotFound:  # the kind is not installed
                self._others[resource] = {}
            except KubeError as error:
                if self._problems.get(resource) != str(error):
                    _LOG.warning("cannot list %s; conflicts with new ones are not detected: %s", resource.plural, error)
                self._problems[resource] = str(error)

    def wrote(self, writes: Iterable[Write]) -> None:
        """Keep the outcomes of this cycle's `writes` for the next cycle."""
        self._refused.clear()
        for write in writes:
            key = write.pipeline, (write.change.stage, write.change.placement)
            self._written.pop(key, None)
            if write.outcome is WriteOutcome.APPLIED:
                self._written[key] = write.change.after
            elif write.outcome not in _NOT_REFUSED:
                self._refused[key] = write.detail

    def written(
        self, spec: PipelineSpec, targets: Mapping[PlacementKey, TargetState | TargetMissing]
    ) -> Mapping[PlacementKey, int]:
        """Return the replicas that Sluice last wrote to each placement, as far as its last write succeeded.

        If a target desires another number, another client has changed it: the write is returned once more, and then
        forgotten.
        """
        last: dict[PlacementKey, int] = {}
        for key, target in targets.items():
            written = self._written.get((spec.key, key))
            if written is not None and isinstance(target, TargetState):
                last[key] = written
                if target.desired != written:
                    del self._written[spec.key, key]
        return last

    def refused(self, spec: PipelineSpec) -> Mapping[PlacementKey, str]:
        """Return, by placement, the errors of the pipeline's changes that were refused or failed in the last cycle."""
        return {key: self._refused[spec.key, key] for key in spec.placement_keys() if (spec.key, key) in self._refused}

    def autoscalers(self, spec: PipelineSpec) -> Mapping[PlacementKey, str]:
        """Return, by placement, the autoscalers that scale the pipeline's workloads otherwise than by its decision.

        They are named as `Kind/name`.
        """
        return {key: each.name for key, each in self._on(spec, _OF_REPLICAS) if not _follows(each, spec, key)}

    def followers(self, spec: PipelineSpec) -> Mapping[PlacementKey, str]:
        """Return, by placement, the autoscalers that set the replicas which Sluice recommends, as `Kind/name`."""
        return {key: each.name for key, each in self._on(spec, _OF_REPLICAS) if _follows(each, spec, key)}

    def resizers(self, spec: PipelineSpec) -> Mapping[PlacementKey, str]:
        """Return, by placement, what changes the requests of the pipeline's pods, as `Kind/name`."""
        return {key: each.name for key, each in self._on(spec, (VERTICAL_AUTOSCALERS,))}

    def _on(self, spec: PipelineSpec, kinds: Iterable[Resource]) -> Iterator[tuple[PlacementKey, OtherWriter]]:
        """Yield the writers of the pipeline's own placements, without those that KEDA made for a ScaledObject."""
        known = [self._others[kind] for kind in kinds if kind in self._others]
        for key, placement in spec.placements().items():
            if key[0] in spec.borrowed:
                continue
            at = spec.namespace, placement.target
            found = [by_target[at] for by_target in known if at in by_target]
            names = {each.name for each in found}
            yield from ((key, each) for each in found if each.made_for not in names)


def _follows(writer: OtherWriter, spec: PipelineSpec, key: PlacementKey) -> bool:
    return writer.follows is not None and writer.follows.is_of(spec, key)


def kept_autoscaler(item: Json) -> OtherWriter:
    """Return what is kept of a HorizontalPodAutoscaler."""
    return _scaling("HorizontalPodAutoscaler", item)


def kept_scaled_object(item: Json) -> OtherWriter:
    """Return what is kept of a ScaledObject."""
    return _scaling("ScaledObject", item)


def kept_vertical_autoscaler(item: Json) -> OtherWriter | None:
    """Return what is kept of a VerticalPodAutoscaler, None for one that only recommends."""
    spec, metadata = item["spec"], item["metadata"]
    if (spec.get("updatePolicy") or {}).get("updateMode") == "Off":
        return None
    return OtherWriter(
        name=f"VerticalPodAutoscaler/{metadata['name']}", of=(metadata["namespace"], _target(spec.get("targetRef")))
    )


def _scaling(kind: str, item: Json) -> OtherWriter:
    owners = item["metadata"].get("ownerReferences") or ()
    made_for = next((f"ScaledObject/{owner['name']}" for owner in owners if owner.get("kind") == "ScaledObject"), None)
    name = f"{kind}/{item['metadata']['name']}"
    follows = next(iter(readable(kind, [item], followed)), None)
    return OtherWriter(name=name, of=scaled_target(item), made_for=made_for, follows=follows)


def scaled_target(autoscaler: Json) -> tuple[str, Target]:
    """Return the namespace and the target of an autoscaler; KEDA's default kind of a target is Deployment."""
    return autoscaler["metadata"]["namespace"], _target(autoscaler.get("spec", {}).get("scaleTargetRef"))


def _target(reference: Json | None) -> Target:
    named = reference or {}
    return Target(
        api_version=named.get("apiVersion") or "apps/v1",
        kind=named.get("kind") or "Deployment",
        name=named.get("name", ""),
    )


OTHER_WRITERS: Mapping[Resource, Callable[[Json], OtherWriter | None]] = {
    AUTOSCALERS: kept_autoscaler,
    SCALED_OBJECTS: kept_scaled_object,
    VERTICAL_AUTOSCALERS: kept_vertical_autoscaler,
}
"""The kinds of objects that change workloads, and what is kept of each object."""
_OF_REPLICAS = (AUTOSCALERS, SCALED_OBJECTS)
