"""The operator's metrics: counters of its own work, and gauges of the last Decision.

The gauges are rebuilt from each Decision, so those of a deleted pipeline disappear. A value that is unknown has no
series. `FAMILIES` and `metric_names` say what there is; `controller.monitoring` and `docs/monitoring.md` are made from
them.
"""

import math
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics import MetricWrapperBase

from controller.core.act.admission import LAPSE_S
from controller.core.assess.standing import fleet_spend_per_hour
from controller.core.bounds.availability import unavailable
from controller.core.messages.sentences import missed
from controller.core.messages.summary import health
from controller.core.plan.large_fleet import planned_at_s
from controller.core.state.carry_over import FailureCause
from controller.core.state.cloud import PriceOrigin
from controller.core.state.decision import BacklogOutlook, Decision, PipelineDecision, PoolDecision
from controller.core.state.provider_errors import ERRORS_COUNT_S, ErrorClass
from controller.core.state.snapshot import REPLICA_STATES, PipelineState, PoolState, Snapshot, TargetState
from controller.exposition import heading, joined, line, lines
from controller.kube.packed import Packed, Packer
from optimizer.model import PipelineKey, PlacementName, PoolName, pool_of
from profiler.samples import THROUGHPUT, Absence, AbsenceReason, DeviceQuantity, Quantity, Reading
from profiler.sources.base import QueryKind

