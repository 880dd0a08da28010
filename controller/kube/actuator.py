"""Writes the decided replica changes to the API server. The next cycle decides anew about a change that failed."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from controller.core.state.decision import PipelineDecision, ReplicaChange
from controller.core.state.spec import Target
from controller.kube.gateway import (
    PODS,
    Conflict,
    Forbidden,
    Gateway,
    Invalid,
    KubeError,
    NotFound,
    NotLeading,
    Scale,
    Unavailable,
)
from controller.kube.workloads import DELETION_COST
from optimizer.model import PipelineKey

_LOG = logging.getLogger(__name__)


class WriteOutcome(Enum):
    """The outcome of a change. The values are reasons of Events, which docs/reasons.md explains."""

    APPLIED = "Scaled"
    CONFLICT = "ScaleConflict"
    NOT_FOUND = "ScaleTargetGone"
    FORBIDDEN = "ScaleForbidden"
    INVALID = "ScaleRejected"
    UNAVAILABLE = "ScaleUnavailable"
    NOT_LEADING = "ScaleNotLeading"
    SKIPPED = "ScaleSkipped"


_ENDING = frozenset({WriteOutcome.UNAVAILABLE, WriteOutcome.NOT_LEADING, WriteOutcome.SKIPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A replica change and its outcome; `detail` is the error's message where the change failed."""

    pipeline: PipelineKey
    change: ReplicaChange
    outcome: WriteOutcome
    detail: str = ""


class Actuator:
    """Writes the replica counts of workloads through the scale subresource."""

    def __init__(self, gateway: Gateway, *, written: Callable[[str, Target, Scale], None] = lambda *_: None) -> None:
        """`written` is called after each write with the namespace, the target and the resulting scale."""
        self._gateway = gateway
        self._written = written

    def apply(self, pipelines: Iterable[PipelineDecision]) -> tuple[Write, ...]:
        """Write the changes of all pipelines and return their outcomes in the order of writing.

        Changes that remove replicas come last. A failed change does not stop the others, unless the server did not
        answer or this replica of the operator may not write.
        """
        ordered = [(decision.spec, change) for decision in pipelines for change in decision.changes]
        ordered.sort(key=lambda item: item[1].after < item[1].before)  # stable: the decision's order within each half
        writes: list[Write] = []
        for spec, change in ordered:
            if writes and writes[-1].outcome in _ENDING:
                writes.append(
                    Write(pipeline=spec.key, change=change, outcome=WriteOutcome.SKIPPED, detail=writes[-1].detail)
                )
            else:
                writes.append(self._write(spec.namespace, spec.key, change))
        return tuple(writes)

    def _write(self, namespace: str, key: PipelineKey, change: ReplicaChange) -> Write:
        try:
            self._scale(namespace, change)
        except KubeError as error:
            outcome = _OUTCOMES[type(error)]
            _LOG.warning(
                "%s: scaling %s from %d to %d failed: %s", key, change.target, change.before, change.after, error
            )
            return Write(pipeline=key, change=change, outcome=outcome, detail=str(error))
        return Write(pipeline=key, change=change, outcome=WriteOutcome.APPLIED)

    def _scale(self, namespace: str, change: ReplicaChange) -> None:
        """Scale once; after a conflict, scale again only if the number of replicas is as it was when decided."""
        self._set_deletion_costs(namespace, change)
        try:
            scale = self._gateway.patch_scale(namespace, change.target, change.after, change.resource_version)
        except Conflict:
            # Changes of the workload's status cause conflicts too, and are frequent while pods start.
            now = self._gateway.read_scale(namespace, change.target)
            if now.replicas != change.before:
                raise Conflict(f"{change.target} was set to {now.replicas} replicas by another client") from None
            scale = self._gateway.patch_scale(namespace, change.target, change.after, now.resource_version)
        self._written(namespace, change.target, scale)

    def _set_deletion_costs(self, namespace: str, change: ReplicaChange) -> None:
        """Set which pods to delete first. If the server refuses that, scale anyway; other pods may be deleted."""
        for pod, cost in change.deletion_costs.items():
            try:
                self._gateway.patch(PODS, namespace, pod, {"metadata": {"annotations": {DELETION_COST: str(cost)}}})
            except Unavailable:
                raise
            except KubeError as error:
                _LOG.warning("setting the deletion cost of pod %s of %s failed: %s", pod, change.target, error)


_OUTCOMES: dict[type[KubeError], WriteOutcome] = {
    Conflict: WriteOutcome.CONFLICT,
    NotFound: WriteOutcome.NOT_FOUND,
    Forbidden: WriteOutcome.FORBIDDEN,
    Invalid: WriteOutcome.INVALID,
    Unavailable: WriteOutcome.UNAVAILABLE,
    NotLeading: WriteOutcome.NOT_LEADING,
}
