"""The types of metrics as a source returns them: each reading is a number, or an `Absence` with the reason.

No I/O and no estimates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from optimizer.model import PipelineKey, PlacementName, StageName


class AbsenceReason(Enum):
    """The reason why a number is absent. An absent number is never read as zero."""

    MISSING = "Missing"
    """The query returns no series."""
    STALE = "Stale"
    """The newest sample is too old for the window."""
    PARTIAL = "Partial"
    """Some of the ready pods do not report."""
    NOT_A_NUMBER = "NotANumber"
    """The source returned NaN or an infinity."""
    UNAVAILABLE = "Unavailable"
    """The source did not answer in time, or returned an error."""
    UNSUPPORTED = "Unsupported"
    """The server does not export this quantity, or the query cannot be evaluated."""
    NO_TRAFFIC = "NoTraffic"
    """A ratio per item, but there were no items in the window."""
    WINDOW_TOO_SHORT = "WindowTooShort"
    """There is no value over a window that is shorter than two scrape intervals."""
    TOO_NEW = "TooNew"
    """No pod has been ready for long enough to have samples."""
    AMBIGUOUS = "Ambiguous"
    """A pod reports several models, and `metrics.model` selects none of them."""
    ABOVE_BUCKETS = "AboveBuckets"
    """A percentile is above the last finite bound of its histogram, and that bound is not above the SLA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A number that is not known, with the reason. `detail` is free text for messages."""

    reason: AbsenceReason
    detail: str = ""


Reading = float | Absence


class AtLeast(float):
    """A reading of which only a lower bound is known: the last finite bound, for a quantile in the bucket to +Inf."""


MISSING = Absence(reason=AbsenceReason.MISSING)
TOO_NEW = Absence(reason=AbsenceReason.TOO_NEW, detail="no pod has been ready for long enough to have samples")

ABSURD = 1e24
"""Bound of the absolute value of a reading. Sums and squares of larger numbers could overflow."""


def sane(value: float) -> bool:
    """Return whether a number can be a reading: it is not NaN and within ±`ABSURD`."""
    return -ABSURD <= value <= ABSURD


class Quantity(Enum):
    """The metrics of a stage's servers, combined over the pods of one placement."""

    ARRIVAL_RATE = "arrivalRate"
    """Items offered to the stage, per second."""
    COMPLETION_RATE = "completionRate"
    """Items completed, per second."""
    LATENCY_MEAN = "latencyMean"
    """Mean time of an item from arrival to completion, in seconds."""
    LATENCY_P95 = "latencyP95"
    LATENCY_P95_FLOOR = "latencyP95Floor"
    """The lower bound of the histogram bucket that holds LATENCY_P95, which is interpolated within the bucket."""
    LATENCY_P95_CEILING = "latencyP95Ceiling"
    """The upper bound of the same bucket. For the bucket up to infinity it is the last finite bound."""
    LATENCY_P99 = "latencyP99"
    SERVICE_TIME = "serviceTime"
    """Mean time of one batch in service, in seconds."""
    BATCH_SIZE = "batchSize"
    """Mean items per batch."""
    SERVED_BATCH = "servedBatch"
    """The mean over items of the size of their batch. Only for servers whose SERVICE_TIME is a mean over items too,
    because they add up the service time of each item. It is computed as if all services took equally long; the model
    adds the effect of their variation."""
    PRESENT_BATCH = "presentBatch"
    """The mean batch size during the service of an item, for servers that export only a gauge of the batch size.
    BATCH_SIZE is then the mean over the time in which any item is in service. Long batches weigh more in both means."""
    PREFILL_TIME = "prefillTime"
    """Mean time of a request's prefill, in seconds, at servers that export it. Those before it may be included."""
    PREFIX_HIT_RATE = "prefixHitRate"
    """Share (0–1) of the tokens of prompts that the prefix cache had, so that their prefill was saved."""
    WORK_VARIATION = "workVariation"
    """Coefficient of variation (standard deviation / mean) of the work of items, such as the lengths of answers."""
    UTILIZATION = "utilization"
    """Share of the time in which the servers are busy, 0–1."""
    QUEUE_DEPTH = "queueDepth"
    """Items waiting, over all pods."""
    SESSIONS = "sessions"
    """Streams that hold a session slot, over all pods."""
    SESSION_REFUSALS = "sessionRefusals"
    """Sessions refused because no slot was free, per second, over all pods. Servers need not export it."""
    RX_QUEUE_PRESSURE = "rxQueuePressure"
    """Receive pressure of the worst pod, 0–1: how near the kernel is to losing what arrives for it. The function is
    `profiler.nic.pressure.rx_queue_pressure`."""
    ENGINES = "engines"
    """Engines in a pod that each serve batches of their own, as with data parallelism. Servers without them do not
    export it."""


class DeviceQuantity(Enum):
    """The metrics of the devices of a stage's pods, which exporters of the nodes have. They hold nothing if absent."""

    UTILIZATION = "deviceUtilization"
    """Share of the time in which the accelerator cores or GPUs of the pods are busy, 0–1; the mean of the pods. The
    server's own utilization is that of its replicas, which may wait for other things."""
    MEMORY_BYTES = "deviceMemory"
    """Device memory in use, in bytes, of the pod that uses most."""
    LATENCY_P99_S = "deviceLatencyP99"
    """99th percentile of the time of an execution on the device, in seconds, of the slowest pod."""
    COLLECTIVE_ACTIVITY = "collectiveActivity"
    """Traffic of the links between devices, as a share of their rate, 0–1, of the busiest pod: a proxy for collectives,
    which no exporter counts."""
    ERRORS = "deviceErrors"
    """Errors of the devices of all pods within the window."""
    THROTTLED = "deviceThrottled"
    """Share of the time in which a device is throttled because it is too hot, 0–1, of the worst pod."""
    RX_PACKETS_RPS = "rxPackets"
    """Packets per second that reach the network namespaces of all pods."""
    CPU_THROTTLED = "cpuThrottled"
    """Share of the periods of the CPU quota in which a pod used it up and was stopped, 0–1, of the worst pod."""
    NODE_RX_LOSSES_RPS = "nodeRxLosses"
    """Packets per second that the node of a pod loses on reception, of the worst node. They may be those of others."""


