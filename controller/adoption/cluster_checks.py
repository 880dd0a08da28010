"""Checks of `sluice doctor` on the objects of the cluster: CRDs, pools, targets and what they run on. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from controller.adoption.amounts import Amounts, amount, amounts, requests_of, words
from controller.adoption.candidates import on_node, pods_of
from controller.adoption.check import Check
from controller.adoption.fit import replicas_per_node
from controller.adoption.inventory import (
    Inventory,
    Json,
    Unread,
    Workspace,
    containers_of,
    known,
    labels_of,
    name_of,
    node_of,
    pod_template,
)
from controller.adoption.ray_services import serve_problem
from controller.core.messages.phrases import count_of, duration
from controller.core.state.spec import Mode, PipelineSpec, PlacementSpec, PoolSpec, Target
from controller.kube.karpenter import node_pool_state
from controller.kube.matching import kept_workload
from controller.kube.other_writers import scaled_target
from controller.kube.workloads import ready_nodes
from optimizer.model import PoolName, StageName

_DEVICES = {
    "GPU": ("/gpu", "nvidia.com/mig"),
    "Inferentia": ("aws.amazon.com/neuron",),
    "Trainium": ("aws.amazon.com/neuron",),
}
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTarget:
    """A target as it was found: its object and pods. `problem` says why it is missing, `unread` why it is unknown.

    `workload` is None for kinds of which only the scale is read.
    """

    workload: Json | None = None
    pods: tuple[Json, ...] = ()
    problem: str = ""
    unread: str = ""


Targets = Mapping[tuple[str, Target], FoundTarget]
"""Targets by namespace and reference."""


def find_targets(specs: Iterable[PipelineSpec], inventory: Inventory) -> dict[tuple[str, Target], FoundTarget]:
    """Return the Deployments and StatefulSets that `specs` name, as found in `inventory`. Other kinds are left out.

    Auto Scaling groups and Ray clusters are not asked: they count as not read, unless a RayService says that a
    deployment cannot be scaled.
    """
    found = {}
    for spec in specs:
        workspace = inventory.workspaces[spec.namespace]
        lists = {"Deployment": workspace.deployments, "StatefulSet": workspace.stateful_sets}
        for placement in spec.placements().values():
            target = placement.target
            if target.is_group:
                unread = (
                    f"{target} is at AWS, which is not asked here; the status of the pipeline says whether it exists"
                )
                found[spec.namespace, target] = FoundTarget(unread=unread)
            if target.serve is not None:
                found[spec.namespace, target] = _found_in_ray(target, workspace)
            listed = lists.get(target.kind) if target.api_version == "apps/v1" else None
            if listed is not None:
                found[spec.namespace, target] = _found(target, listed, workspace)
    return found


def check_crd(name: str, installed: Json | Unread | None, own: Json) -> Check:
    """Return the check that the CustomResourceDefinition `name` has all fields of this version's, `own`."""
    subject = f"CustomResourceDefinition {name}"
    if isinstance(installed, Unread):
        return Check(name="crd", subject=subject, ok=None, message=f"cannot be read: {installed.reason}")
    if installed is None:
        message = "is not installed: kubectl apply --server-side -f crds/"
        return Check(name="crd", subject=subject, ok=False, message=message)
    version = own["spec"]["versions"][0]
    served = {each["name"]: each for each in installed["spec"]["versions"] if each.get("served")}
    there = served.get(version["name"])
    if there is None:
        message = (
            f"serves {', '.join(served) or 'nothing'}, not {version['name']}: kubectl apply --server-side -f crds/"
        )
        return Check(name="crd", subject=subject, ok=False, message=message)
    fields = [set(_fields(each["schema"]["openAPIV3Schema"], "")) for each in (version, there)]
    if missing := sorted(fields[0] - fields[1]):
        message = f"lacks {_some(missing)}: it is of an older version; kubectl apply --server-side -f crds/"
        return Check(name="crd", subject=subject, ok=False, message=message)
    newer = sorted(fields[1] - fields[0])
    note = f"; it is newer than this program and also has {_some(newer)}" if newer else ""
    return Check(name="crd", subject=subject, ok=True, message=f"serves {version['name']} with all fields{note}")


