"""Finds the workloads of a namespace that can be stages of a pipeline, with the evidence for each property. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.adoption.amounts import requests_of
from controller.adoption.exports import Exports
from controller.adoption.inventory import (
    Json,
    Workspace,
    containers_of,
    known,
    labels_of,
    name_of,
    node_of,
    pod_template,
)
from controller.adoption.node_groups import NodeGroup, dns_label, group_of
from controller.core.messages.phrases import count_of
from controller.core.state.spec import Target
from controller.kube.matching import Workload, kept_workload
from controller.kube.other_writers import scaled_target

_PART_OF = "app.kubernetes.io/part-of"
_MOST_REPLICAS = 10_000
_IMAGES = {"vllm": re.compile(r"vllm"), "triton": re.compile(r"tritonserver|riva-speech|/nim/")}
_ARGUMENTS = {
    "vllm": re.compile(r"\bvllm (serve|\.entrypoints)|vllm\.entrypoints"),
    "triton": re.compile("tritonserver"),
}
_NUMBER_OF_SEQUENCES = re.compile(r"--max-num-seqs[= ](\d+)")
_DEVICES = re.compile(r".*\.com/(gpu|neuron.*|mig-.*)|aws\.amazon\.com/neuron.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A property that was inferred, and the evidence for it as a sentence."""

    value: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Minimum and maximum replicas, the evidence, and the autoscaler that they are from (`Kind/name`), if any."""

    least: int
    most: int
    because: str
    autoscaler: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A workload that can be a placement of a stage.

    `pods` are its pods, `services` the names of the Services in front of it, `mentions` the names of other Services
    that its containers mention. `stage` and `pipeline` are names; `models` those that its server reports. `per_pod`
    says how many replicas a pod has where that is not one: those of Ray Serve are processes in pods of Ray's workers.
    """

    target: Target
    workload: Json
    pods: tuple[Json, ...]
    replicas: int
    services: frozenset[str]
    mentions: Mapping[str, str]
    pipeline: Claim
    stage: Claim
    preset: Claim
    models: frozenset[str]
    bounds: Bounds
    group: NodeGroup | None
    group_because: str
    per_pod: Claim | None = None

    @property
    def name(self) -> str:
        """Return the name of the workload."""
        return self.target.name

    def batch_max(self) -> int | None:
        """Return the batching limit that the arguments of the server state, None if they do not."""
        found = _NUMBER_OF_SEQUENCES.search(_command(self.workload))
        return int(found[1]) if found and self.preset.value == "vllm" and 1 <= int(found[1]) <= 1024 else None

    def grace_s(self) -> int | None:
        """Return the terminationGracePeriodSeconds of the pods (default 30); None: its server has a time of its own."""
        if self.target.serve is not None:
            return None
        grace: int = pod_template(self.workload)["spec"].get("terminationGracePeriodSeconds", 30)
        return grace


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A workload that is no stage, and why."""

    target: Target
    because: str


def candidates(
    workspace: Workspace, exports: Exports, groups: Sequence[NodeGroup], *, all_of_them: bool
) -> tuple[tuple[Candidate, ...], tuple[LeftOut, ...]]:
    """Return the workloads that can be stages, by name, and the others.

    A workload is a stage if a preset can read its metrics, it requests an accelerator, or an autoscaler scales it;
    with `all_of_them`, as after a selection by the user, every workload is.
    """
    found, left_out = [], []
    bounds = _autoscaled(workspace)
    kinds = (("Deployment", workspace.deployments), ("StatefulSet", workspace.stateful_sets))
    for kind, listed in kinds:
        for workload in sorted(known(listed), key=name_of):
            target = Target(api_version="apps/v1", kind=kind, name=name_of(workload))
            pods = pods_of(kept_workload(workload), workspace)
            preset, models, certain = _preset(workload, pods, exports)
            device = next((name for name in requests_of(pod_template(workload)["spec"]) if _DEVICES.match(name)), None)
            if not (certain or device or target in bounds or all_of_them):
                because = "no metrics that a preset reads, no accelerator, no autoscaler"
                left_out.append(LeftOut(target=target, because=because))
                continue
            replicas = workload["spec"].get("replicas", 1)
            group, group_because = group_of(pod_template(workload)["spec"], pods, groups)
            labelled = next((exports.stages[name_of(pod)] for pod in pods if name_of(pod) in exports.stages), None)
            found.append(
                Candidate(
                    target=target,
                    workload=workload,
                    pods=pods,
                    replicas=replicas,
                    services=_services(workload, workspace),
                    mentions=_mentions(workload, workspace),
                    pipeline=_pipeline(workload, workspace.namespace, labelled),
                    stage=_stage(target, labelled),
                    preset=preset,
                    models=models,
                    bounds=bounds.get(target) or bounds_of_replicas(replicas),
                    group=group,
                    group_because=group_because,
                )
            )
    return tuple(found), tuple(left_out)


def pods_of(workload: Workload, workspace: Workspace) -> tuple[Json, ...]:
    """Return the pods of a workload that are not being deleted and have not ended, by name."""
    return tuple(
        sorted(
            (
                pod
                for pod in known(workspace.pods)
                if workload.selector.matches(labels_of(pod))
                and "deletionTimestamp" not in pod["metadata"]
                and (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
            ),
            key=name_of,
        )
    )


def on_node(pods: Sequence[Json]) -> tuple[Json, ...]:
    """Return the pods that have a node."""
    return tuple(pod for pod in pods if node_of(pod) is not None)


def _preset(workload: Json, pods: Sequence[Json], exports: Exports) -> tuple[Claim, frozenset[str], bool]:
    """Return the preset of a workload, the models that its pods report, and whether there is evidence for it."""
    for preset in ("vllm", "triton", "generic"):  # a sidecar of a model server may export speech_stage_* too
        reporting = [pod for pod in pods if preset in exports.presets.get(name_of(pod), {})]
        if reporting:
            models = frozenset[str]().union(*(exports.presets[name_of(pod)][preset] for pod in reporting))
            because = f"Prometheus has its metrics of {len(reporting)} of {count_of(len(pods), 'pod')}"
            return Claim(value=preset, because=because), models, True
    unseen = "Prometheus was not read" if exports.problem else "Prometheus has no metrics of its pods"
    for preset, image in _IMAGES.items():
        for container in containers_of(workload):
            if image.search(container.get("image", "")) or _ARGUMENTS[preset].search(_command_of(container)):
                because = f"guess: container {container['name']} runs {container.get('image', '?')}; {unseen}"
                return Claim(value=preset, because=because), frozenset(), True
    because = f"TODO: {unseen}; export the metrics in docs/metrics.md, or set vllm or triton"
    return Claim(value="generic", because=because), frozenset(), False


def _autoscaled(workspace: Workspace) -> dict[Target, Bounds]:
    """Return the bounds of every workload that an autoscaler scales; a ScaledObject counts before its own HPA."""
    found: dict[Target, Bounds] = {}
    for autoscaler in known(workspace.autoscalers):
        spec, name = autoscaler["spec"], f"HorizontalPodAutoscaler/{name_of(autoscaler)}"
        found[scaled_target(autoscaler)[1]] = _bounds_of(name, spec.get("minReplicas", 1), spec["maxReplicas"])
    for scaled in known(workspace.scaled_objects):
        spec, name = scaled["spec"], f"ScaledObject/{name_of(scaled)}"
        least, most = spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100)
        found[scaled_target(scaled)[1]] = _bounds_of(name, least, most)
    return found


def _bounds_of(autoscaler: str, least: int, most: int) -> Bounds:
    because = f"{autoscaler} has {least} to {most}. Delete it before mode Auto: two autoscalers would fight"
    return Bounds(least=least, most=max(1, min(most, _MOST_REPLICAS)), because=because, autoscaler=autoscaler)


def bounds_of_replicas(replicas: int) -> Bounds:
    """Return the bounds of a workload that no autoscaler scales."""
    most = min(max(2 * replicas, 4), _MOST_REPLICAS)
    because = f"guess: no autoscaler scales it; it has {count_of(replicas, 'replica')} now"
    return Bounds(least=min(1, replicas), most=most, because=because)


def _pipeline(workload: Json, namespace: str, labelled: tuple[str, str] | None) -> Claim:
    if labelled and labelled[0]:
        return Claim(value=dns_label(labelled[0]), because=f'its metrics have the label pipeline="{labelled[0]}"')
    part_of = labels_of(workload).get(_PART_OF)
    if part_of:
        return Claim(value=dns_label(part_of), because=f"its label {_PART_OF} is {part_of}")
    return Claim(value=dns_label(namespace), because="named after the namespace")


def _stage(target: Target, labelled: tuple[str, str] | None) -> Claim:
    if labelled:
        return Claim(value=dns_label(labelled[1]), because=f'its metrics have the label stage="{labelled[1]}"')
    return Claim(value=dns_label(target.name), because=f"named after {target}")


def _services(workload: Json, workspace: Workspace) -> frozenset[str]:
    labels = pod_template(workload)["metadata"].get("labels") or {}
    return frozenset(
        name_of(service)
        for service in known(workspace.services)
        if (selector := service["spec"].get("selector")) and selector.items() <= labels.items()
    )


def _mentions(workload: Json, workspace: Workspace) -> dict[str, str]:
    """Return the names of Services in the environment and arguments of a workload's containers, each with the place."""
    found: dict[str, str] = {}
    names = {name_of(service) for service in known(workspace.services)}
    for container in containers_of(workload):
        places = {f"environment variable {entry['name']}": entry.get("value") for entry in container.get("env") or []}
        places["the arguments"] = _command_of(container)
        for place, text in places.items():
            for host in re.findall(r"[a-z0-9][-a-z0-9]*", text or ""):
                if host in names and re.search(rf"(?<![-\w.]){re.escape(host)}(\.[\w.-]+)?(:\d+|/|$|,)", text or ""):
                    found.setdefault(host, place)
    return found


def _command(workload: Json) -> str:
    return " ".join(_command_of(container) for container in containers_of(workload))


def _command_of(container: Json) -> str:
    return " ".join(map(str, [*(container.get("command") or []), *(container.get("args") or [])]))
