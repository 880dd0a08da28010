"""The operator's metrics: counters of its own work, and gauges of the last Decision.

The gauges are rebuilt from each Decision, so those of a deleted pipeline disappear. A value that is unknown has no
series.
"""

from collections.abc import Callable, Iterator
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.core.assess.availability import unavailable
from controller.core.state.decision import Decision, PipelineDecision
from controller.core.state.snapshot import PipelineState, Snapshot, TargetState
from profiler.samples import Quantity, Reading

_PIPELINE = ["namespace", "pipeline"]
_STAGE = [*_PIPELINE, "stage"]
_PLACEMENT = [*_STAGE, "pool"]
_STAGE_QUANTITIES = {
    "stage_utilization_ratio": Quantity.UTILIZATION,
    "stage_arrivals_per_second": Quantity.ARRIVAL_RATE,
    "stage_latency_seconds": Quantity.LATENCY_P95,
    "stage_queue_depth": Quantity.QUEUE_DEPTH,
}
_CYCLE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
DETAILED = 1000
"""Fleets of up to this many pipelines have series per stage: about thirty for each pipeline."""
FAMILIES: tuple[tuple[str, str, list[str]], ...] = (
    ("pipelines", f"Pipelines managed; with more than {DETAILED}, series of stages are left out", []),
    ("pipeline_demand", "Demand planned for, in the pipeline's unit", _PIPELINE),
    ("pipeline_observed_demand", "Demand observed, in the pipeline's unit", _PIPELINE),
    ("pipeline_latency_seconds", "End-to-end latency at the SLA's percentile", _PIPELINE),
    ("pipeline_overhead_seconds", "Measured time outside the stages; no series until it is known", _PIPELINE),
    ("pipeline_sla_seconds", "Latency limit of the SLA", _PIPELINE),
    ("pipeline_spend_usd_per_hour", "Cost of the existing replicas in USD per hour", _PIPELINE),
    ("pipeline_cost_usd_per_hour", "Cost of the plan in USD per hour", _PIPELINE),
    ("pipeline_budget_usd_per_hour", "Budget in USD per hour", _PIPELINE),
    ("pipeline_served_ratio", "Largest share of the demand that can be served within the SLA, 0 to 1", _PIPELINE),
    ("pipeline_admissible", "Demand to admit, in the pipeline's unit; no series while there is no limit", _PIPELINE),
    ("metrics_source", "1 for the source that the pipeline's metrics come from", [*_PIPELINE, "source"]),
    ("demand_unseen_seconds", "Time for which the pipeline's demand has not been observed, 0 if it is", _PIPELINE),
    ("demand_safety_factor", "Factor applied to the last demand while it is not observed, else 1", _PIPELINE),
    ("stage_pressure", "0.40 latency + 0.30 utilization + 0.30 queue", _STAGE),
    ("stage_utilization_ratio", "Busy share of the replicas, 0 to 1", _STAGE),
    ("stage_arrivals_per_second", "Items offered to the stage per second", _STAGE),
    ("stage_latency_seconds", "95th percentile of waiting plus service time", _STAGE),
    ("stage_queue_depth", "Items waiting, over all replicas", _STAGE),
    ("stage_replicas_desired", "Replicas desired", _PLACEMENT),
    ("stage_replicas_ready", "Replicas ready", _PLACEMENT),
    ("pool_instances", "Instances of the pool in use", ["pool"]),
    ("pool_limit", "Maximum number of instances of the pool", ["pool"]),
    ("pool_unavailable", "1 while plans avoid the pool because replicas did not start on it, else 0", ["pool"]),
    ("placement_unavailable", "1 while plans avoid the placement because replicas did not start, else 0", _PLACEMENT),
)
"""The gauges of a decision: name without the prefix `sluice_`, help text, labels."""
PARTS = ("read", "decide", "status", "apply")
"""The parts of a cycle, in order."""


