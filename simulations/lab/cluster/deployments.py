"""The Deployments that pipelines target: one per placement, with stage workers or other pods on the pool's nodes."""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, get_args

from controller.core.state.spec import PipelineSpec, PlacementSpec, PoolSpec, StageSpec, Target
from controller.kube.matching import SESSIONS_LABEL
from controller.kube.workloads import OPEN
from optimizer.model import PipelineKey, PoolName, Routing
from simulations.lab.cluster.nodes import Device, PoolNodes, pod_resources
from simulations.lab.net.wire import METRICS_PORT
from simulations.lab.pods.agent import (
    BATCHING_ANNOTATION,
    BATCHING_LABEL,
    DRAIN_SHARE,
    GIVES_BACK_ANNOTATION,
    PIPELINE_LABEL,
    POOL_LABEL,
    STAGE_LABEL,
    WORKER_ANNOTATION,
)
from simulations.lab.pods.exposition import ModelServer, Preset
from simulations.lab.pods.worker import WorkerSpec
from simulations.scenario.scenario import of_stage

_DEFAULT_QUEUE_LIMIT = 512
_NONE: Mapping[str, Any] = MappingProxyType({})


class UnsupportedManifest(ValueError):
    """A manifest is valid, but the lab cannot run it; the message names the field and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What a pod runs: its one container, as in a pod's manifest, of resources only limits, and its annotations."""

    container: Mapping[str, Any]
    annotations: Mapping[str, str] = field(default_factory=dict)


PodOf = Callable[[PipelineSpec, StageSpec, PlacementSpec], Pod]
"""From a placement to the pods of its Deployment; UnsupportedManifest: the lab cannot run it."""


def pool_nodes(pools: Iterable[PoolSpec]) -> dict[PoolName, PoolNodes]:
    """Return the nodes of each pool: `capacity.instances` of them, and none of a pool whose nodes Karpenter makes.

    Raises:
        UnsupportedManifest: a pool has neither `capacity.instances` nor `capacity.nodePool`.
    """
    nodes = {}
    for pool in pools:
        instances = pool.instances if pool.node_pool is None else 0
        if instances is None:
            raise UnsupportedManifest(
                f"ComputePool {pool.name}: spec.capacity.instances: must be given; the lab creates that many nodes"
            )
        device: Device = next(device for device in get_args(Device) if device == pool.device)
        nodes[pool.name] = PoolNodes(
            name=str(pool.name),
            device=device,
            node_selector=pool.node_selector,
            instances=instances,
        )
    return nodes


def worker_spec(
    pipeline: PipelineSpec,
    stage: StageSpec,
    placement: PlacementSpec,
    *,
    seed: int,
    speed_spread: float = 0.0,
    first_token: Mapping[str, float] = _NONE,
    other_models: Mapping[str, tuple[str, ...]] = _NONE,
) -> WorkerSpec:
    """Return the specification of a stage worker of `placement`: its service time, limits and start-up time.

    `speed_spread` is as in `WorkerSpec`; `first_token` and `other_models` are as in `ScenarioFile`.

    A cv or start-up time that is not declared is the placeholder of the spec.

    Raises:
        UnsupportedManifest: workers do not have the preset of the stage, the service time is not declared, or the
            items of a backlog are not taken by free replicas.
    """
    if not placement.declared.service:
        raise UnsupportedManifest(
            f"pipeline {pipeline.key}, stage {stage.name}, placement {placement.name}: serviceTime: must be given in "
            "the lab; it is the true service time of the workers"
        )
    if stage.preset not in get_args(Preset):
        known = ", ".join(get_args(Preset))
        raise UnsupportedManifest(
            f"pipeline {pipeline.key}, stage {stage.name}"
            f": metrics.preset: {stage.preset!r}: must be one of {known} in the lab"
        )
    impossible = [
        words
        for words, asked in (
            ("transfer and memory.swap: not possible in the lab, whose items carry nothing", placement.prior.link),
            ("cascade: not possible in the lab, whose ingress does not send items on", stage.cascade),
            (
                "batching.apply with continuous batching: not possible in the lab",
                placement.applied is not None and placement.prior.continuous,
            ),
            ("LeaderWorkerSet: not possible in the lab, whose replicas are single pods", placement.target.of_groups),
        )
        if asked
    ]
    if impossible:
        raise UnsupportedManifest(
            f"pipeline {pipeline.key}, stage {stage.name}: {impossible[0]}; `sluice simulate` has it"
        )
    preset: Preset = next(preset for preset in get_args(Preset) if preset == stage.preset)
    if pipeline.backlog is not None and stage.routing is not Routing.PULL:
        raise UnsupportedManifest(
            f"pipeline {pipeline.key}, stage {stage.name}: routing: {stage.routing.value}: must be Pull in the lab: "
            "replicas take the items of a backlog when they are free"
        )
    prior = placement.prior
    return WorkerSpec(
        pipeline=pipeline.name,
        stage=str(stage.name),
        service=prior.service,
        batching=prior.batching,
        batch_max=prior.batch_sizes[-1],
        batch_wait_s=prior.batch_wait_s,
        concurrency=prior.concurrency,
        queue_limit=_DEFAULT_QUEUE_LIMIT if stage.queue_limit is None else stage.queue_limit,
        session_slots=prior.session_slots,
        startup_s=placement.startup_s,
        drain_s=pipeline.scaling.drain_s,
        speed_spread=speed_spread,
        # Each placement draws its own service times, the same in every run with the same seed.
        seed=zlib.crc32(f"{seed}/{pipeline.key}/{stage.name}/{placement.name}".encode()),
        server=ModelServer(
            preset=preset,
            model=stage.metrics_model,
            first_token_share=of_stage(first_token, pipeline.key, stage.name, 1.0),
            other_models=of_stage(other_models, pipeline.key, stage.name, ()),
        ),
    )


