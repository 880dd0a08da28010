"""The types and reasons of conditions, and the reasons of Events.

`docs/reasons.md` lists them with meaning and remedy. A test compares the list with what the code emits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from controller.core.state.decision import HoldReason, LateReason
from controller.core.state.provider_errors import ErrorClass
from controller.core.state.snapshot import NodePoolProblem


class ConditionType(Enum):
    """The types of conditions: from AVAILABLE on those of a ComputePool, the others of a SpeechPipeline."""

    READY = "Ready"
    SLA_MET = "SLAMet"
    DEADLINE_MET = "DeadlineMet"
    METRICS_AVAILABLE = "MetricsAvailable"
    TARGETS_FOUND = "TargetsFound"
    SCALES_ACCEPTED = "ScalesAccepted"
    POOLS_AVAILABLE = "PoolsAvailable"
    WITHIN_BUDGET = "WithinBudget"
    RULE_METRIC_MISSING = "RuleMetricMissing"
    CONFLICT = "Conflict"
    MEASUREMENTS_PLAUSIBLE = "MeasurementsPlausible"
    PLACEMENTS_MATCH = "PlacementsMatch"
    SCRAPES_HEALTHY = "ScrapesHealthy"
    DEVICES_HEALTHY = "DevicesHealthy"
    SESSIONS_SPREAD = "SessionsSpread"
    MEMORY_SUFFICES = "MemorySuffices"
    SHEDDING = "Shedding"
    PLANNED_IN_FULL = "PlannedInFull"
    DIAGNOSIS = "Diagnosis"
    ONE_OPERATOR = "OneOperator"
    AVAILABLE = "Available"
    CAPACITY_KNOWN = "CapacityKnown"
    NODES_EXCLUSIVE = "NodesExclusive"
    REPLICAS_OWNED = "ReplicasOwned"
    GROWTH_OPEN = "GrowthOpen"
    PRICE_CURRENT = "PriceCurrent"
    QUOTA_SUFFICES = "QuotaSuffices"
    PROVIDER_PERMITS = "ProviderPermits"


class ConditionReason(Enum):
    """Reasons of conditions that are not values of another enum."""

    INVALID_SPEC = "InvalidSpec"
    INTERNAL_ERROR = "InternalError"
    SHARED_STAGE_MISSING = "SharedStageMissing"
    NOT_ASSESSED = "NotAssessed"
    IN_TIME = "InTime"
    WAITING = HoldReason.WAITING.value
    EMPTY = "Empty"
    ITEMS_UNKNOWN = "ItemsUnknown"
    SERVICE_TIME_UNKNOWN = "ServiceTimeUnknown"
    DEADLINE_PASSED = LateReason.DEADLINE_PASSED.value
    BUDGET_TOO_LOW = LateReason.BUDGET_TOO_LOW.value
    CAPACITY_TOO_SMALL = LateReason.CAPACITY_TOO_SMALL.value
    STARTUP_TOO_LONG = LateReason.STARTUP_TOO_LONG.value
    HELD_BACK = LateReason.HELD_BACK.value
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
    FOLLOWED = HoldReason.FOLLOWED.value
    ALL_PLAUSIBLE = "AllPlausible"
    CORRECTION_AT_LIMIT = "CorrectionAtLimit"
    ALL_MATCH = "AllMatch"
    OUTSIDE_POOL = "OutsidePool"
    DOES_NOT_FIT = "DoesNotFit"
    RESIZED_BY_ANOTHER = "ResizedByAnother"
    SCRAPED_ONCE = "ScrapedOnce"
    POD_LABELS_MISSING = "PodLabelsMissing"
    PODS_SILENT = "PodsSilent"
    PODS_SCRAPED_TWICE = "PodsScrapedTwice"
    NO_FAULTS = "NoFaults"
    DEVICE_ERRORS = "DeviceErrors"
    DEVICES_THROTTLED = "DevicesThrottled"
    DEVICES_UNREAD = "DevicesUnread"
    OVERLOADED = "Overloaded"
    REPLICAS_STARTING = "ReplicasStarting"
    SCALED_TO_ZERO = "ScaledToZero"
    NO_LIMIT = "NoLimit"
    NOTHING_SHEDS = "NothingSheds"
    SPREAD = "Spread"
    CROWDED = "Crowded"
    SESSIONS_UNREAD = "SessionsUnread"
    WITHIN_EFFORT = "WithinEffort"
    EFFORT_EXHAUSTED = "EffortExhausted"
    SCALED_BY_ANOTHER_OPERATOR = "ScaledByAnotherOperator"
    DELIVERS = "Delivers"
    CANNOT_DELIVER = "CannotDeliver"
    ON_TRIAL = HoldReason.ON_TRIAL.value
    NODES_UNREADABLE = "NodesUnreadable"
    STATED = "Stated"
    NO_NODE_SEEN = "NoNodeSeen"
    NODE_POOL_NOT_FOUND = NodePoolProblem.NOT_FOUND.value
    NODE_POOL_UNREADABLE = NodePoolProblem.UNREADABLE.value
    NODE_POOL_UNLIMITED = NodePoolProblem.UNLIMITED.value
    GROUP_NOT_FOUND = NodePoolProblem.GROUP_NOT_FOUND.value
    GROUP_UNREADABLE = NodePoolProblem.GROUP_UNREADABLE.value
    ALL_OWN = "AllOwn"
    NODES_SHARED = "NodesShared"
    NONE_KILLED = "NoneKilled"
    OUT_OF_MEMORY = "OutOfMemory"
    ALL_OWNED = "AllOwned"
    UNOWNED = "Unowned"
    NOTHING_CLAIMED = "NothingClaimed"
    CLAIMED = "Claimed"
    LOOKED_UP = "LookedUp"
    NOT_LOOKED_UP = "NotLookedUp"
    PRICE_OUTDATED = "PriceOutdated"
    PRICE_REFUSED = "PriceRefused"
    QUOTA_ALLOWS = "QuotaAllows"
    QUOTA_ZERO = "QuotaZero"
    QUOTA_USED_UP = "QuotaUsedUp"
    QUOTA_UNREAD = "QuotaUnread"
    NO_ERROR = "NoError"
    PROVIDER_QUOTA = ErrorClass.QUOTA.value
    PROVIDER_THROTTLES = ErrorClass.THROTTLED.value
    PROVIDER_FORBIDS = ErrorClass.PERMISSION.value
    NAMESPACES_UNREADABLE = "NamespacesUnreadable"
    NOTHING_FOUND = "NothingFound"


class EventReason(Enum):
    """Reasons of Events about a pipeline.

    Those of a failed write are values of `WriteOutcome`. Those of a pool, and of a resource that becomes unusable, are
    its condition's reasons.
    """

    SCALED = "Scaled"
    NOT_READY = "NotReady"
    READY = "Ready"
    SLA_MISSED = HoldReason.SLA_MISSED.value
    SLA_MET = "SLAMet"
    DEADLINE_MISSED = "DeadlineMissed"
    DEADLINE_MET = "DeadlineMet"
    METRICS_MISSING = HoldReason.METRICS_MISSING.value
    METRICS_AVAILABLE = "MetricsAvailable"
    METRICS_LOST = ConditionReason.METRICS_LOST.value
    METRICS_FROM_PROMETHEUS = "MetricsFromPrometheus"
    METRICS_FROM_CLOUDWATCH = "MetricsFromCloudWatch"
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
    CORRECTION_AT_LIMIT = ConditionReason.CORRECTION_AT_LIMIT.value
    MEASUREMENTS_PLAUSIBLE = "MeasurementsPlausible"
    STATUS_REFUSED = "StatusRefused"
    PLACEMENTS_MISMATCHED = "PlacementsMismatched"
    PLACEMENTS_MATCH = "PlacementsMatch"
    SCRAPES_FAULTY = "ScrapesFaulty"
    SCRAPES_HEALTHY = "ScrapesHealthy"
    DEVICES_FAULTY = "DevicesFaulty"
    DEVICES_HEALTHY = "DevicesHealthy"
    SESSIONS_CROWDED = "SessionsCrowded"
    SESSIONS_SPREAD = "SessionsSpread"
    OUT_OF_MEMORY = "OutOfMemory"
    MEMORY_SUFFICES = "MemorySuffices"
    SHEDDING = "Shedding"
    SHEDDING_ENDED = "SheddingEnded"
    PLANNED_COARSELY = "PlannedCoarsely"
    PLANNED_IN_FULL = "PlannedInFull"
    BATCHING_WRITTEN = "BatchingWritten"
    BATCHING_RESTORED = "BatchingRestored"
    BATCHING_REFUSED = "BatchingRefused"
    CAUSE_FOUND = "CauseFound"
    CAUSE_GONE = "CauseGone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The Events of a condition: `bad` when its status becomes `bad_status`, `good` when it recovers."""

    bad: EventReason
    good: EventReason
    bad_status: str = "False"


