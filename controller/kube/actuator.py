"""Makes the replica changes that were decided, in the order decided. It chooses nothing and retries nothing later."""

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
    """What became of a change. The values are reasons of Events."""

    APPLIED = "Scaled"
    CONFLICT = "ScaleConflict"
    """Somebody else changed the replicas since they were read; the next cycle decides on what it finds."""
    NOT_FOUND = "ScaleTargetGone"
    FORBIDDEN = "ScaleForbidden"
    INVALID = "ScaleRejected"
    UNAVAILABLE = "ScaleUnavailable"
    NOT_LEADING = "ScaleNotLeading"
    """Not tried, because another replica may be the one that writes by now."""
    SKIPPED = "ScaleSkipped"
    """Not tried, because of what became of the change before: the API server did not answer, or this replica may not
    write."""


_ENDING = frozenset({WriteOutcome.UNAVAILABLE, WriteOutcome.NOT_LEADING, WriteOutcome.SKIPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A change and what became of it, in the server's words where it refused."""

    pipeline: PipelineKey
    change: ReplicaChange
    outcome: WriteOutcome
    detail: str = ""


class Actuator:
    """Writes replicas through the scale subresource."""

    def __init__(self, gateway: Gateway, *, written: Callable[[str, Target, Scale], None] = lambda *_: None) -> None:
        """`written` is told the namespace, the target and the scale that a write has led to."""
        self._gateway = gateway
        self._written = written

    def apply(self, pipelines: Iterable[PipelineDecision]) -> tuple[Write, ...]:
        """Make the changes of all pipelines; what adds replicas comes first.

        A change that fails stops no other, except that nothing more is tried once the server does not answer, or this
        replica is not surely the one that may write.
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
            _LOG.warning("%s: %s was not scaled %d -> %d: %s", key, change.target, change.before, change.after, error)
            return Write(pipeline=key, change=change, outcome=outcome, detail=str(error))
        return Write(pipeline=key, change=change, outcome=WriteOutcome.APPLIED)

    def _scale(self, namespace: str, change: ReplicaChange) -> None:
        """Scale once; try again only where nothing that the decision rests on has changed."""
        self._mark(namespace, change)
        try:
            scale = self._gateway.patch_scale(namespace, change.target, change.after, change.resource_version)
        except Conflict:
            # A workload's version also moves with its status, which it does all the time while pods start.
            now = self._gateway.read_scale(namespace, change.target)
            if now.replicas != change.before:
                raise Conflict(f"{change.target} was set to {now.replicas} replicas by somebody else") from None
            scale = self._gateway.patch_scale(namespace, change.target, change.after, now.resource_version)
        self._written(namespace, change.target, scale)

    def _mark(self, namespace: str, change: ReplicaChange) -> None:
        """Say which pods are to go first; where that is refused, others go, which is no reason to keep them all."""
        for pod, cost in change.deletion_costs.items():
            try:
                self._gateway.patch(PODS, namespace, pod, {"metadata": {"annotations": {DELETION_COST: str(cost)}}})
            except Unavailable:
                raise
            except KubeError as error:
                _LOG.warning("pod %s of %s cannot be told when to go: %s", pod, change.target, error)


_OUTCOMES: dict[type[KubeError], WriteOutcome] = {
    Conflict: WriteOutcome.CONFLICT,
    NotFound: WriteOutcome.NOT_FOUND,
    Forbidden: WriteOutcome.FORBIDDEN,
    Invalid: WriteOutcome.INVALID,
    Unavailable: WriteOutcome.UNAVAILABLE,
    NotLeading: WriteOutcome.NOT_LEADING,
}
