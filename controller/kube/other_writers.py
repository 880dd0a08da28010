"""Tracks what sets the replicas of workloads: Sluice's own writes, refused writes, and other autoscalers."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from controller.core.state.snapshot import TargetMissing, TargetState
from controller.core.state.spec import PipelineSpec, PlacementKey, Target
from controller.kube.actuator import Write, WriteOutcome
from controller.kube.followers import followed
from controller.kube.gateway import AUTOSCALERS, SCALED_OBJECTS, Gateway, Json, KubeError, NotFound, Resource
from controller.kube.readable import readable
from optimizer.model import PipelineKey

AUTOSCALER_KINDS: Mapping[Resource, str] = {AUTOSCALERS: "HorizontalPodAutoscaler", SCALED_OBJECTS: "ScaledObject"}

_LOG = logging.getLogger(__name__)
_NOT_REFUSED = frozenset({WriteOutcome.NOT_FOUND, WriteOutcome.NOT_LEADING, WriteOutcome.SKIPPED})
"""Failures that `refused` leaves out because they are reported elsewhere: a missing target, another leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Autoscaler:
    """An autoscaler as `Kind/name`, what shows what it follows, and the ScaledObject that it was made for, if any."""

    name: str
    item: Json
    made_for: str | None

    def follows(self, spec: PipelineSpec, key: PlacementKey) -> bool:
        """Return whether it sets the replicas that Sluice recommends for the placement `key`."""
        found = next(iter(readable(self.name.partition("/")[0], [self.item], followed)), None)
        return found is not None and found.is_of(spec, key)


class Ownership:
    """Knows the outcomes of Sluice's writes in earlier cycles, and the other autoscalers of the cluster."""

    def __init__(self, gateway: Gateway, namespaces: tuple[str, ...] = ()) -> None:
        """Look for other autoscalers in `namespaces`, or in all if that is empty."""
        self._gateway = gateway
        self._scopes = namespaces or (None,)
        self._written: dict[tuple[PipelineKey, PlacementKey], int] = {}
        self._refused: dict[tuple[PipelineKey, PlacementKey], str] = {}
        self._autoscalers: dict[Resource, Mapping[tuple[str, Target], _Autoscaler]] = {}
        self._problems: dict[Resource, str] = {}

    def refresh(self) -> None:
        """List HorizontalPodAutoscalers and ScaledObjects; a kind that cannot be listed keeps the last known ones."""
        for resource, kind in AUTOSCALER_KINDS.items():
            try:
                items = [item for scope in self._scopes for item in self._gateway.list_all(resource, scope).items]
                found = readable(kind, items, partial(_targeted, kind))
                self._autoscalers[resource] = dict(found)
                self._problems.pop(resource, None)
            except NotFound:  # the kind is not installed
                self._autoscalers[resource] = {}
            except KubeError as error:
                if self._problems.get(resource) != str(error):
                    _LOG.warning("cannot list %s; conflicts with new ones are not detected: %s", resource.plural, error)
                self._problems[resource] = str(error)

    def wrote(self, writes: Iterable[Write]) -> None:
        """Keep the outcomes of this cycle's `writes` for the next cycle."""
        self._refused.clear()
        for write in writes:
            key = write.pipeline, (write.change.stage, write.change.pool)
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
        return {key: each.name for key, each in self._on(spec) if not each.follows(spec, key)}

    def followers(self, spec: PipelineSpec) -> Mapping[PlacementKey, str]:
        """Return, by placement, the autoscalers that set the replicas which Sluice recommends, as `Kind/name`."""
        return {key: each.name for key, each in self._on(spec) if each.follows(spec, key)}

    def _on(self, spec: PipelineSpec) -> Iterator[tuple[PlacementKey, _Autoscaler]]:
        """Yield the autoscalers of the pipeline's own placements, without those that KEDA made for a ScaledObject."""
        for key, placement in spec.placements().items():
            if key[0] in spec.borrowed:
                continue
            at = spec.namespace, placement.target
            found = [by_target[at] for by_target in self._autoscalers.values() if at in by_target]
            names = {each.name for each in found}
            yield from ((key, each) for each in found if each.made_for not in names)


def _targeted(kind: str, item: Json) -> tuple[tuple[str, Target], _Autoscaler]:
    """Return the workload that an autoscaler scales, and the autoscaler; what it follows is read when that matters."""
    owners = item["metadata"].get("ownerReferences") or ()
    made_for = next((f"ScaledObject/{owner['name']}" for owner in owners if owner.get("kind") == "ScaledObject"), None)
    spec = item.get("spec") or {}
    kept = {"spec": {part: spec[part] for part in ("triggers", "metrics") if part in spec}}
    name = f"{kind}/{item['metadata']['name']}"
    return scaled_target(item), _Autoscaler(name=name, item=kept, made_for=made_for)


def scaled_target(autoscaler: Json) -> tuple[str, Target]:
    """Return the namespace and the target of an autoscaler; KEDA's default kind of a target is Deployment."""
    target = autoscaler.get("spec", {}).get("scaleTargetRef", {})
    scaled = Target(
        api_version=target.get("apiVersion") or "apps/v1",
        kind=target.get("kind") or "Deployment",
        name=target.get("name", ""),
    )
    return autoscaler["metadata"]["namespace"], scaled