def stage_workers(
    *,
    seed: int,
    speed_spread: float = 0.0,
    first_token: Mapping[str, float] = _NONE,
    other_models: Mapping[str, tuple[str, ...]] = _NONE,
) -> PodOf:
    """Return what makes the pods of all placements stage workers; the arguments are as in `worker_spec`."""

    def pod(pipeline: PipelineSpec, stage: StageSpec, placement: PlacementSpec) -> Pod:
        worker = worker_spec(
            pipeline,
            stage,
            placement,
            seed=seed,
            speed_spread=speed_spread,
            first_token=first_token,
            other_models=other_models,
        )
        container = {"name": "worker", "image": "lab/stage-worker"}
        annotations = {WORKER_ANNOTATION: worker.to_json()}
        if placement.applied is not None:
            annotations[BATCHING_ANNOTATION] = f"{placement.applied.at.config_map}/{placement.applied.at.key}"
        if pipeline.backlog is not None:
            annotations[GIVES_BACK_ANNOTATION] = ""
        return Pod(container=container, annotations=annotations)

    return pod


def config_maps(pipelines: Iterable[PipelineSpec]) -> list[dict[str, Any]]:
    """Return the ConfigMaps that the placements of `pipelines` name for their batch settings, without data."""
    names = {
        (pipeline.namespace, placement.applied.at.config_map)
        for pipeline in pipelines
        for placement in pipeline.placements().values()
        if placement.applied is not None
    }
    return [
        {"metadata": {"name": name, "namespace": namespace, "labels": {BATCHING_LABEL: ""}}}
        for namespace, name in sorted(names)
    ]


def deployments(
    pipelines: Iterable[PipelineSpec], nodes: Mapping[PoolName, PoolNodes], pod: PodOf
) -> list[dict[str, Any]]:
    """Return the manifest of one Deployment per placement, with the minimum of replicas, and with pods as `pod` says.

    Raises:
        UnsupportedManifest: a target is not a Deployment of apps/v1, or two pipelines name it; a pool has no manifest;
            `pod` raises it; or `perInstance` is above `MAX_PER_INSTANCE`.
    """
    manifests = []
    owners: dict[tuple[str, Target], PipelineKey] = {}
    for pipeline in pipelines:
        for stage in pipeline.stages:
            for placement in stage.placements:
                target = placement.target
                if (target.api_version, target.kind) != ("apps/v1", "Deployment"):
                    raise UnsupportedManifest(
                        f"pipeline {pipeline.key}, stage {stage.name}: target {target.api_version} {target}: "
                        "must be a Deployment of apps/v1 in the lab"
                    )
                owner = owners.setdefault((pipeline.namespace, target), pipeline.key)
                if owner != pipeline.key:
                    raise UnsupportedManifest(
                        f"pipeline {pipeline.key}, stage {stage.name}: target {target}: "
                        f"must not be a target of pipeline {owner} too in the lab"
                    )
                if placement.pool not in nodes:
                    raise UnsupportedManifest(
                        f"pipeline {pipeline.key}, stage {stage.name}: pool {placement.pool}: must be "
                        "among the manifests; the lab creates its nodes"
                    )
                own = pod(pipeline, stage, placement)
                manifests.append(_deployment(pipeline, stage, placement, own, nodes[placement.pool]))
    return manifests


def _deployment(
    pipeline: PipelineSpec, stage: StageSpec, placement: PlacementSpec, pod: Pod, nodes: PoolNodes
) -> dict[str, Any]:
    try:
        resources = pod_resources(nodes, int(placement.prior.per_instance))
    except ValueError as error:
        raise UnsupportedManifest(
            f"pipeline {pipeline.key}, stage {stage.name}, placement {placement.name}: {error}"
        ) from None
    labels = {
        "app": placement.target.name,
        PIPELINE_LABEL: pipeline.name,
        STAGE_LABEL: str(stage.name),
        POOL_LABEL: str(placement.pool),
    }
    limits = {**resources, **pod.container.get("resources", {}).get("limits", {})}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": placement.target.name, "namespace": pipeline.namespace, "labels": labels},
        "spec": {
            "replicas": placement.prior.min_replicas,
            "selector": {"matchLabels": {"app": placement.target.name}},
            "template": {
                "metadata": {
                    "labels": {**labels, SESSIONS_LABEL: OPEN},
                    "annotations": {
                        **pod.annotations,
                        "prometheus.io/scrape": "true",
                        "prometheus.io/port": str(METRICS_PORT),
                    },
                },
                "spec": {
                    "nodeSelector": dict(nodes.node_selector),
                    "terminationGracePeriodSeconds": max(1, math.ceil(pipeline.scaling.drain_s / DRAIN_SHARE)),
                    "containers": [{**pod.container, "resources": {"requests": resources, "limits": limits}}],
                },
            },
        },
    }