class Telemetry:
    """All metrics of the operator, in a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._fleet = _Fleet()
        self._registry.register(self._fleet)
        Info("sluice_build", "Version of the operator", registry=self._registry).info(
            {"version": version("sluice-operator")}
        )
        self._duration = Histogram(
            "sluice_cycle_duration_seconds", "Duration of a cycle", buckets=_CYCLE_BUCKETS_S, registry=self._registry
        )
        self._parts = Counter(
            "sluice_cycle_part_seconds", "Time spent in each part of the cycles", ["part"], registry=self._registry
        )
        self._requests = Counter(
            "sluice_api_requests",
            "Requests to the API server, without the watches of SpeechPipelines and ComputePools",
            ["verb"],
            registry=self._registry,
        )
        self._cycles = Counter("sluice_cycles", "Cycles by outcome", ["outcome"], registry=self._registry)
        self._success = Gauge(
            "sluice_last_success_timestamp_seconds", "Time of the last successful cycle", registry=self._registry
        )
        self._writes = Counter(
            "sluice_scale_writes", "Replica changes by outcome", ["outcome"], registry=self._registry
        )
        self._invalid = Gauge(
            "sluice_invalid_resources", "SpeechPipelines and ComputePools with an invalid spec", registry=self._registry
        )
        self._leader = Gauge("sluice_leader", "1 if this replica is the leader, else 0", registry=self._registry)
        self._leader.set(1)  # stays 1 without leader election
        for outcome in ("success", "failure"):
            self._cycles.labels(outcome)
        for part in PARTS:
            self._parts.labels(part)

    def leads(self, leads: Callable[[], bool]) -> None:
        """Report as `sluice_leader`, at every scrape, whether this replica leads: the result of `leads()`."""
        self._leader.set_function(leads)

    def succeeded(self, snapshot: Snapshot, decision: Decision, duration_s: float, invalid: int) -> None:
        """Record a successful cycle: its duration, its decision, and the number of resources that cannot be used."""
        self._fleet.take(snapshot, decision)
        self._duration.observe(duration_s)
        self._cycles.labels("success").inc()
        self._success.set(snapshot.now_s)
        self._invalid.set(invalid)

    def failed(self, duration_s: float) -> None:
        """Record a failed cycle, which took `duration_s`; the gauges of the last decision stay."""
        self._duration.observe(duration_s)
        self._cycles.labels("failure").inc()

    def wrote(self, outcome: str) -> None:
        """Count one replica change by its `outcome`, the value of a `WriteOutcome`."""
        self._writes.labels(outcome).inc()

    def took(self, part: str, seconds: float) -> None:
        """Add `seconds` to the time spent in `part`, one of `PARTS`."""
        self._parts.labels(part).inc(seconds)

    def requested(self, verb: str) -> None:
        """Count one request to the API server; `verb` is its HTTP method, or WATCH."""
        self._requests.labels(verb).inc()

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _Fleet(Collector):
    """The gauges of the last decision as plain numbers, so that the decision itself need not be kept in memory.

    Prometheus' objects are made during a scrape.
    """

    def __init__(self) -> None:
        self._series: dict[str, list[tuple[list[str], float]]] = {}

    def take(self, snapshot: Snapshot, decision: Decision) -> None:
        """Replace the gauges by those of a new decision."""
        gauges = _Gauges()
        detailed = len(decision.pipelines) <= DETAILED
        gauges.set("pipelines", [], len(decision.pipelines))
        for state, pipeline in zip(snapshot.pipelines, decision.pipelines, strict=True):
            gauges.add_pipeline(state, pipeline, decision.now_s, detailed=detailed)
        for pool in decision.pools:
            gauges.set("pool_instances", [pool.name], pool.in_use)
            gauges.set("pool_limit", [pool.name], pool.limit)
            gauges.set("pool_unavailable", [pool.name], unavailable(pool.memory, decision.now_s))
        self._series = gauges.series

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges that have at least one series."""
        series = self._series
        for name, text, labels in FAMILIES:
            if name in series:
                family = GaugeMetricFamily(f"sluice_{name}", text, labels=labels)
                for values, value in series[name]:
                    family.add_metric(values, value)
                yield family


class _Gauges:
    """The series of one decision by the name of their gauge."""

    def __init__(self) -> None:
        self.series: dict[str, list[tuple[list[str], float]]] = {}

    def set(self, name: str, labels: list[str], value: Reading | None) -> None:
        """Add a series, unless its value is unknown."""
        if isinstance(value, int | float):
            self.series.setdefault(name, []).append((labels, value))

    def add_pipeline(self, state: PipelineState, decision: PipelineDecision, now_s: float, *, detailed: bool) -> None:
        """Add the series of one pipeline, and those of its stages if `detailed`."""
        spec = state.spec
        labels = [spec.namespace, spec.name]
        self.set("pipeline_demand", labels, decision.demand.planned)
        self.set("pipeline_observed_demand", labels, decision.demand.observed)
        self.set("pipeline_latency_seconds", labels, decision.profile.latency_s)
        self.set("pipeline_overhead_seconds", labels, decision.profile.overhead_s)
        self.set("pipeline_sla_seconds", labels, spec.sla.latency_s)
        self.set("pipeline_spend_usd_per_hour", labels, decision.spend_per_hour)
        self.set("pipeline_budget_usd_per_hour", labels, spec.budget_per_hour)
        if decision.plan is not None:
            self.set("pipeline_cost_usd_per_hour", labels, decision.plan.cost_per_hour)
            self.set("pipeline_served_ratio", labels, decision.plan.served_fraction)
        self.set("pipeline_admissible", labels, decision.admissible)
        self.set("metrics_source", [*labels, decision.metrics.tier.value], 1)
        self.set("demand_unseen_seconds", labels, decision.metrics.lost_for_s or 0.0)
        self.set("demand_safety_factor", labels, decision.metrics.margin)
        if not detailed:
            return
        for stage in decision.profile.stages:
            self.set("stage_pressure", [*labels, stage.name], stage.pressure)
            for name, quantity in _STAGE_QUANTITIES.items():
                self.set(name, [*labels, stage.name], stage.readings.get(quantity))
        for (stage_name, pool), failure in decision.memory.failures.items():
            self.set("placement_unavailable", [*labels, stage_name, pool], unavailable(failure.outage, now_s))
        for (stage_name, pool), target in state.targets.items():
            self.set("stage_replicas_desired", [*labels, stage_name, pool], decision.desired.get((stage_name, pool)))
            if isinstance(target, TargetState):
                self.set("stage_replicas_ready", [*labels, stage_name, pool], target.ready)
