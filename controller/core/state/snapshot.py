"""The snapshot: all values that a cycle uses, read at one moment by `controller.kube.reader` or a simulation."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction

from controller.core.state.carry_over import PipelineMemory, PoolMemory, PriceMemory
from controller.core.state.cloud import QuotaReading
from controller.core.state.provider_errors import ProviderError
from controller.core.state.shards import Allowance
from controller.core.state.spec import UNDECLARED_STARTUP_S, BudgetSpec, PipelineSpec, PoolSpec, Target
from optimizer.model import (
    BatchSettings,
    Pipeline,
    PipelineKey,
    Placement,
    PlacementKey,
    PlacementName,
    PoolName,
    Size,
    StageName,
    pool_of,
    whole_instances,
)
from optimizer.plan import PipelinePlan
from profiler.samples import NO_SAMPLES, Absence, Origin, PlacementSamples, Reading
from profiler.season import DemandHistory

STARTUP_LEAP = 10.0
"""A start-up time is not learned from one replica if it is this many times the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedNode:
    """A node that has been on its way since `since_s`: the name of its NodeClaim, or what an autoscaler says of it."""

    name: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReplica:
    """A pod that has not been ready since `since_s`, with the reason that Kubernetes reports.

    `expected` are the nodes that an autoscaler has announced for it by Events, on an elastic pool. `updated` says that
    it is of the new revision of a roll-out. `constraint` names what keeps it from some nodes of its pool, or from all,
    even while they are empty, such as a volume in one zone; "" where nothing does. `out_of_memory_s` is as in
    `ServingReplica`.
    """

    name: str
    since_s: float
    reason: str
    expected: tuple[ExpectedNode, ...] = ()
    updated: bool = False
    constraint: str = ""
    out_of_memory_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingReplica:
    """A ready pod. `leaving` says that its node is being removed; `deletion_cost` is the pod's deletion cost.

    `startup_s` is the time from when it got its node until it was ready first, None where that is not known.
    `start_seen` says that the operator saw this pod from its creation; else `startup_s` may be of a later time at which
    it became ready again. `ready_s` is when (epoch seconds) it was ready first, None where that is not known. `node` is
    the node that it runs on, "" where that is not known. `protected` says that an instance of an Auto Scaling group is
    protected from scale-in. `out_of_memory_s` is when (epoch seconds) a container of it was last ended because it ran
    out of memory, None where it was not. `revision` is that of its workload which made it, "" where it is not known.
    `takes_sessions` is whether it gets new sessions, None where no label of the pod decides that.
    """

    name: str
    leaving: bool = False
    deletion_cost: int = 0
    startup_s: float | None = None
    start_seen: bool = False
    ready_s: float | None = None
    node: str = ""
    protected: bool = False
    out_of_memory_s: float | None = None
    revision: str = ""
    takes_sessions: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMatch:
    """How the pods of a placement match its pool.

    `outside` has the pods on nodes that are not of the pool, each with its node. `fits` is how many replicas an
    instance of the pool holds by its allocatable resources, None where that is not known. `spans` is how many nodes the
    pods of a replica are on, where it is a group of pods and one is complete.
    """

    outside: Mapping[str, str] = field(default_factory=dict)
    fits: int | None = None
    spans: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """The observed state of a placement's workload.

    `desired` is the replica count of its scale, and `resource_version` the version of the scale, for writes. `existing`
    counts the pods that run or start, `ready` the ready ones of these, and `terminating` the pods that stop. Of the
    pods that are not ready, `pending` have no node, `stranded` are on a node that is not ready, and `starting` are on a
    ready node, or on any node while the nodes cannot be read. `serving` lists the ready pods where they are known.

    `owner` is the other pipeline that owns the workload, and whose spend its replicas are. None: the pipeline itself.

    `rolling` says that not all replicas are of the same revision, of which `updated` are of the new one. `refusal` has
    the words of the workload's controller for why pods cannot be created. `match` is how the pods match the nodes of
    the placement's pool. `nodes` has the number of pods on each node, terminating ones included, where budgets count
    whole instances; of a group of pods, the part of it that is there.
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
    rolling: bool = False
    updated: int = 0
    refusal: str = ""
    match: PoolMatch = PoolMatch()
    nodes: Mapping[str, Size] = field(default_factory=dict)

    @property
    def states(self) -> tuple[int, ...]:
        """Return how many replicas are in each of the `REPLICA_STATES`."""
        return (self.ready, *map(len, (self.starting, self.pending, self.stranded)), self.terminating)

    @property
    def occupied(self) -> int:
        """Return the most replicas that exist while the desired replicas stay the same."""
        return most_replicas(self.desired, self.existing, self.terminating)

    def per_instance(self, declared: Size) -> Size:
        """Return how many replicas fill an instance: as `declared`, unless the cluster shows otherwise.

        No more do than the allocatable resources of a node hold, and no fewer than nodes run on average. A replica that
        is a group of pods takes the nodes that its pods are on.
        """
        if declared < 1 or self.match.spans is not None:
            spans = 1 / declared if self.match.spans is None else self.match.spans
            return Fraction(1, int(spans)) if spans > 1 else max(1, declared)
        nodes = [replica.node for replica in self.serving if replica.node and replica.name not in self.match.outside]
        runs = -(-len(nodes) // len(set(nodes))) if nodes else 0
        return max(1, runs, declared if self.match.fits is None else min(declared, self.match.fits))

    @property
    def observed(self) -> int:
        """Return the replicas that count as present: the desired or the existing ones, whichever are more."""
        return max(self.desired, self.existing + self.terminating)

    @property
    def placed(self) -> int:
        """Return how many replicas have a node of the pool, terminating ones included: they occupy instances of it."""
        return max(0, self.existing - len(self.pending) - len(self.match.outside)) + self.terminating

    @property
    def uncreated(self) -> int:
        """Return how many desired replicas do not exist."""
        return max(0, self.desired - self.existing)

    @property
    def creates_later(self) -> bool:
        """Return whether something is seen that the creation of replicas may wait for.

        A StatefulSet creates a replica when the one before is ready, and a roll-out when one of before is gone.
        """
        busy = self.terminating or self.pending or self.stranded or self.starting or self.rolling
        return bool(busy) and not self.refusal

    @property
    def unscheduled(self) -> tuple[PendingReplica, ...]:
        """Return the pending replicas, without those of a surge."""
        surge = self._surge
        return tuple(replica for replica in self.pending if replica.name not in surge) if surge else self.pending

    @property
    def waiting(self) -> tuple[PendingReplica, ...]:
        """Return the replicas without a node that is up, without those of a surge."""
        surge = self._surge
        return (*self.unscheduled, *(replica for replica in self.stranded if replica.name not in surge))

    @property
    def _surge(self) -> frozenset[str]:
        """Return the names of replicas without a node that is up: as many as exist beyond the desired ones.

        They are those of the new revision first, and then the youngest.
        """
        beyond = self.existing - self.desired
        if beyond <= 0:
            return frozenset()
        without = sorted(
            (*self.pending, *self.stranded), key=lambda replica: (replica.updated, replica.since_s, replica.name)
        )
        return frozenset(replica.name for replica in without[::-1][:beyond])

    def startup_s(self, last_s: float | None) -> float | None:
        """Return the (lower) median start-up time of the ready replicas in seconds, None where none is known.

        Replicas whose start was seen count alone, where there are any. Times beyond `STARTUP_LEAP` times `last_s`, the
        start-up time that was learned last, do not count: a replica may have lost its readiness before it was seen.

        Beyond it, a time counts once two replicas have one whose start was seen. Without `last_s` (None), all starts
        that were seen count, and others up to `STARTUP_LEAP` times the time assumed for an undeclared start-up.
        """
        limit_s = STARTUP_LEAP * max(1.0, UNDECLARED_STARTUP_S if last_s is None else last_s)
        known = [(each.startup_s, each.start_seen) for each in self.serving if each.startup_s is not None]
        leaps = last_s is None or sum(seen and time_s > limit_s for time_s, seen in known) >= 2
        usual = [(time_s, seen) for time_s, seen in known if time_s <= limit_s or (seen and leaps)]
        times_s = sorted(time_s for time_s, seen in usual if seen) or sorted(time_s for time_s, _ in usual)
        return times_s[(len(times_s) - 1) // 2] if times_s else None

    def ready_after(self, time_s: float) -> int:
        """Return how many ready replicas were ready for the first time after `time_s`, epoch seconds."""
        return sum(each.ready_s is not None and each.ready_s > time_s for each in self.serving)

    @property
    def revision(self) -> str:
        """Return the revision of the replica that became ready last, "" where none is known."""
        known = [each for each in self.serving if each.revision]
        return max(known, key=lambda each: (each.ready_s or 0.0, each.name)).revision if known else ""

    @property
    def leaving(self) -> int:
        """Return how many ready replicas are on nodes that are being removed."""
        return sum(replica.leaving for replica in self.serving)


REPLICA_STATES = ("ready", "starting", "pending", "stranded", "terminating")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingState:
    """What the ConfigMap key has that a placement's servers read their batch settings from.

    `settings` are None where the key is missing or has no usable value. `problem` says why the ConfigMap cannot be
    read, `refused` why the last write failed; each is "" where there is nothing to say.
    """

    settings: BatchSettings | None = None
    problem: str = ""
    refused: str = ""


_NOT_READ = TargetMissing(reason="not read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan that a pipeline keeps until its next turn, made at `at_s` for `pipeline`.

    `terms` has, for each pool that the pipeline may use, the price of an instance and how many instances are being
    removed. `spare_per_hour` is what the budgets of several pipelines left for it in USD per hour, None: it has none,
    or was planned together with others.
    """

    pipeline: Pipeline
    plan: PipelinePlan
    terms: Mapping[PoolName, tuple[float, int]]
    at_s: float
    spare_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """One pipeline: its spec, workloads and measurements, and the state that the last cycle left (`memory`).

    `demand` is in the pipeline's unit. `latency_s` is the result of `sla.query`, None without a query. `rule_readings`
    has the result of every rule's query. `written` has the replicas that the last cycle wrote, `refused` the API
    server's reason where it refused to write. `autoscalers` names other objects that scale a placement's workload, and
    `followers` those that scale it to the replicas that Sluice recommends; `resizers` names what changes the requests
    of its pods. `metrics` is the source of the measurements. `planned` is the plan of the last cycle in a fleet that is
    planned in turns (`controller.core.plan.large_fleet`). `batching` has, for placements whose batch settings are
    written, what is there now. `history` is the demand of past seasons, None without `spec.demand.history`.
    """

    spec: PipelineSpec
    targets: Mapping[PlacementKey, TargetState | TargetMissing]
    samples: Mapping[PlacementKey, PlacementSamples]
    demand: Reading
    latency_s: Reading | None
    rule_readings: Mapping[tuple[StageName, str], Reading]
    memory: PipelineMemory
    written: Mapping[PlacementKey, int] = field(default_factory=dict)
    refused: Mapping[PlacementKey, str] = field(default_factory=dict)
    autoscalers: Mapping[PlacementKey, str] = field(default_factory=dict)
    followers: Mapping[PlacementKey, str] = field(default_factory=dict)
    resizers: Mapping[PlacementKey, str] = field(default_factory=dict)
    metrics: Origin = field(default_factory=Origin)
    planned: Planned | None = None
    batching: Mapping[PlacementKey, BatchingState] = field(default_factory=dict)
    history: DemandHistory | Absence | None = None

    def target(self, stage: StageName, placement: PlacementName) -> TargetState | TargetMissing:
        """Return the workload of a placement, `TargetMissing` where it was not read."""
        return self.targets.get((stage, placement), _NOT_READ)

    def samples_of(self, stage: StageName, placement: PlacementName) -> PlacementSamples:
        """Return the samples of a placement's pods, `NO_SAMPLES` where there are none."""
        return self.samples.get((stage, placement), NO_SAMPLES)

    def desired(self, stage: StageName, placement: PlacementName) -> int:
        """Return the desired replicas of a placement's workload, 0 where it is missing."""
        target = self.target(stage, placement)
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

    def ready(self, stage: StageName, placement: PlacementName) -> int:
        """Return the ready replicas of a placement's workload, 0 where it is missing."""
        target = self.target(stage, placement)
        return 0 if isinstance(target, TargetMissing) else target.ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A workload that Sluice scaled to `replicas` for `pipeline`, and that no pipeline has any more.

    `placed` of its replicas have a node, `claimed` are desired beyond these.
    """

    namespace: str
    target: Target
    pipeline: PipelineKey
    pool: PoolName
    per_instance: Size
    replicas: int
    placed: int = 0
    claimed: int = 0

    def now(self, state: TargetState) -> "Orphan":
        """Return the workload as it is in `state`."""
        return replace(self, placed=state.placed, claimed=state.observed - min(state.observed, state.placed))


class NodePoolProblem(Enum):
    """Why a NodePool or an Auto Scaling group is no bound. The values are condition reasons."""

    NOT_FOUND = "NodePoolNotFound"
    UNREADABLE = "NodePoolUnreadable"
    UNLIMITED = "NodePoolUnlimited"
    GROUP_NOT_FOUND = "GroupNotFound"
    GROUP_UNREADABLE = "GroupUnreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFailure:
    """A NodeClaim that was deleted at `at_s` because the provider had no capacity; `reason` is its Event's text."""

    claim: str
    at_s: float
    reason: str


