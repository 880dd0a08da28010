from pathlib import Path

import pytest
import yaml
from api_server import Answer, api_server, write_kubeconfig
from click.testing import CliRunner, Result
from made_clusters import a_gpu_node, a_workload, ready_pods

from controller.commands.init import init

APPS = "/apis/apps/v1/namespaces/speech"
ASR = a_workload("asr", requests={"nvidia.com/gpu": "1"})
ANSWERS: dict[str, Answer] = {
    "/api/v1/namespaces/speech": {"metadata": {"name": "speech"}},
    "/api/v1/nodes": [a_gpu_node("g1")],
    "/api/v1/pods": [],
    "/api/v1/namespaces/speech/pods": ready_pods(ASR, "g1"),
    f"{APPS}/deployments": [ASR],
    f"{APPS}/statefulsets": [],
}


def run(folder: Path, answers: dict[str, Answer], *arguments: str) -> Result:
    with api_server(folder, answers) as kubeconfig:
        return CliRunner().invoke(init, [*arguments, "--kubeconfig", str(kubeconfig)])


def test_manifests_are_printed_and_nothing_else(tmp_path: Path) -> None:
    result = run(tmp_path, ANSWERS, "-n", "speech")
    assert result.exit_code == 0, result.output
    kinds = [each["kind"] for each in yaml.safe_load_all(result.stdout)]
    assert kinds == ["ComputePool", "SpeechPipeline"]
    assert "--prometheus-url is not set" in result.stdout
    assert result.stderr == ""


def test_a_prometheus_that_does_not_answer_leaves_guesses_and_its_error(tmp_path: Path) -> None:
    result = run(tmp_path, ANSWERS, "-n", "speech", "--prometheus-url", "http://127.0.0.1:1")
    assert result.exit_code == 0, result.output
    assert "# Not read: Prometheus: Prometheus: " not in result.stdout
    assert "# Not read: Prometheus: " in result.stdout


def test_a_namespace_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    result = run(tmp_path, ANSWERS, "-n", "speach")
    assert result.exit_code == 1
    assert result.stderr == "Error: namespace 'speach' does not exist\n"


def test_a_namespace_without_stages_says_what_a_stage_is(tmp_path: Path) -> None:
    result = run(tmp_path, {**ANSWERS, f"{APPS}/deployments": [a_workload("redis")]}, "-n", "speech")
    assert result.exit_code == 1
    assert "looks like a stage: Deployment/redis." in result.stderr
    assert "--selector" in result.stderr


def test_a_selector_that_selects_nothing_is_named(tmp_path: Path) -> None:
    result = run(tmp_path, {**ANSWERS, f"{APPS}/deployments": []}, "-n", "speech", "-l", "app=x")
    assert result.exit_code == 1
    assert "--selector 'app=x': selects no Deployment, StatefulSet or RayService" in result.stderr


def test_missing_rights_are_the_reason_for_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, {**ANSWERS, f"{APPS}/deployments": 403}, "-n", "speech")
    assert result.exit_code == 1
    assert "403 refused with 403" in result.stderr


@pytest.mark.parametrize("arguments", [[], ["-n", "speech", "--prometheus-url", "prometheus:9090"], ["-n"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(init, arguments).exit_code == 2


def test_a_server_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path, "http://127.0.0.1:1")
    result = CliRunner().invoke(init, ["-n", "speech", "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 1
