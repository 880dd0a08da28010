import json
from pathlib import Path
from typing import Any

import pytest
from api_server import Answer, api_server, write_kubeconfig
from click.testing import CliRunner, Result
from corpus import CONTRACT
from made_clusters import a_node, a_workload, ready_pods

from controller.commands.doctor import doctor
from controller.resources.schema import CRDS

APPS = "/apis/apps/v1/namespaces/speech"
VAD = a_workload("vad", terminationGracePeriodSeconds=60)
NODE = a_node("c1", labels={"sluice.dev/pool": "cpu"})
MANIFESTS = """\
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: cpu}
spec: {device: CPU, nodeSelector: {sluice.dev/pool: cpu}, price: {perHour: "1"}, capacity: {readyNodes: true}}
---
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: captions, namespace: speech}
spec:
  mode: Recommend
  demand: {unit: Requests, query: up}
  sla: {latency: 400ms}
  budget: {perHour: "9"}
  stages:
    - name: vad
      placements:
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: vad}
          replicas: {max: 6}
          perInstance: 8
"""
ANSWERS: dict[str, Answer] = {
    **{
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.plural}.sluice.dev": crd.manifest()
        for crd in CRDS
    },
    "/apis/sluice.dev/v1alpha1/computepools": [],
    "/apis/sluice.dev/v1alpha1/speechpipelines": [],
    "/api/v1/nodes": [NODE],
    "/api/v1/pods": [],
    "/api/v1/namespaces/speech/pods": ready_pods(VAD, "c1"),
    f"{APPS}/deployments": [VAD],
}


def run(folder: Path, answers: dict[str, Answer], *arguments: object) -> Result:
    with api_server(folder, answers, lambda *_: {"status": {"allowed": True}}) as kubeconfig:
        return CliRunner().invoke(doctor, [*map(str, arguments), "--kubeconfig", str(kubeconfig)])


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    path = tmp_path / "speech.yaml"
    path.write_text(MANIFESTS)
    return path


def failing(result: Result) -> list[dict[str, Any]]:
    return [check for check in json.loads(result.stdout)["checks"] if check["ok"] is False]


def test_a_cluster_in_order_exits_with_0_and_counts(tmp_path: Path, manifests: Path) -> None:
    result = run(tmp_path, ANSWERS, manifests)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "ok       speech/captions vad on cpu: target: Deployment/vad has 1 pod" in lines
    assert "unknown  speech/captions: prometheus: metrics were not checked: set --prometheus-url" in lines
    assert lines[-1].endswith(" ok, 0 to fix, 1 unknown")


def test_what_is_to_fix_exits_with_1(tmp_path: Path, manifests: Path) -> None:
    result = run(tmp_path, {**ANSWERS, f"{APPS}/deployments": []}, manifests, "-o", "json")
    assert result.exit_code == 1
    assert [check["name"] for check in failing(result)] == ["target"]
    assert set(json.loads(result.stdout)["checks"][0]) == {"name", "subject", "ok", "message"}


def test_an_invalid_manifest_is_a_check_with_its_line(tmp_path: Path, manifests: Path) -> None:
    manifests.write_text(MANIFESTS.replace("latency: 400ms", "latency: 400"))
    result = run(tmp_path, ANSWERS, manifests, "-o", "json")
    (check,) = failing(result)
    assert check["subject"] == f"{manifests}:12"
    assert check["message"].startswith("spec.sla.latency: 400: must be a duration such as 160ms")


def test_todo_comments_that_are_left_are_named(tmp_path: Path, manifests: Path) -> None:
    manifests.write_text(MANIFESTS.replace("spec:\n  mode", "spec:\n  # TODO: think\n  mode"))
    result = run(tmp_path, ANSWERS, manifests)
    assert "set the values marked TODO in line 10, and delete the comments" in result.stdout


