"""The files that the chart has from elsewhere in the repository are what they are there (`make chart`)."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def defaults(schema: dict[str, Any], values: dict[str, Any], path: str = "") -> Iterator[tuple[str, bool]]:
    """Yield each value that has a default, but entries of free maps, and whether the schema requires it."""
    for name, inner in schema["properties"].items():
        value = values.get(name)
        if isinstance(value, dict) and "properties" in inner:
            yield from defaults(inner, value, f"{path}{name}.")
        if value not in ("", [], {}, None) and ("properties" in inner or not isinstance(value, dict)):
            yield f"{path}{name}", name in schema.get("required", ())


def test_a_null_removes_no_default_silently() -> None:
    """Helm removes what a null stands for: an empty `admissionPolicies:` in a file of values would mean none."""
    chart = ROOT / "charts" / "sluice"
    schema = json.loads((chart / "values.schema.json").read_text())
    values = yaml.safe_load((chart / "values.yaml").read_text())
    found = dict(defaults(schema, values))
    assert found["admissionPolicies.enabled"]
    assert [path for path, required in found.items() if not required] == []
