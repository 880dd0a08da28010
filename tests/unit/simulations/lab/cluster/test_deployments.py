"""Deployments and nodes of manifests."""

from dataclasses import replace
from typing import Any

import pytest
from backlogs import a_backlog
from builders import a_placement, a_pool, a_spec, a_stage

from controller.core.state.spec import Declared, PipelineSpec, PlacementSpec, StageSpec, Target
from optimizer.model import PoolName, Routing, ServiceLaw
from simulations.lab.cluster.deployments import UnsupportedManifest, deployments, pool_nodes, stage_workers
from simulations.lab.net.wire import METRICS_PORT
from simulations.lab.pods.agent import GIVES_BACK_ANNOTATION, WORKER_ANNOTATION
from simulations.lab.pods.exposition import ModelServer
from simulations.lab.pods.worker import WorkerSpec

POOLS = tuple(
    replace(a_pool(name, instances=3).spec, device=device) for name, device in (("cpu", "CPU"), ("gpu", "GPU"))
)


def made(*stages: StageSpec, seed: int = 1, name: str = "captions", speed_spread: float = 0.0) -> list[dict[str, Any]]:
    workers = stage_workers(seed=seed, speed_spread=speed_spread)
    return deployments([a_spec(*stages, name=name)], pool_nodes(POOLS), workers)


def worker(manifest: dict[str, Any]) -> WorkerSpec:
    return WorkerSpec.from_json(manifest["spec"]["template"]["metadata"]["annotations"][WORKER_ANNOTATION])


def with_target(placement: PlacementSpec, target: Target) -> StageSpec:
    stage = a_stage("asr", placement)
    return replace(stage, placements=(replace(placement, target=target),))


def test_workers_know_how_unequal_they_are() -> None:
    stage = a_stage("asr", a_placement("cpu"))

    assert [worker(manifest).speed_spread for manifest in made(stage, speed_spread=0.2)] == [0.2]


def test_workers_show_the_tokens_and_the_models_of_the_scenario() -> None:
    stages = [replace(a_stage(name, a_placement("cpu")), preset="vllm") for name in ("asr", "lm")]
    manifests = deployments(
        [a_spec(*stages)],
        pool_nodes(POOLS),
        stage_workers(seed=1, first_token={"lm": 0.2}, other_models={"speech/captions/lm": ("draft",)}),
    )

    asr, lm = (worker(manifest).server for manifest in manifests)
    assert (asr.first_token_share, asr.other_models) == (1.0, ())
    assert (lm.first_token_share, lm.other_models) == (0.2, ("draft",))


def test_every_placement_has_a_deployment_with_its_least_replicas_on_the_nodes_of_its_pool() -> None:
    first, second = made(
        a_stage("asr", a_placement("cpu", bounds=(2, 9), per_instance=4), a_placement("gpu", bounds=(0, 9)))
    )

    assert (first["metadata"]["name"], first["metadata"]["namespace"]) == ("asr-cpu", "speech")
    assert (first["spec"]["replicas"], second["spec"]["replicas"]) == (2, 0)
    pod = first["spec"]["template"]
    assert first["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["nodeSelector"] == {"pool": "cpu"}
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "12000m"}
    assert second["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_pods_say_what_they_are_and_where_they_are_scraped() -> None:
    (manifest,) = made(a_stage("asr", a_placement("cpu")))
    metadata = manifest["spec"]["template"]["metadata"]

    assert metadata["labels"] == {
        "app": "asr-cpu",
        "sluice.dev/pipeline": "captions",
        "sluice.dev/stage": "asr",
        "sluice.dev/pool": "cpu",
        "sluice.dev/sessions": "open",
    }
    assert metadata["annotations"]["prometheus.io/scrape"] == "true"
    assert metadata["annotations"]["prometheus.io/port"] == str(METRICS_PORT)


def test_a_worker_follows_the_declared_law_and_limits() -> None:
    placement = a_placement("cpu", service_s=0.02, startup_s=7.0)
    prior = replace(placement.prior, batch_sizes=tuple(range(1, 9)), batch_wait_s=0.01, concurrency=2, session_slots=64)
    stage = replace(a_stage("asr", replace(placement, prior=prior)), queue_limit=33, preset="vllm")
    stage = replace(stage, metrics_model="a/b")
    spec = worker(made(stage)[0])

    assert (spec.pipeline, spec.stage, spec.server) == ("captions", "asr", ModelServer(preset="vllm", model="a/b"))
    assert spec.service == ServiceLaw(fixed_s=0.02, cv=1.0)
    assert (spec.batch_max, spec.batch_wait_s, spec.concurrency) == (8, 0.01, 2)
    assert (spec.session_slots, spec.queue_limit, spec.startup_s, spec.drain_s) == (64, 33, 7.0, 60.0)


def test_the_drain_fits_into_the_grace_period() -> None:
    (manifest,) = made(a_stage("asr", a_placement("cpu")))
    assert manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] * 0.9 >= 60


