"""Makes the Snapshot of a cycle from the resources in the stores, workloads and nodes of the cluster, and metrics.

Deployments, StatefulSets, pods and nodes are watched. For a target of another kind, each cycle requests its scale and
the pods of the scale's selector: two small requests, for eight targets at a time.
"""

import json
import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from functools import partial

from controller.aws.account import Account, NoAccount
from controller.aws.failure import AwsFailure
from controller.aws.groups import (
    NAMESPACE_TAG,
    Group,
    GroupNotFound,
    node_pool_of,
    target_of,
    unknown_node_pool,
)
from controller.aws.quotas import quota_reading
from controller.core.containment import Contained
from controller.core.messages.problems import (
    NO_ANSWER,
    NOT_READ,
    foreign_group,
    internal_error,
    owned_target,
    owner_words,
    unreadable_target,
    unresolved_sharing,
    unselected_target,
)
from controller.core.messages.reasons import ConditionReason
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.cloud import QuotaReading
from controller.core.state.decision import Decision
from controller.core.state.shared import resolved
from controller.core.state.snapshot import (
    BudgetState,
    LaunchFailure,
    NodePoolState,
    Orphan,
    PipelineState,
    PoolMatch,
    PoolState,
    Snapshot,
    TargetMissing,
    TargetState,
)
from controller.core.state.spec import (
    BudgetSpec,
    Mode,
    PipelineSpec,
    PlacementSpec,
    PoolSpec,
    StageSpec,
    Target,
    live_pools,
    with_basis,
)
from controller.kube import groups
from controller.kube.allowances import Allowances
from controller.kube.auto_scaling import group_names, groups_of, made_by_groups, within_groups
from controller.kube.batching import BatchingConfigs
from controller.kube.carried_state import CarriedState
from controller.kube.claims import Claims
from controller.kube.cluster import Cluster, View
from controller.kube.demand_histories import DemandHistories
from controller.kube.gateway import (
    BUDGETS,
    NAMESPACES,
    PODS,
    POOLS,
    Failed,
    Gateway,
    Json,
    KubeError,
    NotFound,
    Refused,
    Scale,
    Unavailable,
)
from controller.kube.karpenter import FailedCreation, Karpenter, refusal
from controller.kube.kept_answers import kept_quota, kept_quote
from controller.kube.kept_memory import KeptMemory
from controller.kube.kubelet_clocks import KubeletClocks
from controller.kube.matching import Workload
from controller.kube.metrics_reader import MetricsReader, metrics_target
from controller.kube.moves import follow_moves
from controller.kube.other_writers import Ownership
from controller.kube.owners import Seniority, WorkloadName, find_owners
from controller.kube.priorities import PriorityLimits
from controller.kube.ray_serve import RayServe
from controller.kube.readable import left_out
from controller.kube.restarts import KEPT_S, CrashLoops
from controller.kube.shards import Members
from controller.kube.store import KeptResource, ResourceStore
from controller.kube.turns import Seen
from controller.kube.unaccounted import Counted, UnaccountedReplicas
from controller.kube.workloads import (
    NodeNames,
    PoolNodes,
    instance_types,
    is_leaving,
    limited_pods,
    metrics_endpoints,
    node_names,
    node_zones,
    owned_pods,
    placed_pods,
    ready_nodes,
    reporting_pods,
    shared_nodes,
    sharing_nodes,
    target_state,
    zones,
)
from controller.resources.budget import ComputeBudget
from controller.resources.parsing import InvalidResource, parse
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool
from controller.resources.translate import aws_price, budget_spec, pipeline_spec, pool_spec, quota_source
from optimizer.model import Basis, InvalidProblem, PipelineKey, PlacementKey, PoolName, pool_of
from profiler.samples import (
    MISSING,
    SILENT_S,
    Absence,
    AbsenceReason,
    Origin,
    PlacementSamples,
    PlacementTarget,
    PodEndpoint,
    Reading,
)
from profiler.sources.base import MetricSource, QueryKind, ReadAnswer
from profiler.sources.demand_history import NoHistorySource

_LOG = logging.getLogger(__name__)
_PARALLEL = 8
_UNLIMITED = PriorityLimits()
_Version = tuple[str, int, tuple[str | None, ...]]
"""The UID of a pipeline, and what its spec is parsed from: the generation, and the annotations with overrides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidObject:
    """A resource that cannot be used; `problem` and `reason` are the message and the reason of its condition."""

    resource: KeptResource
    problem: str
    reason: ConditionReason = ConditionReason.INVALID_SPEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A Snapshot, the stored resources that it was made from, and the resources that cannot be used.

    `unanswered` is the share (0–1) of the queries for metrics that got no answer, by their kind.
    """

    snapshot: Snapshot
    pipelines: Mapping[PipelineKey, KeptResource]
    pools: Mapping[PoolName, KeptResource]
    invalid_pipelines: tuple[InvalidObject, ...]
    invalid_pools: tuple[InvalidObject, ...]
    unanswered: Mapping[QueryKind, float] = field(default_factory=dict)
    budgets: Mapping[str, KeptResource] = field(default_factory=dict)
    invalid_budgets: tuple[InvalidObject, ...] = ()
    foreign: Mapping[PipelineKey, KeptResource] = field(default_factory=dict)
    """The pipelines that another operator scales."""
    standing: Mapping[PipelineKey, KeptResource] = field(default_factory=dict)
    """The pipelines that this cycle does not assess."""
    seen: Mapping[PipelineKey, Seen] = field(default_factory=dict)
    """What the assessed ones were when they were read."""
    late: Mapping[PipelineKey, bool] = field(default_factory=dict)
    """Of the pipelines that this cycle does not assess, and whose latency is known, whether it exceeds the SLA."""

    def of(self, contained: Contained) -> "Observation":
        """Return this observation with the pipelines whose decision failed moved to those that cannot be used."""
        left_out = tuple(
            InvalidObject(
                resource=self.pipelines[key], problem=internal_error(error), reason=ConditionReason.INTERNAL_ERROR
            )
            for key, error in contained.failed.items()
        )
        return replace(
            self,
            snapshot=contained.snapshot,
            pipelines={key: resource for key, resource in self.pipelines.items() if key not in contained.failed},
            invalid_pipelines=self.invalid_pipelines + left_out,
        )


