"""Makes the Snapshot of a cycle from the resources in the stores, workloads and nodes of the cluster, and metrics.

Deployments, StatefulSets, pods and nodes are watched. For a target of another kind, each cycle requests its scale and
the pods of the scale's selector: two small requests, for eight targets at a time.
"""

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from controller.core.codec import InvalidRecord
from controller.core.containment import Contained
from controller.core.messages.problems import (
    NO_ANSWER,
    NOT_READ,
    internal_error,
    owned_target,
    owner_words,
    unreadable_target,
    unresolved_sharing,
    unselected_target,
)
from controller.core.messages.reasons import ConditionReason
from controller.core.state.carry_over import PipelineMemory, PoolMemory
from controller.core.state.decision import Decision
from controller.core.state.shared import resolved
from controller.core.state.snapshot import PipelineState, Planned, PoolState, Snapshot, TargetMissing, TargetState
from controller.core.state.spec import Mode, PipelineSpec, PlacementKey, PlacementSpec, PoolSpec, StageSpec, Target
from controller.kube.cluster import Cluster, View
from controller.kube.durable import memory_from, resumed
from controller.kube.gateway import PODS, Gateway, Json, KubeError, NotFound, Refused, Scale, Unavailable
from controller.kube.matching import Workload
from controller.kube.observed_windows import ObservedWindows
from controller.kube.other_writers import Ownership
from controller.kube.owners import Seniority, WorkloadName, find_owners
from controller.kube.priorities import PriorityLimits
from controller.kube.restarts import KEPT_S, CrashLoops
from controller.kube.store import KeptResource, ResourceStore
from controller.kube.unaccounted import UnaccountedReplicas
from controller.kube.workloads import (
    NodeNames,
    is_leaving,
    metrics_endpoints,
    node_names,
    ready_nodes,
    reporting_pods,
    seconds,
    target_state,
    zones,
)
from controller.resources.parsing import InvalidResource, parse
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.model import InvalidProblem, PipelineKey, PoolName
from profiler.samples import (
    SILENT_S,
    Absence,
    AbsenceReason,
    Origin,
    PlacementSamples,
    PlacementTarget,
    PodEndpoint,
    Reading,
)
from profiler.sources.base import MetricSource, QueryKind, ReadAnswer, ReadRequest