_PIPELINE = ["namespace", "pipeline"]
_STAGE = [*_PIPELINE, "stage"]
_PLACEMENT = [*_STAGE, "pool"]
_STAGE_QUANTITIES = {
    "stage_utilization_ratio": Quantity.UTILIZATION,
    "stage_arrivals_per_second": Quantity.ARRIVAL_RATE,
    "stage_latency_seconds": Quantity.LATENCY_P95,
    "stage_queue_depth": Quantity.QUEUE_DEPTH,
    "stage_refusals_per_second": Quantity.SESSION_REFUSALS,
    "stage_rx_queue_pressure_ratio": Quantity.RX_QUEUE_PRESSURE,
}
_STAGE_DEVICES = {
    "stage_device_utilization_ratio": DeviceQuantity.UTILIZATION,
    "stage_device_latency_p99_seconds": DeviceQuantity.LATENCY_P99_S,
    "stage_device_memory_bytes": DeviceQuantity.MEMORY_BYTES,
    "stage_collective_activity_ratio": DeviceQuantity.COLLECTIVE_ACTIVITY,
    "stage_rx_packets_per_second": DeviceQuantity.RX_PACKETS_RPS,
    "stage_node_rx_losses_per_second": DeviceQuantity.NODE_RX_LOSSES_RPS,
}
_ANSWERED = "Answered"
_CYCLE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
DETAILED = 1000
"""Fleets of up to this many pipelines have series per stage: about forty for each pipeline."""
FAMILIES: tuple[tuple[str, str, list[str]], ...] = (
    ("pipelines", f"Pipelines managed; with more than {DETAILED}, series of stages are left out", []),
    ("assessed_ratio", "Share (0-1) of the pipelines that the last cycle assessed; less than 1 in a large fleet", []),
    ("assessed_age_seconds", "Time since the pipelines were assessed: the median, and the oldest", ["statistic"]),
    ("never_assessed_pipelines", "Pipelines that were not assessed since the operator started", []),
    (
        "planned_ratio",
        "Share (0-1) of the pipelines that the last cycle planned anew; less than 1 in a large fleet",
        [],
    ),
    ("planned_age_seconds", "Age of the plans of the pipelines: the median, and the oldest", ["statistic"]),
    ("never_planned_pipelines", "Pipelines that have no plan yet", []),
    ("pipeline_info", "1, with the pipeline's mode and the unit of its demand", [*_PIPELINE, "mode", "unit"]),
    ("pipeline_health", "1 for the health of the pipeline, as in the column HEALTH", [*_PIPELINE, "health"]),
    ("pipeline_limited", "1 for the limit that keeps the plan from serving more", [*_PIPELINE, "limited_by"]),
    ("pipeline_hold", "Number of holds with this reason: changes that are held back", [*_PIPELINE, "reason"]),
    (
        "pipeline_last_change_timestamp_seconds",
        "Time of the last decision that changed replicas for this reason, since the operator started",
        [*_PIPELINE, "reason"],
    ),
    ("pipeline_demand", "Demand planned for, in the pipeline's unit", _PIPELINE),
    ("pipeline_observed_demand", "Demand observed, in the pipeline's unit", _PIPELINE),
    ("pipeline_latency_seconds", "End-to-end latency at the SLA's percentile", _PIPELINE),
    ("pipeline_planned_latency_seconds", "Latency of the plan at the SLA's percentile, predicted", _PIPELINE),
    ("pipeline_sla_missed", "1 while the latency exceeds the SLA, else 0; no series while it is unknown", _PIPELINE),
    (
        "pipeline_sla_missed_for_seconds",
        "Time for which every known latency has exceeded the SLA, 0 while it does not; no series while it is unknown",
        _PIPELINE,
    ),
    (
        "pipeline_cause",
        "How certain the diagnosis is of a cause of an incident, 0 to 1; stage is empty for one of the whole pipeline",
        [*_PIPELINE, "stage", "cause"],
    ),
    (
        "pipeline_refused_demand",
        "Observed demand above the demand to admit, without other refusals; no series while the demand is unknown",
        _PIPELINE,
    ),
    (
        "pipeline_starting_replicas",
        "Replicas on the pool that are desired and not ready; no series without any",
        [*_PIPELINE, "pool"],
    ),
    (
        "pipeline_ready_in_seconds",
        "Expected time until they are all ready, by measured start-up times; no series while it is unknown",
        [*_PIPELINE, "pool"],
    ),
    ("pipeline_backlog_items", "Items of a backlog that are left; no series while the number is unknown", _PIPELINE),
    (
        "pipeline_backlog_required_per_second",
        "Items per second that meet the deadline of a backlog, with its reserve; no series while unknown",
        _PIPELINE,
    ),
    (
        "pipeline_backlog_planned_per_second",
        "Items per second of the planned replicas of a backlog; no series while nothing is planned",
        _PIPELINE,
    ),
    (
        "pipeline_backlog_finish_seconds",
        "Expected time until the last item of a backlog is done; no series while unknown",
        _PIPELINE,
    ),
    (
        "pipeline_backlog_deadline_seconds",
        "Time until the deadline of a backlog, below 0 after it; no series while it is unknown",
        _PIPELINE,
    ),
    (
        "pipeline_backlog_late",
        "1 while a backlog is expected to miss its deadline, else 0; no series while that is unknown",
        _PIPELINE,
    ),
    ("pipeline_overhead_seconds", "Measured time outside the stages; no series until it is known", _PIPELINE),
    ("pipeline_sla_seconds", "Latency limit of the SLA; no series for a backlog", _PIPELINE),
    (
        "pipeline_spend_usd_per_hour",
        "Cost of the existing replicas in USD per hour, on the basis of the budget",
        _PIPELINE,
    ),
    ("pipeline_cost_usd_per_hour", "Cost of the plan in USD per hour, on the basis of the budget", _PIPELINE),
    ("pipeline_budget_usd_per_hour", "Budget in USD per hour; status.budgetBasis says what it counts", _PIPELINE),
    (
        "pipeline_budget_excused",
        "1 while spend above the budget is excused because replicas drain, else 0",
        _PIPELINE,
    ),
    (
        "pool_orphaned_replicas",
        "Replicas that Sluice scaled on a pool and that no pipeline has any more",
        ["pool"],
    ),
    ("fleet_spend_usd_per_hour", "Cost of all replicas, those that no cycle can change included, USD per hour", []),
    ("fleet_budget_usd_per_hour", "Budget of all pipelines together in USD per hour; no series without one", []),
    ("budget_limit_usd_per_hour", "What a ComputeBudget allows now in USD per hour", ["budget"]),
    ("budget_spend_usd_per_hour", "Cost of the existing replicas of its pipelines in USD per hour", ["budget"]),
    ("budget_planned_usd_per_hour", "Cost of the plans of its pipelines in USD per hour", ["budget"]),
    ("budget_pipelines", "Pipelines that have the ComputeBudget together", ["budget"]),
    ("budget_short_pipelines", "Pipelines that are served in part because of the ComputeBudget", ["budget"]),
    (
        "budget_excused",
        "1 while spend above the ComputeBudget is excused because replicas drain, else 0",
        ["budget"],
    ),
    ("pipeline_served_ratio", "Largest share of the demand that can be served within the SLA, 0 to 1", _PIPELINE),
    ("pipeline_admissible", "Demand to admit, in the pipeline's unit; no series while there is no limit", _PIPELINE),
    (
        "pipeline_admissible_expiry_timestamp_seconds",
        "Time after which the demand to admit is no longer a limit; no series while there is none",
        _PIPELINE,
    ),
    ("metrics_source", "1 for the source that the pipeline's metrics come from", [*_PIPELINE, "source"]),
    ("demand_unseen_seconds", "Time for which the pipeline's demand has not been observed, 0 if it is", _PIPELINE),
    ("demand_safety_factor", "Factor applied to the last demand while it is not observed, else 1", _PIPELINE),
    (
        "metric_readings",
        f"Readings that the last cycle needed by result: {_ANSWERED}, or the reason why there is no number",
        ["result"],
    ),
    ("stage_pressure", "0.40 latency + 0.30 utilization + 0.30 queue or receive pressure", _STAGE),
    (
        "stage_sessions_to_give_up",
        "Sticky sessions that replicas of the stage hold above their share, while that costs the SLA; else no series",
        _STAGE,
    ),
    (
        "stage_sessions_drained",
        "Sessions of crowded replicas that were drained, within an hour of the first; no series where none was",
        _STAGE,
    ),
    ("stage_utilization_ratio", "Busy share of the replicas, 0 to 1", _STAGE),
    ("stage_arrivals_per_second", "Items offered to the stage per second", _STAGE),
    ("stage_pass_ratio", "Items passed on per item received, as plans use it; no series until measured", _STAGE),
    ("stage_latency_seconds", "95th percentile of waiting plus service time", _STAGE),
    ("stage_queue_depth", "Items waiting, over all replicas", _STAGE),
    ("stage_refusals_per_second", "Streams that the stage refused per second, because no slot was free", _STAGE),
    ("stage_rx_queue_pressure_ratio", "Receive pressure of the worst pod, 0 to 1; no series while unknown", _STAGE),
    ("stage_device_utilization_ratio", "Busy share of the accelerators of the replicas, 0 to 1", _STAGE),
    ("stage_device_latency_p99_seconds", "99th percentile of an execution on the slowest accelerator", _STAGE),
    ("stage_device_memory_bytes", "Memory in use on the accelerators of the replica that uses most", _STAGE),
    ("stage_collective_activity_ratio", "Traffic of the links between accelerators over their rate, 0 to 1", _STAGE),
    (
        "placement_device_faults",
        "Errors of the devices of replicas on this node in the window, and 1 more for each that is throttled",
        [*_PLACEMENT, "node"],
    ),
    ("stage_rx_packets_per_second", "Packets that reach the replicas per second", _STAGE),
    ("stage_node_rx_losses_per_second", "Packets that the worst node of the replicas loses on reception", _STAGE),
    ("stage_latency_factor", "Measured over modelled 95th percentile, as plans use it", _STAGE),
    ("placement_service_factor", "Measured over declared mean service time; no series until measured", _PLACEMENT),
    ("stage_replicas_desired", "Replicas desired", _PLACEMENT),
    (
        "stage_replicas_recommended",
        "Replicas that Sluice would set, in mode Recommend; no series in other modes",
        _PLACEMENT,
    ),
    ("stage_replicas_ready", "Replicas ready", _PLACEMENT),
    ("pool_instances", "Instances of the pool in use", ["pool"]),
    ("pool_planned_instances", "Instances of the pool that the replicas after this cycle's changes need", ["pool"]),
    ("pool_ready_instances", "Ready nodes of the pool", ["pool"]),
    ("pool_leaving_instances", "Ready nodes of the pool that are being removed", ["pool"]),
    (
        "pool_arriving_nodes",
        "Nodes that Karpenter has launched for the pool and that have not registered yet",
        ["pool"],
    ),
    ("pool_limit", "Maximum number of instances of the pool", ["pool"]),
    ("pool_price_usd_per_hour", "Price of an instance in USD per hour", ["pool"]),
    (
        "pool_price_age_seconds",
        "Time since the price of the pool was looked up; no series without price.aws, and before the first look-up",
        ["pool"],
    ),
    (
        "pool_price_day_usd_per_hour",
        "Lowest and highest spot price of the last day in USD per hour, over the types and zones of the pool",
        ["pool", "bound"],
    ),
    (
        "pool_quota_vcpus",
        "The quota of the AWS account that bounds the pool, in vCPUs; no series while it is not known",
        ["pool", "code"],
    ),
    (
        "pool_quota_others_vcpus",
        "vCPUs of that quota that instances outside of the pool use; no series while it is not known",
        ["pool", "code"],
    ),
    (
        "pool_quota_instances",
        "Instances of the pool that the quota allows; no series while it is not known",
        ["pool", "code"],
    ),
    (
        "pool_provider_refuses",
        "1 if the provider has refused a launch for the pool in the last 15 minutes, by class of error, else 0",
        ["pool", "class"],
    ),
    (
        "pool_shadow_price_usd_per_hour",
        "Saving by one more instance in USD per hour; no series while it was not computed",
        ["pool"],
    ),
    (
        "pool_shard_instances",
        "Instances of the pool that this operator's shard uses, has agreed to and is allowed; no series without shards",
        ["pool", "amount"],
    ),
    ("pool_replicas", "Replicas on the pool by state", ["pool", "state"]),
    ("pool_failing_placements", "Placements on the pool that plans avoid although it delivers", ["pool", "cause"]),
    ("pool_unavailable", "1 while plans avoid the pool because replicas did not start on it, else 0", ["pool"]),
    (
        "pipeline_status_refused",
        "1 while the API server refuses the pipeline's status, else 0; what a restart needs is then in the Lease",
        _PIPELINE,
    ),
    (
        "clock_skew_seconds",
        "Time by which the API server's clock is ahead of the operator's; no series until it is known",
        [],
    ),
    ("placement_unavailable", "1 while plans avoid the placement because replicas did not start, else 0", _PLACEMENT),
)
"""The gauges of a decision: name without the prefix `sluice_`, help text, labels."""
_LABELS = {name: labels for name, _, labels in FAMILIES}
COUNTERS: tuple[tuple[str, str, list[str]], ...] = (
    (
        "pipeline_sla_missed_seconds",
        "Time in which the latency exceeded the SLA",
        _PIPELINE,
    ),
    (
        "pipeline_sla_known_seconds",
        "Time in which the latency was known, within the SLA or not; without sla.query, only in cycles that assess it",
        _PIPELINE,
    ),
)
"""The counters of decisions: name without the prefix `sluice_` and the suffix `_total`, help text, labels."""
_LONGEST_CYCLES = 4
"""The time between two decisions counts for at most so many intervals: what happened in a longer one is not known."""
PARTS = ("read", "decide", "status", "apply")
"""The parts of a cycle, in order."""