class Resources:
    """Parses the resources in the stores; a pipeline's spec is parsed only once per generation and overrides."""

    def __init__(
        self,
        pipelines: ResourceStore,
        pools: ResourceStore,
        budgets: ResourceStore,
        *,
        namespaces: tuple[str, ...] = (),
        priorities: PriorityLimits = _UNLIMITED,
        account: Account | None = None,
        claims: Claims | None = None,
        serve: RayServe | None = None,
        batching: BatchingConfigs | None = None,
        members: Members | None = None,
    ) -> None:
        """Without `namespaces`, the pipelines of all namespaces are managed. `account` answers for prices.

        `claims` knows what other operators scale; None: there are no others. `serve` reads the deployments of Ray
        Serve, None: they cannot be read. `batching` reads the batch settings that are written for servers. `members`
        knows the namespaces of this shard, None: there is one.
        """
        self.namespaces = namespaces
        self.serve = serve
        self.batching = batching
        self.members = Members() if members is None else members
        self.allowances: Allowances | None = None
        self._claims = claims
        self._pipelines = pipelines
        self._pools = pools
        self._budgets = budgets
        self._priorities = priorities
        self.account: Account = NoAccount() if account is None else account
        self._specs: dict[_Version, PipelineSpec | str] = {}
        self._valid_budgets: dict[str, Json] = {}

    def follow_moves(self, gateway: Gateway, cluster: Cluster) -> None:
        """Read what is stored of the namespaces that have joined the shard, and drop that of others."""
        follow_moves(self.members, gateway, cluster, self._pipelines)

    def begin(self) -> None:
        """Begin a cycle: find out which of the resources belong to other operators."""
        if self._claims is not None:
            stores = (self._pipelines, self._pools, self._budgets)
            self._claims.begin(each for store in stores for each in store.snapshot().values())

    def elsewhere(self, resource: KeptResource) -> bool:
        """Return whether another operator scales the pipeline `resource`."""
        return self._claims is not None and self._claims.elsewhere(resource) is not None

    def pipelines(self) -> tuple[list[tuple[PipelineSpec, KeptResource]], tuple[InvalidObject, ...]]:
        """Return the pipelines in the managed namespaces with their specs, and those whose spec cannot be used."""
        usable, invalid = [], []
        specs: dict[_Version, PipelineSpec | str] = {}
        for (namespace, _), resource in self._pipelines.snapshot().items():
            if (self.namespaces and namespace not in self.namespaces) or not self.members.has(namespace):
                continue
            version = resource.uid, resource.generation, resource.overrides
            spec = self._specs.get(version) or self._limited(_parsed(resource.whole()))
            specs[version] = spec
            if isinstance(spec, str):
                invalid.append(InvalidObject(resource=resource, problem=spec))
            else:
                usable.append((spec, resource))
        self._specs = specs
        return usable, tuple(invalid)

    def _limited(self, spec: PipelineSpec | str) -> PipelineSpec | str:
        return spec if isinstance(spec, str) else self._priorities.limited(spec)

    def pools(self) -> tuple[list[tuple[PoolSpec, KeptResource]], tuple[InvalidObject, ...]]:
        """Return the pools with their specs, and those whose spec cannot be used."""
        parsed, invalid = [], []
        for resource in self._pools.snapshot().values():
            try:
                parsed.append((parse(ComputePool, resource.whole()), resource))
            except InvalidResource as error:
                invalid.append(InvalidObject(resource=resource, problem=str(error)))
        self._watch(parsed)
        usable = []
        for pool, resource in parsed:
            try:
                usable.append((self._priced(pool), resource))
            except InvalidProblem as error:
                invalid.append(InvalidObject(resource=resource, problem=str(error)))
        return usable, tuple(invalid)

    def _watch(self, pools: Sequence[tuple[ComputePool, KeptResource]]) -> None:
        looked_up = [(aws_price(pool), resource) for pool, resource in pools]
        self.account.watch(
            {source: kept_quote(resource.status(), source) for source, resource in looked_up if source is not None},
            [quota for pool, _ in pools if (quota := quota_source(pool)) is not None],
        )

    def _priced(self, pool: ComputePool) -> PoolSpec:
        """Return the spec of a pool with the price that AWS gave; without one, with the reason beside what counts."""
        source = aws_price(pool)
        if source is None:
            return pool_spec(pool)
        quote = self.account.price(source)
        spec = pool_spec(pool, quote)
        if quote is not None or spec.price is None:
            return spec
        return replace(spec, price=replace(spec.price, problem=self.account.problem_of_price(source)))

    def budgets(self) -> tuple[list[tuple[BudgetSpec, KeptResource, str]], tuple[InvalidObject, ...]]:
        """Return the ComputeBudgets with the specs in force, and those that have none.

        Each has why its declared spec cannot be used: then the last valid one holds, or, if that is not known, the
        least of its amounts. The text is empty for a valid spec.
        """
        usable, invalid = [], []
        valid: dict[str, Json] = {}
        for resource in self._budgets.snapshot().values():
            whole, problem = resource.whole(), ""
            last = self._valid_budgets.get(resource.uid)
            for spec, rule in ((whole["spec"], ""), *_in_place_of(whole, last)):
                try:
                    found = budget_spec(parse(ComputeBudget, {**whole, "spec": spec}))
                except InvalidResource as error:
                    problem = problem or str(error)
                    continue
                usable.append((found, resource, f"{problem}; {rule}" if problem else ""))
                if not problem or spec is last:
                    valid[resource.uid] = spec
                break
            else:
                invalid.append(InvalidObject(resource=resource, problem=problem))
        self._valid_budgets = valid
        return usable, tuple(invalid)