def test_service_times_are_drawn_anew_for_each_placement_seed_and_pipeline_and_alike_in_the_same() -> None:
    stage = a_stage("asr", a_placement("cpu"), a_placement("gpu"))
    seeds = [worker(m).seed for m in (*made(stage), *made(stage, seed=2), *made(stage, name="notes"))]

    assert len(set(seeds)) == 6
    assert [worker(m).seed for m in made(stage)] == seeds[:2]


def test_a_pool_has_as_many_nodes_as_its_capacity_allows() -> None:
    nodes = pool_nodes(POOLS)
    assert {name: (pool.instances, pool.device) for name, pool in nodes.items()} == {
        "cpu": (3, "CPU"),
        "gpu": (3, "GPU"),
    }
    assert nodes[PoolName("cpu")].node_selector == {"pool": "cpu"}


def test_a_pool_whose_nodes_karpenter_makes_has_none_of_the_labs() -> None:
    elastic = replace(POOLS[0], node_pool="cpu")
    assert [pool_nodes([each])[PoolName("cpu")].instances for each in (elastic, replace(elastic, instances=None))] == [
        0,
        0,
    ]


def test_a_pool_without_capacity_is_refused_by_its_field() -> None:
    with pytest.raises(
        UnsupportedManifest,
        match=r"ComputePool cpu: spec\.capacity\.instances: must be given; the lab creates that many nodes",
    ):
        pool_nodes([a_pool("cpu", instances=None).spec])


def test_a_pool_that_is_not_in_the_manifests_has_no_nodes() -> None:
    with pytest.raises(
        UnsupportedManifest,
        match="captions, stage asr: pool gpu: must be among the manifests; the lab creates its nodes",
    ):
        deployments([a_spec(a_stage("asr", a_placement("gpu")))], pool_nodes(POOLS[:1]), stage_workers(seed=1))


def test_a_worker_needs_its_true_service_time() -> None:
    bare = replace(a_placement("cpu"), declared=Declared(service=False, cv=False))
    with pytest.raises(UnsupportedManifest, match="stage asr, placement cpu: serviceTime: must be given in the lab"):
        made(a_stage("asr", bare))


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (
            with_target(a_placement("cpu"), Target(api_version="ray.io/v1", kind="RayService", name="asr")),
            ": target ray.io/v1 RayService/asr: must be a Deployment of apps/v1 in the lab",
        ),
        (
            replace(a_stage("asr", a_placement("cpu")), preset="riva"),
            ": metrics.preset: 'riva': must be one of generic, triton, vllm in the lab",
        ),
        (
            a_stage("asr", a_placement("cpu", per_instance=201)),
            ", placement cpu: perInstance: 201, must be between 1 and 200 in the lab",
        ),
    ],
)
def test_what_the_lab_cannot_run_is_refused_by_name(stage: StageSpec, message: str) -> None:
    pipelines: list[PipelineSpec] = [a_spec(stage)]
    with pytest.raises(UnsupportedManifest) as refusal:
        deployments(pipelines, pool_nodes(POOLS), stage_workers(seed=1))
    assert str(refusal.value) == f"pipeline speech/captions, stage asr{message}"


def test_a_workload_that_two_pipelines_name_is_refused() -> None:
    pipelines = [a_spec(a_stage("asr", a_placement("cpu")), name=name) for name in ("captions", "copy")]
    with pytest.raises(
        UnsupportedManifest, match="copy, stage asr: target Deployment/asr-cpu: must not be a target of"
    ):
        deployments(pipelines, pool_nodes(POOLS), stage_workers(seed=1))


def of_backlog(routing: Routing) -> dict[str, Any]:
    """Return the Deployment of a backlog with this routing."""
    archive = a_backlog(within_s=60.0)
    archive = replace(archive, stages=tuple(replace(stage, routing=routing) for stage in archive.stages))
    (manifest,) = deployments([archive], pool_nodes(POOLS), stage_workers(seed=1))
    return manifest


def test_only_the_workers_of_a_backlog_give_their_items_back() -> None:
    for manifest, expected in ((of_backlog(Routing.PULL), True), (made(a_stage("asr", a_placement("cpu")))[0], False)):
        annotations = manifest["spec"]["template"]["metadata"]["annotations"]
        assert (GIVES_BACK_ANNOTATION in annotations) is expected


def test_a_backlog_whose_items_are_pushed_to_replicas_is_refused() -> None:
    with pytest.raises(UnsupportedManifest, match="archive, stage asr: routing: RoundRobin: must be Pull in the lab"):
        of_backlog(Routing.ROUND_ROBIN)