def check_pools(pools: Sequence[PoolSpec], inventory: Inventory) -> list[Check]:
    """Return the checks of the nodes of `pools`: there, ready, with their device, and each in one pool only."""
    if isinstance(inventory.nodes, Unread):
        return [
            Check(name="nodes", subject=f"pool {pool.name}", ok=None, message=f"not read: {inventory.nodes.reason}")
            for pool in pools
        ]
    checks = []
    for pool in pools:
        nodes = nodes_of(pool, inventory.nodes)
        ready = ready_nodes(nodes, {})
        checks.append(_check_nodes(pool, nodes, ready))
        if pool.node_pool is not None:
            checks.append(_check_node_pool(pool, pool.node_pool, inventory))
        if ready and pool.device in _DEVICES:
            checks.append(_check_device(pool, ready))
    pools_of_node = Counter(name_of(node) for pool in pools for node in nodes_of(pool, inventory.nodes))
    shared = sorted(name for name, count in pools_of_node.items() if count > 1)
    if shared:
        names = [pool.name for pool in pools if any(name_of(n) in shared for n in nodes_of(pool, inventory.nodes))]
        message = f"pools {', '.join(names)} all match node {_some(shared)}: make their nodeSelectors exclusive"
        checks.append(Check(name="overlap", subject="pools", ok=False, message=message))
    return checks


def nodes_of(pool: PoolSpec, nodes: Iterable[Json]) -> tuple[Json, ...]:
    """Return the nodes with the labels of a pool's nodeSelector."""
    return tuple(node for node in nodes if pool.node_selector.items() <= labels_of(node).items())


def check_pipeline(
    spec: PipelineSpec, pools: Mapping[PoolName, PoolSpec], inventory: Inventory, targets: Targets
) -> list[Check]:
    """Return the checks of the placements of a pipeline, and of the quotas of its namespace."""
    workspace = inventory.workspaces[spec.namespace]
    autoscalers = _autoscalers(workspace)
    checks = []
    for (stage, _), placement in spec.placements().items():
        subject = placement_subject(spec, stage, placement)
        found = targets.get((spec.namespace, placement.target), FoundTarget(unread="it was not read"))
        if found.problem or found.unread:
            words_ = found.problem or f"not read: {found.unread}"
            checks.append(Check(name="target", subject=subject, ok=False if found.problem else None, message=words_))
            continue
        pods = count_of(len(found.pods), "pod")
        checks.append(Check(name="target", subject=subject, ok=True, message=f"{placement.target} has {pods}"))
        checks.append(_check_pool(subject, placement, pools.get(placement.pool), found, inventory))
        if found.workload is not None:
            checks.append(_check_fit(subject, placement, pools.get(placement.pool), found.workload, inventory))
            checks.append(_check_drain(subject, spec, found.workload))
            checks += _check_limits(subject, found.workload, workspace)
        checks.append(_check_autoscaler(subject, spec.mode, autoscalers.get(placement.target), workspace))
    return [*checks, *_check_quotas(spec, workspace, targets)]


def placement_subject(spec: PipelineSpec, stage: StageName, placement: PlacementSpec) -> str:
    """Return how checks name a placement."""
    return f"{spec.key} {stage} on {placement.name}"


def _found_in_ray(target: Target, workspace: Workspace) -> FoundTarget:
    unread = f"{target} is in Ray, which is not asked here; the status of the pipeline says what serves"
    if target.serve is None or not target.serve.service:
        return FoundTarget(unread=unread)
    if isinstance(workspace.ray_services, Unread):
        return FoundTarget(unread=workspace.ray_services.reason)
    return FoundTarget(problem=serve_problem(target, workspace), unread=unread)


def _found(target: Target, listed: Sequence[Json] | Unread, workspace: Workspace) -> FoundTarget:
    if isinstance(listed, Unread):
        return FoundTarget(unread=listed.reason)
    workload = next((each for each in listed if name_of(each) == target.name), None)
    if workload is None:
        names = ", ".join(sorted(map(name_of, listed))[:_SHOWN]) or "none"
        there = f"{target} does not exist in namespace {workspace.namespace}; {target.kind}s there: {names}"
        return FoundTarget(problem=there)
    if isinstance(workspace.pods, Unread):
        return FoundTarget(unread=workspace.pods.reason)
    return FoundTarget(workload=workload, pods=pods_of(kept_workload(workload), workspace))