def test_pools_of_the_cluster_count_where_the_files_have_none(tmp_path: Path, manifests: Path) -> None:
    manifests.write_text(MANIFESTS.partition("---\n")[2])
    assert [check["name"] for check in failing(run(tmp_path, ANSWERS, manifests, "-o", "json"))] == ["pool"]
    in_cluster = {
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "ComputePool",
        "metadata": {"name": "cpu", "uid": "u", "generation": 1},
        "spec": {
            "device": "CPU",
            "nodeSelector": {"sluice.dev/pool": "cpu"},
            "price": {"perHour": "1"},
            "capacity": {"readyNodes": True},
        },
    }
    answers = {**ANSWERS, "/apis/sluice.dev/v1alpha1/computepools": [in_cluster]}
    assert run(tmp_path, answers, manifests).exit_code == 0


SCALES: Answer = {
    "resources": [
        {"name": "engines", "kind": "Engine", "namespaced": True},
        {"name": "engines/scale", "kind": "Scale", "namespaced": True},
    ]
}


@pytest.mark.parametrize(
    ("scale", "ok", "words"),
    [
        ({"metadata": {"resourceVersion": "1"}, "status": {"selector": "app=vad"}}, True, "has 1 pod"),
        ({"metadata": {"resourceVersion": "1"}, "status": {}}, False, "has no selector in its scale"),
        (404, False, "does not exist, or has no scale"),
        (403, None, "refused with 403"),
    ],
)
def test_a_target_of_another_kind_is_found_by_its_scale(
    tmp_path: Path, manifests: Path, scale: Answer, ok: bool | None, words: str
) -> None:
    manifests.write_text(MANIFESTS.replace("apps/v1, kind: Deployment", "x.dev/v1, kind: Engine"))
    path = "/apis/x.dev/v1/namespaces/speech/engines/vad/scale"
    result = run(tmp_path, {**ANSWERS, "/apis/x.dev/v1": SCALES, path: scale}, manifests, "-o", "json")
    found = next(each for each in json.loads(result.stdout)["checks"] if each["name"] == "target")
    assert found["ok"] is ok
    assert words in found["message"]


def test_the_resources_of_the_cluster_are_checked_with_cluster(tmp_path: Path) -> None:
    broken: Any = {
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "SpeechPipeline",
        "metadata": {"name": "captions", "namespace": "speech", "uid": "u", "generation": 1},
        "spec": {},
    }
    answers = {**ANSWERS, "/apis/sluice.dev/v1alpha1/speechpipelines": [broken]}
    result = run(tmp_path, answers, "--cluster", "-o", "json")
    assert result.exit_code == 1
    assert failing(result)[0]["subject"] == "SpeechPipeline captions"


@pytest.mark.parametrize("cluster", [False, True])
def test_a_server_that_does_not_answer_leaves_everything_unknown(
    tmp_path: Path, manifests: Path, cluster: bool
) -> None:
    kubeconfig = write_kubeconfig(tmp_path, "http://127.0.0.1:1")
    subject = "--cluster" if cluster else str(manifests)
    result = CliRunner().invoke(doctor, [subject, "--kubeconfig", str(kubeconfig), "-o", "json"])
    assert result.exit_code == 1  # a script must not take it for a cluster in order
    (check,) = json.loads(result.stdout)["checks"]
    assert (check["name"], check["ok"]) == ("api-server", None)


def test_resources_that_may_not_be_read_are_not_said_to_be_absent(tmp_path: Path) -> None:
    answers = {**ANSWERS, "/apis/sluice.dev/v1alpha1/speechpipelines": 403}
    result = run(tmp_path, answers, "--cluster", "-o", "json")
    words = [check["message"] for check in json.loads(result.stdout)["checks"] if check["ok"] is None]
    assert words == ["not read: speechpipelines: GET /apis/sluice.dev/v1alpha1/speechpipelines: 403 refused with 403"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [str(CONTRACT[1]), "--cluster"],
        ["--cluster", "--service-account", "sluice"],
        ["--cluster", "--prometheus-url", "prometheus:9090"],
        ["/no/such/file.yaml"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(doctor, arguments).exit_code == 2
