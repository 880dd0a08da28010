"""The health of a pipeline and the columns of `kubectl get`."""

from enum import Enum

from controller.core.messages.backlog import finish_of_deadline, left_words
from controller.core.messages.phrases import demand_words, duration, money
from controller.core.messages.sentences import missed, observed_latency, replicas_words
from controller.core.state.decision import HoldReason, PipelineDecision
from controller.core.state.schedule import field_of
from profiler.samples import Absence


class Health(Enum):
    """The most severe problem of a pipeline, the worst first; OK without one. The values are reasons of `Ready`."""

    SLA_MISSED = HoldReason.SLA_MISSED.value
    DEADLINE_MISSED = "DeadlineMissed"
    POOL_NOT_FOUND = HoldReason.POOL_NOT_FOUND.value
    TARGET_MISSING = HoldReason.TARGET_MISSING.value
    CONFLICT = HoldReason.CONFLICT.value
    SCALE_REFUSED = HoldReason.SCALE_REFUSED.value
    METRICS_MISSING = HoldReason.METRICS_MISSING.value
    PAUSED = HoldReason.PAUSED.value
    IDLE = HoldReason.IDLE.value
    WAITING = HoldReason.WAITING.value
    OVERLOADED = "Overloaded"
    POOL_UNAVAILABLE = HoldReason.POOL_UNAVAILABLE.value
    NOT_CREATED = HoldReason.NOT_CREATED.value
    FRAGMENTED = HoldReason.FRAGMENTED.value
    CANNOT_START = HoldReason.CANNOT_START.value
    ON_TRIAL = HoldReason.ON_TRIAL.value
    INVALID_ANNOTATION = HoldReason.INVALID_ANNOTATION.value
    PINNED = HoldReason.PINNED.value
    SCALING = "Scaling"
    OK = "OK"


_NOT_READY = frozenset(
    {
        *(Health.POOL_NOT_FOUND, Health.TARGET_MISSING, Health.CONFLICT, Health.SCALE_REFUSED),
        *(Health.METRICS_MISSING, Health.OVERLOADED, Health.DEADLINE_MISSED),
    }
)
"""With one of these problems, the condition Ready of the pipeline is False."""
READY = frozenset(Health) - _NOT_READY
"""A pipeline whose health is one of these is ready, unless it has a second problem that a missed SLA hides."""


def summary(decision: PipelineDecision) -> dict[str, str]:
    """Return the texts of the printer columns, by the name of their field in `status.summary`."""
    plan, planned, known = decision.plan, decision.demand.planned, decision.demand.known
    by = "" if known is None else f" ({field_of(known)} {known.name})"
    own = decision.backlog
    columns = {
        "health": health(decision).value,
        "demand": "-" if planned is None else demand_words(decision.spec, planned) + by,
        "latency": f"{observed_latency(decision)} / {duration(decision.spec.sla.latency_s)}",
        "bottleneck": decision.profile.bottleneck or "-",
        "limitedBy": "-" if plan is None or plan.limited_by is None else str(plan.limited_by),
        "cost": f"{money(decision.spend_per_hour)} / {money(decision.spec.budget_per_hour)}",
        "replicas": replicas_words(decision),
    }
    if own is not None:
        columns["demand"] = "-" if isinstance(own.left, Absence) else left_words(own)
        columns["latency"] = finish_of_deadline(own)
    return columns


def health(decision: PipelineDecision) -> Health:
    """Return the most severe problem of the pipeline, `OK` or `SCALING` where there is none."""
    return _problems(decision)[0]


def ready(decision: PipelineDecision) -> bool:
    """Return whether Sluice can act for the pipeline and serve its whole demand. A missed SLA alone changes nothing."""
    return _NOT_READY.isdisjoint(_problems(decision))


def _problems(decision: PipelineDecision) -> list[Health]:
    """Return the problems of the pipeline, the most severe first; `SCALING` and `OK` are the last."""
    holds, own = {hold.reason.value for hold in decision.holds}, decision.backlog
    present = {
        Health.SLA_MISSED: missed(decision),
        Health.DEADLINE_MISSED: own is not None and own.late is not None,
        Health.OVERLOADED: own is None and decision.plan is not None and not decision.plan.feasible,
        Health.SCALING: bool(decision.changes or decision.starting),
        Health.OK: True,
    }
    return [each for each in Health if present.get(each, each.value in holds)]