TRANSITIONS: Mapping[ConditionType, Transition] = {
    ConditionType.READY: Transition(bad=EventReason.NOT_READY, good=EventReason.READY),
    ConditionType.SLA_MET: Transition(bad=EventReason.SLA_MISSED, good=EventReason.SLA_MET),
    ConditionType.DEADLINE_MET: Transition(bad=EventReason.DEADLINE_MISSED, good=EventReason.DEADLINE_MET),
    ConditionType.METRICS_AVAILABLE: Transition(bad=EventReason.METRICS_MISSING, good=EventReason.METRICS_AVAILABLE),
    ConditionType.TARGETS_FOUND: Transition(bad=EventReason.TARGET_MISSING, good=EventReason.TARGETS_FOUND),
    ConditionType.SCALES_ACCEPTED: Transition(bad=EventReason.SCALE_REFUSED, good=EventReason.SCALES_ACCEPTED),
    ConditionType.POOLS_AVAILABLE: Transition(bad=EventReason.POOLS_UNAVAILABLE, good=EventReason.POOLS_AVAILABLE),
    ConditionType.WITHIN_BUDGET: Transition(bad=EventReason.ABOVE_BUDGET, good=EventReason.WITHIN_BUDGET),
    ConditionType.RULE_METRIC_MISSING: Transition(
        bad=EventReason.RULE_METRIC_MISSING, good=EventReason.RULE_METRIC_AVAILABLE, bad_status="True"
    ),
    ConditionType.CONFLICT: Transition(bad=EventReason.CONFLICT, good=EventReason.CONFLICT_RESOLVED, bad_status="True"),
    ConditionType.MEASUREMENTS_PLAUSIBLE: Transition(
        bad=EventReason.CORRECTION_AT_LIMIT, good=EventReason.MEASUREMENTS_PLAUSIBLE
    ),
    ConditionType.PLACEMENTS_MATCH: Transition(
        bad=EventReason.PLACEMENTS_MISMATCHED, good=EventReason.PLACEMENTS_MATCH
    ),
    ConditionType.SCRAPES_HEALTHY: Transition(bad=EventReason.SCRAPES_FAULTY, good=EventReason.SCRAPES_HEALTHY),
    ConditionType.DEVICES_HEALTHY: Transition(bad=EventReason.DEVICES_FAULTY, good=EventReason.DEVICES_HEALTHY),
    ConditionType.SHEDDING: Transition(bad=EventReason.SHEDDING, good=EventReason.SHEDDING_ENDED, bad_status="True"),
    ConditionType.SESSIONS_SPREAD: Transition(bad=EventReason.SESSIONS_CROWDED, good=EventReason.SESSIONS_SPREAD),
    ConditionType.MEMORY_SUFFICES: Transition(bad=EventReason.OUT_OF_MEMORY, good=EventReason.MEMORY_SUFFICES),
    ConditionType.PLANNED_IN_FULL: Transition(bad=EventReason.PLANNED_COARSELY, good=EventReason.PLANNED_IN_FULL),
    ConditionType.DIAGNOSIS: Transition(bad=EventReason.CAUSE_FOUND, good=EventReason.CAUSE_GONE, bad_status="True"),
}