_LOG = logging.getLogger(__name__)
_PARALLEL = 8
_UNLIMITED = PriorityLimits()
_METRICS_SHARE = 0.5  # of the interval; the rest is for the API server and the decision


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
    """Parses the resources in the stores; a pipeline's spec is parsed only once per generation."""

    def __init__(
        self,
        pipelines: ResourceStore,
        pools: ResourceStore,
        namespaces: tuple[str, ...],
        priorities: PriorityLimits = _UNLIMITED,
    ) -> None:
        self._pipelines = pipelines
        self._pools = pools
        self._priorities = priorities
        self._namespaces = frozenset(namespaces)
        self._specs: dict[tuple[str, int], PipelineSpec | str] = {}

    def pipelines(self) -> tuple[list[tuple[PipelineSpec, KeptResource]], tuple[InvalidObject, ...]]:
        """Return the pipelines in the managed namespaces with their specs, and those whose spec cannot be used."""
        usable, invalid = [], []
        specs: dict[tuple[str, int], PipelineSpec | str] = {}
        for (namespace, _), resource in self._pipelines.snapshot().items():
            if self._namespaces and namespace not in self._namespaces:
                continue
            version = resource.uid, resource.generation
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
        usable, invalid = [], []
        for resource in self._pools.snapshot().values():
            try:
                usable.append((pool_spec(parse(ComputePool, resource.whole())), resource))
            except (InvalidResource, InvalidProblem) as error:
                invalid.append(InvalidObject(resource=resource, problem=str(error)))
        return usable, tuple(invalid)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CarriedOver:
    """What the last cycle passed on to this one, by the UID of the resource."""

    pipelines: Mapping[str, PipelineMemory] = field(default_factory=dict)
    pools: Mapping[str, PoolMemory] = field(default_factory=dict)
    planned: Mapping[str, Planned | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workload:
    """A placement's workload: its state, the pods that must report metrics, and the metrics endpoints of its pods.

    `long_ready` are the pods that have had to report for `SILENT_S` and longer.
    """

    state: TargetState | TargetMissing
    reporting: frozenset[str]
    long_ready: frozenset[str] = frozenset()
    endpoints: Mapping[str, PodEndpoint] = field(default_factory=dict)


class Reader:
    """Makes the Snapshot of each cycle, and keeps in memory what a cycle passes on to the next."""

    def __init__(
        self,
        gateway: Gateway,
        source: MetricSource,
        *,
        pipelines: ResourceStore,
        pools: ResourceStore,
        cluster: Cluster,
        interval_s: float,
        reporting_grace_s: float,
        namespaces: tuple[str, ...] = (),
        priorities: PriorityLimits = _UNLIMITED,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`reporting_grace_s` is how long a pod may be ready without metrics; `clock` returns epoch seconds."""
        self._gateway = gateway
        self._source = source
        self._resources = Resources(pipelines, pools, namespaces, priorities)
        self._cluster = cluster
        self._interval_s = interval_s
        self._grace_s = reporting_grace_s
        self._windows = ObservedWindows()
        self._clock = clock
        self._carried_over = _CarriedOver()
        self._unaccounted = UnaccountedReplicas()
        self._crash_loops = CrashLoops()
        self._problems: tuple[str, ...] = ()
        self.ownership = Ownership(gateway, namespaces)
        self._last_nodes: Sequence[Json] = ()
        self._threads = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="reader")

    def close(self) -> None:
        """End the reader's threads."""
        self._threads.shutdown(cancel_futures=True)

    def observe(self) -> Observation:
        """Return the present state of resources, cluster and metrics.

        A workload or a metric that cannot be read is in the Snapshot as missing, with the reason.

        Raises:
            Unavailable: the nodes may be outdated, because the API server does not answer.
        """
        now_s = self._clock()
        pools, invalid_pools = self._resources.pools()
        declared, invalid_pipelines = self._with_shared_stages(*self._resources.pipelines())
        pipelines = [(self._windows.applied(spec), resource) for spec, resource in declared]
        specs = [spec for spec, _ in pipelines]
        invalid = self._unaccounted.valid_before(specs, [found.resource.uid for found in invalid_pipelines])
        view = self._cluster.view()
        nodes, unread = self._nodes(view)
        self.ownership.refresh()
        self._crash_loops.forget_before(now_s - KEPT_S)
        resources = {resource.uid: resource for _, resource in pipelines}
        resources |= {found.resource.uid: found.resource for found in invalid_pipelines}
        owners = find_owners([*specs, *invalid], lambda spec: self._seniority(resources[spec.uid]))
        workloads = self._workloads([*specs, *invalid], owners, view, node_names(nodes, unread=bool(unread)), now_s)
        unaccounted = self._unaccounted.count(specs, invalid, {key: found.state for key, found in workloads.items()})
        answer = self._source.read(self._request(specs, workloads))
        self._windows.observe(specs, {key: samples.scrapes for key, samples in answer.placements.items()})
        self._log_new(answer.problems)
        snapshot = Snapshot(
            now_s=now_s,
            pipelines=tuple(
                self._pipeline_state(spec, resource, workloads, answer, now_s) for spec, resource in pipelines
            ),
            pools={
                spec.name: self._pool_state(spec, resource, nodes, unread, unaccounted.get(spec.name, {}))
                for spec, resource in pools
            },
        )
        return Observation(
            snapshot=snapshot,
            pipelines={spec.key: resource for spec, resource in pipelines},
            pools={spec.name: resource for spec, resource in pools},
            invalid_pipelines=invalid_pipelines,
            invalid_pools=invalid_pools,
            unanswered=answer.unanswered,
        )

    def _with_shared_stages(
        self, pipelines: list[tuple[PipelineSpec, KeptResource]], invalid: tuple[InvalidObject, ...]
    ) -> tuple[list[tuple[PipelineSpec, KeptResource]], tuple[InvalidObject, ...]]:
        """Return the pipelines with their shared stages filled in; those where this is not possible cannot be used."""
        found, unresolved = resolved(
            (spec for spec, _ in pipelines), self._unaccounted.last_valid([each.resource.uid for each in invalid])
        )
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
        """Return all nodes and an empty text; if the server refuses the list, the last known nodes and the reason."""
        try:
            self._last_nodes = view.nodes()
        except Refused as error:
            return self._last_nodes, str(error)
        return self._last_nodes, ""

    def remember(self, observation: Observation, decision: Decision) -> None:
        """Keep what `decision` passes on to the next cycle; what earlier cycles passed on is forgotten."""
        self._carried_over = _CarriedOver(
            pipelines={observation.pipelines[each.key].uid: each.memory for each in decision.pipelines},
            pools={observation.pools[pool.name].uid: pool.memory for pool in decision.pools},
            planned={each.spec.uid: each.planned for each in decision.pipelines},
        )

    def _log_new(self, problems: tuple[str, ...]) -> None:
        """Log the problems that the last cycle did not have."""
        for problem in problems:
            if problem not in self._problems:
                _LOG.warning("metrics: %s", problem)
        self._problems = problems

    def _seniority(self, resource: KeptResource) -> Seniority:
        """Return the age of a pipeline, and the workloads that it owned in the last cycle or before a restart."""
        whole = resource.whole()
        memory = self._carried_over.pipelines.get(resource.uid)
        if memory is None:
            with suppress(InvalidRecord):  # reported when the memory is read for the Snapshot
                memory = memory_from((whole.get("status") or {}).get("memory"))
        return Seniority(
            owned=frozenset() if memory is None else memory.owned,
            created=whole["metadata"].get("creationTimestamp") or "",
        )

    def _workloads(
        self,
        specs: Sequence[PipelineSpec],
        owners: Mapping[WorkloadName, PipelineSpec],
        view: View,
        nodes: NodeNames,
        now_s: float,
    ) -> Mapping[tuple[PipelineKey, PlacementKey], _Workload]:
        """Return the workload of every placement.

        It is missing for a pipeline in mode Auto if another pipeline owns it. In another mode, a pipeline reads it. The
        workload of a shared stage is that of the stage that it names.
        """
        jobs = {workload: self._found(view, *workload, nodes, now_s) for workload in owners}
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

    def _found(
        self, view: View, namespace: str, target: Target, nodes: NodeNames, now_s: float
    ) -> "_Workload | Future[_Workload]":
        """Return the workload of `target`; if its kind is not watched, the future of a request for it."""
        try:
            found = view.workload(namespace, target)
        except KubeError as error:
            return _unreadable(target, error)
        if found is None:
            return self._threads.submit(self._requested, namespace, target, nodes, now_s)
        return self._seen(namespace, *found, nodes, now_s)

    def _requested(self, namespace: str, target: Target, nodes: NodeNames, now_s: float) -> _Workload:
        try:
            scale = self._gateway.read_scale(namespace, target)
            if not scale.selector:
                return _absent(unselected_target(target))
            pods = self._gateway.list_all(PODS, namespace, scale.selector).items
        except KubeError as error:
            return _unreadable(target, error)
        return self._seen(namespace, scale, pods, nodes, now_s)

    def _seen(
        self, namespace: str, scale: Scale | Workload, pods: Sequence[Json], nodes: NodeNames, now_s: float
    ) -> _Workload:
        return _Workload(
            state=target_state(scale, pods, nodes, self._crash_loops.unready_since_s(namespace, pods, now_s)),
            reporting=reporting_pods(pods, now_s - self._grace_s),
            long_ready=reporting_pods(pods, now_s - self._grace_s - SILENT_S),
            endpoints=metrics_endpoints(pods),
        )

    def _request(
        self, specs: Sequence[PipelineSpec], workloads: Mapping[tuple[PipelineKey, PlacementKey], _Workload]
    ) -> ReadRequest:
        placements = tuple(
            metrics_target(
                spec,
                stage,
                placement,
                pods=workloads[spec.key, (stage.name, placement.pool)].reporting,
                endpoints=workloads[spec.key, (stage.name, placement.pool)].endpoints,
                long_ready=workloads[spec.key, (stage.name, placement.pool)].long_ready,
            )
            for spec in specs
            for stage in spec.stages
            if _reads(stage, specs)
            for placement in stage.placements
        )
        queries = {spec.key: user_queries(spec) for spec in specs}
        return ReadRequest(
            placements=placements,
            scalars={name: query for own in queries.values() for name, query in own.items()},
            deadline_s=_METRICS_SHARE * self._interval_s,
            scalar_owners={name: key for key, own in queries.items() for name in own},
            scalar_kinds={name: _query_kind(name) for own in queries.values() for name in own},
        )

    def _pipeline_state(
        self,
        spec: PipelineSpec,
        resource: KeptResource,
        workloads: Mapping[tuple[PipelineKey, PlacementKey], _Workload],
        answer: ReadAnswer,
        now_s: float,
    ) -> PipelineState:
        targets = {key: workloads[spec.key, key].state for key in spec.placement_keys()}
        return PipelineState(
            spec=spec,
            targets=targets,
            samples={key: _samples(answer, spec, key) for key in spec.placement_keys()},
            demand=_scalar(answer, (spec.key, "demand")),
            latency_s=None if spec.queries.latency is None else _scalar(answer, (spec.key, "sla")),
            rule_readings={
                (stage.name, rule.name): _scalar(answer, (spec.key, stage.name, rule.name))
                for stage in spec.stages
                for rule in stage.rules
                if rule.query is not None
            },
            memory=self._memory(spec, resource, now_s),
            written=self.ownership.written(spec, targets),
            refused=self.ownership.refused(spec),
            autoscalers=self.ownership.autoscalers(spec),
            followers=self.ownership.followers(spec),
            metrics=answer.origins.get(spec.key, Origin()),
            planned=self._carried_over.planned.get(spec.uid),
        )

    def _memory(self, spec: PipelineSpec, resource: KeptResource, now_s: float) -> PipelineMemory:
        if (known := self._carried_over.pipelines.get(spec.uid)) is not None:
            return known
        try:
            stored = memory_from(resource.status().get("memory"))
        except InvalidRecord as error:
            _LOG.warning("%s: starting without memory: %s", spec.key, error)
            return PipelineMemory()
        window_s = max(spec.scaling.up.stabilization_s, spec.scaling.down.stabilization_s)
        return resumed(stored, now_s, window_s, self._interval_s)

    def _pool_state(
        self, spec: PoolSpec, resource: KeptResource, nodes: Sequence[Json], unread: str, unaccounted: Mapping[int, int]
    ) -> PoolState:
        ready = ready_nodes(nodes, spec.node_selector)
        memory = self._carried_over.pools.get(spec.uid)
        return PoolState(
            spec=spec,
            ready_instances=len(ready),
            leaving_instances=sum(map(is_leaving, ready)),
            zones=zones(ready),
            memory=_stored_pool_memory(resource) if memory is None else memory,
            unread=unread,
            unaccounted=unaccounted,
        )


def metrics_target(
    spec: PipelineSpec,
    stage: StageSpec,
    placement: PlacementSpec,
    *,
    pods: frozenset[str],
    endpoints: Mapping[str, PodEndpoint],
    long_ready: frozenset[str] = frozenset(),
) -> PlacementTarget:
    """Return what a metric source reads for a placement whose `pods` must report; `endpoints` are of all its pods.

    `long_ready` are those of `pods` that have had to report for `SILENT_S`.
    """
    return PlacementTarget(
        pipeline=spec.key,
        stage=stage.name,
        pool=placement.pool,
        namespace=spec.namespace,
        pods=pods,
        preset=stage.preset,
        window_s=stage.metrics_window_s,
        concurrency=placement.prior.concurrency,
        batch_limit=placement.prior.batch_sizes[-1],
        overrides=stage.metric_overrides,
        endpoints=endpoints,
        model=stage.metrics_model,
        answer=stage.metrics_answer,
        long_ready=long_ready,
        labels=stage.metrics_labels,
    )


def user_queries(spec: PipelineSpec) -> dict[Hashable, str]:
    """Return the queries in a pipeline's spec, by the id of their result."""
    queries: dict[Hashable, str] = {(spec.key, "demand"): spec.queries.demand}
    if spec.queries.latency is not None:
        queries[(spec.key, "sla")] = spec.queries.latency
    for stage in spec.stages:
        queries |= {(spec.key, stage.name, rule.name): rule.query for rule in stage.rules if rule.query is not None}
    return queries


def _query_kind(name: Hashable) -> QueryKind:
    """Return the kind of the user's query with the id `name`, which `user_queries` made."""
    match name:
        case (_, "demand"):
            return QueryKind.DEMAND
        case (_, "sla"):
            return QueryKind.LATENCY
        case _:
            return QueryKind.RULES


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


def _stored_pool_memory(resource: KeptResource) -> PoolMemory:
    """Return the memory that `controller.kube.status` wrote into a pool's status; empty when it is not valid."""
    status = resource.status()
    try:
        until = status.get("unavailableUntil")
        backoff = status.get("backoffSeconds")
        return PoolMemory(
            unavailable_until_s=None if until is None else seconds(until),
            backoff_s=None if backoff is None else float(backoff),
            reason=str(status.get("reason", "")),
        )
    except (ValueError, TypeError) as error:
        _LOG.warning("pool %s: starting without memory: %s", resource.name, error)
        return PoolMemory()
