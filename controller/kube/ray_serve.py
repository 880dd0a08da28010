"""Deployments of Ray Serve as targets of placements: where they are, how they are read, and how they are scaled.

A RayService is scaled by its `serveConfigV2`, which KubeRay gives to Ray: what Sluice wrote outlives Ray's head.
Without one, Serve's own API is called in each cycle that finds another number: a redeployment sets the one in its
configuration, and nothing announces it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from controller.core.state.decision import ReplicaChange
from controller.core.state.snapshot import PendingReplica, ServingReplica, TargetMissing, TargetState
from controller.core.state.spec import LabelSelector, PipelineSpec, ServeDeployment, Target
from controller.kube.gateway import (
    RAY_SERVICES,
    Conflict,
    Failed,
    Gateway,
    Invalid,
    Json,
    KubeError,
    NotFound,
    Scale,
)
from controller.kube.workloads import NodeNames, node_of, target_state
from controller.ray.applications import RUNNING, STOPPING, Applications, ServeFailure, ServeRefusal, ServeState
from controller.ray.client import ServeApi
from controller.ray.serve_config import UnusableConfig, config_of, configured, with_replicas, worker_labels
from profiler.samples import DEFAULT_LABELS, SeriesLabels

_PORT = 8265
_WAIT_S = 3.0
"""The longest that a cycle waits for all Ray clusters together, in seconds."""
_PARALLEL = 16
_NOT_FOUND, _NOT_ENABLED = 404, 412
_REPLICA = "replica"
_CONFIG = "/spec/serveConfigV2"
_NO_RESOURCES = "no Ray node has the resources that it asks for (ray_actor_options)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The hosts of dashboards that are asked: Services of the pipeline's own namespace, and `allowed` (host:port)."""

    allowed: frozenset[str] = frozenset()

    def problem(self, namespace: str, address: str) -> str:
        """Return why the dashboard at `address` is not asked for pipelines of `namespace`, empty if it is."""
        host = re.sub(r"^https?://", "", address)
        own = rf"[a-z0-9-]+\.{re.escape(namespace)}\.svc(\.[a-z0-9.-]+)?(:\d+)?"
        if host in self.allowed or re.fullmatch(own, host):
            return ""
        return (
            f"address {address}: must be a Service of the namespace, as in http://NAME.{namespace}.svc:{_PORT}, or "
            "among the operator's --ray-hosts"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A deployment as a workload. `running_since_s` has since when its replicas serve, as far as that was seen.

    `autoscaler` names Ray's own where that sets its replicas. `placed` has the nodes of its replicas.
    """

    state: TargetState | TargetMissing
    running_since_s: Mapping[str, float] = field(default_factory=dict)
    autoscaler: str = ""
    placed: Mapping[str, str] = field(default_factory=dict)

    def long_running(self, before_s: float) -> frozenset[str]:
        """Return the replicas that have served since `before_s` or longer."""
        return frozenset(name for name, since_s in self.running_since_s.items() if since_s <= before_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    """What a cycle has read for a target: the RayService, if it names one, and the URL of the dashboard."""

    address: str
    service: Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """When a replica had a Ray node first, and when it served first, in epoch seconds; None: not yet.

    `from_start`: it was seen before, or is newer than the cycle before. Otherwise its creation stands for both.
    """

    placed_s: float | None = None
    ready_s: float | None = None
    from_start: bool = False

    @property
    def startup_s(self) -> float | None:
        """Return how long it took from its node until it served, None where that was not seen."""
        if not self.from_start or self.placed_s is None or self.ready_s is None:
            return None
        return self.ready_s - self.placed_s


class RayServe:
    """Reads the deployments that pipelines scale, and what each cycle passes on to the next about them."""

    def __init__(self, gateway: Gateway, api: ServeApi, hosts: Hosts, series: SeriesLabels = DEFAULT_LABELS) -> None:
        """`api` answers at the addresses that `hosts` allows; `series` are the labels of the series of pods."""
        self._gateway, self._api, self._hosts, self._series = gateway, api, hosts, series
        self._threads = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="ray-serve")
        self._asked: dict[tuple[str, str], Future[tuple[_Where, Applications]]] = {}
        self._replicas: dict[tuple[str, str], dict[str, _Seen]] = {}
        """What was seen of the replicas, by namespace and deployment."""

    def close(self) -> None:
        """End the threads. A request under way ends by its own deadline."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def refresh(self, specs: Iterable[PipelineSpec], others: Iterable[tuple[str, Target]] = ()) -> None:
        """Ask for the deployments of `specs` and `others`, and wait for the answers, all together for a moment.

        A cluster that does not answer in time is asked no second time before it has: its deployments cannot be read.
        """
        named = [(spec.namespace, target) for spec in specs for target in _targets(spec)]
        wanted = {
            (namespace, _place(target.serve)): target.serve
            for namespace, target in (*named, *others)
            if target.serve is not None
        }
        self._asked = {key: job for key, job in self._asked.items() if key in wanted and not job.done()}
        for (namespace, place), serve in wanted.items():
            if (namespace, place) not in self._asked:
                self._asked[namespace, place] = self._threads.submit(self._ask, namespace, serve)
        if self._asked:
            wait(self._asked.values(), _WAIT_S)

    def _ask(self, namespace: str, serve: ServeDeployment) -> tuple[_Where, Applications]:
        where = self._where(namespace, serve)
        return where, self._api.read(where.address)

    def _where(self, namespace: str, serve: ServeDeployment) -> _Where:
        """Return where a deployment is.

        Raises:
            ServeFailure: the address is not allowed.
            KubeError: the RayService cannot be read.
        """
        address = serve.address or f"http://{serve.service}-head-svc.{namespace}.svc:{_PORT}"
        if problem := self._hosts.problem(namespace, address):
            raise ServeFailure(problem)
        if not serve.service:
            return _Where(address=address)
        return _Where(address=address, service=self._gateway.get(RAY_SERVICES, namespace, serve.service))

    def series_labels(self, target: Target, stated: SeriesLabels | None) -> SeriesLabels | None:
        """Return the labels of the series of a target's replicas, of which its stage has `stated` some.

        A series of Ray Serve has its replica in a label of its own: its pod is that of the whole Ray node.
        """
        return stated if target.serve is None else replace(stated or self._series, pod=_REPLICA)

    def drains(self, spec: PipelineSpec) -> PipelineSpec:
        """Return `spec` with the time that Ray gives its replicas for their requests when they stop.

        It is that of the slowest of its deployments; where the pipeline has other workloads too, at least its own.
        """
        graces_s = [
            found.grace_s
            for target in _targets(spec)
            if target.serve is not None and isinstance(found := self._found(spec.namespace, target.serve), ServeState)
        ]
        if not graces_s:
            return spec
        others = any(target.serve is None for target in _targets(spec))
        drain_s = max(*graces_s, spec.scaling.drain_s if others else 0.0)
        return replace(spec, scaling=replace(spec.scaling, drain_s=drain_s))

    def workload(
        self,
        namespace: str,
        target: Target,
        pods: Callable[[LabelSelector], Sequence[Json]],
        nodes: NodeNames,
        now_s: float,
    ) -> Served:
        """Return a deployment as a workload; `pods` returns the pods of its namespace that a selector selects."""
        serve = target.serve
        assert serve is not None, "it is of kind RayServe"
        state = self._found(namespace, serve)
        if isinstance(state, TargetMissing):
            return Served(state=state)
        service = self._asked[namespace, _place(serve)].result()[0].service
        autoscaled, desired, version = state.autoscaled, state.target, str(state.target)
        if service is not None:
            try:
                known = configured(config_of(service), serve.application, serve.deployment)
            except UnusableConfig as error:
                return Served(state=TargetMissing(reason=f"{target}: {error}", unreadable=True))
            version = service["metadata"]["resourceVersion"]
            autoscaled = autoscaled or known.replicas is None
            desired = state.target if known.replicas is None else known.replicas
        workers = [] if service is None else _workers(service, serve, pods)
        seen, node = self._seen(namespace, serve, state, now_s), _nodes_of(workers)
        return Served(
            state=_target_state(state, desired, version, workers, nodes, seen, now_s),
            running_since_s={name: own.ready_s for name, own in seen.items() if own.ready_s is not None},
            autoscaler=f"autoscaling_config/{target.name}" if autoscaled else "",
            placed={each.name: node[each.address or ""] for each in state.replicas if each.address in node},
        )

    def _found(self, namespace: str, serve: ServeDeployment) -> ServeState | TargetMissing:
        job = self._asked.get((namespace, _place(serve)))
        name = f"RayServe/{serve.application}/{serve.deployment}"
        if job is None or not job.done():
            return TargetMissing(reason=f"{name}: Ray did not answer within {_WAIT_S:g} s", unreadable=True)
        try:
            return job.result()[1].deployment(serve.application, serve.deployment)
        except ServeRefusal as error:
            return TargetMissing(reason=f"{name}: {error}", unreadable=error.status != _NOT_FOUND)
        except (ServeFailure, KubeError) as error:
            return TargetMissing(reason=f"{name}: {error}", unreadable=True)
        except Exception as error:  # noqa: BLE001 -- what a tenant's server answers must not end the cycle of all
            return TargetMissing(reason=f"{name}: {type(error).__name__}: {error}", unreadable=True)

    def _seen(self, namespace: str, serve: ServeDeployment, state: ServeState, now_s: float) -> Mapping[str, "_Seen"]:
        """Return what was seen of each replica up to now: Ray says only when it was created."""
        key = namespace, f"{_place(serve)}/{serve.application}/{serve.deployment}"
        before = self._replicas.get(key)
        found = {}
        for each in state.replicas:
            created_s = min(now_s, each.since_s)
            known = None if before is None else before.get(each.name)
            seen = _Seen(from_start=before is not None) if known is None else known
            if each.address is not None and seen.placed_s is None:
                seen = replace(seen, placed_s=created_s if known is None else now_s)
            if each.state in RUNNING and seen.ready_s is None:
                seen = replace(seen, ready_s=now_s if seen.from_start else created_s)
            found[each.name] = seen
        self._replicas[key] = found
        return found


class ServeActuator:
    """Makes the decided changes of deployments, with the errors of the Kubernetes client."""

    def __init__(self, gateway: Gateway, api: ServeApi, hosts: Hosts) -> None:
        """`api` answers at the addresses that `hosts` allows."""
        self._gateway, self._api, self._hosts = gateway, api, hosts

    def scale(self, namespace: str, change: ReplicaChange) -> None:
        """Make a change, if the replicas are still those that it was decided for.

        Raises:
            KubeError: it is not made.
        """
        serve = change.target.serve
        assert serve is not None, "it is of kind RayServe"
        if serve.service:
            self._configure(namespace, serve, change)
            return
        if problem := self._hosts.problem(namespace, serve.address):
            raise Invalid(problem)
        try:
            now = self._api.read(serve.address).deployment(serve.application, serve.deployment)
            if now.target != change.before:
                raise Conflict(f"{change.target} was set to {now.target} replicas by another client")
            self._api.scale(serve.address, serve.application, serve.deployment, change.after)
        except ServeRefusal as error:
            if error.status == _NOT_ENABLED:
                raise Invalid(
                    f"{change.target}: application {serve.application} must have external_scaler_enabled: true in its "
                    "configuration, and no autoscaling_config"
                ) from error
            raise (NotFound if error.status == _NOT_FOUND else Failed)(f"{change.target}: {error}") from error
        except ServeFailure as error:
            raise Failed(f"{change.target}: {error}") from error

    def _configure(self, namespace: str, serve: ServeDeployment, change: ReplicaChange) -> None:
        """Write the replicas into the RayService, unless its configuration has changed meanwhile."""
        service = self._gateway.get(RAY_SERVICES, namespace, serve.service)
        text = config_of(service)
        try:
            now = configured(text, serve.application, serve.deployment)
            if now.replicas != change.before:
                raise Conflict(f"{change.target} was set to {now.replicas} replicas by another client")
            written = with_replicas(text, serve.application, serve.deployment, change.after)
        except UnusableConfig as error:
            raise Invalid(f"{change.target}: {error}") from error
        test = {"op": "test", "path": _CONFIG, "value": text}
        operations = [test, {"op": "replace", "path": _CONFIG, "value": written}]
        try:
            self._gateway.patch_json(RAY_SERVICES, namespace, serve.service, operations)
        except Invalid:  # the server says the same of a failed test and of a rule that the object breaks
            if config_of(self._gateway.get(RAY_SERVICES, namespace, serve.service)) == text:
                raise
            raise Conflict(f"{change.target}: serveConfigV2 was changed by another client") from None


def _targets(spec: PipelineSpec) -> list[Target]:
    return [own.target for key, own in spec.placements().items() if key[0] not in spec.borrowed]


def _place(serve: ServeDeployment) -> str:
    """Return what is asked for a deployment: one answer of an address has all applications there."""
    return f"{serve.service}@{serve.address}"


def _workers(service: Json, serve: ServeDeployment, pods: Callable[[LabelSelector], Sequence[Json]]) -> Sequence[Json]:
    """Return the pods of Ray's workers that replicas of the deployment can run in."""
    labels = worker_labels(service, serve.worker_group)
    return pods(LabelSelector(labels=labels)) if labels else ()


def _nodes_of(workers: Iterable[Json]) -> Mapping[str, str]:
    """Return the node of each worker by its address."""
    placed = ((pod.get("status") or {}, node_of(pod)) for pod in workers)
    return {status["podIP"]: node for status, node in placed if node is not None and status.get("podIP")}


def _target_state(
    state: ServeState,
    desired: int,
    version: str,
    workers: Sequence[Json],
    nodes: NodeNames,
    seen: Mapping[str, _Seen],
    now_s: float,
) -> TargetState:
    """Return a deployment as a workload.

    A replica without a Ray node waits for a worker: Ray's autoscaler makes a pod for it, and Karpenter a node for that.
    While Kubernetes has no node for the pod, the replica is pending as that pod is; with one, it is starting.
    """
    node = _nodes_of(workers)
    staying = sorted((each for each in state.replicas if each.state != STOPPING), key=lambda each: each.name)
    serving = [each for each in staying if each.state in RUNNING]
    of_pods = target_state(Scale(replicas=len(workers), selector="", resource_version=""), workers, nodes)
    unplaced, starting_pods = list(of_pods.waiting), list(of_pods.starting)
    pending, starting = [], []
    for each in staying:
        own = PendingReplica(name=each.name, since_s=min(now_s, each.since_s), reason=state.message or each.state)
        if each in serving:
            continue
        if each.address is not None:
            starting.append(own)
        elif unplaced:
            pending.append(unplaced.pop(0))
        elif starting_pods:
            starting.append(starting_pods.pop(0))
        else:
            pending.append(replace(own, reason=state.message or _NO_RESOURCES))
    return TargetState(
        desired=desired,
        existing=len(staying),
        ready=len(serving),
        terminating=len(state.replicas) - len(staying),
        pending=tuple(pending),
        starting=tuple(starting),
        serving=tuple(
            ServingReplica(
                name=each.name,
                leaving=node.get(each.address or "", "") in nodes.leaving,
                startup_s=seen[each.name].startup_s,
                start_seen=seen[each.name].from_start,
                ready_s=seen[each.name].ready_s,
                node=node.get(each.address or "", ""),
            )
            for each in serving
        ),
        resource_version=version,
        rolling=state.updating,
        refusal=state.message if len(staying) < desired else "",
        nodes=Counter(node[each.address or ""] for each in state.replicas if each.address in node)
        if nodes.billed
        else {},
    )
