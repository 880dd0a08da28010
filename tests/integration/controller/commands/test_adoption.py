"""`sluice init`, `sluice doctor` and `sluice version` on a cluster with running workloads and a real Prometheus."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from kubernetes import client

from controller.commands.doctor import doctor
from controller.commands.init import init
from controller.commands.validate import validate
from controller.commands.version import version
from controller.resources.translate import pipeline_spec, pool_spec
from controller.resources.validation import validate_files
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.host.binaries import Binaries

pytestmark = pytest.mark.lab

DEADLINE_S = 60.0
STREAMS = 40
GATEWAY = f"""\
# TYPE gateway_active_streams gauge
gateway_active_streams{{namespace="speech"}} {STREAMS}
"""
RUNNING = """\
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: cpu}
spec: {device: CPU, nodeSelector: {sluice.dev/pool: cpu}, price: {perHour: "1"}, capacity: {instances: 2}}
---
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: gpu}
spec: {device: GPU, nodeSelector: {sluice.dev/pool: gpu}, price: {perHour: "3"}, capacity: {instances: 2}}
---
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: captions, namespace: speech}
spec:
  demand: {unit: Requests, query: vector(1)}
  sla: {latency: 500ms}
  budget: {perHour: "9"}
  stages:
    - name: vad
      placements:
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: vad}
          replicas: {min: 2, max: 4}
          serviceTime: {fixed: 10ms}
          startup: 1s
          perInstance: 4
    - name: asr
      metrics: {preset: triton}
      placements:
        - pool: gpu
          target: {apiVersion: apps/v1, kind: Deployment, name: asr}
          replicas: {min: 1, max: 4}
          serviceTime: {fixed: 5ms}
          startup: 1s
"""


class Gateway(BaseHTTPRequestHandler):
    """The metrics of the users' ingress."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(GATEWAY.encode())

    def log_message(self, *_: Any) -> None:
        """Keep the test's output clean."""


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabCluster]:
    """A cluster on which two Deployments run, scraped by Prometheus; the first has an HPA. No pipeline is applied."""
    manifests = tmp_path_factory.mktemp("running") / "running.yaml"
    manifests.write_text(RUNNING)
    resources = validate_files([manifests])
    assert not resources.findings
    with LabCluster(tmp_path_factory.mktemp("lab"), binaries) as cluster:
        pipelines = [pipeline_spec(resource) for resource in resources.pipelines]
        cluster.apply([], pipelines, [pool_spec(resource) for resource in resources.pools])
        with cluster.admin() as api, ThreadingHTTPServer(("127.0.0.1", cluster.ingress_port), Gateway) as gateway:
            thread = threading.Thread(target=gateway.serve_forever)
            thread.start()
            client.AutoscalingV2Api(api).create_namespaced_horizontal_pod_autoscaler("speech", HPA)
            until(lambda: ready(api) == 3)
            yield cluster
            gateway.shutdown()
            thread.join()


HPA = {
    "metadata": {"name": "vad"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vad"},
        "minReplicas": 2,
        "maxReplicas": 6,
        "metrics": [
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}},
            }
        ],
    },
}


def ready(api: client.ApiClient) -> int:
    found = client.AppsV1Api(api).list_namespaced_deployment("speech").items
    return sum(each.status.ready_replicas or 0 for each in found)


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def run(cluster: LabCluster, command: Any, *arguments: object) -> Result:
    options = ["--kubeconfig", str(cluster.kubeconfig)]
    if command is not version:
        options += ["--prometheus-url", cluster.prometheus_url]
    return CliRunner().invoke(command, [*map(str, arguments), *options], catch_exceptions=False)


