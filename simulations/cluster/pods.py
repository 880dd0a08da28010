"""Deployments and their pods: pending, starting, ready, draining, gone; and the order in which pods are removed."""

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

from controller.core.state.snapshot import PendingReplica, ServingReplica, TargetState
from controller.core.state.spec import PipelineSpec, PlacementSpec, PoolSpec
from optimizer.model import PipelineKey, PlacementKey, PoolName, Size, pool_of
from simulations.cluster.agenda import Agenda
from simulations.cluster.node_pool import Node, NodePool, launch_times
from simulations.results.spending import Replicas

BINDING_S = 0.03
"""The time from the change of a Deployment to the start of its first pod, measured on the lab."""
BINDING_EACH_S = 0.009
"""The additional time for each further pod of the same change of a Deployment."""

WorkloadName = tuple[PipelineKey, PlacementKey]
NO_COSTS: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True, eq=False, kw_only=True)
class Pod:
    """A replica. It is pending without `nodes`, starting from `bound_s`, ready from `ready_s`, draining if `leaving`.

    A group of pods that takes several nodes is one replica here, and gets all of its nodes at once.

    `reason` is the scheduler's message while it is pending. `number` is its number in the engine, once it is ready.
    `tie` decides among equal pods which one is deleted.
    """

    name: str
    workload: "Workload"
    created_s: float
    tie: int
    nodes: tuple[Node, ...] = ()
    reason: str = ""
    bound_s: float | None = None
    ready_s: float | None = None
    number: int | None = None
    leaving: bool = False
    outdated: bool = False
    """Whether a roll-out has yet to replace it."""
    gone: bool = False
    deletion_cost: int = 0
    out_of_memory_s: float | None = None
    takes_sessions: bool = True
    """Its label, by which a Service selects the pods that get new sessions."""


@dataclass(slots=True, eq=False, kw_only=True)
class Workload:
    """The Deployment of a placement, with its pods. `version` counts its changes, `revision` its roll-outs."""

    pipeline: PipelineSpec
    key: PlacementKey
    placement: PlacementSpec
    desired: int = 0
    version: int = 1
    revision: int = 1
    pods: list[Pod] = field(default_factory=list)

    @property
    def name(self) -> WorkloadName:
        """Return the name of the placement: the pipeline, and its key there."""
        return self.pipeline.key, self.key

    @property
    def pool(self) -> PoolName:
        """Return the pool of the placement."""
        return self.placement.pool

    @property
    def share(self) -> Fraction:
        """Return the share of a node that a replica takes, above 1 where it takes several nodes."""
        return Fraction(1, self.placement.prior.per_instance)

    def staying(self) -> list[Pod]:
        """Return the pods that are not terminating."""
        return [pod for pod in self.pods if not pod.leaving]

    def surge(self) -> int:
        """Return the number of pods that a roll-out may add to the desired ones: 1 while there are outdated pods."""
        return int(any(pod.outdated for pod in self.staying()))

    def nodes(self) -> Mapping[str, Size]:
        """Return the number of replicas on each node, by its name; of a group of pods, the part that is there."""
        found: dict[str, Size] = {}
        for pod in self.pods:
            for node in pod.nodes:
                name = self._name_of(node)
                found[name] = found.get(name, 0) + (1 if len(pod.nodes) == 1 else Fraction(1, len(pod.nodes)))
        return found

    def _name_of(self, node: Node) -> str:
        return f"{self.key[1]}-{node.index}"

    def target_state(self, pool: NodePool, *, now_s: float = math.inf, billed: bool = False) -> TargetState:
        """Return the state of the Deployment, on `pool`, as the API server reports it: times are in whole seconds.

        A pod whose node is still launched at `now_s` is pending. `billed` says whether to count the pods on each node.
        """
        staying, announced = self.staying(), pool.announced()
        pending, starting, serving = [], [], []
        for pod in staying:
            if pod.ready_s is not None:
                leaving = any(node.index in announced for node in pod.nodes)
                startup_s = None if pod.bound_s is None else max(0.0, math.floor(pod.ready_s) - math.floor(pod.bound_s))
                node = self._name_of(pod.nodes[0]) if pod.nodes else ""
                old = self.revision - pod.outdated
                own = _serving(pod.name, node, leaving, pod.deletion_cost, startup_s, pod.ready_s, str(old))
                killed_s = pod.out_of_memory_s
                own = own if pod.takes_sessions else replace(own, takes_sessions=False)
                serving.append(own if killed_s is None else replace(own, out_of_memory_s=math.floor(killed_s)))
            elif pod.bound_s is not None and pod.nodes and all(node.up_s <= now_s for node in pod.nodes):
                since_s = math.floor(pod.bound_s)
                killed_s = None if pod.out_of_memory_s is None else math.floor(pod.out_of_memory_s)
                starting.append(
                    PendingReplica(
                        name=pod.name, since_s=since_s, reason="ContainersNotReady", out_of_memory_s=killed_s
                    )
                )
            else:
                coming = tuple(map(pool.expected, pod.nodes))
                since_s = math.floor(pod.created_s)
                pending.append(PendingReplica(name=pod.name, since_s=since_s, reason=pod.reason, expected=coming))
        return TargetState(
            desired=self.desired,
            existing=len(staying),
            ready=len(serving),
            terminating=len(self.pods) - len(staying),
            pending=tuple(pending),
            starting=tuple(starting),
            serving=tuple(serving),
            resource_version=str(self.version),
            nodes=self.nodes() if billed else {},
        )

    def replicas(self, *, billed: bool = False) -> Replicas:
        """Return the replica counts of the Deployment; `billed` as in `target_state`."""
        staying = self.staying()
        return Replicas(
            desired=self.desired,
            existing=len(self.pods),
            terminating=len(self.pods) - len(staying),
            ready=sum(pod.ready_s is not None for pod in staying),
            scheduled=sum(bool(pod.nodes) for pod in self.pods),
            nodes=self.nodes() if billed else {},
        )


