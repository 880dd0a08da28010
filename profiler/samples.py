"""Readings as they come from a source, before any conclusion: a number, or why there is none.

Nothing here queries a source or estimates anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from optimizer.model import PipelineKey, PoolName, StageName


class AbsenceReason(Enum):
    """Why there is no number. None of these means zero."""

    MISSING = "Missing"
    """No series answers the query."""
    STALE = "Stale"
    """The newest sample is older than the window allows."""
    PARTIAL = "Partial"
    """Fewer pods report than serve."""
    NOT_A_NUMBER = "NotANumber"
    """The source answered NaN or an infinity."""
    UNAVAILABLE = "Unavailable"
    """The source did not answer in time, or refused."""
    UNSUPPORTED = "Unsupported"
    """The server behind the preset does not export this quantity."""
    NO_TRAFFIC = "NoTraffic"
    """A ratio per item, and there were no items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """No number, and why: `detail` is for a person."""

    reason: AbsenceReason
    detail: str = ""


Reading = float | Absence

MISSING = Absence(reason=AbsenceReason.MISSING)

ABSURD = 1e24
"""No reading is above this, nor below the negative of it; sums and squares of what is would overflow."""


def sane(value: float) -> bool:
    """Whether a number from outside can be a reading: neither NaN nor infinite nor absurd."""
    return -ABSURD <= value <= ABSURD


class Quantity(Enum):
    """What a stage's servers can tell about themselves, summed or averaged over the pods of one placement."""

    ARRIVAL_RATE = "arrivalRate"
    """Items offered to the stage, per second."""
    COMPLETION_RATE = "completionRate"
    """Items answered, per second."""
    LATENCY_MEAN = "latencyMean"
    """Waiting and service, seconds."""
    LATENCY_P95 = "latencyP95"
    LATENCY_P95_FLOOR = "latencyP95Floor"
    """The lower bound of the histogram's bucket that LATENCY_P95 lies in: between its bounds a histogram tells nothing,
    and LATENCY_P95 is a guess."""
    LATENCY_P95_CEILING = "latencyP95Ceiling"
    """The upper bound of that bucket; the last finite one where it has none."""
    LATENCY_P99 = "latencyP99"
    SERVICE_TIME = "serviceTime"
    """Mean time of one batch in service, seconds."""
    BATCH_SIZE = "batchSize"
    """Mean items per batch."""
    SERVED_BATCH = "servedBatch"
    """The batch size that SERVICE_TIME belongs to, where it is not BATCH_SIZE: servers that add up durations per item
    weight a batch by its items. As it were if all services were equally long: what their variation adds is the model's
    to say."""
    PRESENT_BATCH = "presentBatch"
    """The batch size that an item meets at any moment of its service, where only a gauge tells it: BATCH_SIZE is then
    the mean over the time in which any item is served, and long batches count for more in both."""
    UTILIZATION = "utilization"
    """Busy share of the servers, 0–1."""
    QUEUE_DEPTH = "queueDepth"
    """Items waiting, over all pods."""
    SESSIONS = "sessions"
    """Streams that hold a slot, over all pods."""
    RX_QUEUE_PRESSURE = "rxQueuePressure"
    """Receive pressure of the network queues, 0–1, the worst pod."""


class MetricsTier(Enum):
    """Where the numbers of a pipeline come from, best first: the ladder that is climbed down when metrics are lost."""

    PROMETHEUS = "Prometheus"
    DIRECT_SCRAPE = "DirectScrape"
    """The pods' own endpoints, read by the operator itself."""
    HOLDING = "Holding"
    """Nowhere: the last plan is held, with a margin that grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the numbers of a pipeline come from, and why not from a better place, for a person."""

    tier: MetricsTier = MetricsTier.PROMETHEUS
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEndpoint:
    """Where a pod says that it shows its metrics. Without a `port`, it is where its kind of server shows them."""

    host: str
    port: int | None = None
    path: str = "/metrics"


THROUGHPUT = (Quantity.ARRIVAL_RATE, Quantity.COMPLETION_RATE)
"""What a stage's servers must tell for the stage to count as seen. Sums, so that a part of the pods is not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementTarget:
    """Whose metrics to read: the ready pods of one placement, in `namespace`, speaking `preset`.

    `pods` holds those that ought to have samples: not one that became ready a scrape ago. `endpoints` has all that
    run, the young ones too, for who visits them himself. One replica serves `concurrency` batches of at most
    `batch_limit` items at once. `overrides` replaces the preset's query of a quantity by the user's own PromQL, which
    must give one series and may use `$pods` and `$window`.
    """

    pipeline: PipelineKey
    stage: StageName
    pool: PoolName
    namespace: str
    pods: frozenset[str]
    preset: str
    window_s: float
    concurrency: int
    batch_limit: int
    overrides: Mapping[Quantity, str]
    endpoints: Mapping[str, PodEndpoint] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSamples:
    """What the pods of one placement said: a reading for every quantity.

    `sessions` are those of single pods, by name; who does not tell is not there.
    """

    readings: Mapping[Quantity, Reading]
    sessions: Mapping[str, float] = field(default_factory=dict)

    def of(self, quantity: Quantity) -> Reading:
        """Return the reading of `quantity`, `Missing` when the source said nothing of it."""
        return self.readings.get(quantity, MISSING)


NO_SAMPLES = PlacementSamples(readings={})
