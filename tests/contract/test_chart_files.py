"""The files that the chart has from elsewhere in the repository are what they are there (`make chart`)."""

import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = ROOT / "charts" / "sluice" / "files"
SOURCES = {
    **{source: FILES / source.name for source in (ROOT / "controller" / "kube").glob("*.yaml")},
    **{source: FILES / "crds" / source.name for source in (ROOT / "crds").glob("*.yaml")},
}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_copy_is_the_source(source: Path) -> None:
    assert SOURCES[source].read_text() == source.read_text(), "run `make chart`"


def test_there_is_no_other_copy() -> None:
    assert {path for path in FILES.rglob("*") if path.is_file()} == set(SOURCES.values())


def test_the_chart_has_the_version_of_the_operator() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert yaml.safe_load((ROOT / "charts" / "sluice" / "Chart.yaml").read_text())["appVersion"] == project["version"]
