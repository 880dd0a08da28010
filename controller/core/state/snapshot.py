"""Everything a cycle may look at, taken at one moment. Values only; `controller.kube.reader` and the simulated
cluster make it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller.core.state.carry_over import PipelineMemory, PoolMemory
from controller.core.state.spec import PipelineSpec, PoolSpec
from optimizer.model import Pipeline, PoolName, StageName, whole_instances
from optimizer.plan import PipelinePlan
from profiler.samples import NO_SAMPLES, Origin, PlacementSamples, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReplica:
    """A pod that is asked for and does not serve: since when, and why, in the words of whoever says so."""

    name: str
    since_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingReplica:
    """A pod that serves. `leaving` says that its node is to go soon; `deletion_cost` is that of its annotation."""

    name: str
    leaving: bool = False
    deletion_cost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """A placement's workload as it is.

    `desired` is what its scale asks for; `existing` counts its pods that run or start, `terminating` those on their
    way out, `ready` those that serve. The others wait: `pending` have no node, `stranded` are on one that is not ready,
    `starting` are on a ready one, or on any while the nodes cannot be read. `serving` has those that are ready one by
    one, where they are known. `resource_version` is that of the scale, for writes.
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
        """Return the most replicas that are there while nothing else is asked for."""
        return most_replicas(self.desired, self.existing, self.terminating)

    @property
    def leaving(self) -> int:
        """Return how many of those that serve are on nodes that are to go soon."""
        return sum(replica.leaving for replica in self.serving)


def most_replicas(desired: int, existing: int, terminating: int) -> int:
    """Return the most replicas that are there once `desired` is asked for: what leaves is, until it has left."""
    return max(desired, existing) + terminating


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMissing:
    """The placement's workload cannot be read or scaled, and why, for a person.

    `unreadable` says that it may well be there and run: what it costs is not known.
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
    """One pipeline: what is asked, what runs, what was measured, what is remembered.

    `demand` is in the pipeline's unit. `latency_s` is the answer to `sla.query`, None without one.
    `rule_readings` has an entry for every rule with a query. `written` has the replicas that the cycle before wrote,
    `refused` the server's words where it did not take them; `autoscalers` names the objects that scale a placement's
    workload too. `metrics` says where the measured comes from.
    `planned` is what the cycle before has planned, in a fleet so large that it is planned in turns
    (`controller.core.plan.large_fleet`).
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
        """Return what the pods of a placement said."""
        return self.samples.get((stage, pool), NO_SAMPLES)

    def desired(self, stage: StageName, pool: PoolName) -> int:
        """Return the replicas that a placement's workload asks for, 0 where it is missing."""
        target = self.target(stage, pool)
        return 0 if isinstance(target, TargetMissing) else target.desired


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """One pool: its nodes as they are, or as they were where `unread` says why they cannot be read.

    `zones` are the distinct zones of its ready nodes. `leaving_instances` of the ready ones are to go soon: cordoned,
    or taken back by the provider. `unaccounted` are replicas, by how many fill an instance, that take room and money
    and that nobody can move now: their workload cannot be read, or their pipeline has become invalid.
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
        """Return how many instances may be used: the declared ceiling, else what is ready."""
        return self.ready_instances if self.spec.instances is None else self.spec.instances

    @property
    def open_limit(self) -> int:
        """Return how many instances may be planned: those that no strays take."""
        return max(0, self.limit - whole_instances(self.unaccounted.items()))

    @property
    def strays_in_use(self) -> float:
        """Return the instances that strays take, in parts where they are shared."""
        return sum(count / per_instance for per_instance, count in self.unaccounted.items())

    @property
    def unaccounted_per_hour(self) -> float:
        """Return what strays cost."""
        return self.strays_in_use * self.spec.price_per_hour

    def limit_holding(self, instances: int) -> int:
        """Return how many instances to plan with while `instances` are held.

        A pool bounded by its ready nodes alone keeps what is placed there: a node that is not ready for a moment is no
        reason to give up the replicas on it. Those that stay pending are.
        """
        return self.open_limit if self.spec.instances is not None else max(self.open_limit, instances)


def unaccounted_per_hour(pools: Iterable[PoolState]) -> float:
    """Return what the strays of all `pools` cost."""
    return sum(pool.unaccounted_per_hour for pool in pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The world at `now_s` (seconds since the epoch, or virtual)."""

    now_s: float
    pipelines: tuple[PipelineState, ...]
    pools: Mapping[PoolName, PoolState]