THROTTLED_SHARE = 0.05
"""Share of the time for which a device is throttled from which on it counts as faulty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFault:
    """What is wrong with the devices of one pod: `errors` within the window, and the share of time throttled (0–1)."""

    errors: float = 0.0
    throttled: float = 0.0


class Answer(Enum):
    """Which answer of a server its latencies are measured to, for servers that stream their answers."""

    WHOLE = "Whole"
    """The end of the answer."""
    FIRST = "First"
    """The first token. The replica is occupied until the end of the answer all the same."""


class MetricsTier(Enum):
    """Where the numbers of a pipeline come from, best first. A pipeline falls to a lower tier when metrics are lost."""

    PROMETHEUS = "Prometheus"
    CLOUDWATCH = "CloudWatch"
    """Amazon CloudWatch, in place of Prometheus."""
    DIRECT_SCRAPE = "DirectScrape"
    """The endpoints of the pods, scraped by the operator."""
    HOLDING = "Holding"
    """No source has the demand. The last demand is used, with a safety factor that grows with time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the numbers of a pipeline come from. `because` says why no better tier is used; empty for the best."""

    tier: MetricsTier = MetricsTier.PROMETHEUS
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEndpoint:
    """The metrics endpoint that a pod's annotations name. `port` None: the default port of the preset."""

    host: str
    port: int | None = None
    path: str = "/metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLabels:
    """The labels of the series of pods: the names of those with namespace and pod, and further ones with their values.

    `match` selects one of several clusters in a back end, for example.
    """

    namespace: str = "namespace"
    pod: str = "pod"
    match: tuple[tuple[str, str], ...] = ()


DEFAULT_LABELS = SeriesLabels()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrapes:
    """What samples show about the scrapes of a placement's pods.

    `interval_s` is the time between two scrapes, None where it is not known. `duplicated` are the pods that are scraped
    more than once; their numbers are counted once. `silent` are the ready pods without recent samples. Of these,
    `excused` have had none for `SILENT_S`: the others count for them. `unlabelled` says why no series has the label of
    a pod, empty where one has.
    """

    interval_s: float | None = None
    duplicated: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    excused: tuple[str, ...] = ()
    unlabelled: str = ""


SILENT_S = 600.0
"""Pods without samples for so long hold no other back: rates of the others, per pod, are taken to be theirs too."""
UNKNOWN_SCRAPES = Scrapes()

THROUGHPUT = (Quantity.ARRIVAL_RATE, Quantity.COMPLETION_RATE)
"""The quantities that must be known for a stage to count as observed. Both are sums, so they need every pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementTarget:
    """The pods of one placement whose metrics are read, with the queries of `preset`.

    `pods` are the ready pods that must have samples by now; pods that became ready within the last scrape are left out.
    `endpoints` has the metrics endpoint of every running pod, new ones included, for direct scrapes. Rates are averages
    over `window_s`. One replica serves `concurrency` batches of at most `batch_limit` items at once. `overrides`
    replaces the preset's query of a quantity by the user's PromQL, which must return one series and may use `$pods` and
    `$window`. `model` is the model of the server to which the metrics belong, None for the only one; `answer` is the
    answer whose latencies are read. `long_ready` are those of `pods` that have been ready for `SILENT_S` and longer.
    `labels` are those of the pods' series, None: those that the source is set to.
    """

    pipeline: PipelineKey
    stage: StageName
    placement: PlacementName
    namespace: str
    pods: frozenset[str]
    preset: str
    window_s: float
    concurrency: int
    batch_limit: int
    overrides: Mapping[Quantity, str]
    endpoints: Mapping[str, PodEndpoint] = field(default_factory=dict)
    model: str | None = None
    answer: Answer = Answer.WHOLE
    long_ready: frozenset[str] = frozenset()
    labels: SeriesLabels | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSamples:
    """The readings of one placement.

    `sessions` has the sessions of each pod by its name. Pods that do not report sessions are left out. `devices` has
    the readings of the devices of its pods, and `device_faults` what is wrong with those of a pod, by its name.
    `stuck` has the pods before which items wait and that complete none, while others of the placement do: how many wait
    there, by the name of the pod.
    """

    readings: Mapping[Quantity, Reading]
    sessions: Mapping[str, float] = field(default_factory=dict)
    scrapes: Scrapes = UNKNOWN_SCRAPES
    devices: Mapping[DeviceQuantity, Reading] = field(default_factory=dict)
    device_faults: Mapping[str, DeviceFault] = field(default_factory=dict)
    stuck: Mapping[str, float] = field(default_factory=dict)

    def of(self, quantity: Quantity) -> Reading:
        """Return the reading of `quantity`; it is `Missing` if the source returned none."""
        return self.readings.get(quantity, MISSING)

    def of_devices(self, quantity: DeviceQuantity) -> Reading:
        """Return the reading of `quantity`; it is `Unsupported` if no exporter has it for the devices of the pool."""
        return self.devices.get(quantity, NO_DEVICE)


NO_DEVICE = Absence(reason=AbsenceReason.UNSUPPORTED, detail="no exporter has it for the devices of the pool")
NO_SAMPLES = PlacementSamples(readings={})
