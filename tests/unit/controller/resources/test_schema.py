import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from corpus import ROOT

from controller.resources.schema import CRDS, GROUP, Crd, render, structural_schema

KINDS = pytest.mark.parametrize("crd", CRDS, ids=lambda crd: crd.kind)


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every node of a schema with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


@KINDS
def test_the_committed_crd_is_what_the_models_say(crd: Crd) -> None:
    committed = (ROOT / "crds" / f"{GROUP}_{crd.plural}.yaml").read_text()
    assert committed == render(crd), "run `make crds`"


@KINDS
def test_every_node_is_structural(crd: Crd) -> None:
    for path, node in nodes(structural_schema(crd.model)):
        assert isinstance(node["type"], str), path
        assert not node.keys() & {"$ref", "anyOf", "oneOf", "allOf", "const", "title", "prefixItems"}, path
        assert not ("properties" in node and "additionalProperties" in node), path


@KINDS
def test_every_field_explains_itself(crd: Crd) -> None:
    fields = [node for node in nodes(structural_schema(crd.model)) if node[0] and not node[0].endswith("[]")]
    assert not [path for path, node in fields if not path.startswith(".metadata") and not node.get("description")]


@KINDS
def test_no_field_is_a_float(crd: Crd) -> None:
    assert not [path for path, node in nodes(structural_schema(crd.model)) if node["type"] == "number"]


@KINDS
def test_whatever_a_rule_may_iterate_is_bounded(crd: Crd) -> None:
    spec = structural_schema(crd.model)["properties"]["spec"]
    for path, node in nodes(spec, ".spec"):
        if node["type"] == "array":
            assert "maxItems" in node, path
        if node["type"] == "string" and "enum" not in node:
            assert "maxLength" in node, path


@KINDS
def test_columns_point_at_fields_that_exist(crd: Crd) -> None:
    schema = structural_schema(crd.model)
    known = {path for path, _ in nodes(schema)} | {".metadata.creationTimestamp"}
    for column in crd.manifest()["spec"]["versions"][0]["additionalPrinterColumns"]:
        path = re.sub(r"\[\?\(@\.type=='\w+'\)\]\.status", "[].status", column["jsonPath"])
        assert path in known, column


def test_the_memory_of_the_operator_is_kept_whole() -> None:
    pipeline = structural_schema(CRDS[0].model)
    assert pipeline["properties"]["status"]["properties"]["memory"]["x-kubernetes-preserve-unknown-fields"] is True


def test_the_files_can_be_read_as_yaml() -> None:
    for crd in CRDS:
        assert yaml.safe_load(render(crd)) == crd.manifest()
