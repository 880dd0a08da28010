"""What a diagnosis says: why the SLA of a pipeline is missed, with the evidence; and what it remembers for that."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from optimizer.model import PlacementKey, PlacementName, ServiceLaw, StageName


class Cause(Enum):
    """A cause of an incident. The values are reasons of the condition Diagnosis, which docs/diagnosis.md explains."""

    DEMAND = "DemandAbovePlan"
    """More is offered than the ready replicas can serve: it rose faster than replicas start."""
    POOL = "PoolCannotDeliver"
    """Replicas get no node, or a pool has no room for those that are needed."""
    COLD_START = "ColdStart"
    """Replicas take longer to start than was planned with, or a stage starts from none."""
    SLOWER_STAGE = "SlowerStage"
    """Batches take longer than before, at the same size."""
    PASS_RATIO = "PassRatioChanged"  # noqa: S105 - not a password
    """More items than before go on to the next stage."""
    UNEVEN_SESSIONS = "UnevenSessions"
    """Long sessions are on too few of the replicas."""
    QUEUEING = "Queueing"
    """Items wait before a stage, for a reason of its own."""
    DATA_PLANE = "DataPlane"
    """Time or items are lost between the stages."""
    MEMORY_GROWTH = "MemoryGrowth"
    """Sessions outgrow the memory of a replica while they last."""
    QUALITY_DROP = "QualityDrop"
    """A cheaper variant of a model makes more errors."""
    METRICS = "MetricsNotCredible"
    """What is measured contradicts itself, or is not there."""


class Because(Enum):
    """Which of several forms a cause has."""

    BATCH_WAIT = "BatchWait"
    STUCK_REPLICA = "StuckReplica"
    OTHER_TENANT = "OtherTenant"
    LAG = "AutoscalerLag"
    LIMIT = "Limit"
    CPU_QUOTA = "CpuQuota"
    NEIGHBOURS = "Neighbours"
    COLD_CACHES = "ColdCaches"
    NEW_VERSION = "NewVersion"
    DECLARED = "SlowerThanDeclared"
    FROM_ZERO = "FromZero"
    LATE_START = "LateStart"
    OVERHEAD = "Overhead"
    NETWORK = "Network"
    REFUSED = "Refused"
    RETRIES = "Retries"
    LOST = "Lost"
    MISSING = "Missing"
    CONTRADICTED = "Contradicted"
    IMPLAUSIBLE = "Implausible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause that the evidence speaks for, with `confidence` (0–1).

    `numbers` are the evidence by name, in the units of their names; `names` are what it is about, such as pods.
    `cost_per_hour` is what the remedy costs in USD per hour, None where that is not known.
    """

    cause: Cause
    confidence: float
    stage: StageName | None = None
    placement: PlacementName | None = None
    because: Because | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    cost_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """How a pipeline was at `at_s`, while all was well.

    `laws` are the service laws in use, `revisions` those of the workloads, `pass_ratios` and `others` (items/s of other
    pipelines on shared stages) those of the stages. `overhead_s` is the time of an item outside the stages, or more.
    """

    at_s: float
    laws: Mapping[PlacementKey, ServiceLaw] = field(default_factory=dict)
    revisions: Mapping[PlacementKey, str] = field(default_factory=dict)
    pass_ratios: Mapping[StageName, float] = field(default_factory=dict)
    others: Mapping[StageName, float] = field(default_factory=dict)
    overhead_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """A switch to other variants of a model at `at_s`, after which more words are wrong: see `VariantSwitch`.

    `wers` has the word error rates before and after by slice of the audio, "" for all audio.
    """

    stage: StageName
    at_s: float
    before: tuple[PlacementName, ...]
    after: tuple[PlacementName, ...]
    wers: Mapping[str, tuple[float, float]]
    saving_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A finding of the present miss of the SLA, and when (epoch seconds) the evidence was last there."""

    finding: Finding
    seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisMemory:
    """What a diagnosis remembers: how it was while all was well, and what it found since the SLA is missed.

    `calm_since_s` is since when all has been well. `candidate` becomes the baseline once it has stood for long.
    """

    calm_since_s: float | None = None
    baseline: Baseline | None = None
    candidate: Baseline | None = None
    switched: tuple[Switched, ...] = ()
    seen: tuple[Seen, ...] = ()
