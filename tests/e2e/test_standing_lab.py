"""`sluice lab up`, and the use of the lab."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab_runs import SLUICE, Watched, eventually, processes_about

from simulations.lab.host.binaries import Binaries, cache_folder

pytestmark = pytest.mark.lab

OPERATOR = "system:serviceaccount:sluice-system:sluice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A started lab, and the output of the command."""

    folder: Path
    told: dict[str, str]
    sluice: Callable[..., "subprocess.CompletedProcess[str]"]
    kubectl: Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def lab(
    scenarios: Path,
    binaries: Binaries,
    kubectl: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    # A separate cache with the programs of the real one: the user's own lab may be up.
    cache = tmp_path_factory.mktemp("cache")
    for program in (binaries.kube_apiserver, binaries.prometheus):
        built = program.relative_to(cache_folder()).parts[0]
        (cache / built).symlink_to(cache_folder() / built)

    def sluice(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "SLUICE_LAB_CACHE": str(cache)}
        command = [SLUICE, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)

    up = sluice("lab", "up", scenarios / "pools.yaml", scenarios / "captions.yaml")
    try:
        assert up.returncode == 0, up.stderr
        told = dict(line.split(None, 1) for line in up.stdout.splitlines())
        yield Lab(
            folder=cache,
            told=told,
            sluice=sluice,
            kubectl=lambda *arguments: kubectl(told["kubeconfig:"], *arguments),
        )
    finally:
        sluice("lab", "down")


def test_it_tells_where_everything_is(lab: Lab) -> None:
    assert lab.told.keys() == {"kubectl:", "kubeconfig:", "prometheus:", "operator:"}
    version = subprocess.run(
        f"{lab.told['kubectl:']} version", shell=True, capture_output=True, text=True, timeout=30, check=True
    )
    assert "Server Version: v1." in version.stdout


def test_kubectl_lists_pipelines_and_pools(lab: Lab) -> None:
    def pipelines() -> str:
        return lab.kubectl("get", "speechpipelines", "-A").stdout

    eventually(lambda: "captions" in pipelines())
    pools = lab.kubectl("get", "computepools").stdout

    assert "HEALTH" in pipelines()
    assert all(name in pools for name in ("cpu", "inferentia", "gpu"))


def test_kubectl_explains_fields(lab: Lab) -> None:
    explained = lab.kubectl("explain", "speechpipeline.spec.sla").stdout

    assert "percentile" in explained
    assert "DESCRIPTION" in explained


def test_the_columns_explanation_and_status_say_that_there_is_no_load_to_see(lab: Lab) -> None:
    def condition() -> str:
        path = "{.status.conditions[?(@.type=='MetricsAvailable')].status}"
        return lab.kubectl("-n", "speech", "get", "sp", "captions", "-o", f"jsonpath={path}").stdout

    eventually(lambda: condition() == "False")
    assert "MetricsMissing" in lab.kubectl("get", "sp", "-A").stdout
    explained = lab.sluice("explain", "speech/captions", "--kubeconfig", lab.told["kubeconfig:"])
    assert explained.returncode == 0
    assert "metrics are missing; no replica is removed" in explained.stdout


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("patch", "deployments.apps/scale", "yes"),
        ("patch", "speechpipelines.sluice.dev/status", "yes"),
        ("patch", "deployments.apps", "no"),
        ("update", "deployments.apps", "no"),
        ("patch", "speechpipelines.sluice.dev", "no"),
        ("delete", "pods", "no"),
        ("get", "secrets", "no"),
    ],
)
def test_the_operator_may_scale_workloads_and_not_change_them(lab: Lab, verb: str, resource: str, allowed: str) -> None:
    name, _, subresource = resource.partition("/")
    answer = lab.kubectl(
        *("auth", "can-i", verb, name, "--as", OPERATOR, "-n", "speech"),
        *(["--subresource", subresource] if subresource else []),
    )

    assert answer.stdout.strip() == allowed


def test_a_second_lab_is_refused_while_one_is_up(lab: Lab, scenarios: Path) -> None:
    second = lab.sluice("lab", "up", scenarios / "pools.yaml")

    assert second.returncode == 1
    assert "sluice lab down" in second.stderr


def test_nothing_is_left_when_it_is_down(lab: Lab) -> None:
    assert processes_about(lab.folder)

    down = lab.sluice("lab", "down")

    assert (down.returncode, down.stdout.strip()) == (0, "the lab is down")
    assert eventually(lambda: not processes_about(lab.folder))
    assert lab.sluice("lab", "down").stdout.strip() == "no lab is up"


def test_manifests_with_a_mistake_are_refused_by_file_and_line(scenarios: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((scenarios / "pools.yaml").read_text().replace("device: CPU", "device: TPU"))

    up = subprocess.run([SLUICE, "lab", "up", wrong], capture_output=True, text=True, timeout=60, check=False)

    assert up.returncode == 1
    assert f"{wrong}:7" in up.stderr
    assert "TPU" in up.stderr


def test_ctrl_c_ends_the_demo_and_leaves_nothing(tmp_path: Path) -> None:
    demo = Watched(tmp_path / "demo", "demo")
    try:
        demo.wait_for("replaying")
        code = demo.interrupt()
    finally:
        demo.kill()

    assert code == 128 + signal.SIGINT
    assert demo.stderr().endswith("interrupted\n")
    assert demo.remains() == []