def _in_place_of(budget: Json, last: Json | None) -> Iterator[tuple[Json, str]]:
    """Yield the specs that may hold in place of the invalid one of a ComputeBudget, with what to say of each.

    `last` is its last valid spec, if this process has seen it. Its status has that of an earlier process.
    """
    stored = (budget.get("status") or {}).get("validSpec")
    with suppress(ValueError):
        if last is None and isinstance(stored, str):
            last = json.loads(stored)
    if last is not None:
        yield last, "the last valid spec holds"
    declared = budget["spec"]
    with suppress(InvalidOperation, KeyError, TypeError):
        amounts = [declared["perHour"], *(period["perHour"] for period in declared.get("periods", ()))]
        least = min(amounts, key=Decimal)
        yield {**declared, "perHour": least, "periods": []}, "no valid spec is known, so its least amount holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class _FailedLaunches:
    """The launches that autoscalers report as failed: Karpenter's by NodeClaim, the cluster autoscaler's by group."""

    of_claims: Mapping[str, LaunchFailure] = field(default_factory=dict)
    of_groups: Mapping[str, tuple[LaunchFailure, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workload:
    """A placement's workload: its state, the pods that must report metrics, and the metrics endpoints of its pods.

    `long_ready` are the pods that have had to report for `SILENT_S` and longer. `placed` has the nodes of its pods, and
    `requests` what a pod requests. `spans` is as in `PoolMatch`. `autoscaler` names what sets its replicas by itself.
    """

    state: TargetState | TargetMissing
    reporting: frozenset[str]
    long_ready: frozenset[str] = frozenset()
    endpoints: Mapping[str, PodEndpoint] = field(default_factory=dict)
    placed: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, float] = field(default_factory=dict)
    limited: Mapping[str, Json] = field(default_factory=dict)
    spans: int | None = None
    autoscaler: str = ""

    def on(self, pool: PoolNodes | None) -> "_Workload":
        """Return the workload with how its pods match the nodes of `pool`, None: they are not known."""
        if pool is None or isinstance(self.state, TargetMissing):
            return self
        match = PoolMatch(outside=pool.outside(self.placed), fits=pool.holds(self.requests), spans=self.spans)
        words = pool.constraints(self.limited)
        pending = tuple(replace(each, constraint=words.get(each.name, "")) for each in self.state.pending)
        return replace(self, state=replace(self.state, match=match, pending=pending))


class Reader:
    """Makes the Snapshot of each cycle, and keeps in memory what a cycle passes on to the next."""

    def __init__(
        self,
        gateway: Gateway,
        source: MetricSource,
        resources: Resources,
        *,
        cluster: Cluster,
        interval_s: float,
        reporting_grace_s: float,
        clock: Callable[[], float] = time.time,
        histories: DemandHistories | None = None,
    ) -> None:
        """`reporting_grace_s` is how long a pod may be ready without metrics; `clock` returns epoch seconds.

        `histories` has the demand of past days; None: no source has it.
        """
        self._gateway = gateway
        histories = DemandHistories(NoHistorySource(), clock=clock) if histories is None else histories
        self._metrics = MetricsReader(source, interval_s=interval_s, histories=histories)
        self._resources = resources
        self._cluster = cluster
        self._grace_s = reporting_grace_s
        self._clock = clock
        self._carried = CarriedState(interval_s)
        self._unaccounted = UnaccountedReplicas()
        self._crash_loops = CrashLoops()
        self._kubelet_clocks = KubeletClocks()
        self._karpenter = Karpenter(gateway, resources.namespaces)
        self.ownership = Ownership()
        self._last_nodes: Sequence[Json] = ()
        self._last_namespaces: dict[str, frozenset[str]] = {}
        self._threads = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="reader")

    def close(self) -> None:
        """End the reader's threads."""
        self._metrics.histories.close()
        self._threads.shutdown(cancel_futures=True)

    def resume_from(self, kept: KeptMemory) -> None:
        """Resume pipelines from what `kept` has, where it is newer than their status. Before the first cycle."""
        self._carried.resume_from(kept)

    def divide_by(self, allowances: Allowances) -> None:
        """Let the pools and budgets be divided between shards."""
        self._resources.allowances = allowances

    def observe(self) -> Observation:
        """Return the present state of resources, cluster and metrics, with what this shard may use of them.

        A workload or a metric that cannot be read is in the Snapshot as missing, with the reason.

        Raises:
            KubeError: the nodes may be outdated, or the Lease cannot be read in the first cycle.
        """
        now_s = self._clock()
        self._carried.load()
        self._resources.follow_moves(self._gateway, self._cluster)
        pools, invalid_pools = self._resources.pools()
        if not self._unaccounted.orphans.restored:
            self._unaccounted.orphans.restore({spec.name: resource.status() for spec, resource in pools})
        self._unaccounted.orphans.keep(self._resources.members.has)
        self._resources.begin()
        managed, broken = self._resources.pipelines()
        budgets, invalid_budgets = self._resources.budgets()
        by_name = {spec.name: spec for spec, _ in pools}
        based = [(with_basis(spec, by_name), resource) for spec, resource in managed]
        foreign = [each for each in based if self._resources.elsewhere(each[1])]
        of_others = {resource.uid for _, resource in foreign}
        valid = [each for each in based if each[1].uid not in of_others]
        broken = tuple(each for each in broken if not self._resources.elsewhere(each.resource))
        declared, invalid_pipelines = self._with_shared_stages(valid, broken, [spec for spec, _ in foreign])
        pipelines = [(self._metrics.with_windows(spec), resource) for spec, resource in declared]
        specs = [spec for spec, _ in pipelines]
        invalid = self._unaccounted.valid_before(specs, [found.resource.uid for found in invalid_pipelines])
        invalid += tuple(spec for spec, _ in foreign)
        account = self._resources.account
        groups = group_names(specs, by_name.values())
        if groups:
            account.watch({}, (), groups)
            pipelines = [(within_groups(spec, account), resource) for spec, resource in pipelines]
            specs = [spec for spec, _ in pipelines]
        if self._resources.serve is not None:
            self._resources.serve.refresh([*specs, *invalid], self._unaccounted.orphans.known)
            pipelines = [(self._resources.serve.drains(spec), resource) for spec, resource in pipelines]
            specs = [spec for spec, _ in pipelines]
        view = self._cluster.view()
        nodes, unread = self._nodes(view)
        self.ownership.refresh(view.others)
        self._crash_loops.forget_before(now_s - KEPT_S)
        self._kubelet_clocks.forget_before(now_s - KEPT_S)
        resources = {resource.uid: resource for _, resource in pipelines}
        resources |= {found.resource.uid: found.resource for found in invalid_pipelines}
        resources |= {resource.uid: resource for _, resource in foreign}
        owners = find_owners([*specs, *invalid], lambda spec: self._seniority(resources[spec.uid]))
        billed = {own.pool for spec in specs if spec.basis is Basis.INSTANCES for own in spec.placements().values()}
        names = node_names(nodes, unread=bool(unread), billed=bool(billed))
        by_uid = {spec.uid: resource for spec, resource in pipelines}
        present = partial(self._present, by_uid, view)

        def planned_at_s(uid: str) -> float | None:
            return self._carried.planned_at_s(by_uid[uid])

        chosen = self._carried.turns.choose(specs, present, lambda uid: planned_at_s(uid) is not None, billed)
        assessed = [each for each in pipelines if each[0].key in chosen.assessed]
        own = [spec for spec, _ in assessed]
        others = [spec for spec in specs if spec.key in chosen.others]
        workloads = self._workloads([*own, *others, *invalid], owners, view, names, now_s)
        orphans = self._orphaned([*specs, *invalid], view, names, now_s)
        of_pools = {} if unread else {spec.name: PoolNodes.of(nodes, spec.node_selector) for spec, _ in pools}
        workloads = {name: found.on(of_pools.get(pool_of(name[1][1]))) for name, found in workloads.items()}
        workloads = self._with_refusals(own, resources, workloads, now_s)
        elastic = frozenset(spec.name for spec, _ in pools if spec.elastic)
        if any(spec.node_pool is not None for spec, _ in pools):
            self._karpenter.refresh(view.others)
        workloads, failures = self._with_expected_nodes(workloads, elastic, made_by_groups(by_name.values()))
        states = [found.state for found in workloads.values()]
        occupied = {node for state in states if isinstance(state, TargetState) for node in state.nodes}
        seen = {key: found.state for key, found in workloads.items()}
        self._unaccounted.orphans.remember([*own, *others], seen)
        unaccounted = self._unaccounted.count(
            [*own, *others],
            invalid,
            seen,
            (orphan for each in orphans.values() for orphan in each),
            unread=frozenset(by_uid) - {spec.uid for spec in (*own, *others)},
        )
        devices = {spec.name: spec.device for spec, _ in pools}
        memories = {spec.key: self._carried.memory(spec, resource, now_s) for spec, resource in assessed}
        engines = {key: memory.learned.engines for key, memory in memories.items()}
        sharing = _on_nodes(workloads, sharing_nodes(nodes))
        answer = self._metrics.read(specs, self._metrics_targets(own, workloads, engines), devices, sharing)
        late = self._carried.turns.look(
            (spec for spec in specs if spec.key not in chosen.assessed),
            lambda spec: (_scalar(answer, (spec.key, "demand")), _latency(answer, spec)),
        )
        if self._resources.batching is not None:
            self._resources.batching.refresh(specs)
        shared = shared_nodes({spec.name: spec.node_selector for spec, _ in pools}, nodes)
        snapshot = Snapshot(
            now_s=now_s,
            pipelines=tuple(
                self._pipeline_state(spec, resource, workloads, answer, memories[spec.key], now_s)
                for spec, resource in assessed
            ),
            pools={
                spec.name: replace(
                    self._pool_state(
                        spec,
                        resource,
                        nodes,
                        unread,
                        unaccounted.get(spec.name, Counted()),
                        shared.get(spec.name, {}),
                        failures,
                        groups_of(spec, specs),
                    ),
                    orphans=orphans.get(spec.name, ()),
                    nodes=instance_types(nodes, spec.node_selector, occupied) if spec.name in billed else {},
                    node_zones=node_zones(nodes, spec.node_selector, occupied)
                    if spec.name in billed and spec.price is not None
                    else {},
                )
                for spec, resource in pools
            },
            budgets=self._budget_states(budgets, view),
            standing=(
                *chosen.standing.values(),
                *(self._carried.turns.as_read(_unmeasured(spec, workloads), planned_at_s(spec.uid)) for spec in others),
            ),
            named_by_others=live_pools(invalid),
        )
        kept_pools = {spec.name: resource for spec, resource in pools}
        kept_budgets = {spec.name: resource for spec, resource, _ in budgets}
        if self._resources.allowances is not None:
            snapshot = self._resources.allowances.settle(snapshot)
            kept_pools = {name: self._resources.allowances.present(POOLS, kept) for name, kept in kept_pools.items()}
            kept_budgets = {
                name: self._resources.allowances.present(BUDGETS, kept) for name, kept in kept_budgets.items()
            }
        return Observation(
            snapshot=snapshot,
            pipelines={spec.key: resource for spec, resource in assessed},
            pools=kept_pools,
            invalid_pipelines=invalid_pipelines,
            invalid_pools=invalid_pools,
            unanswered=answer.unanswered,
            budgets=kept_budgets,
            invalid_budgets=invalid_budgets,
            foreign={spec.key: resource for spec, resource in foreign},
            standing={spec.key: by_uid[spec.uid] for spec in specs if spec.key not in chosen.assessed},
            seen=chosen.seen,
            late=late,
        )

    def _present(self, resources: Mapping[str, KeptResource], view: View, spec: PipelineSpec) -> Seen:
        """Return what a pipeline is now, to compare with what it was when it was last assessed."""
        targets = {placement.target for key, placement in spec.placements().items() if key[0] not in spec.borrowed}
        others = self.ownership.autoscalers(spec), self.ownership.followers(spec), self.ownership.resizers(spec)
        return Seen(
            uid=spec.uid,
            version=(resources[spec.uid].generation, resources[spec.uid].overrides),
            workloads=(*(view.seen(spec.namespace, target) for target in sorted(targets, key=str)), others),
        )

    def _budget_states(
        self, budgets: Sequence[tuple[BudgetSpec, KeptResource, str]], view: View
    ) -> tuple[BudgetState, ...]:
        """Return each ComputeBudget with its namespaces; if they cannot be read, with the last known ones.

        After a restart, the last known ones are those of the status.
        """
        states = []
        for spec, resource, problem in budgets:
            unread = ""
            try:
                namespaces = view.others(NAMESPACES)
                known = frozenset(each["name"] for each in namespaces if spec.selector.matches(each["labels"]))
            except KubeError as error:
                unread = str(error)
                stored = frozenset(resource.status().get("namespaces") or ())
                known = self._last_namespaces.get(spec.uid, stored)
            states.append(BudgetState(spec=spec, namespaces=known, unread=unread, problem=problem))
        self._last_namespaces = {state.spec.uid: state.namespaces for state in states}
        return tuple(states)

    def _with_shared_stages(
        self,
        pipelines: list[tuple[PipelineSpec, KeptResource]],
        invalid: tuple[InvalidObject, ...],
        foreign: Sequence[PipelineSpec],
    ) -> tuple[list[tuple[PipelineSpec, KeptResource]], tuple[InvalidObject, ...]]:
        """Return the pipelines with their shared stages filled in; those where this is not possible cannot be used.

        Stages of `foreign` pipelines may be shared like those of all others.
        """
        last_valid = self._unaccounted.last_valid([each.resource.uid for each in invalid])
        found, unresolved = resolved((spec for spec, _ in pipelines), (*last_valid, *foreign))
        missing = tuple(
            InvalidObject(
                resource=resource,
                problem=unresolved_sharing(unresolved[spec.key]),
                reason=ConditionReason.SHARED_STAGE_MISSING,
            )
            for spec, resource in pipelines
            if spec.key in unresolved
        )
        usable = [(found[spec.key], resource) for spec, resource in pipelines if spec.key in found]
        return usable, (*invalid, *missing)

    def _nodes(self, view: View) -> tuple[Sequence[Json], str]:
        """Return all nodes and an empty text; if the list is refused or fails, the last known nodes and the reason."""
        try:
            self._last_nodes = view.nodes()
        except (Refused, Failed) as error:
            return self._last_nodes, str(error)
        return self._last_nodes, ""

    def remember(
        self,
        observation: Observation,
        decision: Decision,
        *,
        news: Collection[PipelineKey] = (),
        written: Collection[PipelineKey] = (),
    ) -> int:
        """Keep what `decision` passes on to the next cycle, and of the pipelines that stand what earlier ones did.

        `news` are the pipelines whose decision differs from the last one, `written` those whose status has it. Return
        how many pipelines of a large fleet have a decision that their status does not have yet.
        """
        self._carried.remember(decision, observation.pools, {each.uid for each in observation.standing.values()})
        self._carried.turns.conclude(observation.snapshot, decision, observation.seen, news=news, written=written)
        if self._resources.allowances is not None:
            self._resources.allowances.remember(decision)
        return self._carried.turns.unwritten

    def _seniority(self, resource: KeptResource) -> Seniority:
        """Return the age of a pipeline, and the workloads that it owned in the last cycle or before a restart."""
        created = resource.whole()["metadata"].get("creationTimestamp") or ""
        return Seniority(owned=self._carried.owned(resource), created=created)

    def _workloads(
        self,
        specs: Sequence[PipelineSpec],
        owners: Mapping[WorkloadName, PipelineSpec],
        view: View,
        nodes: NodeNames,
        now_s: float,
    ) -> Mapping[tuple[PipelineKey, PlacementKey], _Workload]:
        """Return the workload of every placement of `specs`.

        It is missing for a pipeline in mode Auto if another pipeline owns it. In another mode, a pipeline reads it. The
        workload of a shared stage is that of the stage that it names.
        """
        named = {(spec.namespace, own.target) for spec in specs for own in spec.placements().values()}
        jobs = {workload: self._found(view, *workload, nodes, now_s) for workload in owners if workload in named}
        read = {workload: job.result() if isinstance(job, Future) else job for workload, job in jobs.items()}
        found: dict[tuple[PipelineKey, PlacementKey], _Workload] = {}
        for spec in specs:
            for key, placement in spec.placements().items():
                if key[0] in spec.borrowed:
                    continue
                workload = spec.namespace, placement.target
                owner, own = owners[workload], read[workload]
                if owner.key == spec.key:
                    found[spec.key, key] = own
                elif spec.mode is Mode.AUTO:
                    found[spec.key, key] = _owned(placement.target, owner)
                else:
                    found[spec.key, key] = replace(own, state=replace(own.state, owner=owner.key))
        for spec in specs:
            for stage, (owner_key, name) in spec.borrowed.items():
                for key in spec.placement_keys():
                    lent = found.get((owner_key, (name, key[1])))
                    if key[0] == stage:
                        found[spec.key, key] = _lent(lent, owner_key)
        return found

    def _orphaned(
        self, specs: Sequence[PipelineSpec], view: View, nodes: NodeNames, now_s: float
    ) -> Mapping[PoolName, tuple[Orphan, ...]]:
        """Return the workloads that Sluice scaled and that none of `specs` has any more, by their pool."""
        jobs = {name: self._found(view, *name, nodes, now_s) for name in self._unaccounted.orphans.to_read(specs)}
        read = {name: job.result() if isinstance(job, Future) else job for name, job in jobs.items()}
        return self._unaccounted.orphans.settle({name: found.state for name, found in read.items()})

    def _found(
        self, view: View, namespace: str, target: Target, nodes: NodeNames, now_s: float
    ) -> "_Workload | Future[_Workload]":
        """Return the workload of `target`; if its kind is not watched, the future of a request for it."""
        if target.is_group:
            return self._group(namespace, target, now_s)
        if target.serve is not None:
            return self._served(view, namespace, target, nodes, now_s)
        try:
            found = view.workload(namespace, target)
        except KubeError as error:
            return _unreadable(target, error)
        if found is None:
            return self._threads.submit(self._requested, namespace, target, nodes, now_s)
        scale, pods = found
        return self._seen(namespace, scale, owned_pods(target, pods), nodes, now_s)

    def _group(self, namespace: str, target: Target, now_s: float) -> _Workload:
        """Return an Auto Scaling group as a workload; its replicas report under the IDs of their instances."""
        try:
            seen = self._resources.account.group(target.name)
        except GroupNotFound as error:
            return _absent(str(error))
        except AwsFailure as error:
            return _absent(unreadable_target(target, str(error), unavailable=False), unreadable=True)
        if seen.group.namespace != namespace:
            return _absent(foreign_group(target.name, namespace, NAMESPACE_TAG))
        ready = [each.name for each in seen.group.instances if each.ready and not each.leaves]
        return _Workload(
            state=target_of(seen),
            reporting=frozenset(name for name in ready if seen.since_s[name] <= now_s - self._grace_s),
            long_ready=frozenset(name for name in ready if seen.since_s[name] <= now_s - self._grace_s - SILENT_S),
        )

    def _served(self, view: View, namespace: str, target: Target, nodes: NodeNames, now_s: float) -> _Workload:
        """Return a deployment of Ray Serve as a workload; its replicas report under their IDs."""
        if self._resources.serve is None:
            return _absent(f"{target}: this operator does not ask Ray", unreadable=True)
        try:
            found = self._resources.serve.workload(
                namespace, target, lambda selector: view.pods(namespace, selector), nodes, now_s
            )
        except KubeError as error:  # its workers' pods
            return _unreadable(target, error)
        return _Workload(
            state=found.state,
            reporting=found.long_running(now_s - self._grace_s),
            long_ready=found.long_running(now_s - self._grace_s - SILENT_S),
            placed=found.placed,
            autoscaler=found.autoscaler,
        )

    def _requested(self, namespace: str, target: Target, nodes: NodeNames, now_s: float) -> _Workload:
        try:
            scale = self._gateway.read_scale(namespace, target)
            if not scale.selector:
                return _absent(unselected_target(target))
            selector = groups.selector(target) if target.of_groups else scale.selector
            pods = owned_pods(target, self._gateway.list_all(PODS, namespace, selector).items)
        except KubeError as error:
            return _unreadable(target, error)
        return self._seen(namespace, scale, pods, nodes, now_s, grouped=target.of_groups)

    def _seen(
        self,
        namespace: str,
        scale: Scale | Workload,
        pods: Sequence[Json],
        nodes: NodeNames,
        now_s: float,
        *,
        grouped: bool = False,
    ) -> _Workload:
        try:
            if not grouped:
                return self._of_pods(namespace, scale, pods, nodes, now_s)
            found = groups.groups_of(pods)
            own = self._of_pods(namespace, scale, found.pods, nodes, now_s)
            if isinstance(own.state, TargetState):
                own = replace(own, state=replace(own.state, nodes=found.nodes if nodes.billed else {}))
            return replace(own, spans=found.spans)
        except Exception as error:  # noqa: BLE001 -- what another wrote into a pod concerns its workload alone
            left_out("pods", f"of a workload in {namespace}", error)
            return _absent(f"its pods cannot be read: {type(error).__name__}: {error}", unreadable=True)

    def _of_pods(
        self, namespace: str, scale: Scale | Workload, pods: Sequence[Json], nodes: NodeNames, now_s: float
    ) -> _Workload:
        pods = self._kubelet_clocks.corrected(namespace, pods, now_s)
        return _Workload(
            state=target_state(scale, pods, nodes, self._crash_loops.unready_since_s(namespace, pods, now_s)),
            reporting=reporting_pods(pods, now_s - self._grace_s),
            long_ready=reporting_pods(pods, now_s - self._grace_s - SILENT_S),
            endpoints=metrics_endpoints(pods),
            placed=placed_pods(pods),
            limited=limited_pods(pods),
            requests=scale.requests if isinstance(scale, Workload) else {},
        )

    def _metrics_targets(
        self,
        specs: Sequence[PipelineSpec],
        workloads: Mapping[tuple[PipelineKey, PlacementKey], _Workload],
        engines: Mapping[PipelineKey, Mapping[PlacementKey, int]],
    ) -> tuple[PlacementTarget, ...]:
        """Return what is read of each placement; `engines` has how many a pod has."""
        serve = self._resources.serve

        def target(spec: PipelineSpec, stage: StageSpec, placement: PlacementSpec) -> PlacementTarget:
            key = (stage.name, placement.name)
            found = workloads[spec.key, key]
            return metrics_target(
                spec,
                stage,
                placement,
                pods=found.reporting,
                endpoints=found.endpoints,
                long_ready=found.long_ready,
                engines=engines[spec.key].get(key, 1),
                labels=None if serve is None else serve.series_labels(placement.target, stage.metrics_labels),
            )

        return tuple(
            target(spec, stage, placement)
            for spec in specs
            for stage in spec.stages
            if _reads(stage, specs)
            for placement in stage.placements
        )

    def _pipeline_state(
        self,
        spec: PipelineSpec,
        resource: KeptResource,
        workloads: Mapping[tuple[PipelineKey, PlacementKey], _Workload],
        answer: ReadAnswer,
        memory: PipelineMemory,
        now_s: float,
    ) -> PipelineState:
        targets = {key: workloads[spec.key, key].state for key in spec.placement_keys()}
        demand = _scalar(answer, (spec.key, "demand"))
        return PipelineState(
            spec=spec,
            targets=targets,
            samples={key: _samples(answer, spec, key) for key in spec.placement_keys()},
            demand=demand,
            latency_s=_latency(answer, spec),
            rule_readings={
                (stage.name, rule.name): _scalar(answer, (spec.key, stage.name, rule.name))
                for stage in spec.stages
                for rule in stage.rules
                if rule.query is not None
            },
            memory=memory,
            written=self.ownership.written(spec, targets),
            refused=self.ownership.refused(spec),
            autoscalers={
                **{key: own for key in spec.placement_keys() if (own := workloads[spec.key, key].autoscaler)},
                **self.ownership.autoscalers(spec),
            },
            followers=self.ownership.followers(spec),
            resizers=self.ownership.resizers(spec),
            metrics=answer.origins.get(spec.key, Origin()),
            planned=self._carried.planned(spec, resource),
            batching={} if self._resources.batching is None else self._resources.batching.states(spec),
            history=self._metrics.histories.of(spec, demand, now_s),
        )

    def _with_refusals(
        self,
        specs: Sequence[PipelineSpec],
        resources: Mapping[str, KeptResource],
        workloads: Mapping[tuple[PipelineKey, PlacementKey], _Workload],
        now_s: float,
    ) -> Mapping[tuple[PipelineKey, PlacementKey], _Workload]:
        """Return the workloads with why their pods are not created, for those that lacked pods in the last cycle too.

        A Deployment says it in its conditions. For others it is in Events, which are read only then.
        """
        found = dict(workloads)
        events: dict[str, Sequence[FailedCreation]] = {}
        for spec in specs:
            for key, placement in spec.placements().items():
                workload = workloads[spec.key, key]
                if isinstance(workload.state, TargetMissing) or not workload.state.uncreated or workload.state.refusal:
                    continue
                since_s = self._carried.memory(spec, resources[spec.uid], now_s).uncreated_since_s.get(key)
                if since_s is None:
                    continue
                if spec.namespace not in events:
                    events[spec.namespace] = self._karpenter.failed_creations(spec.namespace)
                words = refusal(events[spec.namespace], placement.target, since_s)
                found[spec.key, key] = replace(workload, state=replace(workload.state, refusal=words))
        return found

    def _with_expected_nodes(
        self,
        workloads: Mapping[tuple[PipelineKey, PlacementKey], _Workload],
        elastic: frozenset[PoolName],
        groups: Collection[str],
    ) -> tuple[Mapping[tuple[PipelineKey, PlacementKey], _Workload], _FailedLaunches]:
        """Return the workloads with the nodes that are announced for pods that are pending on `elastic` pools.

        The second value has the launches that failed; `groups` are the Auto Scaling groups that make nodes. Without
        such pods, no Event is read.
        """
        waiting = {
            name
            for name, found in workloads.items()
            if pool_of(name[1][1]) in elastic and isinstance(found.state, TargetState) and found.state.pending
        }
        if not waiting:
            return workloads, _FailedLaunches()
        expected = {space: self._karpenter.expected(space) for space in {key.partition("/")[0] for key, _ in waiting}}

        def told(name: tuple[PipelineKey, PlacementKey], found: _Workload) -> _Workload:
            if name not in waiting:
                return found
            assert isinstance(found.state, TargetState)
            of_pod = expected[name[0].partition("/")[0]]
            pending = tuple(replace(each, expected=of_pod.get(each.name, ())) for each in found.state.pending)
            return replace(found, state=replace(found.state, pending=pending))

        failed = _FailedLaunches(
            of_claims=self._karpenter.launch_failures(), of_groups=self._karpenter.scale_up_failures(groups)
        )
        return {name: told(name, found) for name, found in workloads.items()}, failed

    def _pool_state(
        self,
        spec: PoolSpec,
        resource: KeptResource,
        nodes: Sequence[Json],
        unread: str,
        unaccounted: Counted,
        shared: Mapping[PoolName, tuple[str, ...]],
        failures: _FailedLaunches,
        groups: Collection[str],
    ) -> PoolState:
        """Return the state of a pool; `groups` are the Auto Scaling groups whose instances are of it."""
        ready = ready_nodes(nodes, spec.node_selector)
        node_pool = None
        if spec.node_pool is not None:
            node_pool = self._karpenter.state(spec.node_pool, spec.node_selector, nodes, failures.of_claims)
        if spec.auto_scaling_group is not None:
            scale_ups = failures.of_groups.get(spec.auto_scaling_group, ())
            node_pool = self._group_of_pool(spec, spec.auto_scaling_group, nodes, scale_ups)
        ready_instances, zone_count = len(ready), zones(ready)
        if not ready:
            # Plain instances are no nodes.
            seen = self._seen_groups(groups)
            ready_instances = sum(each.ready and not each.leaves for group in seen for each in group.instances)
            zone_count = max(1, len({zone for group in seen for zone in group.zones}))
        return PoolState(
            spec=spec,
            ready_instances=ready_instances,
            leaving_instances=sum(map(is_leaving, ready)),
            zones=zone_count,
            memory=self._carried.pool_memory(resource),
            unread=unread,
            unaccounted=unaccounted.placed,
            claimed=unaccounted.claimed,
            node_pool=node_pool,
            shared_nodes=shared,
            quota=self._quota(spec, resource, nodes, groups),
            priced=self._carried.priced(resource),
        )

    def _group_of_pool(
        self, spec: PoolSpec, name: str, nodes: Sequence[Json], scale_ups: Sequence[LaunchFailure]
    ) -> NodePoolState:
        """Return the group that makes the nodes of a pool as such."""
        try:
            seen = self._resources.account.group(name)
        except AwsFailure as error:
            return unknown_node_pool(str(error), missing=isinstance(error, GroupNotFound))
        return node_pool_of(seen, self._karpenter.instance_ids(None, spec.node_selector, nodes), scale_ups)

    def _seen_groups(self, names: Collection[str]) -> Sequence[Group]:
        """Return those of the groups that could be read."""
        seen: list[Group] = []
        for name in names:
            with suppress(AwsFailure):
                seen.append(self._resources.account.group(name).group)
        return seen

    def _quota(
        self, spec: PoolSpec, resource: KeptResource, nodes: Sequence[Json], groups: Collection[str]
    ) -> QuotaReading | None:
        """Return the reading of the quota that bounds a pool: instances of the pool do not count as used by others.

        Until the first answer of AWS, the last reading of an earlier process counts.
        """
        if spec.quota is None:
            return None
        own = self._karpenter.instance_ids(spec.node_pool, spec.node_selector, nodes)
        own |= {each.name for group in self._seen_groups(groups) for each in group.instances}
        reading = quota_reading(self._resources.account.quota(spec.quota), own, len(own) * spec.quota.vcpus)
        if reading.limit_vcpus is not None:
            return reading
        kept = kept_quota(resource.status(), spec.quota)
        return reading if kept is None else replace(kept, problem=reading.problem)