def _check_nodes(pool: PoolSpec, nodes: Sequence[Json], ready: Sequence[Json]) -> Check:
    subject, labels = f"pool {pool.name}", ", ".join(f"{key}={value}" for key, value in pool.node_selector.items())
    if not nodes:
        if pool.fixed:
            message = (
                f"no node has {labels}, so no replica is planned: correct nodeSelector, "
                "or capacity if nodes are added on demand"
            )
            return Check(name="nodes", subject=subject, ok=False, message=message)
        message = f"no node has {labels} now: correct nodeSelector, unless nodes are added on demand"
        return Check(name="nodes", subject=subject, ok=None, message=message)
    if len(ready) < len(nodes):
        down = sorted({name_of(node) for node in nodes} - {name_of(node) for node in ready})
        message = f"{len(ready)} of {len(nodes)} nodes are ready; see kubectl describe node {_some(down)}"
        return Check(name="nodes", subject=subject, ok=False, message=message)
    if pool.instances is not None and len(nodes) > pool.instances:
        message = f"{len(nodes)} nodes, but capacity.instances is {pool.instances}: raise it to use them all"
        return Check(name="nodes", subject=subject, ok=True, message=message)
    return Check(name="nodes", subject=subject, ok=True, message=f"{count_of(len(nodes), 'node')} ready")


def _check_node_pool(pool: PoolSpec, name: str, inventory: Inventory) -> Check:
    """Return the check that the NodePool of an elastic pool exists and says how many instances there may be."""
    subject, there = f"pool {pool.name}", {name_of(each): each for each in known(inventory.node_pools)}
    if isinstance(inventory.node_pools, Unread):
        message = f"NodePools not read: {inventory.node_pools.reason}"
        return Check(name="nodePool", subject=subject, ok=None, message=message)
    if name not in there:
        message = f"there is no NodePool {name}; NodePools there: {_some(sorted(there)) or 'none'}"
        return Check(name="nodePool", subject=subject, ok=False, message=message)
    state = node_pool_state(there[name], pool.node_selector, (), known(inventory.nodes), ())
    if state.problem is not None:
        ok, message = pool.instances is not None, f"{state.detail}: set capacity.instances"
        message = f"{state.detail}; capacity.instances is {pool.instances}" if ok else message
        return Check(name="nodePool", subject=subject, ok=ok, message=message)
    if state.unseen:
        message = f"NodePool {name} has no node yet, so its limits do not convert; one instance is used until then"
        return Check(name="nodePool", subject=subject, ok=None, message=message)
    message = f"NodePool {name} allows {count_of(state.instances or 0, 'instance')}"
    return Check(name="nodePool", subject=subject, ok=True, message=message)


def _check_device(pool: PoolSpec, nodes: Sequence[Json]) -> Check:
    kinds, subject = _DEVICES[pool.device], f"pool {pool.name}"
    without = [name_of(node) for node in nodes if not _devices(node, kinds)]
    if without:
        message = f"device is {pool.device}, but node {_some(without)} offers none: check its device plugin"
        return Check(name="device", subject=subject, ok=False, message=message)
    return Check(name="device", subject=subject, ok=True, message=f"every node offers its {pool.device} devices")


def _devices(node: Json, kinds: Sequence[str]) -> float:
    offered = amounts((node.get("status") or {}).get("allocatable"))
    return sum(value for resource, value in offered.items() if any(kind in resource for kind in kinds))


def _check_pool(
    subject: str, placement: PlacementSpec, pool: PoolSpec | None, found: FoundTarget, inventory: Inventory
) -> Check:
    """Return the check that the pods of a placement run on the nodes of its pool."""
    if pool is None:
        message = f"ComputePool {placement.pool} is neither in the files nor in the cluster: add it"
        return Check(name="pool", subject=subject, ok=False, message=message)
    pods = on_node(found.pods)
    if isinstance(inventory.nodes, Unread):
        return Check(name="pool", subject=subject, ok=None, message=f"nodes not read: {inventory.nodes.reason}")
    if not pods:
        message = "no pod has a node, so it is not known whether they run on the pool"
        return Check(name="pool", subject=subject, ok=None, message=message)
    own = {name_of(node) for node in nodes_of(pool, inventory.nodes)}
    elsewhere = [name_of(pod) for pod in pods if node_of(pod) not in own]
    if elsewhere:
        selector = ", ".join(f"{key}: {value}" for key, value in pool.node_selector.items())
        message = (
            f"{len(elsewhere)} of {count_of(len(pods), 'pod')} run on other nodes ({_some(elsewhere)}): "
            f"give {placement.target} the nodeSelector {{{selector}}}"
        )
        return Check(name="pool", subject=subject, ok=False, message=message)
    return Check(name="pool", subject=subject, ok=True, message=f"all pods run on nodes of pool {pool.name}")


