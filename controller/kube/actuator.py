"""Writes the decided replica changes to the API server. The next cycle decides anew about a change that failed.

A change that fails does not stop the others. Only a server that does not answer, or a lost lease, ends the writing of a
cycle. A webhook that hangs looks like such a server, so what failed is written last in the next cycle.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from controller.core.state.decision import PipelineDecision, ReplicaChange
from controller.core.state.spec import Target
from controller.kube.auto_scaling import GroupActuator
from controller.kube.batching import BatchingConfigs, BatchWritten
from controller.kube.gateway import (
    PODS,
    Conflict,
    Failed,
    Forbidden,
    Gateway,
    HeldBack,
    Hung,
    Invalid,
    KubeError,
    NotFound,
    NotLeading,
    Scale,
    Silent,
    Unavailable,
)
from controller.kube.matching import SESSIONS_LABEL
from controller.kube.ray_serve import ServeActuator
from controller.kube.workloads import CLOSED, DELETION_COST, OPEN
from optimizer.model import PipelineKey

_LOG = logging.getLogger(__name__)

_MOST_HUNG = 3
"""Changes without an answer in one cycle, each of which takes as long as the time limit."""


class WriteOutcome(Enum):
    """The outcome of a change. The values are reasons of Events, which docs/reasons.md explains."""

    APPLIED = "Scaled"
    CONFLICT = "ScaleConflict"
    NOT_FOUND = "ScaleTargetGone"
    FORBIDDEN = "ScaleForbidden"
    INVALID = "ScaleRejected"
    FAILED = "ScaleFailed"
    UNAVAILABLE = "ScaleUnavailable"
    NOT_LEADING = "ScaleNotLeading"
    SKIPPED = "ScaleSkipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A replica change and its outcome; `detail` is the error's message where the change failed."""

    pipeline: PipelineKey
    change: ReplicaChange
    outcome: WriteOutcome
    detail: str = ""