def _on_nodes(
    workloads: Mapping[tuple[PipelineKey, PlacementKey], _Workload], nodes: Collection[str]
) -> frozenset[tuple[str, str]]:
    """Return the pods on `nodes`, by namespace and name."""
    if not nodes:
        return frozenset()
    return frozenset(
        (pipeline.partition("/")[0], pod)
        for (pipeline, _), found in workloads.items()
        for pod, node in found.placed.items()
        if node in nodes
    )


def _reads(stage: StageSpec, specs: Sequence[PipelineSpec]) -> bool:
    """Whether the metrics of the stage are requested for it: those of a shared stage are for the one that it names."""
    return stage.shared_from is None or all(spec.key != stage.shared_from[0] for spec in specs)


def _samples(answer: ReadAnswer, spec: PipelineSpec, key: PlacementKey) -> PlacementSamples:
    """Return the samples of a placement; those of a shared stage are of the stage that it names."""
    stage, pool = key
    owner = spec.borrowed.get(stage)
    if owner is not None and (*owner, pool) in answer.placements:
        return answer.placements[*owner, pool]
    return answer.placements[spec.key, stage, pool]


def _lent(workload: _Workload | None, owner: PipelineKey) -> _Workload:
    """Return the workload of a shared stage, which belongs to the pipeline `owner`."""
    if workload is None:
        return _absent(NOT_READ, owner=owner)
    state = workload.state
    return replace(workload, state=state if state.owner is not None else replace(state, owner=owner))