def _check_fit(
    subject: str, placement: PlacementSpec, pool: PoolSpec | None, workload: Json, inventory: Inventory
) -> Check:
    """Return the check of perInstance against what a node of the pool has left."""
    nodes = () if pool is None else ready_nodes(nodes_of(pool, known(inventory.nodes)), {})
    if not nodes:
        message = "the pool has no ready node on which to check it"
        return Check(name="perInstance", subject=subject, ok=None, message=message)
    fits = [
        replicas_per_node(pod_template(workload)["spec"], node, inventory.pods_of_node[name_of(node)])
        for node in nodes
        if name_of(node) in inventory.pods_of_node
    ]
    stated = int(max(1, placement.prior.per_instance))
    counted = [(fit.count, fit.because) for fit in fits if fit.count is not None]
    if not counted:
        why = fits[0].because if fits else "the pods of the nodes were not read"
        message = f"{why}: set requests, so that {stated} replicas share a node as perInstance says"
        return Check(name="perInstance", subject=subject, ok=None, message=message)
    count, because = min(counted)
    if count < stated:
        message = f"is {stated}, but {count} fit: {because}. Set perInstance: {max(1, count)}, or lower the requests"
        return Check(name="perInstance", subject=subject, ok=False, message=message)
    more = f"; even for {count}, so a replica costs less than is planned" if count > stated else ""
    return Check(
        name="perInstance", subject=subject, ok=True, message=f"a node has room for {count_of(stated, 'replica')}{more}"
    )


def _check_drain(subject: str, spec: PipelineSpec, workload: Json) -> Check:
    grace_s = pod_template(workload)["spec"].get("terminationGracePeriodSeconds", 30)
    drain_s = spec.scaling.drain_s
    if drain_s > grace_s:
        message = (
            f"scaleDown.drain is {duration(drain_s)}, but pods are killed after {grace_s} s: set "
            f"terminationGracePeriodSeconds to at least {drain_s:g} in {name_of(workload)}, or shorten drain"
        )
        return Check(name="drain", subject=subject, ok=False, message=message)
    message = f"{duration(drain_s)} is within terminationGracePeriodSeconds ({grace_s} s)"
    return Check(name="drain", subject=subject, ok=True, message=message)


def _autoscalers(workspace: Workspace) -> dict[Target, str]:
    lists = (("HorizontalPodAutoscaler", workspace.autoscalers), ("ScaledObject", workspace.scaled_objects))
    return {scaled_target(each)[1]: f"{kind}/{name_of(each)}" for kind, listed in lists for each in known(listed)}


def _check_autoscaler(subject: str, mode: Mode, autoscaler: str | None, workspace: Workspace) -> Check:
    if autoscaler is not None:
        if mode is Mode.AUTO:
            message = f"{autoscaler} scales it too: delete {autoscaler}, or use mode Recommend"
            return Check(name="autoscaler", subject=subject, ok=False, message=message)
        message = f"{autoscaler} scales it, which mode {mode.value} allows; delete it before mode Auto"
        return Check(name="autoscaler", subject=subject, ok=True, message=message)
    unread = [each.reason for each in (workspace.autoscalers, workspace.scaled_objects) if isinstance(each, Unread)]
    if unread:
        return Check(name="autoscaler", subject=subject, ok=None, message=f"not read: {'; '.join(unread)}")
    return Check(name="autoscaler", subject=subject, ok=True, message="no other autoscaler scales it")


