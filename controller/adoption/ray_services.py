"""Finds the deployments of Ray Serve that can be stages of a pipeline, in the RayServices of a namespace. Pure."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from controller.adoption.amounts import amounts
from controller.adoption.candidates import Bounds, Candidate, Claim, LeftOut, bounds_of_replicas
from controller.adoption.inventory import Json, Workspace, known, labels_of, name_of
from controller.adoption.node_groups import NodeGroup, dns_label, group_of
from controller.core.messages.phrases import count_of, number
from controller.core.state.spec import ServeDeployment, Target
from controller.ray.serve_config import Listed, UnusableConfig, config_of, configured, listed, worker_labels

_API_VERSION = "sluice.dev/v1alpha1"
_KIND = "RayServe"
_ACCELERATORS = re.compile(r"(.*/)?(GPU|gpu|neuron.*|mig-.*)")


def serve_candidates(
    workspace: Workspace, groups: Sequence[NodeGroup]
) -> tuple[tuple[Candidate, ...], tuple[LeftOut, ...]]:
    """Return the deployments that the RayServices of a namespace list, and what of them cannot be a stage."""
    found: list[Candidate] = []
    left_out: list[LeftOut] = []
    for service in sorted(known(workspace.ray_services), key=name_of):
        try:
            deployments, without = listed(config_of(service))
        except UnusableConfig as error:
            left_out.append(_left_out(service, name_of(service), str(error)))
            continue
        found += [_candidate(each, service, workspace, groups) for each in deployments]
        left_out += [_left_out(service, name, "serveConfigV2 lists none of its deployments") for name in without]
    return tuple(found), tuple(left_out)


def serve_problem(target: Target, workspace: Workspace) -> str:
    """Return why a deployment cannot be scaled in a RayService of `workspace`, empty if it can."""
    serve = target.serve
    assert serve is not None, "it is of kind RayServe"
    services = {name_of(each): each for each in known(workspace.ray_services)}
    if serve.service not in services:
        there = ", ".join(sorted(services)) or "none"
        missing = f"RayService {serve.service} does not exist in namespace {workspace.namespace}"
        return f"{missing}; RayServices there: {there}"
    try:
        now = configured(config_of(services[serve.service]), serve.application, serve.deployment)
    except UnusableConfig as error:
        return f"{target}: {error}"
    if now.replicas is None:
        return f"{target}: Ray's own autoscaler sets its replicas: remove autoscaling_config, and set num_replicas"
    return ""


def _left_out(service: Json, name: str, because: str) -> LeftOut:
    target = Target(api_version="ray.io/v1", kind="RayService", name=f"{name_of(service)}/{name}")
    return LeftOut(target=target, because=because)


def _candidate(own: Listed, service: Json, workspace: Workspace, groups: Sequence[NodeGroup]) -> Candidate:
    group_name, workers = _worker_group(service, own)
    template: Json = workers.get("template") or {}
    serve = ServeDeployment(
        application=own.application,
        deployment=own.name,
        address="",
        service=name_of(service),
        worker_group=group_name,
    )
    target = Target(api_version=_API_VERSION, kind=_KIND, name=f"{own.application}/{own.name}", serve=serve)
    pods = _workers(service, group_name, workspace)
    group, because = group_of(template.get("spec") or {}, pods, groups)
    there = f"worker group {group_name}" if group_name else "the head, as there is no worker group"
    stage = dns_label(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", own.name))
    return Candidate(
        target=target,
        workload={"metadata": service["metadata"], "spec": {"template": template}},
        pods=pods,
        replicas=own.least if own.replicas is None else own.replicas,
        services=frozenset(),
        mentions={},
        pipeline=Claim(
            value=dns_label(own.application),
            because=f"named after the application {own.application} of RayService {name_of(service)}",
        ),
        stage=Claim(value=stage, because=f"named after the deployment {own.name}"),
        preset=Claim(value="ray-serve", because="it is a deployment of Ray Serve"),
        models=frozenset(),
        bounds=_bounds(own),
        group=group,
        group_because=f"{there}: {because}",
        per_pod=_per_pod(own, _offered(workers)),
    )


def _bounds(own: Listed) -> Bounds:
    if own.replicas is not None:
        return bounds_of_replicas(own.replicas)
    because = (
        f"autoscaling_config has {own.least} to {own.most}. Replace it by num_replicas before mode Auto: two "
        "autoscalers would fight"
    )
    return Bounds(least=own.least, most=max(1, own.least, own.most), because=because, autoscaler="autoscaling_config")


def _worker_group(service: Json, own: Listed) -> tuple[str, Json]:
    """Return the first worker group that has what a replica needs, and its name.

    It is the first of all where none has, and the head without worker groups.
    """
    cluster = (service.get("spec") or {}).get("rayClusterConfig") or {}
    groups = [(str(each.get("groupName") or ""), each) for each in cluster.get("workerGroupSpecs") or ()]
    if not groups:
        return "", cluster.get("headGroupSpec") or {}
    wants = any(_ACCELERATORS.fullmatch(name) for name in own.actor)
    fitting = [(name, each) for name, each in groups if _has_accelerator(each) is wants]
    return (fitting or groups)[0]


def _has_accelerator(group: Json) -> bool:
    return any(_ACCELERATORS.fullmatch(name) and amount > 0 for name, amount in _offered(group).items())


def _offered(group: Json) -> dict[str, float]:
    """Return what the Ray node of a worker offers, as KubeRay does: from its parameters, else from its container."""
    container: Json = next(iter(((group.get("template") or {}).get("spec") or {}).get("containers") or ()), {})
    resources = container.get("resources") or {}
    limits, requests = amounts(resources.get("limits")), amounts(resources.get("requests"))
    offered = dict(_accelerators({**requests, **limits}))
    if cpus := limits.get("cpu", requests.get("cpu", 0.0)):
        offered["CPU"] = math.ceil(cpus)
    parameters: Mapping[str, object] = group.get("rayStartParams") or {}
    for parameter, name in (("num-cpus", "CPU"), ("num-gpus", "GPU")):
        if str(parameters.get(parameter, "")).isdecimal():
            offered[name] = float(str(parameters[parameter]))
    return offered


def _accelerators(found: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name, value in found.items():
        if name.endswith("/gpu"):
            yield "GPU", value
        elif _ACCELERATORS.fullmatch(name):
            yield "neuron_cores", value * (2 if name.endswith("/neuron") else 1)


def _per_pod(own: Listed, offered: Mapping[str, float]) -> Claim:
    rooms = [
        (math.floor(offered[name] / amount + 1e-9), name, amount)
        for name, amount in sorted(own.actor.items())
        if name in offered
    ]
    if not rooms:
        return Claim(value="1", because="TODO: nothing says how many replicas a Ray worker has room for")
    count, name, amount = min(rooms)
    because = f"a replica needs {number(amount)} {name}; a Ray worker has {number(offered[name])}"
    if count < 1:
        return Claim(value="1", because=f"TODO: no replica fits: {because}")
    return Claim(value=str(count), because=f"{count_of(count, 'replica')} in a Ray worker: {because}")


def _workers(service: Json, group: str, workspace: Workspace) -> tuple[Json, ...]:
    """Return the pods of a worker group, by name."""
    labels = worker_labels(service, group)
    pods = (pod for pod in known(workspace.pods) if labels and labels.items() <= labels_of(pod).items())
    return tuple(sorted((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), key=name_of))
