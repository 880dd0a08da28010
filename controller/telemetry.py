"""The operator's metrics: counters of its own work, and the numbers of the last Decision.

Series are made anew from every Decision, so those of a deleted pipeline end with it; a number that does not exist has
no series.
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
    "stage_utilization": Quantity.UTILIZATION,
    "stage_arrival_rate": Quantity.ARRIVAL_RATE,
    "stage_latency_seconds": Quantity.LATENCY_P95,
    "stage_queue_depth": Quantity.QUEUE_DEPTH,
}
_CYCLE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
DETAILED = 1000
"""Fleets up to this size have series of their stages: some thirty for each pipeline."""
_FAMILIES: tuple[tuple[str, str, list[str]], ...] = (
    ("pipelines", f"Pipelines served; of more than {DETAILED}, no series of stages", []),
    ("pipeline_demand", "Demand planned for, in the pipeline's unit", _PIPELINE),
    ("pipeline_observed_demand", "Demand observed, in the pipeline's unit", _PIPELINE),
    ("pipeline_latency_seconds", "End-to-end latency at the SLA's percentile", _PIPELINE),
    ("pipeline_sla_seconds", "The latency promised", _PIPELINE),
    ("pipeline_spend_per_hour", "USD per hour of what exists", _PIPELINE),
    ("pipeline_cost_per_hour", "USD per hour of the plan", _PIPELINE),
    ("pipeline_budget_per_hour", "USD per hour that may be spent", _PIPELINE),
    ("pipeline_served_fraction", "Largest share of the demand served within the SLA", _PIPELINE),
    ("metrics_source", "Where the numbers of a pipeline come from: 1", [*_PIPELINE, "source"]),
    ("metrics_age_seconds", "Time since a pipeline's demand was last seen", _PIPELINE),
    ("metrics_margin", "What a demand that is not seen is multiplied by", _PIPELINE),
    ("stage_pressure", "0.40 latency + 0.30 utilization + 0.30 queue", _STAGE),
    ("stage_utilization", "Busy share of the replicas", _STAGE),
    ("stage_arrival_rate", "Items offered to the stage per second", _STAGE),
    ("stage_latency_seconds", "95th percentile of waiting and service", _STAGE),
    ("stage_queue_depth", "Items waiting, over all replicas", _STAGE),
    ("stage_replicas_desired", "Replicas decided", _PLACEMENT),
    ("stage_replicas_ready", "Replicas that serve", _PLACEMENT),
    ("pool_instances", "Instances in use", ["pool"]),
    ("pool_limit", "Instances that may be used", ["pool"]),
    ("pool_unavailable", "1 while the pool is planned without, else 0", ["pool"]),
    ("placement_unavailable", "1 while the placement is planned without by itself", _PLACEMENT),
)
PARTS = ("read", "decide", "status", "apply")
"""What a cycle does, in this order."""


class Telemetry:
    """Everything the operator tells about itself."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._fleet = _Fleet()
        self._registry.register(self._fleet)
        Info("sluice_build", "The version that runs", registry=self._registry).info(
            {"version": version("sluice-operator")}
        )
        self._duration = Histogram(
            "sluice_cycle_duration_seconds", "Time of one cycle", buckets=_CYCLE_BUCKETS_S, registry=self._registry
        )
        self._parts = Counter(
            "sluice_cycle_part_seconds", "Time of the parts of cycles", ["part"], registry=self._registry
        )
        self._requests = Counter(
            "sluice_api_requests",
            "Requests to the API server, custom resources' watches left out",
            ["verb"],
            registry=self._registry,
        )
        self._cycles = Counter("sluice_cycles", "Cycles by outcome", ["outcome"], registry=self._registry)
        self._success = Gauge(
            "sluice_last_success_timestamp_seconds", "When a cycle last succeeded", registry=self._registry
        )
        self._writes = Counter(
            "sluice_scale_writes", "Replica changes by what became of them", ["outcome"], registry=self._registry
        )
        self._invalid = Gauge(
            "sluice_invalid_resources", "Resources that cannot be used as they are", registry=self._registry
        )
        self._leader = Gauge("sluice_leader", "Whether this replica is the one that writes", registry=self._registry)
        self._leader.set(1)  # alone, until it is told to ask a lease
        for outcome in ("success", "failure"):
            self._cycles.labels(outcome)
        for part in PARTS:
            self._parts.labels(part)

    def leads(self, leads: Callable[[], bool]) -> None:
        """Ask `leads` at every scrape whether this replica is the one that writes."""
        self._leader.set_function(leads)

    def succeeded(self, snapshot: Snapshot, decision: Decision, duration_s: float, invalid: int) -> None:
        """Record a cycle and what it decided."""
        self._fleet.take(snapshot, decision)
        self._duration.observe(duration_s)
        self._cycles.labels("success").inc()
        self._success.set(snapshot.now_s)
        self._invalid.set(invalid)

    def failed(self, duration_s: float) -> None:
        """Record a cycle that came to no decision; the series of the last one stay."""
        self._duration.observe(duration_s)
        self._cycles.labels("failure").inc()

    def wrote(self, outcome: str) -> None:
        """Record what became of one replica change."""
        self._writes.labels(outcome).inc()

    def took(self, part: str, seconds: float) -> None:
        """Record the time of one part of a cycle."""
        self._parts.labels(part).inc(seconds)

    def asked(self, verb: str) -> None:
        """Record a request to the API server."""
        self._requests.labels(verb).inc()

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _Fleet(Collector):
    """The series of the last decision: taken when it comes, so that it need not be kept beside the next one."""

    def __init__(self) -> None:
        self._families = _Families()

    def take(self, snapshot: Snapshot, decision: Decision) -> None:
        """Make the series of a decision."""
        families = _Families()
        detailed = len(decision.pipelines) <= DETAILED
        families.set("pipelines", [], len(decision.pipelines))
        for state, pipeline in zip(snapshot.pipelines, decision.pipelines, strict=True):
            families.add_pipeline(state, pipeline, decision.now_s, detailed=detailed)
        for pool in decision.pools:
            families.set("pool_instances", [pool.name], pool.in_use)
            families.set("pool_limit", [pool.name], pool.limit)
            families.set("pool_unavailable", [pool.name], unavailable(pool.memory, decision.now_s))
        self._families = families

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the series of the last decision."""
        yield from self._families.all()


class _Families:
    """The families of one decision; what a scrape needs of them beside the numbers is made when one comes."""

    def __init__(self) -> None:
        self._series: dict[str, list[tuple[list[str], float]]] = {name: [] for name, _, _ in _FAMILIES}

    def set(self, name: str, labels: list[str], value: Reading | None) -> None:
        """Add a series, unless there is no number."""
        if isinstance(value, int | float):
            self._series[name].append((labels, value))

    def all(self) -> Iterator[GaugeMetricFamily]:
        """Yield the families that have series."""
        for name, text, labels in _FAMILIES:
            if self._series[name]:
                family = GaugeMetricFamily(f"sluice_{name}", text, labels=labels)
                for values, value in self._series[name]:
                    family.add_metric(values, value)
                yield family

    def add_pipeline(self, state: PipelineState, decision: PipelineDecision, now_s: float, *, detailed: bool) -> None:
        """Add the series of one pipeline; those of its stages where `detailed`."""
        spec = state.spec
        labels = [spec.namespace, spec.name]
        self.set("pipeline_demand", labels, decision.demand)
        self.set("pipeline_observed_demand", labels, decision.observed)
        self.set("pipeline_latency_seconds", labels, decision.profile.latency_s)
        self.set("pipeline_sla_seconds", labels, spec.sla.latency_s)
        self.set("pipeline_spend_per_hour", labels, decision.spend_per_hour)
        self.set("pipeline_budget_per_hour", labels, spec.budget_per_hour)
        if decision.plan is not None:
            self.set("pipeline_cost_per_hour", labels, decision.plan.cost_per_hour)
            self.set("pipeline_served_fraction", labels, decision.plan.served_fraction)
        self.set("metrics_source", [*labels, decision.metrics.tier.value], 1)
        self.set("metrics_age_seconds", labels, decision.metrics.lost_for_s or 0.0)
        self.set("metrics_margin", labels, decision.metrics.margin)
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
