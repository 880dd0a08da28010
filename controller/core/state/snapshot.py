"""Everything that a cycle uses, read at one moment. Values only; `controller.kube.reader` and the simulated
cluster make it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from controller.core.state.carry_over import PipelineMemory, PoolMemory
from controller.core.state.spec import PipelineSpec, PlacementKey, PoolSpec
from optimizer.model import Pipeline, PoolName, StageName, whole_instances
from optimizer.plan import PipelinePlan
from profiler.samples import NO_SAMPLES, Origin, PlacementSamples, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReplica:
    """A pod that is not ready: since when, and the reason that Kubernetes reports."""

    name: str
    since_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingReplica:
    """A ready pod. `leaving` says that its node is being removed; `deletion_cost` is that of its annotation."""

    name: str
    leaving: bool = False
    deletion_cost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """The observed state of a placement's workload.

    `desired` is the replica count of its scale. `existing` counts its pods that run or start, `terminating` those that
    stop, `ready` those that are ready. Of the others, `pending` have no node, `stranded` are on a node that is not
    ready, `starting` are on a ready node, or on any node while the nodes cannot be read. `serving` lists the ready pods
    where they are known. `resource_version` is that of the scale, for writes.
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

    @property
    def occupied(self) -> int:
        """Return the most replicas that exist while the desired replicas stay the same."""
        return most_replicas(self.desired, self.existing, self.terminating)

    @property
    def leaving(self) -> int:
        """Return how many ready replicas are on nodes that are being removed."""
        return sum(replica.leaving for replica in self.serving)


def most_replicas(desired: int, existing: int, terminating: int) -> int:
    """Return the most replicas that exist on the way to `desired`: terminating ones count until they are gone."""
    return max(desired, existing) + terminating


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMissing:
    """The reason, as text, why the placement's workload cannot be read or scaled.

    `unreadable` says that it may exist and run, so that its cost is unknown.
    """

    reason: str
    unreadable: bool = False


_NOT_READ = TargetMissing(reason="not read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan that a pipeline keeps until its next turn, and the `pipeline` that was planned, at `at_s`.

    `terms` has the price of an instance of each pool that it may use, and how many instances are being removed.
    """

    pipeline: Pipeline
    plan: PipelinePlan
    terms: Mapping[PoolName, tuple[float, int]]
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """One pipeline: its spec, workloads, measurements, and what the last cycle left.

    `demand` is in the pipeline's unit. `latency_s` is the result of `sla.query`, None without one. `rule_readings` has
    an entry for every rule with a query. `written` has the replicas that the last cycle wrote, `refused` the API
    server's reason where it refused them. `autoscalers` names other objects that scale a placement's workload.
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
    metrics: Origin = field(default_factory=Origin)
    planned: Planned | None = None

    def target(self, stage: StageName, pool: PoolName) -> TargetState | TargetMissing:
        """Return the workload of a placement."""
        return self.targets.get((stage, pool), _NOT_READ)

    def samples_of(self, stage: StageName, pool: PoolName) -> PlacementSamples:
        """Return the samples of a placement's pods."""
        return self.samples.get((stage, pool), NO_SAMPLES)

    def desired(self, stage: StageName, pool: PoolName) -> int:
        """Return the desired replicas of a placement's workload, 0 where it is missing."""
        target = self.target(stage, pool)
        return 0 if isinstance(target, TargetMissing) else target.desired

    def found(self) -> Iterator[tuple[PlacementKey, TargetState]]:
        """Yield the placements whose workload exists, with its state."""
        return ((key, target) for key, target in self.targets.items() if isinstance(target, TargetState))

    def settled(self) -> bool:
        """Return whether no replica is starting or stopping."""
        return all(
            not target.terminating and target.ready == target.existing == target.desired for _, target in self.found()
        )

    def ready(self, stage: StageName, pool: PoolName) -> int:
        """Return the ready replicas of a placement's workload, 0 where it is missing."""
        target = self.target(stage, pool)
        return 0 if isinstance(target, TargetMissing) else target.ready


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """One pool: the observed state of its nodes, or the last known one where `unread` says why they cannot be read.

    `zones` is the number of zones of its ready nodes. `leaving_instances` of them are being removed: cordoned, or
    reclaimed by the provider. `unaccounted` are replicas, by how many fill an instance, that occupy instances and
    cost money while no cycle can change them: their workload cannot be read, or their pipeline is invalid.
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
        """Return how many instances may be used: the declared number, otherwise the ready ones."""
        return self.ready_instances if self.spec.instances is None else self.spec.instances

    @property
    def open_limit(self) -> int:
        """Return how many instances may be planned: those that no unaccounted replicas occupy."""
        return max(0, self.limit - whole_instances(self.unaccounted.items()))

    @property
    def unaccounted_in_use(self) -> float:
        """Return the instances that unaccounted replicas occupy, in parts where they are shared."""
        return sum(count / per_instance for per_instance, count in self.unaccounted.items())

    @property
    def unaccounted_per_hour(self) -> float:
        """Return the cost of the unaccounted replicas."""
        return self.unaccounted_in_use * self.spec.price_per_hour

    def limit_holding(self, instances: int) -> int:
        """Return how many instances to plan with while replicas hold `instances`.

        A pool without declared instances keeps the replicas that are placed there: a node that is not ready for a
        moment is no reason to move them. Replicas that stay pending are.
        """
        return self.open_limit if self.spec.instances is not None else max(self.open_limit, instances)


def unaccounted_per_hour(pools: Iterable[PoolState]) -> float:
    """Return the cost of the unaccounted replicas of all `pools`."""
    return sum(pool.unaccounted_per_hour for pool in pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All pipelines and pools at `now_s` (seconds since the epoch, or virtual)."""

    now_s: float
    pipelines: tuple[PipelineState, ...]
    pools: Mapping[PoolName, PoolState]
