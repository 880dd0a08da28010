"""The snapshot: all values that a cycle uses, read at one moment by `controller.kube.reader` or a simulation."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from controller.core.state.carry_over import PipelineMemory, PoolMemory
from controller.core.state.spec import BudgetSpec, PipelineSpec, PlacementKey, PoolSpec
from optimizer.model import Pipeline, PipelineKey, PoolName, StageName, whole_instances
from optimizer.plan import PipelinePlan
from profiler.samples import NO_SAMPLES, Origin, PlacementSamples, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReplica:
    """A pod that has not been ready since `since_s`, with the reason that Kubernetes reports."""

    name: str
    since_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingReplica:
    """A ready pod. `leaving` says that its node is being removed; `deletion_cost` is the pod's deletion cost.

    `startup_s` is the time from when it got its node until it was ready, None where that is not known.
    """

    name: str
    leaving: bool = False
    deletion_cost: int = 0
    startup_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """The observed state of a placement's workload.

    `desired` is the replica count of its scale, and `resource_version` the version of the scale, for writes. `existing`
    counts the pods that run or start, `ready` the ready ones of these, and `terminating` the pods that stop. Of the
    pods that are not ready, `pending` have no node, `stranded` are on a node that is not ready, and `starting` are on a
    ready node, or on any node while the nodes cannot be read. `serving` lists the ready pods where they are known.

    `owner` is the other pipeline that owns the workload, and whose spend its replicas are. None: the pipeline itself.
    """

    desired: int
    existing: int
    ready: int
    terminating: int
    pending: tuple[PendingReplica, ...]
    resource_version: str
    stranded: tuple[PendingReplica, ...] = ()
    starting: tuple[PendingReplica, ...] = ()
    serving: tuple[ServingReplica, ...] = ()
    owner: PipelineKey | None = None

    @property
    def occupied(self) -> int:
        """Return the most replicas that exist while the desired replicas stay the same."""
        return most_replicas(self.desired, self.existing, self.terminating)

    @property
    def startup_s(self) -> float | None:
        """Return the (lower) median start-up time of the ready replicas in seconds, None where none is known."""
        known = sorted(replica.startup_s for replica in self.serving if replica.startup_s is not None)
        return known[(len(known) - 1) // 2] if known else None

    @property
    def leaving(self) -> int:
        """Return how many ready replicas are on nodes that are being removed."""
        return sum(replica.leaving for replica in self.serving)


def most_replicas(desired: int, existing: int, terminating: int) -> int:
    """Return the most replicas that exist on the way to `desired`: terminating ones count until they are gone."""
    return max(desired, existing) + terminating


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMissing:
    """A workload of a placement cannot be read or scaled; `reason` says why, as text.

    `unreadable` says that the workload may exist and run, so that its cost is unknown. `owner` is the pipeline that
    owns it, None: the one whose placement this is.
    """

    reason: str
    unreadable: bool = False
    owner: PipelineKey | None = None


_NOT_READ = TargetMissing(reason="not read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan that a pipeline keeps until its next turn, made at `at_s` for `pipeline`.

    `terms` has, for each pool that the pipeline may use, the price of an instance and how many instances are being
    removed.
    """

    pipeline: Pipeline
    plan: PipelinePlan
    terms: Mapping[PoolName, tuple[float, int]]
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """One pipeline: its spec, workloads and measurements, and the state that the last cycle left (`memory`).

    `demand` is in the pipeline's unit. `latency_s` is the result of `sla.query`, None without a query. `rule_readings`
    has the result of every rule's query. `written` has the replicas that the last cycle wrote, `refused` the API
    server's reason where it refused to write. `autoscalers` names other objects that scale a placement's workload, and
    `followers` those that scale it to the replicas that Sluice recommends.
    `metrics` is the source of the measurements. `planned` is the plan of the last cycle in a fleet that is planned in
    turns (`controller.core.plan.large_fleet`).
    """

    spec: PipelineSpec
    targets: Mapping[tuple[StageName, PoolName], TargetState | TargetMissing]
    samples: Mapping[tuple[StageName, PoolName], PlacementSamples]
    demand: Reading
    latency_s: Reading | None
    rule_readings: Mapping[tuple[StageName, str], Reading]
    memory: PipelineMemory
    written: Mapping[tuple[StageName, PoolName], int] = field(default_factory=dict)
    refused: Mapping[tuple[StageName, PoolName], str] = field(default_factory=dict)
    autoscalers: Mapping[tuple[StageName, PoolName], str] = field(default_factory=dict)
    followers: Mapping[tuple[StageName, PoolName], str] = field(default_factory=dict)
    metrics: Origin = field(default_factory=Origin)
    planned: Planned | None = None

    def target(self, stage: StageName, pool: PoolName) -> TargetState | TargetMissing:
        """Return the workload of a placement, `TargetMissing` where it was not read."""
        return self.targets.get((stage, pool), _NOT_READ)

    def samples_of(self, stage: StageName, pool: PoolName) -> PlacementSamples:
        """Return the samples of a placement's pods, `NO_SAMPLES` where there are none."""
        return self.samples.get((stage, pool), NO_SAMPLES)

    def desired(self, stage: StageName, pool: PoolName) -> int:
        """Return the desired replicas of a placement's workload, 0 where it is missing."""
        target = self.target(stage, pool)
        return 0 if isinstance(target, TargetMissing) else target.desired

    def found(self) -> Iterator[tuple[PlacementKey, TargetState]]:
        """Yield the placements whose workload exists, with its state."""
        return ((key, target) for key, target in self.targets.items() if isinstance(target, TargetState))

    def settled(self, stage: StageName | None = None) -> bool:
        """Return whether no replica of `stage` is starting or stopping; None: of the pipeline."""
        return all(
            not target.terminating and target.ready == target.existing == target.desired
            for key, target in self.found()
            if stage is None or key[0] == stage
        )

    def ready(self, stage: StageName, pool: PoolName) -> int:
        """Return the ready replicas of a placement's workload, 0 where it is missing."""
        target = self.target(stage, pool)
        return 0 if isinstance(target, TargetMissing) else target.ready


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """One pool with the state of its nodes: the last known state if they cannot be read, for the reason in `unread`.

    `zones` is the number of zones of the ready nodes. `leaving_instances` of the ready nodes are being removed: they
    are cordoned, or the provider reclaims them. `unaccounted` counts replicas that occupy instances and cost money but
    that no cycle can change: their workload cannot be read, or their pipeline is invalid. Its keys are the numbers of
    replicas per instance.
    """

    spec: PoolSpec
    ready_instances: int
    zones: int
    memory: PoolMemory
    leaving_instances: int = 0
    unread: str = ""
    unaccounted: Mapping[int, int] = field(default_factory=dict)

    @property
    def limit(self) -> int:
        """Return how many instances may be used: the declared number, or the ready nodes where none is declared."""
        return self.ready_instances if self.spec.instances is None else self.spec.instances

    @property
    def open_limit(self) -> int:
        """Return how many instances may be planned: the limit without those that unaccounted replicas occupy."""
        return max(0, self.limit - whole_instances(self.unaccounted.items()))

    @property
    def unaccounted_in_use(self) -> float:
        """Return how many instances unaccounted replicas occupy; shared instances count in parts."""
        return sum(count / per_instance for per_instance, count in self.unaccounted.items())

    @property
    def unaccounted_per_hour(self) -> float:
        """Return the cost of the unaccounted replicas in USD per hour."""
        return self.unaccounted_in_use * self.spec.price_per_hour

    def limit_holding(self, instances: int) -> int:
        """Return how many instances to plan with while replicas hold `instances`.

        A pool without declared instances has room at least for the replicas that are placed there. If a node is not
        ready for a moment, they need not move. They move when they stay pending.
        """
        return self.open_limit if self.spec.instances is not None else max(self.open_limit, instances)


def unaccounted_per_hour(pools: Iterable[PoolState]) -> float:
    """Return the cost of the unaccounted replicas of all `pools` in USD per hour."""
    return sum(pool.unaccounted_per_hour for pool in pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """A ComputeBudget with the namespaces that it selects now: the last known ones if they cannot be read.

    `unread` says why they cannot be read, and is empty where they can.
    """

    spec: BudgetSpec
    namespaces: frozenset[str]
    unread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All pipelines, pools and ComputeBudgets at `now_s` (seconds since the epoch, or virtual)."""

    now_s: float
    pipelines: tuple[PipelineState, ...]
    pools: Mapping[PoolName, PoolState]
    budgets: tuple[BudgetState, ...] = ()
