"""The list of condition types, and of the reasons of conditions and Events, with meaning and remedy.

`docs/reasons.md` shows the same list. A test compares both with the reasons that the code can emit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from controller.core.messages.summary import Health
from controller.core.state.decision import HoldReason
from profiler.samples import AbsenceReason, MetricsTier
from profiler.stages import LatencySource


class ConditionType(Enum):
    """The types of conditions: `Available` of a ComputePool, the others of a SpeechPipeline."""

    READY = "Ready"
    SLA_MET = "SLAMet"
    METRICS_AVAILABLE = "MetricsAvailable"
    TARGETS_FOUND = "TargetsFound"
    SCALES_ACCEPTED = "ScalesAccepted"
    POOLS_AVAILABLE = "PoolsAvailable"
    WITHIN_BUDGET = "WithinBudget"
    RULE_METRIC_MISSING = "RuleMetricMissing"
    CONFLICT = "Conflict"
    AVAILABLE = "Available"


class ConditionReason(Enum):
    """Reasons of conditions that are not values of another enum."""

    INVALID_SPEC = "InvalidSpec"
    INTERNAL_ERROR = "InternalError"
    METRICS_LOST = "MetricsLost"
    ALL_FOUND = "AllFound"
    ALL_ACCEPTED = "AllAccepted"
    ALL_AVAILABLE = "AllAvailable"
    WITHIN_BUDGET = "WithinBudget"
    DRAINING = "Draining"
    ABOVE_BUDGET = "AboveBudget"
    ALL_PRESENT = "AllPresent"
    SCALED_BY_ANOTHER = "ScaledByAnother"
    NO_CONFLICT = "NoConflict"
    DELIVERS = "Delivers"
    CANNOT_DELIVER = "CannotDeliver"
    ON_TRIAL = HoldReason.ON_TRIAL.value
    NODES_UNREADABLE = "NodesUnreadable"


class EventReason(Enum):
    """Reasons of Events. Events of pools and of resources that become unusable have the reasons of conditions."""

    SCALED = "Scaled"
    NOT_READY = "NotReady"
    READY = "Ready"
    SLA_MISSED = HoldReason.SLA_MISSED.value
    SLA_MET = "SLAMet"
    METRICS_MISSING = HoldReason.METRICS_MISSING.value
    METRICS_AVAILABLE = "MetricsAvailable"
    METRICS_LOST = ConditionReason.METRICS_LOST.value
    METRICS_FROM_PROMETHEUS = "MetricsFromPrometheus"
    METRICS_FROM_DIRECT_SCRAPE = "MetricsFromDirectScrape"
    METRICS_FROM_HOLDING = "MetricsFromHolding"
    TARGET_MISSING = HoldReason.TARGET_MISSING.value
    TARGETS_FOUND = "TargetsFound"
    SCALE_REFUSED = HoldReason.SCALE_REFUSED.value
    SCALES_ACCEPTED = "ScalesAccepted"
    POOLS_UNAVAILABLE = "PoolsUnavailable"
    POOLS_AVAILABLE = "PoolsAvailable"
    ABOVE_BUDGET = ConditionReason.ABOVE_BUDGET.value
    WITHIN_BUDGET = "WithinBudget"
    RULE_METRIC_MISSING = "RuleMetricMissing"
    RULE_METRIC_AVAILABLE = "RuleMetricAvailable"
    CONFLICT = "Conflict"
    CONFLICT_RESOLVED = "ConflictResolved"
    SCALE_CONFLICT = "ScaleConflict"
    SCALE_TARGET_GONE = "ScaleTargetGone"
    SCALE_FORBIDDEN = "ScaleForbidden"
    SCALE_REJECTED = "ScaleRejected"
    SCALE_UNAVAILABLE = "ScaleUnavailable"
    SCALE_NOT_LEADING = "ScaleNotLeading"
    SCALE_SKIPPED = "ScaleSkipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The Events of a condition: `bad` when its status becomes `bad_status`, `good` when it recovers."""

    bad_status: str
    bad: EventReason
    good: EventReason