@pytest.fixture(scope="module")
def suggested(cluster: LabCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What init prints once Prometheus has scraped the pods and the gateway."""
    last: list[Result] = []

    def complete() -> bool:
        last[:] = [run(cluster, init, "-n", "speech")]
        there = ("gateway_active_streams", "preset: triton", "of 2 pods", 'pipeline="captions"')
        # Before all of a scrape can be queried, a stage may be without its pipeline's label, in a pipeline of its own.
        return all(text in last[0].output for text in there) and last[0].output.count("kind: SpeechPipeline") == 1

    until(complete)
    assert last[0].exit_code == 0, last[0].output
    path = tmp_path_factory.mktemp("suggested") / "speech.yaml"
    path.write_text(last[0].stdout)
    return path


def test_the_suggestion_is_valid_and_describes_what_runs(suggested: Path) -> None:
    assert CliRunner().invoke(validate, [str(suggested)]).output == "3 resources valid\n"
    (pipeline,) = [each for each in yaml.safe_load_all(suggested.read_text()) if each["kind"] == "SpeechPipeline"]
    assert pipeline["metadata"] == {"name": "captions", "namespace": "speech"}
    assert pipeline["spec"]["mode"] == "Recommend"
    vad, asr = pipeline["spec"]["stages"]
    assert (vad["name"], vad["metrics"]["preset"]) == ("vad", "generic")
    assert vad["placements"][0]["pool"] == "cpu"
    assert vad["placements"][0]["replicas"] == {"min": 2, "max": 6}
    assert vad["placements"][0]["perInstance"] == 4
    assert (asr["name"], asr["metrics"]["preset"]) == ("asr", "triton")
    assert asr["placements"][0]["pool"] == "gpu"
    assert pipeline["spec"]["demand"]["query"] == 'sum(gateway_active_streams{namespace="speech"})'


def test_nothing_was_applied(cluster: LabCluster, suggested: Path) -> None:
    assert suggested.exists()
    with cluster.admin() as api:
        listed = client.CustomObjectsApi(api).list_cluster_custom_object("sluice.dev", "v1alpha1", "speechpipelines")
    assert listed["items"] == []


def checks(cluster: LabCluster, *arguments: object) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    result = run(cluster, doctor, *arguments, "-o", "json")
    found = json.loads(result.stdout)["checks"]
    return result.exit_code, {(each["subject"], each["name"]): each for each in found}


def test_the_doctor_finds_nothing_to_fix_in_the_suggestion(cluster: LabCluster, suggested: Path) -> None:
    code, found = checks(cluster, suggested)
    assert [each for each in found.values() if each["ok"] is False] == []
    assert code == 0
    assert found["speech/captions", "demand.query"]["ok"] is True
    assert found["ServiceAccount sluice-system/sluice", "rights"]["ok"] is True
    assert found["CustomResourceDefinition speechpipelines.sluice.dev", "crd"]["ok"] is True
    assert "Horizontal" in found["speech/captions vad on cpu", "autoscaler"]["message"]


def test_the_doctor_says_what_to_fix(cluster: LabCluster, suggested: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    text = suggested.read_text().replace("gateway_active_streams", "gateway_streams").replace("Recommend", "Auto")
    broken.write_text(text.replace("perInstance: 4", "perInstance: 5").replace("name: asr}", "name: asr-2}"))
    code, found = checks(cluster, broken)
    assert code == 1
    expected = {
        ("speech/captions", "demand.query"): "no metric gateway_streams",
        ("speech/captions vad on cpu", "autoscaler"): "delete HorizontalPodAutoscaler/vad",
        ("speech/captions vad on cpu", "perInstance"): "Set perInstance: 4",
        ("speech/captions asr on gpu", "target"): "Deployments there: asr, vad",
    }
    for key, words in expected.items():
        assert found[key]["ok"] is False
        assert words in found[key]["message"]


def test_rights_that_are_taken_away_are_missed(cluster: LabCluster, suggested: Path) -> None:
    with cluster.admin() as api:
        roles = client.RbacAuthorizationV1Api(api)
        role = roles.read_cluster_role("sluice")
        kept = [rule for rule in role.rules if "deployments/scale" not in rule.resources]
        body = [api.sanitize_for_serialization(rule) for rule in role.rules]
        roles.patch_cluster_role("sluice", {"rules": [api.sanitize_for_serialization(rule) for rule in kept]})
        try:
            until(lambda: "patch deployments/scale.apps" in rights(cluster, suggested))
        finally:
            roles.patch_cluster_role("sluice", {"rules": body})


def rights(cluster: LabCluster, suggested: Path) -> str:
    message: str = checks(cluster, suggested)[1]["ServiceAccount sluice-system/sluice", "rights"]["message"]
    return message


def test_version_compares_the_resources_of_the_cluster(cluster: LabCluster) -> None:
    result = run(cluster, version, "--cluster")
    assert result.exit_code == 0
    assert "speechpipelines.sluice.dev: serves v1alpha1 with all fields" in result.stdout


def test_a_crd_of_an_older_version_is_told(cluster: LabCluster) -> None:
    with cluster.admin() as api:
        crds = client.ApiextensionsV1Api(api)
        crd = api.sanitize_for_serialization(crds.read_custom_resource_definition("computepools.sluice.dev"))
        spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        taken = spec["properties"].pop("capacity")
        spec.pop("x-kubernetes-validations")  # a rule reads the field
        crds.replace_custom_resource_definition("computepools.sluice.dev", crd)
    result = run(cluster, version, "--cluster")
    assert result.exit_code == 1
    lacking = ["spec.capacity", *_fields(taken, "spec.capacity")]
    some = f"{', '.join(lacking[:4])} and {len(lacking) - 4} more"
    assert f"lacks {some}: it is of an older version" in result.stdout


def _fields(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, inner in sorted(schema.get("properties", {}).items()):
        yield f"{path}.{name}"
        yield from _fields(inner, f"{path}.{name}")