UNSEEN_INSTANCES = 8
"""So many nodes are planned with while nothing says how many the limits of a NodePool allow: enough for one replica of
each stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePoolState:
    """The Karpenter NodePool that makes the nodes of a pool.

    `instances` is how many nodes its limits allow, None where nothing says so; `problem` and `detail` say why. With
    `unseen`, it has no node, so that its limits cannot be converted; `instances` is 0 where they are used up. As
    many nodes as they allowed before are planned with then, or `UNSEEN_INSTANCES`.

    `claims` are launched and have not registered. `created_at_s` is when the last NodeClaim was created, and
    `registered_at_s` when the last one registered, None without any. `failures` are the failed launches that the API
    server still knows, the first one first; they are read only while replicas are pending. `launch_s` is how long its
    nodes took from the creation of the NodeClaim until they registered, in seconds, None without such a node.

    An Auto Scaling group has one too: its instances that are not nodes yet stand for the claims, and its MaxSize for
    the limits. `errors` are those of the provider that the API server or the group still knows, whatever is pending.
    """

    instances: int | None = None
    unseen: bool = False
    problem: NodePoolProblem | None = None
    detail: str = ""
    claims: tuple[ExpectedNode, ...] = ()
    created_at_s: float | None = None
    registered_at_s: float | None = None
    failures: tuple[LaunchFailure, ...] = ()
    launch_s: float | None = None
    errors: tuple[ProviderError, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """One pool with the state of its nodes: the last known state if they cannot be read, for the reason in `unread`.

    `zones` is the number of zones of the ready nodes. `leaving_instances` of the ready nodes are being removed: they
    are cordoned, or the provider reclaims them. `unaccounted` counts replicas that occupy instances and cost money but
    that no cycle can change: their workload cannot be read, their pipeline is invalid, or none owns them any more. Its
    keys are the numbers of replicas per instance. `claimed` counts those that are desired there beyond them and have no
    node: nothing grows into the room that they may need, and nothing is removed for them. `orphans` are the workloads
    among these that no pipeline has any more.

    `node_pool` is the NodePool that the spec names, None without one. `shared_nodes` names the nodes that other pools
    match too, by the name of the other pool. `nodes` has the instance type of each node with replicas of pipelines,
    also of those that are not ready ("" where a node has none), where budgets count whole instances. `node_zones` has
    their zones, where prices differ by zone. `quota` is the reading of the quota that the spec names. `priced` is what
    the last cycle left of its price, None before the first one. `allowance` is what this shard may use, in instances,
    None where the fleet is in one shard. `excess` instances above a firm limit stay in this cycle: those that use them
    are not assessed in it, and nothing is added meanwhile.
    """

    spec: PoolSpec
    ready_instances: int
    zones: int
    memory: PoolMemory
    leaving_instances: int = 0
    unread: str = ""
    unaccounted: Mapping[Size, int] = field(default_factory=dict)
    claimed: Mapping[Size, int] = field(default_factory=dict)
    orphans: tuple[Orphan, ...] = ()
    node_pool: NodePoolState | None = None
    shared_nodes: Mapping[PoolName, tuple[str, ...]] = field(default_factory=dict)
    node_zones: Mapping[str, str] = field(default_factory=dict)
    quota: QuotaReading | None = None
    priced: PriceMemory | None = None
    allowance: Allowance | None = None
    excess: int = 0

    @property
    def ceiling(self) -> int | None:
        """Return the most instances that there may ever be, None where nothing says so."""
        by_node_pool = None if self.node_pool is None or self.node_pool.unseen else self.node_pool.instances
        return min((bound for bound in (self.spec.instances, by_node_pool) if bound is not None), default=None)

    @property
    def _offered(self) -> int | None:
        """Return how many instances are offered where this is less certain than a ceiling, None where it is not.

        Replicas beyond it stay: a node may be not ready for a moment, or a NodePool not readable. A quota that is used
        by others, or was lowered, ends no instance either.
        """
        allowed, ceiling = self.quota_instances, self.ceiling
        # A quota above the ceiling changes nothing: nothing may stay above that.
        quota = allowed if allowed is not None and (ceiling is None or allowed < ceiling) else None
        bounds = [bound for bound in (self._uncertain, quota) if bound is not None]
        return min(bounds, default=0 if ceiling is None else None)

    @property
    def _uncertain(self) -> int | None:
        if self.spec.fixed:
            return self.ready_instances
        if self.node_pool is None or not self.node_pool.unseen:
            return None
        if not self.node_pool.instances:
            return self.node_pool.instances
        # What its limits allow is not known until a node is seen; the autoscaler keeps them in any case.
        return self.memory.instances or UNSEEN_INSTANCES

    nodes: Mapping[str, str] = field(default_factory=dict)

    def node_price_per_hour(self, node: str) -> float:
        """Return the price of the node named `node` in USD per hour."""
        return self.spec.node_price_per_hour(self.nodes.get(node, ""), self.node_zones.get(node, ""))

    @property
    def quota_instances(self) -> int | None:
        """Return how many instances the quota of the account allows, None without one, and where it is not known."""
        if self.spec.quota is None or self.quota is None:
            return None
        return self.quota.instances(self.spec.quota.vcpus)

    @property
    def bound_by_quota(self) -> bool:
        """Whether the quota is what bounds the pool: no other bound is as small."""
        allowed = self.quota_instances
        others = [bound for bound in (self.ceiling, self._uncertain) if bound is not None]
        return allowed is not None and all(allowed < bound for bound in others)

    @property
    def capacity(self) -> int:
        """Return how many instances all shards may use: the smallest bound, and 0 while no bound is known."""
        return min(bound for bound in (self.ceiling, self._offered) if bound is not None)

    @property
    def limit(self) -> int:
        """Return how many instances may be used: the capacity, or the smaller allowance of this shard."""
        return self.capacity if self.allowance is None else min(self.capacity, self.allowance.amount)

    @property
    def bound_by_allowance(self) -> bool:
        """Whether the allowance of this shard is what bounds the pool."""
        return self.allowance is not None and self.allowance.amount < self.capacity

    @property
    def ceiling_is_firm(self) -> bool:
        """Whether the capacity is a declared ceiling, above which nothing may stay."""
        return self._offered is None

    @property
    def firm(self) -> bool:
        """Whether nothing may stay above `limit`: it is a declared ceiling, or an allowance that has to be kept."""
        if self.allowance is not None and self.bound_by_allowance:
            return self.allowance.firm
        return self.ceiling_is_firm

    @property
    def open_limit(self) -> int:
        """Return how many instances may be planned: the limit without those that unaccounted replicas occupy."""
        return max(0, self.limit - whole_instances(self.unaccounted.items()))

    @property
    def kept_limit(self) -> int:
        """Return up to how many instances nothing must go: the `open_limit` with the excess."""
        return max(0, self.limit + self.excess - whole_instances(self.unaccounted.items()))

    @property
    def unaccounted_in_use(self) -> float:
        """Return how many instances unaccounted replicas occupy; shared instances count in parts."""
        return math.fsum(count / per_instance for per_instance, count in self.unaccounted.items())

    @property
    def unaccounted_per_hour(self) -> float:
        """Return the cost of the unaccounted replicas in USD per hour."""
        return self.unaccounted_in_use * self.spec.price_per_hour

    def limit_holding(self, instances: int) -> int:
        """Return how many instances to plan with while replicas hold `instances`.

        A limit that is not firm has room at least for the replicas that are placed there, up to the ceiling. If a node
        is not ready for a moment, they need not move. They move when they stay pending. A firm one has room for the
        `excess`.
        """
        if self.firm:
            return max(self.open_limit, min(instances, self.kept_limit))
        if self.ceiling is not None:
            instances = min(instances, max(0, self.ceiling - whole_instances(self.unaccounted.items())))
        return max(self.open_limit, instances)


def claimed_per_hour(pool: PoolState) -> float:
    """Return the cost of the replicas that are claimed on `pool` in USD per hour."""
    return sum(count / per_instance for per_instance, count in pool.claimed.items()) * pool.spec.price_per_hour


def unaccounted_per_hour(pools: Iterable[PoolState]) -> float:
    """Return the cost of the unaccounted replicas of all `pools` in USD per hour."""
    return sum(pool.unaccounted_per_hour for pool in pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """A ComputeBudget with the namespaces that it selects now: the last known ones if they cannot be read.

    `unread` says why they cannot be read, and is empty where they can. `problem` says why the declared spec cannot be
    used, and is empty where it can: `spec` is then the one in force instead. `allowance` is what this shard may spend,
    in thousandths of a USD per hour, None where the fleet is in one shard.
    """

    spec: BudgetSpec
    namespaces: frozenset[str]
    unread: str = ""
    problem: str = ""
    allowance: Allowance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingPlacement:
    """The replicas of a placement that this cycle leaves as they are.

    `occupied` of them count against its pool and cost money. `nodes` has the node of each ready replica that may share
    it, and `busy` the share (0–1) of its time that such a replica works, None where that is not known; `planned_busy`
    is the share to plan with for a neighbour. `pending` have no node, and `starting` are on a node and take `startup_s`
    seconds to be ready. Both are empty where Sluice does not scale the workload. `states` has how many replicas are in
    each of the `REPLICA_STATES`.
    """

    key: PlacementKey
    prior: Placement
    occupied: int
    nodes: tuple[str, ...] = ()
    busy: float | None = None
    planned_busy: float = 1.0
    pending: tuple[PendingReplica, ...] = ()
    starting: tuple[PendingReplica, ...] = ()
    startup_s: float = 0.0
    states: tuple[int, ...] = (0,) * len(REPLICA_STATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingPipeline:
    """A pipeline of a large fleet that is not assessed in this cycle: its replicas stay as they are.

    It was assessed last at `assessed_at_s`, and its plan is of `planned_at_s`, epoch seconds; None: not yet. `gives`
    says whether its replicas may be removed where a pool or a budget is exceeded.
    """

    key: PipelineKey
    namespace: str
    placements: tuple[StandingPlacement, ...]
    assessed_at_s: float | None = None
    planned_at_s: float | None = None
    priority: int = 0
    gives: bool = True

    def cost_per_hour(self, pools: Mapping[PoolName, PoolState]) -> float:
        """Return what the replicas cost in USD per hour, without those on pools that do not exist."""
        return math.fsum(
            own.occupied * pools[pool].spec.replica_price_per_hour(own.prior.per_instance)
            for own in self.placements
            if (pool := pool_of(own.key[1])) in pools
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All pipelines, pools and ComputeBudgets at `now_s` (seconds since the epoch, or virtual).

    Of a large fleet, `pipelines` has those that this cycle assesses, and `standing` the others. `named_by_others` are
    the pools of pipelines without a backlog about which nothing is decided, because they cannot be used, or another
    operator scales them.
    """

    now_s: float
    pipelines: tuple[PipelineState, ...]
    pools: Mapping[PoolName, PoolState]
    budgets: tuple[BudgetState, ...] = ()
    standing: tuple[StandingPipeline, ...] = ()
    named_by_others: frozenset[PoolName] = frozenset()