_SUFFIX = {"counter": "_total", "info": "_info"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A metric that the operator exports: its name, its kind in Prometheus, its help text and its labels."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]


class Telemetry:
    """All metrics of the operator, in a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._fleet = _Fleet()
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
        self._unanswered = Gauge(
            "sluice_metrics_unanswered_ratio",
            "Share of the last cycle's queries to Prometheus without an answer, by kind",
            ["kind"],
            registry=self._registry,
        )
        self._unreadable = Counter(
            "sluice_unreadable_objects",
            "Objects of the cluster that could not be read and were left out, by kind",
            ["kind"],
            registry=self._registry,
        )
        self._writes = Counter(
            "sluice_scale_writes", "Replica changes by outcome", ["outcome"], registry=self._registry
        )
        self._invalid = Gauge(
            "sluice_invalid_resources",
            "SpeechPipelines, ComputePools and ComputeBudgets with an invalid spec",
            registry=self._registry,
        )
        self._foreign = Gauge(
            "sluice_foreign_pipelines",
            "Pipelines of the managed namespaces that another operator scales",
            registry=self._registry,
        )
        self._pending = Gauge(
            "sluice_pending_status_pipelines",
            "Pipelines of a large fleet whose status does not have their last decision yet",
            registry=self._registry,
        )
        self._leader = Gauge("sluice_leader", "1 if this replica is the leader, else 0", registry=self._registry)
        self._leader.set(1)  # stays 1 without leader election
        self._interval = Gauge(
            "sluice_cycle_interval_seconds", "Time between cycles, as configured", registry=self._registry
        )
        ProcessCollector(registry=self._registry)
        for outcome in ("success", "failure"):
            self._cycles.labels(outcome)
        for part in PARTS:
            self._parts.labels(part)

    def runs_every(self, interval_s: float) -> None:
        """Report `interval_s` as the configured time between cycles."""
        self._interval.set(interval_s)

    def measures_skew(self, skew_s: Callable[[], float | None]) -> None:
        """Report in every cycle how many seconds the API server's clock is ahead: the result of `skew_s()`."""
        self._fleet.skew_s = skew_s

    def leads(self, leads: Callable[[], bool]) -> None:
        """Report as `sluice_leader`, at every scrape, whether this replica leads: the result of `leads()`."""
        self._leader.set_function(leads)

    def succeeded(
        self,
        snapshot: Snapshot,
        decision: Decision,
        duration_s: float,
        invalid: int,
        *,
        refused: Collection[PipelineKey] = (),
        late: Mapping[PipelineKey, bool] | None = None,
    ) -> None:
        """Record a successful cycle: its duration, its decision, and the number of resources that cannot be used.

        `refused` are the pipelines whose status the API server refuses. `late` says, of the pipelines that stand and
        whose latency is known, whether it exceeds the SLA.
        """
        self._fleet.take(snapshot, decision, refused, {} if late is None else late)
        self._duration.observe(duration_s)
        self._cycles.labels("success").inc()
        self._success.set(snapshot.now_s)
        self._invalid.set(invalid)

    def read(self, unanswered: Mapping[QueryKind, float], foreign: int = 0, pending: int = 0) -> None:
        """Report the share (0–1) of the queries for metrics that got no answer, for each kind that has queries.

        `foreign` is the number of pipelines that another operator scales, `pending` that of those of a large fleet
        whose status does not have their last decision yet.
        """
        self._foreign.set(foreign)
        self._pending.set(pending)
        # Kinds that stay are not removed first: a scrape in between would see no series.
        for kind in set(QueryKind) - unanswered.keys():
            self._unanswered.remove(kind.value)
        for kind, share in unanswered.items():
            self._unanswered.labels(kind.value).set(share)

    def left_out(self, unreadable: Mapping[str, int]) -> None:
        """Count the objects of each kind that could not be read in this cycle."""
        for kind, count in unreadable.items():
            self._unreadable.labels(kind).inc(count)

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
        return b"".join((*self._fleet.exposition(), generate_latest(self._registry)))

    def own_metrics(self) -> Iterator[Described]:
        """Yield the metrics of the operator's own work, those that have no series yet included."""
        for metric in vars(self).values():
            if isinstance(metric, MetricWrapperBase):
                for family in metric.describe():
                    yield Described(
                        name=family.name + _SUFFIX.get(family.type, ""),
                        kind=family.type,
                        text=family.documentation,
                        labels=tuple(metric._labelnames),  # noqa: SLF001 -- the library has no other way to them
                    )


def described() -> tuple[Described, ...]:
    """Return every metric that the operator exports, except those of its process (`process_…`)."""
    build = Described(name="sluice_build_info", kind="info", text="Version of the operator", labels=("version",))
    gauges = (
        Described(name=f"sluice_{name}", kind="gauge", text=text, labels=tuple(labels))
        for name, text, labels in FAMILIES
    )
    counters = (
        Described(name=f"sluice_{name}_total", kind="counter", text=text, labels=tuple(labels))
        for name, text, labels in COUNTERS
    )
    return (*gauges, *counters, *Telemetry().own_metrics(), build)


def metric_names() -> frozenset[str]:
    """Return the name of every series that the operator exports, those of its process included."""
    names = {metric.name for metric in described() if metric.kind != "histogram"}
    names |= {f"{m.name}_{part}" for m in described() if m.kind == "histogram" for part in ("bucket", "sum", "count")}
    process = {sample.name for family in ProcessCollector(registry=None).collect() for sample in family.samples}
    return frozenset(names | process)


class _Fleet:
    """The gauges of the last decision as lines of text, so that the decision itself need not be kept in memory."""

    def __init__(self) -> None:
        self.skew_s: Callable[[], float | None] = lambda: None
        self._of_fleet: Mapping[str, bytes] = {}
        self._packer = Packer()
        self._of_pipelines: dict[PipelineKey, Packed] = {}
        self._changed_at_s: dict[PipelineKey, dict[str, float]] = {}
        self._counted: dict[str, dict[PipelineKey, float]] = {name: {} for name, _, _ in COUNTERS}
        self._decided_at_s: float | None = None

    def take(
        self,
        snapshot: Snapshot,
        decision: Decision,
        refused: Collection[PipelineKey],
        late: Mapping[PipelineKey, bool],
    ) -> None:
        """Replace the gauges by those of a new decision; those of pipelines that stand stay as they are."""
        gauges = _Gauges()
        gauges.set("clock_skew_seconds", [], self.skew_s())
        fleet = len(decision.pipelines) + len(snapshot.standing)
        gauges.set("pipelines", [], fleet)
        standing = {each.key for each in snapshot.standing}
        # One that was not assessed yet has no series: those by its name are of a pipeline that was deleted.
        known = {each.key for each in snapshot.standing if each.assessed_at_s is not None}
        self._changed_at_s = {
            **{key: last for key, last in self._changed_at_s.items() if key in known},
            **{
                pipeline.key: self._changed_at_s.get(pipeline.key, {})
                | {change.reason.value: decision.now_s for change in pipeline.changes}
                for pipeline in decision.pipelines
            },
        }
        of_pipelines = {key: series for key, series in self._of_pipelines.items() if key in known}
        for state, pipeline in zip(snapshot.pipelines, decision.pipelines, strict=True):
            own = _Gauges()
            own.add_pipeline(state, pipeline, decision.now_s, detailed=fleet <= DETAILED)
            labels = [state.spec.namespace, state.spec.name]
            own.set("pipeline_status_refused", labels, pipeline.key in refused)
            for reason, at_s in self._changed_at_s[pipeline.key].items():
                own.set("pipeline_last_change_timestamp_seconds", [*labels, reason], at_s)
            of_pipelines[pipeline.key] = self._packer.pack_value(own.lines())
        self._of_pipelines = of_pipelines
        self._count(decision, {key: late.get(key) for key in standing})
        gauges.add_turns(snapshot, decision)
        gauges.add_fleet(snapshot, decision)
        gauges.add_readings(snapshot)
        replicas, failing = _replicas_by_pool(snapshot), _failing_by_pool(decision)
        for pool in decision.pools:
            gauges.add_pool(snapshot.pools[pool.name], pool, decision.now_s)
            for kind in REPLICA_STATES:
                gauges.set("pool_replicas", [pool.name, kind], replicas[pool.name, kind])
            for cause in FailureCause:
                gauges.set("pool_failing_placements", [pool.name, cause.value], failing[pool.name, cause])
        self._of_fleet = gauges.lines()

    def _count(self, decision: Decision, standing: Mapping[PipelineKey, bool | None]) -> None:
        """Add the time since the last decision to the time in which each latency was known, and was above the SLA.

        `standing` has whether the latency of each pipeline that stands is above the SLA, None where it is not known.
        """
        before_s = decision.now_s if self._decided_at_s is None else self._decided_at_s
        most_s = _LONGEST_CYCLES * decision.policy.interval_s
        passed_s = min(most_s, max(0.0, decision.now_s - before_s))
        self._decided_at_s = decision.now_s
        above = {
            **standing,
            **{
                own.key: None if isinstance(own.profile.latency_s, Absence) else missed(own)
                for own in decision.pipelines
                if own.spec.backlog is None  # it has no SLA
            },
        }
        counts: dict[str, Callable[[bool | None], bool]] = {
            "pipeline_sla_missed_seconds": bool,
            "pipeline_sla_known_seconds": lambda exceeds: exceeds is not None,
        }
        last = self._counted
        self._counted = {
            name: {
                key: last[name].get(key, 0.0) + (passed_s if holds(exceeds) else 0.0) for key, exceeds in above.items()
            }
            for name, holds in counts.items()
        }

    def exposition(self) -> Iterator[bytes | bytearray]:
        """Yield the gauges and counters that have at least one series, in Prometheus' text format."""
        gauges = joined(chain([self._of_fleet], (packed.value() for packed in self._of_pipelines.values())))
        for name, text, _ in FAMILIES:
            if name in gauges:
                yield heading(f"sluice_{name}", "gauge", text)
                yield gauges[name]
        for name, text, labels in COUNTERS:
            if counted := self._counted[name]:
                own = f"sluice_{name}_total"
                yield heading(own, "counter", text)
                yield "".join(line(own, labels, key.split("/", 1), value) for key, value in counted.items()).encode()


class _Gauges:
    """The series of one decision by the name of their gauge."""

    def __init__(self) -> None:
        self.series: dict[str, list[tuple[Sequence[str], float]]] = {}

    def lines(self) -> dict[str, bytes]:
        """Return the lines of the series by the name of their gauge."""
        return lines(self.series, "sluice_", _LABELS)

    def set(self, name: str, labels: Sequence[str], value: Reading | None) -> None:
        """Add a series, unless its value is unknown."""
        if isinstance(value, int | float):
            self.series.setdefault(name, []).append((labels, value))

    def add_pipeline(self, state: PipelineState, decision: PipelineDecision, now_s: float, *, detailed: bool) -> None:
        """Add the series of one pipeline, and those of its stages if `detailed`."""
        spec = state.spec
        labels = [spec.namespace, spec.name]
        self.set("pipeline_info", [*labels, spec.mode.value, spec.unit.value], 1)
        self.set("pipeline_health", [*labels, health(decision).value], 1)
        for reason, count in Tally(hold.reason.value for hold in decision.holds).items():
            self.set("pipeline_hold", [*labels, reason], count)
        self.set("pipeline_demand", labels, decision.demand.planned)
        self.set("pipeline_observed_demand", labels, decision.demand.observed)
        self.add_backlog(labels, decision.backlog, now_s)
        latency_s = None if decision.backlog is not None else decision.profile.latency_s
        self.set("pipeline_latency_seconds", labels, latency_s)
        if isinstance(latency_s, float):
            self.set("pipeline_sla_missed", labels, latency_s > spec.sla.latency_s)
            self.set("pipeline_sla_missed_for_seconds", labels, 0.0 if decision.miss is None else decision.miss.for_s)
        for finding in decision.diagnosis:
            self.set("pipeline_cause", [*labels, finding.stage or "", finding.cause.value], finding.confidence)
        self.set("pipeline_refused_demand", labels, decision.refused)
        for pool in dict.fromkeys(starting.placement for starting in decision.starting):
            on_pool = [starting for starting in decision.starting if starting.placement == pool]
            self.set("pipeline_starting_replicas", [*labels, pool], sum(each.count for each in on_pool))
            times_s = [each.ready_in_s for each in on_pool if each.ready_in_s is not None]
            if len(times_s) == len(on_pool):
                self.set("pipeline_ready_in_seconds", [*labels, pool], max(times_s))
        self.set("pipeline_overhead_seconds", labels, decision.profile.overhead_s)
        self.set("pipeline_sla_seconds", labels, None if spec.backlog is not None else spec.sla.latency_s)
        self.set("pipeline_spend_usd_per_hour", labels, decision.spend_per_hour)
        self.set("pipeline_budget_usd_per_hour", labels, spec.budget_per_hour)
        self.set("pipeline_budget_excused", labels, decision.memory.excess_excused_until_s is not None)
        if decision.plan is not None:
            planned_s = None if spec.backlog is not None else decision.plan.latency_s
            self.set("pipeline_planned_latency_seconds", labels, planned_s)
            if decision.plan.limited_by is not None:
                self.set("pipeline_limited", [*labels, str(decision.plan.limited_by)], 1)
            self.set("pipeline_cost_usd_per_hour", labels, decision.plan.cost_per_hour)
            served = None if spec.backlog is not None else decision.plan.served_fraction
            self.set("pipeline_served_ratio", labels, served)
        self.set("pipeline_admissible", labels, decision.admissible)
        if decision.admissible is not None:
            self.set("pipeline_admissible_expiry_timestamp_seconds", labels, now_s + LAPSE_S)
        self.set("metrics_source", [*labels, decision.metrics.tier.value], 1)
        self.set("demand_unseen_seconds", labels, decision.metrics.lost_for_s or 0.0)
        self.set("demand_safety_factor", labels, decision.metrics.margin)
        if not detailed:
            return
        declared = {key for key, placement in spec.placements().items() if placement.declared.service}
        for stage in decision.profile.stages:
            self.set("stage_pressure", [*labels, stage.name], stage.pressure)
            if stage.pass_ratio_known:
                self.set("stage_pass_ratio", [*labels, stage.name], stage.pass_ratio)
            for name, quantity in _STAGE_QUANTITIES.items():
                self.set(name, [*labels, stage.name], stage.readings.get(quantity))
            for name, device_quantity in _STAGE_DEVICES.items():
                self.set(name, [*labels, stage.name], stage.devices.get(device_quantity))
            if stage.latency_correction is not None:
                self.set("stage_latency_factor", [*labels, stage.name], stage.latency_factor)
            for placement in stage.placements:
                if placement.measured and (stage.name, placement.name) in declared:
                    factor_of = [*labels, stage.name, placement.name]
                    self.set("placement_service_factor", factor_of, placement.service_factor)
        for skew in decision.skews:
            self.set("stage_sessions_to_give_up", [*labels, skew.stage], sum(each.give_up for each in skew.crowded))
        for stage_name, drained in decision.memory.drains.items():
            if drained.cut:
                self.set("stage_sessions_drained", [*labels, stage_name], drained.cut)
        faults: Tally[tuple[str, str, str]] = Tally()
        for replica in decision.faulty:
            throttled = replica.fault.throttled > 0
            faults[replica.stage, replica.placement, replica.node] += math.ceil(replica.fault.errors) + throttled
        for where, count in faults.items():
            self.set("placement_device_faults", [*labels, *where], count)
        for (stage_name, pool), failure in decision.memory.failures.items():
            self.set("placement_unavailable", [*labels, stage_name, pool], unavailable(failure.outage, now_s))
        for (stage_name, pool), target in state.targets.items():
            if stage_name in spec.borrowed:  # counted at the pipeline that scales them
                continue
            placement_labels = [*labels, stage_name, pool]
            self.set("stage_replicas_desired", placement_labels, decision.desired.get((stage_name, pool)))
            self.set("stage_replicas_recommended", placement_labels, decision.recommended.get((stage_name, pool)))
            if isinstance(target, TargetState):
                self.set("stage_replicas_ready", placement_labels, target.ready)

    def add_turns(self, snapshot: Snapshot, decision: Decision) -> None:
        """Add which share of the fleet was assessed and planned in this cycle, and how old plans are."""
        fleet = len(decision.pipelines) + len(snapshot.standing)
        if not fleet:
            return
        now_s, count = decision.now_s, len(decision.pipelines)
        assessed_at_s = [now_s] * count + [each.assessed_at_s for each in snapshot.standing]
        for name, times_s in (("assessed", assessed_at_s), ("planned", planned_at_s(snapshot, decision))):
            ages_s = sorted(max(0.0, now_s - time_s) for time_s in times_s if time_s is not None)
            self.set(f"{name}_ratio", [], ages_s.count(0.0) / fleet)
            self.set(f"never_{name}_pipelines", [], fleet - len(ages_s))
            if ages_s:
                self.set(f"{name}_age_seconds", ["median"], ages_s[len(ages_s) // 2])
                self.set(f"{name}_age_seconds", ["oldest"], ages_s[-1])

    def add_backlog(self, labels: Sequence[str], own: BacklogOutlook | None, now_s: float) -> None:
        """Add what is expected of a backlog; `own` is None for other pipelines."""
        if own is None:
            return
        self.set("pipeline_backlog_items", labels, own.left)
        self.set("pipeline_backlog_required_per_second", labels, own.required_rps)
        self.set("pipeline_backlog_planned_per_second", labels, own.rate_rps)
        self.set("pipeline_backlog_finish_seconds", labels, None if own.finish_s is None else own.finish_s - now_s)
        self.set("pipeline_backlog_deadline_seconds", labels, None if own.due_s is None else own.due_s - now_s)
        self.set("pipeline_backlog_late", labels, None if own.met is None else not own.met)

    def add_fleet(self, snapshot: Snapshot, decision: Decision) -> None:
        """Add spend and budget of all pipelines together."""
        self.set("fleet_spend_usd_per_hour", [], fleet_spend_per_hour(snapshot, decision))
        self.set("fleet_budget_usd_per_hour", [], decision.policy.budget_per_hour)
        excused = {own.key for own in decision.pipelines if own.memory.excess_excused_until_s is not None}
        for budget in decision.budgets:
            self.set("budget_limit_usd_per_hour", [budget.name], budget.limit_per_hour)
            self.set("budget_spend_usd_per_hour", [budget.name], budget.spend_per_hour)
            self.set("budget_planned_usd_per_hour", [budget.name], budget.planned_per_hour)
            self.set("budget_pipelines", [budget.name], len(budget.pipelines))
            self.set("budget_short_pipelines", [budget.name], len(budget.short))
            self.set("budget_excused", [budget.name], not excused.isdisjoint(budget.pipelines))

    def add_readings(self, snapshot: Snapshot) -> None:
        """Add how many readings were numbers, and how many were absent for each reason."""
        results = Tally(
            reading.reason.value if isinstance(reading, Absence) else _ANSWERED for reading in _readings(snapshot)
        )
        for result in (_ANSWERED, *(reason.value for reason in AbsenceReason)):
            self.set("metric_readings", [result], results[result])

    def add_pool(self, state: PoolState, decision: PoolDecision, now_s: float) -> None:
        """Add the instances of a pool, their price, and whether plans avoid the pool."""
        labels = [decision.name]
        self.set("pool_instances", labels, decision.in_use)
        self.set("pool_planned_instances", labels, decision.planned)
        self.set("pool_ready_instances", labels, state.ready_instances)
        self.set("pool_leaving_instances", labels, state.leaving_instances)
        if state.node_pool is not None:
            self.set("pool_arriving_nodes", labels, len(state.node_pool.claims))
        self.set("pool_orphaned_replicas", labels, sum(own.replicas for own in state.orphans))
        self.set("pool_limit", labels, decision.limit)
        if state.allowance is not None and state.allowance.entry is not None:
            entry = state.allowance.entry
            for amount, count in (("used", entry.used), ("agreed", entry.agreed), ("allowed", entry.allowed)):
                self.set("pool_shard_instances", [decision.name, amount], count)
        self.set("pool_price_usd_per_hour", labels, state.spec.price_per_hour)
        self._add_price(state, labels, now_s)
        self._add_quota(state, decision.name)
        if state.node_pool is not None:
            recent = [error.kind for error in state.node_pool.errors if now_s - error.at_s <= ERRORS_COUNT_S]
            for kind in ErrorClass:
                self.set("pool_provider_refuses", [decision.name, kind.value], kind in recent)
        self.set("pool_shadow_price_usd_per_hour", labels, decision.shadow_price_per_hour)
        self.set("pool_unavailable", labels, unavailable(decision.memory, now_s))

    def _add_price(self, state: PoolState, labels: Sequence[str], now_s: float) -> None:
        quote = state.spec.price
        if quote is None:
            return
        if quote.as_of_s is not None and quote.origin in {PriceOrigin.LISTED, PriceOrigin.SPOT}:
            self.set("pool_price_age_seconds", labels, max(0.0, now_s - quote.as_of_s))
        if quote.day is not None:
            self.set("pool_price_day_usd_per_hour", [*labels, "low"], quote.day.low_per_hour)
            self.set("pool_price_day_usd_per_hour", [*labels, "high"], quote.day.high_per_hour)

    def _add_quota(self, state: PoolState, name: PoolName) -> None:
        source, reading = state.spec.quota, state.quota
        if source is None or reading is None:
            return
        labels = [name, source.code]
        self.set("pool_quota_vcpus", labels, reading.limit_vcpus)
        self.set("pool_quota_others_vcpus", labels, reading.others_vcpus)
        self.set("pool_quota_instances", labels, state.quota_instances)


def _readings(snapshot: Snapshot) -> Iterator[Reading]:
    """Yield the readings that a cycle needs: demand, latency and rules of pipelines, throughput of ready replicas.

    Not others, as of sessions: many servers do not export them, and nothing is wrong then.
    """
    for state in snapshot.pipelines:
        yield state.demand
        if state.latency_s is not None:
            yield state.latency_s
        yield from state.rule_readings.values()
        for key, target in state.found():
            if target.ready:
                samples = state.samples_of(*key)
                yield from map(samples.of, THROUGHPUT)


def _replicas_by_pool(snapshot: Snapshot) -> Tally[tuple[PoolName, str]]:
    """Return the replicas on each pool by state; a workload counts for its owner only."""
    found: Tally[tuple[PoolName, str]] = Tally()
    for state in snapshot.pipelines:
        for (_, placement), target in state.found():
            if target.owner is None:
                _count_states(found, placement, target.states)
    for each in snapshot.standing:
        for own in each.placements:
            _count_states(found, own.key[1], own.states)
    return found


def _count_states(found: Tally[tuple[PoolName, str]], placement: PlacementName, states: Sequence[int]) -> None:
    for kind, count in zip(REPLICA_STATES, states, strict=True):
        if count:  # few states have any, and a fleet may have thousands of workloads
            found[pool_of(placement), kind] += count


def _failing_by_pool(decision: Decision) -> Tally[tuple[PoolName, FailureCause]]:
    """Return how many placements on each pool plans avoid, by cause."""
    return Tally(
        (pool_of(placement), failure.cause)
        for pipeline in decision.pipelines
        for (_, placement), failure in pipeline.memory.failures.items()
        if unavailable(failure.outage, decision.now_s)
    )
