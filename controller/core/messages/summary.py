"""The health of a pipeline and the columns of `kubectl get`."""

from enum import Enum

from controller.core.messages.phrases import demand_words, duration, money
from controller.core.messages.sentences import observed_latency, replicas_words
from controller.core.state.decision import HoldReason, PipelineDecision
from controller.core.state.schedule import field_of


class Health(Enum):
    """The most severe problem of a pipeline, the worst first; OK without one. The values are reasons of `Ready`."""

    POOL_NOT_FOUND = HoldReason.POOL_NOT_FOUND.value
    TARGET_MISSING = HoldReason.TARGET_MISSING.value
    CONFLICT = HoldReason.CONFLICT.value
    SCALE_REFUSED = HoldReason.SCALE_REFUSED.value
    METRICS_MISSING = HoldReason.METRICS_MISSING.value
    PAUSED = HoldReason.PAUSED.value
    IDLE = HoldReason.IDLE.value
    OVERLOADED = "Overloaded"
    SLA_MISSED = HoldReason.SLA_MISSED.value
    SCALING = "Scaling"
    OK = "OK"


READY = frozenset({Health.OK, Health.SCALING, Health.SLA_MISSED, Health.PAUSED, Health.IDLE})
"""With one of these, the condition Ready of the pipeline is True."""
_BY_HOLD = (
    *(HoldReason.POOL_NOT_FOUND, HoldReason.TARGET_MISSING, HoldReason.CONFLICT, HoldReason.SCALE_REFUSED),
    *(HoldReason.METRICS_MISSING, HoldReason.PAUSED, HoldReason.IDLE),
)
"""The holds that determine the health, the most severe first."""


def summary(decision: PipelineDecision) -> dict[str, str]:
    """Return the texts of the printer columns, by the name of their field in `status.summary`."""
    plan, planned, known = decision.plan, decision.demand.planned, decision.demand.known
    by = "" if known is None else f" ({field_of(known)} {known.name})"
    return {
        "health": health(decision).value,
        "demand": "-" if planned is None else demand_words(decision.spec, planned) + by,
        "latency": f"{observed_latency(decision)} / {duration(decision.spec.sla.latency_s)}",
        "bottleneck": decision.profile.bottleneck or "-",
        "limitedBy": "-" if plan is None or plan.limited_by is None else str(plan.limited_by),
        "cost": f"{money(decision.spend_per_hour)} / {money(decision.spec.budget_per_hour)}",
        "replicas": replicas_words(decision),
    }


def health(decision: PipelineDecision) -> Health:
    """Return the most severe problem of the pipeline, `OK` or `SCALING` where there is none."""
    reasons = {hold.reason for hold in decision.holds}
    for reason in _BY_HOLD:
        if reason in reasons:
            return Health(reason.value)
    if decision.plan is not None and not decision.plan.feasible:
        return Health.OVERLOADED
    measured_s = decision.profile.latency_s
    if isinstance(measured_s, float) and measured_s > decision.spec.sla.latency_s:
        return Health.SLA_MISSED
    return Health.SCALING if decision.changes else Health.OK
