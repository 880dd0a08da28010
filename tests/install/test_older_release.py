"""An upgrade from an older chart, whose CRD lacks a field, and the way back."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from helm_chart import CHART
from helm_releases import SYSTEM
from installed import PATIENCE_S, VALUES, InstallLab, manifests
from waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.extended, pytest.mark.timeout(600)]

OLDER = "0.0.9"
ALWAYS = {"name": "always", "demand": "60", "from": "00:00", "until": "24:00"}


@pytest.fixture(scope="module")
def older(lab: InstallLab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of a chart without `spec.demand.atLeast`."""
    folder = tmp_path_factory.mktemp("older") / "sluice"
    shutil.copytree(CHART, folder)
    file = folder / "files" / "crds" / "sluice.dev_speechpipelines.yaml"
    crd = yaml.safe_load(file.read_text())
    for version in crd["spec"]["versions"]:
        del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["demand"]["properties"]["atLeast"]
    # The chart puts its labels after a first line.
    file.write_text("# An older one.\n" + yaml.safe_dump(crd, sort_keys=False))
    package = ("--version", OLDER, "--destination", folder.parent)
    lab.releases.chart.run("package", folder, *package)
    return folder.parent / f"sluice-{OLDER}.tgz"


@pytest.fixture(scope="module")
def release(lab: InstallLab, older: Path) -> Iterator[InstallLab]:
    lab.clear()
    lab.releases.helm("install", "sluice", "--wait", "--timeout", "120s", values=VALUES, chart=older)
    yield lab
    lab.uninstall()


def test_a_field_that_is_new_works_after_the_upgrade_and_the_way_back_is_open(release: InstallLab) -> None:
    pool, pipeline = manifests("speech")
    known = pipeline["spec"]["demand"] | {"atLeast": [ALWAYS]}
    with_new_field = pipeline | {"spec": pipeline["spec"] | {"demand": known}}
    release.releases.apply(pool)
    release.releases.apply(pipeline)
    until(lambda: release.replicas("speech") == 3, within_s=PATIENCE_S)
    with pytest.raises(AssertionError, match="atLeast"):
        release.releases.apply(with_new_field)

    release.releases.helm("upgrade", "sluice", "--wait", "--timeout", "120s", values=VALUES)
    release.releases.apply(with_new_field)
    until(lambda: release.replicas("speech") >= 7, within_s=PATIENCE_S)

    upgraded = release.pods(SYSTEM).keys()
    release.releases.helm("rollback", "sluice", "1", "--wait", "--timeout", "120s", chart=None)
    labels = release.releases.get("deployment", "sluice", "--namespace", SYSTEM)["metadata"]["labels"]
    assert labels["helm.sh/chart"] == f"sluice-{OLDER}"
    until(lambda: not upgraded & release.pods(SYSTEM).keys(), within_s=PATIENCE_S)
    release.releases.apply(manifests("speech", demand="vector(100)")[1])
    until(lambda: release.replicas("speech") >= 11, within_s=PATIENCE_S)