def _scalar(answer: ReadAnswer, key: Hashable) -> Reading:
    return answer.scalars.get(key, Absence(reason=AbsenceReason.UNAVAILABLE, detail=NO_ANSWER))


def _latency(answer: ReadAnswer, spec: PipelineSpec) -> Reading | None:
    return None if spec.queries.latency is None else _scalar(answer, (spec.key, "sla"))


def _unmeasured(spec: PipelineSpec, workloads: Mapping[tuple[PipelineKey, PlacementKey], _Workload]) -> PipelineState:
    """Return the state of a pipeline of which only the workloads are read."""
    return PipelineState(
        spec=spec,
        targets={key: workloads[spec.key, key].state for key in spec.placement_keys()},
        samples={},
        demand=MISSING,
        latency_s=None,
        rule_readings={},
        memory=PipelineMemory(),
    )


def _absent(reason: str, *, unreadable: bool = False, owner: PipelineKey | None = None) -> _Workload:
    state = TargetMissing(reason=reason, unreadable=unreadable, owner=owner)
    return _Workload(state=state, reporting=frozenset())


def _owned(target: Target, owner: PipelineSpec) -> _Workload:
    """Return the workload of a placement that may not have it, because `owner` scales it for another placement."""
    stage = next(key[0] for key, placement in owner.placements().items() if placement.target == target)
    return _absent(owned_target(target, owner_words(owner.key, stage)), owner=owner.key)


def _unreadable(target: Target, error: KubeError) -> _Workload:
    """Return a workload that could not be read; its cost is unknown, unless `error` says that it does not exist."""
    problem = unreadable_target(target, str(error), unavailable=isinstance(error, Unavailable))
    return _absent(problem, unreadable=not isinstance(error, NotFound))


def _parsed(resource: Json) -> PipelineSpec | str:
    """Return the spec of a SpeechPipeline, or why it cannot be used. The status is not validated."""
    try:
        return pipeline_spec(parse(SpeechPipeline, {key: part for key, part in resource.items() if key != "status"}))
    except (InvalidResource, InvalidProblem) as error:
        return str(error)
