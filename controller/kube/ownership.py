"""Who sets the replicas of a workload: what was written last, what the server did not take, and other autoscalers."""

import logging
from collections.abc import Iterable, Mapping

from controller.core.state.snapshot import TargetMissing, TargetState
from controller.core.state.spec import PipelineSpec, PlacementKey, Target
from controller.kube.actuator import Write, WriteOutcome
from controller.kube.gateway import AUTOSCALERS, SCALED_OBJECTS, Gateway, Json, KubeError, NotFound, Resource
from optimizer.model import PipelineKey

_KINDS: Mapping[Resource, str] = {AUTOSCALERS: "HorizontalPodAutoscaler", SCALED_OBJECTS: "ScaledObject"}

_LOG = logging.getLogger(__name__)
_NOT_TOLD = frozenset({WriteOutcome.NOT_FOUND, WriteOutcome.NOT_LEADING, WriteOutcome.SKIPPED})
"""Outcomes that are not about the change: the target is told to be missing, the server to be away, or another leads."""


class Ownership:
    """What the cycles before have written, and who else was found to scale."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._written: dict[tuple[PipelineKey, PlacementKey], int] = {}
        self._refused: dict[tuple[PipelineKey, PlacementKey], str] = {}
        self._rivals: dict[Resource, Mapping[tuple[str, Target], str]] = {}
        self._problems: dict[Resource, str] = {}

    def refresh(self) -> None:
        """Read which workloads other autoscalers have as their target; those known stay where they cannot be read."""
        for resource, kind in _KINDS.items():
            try:
                items = self._gateway.list_all(resource).items
                self._rivals[resource] = {_target(item): f"{kind}/{item['metadata']['name']}" for item in items}
                self._problems.pop(resource, None)
            except NotFound:  # nobody has installed them
                self._rivals[resource] = {}
            except KubeError as error:
                if self._problems.get(resource) != str(error):
                    _LOG.warning("%s cannot be read, so a conflict with one shows later: %s", resource.plural, error)
                self._problems[resource] = str(error)

    def wrote(self, writes: Iterable[Write]) -> None:
        """Keep what became of this cycle's changes for the next one."""
        self._refused.clear()
        for write in writes:
            key = write.pipeline, (write.change.stage, write.change.pool)
            self._written.pop(key, None)
            if write.outcome is WriteOutcome.APPLIED:
                self._written[key] = write.change.after
            elif write.outcome not in _NOT_TOLD:
                self._refused[key] = write.detail

    def written(
        self, spec: PipelineSpec, targets: Mapping[PlacementKey, TargetState | TargetMissing]
    ) -> Mapping[PlacementKey, int]:
        """Return what was written last to each placement; what is found to be changed is told this once."""
        found: dict[PlacementKey, int] = {}
        for key, target in targets.items():
            written = self._written.get((spec.key, key))
            if written is not None and isinstance(target, TargetState):
                found[key] = written
                if target.desired != written:
                    del self._written[spec.key, key]
        return found

    def refused(self, spec: PipelineSpec) -> Mapping[PlacementKey, str]:
        """Return the changes that the server did not take in the cycle before, in its words."""
        return {key: self._refused[spec.key, key] for key in spec.placement_keys() if (spec.key, key) in self._refused}

    def autoscalers(self, spec: PipelineSpec) -> Mapping[PlacementKey, str]:
        """Return the other autoscalers of the pipeline's workloads, by kind and name."""
        return {
            (stage.name, placement.pool): found[spec.namespace, placement.target]
            for found in self._rivals.values()
            for stage in spec.stages
            for placement in stage.placements
            if (spec.namespace, placement.target) in found
        }


def _target(autoscaler: Json) -> tuple[str, Target]:
    """Return namespace and target of an autoscaler; KEDA's targets are Deployments by default."""
    target = autoscaler.get("spec", {}).get("scaleTargetRef", {})
    scaled = Target(
        api_version=target.get("apiVersion") or "apps/v1",
        kind=target.get("kind") or "Deployment",
        name=target.get("name", ""),
    )
    return autoscaler["metadata"]["namespace"], scaled
