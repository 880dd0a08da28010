"""The lab's cluster: its parts after the start, the effects of faults, and a complete stop."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest
import yaml
from kubernetes import client

from controller.resources.translate import pipeline_spec, pool_spec
from controller.resources.validation import validate_files
from optimizer.model import PipelineKey, PoolName, StageName
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.host.binaries import Binaries
from simulations.lab.host.processes import ProcessError
from simulations.lab.session import fault_actions
from simulations.lab.session.observer import Observer

pytestmark = pytest.mark.lab

DEADLINE_S = 60.0
MANIFESTS = """\
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: cpu}
spec:
  device: CPU
  nodeSelector: {sluice.dev/pool: cpu}
  price: {perHour: "1.0"}
  capacity: {instances: 2}
---
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: gpu}
spec:
  device: GPU
  nodeSelector: {sluice.dev/pool: gpu}
  price: {perHour: "3.0"}
  capacity: {instances: 1}
---
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: captions, namespace: speech}
spec:
  demand: {unit: Requests, query: vector(1)}
  sla: {latency: 500ms}
  budget: {perHour: "5"}
  stages:
    - name: asr
      placements:
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: asr-cpu}
          replicas: {min: 1, max: 4}
          serviceTime: {fixed: 10ms}
          startup: 1s
          perInstance: 2
        - pool: gpu
          target: {apiVersion: apps/v1, kind: Deployment, name: asr-gpu}
          replicas: {min: 0, max: 4}
          serviceTime: {fixed: 5ms}
          startup: 1s
          perInstance: 1
"""
ON_CPU = (PipelineKey("speech/captions"), StageName("asr"), PoolName("cpu"))


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("manifests") / "resources.yaml"
    path.write_text(MANIFESTS)
    return path


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, manifests: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabCluster]:
    """A lab with the manifests applied twice, and the operator started."""
    resources = validate_files([manifests])
    with LabCluster(tmp_path_factory.mktemp("lab"), binaries) as cluster:
        for _ in range(2):
            cluster.apply(
                yaml.safe_load_all(MANIFESTS),
                [pipeline_spec(resource) for resource in resources.pipelines],
                [pool_spec(resource) for resource in resources.pools],
            )
        cluster.start_operator(interval_s=1.0)
        yield cluster


@pytest.fixture
def api(cluster: LabCluster) -> Iterator[client.ApiClient]:
    with cluster.admin() as api:
        yield api


def until(cluster: LabCluster, holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        cluster.check()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def pipeline(api: client.ApiClient) -> dict[str, Any]:
    found = client.CustomObjectsApi(api).get_namespaced_custom_object(
        "sluice.dev", "v1alpha1", "speech", "speechpipelines", "captions"
    )
    return cast("dict[str, Any]", found)


def test_there_are_as_many_nodes_as_the_pools_allow(api: client.ApiClient) -> None:
    nodes = client.CoreV1Api(api).list_node().items
    assert {node.metadata.name: node.metadata.labels["sluice.dev/pool"] for node in nodes} == {
        "cpu-0": "cpu",
        "cpu-1": "cpu",
        "gpu-0": "gpu",
    }


def test_the_deployments_that_the_pipeline_targets_are_in_its_namespace(api: client.ApiClient) -> None:
    found = client.AppsV1Api(api).list_namespaced_deployment("speech").items
    assert {deployment.metadata.name for deployment in found} == {"asr-cpu", "asr-gpu"}


def test_the_kubernetes_that_runs_is_asked_for_its_version(cluster: LabCluster) -> None:
    assert cluster.kubernetes_version.startswith("v1.")


def test_the_minimum_of_replicas_starts_and_the_observer_counts_it(cluster: LabCluster, manifests: Path) -> None:
    specs = tuple(pipeline_spec(resource) for resource in validate_files([manifests]).pipelines)
    with Observer(cluster.kubeconfig, specs) as observer:
        until(cluster, lambda: observer.observe().placements[ON_CPU].ready >= 1)
        seen = observer.observe()

    assert seen.placements[ON_CPU].scheduled >= 1
    assert seen.price_per_hour == {"cpu": 1.0, "gpu": 3.0}
    assert seen.budget_per_hour == {"speech/captions": 5.0}
    assert seen.cost_per_hour >= 0.5


def test_the_operator_runs_as_its_own_account_and_tells_about_the_pipeline(
    cluster: LabCluster, api: client.ApiClient
) -> None:
    until(cluster, lambda: pipeline(api).get("status"))
    until(cluster, lambda: _serves_metrics(cluster))

    user = yaml.safe_load((cluster.folder / "operator.kubeconfig").read_text())["users"][0]["name"]
    assert user == "sluice-system-sluice"
    (writer,) = {
        entry["manager"] for entry in pipeline(api)["metadata"]["managedFields"] if entry.get("subresource") == "status"
    }
    assert "sluice" in writer


def _serves_metrics(cluster: LabCluster) -> bool:
    try:
        with urlopen(f"{cluster.operator_url}/metrics", timeout=5) as answer:
            return b'sluice_pipeline_demand{namespace="speech",pipeline="captions"}' in answer.read()
    except URLError:
        return False


def test_a_fault_sets_a_field_in_the_cluster_and_restores_it(cluster: LabCluster, api: client.ApiClient) -> None:
    name = "SpeechPipeline/speech/captions"
    undo = fault_actions._patch(cluster, name, {"spec": {"budget": {"perHour": "2.5"}, "priority": 7}})
    assert (pipeline(api)["spec"]["budget"], pipeline(api)["spec"]["priority"]) == ({"perHour": "2.5"}, 7)

    fault_actions._patch(cluster, name, undo)
    assert pipeline(api)["spec"]["budget"] == {"perHour": "5"}
    assert pipeline(api)["spec"].get("priority", 0) == 0


@pytest.mark.parametrize(
    ("name", "patch", "reason"),
    [
        ("SpeechPipeline/speech/captions", {"spec": {"budget": {"perHour": "-1"}}}, r"spec\.budget\.perHour"),
        ("ComputePool/gpu", {"spec": {"prize": "1"}}, r'unknown field "spec\.prize"'),
        ("ComputePool/tpu", {"spec": {}}, '"tpu" not found'),
    ],
)
def test_a_fault_that_the_api_server_refuses_is_told(
    cluster: LabCluster, name: str, patch: dict[str, Any], reason: str
) -> None:
    with pytest.raises(fault_actions.FaultRefused, match=f"set {name}: .*{reason}"):
        fault_actions._patch(cluster, name, patch)


def test_a_part_that_ends_by_itself_is_noticed_and_stopping_leaves_no_process(
    binaries: Binaries, tmp_path: Path
) -> None:
    before = set(psutil.Process().children(recursive=True))
    with LabCluster(tmp_path, binaries) as cluster:
        started = set(psutil.Process().children(recursive=True)) - before
        cluster.check()
        (agent,) = [child for child in started if "simulations.lab.pods.agent" in child.cmdline()]
        agent.kill()
        deadline = time.monotonic() + DEADLINE_S
        while agent.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(ProcessError, match="agent ended with signal SIGKILL"):
            cluster.check()
    _, alive = psutil.wait_procs(started, timeout=0)
    assert alive == []
    assert len(started) >= 6