class Servers(Protocol):
    """The servers in the pods, which the owner of `Workloads` provides."""

    def begin(self, pod: Pod) -> None:
        """Let a ready pod serve from now on."""

    def drain(self, pod: Pod) -> None:
        """Let a pod drain; `Workloads.ended` is called when it is empty."""

    def kill(self, pod: Pod) -> None:
        """Remove a pod at once, with the items and sessions it holds."""


class Workloads:
    """All Deployments and nodes of a cluster. Methods take the current time as `now_s`, in seconds."""

    def __init__(
        self,
        pipelines: Iterable[PipelineSpec],
        pools: Iterable[PoolSpec],
        *,
        agenda: Agenda,
        servers: Servers,
        seed: int,
        refusal_s: float,
        node_startup_s: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Set up all Deployments, without replicas until `scale` is called.

        `node_startup_s` are the least and the longest time until a node is up, on pools with `capacity.nodePool`.
        `refusal_s` is how long the refusal of a provider of nodes is cached, in seconds.
        """
        self.changes = 0
        """The number of changes of Deployments and pods so far."""
        self.out_of_memory = 0
        """The number of replicas that have run out of memory so far."""
        self.pools = {
            pool.name: NodePool.of(pool, launch_times(pool.name, *node_startup_s, seed=seed), refusal_s=refusal_s)
            for pool in pools
        }
        self.workloads: dict[WorkloadName, Workload] = {}
        self._agenda = agenda
        self._servers = servers
        self._seed = seed
        self._made = 0
        for pipeline in pipelines:
            for stage in pipeline.stages:
                for placement in stage.placements:
                    workload = Workload(pipeline=pipeline, key=(stage.name, placement.name), placement=placement)
                    self.workloads[workload.name] = workload

    # -- changes of replicas

    def scale(
        self, name: WorkloadName, replicas: int, now_s: float, deletion_costs: Mapping[str, int] = NO_COSTS
    ) -> None:
        """Set the desired replicas of a Deployment; among ready pods, those with the lowest deletion cost go first.

        `deletion_costs` has new costs by pod name.
        """
        workload = self.workloads[name]
        for pod in workload.pods:
            pod.deletion_cost = deletion_costs.get(pod.name, pod.deletion_cost)
        workload.desired = replicas
        workload.version += 1
        self.changes += 1
        self._reconcile(workload, now_s)

    def start_at_once(self, name: WorkloadName, replicas: int, now_s: float) -> None:
        """Set the desired replicas of a Deployment and make them ready at once, for the beginning of a run."""
        self.scale(name, replicas, now_s)
        for pod in self.workloads[name].pods:
            if pod.nodes and pod.ready_s is None:
                for node in pod.nodes:
                    node.asked_s, node.up_s = -math.inf, now_s
                pod.bound_s = now_s
                self._ready(pod, now_s)

    def ended(self, pod: Pod, now_s: float) -> None:
        """Remove a drained pod, and place pending pods on its node."""
        self._remove(pod)
        self._fill(self.pools[pod.workload.pool], now_s)

    def restart(self, pod: Pod, now_s: float) -> None:
        """Let a pod that has run out of memory start again on its nodes; one that was draining is gone."""
        self.out_of_memory += 1
        self._servers.kill(pod)
        if pod.leaving:
            self.ended(pod, now_s)
            return
        pod.number, pod.ready_s, pod.out_of_memory_s = None, None, now_s
        self._start(pod, now_s, self.pools[pod.workload.pool].start_factor)

    # -- faults

    def roll_out(self, workload: Workload, now_s: float) -> None:
        """Replace all pods of a Deployment with `maxSurge` 1 and `maxUnavailable` 0.

        One new pod is created beside the desired ones; an old pod goes as soon as a new one is ready.
        """
        workload.revision += 1
        for pod in workload.staying():
            pod.outdated = True
        self._reconcile(workload, now_s)

    def remove_nodes(self, pool: NodePool, indexes: Iterable[int], now_s: float) -> None:
        """Remove nodes with their pods. A node is ready again after as many `restore_nodes`."""
        pool.reclaimed.update(indexes)
        self._clear(pool, now_s)

    def restore_nodes(self, pool: NodePool, indexes: Iterable[int], now_s: float) -> None:
        """Undo one `remove_nodes` of each node, and place pending pods on the nodes that are back."""
        pool.reclaimed.subtract(indexes)
        self._fill(pool, now_s)

    def change_outages(self, pool: NodePool, by: int, now_s: float) -> None:
        """Begin (+1) or end (-1) a fault that gives new replicas no node of a pool."""
        pool.outages += by
        if not pool.outages:
            self._fill(pool, now_s)

    def change_absences(self, pool: NodePool, by: int, now_s: float) -> None:
        """Begin (+1) or end (-1) a fault that removes all nodes of a pool."""
        pool.absences += by
        if pool.absences:
            self._clear(pool, now_s)
        else:
            self._fill(pool, now_s)

    # -- reconciliation

    def of_pool(self, pool: PoolName) -> Iterator[Workload]:
        """Yield the Deployments whose pods run on a pool."""
        return (workload for workload in self.workloads.values() if workload.pool == pool)

    def occupied(self, pool: PoolName) -> Set[str]:
        """Return the names of the nodes of a pool on which pods are."""
        return {node for workload in self.of_pool(pool) for node in workload.nodes()}

    def _reconcile(self, workload: Workload, now_s: float) -> None:
        staying = workload.staying()
        keep = workload.desired + workload.surge()
        for pod in _first_to_go(staying, now_s)[: max(0, len(staying) - keep)]:
            self._let_go(pod)
        self._replace(workload, now_s)
        missing = workload.desired + workload.surge() - len(workload.staying())
        for position in range(missing):
            self._made += 1
            name = f"{workload.placement.target.name}-sim-{self._made:05d}"
            created_s = now_s + position * BINDING_EACH_S
            tie = zlib.crc32(f"{self._seed}/{name}".encode())
            workload.pods.append(Pod(name=name, workload=workload, created_s=created_s, tie=tie))
        self._fill(self.pools[workload.pool], now_s)

    def _replace(self, workload: Workload, now_s: float) -> None:
        """Let outdated pods go: those that are not ready, and ready ones as far as enough pods are ready without."""
        outdated = [pod for pod in workload.staying() if pod.outdated]
        spare = sum(pod.ready_s is not None for pod in workload.staying()) - workload.desired
        for pod in _first_to_go(outdated, now_s):
            if pod.ready_s is None:
                self._let_go(pod)
            elif spare > 0:
                spare -= 1
                self._let_go(pod)

    def _let_go(self, pod: Pod) -> None:
        if pod.ready_s is None:
            self._remove(pod)
        else:
            pod.leaving = True
            self.changes += 1
            self._servers.drain(pod)

    def pod(self, key: PipelineKey, name: str) -> Pod | None:
        """Return the pod of a pipeline that has this name; None where it is going, or gone."""
        return next(
            (
                own
                for workload in self.workloads.values()
                if workload.pipeline.key == key
                for own in workload.pods
                if own.name == name and not own.leaving
            ),
            None,
        )

    def _remove(self, pod: Pod) -> None:
        pod.gone = True
        self.changes += 1
        pod.workload.pods.remove(pod)
        for node in pod.nodes:
            node.free += pod.workload.share / len(pod.nodes)

    def _clear(self, pool: NodePool, now_s: float) -> None:
        """Remove the pods whose nodes are gone; their Deployments create new ones."""
        present = {id(node) for node in pool.present()}
        for workload in tuple(self.of_pool(pool.name)):
            lost = [pod for pod in workload.pods if any(id(node) not in present for node in pod.nodes)]
            for pod in lost:
                if pod.number is not None:
                    self._servers.kill(pod)
                self._remove(pod)
            if lost:
                self._reconcile(workload, now_s)

    def _fill(self, pool: NodePool, now_s: float) -> None:
        """Place the pending pods of a pool, the oldest first."""
        waiting = [pod for workload in self.of_pool(pool.name) for pod in workload.pods if not pod.nodes]
        if not waiting:
            return
        waiting.sort(key=lambda pod: (pod.created_s, pod.name))
        asked_before_s = pool.refused_until_s
        refused = pool.refuses(now_s)
        if refused and pool.refused_until_s != asked_before_s:
            self._agenda.at(pool.refused_until_s, lambda: self._fill(pool, pool.refused_until_s))
        others = sum(len(other.present()) for other in self.pools.values() if other is not pool)
        for pod in waiting:
            pod.nodes = () if refused else pool.place(pod.workload.share, now_s)
            pod.reason = pool.words(others, refused=refused, now_s=now_s)
            if pod.nodes:
                up_s = max(node.up_s for node in pod.nodes)
                self._start(pod, max(now_s, pod.created_s, up_s), pool.start_factor)

    def _start(self, pod: Pod, at_s: float, factor: float) -> None:
        self.changes += 1
        pod.bound_s = at_s + BINDING_S
        ready_s = pod.bound_s + pod.workload.placement.startup_s * factor
        self._agenda.at(ready_s, lambda: self._ready(pod, ready_s))

    def _ready(self, pod: Pod, now_s: float) -> None:
        if not pod.gone and pod.ready_s is None:
            pod.ready_s = now_s
            self.changes += 1
            self._servers.begin(pod)
            if pod.workload.surge():
                self._reconcile(pod.workload, now_s)


@lru_cache(maxsize=4096)  # called for every pod at every tick, mostly with the same arguments
def _serving(
    name: str,
    node: str,
    leaving: bool,
    deletion_cost: int,
    startup_s: float | None,
    ready_s: float | None,
    revision: str,
) -> ServingReplica:
    return ServingReplica(
        name=name,
        node=node,
        leaving=leaving,
        deletion_cost=deletion_cost,
        startup_s=startup_s,
        start_seen=True,
        takes_sessions=True,
        ready_s=ready_s,
        revision=revision,
    )


def _first_to_go(pods: list[Pod], now_s: float) -> list[Pod]:
    """Return the pods in the order in which the ReplicaSet controller deletes them (`ActivePodsWithRanks`).

    Pods without a node come first, then pods that are not ready, then those of the lowest deletion cost, then those
    that share their node with most others of the Deployment, then the youngest. Ages are compared by their binary
    logarithms rounded down. Ties are broken by chance.
    """
    on_node: dict[tuple[int, ...], int] = {}
    for pod in pods:
        on_node[_ids(pod)] = on_node.get(_ids(pod), 0) + 1

    def rank(pod: Pod) -> tuple[bool, bool, int, int, int, int]:
        since_s = pod.created_s if pod.ready_s is None else pod.ready_s
        age_ns = (now_s - since_s) * 1e9
        return (
            bool(pod.nodes),
            pod.ready_s is not None,
            pod.deletion_cost,
            -on_node[_ids(pod)],
            int(math.log2(age_ns)) if age_ns >= 1 else -1,
            pod.tie,
        )

    return sorted(pods, key=rank)


def _ids(pod: Pod) -> tuple[int, ...]:
    return tuple(map(id, pod.nodes))


def initial_replicas(pipeline: PipelineSpec, pools: Mapping[PoolName, PoolSpec]) -> Mapping[PlacementKey, int]:
    """Return the replicas at the beginning of a run: the minimums, and one for a stage that would have none.

    The one replica is on the first of the stage's placements whose pool has instances.
    """
    replicas: dict[PlacementKey, int] = {}
    for stage in pipeline.stages:
        own = {(stage.name, placement.name): placement.prior.min_replicas for placement in stage.placements}
        usable = [key for key in own if pools[pool_of(key[1])].instances]
        if not any(own.values()) and usable:
            own[usable[0]] = 1
        replicas |= own
    return replicas
