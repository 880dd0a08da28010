"""KEDA itself follows what the external scaler answers, with the manifests of docs/how-to/keda.md."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import a_placement, a_spec, a_stage
from corpus import ROOT
from document_blocks import blocks
from keda_lab import KedaLab, build
from kubernetes import client
from waiting import until

from controller.core.state.spec import Mode, PipelineSpec
from controller.keda.external_scaler import ExternalScaler
from controller.kube.cluster import Cluster
from controller.kube.gateway import PIPELINES, POOLS, Gateway
from controller.kube.other_writers import Ownership
from controller.kube.store import ResourceStore
from optimizer.model import PlacementKey, PoolName, StageName
from simulations.lab.cluster.cluster import OPERATOR, install
from simulations.lab.host.processes import Child, Processes, free_ports

PAGE = ROOT / "docs" / "how-to" / "keda.md"
SCALED_OBJECT, PROMETHEUS = [
    yaml.safe_load(block.text)
    for block in blocks(PAGE, PAGE.read_text())
    if block.title.endswith("make test-keda applies it")
]
KEDA = ("keda.sh", "v1alpha1")
ENCODER_GPU: PlacementKey = (StageName("encoder"), PoolName("gpu"))
"""The stage of the page: `encoder` of the pipeline `speech/captions`, on the pool `gpu`."""


@dataclass
class Pipeline:
    """The SpeechPipeline of the page, with the recommended replicas that a test sets."""

    store: ResourceStore = field(default_factory=ResourceStore)
    version: int = 0

    def recommend(self, replicas: int) -> None:
        self.version += 1
        placement = {"pool": "gpu", "recommended": replicas}
        self.store.put(
            {
                "metadata": {
                    "namespace": "speech",
                    "name": "captions",
                    "uid": "1",
                    "generation": 1,
                    "resourceVersion": str(self.version),
                },
                "spec": {"mode": "Recommend", "stages": [{"name": "encoder", "placements": [{"pool": "gpu"}]}]},
                "status": {
                    "observedGeneration": 1,
                    "stages": [{"name": "encoder", "placements": [placement]}],
                    "memory": {"version": 1, "explanation": {"time": "2026-01-01T00:00:00Z", "lines": []}},
                },
            }
        )

    def scaler(self, port: int = 0) -> ExternalScaler:
        return ExternalScaler(self.store, address=f"127.0.0.1:{port}", stale_s=180.0, clock=lambda: 1_767_225_600.0)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KedaLab]:
    with KedaLab(tmp_path_factory.mktemp("keda"), *build()) as lab:
        core = client.CoreV1Api(lab.api)
        core.create_namespace({"metadata": {"name": "speech"}})
        yield lab


@pytest.fixture
def deployment(lab: KedaLab) -> Iterator[Callable[[], int]]:
    """The workload without replicas; the value returns how many replicas it is to have."""
    apps = client.AppsV1Api(lab.api)
    labels = {"app": "encoder"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "encoder", "image": "none"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    apps.create_namespaced_deployment("speech", {"metadata": {"name": "encoder-gpu"}, "spec": spec})
    yield lambda: int(apps.read_namespaced_deployment_scale("encoder-gpu", "speech").spec.replicas or 0)
    objects = client.CustomObjectsApi(lab.api)
    objects.delete_collection_namespaced_custom_object(*KEDA, "speech", "scaledobjects")
    until(lambda: not objects.list_namespaced_custom_object(*KEDA, "speech", "scaledobjects")["items"])
    apps.delete_namespaced_deployment("encoder-gpu", "speech")


def follow(lab: KedaLab, trigger: dict[str, Any], **metadata: str) -> None:
    """Apply the ScaledObject of the page with `trigger`, whose metadata `metadata` replaces."""
    trigger = {**trigger, "metadata": {**trigger["metadata"], **metadata}}
    body = {**SCALED_OBJECT, "spec": {**SCALED_OBJECT["spec"], "triggers": [trigger]}}
    objects = client.CustomObjectsApi(lab.api)
    objects.create_namespaced_custom_object(*KEDA, "speech", "scaledobjects", body)


def ready(lab: KedaLab) -> str | None:
    """Return the status of the condition Ready of the ScaledObject."""
    found = client.CustomObjectsApi(lab.api).get_namespaced_custom_object(
        *KEDA, "speech", "scaledobjects", "encoder-gpu"
    )
    conditions = found.get("status", {}).get("conditions", ())
    return next((str(each["status"]) for each in conditions if each["type"] == "Ready"), None)


def metric_fails(lab: KedaLab) -> bool:
    """Return whether the HorizontalPodAutoscaler gets no metric."""
    found = client.AutoscalingV2Api(lab.api).read_namespaced_horizontal_pod_autoscaler("keda-hpa-encoder-gpu", "speech")
    active = [each for each in found.status.conditions or () if each.type == "ScalingActive"]
    return bool(active) and active[0].status == "False" and active[0].reason == "FailedGetExternalMetric"


def scaled_to(replicas: int, deployment: Callable[[], int]) -> bool:
    return deployment() == replicas


def captions() -> PipelineSpec:
    return a_spec(a_stage("encoder", a_placement("gpu")), mode=Mode.RECOMMEND)


def test_keda_follows_every_number_and_keeps_the_replicas_without_one(
    lab: KedaLab, deployment: Callable[[], int]
) -> None:
    pipeline = Pipeline()
    pipeline.recommend(0)
    (trigger,) = SCALED_OBJECT["spec"]["triggers"]
    with pipeline.scaler() as scaler:
        port = scaler.port
        follow(lab, trigger, scalerAddress=f"127.0.0.1:{port}")
        until(lambda: ready(lab) == "True")
        assert deployment() == 0
        for replicas in (1, 5, 20, 21, 20):
            pipeline.recommend(replicas)
            until(partial(scaled_to, replicas, deployment))
        with Gateway(lab.kubeconfig) as gateway:
            cluster, ownership = Cluster(gateway), Ownership()
            cluster.resync()
            ownership.refresh(cluster.view().others)
            assert ownership.followers(captions()) == {ENCODER_GPU: "ScaledObject/encoder-gpu"}
            assert ownership.autoscalers(captions()) == {}, "nor is KEDA's own HorizontalPodAutoscaler a conflict"
    until(lambda: metric_fails(lab) and ready(lab) == "False")
    assert deployment() == 20
    with pipeline.scaler(port):
        pipeline.recommend(3)
        until(lambda: deployment() == 3)
        pipeline.recommend(0)
        until(lambda: deployment() == 0)


def test_a_missing_series_keeps_the_replicas_by_the_prometheus_trigger(
    lab: KedaLab, deployment: Callable[[], int]
) -> None:
    (trigger,) = PROMETHEUS["triggers"]
    values: list[int] = []

    class Prometheus(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            result = [{"metric": {}, "value": [1, str(value)]} for value in values]
            body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Prometheus) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        values.append(4)
        follow(lab, trigger, serverAddress=f"http://127.0.0.1:{server.server_address[1]}")
        until(lambda: deployment() == 4)
        values[:] = [21]
        until(lambda: deployment() == 21)
        values.clear()
        until(lambda: metric_fails(lab))
        assert deployment() == 21
        server.shutdown()


def a_pipeline(least: int) -> dict[str, Any]:
    placement = {
        "pool": "gpu",
        "target": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "encoder-gpu"},
        "replicas": {"min": least, "max": 20},
        "serviceTime": {"fixed": "50ms"},
        "perInstance": 1,
    }
    return {
        "apiVersion": PIPELINES.api_version,
        "kind": "SpeechPipeline",
        "metadata": {"name": "captions"},
        "spec": {
            "mode": "Recommend",
            "demand": {"unit": "Requests", "query": "offered"},
            "sla": {"latency": "500ms"},
            "budget": {"perHour": "100"},
            "stages": [{"name": "encoder", "placements": [placement]}],
        },
    }


A_POOL = {
    "apiVersion": POOLS.api_version,
    "kind": "ComputePool",
    "metadata": {"name": "gpu"},
    "spec": {
        "device": "GPU",
        "nodeSelector": {"pool": "gpu"},
        "price": {"perHour": "1"},
        "capacity": {"instances": 20},
    },
}


def test_the_operators_decision_reaches_the_workload_through_a_standby_and_after_a_failover(
    lab: KedaLab, deployment: Callable[[], int], tmp_path: Path
) -> None:
    install(lab.api)
    objects = client.CustomObjectsApi(lab.api)
    group, version = PIPELINES.api_version.split("/")
    captions = (group, version, "speech", "speechpipelines", "captions")

    def conflict() -> tuple[str, str] | None:
        status = objects.get_namespaced_custom_object(*captions).get("status", {})
        found = [each for each in status.get("conditions", ()) if each["type"] == "Conflict"]
        return (found[0]["status"], found[0]["reason"]) if found else None

    with Processes(tmp_path) as processes:
        address = {name: f"127.0.0.1:{port}" for name, port in zip(("first", "second"), free_ports(2), strict=True)}

        def operator(name: str) -> Child:
            flags = {
                "kubeconfig": lab.kubeconfig,
                "prometheus-url": "http://127.0.0.1:1",
                "interval": "1s",
                "port": 0,
                "lease-duration": "2s",
                "pod-name": name,
                "keda-address": address[name],
            }
            return processes.start_program(name, OPERATOR, flags)

        first = operator("first")
        until(lambda: "this replica is the leader" in first.log.read_text())
        objects.create_cluster_custom_object(group, version, "computepools", A_POOL)
        objects.create_namespaced_custom_object(*captions[:-1], a_pipeline(2))
        second = operator("second")
        (trigger,) = SCALED_OBJECT["spec"]["triggers"]
        follow(lab, trigger, scalerAddress=address["second"])
        until(lambda: deployment() == 2)
        until(lambda: conflict() == ("False", "Followed"))
        assert "this replica is the leader" not in second.log.read_text()
        objects.patch_namespaced_custom_object(*captions, a_pipeline(5))
        until(lambda: deployment() == 5)
        processes.kill(first)
        until(lambda: "this replica is the leader" in second.log.read_text())
        objects.patch_namespaced_custom_object(*captions, a_pipeline(6))
        until(lambda: deployment() == 6)
        objects.patch_namespaced_custom_object(*captions, {"spec": {"mode": "Auto"}})
        until(lambda: conflict() == ("True", "ScaledByAnother"))
        assert deployment() == 6