def _check_quotas(spec: PipelineSpec, workspace: Workspace, targets: Targets) -> Iterator[Check]:
    """Yield the checks that each ResourceQuota leaves room for replicas.max of every placement."""
    subject = f"namespace {spec.namespace}"
    if isinstance(workspace.quotas, Unread):
        yield Check(name="quota", subject=subject, ok=None, message=f"not read: {workspace.quotas.reason}")
        return
    more: dict[str, float] = {}
    for placement in spec.placements().values():
        found = targets.get((spec.namespace, placement.target))
        if found is not None and found.workload is not None:
            added = max(0, placement.prior.max_replicas - len(found.pods))
            for resource, value in _counted(found.workload).items():
                more[resource] = more.get(resource, 0.0) + added * value
    for quota in workspace.quotas:
        yield _check_quota(spec, quota, more)


def _check_quota(spec: PipelineSpec, quota: Json, more: Amounts) -> Check:
    subject = f"namespace {spec.namespace}"
    status = quota.get("status") or {}
    hard, used = amounts(status.get("hard") or quota["spec"].get("hard")), amounts(status.get("used"))
    short = []
    for resource, limit in sorted(hard.items()):
        left = limit - used.get(resource, 0.0)
        wanted = more.get(resource, 0.0)
        if wanted > left + 1e-9:
            unit = resource.removeprefix("requests.").removeprefix("limits.")
            short.append(f"{resource} {words(unit, wanted)} is needed and {words(unit, max(0.0, left))} left")
    if short:
        message = (
            f"ResourceQuota {name_of(quota)} is too small for replicas.max of {spec.key}: {'; '.join(short)}. "
            "Raise it, or lower replicas.max"
        )
        return Check(name="quota", subject=subject, ok=False, message=message)
    message = f"ResourceQuota {name_of(quota)} leaves room for replicas.max of {spec.key}"
    return Check(name="quota", subject=subject, ok=True, message=message)


def _counted(workload: Json) -> dict[str, float]:
    """Return what one pod of a workload takes of each kind of quota."""
    pod_spec = pod_template(workload)["spec"]
    requests = requests_of(pod_spec)
    limits: dict[str, float] = {}
    for container in pod_spec.get("containers") or []:
        for resource, value in amounts((container.get("resources") or {}).get("limits")).items():
            limits[resource] = limits.get(resource, 0.0) + value
    plain = {resource: value for resource, value in requests.items() if resource in {"cpu", "memory"}}
    return {
        "pods": 1.0,
        "count/pods": 1.0,
        **plain,
        **{f"requests.{resource}": value for resource, value in requests.items()},
        **{f"limits.{resource}": value for resource, value in limits.items()},
    }


def _check_limits(subject: str, workload: Json, workspace: Workspace) -> Iterator[Check]:
    """Yield a check for each container that a LimitRange refuses."""
    if isinstance(workspace.limit_ranges, Unread):
        yield Check(name="limits", subject=subject, ok=None, message=f"not read: {workspace.limit_ranges.reason}")
        return
    for limit_range in workspace.limit_ranges:
        broken = [
            words_
            for item in limit_range["spec"].get("limits") or []
            if item.get("type") == "Container"
            for container in containers_of(workload)
            for words_ in _outside(container, item)
        ]
        name = f"LimitRange {name_of(limit_range)}"
        if broken:
            message = f"{name} refuses new pods: {'; '.join(broken)}. Change it, or the container"
            yield Check(name="limits", subject=subject, ok=False, message=message)
        else:
            yield Check(name="limits", subject=subject, ok=True, message=f"{name} accepts its containers")


def _outside(container: Json, item: Json) -> Iterator[str]:
    resources = container.get("resources") or {}
    requests, limits = amounts(resources.get("requests")), amounts(resources.get("limits"))
    for resource, most in (item.get("max") or {}).items():
        stated = limits.get(resource, requests.get(resource))
        if stated is not None and stated > amount(most):
            yield f"container {container['name']} has {resource} {words(resource, stated)}, above max {most}"
    for resource, least in (item.get("min") or {}).items():
        stated = requests.get(resource, limits.get(resource))
        if stated is not None and stated < amount(least):
            yield f"container {container['name']} requests {resource} {words(resource, stated)}, below min {least}"


def _fields(schema: Json, path: str) -> Iterator[str]:
    """Yield the path of every field that a schema declares."""
    for name, inner in (schema.get("properties") or {}).items():
        if path or name in {"spec", "status"}:
            yield f"{path}{name}"
            yield from _fields(inner, f"{path}{name}.")
    if isinstance(schema.get("items"), dict):
        yield from _fields(schema["items"], f"{path.removesuffix('.')}[].")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
