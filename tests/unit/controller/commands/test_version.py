import json
from importlib.metadata import version as version_of
from pathlib import Path

from api_server import Answer, api_server
from click.testing import CliRunner, Result

from controller.commands.version import version
from controller.resources.schema import CRDS

PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def test_the_version_of_program_and_resources() -> None:
    result = CliRunner().invoke(version)
    assert result.stdout == f"sluice {version_of('sluice-operator')}\nresources sluice.dev/v1alpha1\n"


def compared(folder: Path, answers: dict[str, Answer]) -> Result:
    with api_server(folder, answers) as kubeconfig:
        return CliRunner().invoke(version, ["--cluster", "--kubeconfig", str(kubeconfig), "-o", "json"])


def test_resources_of_the_same_version_exit_with_0(tmp_path: Path) -> None:
    result = compared(tmp_path, {f"{PATH}/{crd.plural}.sluice.dev": crd.manifest() for crd in CRDS})
    assert result.exit_code == 0
    assert {crd["name"]: crd["ok"] for crd in json.loads(result.stdout)["crds"]} == {
        "speechpipelines.sluice.dev": True,
        "computepools.sluice.dev": True,
        "computebudgets.sluice.dev": True,
    }


def test_resources_that_are_missing_exit_with_1(tmp_path: Path) -> None:
    result = compared(tmp_path, {})
    assert result.exit_code == 1
    assert [crd["ok"] for crd in json.loads(result.stdout)["crds"]] == [False, False, False]