TRANSITIONS: Mapping[ConditionType, Transition] = {
    ConditionType.READY: Transition(bad_status="False", bad=EventReason.NOT_READY, good=EventReason.READY),
    ConditionType.SLA_MET: Transition(bad_status="False", bad=EventReason.SLA_MISSED, good=EventReason.SLA_MET),
    ConditionType.METRICS_AVAILABLE: Transition(
        bad_status="False", bad=EventReason.METRICS_MISSING, good=EventReason.METRICS_AVAILABLE
    ),
    ConditionType.TARGETS_FOUND: Transition(
        bad_status="False", bad=EventReason.TARGET_MISSING, good=EventReason.TARGETS_FOUND
    ),
    ConditionType.SCALES_ACCEPTED: Transition(
        bad_status="False", bad=EventReason.SCALE_REFUSED, good=EventReason.SCALES_ACCEPTED
    ),
    ConditionType.POOLS_AVAILABLE: Transition(
        bad_status="False", bad=EventReason.POOLS_UNAVAILABLE, good=EventReason.POOLS_AVAILABLE
    ),
    ConditionType.WITHIN_BUDGET: Transition(
        bad_status="False", bad=EventReason.ABOVE_BUDGET, good=EventReason.WITHIN_BUDGET
    ),
    ConditionType.RULE_METRIC_MISSING: Transition(
        bad_status="True", bad=EventReason.RULE_METRIC_MISSING, good=EventReason.RULE_METRIC_AVAILABLE
    ),
    ConditionType.CONFLICT: Transition(bad_status="True", bad=EventReason.CONFLICT, good=EventReason.CONFLICT_RESOLVED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedReason:
    """One row of the list: a reason of the condition `type`, or of an Event where `type` is None.

    `state` is the status of the condition, or the type of the Event.
    """

    type: ConditionType | None
    reason: str
    state: str
    meaning: str
    remedy: str


_NONE = "None needed."
_READING = "See `status.stages[].absent` and the source of `sla.query`."

_READY: Mapping[Enum, tuple[str, str, str]] = {
    Health.OK: ("True", "No problem is known, and nothing changes.", _NONE),
    Health.SCALING: ("True", "Replicas change in this cycle.", _NONE),
    Health.SLA_MISSED: (
        "True",
        "The observed latency exceeds the SLA, although the plan is predicted to meet it.",
        "Wait until pending replicas are ready. If it lasts, run `sluice explain` and check `serviceTime`.",
    ),
    Health.PAUSED: ("True", "`mode` is `Paused`. Sluice reports, but changes no replica.", "Set `mode: Auto`."),
    Health.OVERLOADED: (
        "False",
        "No plan serves the whole demand within the SLA. `status.limitedBy` has the binding constraint.",
        "Raise the limit that `status.limitedBy` names. `status.requiredBudgetPerHour` has the budget that is enough.",
    ),
    Health.METRICS_MISSING: (
        "False",
        "Metrics are missing. Until they are back, replicas are removed only where a budget or a pool requires it.",
        "See the message of `MetricsAvailable`.",
    ),
    Health.SCALE_REFUSED: (
        "False",
        "The API server refused the last change of replicas. It is retried in every cycle.",
        "See the message of `ScalesAccepted`. Check the operator's role and admission policies.",
    ),
    Health.CONFLICT: (
        "False",
        "Another controller scales a workload of the pipeline. Sluice changes nothing in the pipeline.",
        "Remove the HorizontalPodAutoscaler, ScaledObject or tool that the message of `Conflict` names.",
    ),
    Health.TARGET_MISSING: (
        "False",
        "A workload does not exist, or cannot be read or scaled. Its stage is left unchanged.",
        "Create the workload, correct `target`, or grant the operator access to it.",
    ),
    Health.POOL_NOT_FOUND: (
        "False",
        "A placement names a ComputePool that does not exist. Replicas on it are left unchanged.",
        "Create the ComputePool, or correct `pool`.",
    ),
    ConditionReason.INVALID_SPEC: (
        "False",
        "The spec cannot be used. Replicas are left unchanged.",
        "Correct the field that the message names. `sluice validate` checks files before they are applied.",
    ),
    ConditionReason.INTERNAL_ERROR: (
        "False",
        "The decision about this pipeline failed in Sluice. Replicas are left unchanged; other pipelines are served.",
        "Report it with the traceback in the operator's log.",
    ),
}
_ABSENT: Mapping[AbsenceReason, str] = {
    AbsenceReason.MISSING: "The latency query returns no series.",
    AbsenceReason.STALE: "The newest latency sample is too old.",
    AbsenceReason.PARTIAL: "Some pods do not report their latency.",
    AbsenceReason.NOT_A_NUMBER: "The latency query returns NaN or an infinity.",
    AbsenceReason.UNAVAILABLE: "The source of the metrics did not answer in time, or refused.",
    AbsenceReason.UNSUPPORTED: "The server of a stage does not export its latency.",
    AbsenceReason.NO_TRAFFIC: "There were no items to measure.",
}
_SOURCES: Mapping[MetricsTier, tuple[str, str]] = {
    MetricsTier.PROMETHEUS: ("Metrics come from Prometheus.", _NONE),
    MetricsTier.DIRECT_SCRAPE: (
        "Prometheus has no metrics of the pipeline. The operator reads them from the pods.",
        "Restore Prometheus. The message says why it is not used.",
    ),
    MetricsTier.HOLDING: (
        "No source has metrics, but none that the decision needs is missing.",
        "Restore Prometheus. The message says why it is not used.",
    ),
}
_CONDITIONS: Mapping[ConditionType, Mapping[Enum, tuple[str, str, str]]] = {
    ConditionType.READY: _READY,
    ConditionType.SLA_MET: {
        LatencySource.MEASURED: (
            "True, False",
            "The latency measured by `sla.query` is within the SLA, or not.",
            "If False for long: see `Ready` and `sluice explain`.",
        ),
        LatencySource.COMPOSED: (
            "True, False",
            (
                "The latency composed of the stages' percentiles is within the SLA, or not. "
                "In most cases it is an upper estimate."
            ),
            "If False for long: set `sla.query`, then see `Ready` and `sluice explain`.",
        ),
        **{reason: ("Unknown", meaning, _READING) for reason, meaning in _ABSENT.items()},
    },
    ConditionType.METRICS_AVAILABLE: {
        **{tier: ("True", meaning, remedy) for tier, (meaning, remedy) in _SOURCES.items()},
        HoldReason.METRICS_MISSING: (
            "False",
            "Metrics that the decision needs are missing. Plans use the last demand and a growing safety margin.",
            "Check `demand.query`, the presets of the stages, and Prometheus. The message names what is missing.",
        ),
        ConditionReason.METRICS_LOST: (
            "False",
            "The demand has been missing for at least five minutes.",
            "Treat it as an outage of the monitoring. The message names what is missing.",
        ),
    },
    ConditionType.TARGETS_FOUND: {
        ConditionReason.ALL_FOUND: ("True", "All workloads can be read.", _NONE),
        HoldReason.TARGET_MISSING: _READY[Health.TARGET_MISSING],
    },
    ConditionType.SCALES_ACCEPTED: {
        ConditionReason.ALL_ACCEPTED: ("True", "The API server refused no change.", _NONE),
        HoldReason.SCALE_REFUSED: _READY[Health.SCALE_REFUSED],
    },
    ConditionType.POOLS_AVAILABLE: {
        ConditionReason.ALL_AVAILABLE: ("True", "No placement is left out of the plan.", _NONE),
        HoldReason.POOL_UNAVAILABLE: (
            "False",
            "A pool does not provide nodes for pending replicas. It is left out of the plan for a while.",
            "See the condition `Available` of the ComputePool.",
        ),
        HoldReason.FRAGMENTED: (
            "False",
            "The pool has free capacity, but no node can schedule this pod. The placement is left out of the plan.",
            "Read the scheduler's message: check requests, tolerations, affinity and volumes of the pod.",
        ),
        HoldReason.CANNOT_START: (
            "False",
            "Replicas have nodes but do not become ready. They are left out of the plan where possible.",
            "Check the containers' logs, the readiness probe, and `startup`.",
        ),
    },
    ConditionType.WITHIN_BUDGET: {
        ConditionReason.WITHIN_BUDGET: ("True", "The spend is within `budget.perHour`.", _NONE),
        ConditionReason.DRAINING: (
            "False",
            "The spend exceeds the budget, and replicas are being removed. The excess is excused meanwhile.",
            "None, or raise `budget.perHour`.",
        ),
        ConditionReason.ABOVE_BUDGET: (
            "False",
            "The spend exceeds the budget, and no excess is excused.",
            "Raise `budget.perHour`, or look for what else creates replicas.",
        ),
    },
    ConditionType.RULE_METRIC_MISSING: {
        ConditionReason.ALL_PRESENT: ("False", "All threshold rules have data.", _NONE),
        HoldReason.METRICS_MISSING: (
            "True",
            "A threshold rule has no data. It does not fire, and keeps the floor that it has set.",
            "Check the `metric` or `query` of the rule that the message names.",
        ),
    },
    ConditionType.CONFLICT: {
        ConditionReason.NO_CONFLICT: ("False", "No other controller is known to scale the workloads.", _NONE),
        ConditionReason.SCALED_BY_ANOTHER: (
            "True",
            "Another controller scales a workload of the pipeline. Sluice changes nothing in the pipeline.",
            "Remove the HorizontalPodAutoscaler, ScaledObject or tool that the message names.",
        ),
    },
    ConditionType.AVAILABLE: {
        ConditionReason.DELIVERS: ("True", "Replicas get nodes.", _NONE),
        ConditionReason.CANNOT_DELIVER: (
            "False",
            "A replica got no ready node within `pendingDeadline`. The pool is left out of plans for a while.",
            "Read the scheduler's message. Check quota, node groups and provider outages.",
        ),
        ConditionReason.ON_TRIAL: (
            "Unknown",
            "The pool has failed before. One replica is tried before others follow.",
            _NONE,
        ),
        ConditionReason.NODES_UNREADABLE: (
            "Unknown",
            "The nodes cannot be listed. Plans use their last known state.",
            "Grant the operator the right to list nodes.",
        ),
        ConditionReason.INVALID_SPEC: (
            "False",
            "The spec cannot be used. Pipelines that name the pool see `PoolNotFound`.",
            "Correct the field that the message names.",
        ),
    },
}
_SEE = "See the condition `{}`."
_RETRIED = "None: the next cycle decides on the present state."
_EVENTS: Mapping[EventReason, tuple[str, str, str]] = {
    EventReason.SCALED: ("Normal", "Replicas were changed. The message has the changes and their reasons.", _NONE),
    **{
        reason: (state, meaning, _SEE.format(kind.value) if state == "Warning" else _NONE)
        for kind, transition in TRANSITIONS.items()
        for reason, state, meaning in (
            (transition.bad, "Warning", f"The condition `{kind.value}` has become {transition.bad_status}."),
            (transition.good, "Normal", f"The condition `{kind.value}` is no longer {transition.bad_status}."),
        )
    },
    EventReason.METRICS_LOST: (
        "Warning",
        "The demand has been missing for at least five minutes.",
        _SEE.format(ConditionType.METRICS_AVAILABLE.value),
    ),
    EventReason.METRICS_FROM_PROMETHEUS: ("Normal", "Metrics come from Prometheus again.", _NONE),
    EventReason.METRICS_FROM_DIRECT_SCRAPE: ("Warning", *_SOURCES[MetricsTier.DIRECT_SCRAPE]),
    EventReason.METRICS_FROM_HOLDING: ("Warning", *_SOURCES[MetricsTier.HOLDING]),
    EventReason.SCALE_CONFLICT: (
        "Warning",
        "The replicas were changed by another client after Sluice read them. The change was not made.",
        _RETRIED,
    ),
    EventReason.SCALE_TARGET_GONE: (
        "Warning",
        "The workload does not exist any more.",
        "Create the workload, or correct `target`.",
    ),
    EventReason.SCALE_FORBIDDEN: (
        "Warning",
        "The operator may not scale the workload.",
        "Grant `patch` on the workload's `scale` subresource. `controller/kube/rbac.yaml` has all rights.",
    ),
    EventReason.SCALE_REJECTED: (
        "Warning",
        "The API server rejected the change, for example by an admission policy.",
        "Read the server's message, and change the policy or the limits that it names.",
    ),
    EventReason.SCALE_UNAVAILABLE: ("Warning", "The API server did not answer in time.", _RETRIED),
    EventReason.SCALE_NOT_LEADING: (
        "Warning",
        "The change was not tried, because this replica of the operator may no longer be the leader.",
        "None: the leader decides.",
    ),
    EventReason.SCALE_SKIPPED: (
        "Warning",
        "The change was not tried, because the change before it could not be made.",
        _RETRIED,
    ),
}
_UNUSABLE = (ConditionReason.INVALID_SPEC, ConditionReason.INTERNAL_ERROR)


def listed_reasons() -> Iterator[ListedReason]:
    """Yield the rows of the list: first the reasons of every condition, then the reasons of Events."""
    for kind, reasons in _CONDITIONS.items():
        for reason, (state, meaning, remedy) in reasons.items():
            yield ListedReason(type=kind, reason=reason.value, state=state, meaning=meaning, remedy=remedy)
    for event, (state, meaning, remedy) in _EVENTS.items():
        yield ListedReason(type=None, reason=event.value, state=state, meaning=meaning, remedy=remedy)
    verdicts = dict(_CONDITIONS[ConditionType.AVAILABLE])
    verdicts.update((reason, _READY[reason]) for reason in _UNUSABLE)
    for reason, (state, meaning, remedy) in verdicts.items():
        warning = "Normal" if state == "True" else "Warning"
        yield ListedReason(type=None, reason=reason.value, state=warning, meaning=meaning, remedy=remedy)