class Actuator:
    """Writes the replica counts of workloads through the scale subresource."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        written: Callable[[str, Target, Scale], None] = lambda *_: None,
        groups: GroupActuator | None = None,
        serve: ServeActuator | None = None,
        batching: BatchingConfigs | None = None,
    ) -> None:
        """`written` is called after each write with the namespace, the target and the resulting scale.

        `groups` scales Auto Scaling groups, `serve` deployments of Ray Serve. `batching` writes batch settings.
        """
        self._gateway = gateway
        self._groups = groups
        self._serve = serve
        self._batching = batching
        self._written = written
        self._turn = 0
        self._failed: dict[tuple[PipelineKey, Target], int] = {}
        """The changes that failed when they were last tried, with the turn in which that was."""
        self._unmarked: set[str] = set()
        """The namespaces in which a label or an annotation of a pod got no answer in this turn."""

    def apply(self, pipelines: Iterable[PipelineDecision]) -> tuple[Write, ...]:
        """Write the changes of all pipelines and return their outcomes in the order of writing.

        Which pods get new sessions is written first: those that are opened serve at once.
        Changes that add replicas come before those that remove some. After both come the changes that failed when they
        were last tried, the latest failure last. A failed change does not stop the others, unless the server did not
        answer or this replica of the operator may not write. After one without an answer no other of its namespace is
        tried, since a webhook that hangs is likely for all of them, and after `_MOST_HUNG` none at all.
        """
        pipelines = tuple(pipelines)
        ordered = [(decision.spec, change) for decision in pipelines for change in decision.changes]
        changed = {(spec.key, change.target) for spec, change in ordered}
        self._failed = {key: turn for key, turn in self._failed.items() if key in changed}
        # Stable: otherwise in the order of the decision.
        ordered.sort(
            key=lambda item: (self._failed.get((item[0].key, item[1].target), 0), item[1].after < item[1].before)
        )
        self._turn += 1
        self._unmarked.clear()
        for decision in pipelines:
            for pod, takes in decision.takes_sessions.items():
                self._mark(decision.spec.namespace, pod, "labels", {SESSIONS_LABEL: OPEN if takes else CLOSED})
        writes: list[Write] = []
        ended: KubeError | None = None
        hung: dict[str, KubeError] = {}
        for spec, change in ordered:
            if (why := ended or hung.get(spec.namespace)) is not None:
                writes.append(Write(pipeline=spec.key, change=change, outcome=WriteOutcome.SKIPPED, detail=str(why)))
                if ended is None:  # those of other namespaces come first next time
                    self._failed[spec.key, change.target] = self._turn
                continue
            error = self._try(spec.namespace, spec.key, change)
            outcome, detail = (WriteOutcome.APPLIED, "") if error is None else (_outcome(error), str(error))
            writes.append(Write(pipeline=spec.key, change=change, outcome=outcome, detail=detail))
            if isinstance(error, Hung):
                hung[spec.namespace] = error
            if isinstance(error, Silent | NotLeading) or len(hung) >= _MOST_HUNG:
                ended = error
        return tuple(writes)

    def write_settings(self, pipelines: Iterable[PipelineDecision]) -> tuple[BatchWritten, ...]:
        """Write the batch settings that were decided for servers, and return them with their outcomes."""
        return () if self._batching is None else self._batching.apply(pipelines)

    def _try(self, namespace: str, key: PipelineKey, change: ReplicaChange) -> KubeError | None:
        """Make a change; return why it failed, None if it did not."""
        try:
            self._scale(namespace, change)
        except HeldBack as error:  # it was not tried, and there may be many
            return error
        except KubeError as error:
            _LOG.warning(
                "%s: scaling %s from %d to %d failed: %s", key, change.target, change.before, change.after, error
            )
            self._failed[key, change.target] = self._turn
            return error
        self._failed.pop((key, change.target), None)
        return None

    def _scale(self, namespace: str, change: ReplicaChange) -> None:
        """Scale once; after a conflict, scale again only if the number of replicas is as it was when decided."""
        if change.target.is_group:
            if self._groups is None:
                raise Failed(f"{change.target}: this operator does not scale Auto Scaling groups")
            self._groups.scale(change)
            return
        if change.target.serve is not None:
            if self._serve is None:
                raise Failed(f"{change.target}: this operator does not scale deployments of Ray Serve")
            self._serve.scale(namespace, change)
            return
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
        """Set which pods to delete first. If that fails for a pod, scale anyway; other pods may be deleted."""
        for pod, cost in change.deletion_costs.items():
            error = self._mark(namespace, pod, "annotations", {DELETION_COST: str(cost)})
            if isinstance(error, Unavailable):
                raise error

    def _mark(self, namespace: str, pod: str, kind: str, values: Mapping[str, str]) -> KubeError | None:
        """Set labels or annotations of a pod; return why that failed.

        After one without an answer none is set in this namespace in this turn, after `_MOST_HUNG` in no other either:
        each takes as long as the time limit.
        """
        if namespace in self._unmarked or len(self._unmarked) >= _MOST_HUNG:
            return None
        try:
            self._gateway.patch(PODS, namespace, pod, {"metadata": {kind: dict(values)}})
        except KubeError as error:
            _LOG.warning("setting %s of pod %s/%s failed: %s", ", ".join(values), namespace, pod, error)
            if isinstance(error, Hung):
                self._unmarked.add(namespace)
            return error
        return None


_OUTCOMES: tuple[tuple[type[KubeError], WriteOutcome], ...] = (
    (Conflict, WriteOutcome.CONFLICT),
    (NotFound, WriteOutcome.NOT_FOUND),
    (Forbidden, WriteOutcome.FORBIDDEN),
    (Invalid, WriteOutcome.INVALID),
    (NotLeading, WriteOutcome.NOT_LEADING),
    (HeldBack, WriteOutcome.SKIPPED),
    (Unavailable, WriteOutcome.UNAVAILABLE),
    (Failed, WriteOutcome.FAILED),
)
"""The outcome for the first class that an error is of."""


def _outcome(error: KubeError) -> WriteOutcome:
    return next(outcome for kind, outcome in _OUTCOMES if isinstance(error, kind))
