"""Generates the CRDs from the models: `python -m controller.resources.schema crds` writes them into the folder `crds`.

pydantic's JSON schema is turned into a structural schema: references are inlined, nulls and titles dropped. Ranges,
patterns, list types and CEL come from the models.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from controller.resources.base import Part
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool

GROUP = "sluice.dev"
VERSION = "v1alpha1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of `kubectl get`; if `wide`, it is shown only with `-o wide`."""

    name: str
    json_path: str
    description: str
    type: str = "string"
    wide: bool = False

    def manifest(self) -> dict[str, Any]:
        """Return the column as an item of `additionalPrinterColumns`."""
        entry = {"name": self.name, "type": self.type, "jsonPath": self.json_path, "description": self.description}
        return {**entry, "priority": 1} if self.wide else entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Crd:
    """A CustomResourceDefinition: the model of its schema, its names, scope and columns."""

    model: type[Part]
    plural: str
    singular: str
    short_name: str
    namespaced: bool
    columns: tuple[Column, ...]

    @property
    def kind(self) -> str:
        """Return the name of the kind, such as `SpeechPipeline`."""
        return self.model.__name__

    def manifest(self) -> dict[str, Any]:
        """Return the CustomResourceDefinition as an object of the API."""
        names = {
            "kind": self.kind,
            "listKind": f"{self.kind}List",
            "plural": self.plural,
            "singular": self.singular,
            "shortNames": [self.short_name],
            "categories": ["sluice"],
        }
        version = {
            "name": VERSION,
            "served": True,
            "storage": True,
            "subresources": {"status": {}},
            "additionalPrinterColumns": [column.manifest() for column in self.columns],
            "schema": {"openAPIV3Schema": structural_schema(self.model)},
        }
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "names": names,
                "scope": "Namespaced" if self.namespaced else "Cluster",
                "versions": [version],
            },
        }


_AGE = Column(name="AGE", type="date", json_path=".metadata.creationTimestamp", description="Age of the object")

CRDS = (
    Crd(
        model=SpeechPipeline,
        plural="speechpipelines",
        singular="speechpipeline",
        short_name="sp",
        namespaced=True,
        columns=(
            Column(name="HEALTH", json_path=".status.summary.health", description="OK, or the first problem"),
            Column(name="MODE", json_path=".spec.mode", description="Auto, Recommend or Paused"),
            Column(name="DEMAND", json_path=".status.summary.demand", description="Demand planned for"),
            Column(name="P95/SLA", json_path=".status.summary.latency", description="Observed latency and SLA"),
            Column(
                name="BOTTLENECK", json_path=".status.summary.bottleneck", description="Stage with the most pressure"
            ),
            Column(name="LIMITED-BY", json_path=".status.summary.limitedBy", description="Binding constraint"),
            Column(name="COST/BUDGET", json_path=".status.summary.cost", description="Cost and budget in USD per hour"),
            Column(name="REPLICAS", json_path=".status.summary.replicas", description="Replicas per stage", wide=True),
            Column(name="LAST", json_path=".status.lastDecision.message", description="Last decision", wide=True),
            _AGE,
        ),
    ),
    Crd(
        model=ComputePool,
        plural="computepools",
        singular="computepool",
        short_name="cpool",
        namespaced=False,
        columns=(
            Column(name="DEVICE", json_path=".spec.device", description="Kind of device"),
            Column(name="PRICE", json_path=".spec.price.perHour", description="USD per instance and hour"),
            Column(name="IN-USE", json_path=".status.inUse", description="Instances in use by replicas"),
            Column(name="LIMIT", type="integer", json_path=".status.limit", description="Maximum number of instances"),
            Column(
                name="AVAILABLE",
                json_path=".status.conditions[?(@.type=='Available')].status",
                description="Whether replicas can be scheduled",
            ),
            Column(name="UNTIL", json_path=".status.unavailableUntil", description="Avoided until", wide=True),
            Column(name="REASON", json_path=".status.reason", description="Why it is unavailable", wide=True),
            _AGE,
        ),
    ),
)


def structural_schema(model: type[Part]) -> dict[str, Any]:
    """Return the OpenAPI v3 schema of a resource `model` as the structural schema that a CRD requires."""
    schema = model.model_json_schema()
    root = _structural(schema, schema.get("$defs", {}))
    properties = root["properties"]
    name = {key: value for key, value in properties["metadata"]["properties"]["name"].items() if key != "description"}
    # The API server validates these; of the metadata, a schema may restrict only the name.
    for field in ("apiVersion", "kind"):
        properties[field] = {"type": "string", "description": properties[field]["description"]}
    properties["metadata"] = {"type": "object", "properties": {"name": name}}
    root["required"] = ["spec"]
    return root


def _structural(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    node = {key: value for key, value in node.items() if key not in {"title", "$defs"}}
    if "$ref" in node:
        target = definitions[node.pop("$ref").rsplit("/", 1)[-1]]
        node = {**target, **node}
        return _structural(node, definitions)
    if "anyOf" in node:
        # An optional field: the API server drops nulls, so null needs no type.
        (choice,) = [choice for choice in node.pop("anyOf") if choice != {"type": "null"}]
        return _structural({**choice, **node}, definitions)
    if isinstance(node.get("description"), str):
        node["description"] = " ".join(node["description"].split())
    if node.get("default", ...) is None:
        del node["default"]
    if isinstance(node.get("default"), dict):
        node["default"] = _written(node["default"])
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if "exclusiveMinimum" in node:
        node["minimum"], node["exclusiveMinimum"] = node["exclusiveMinimum"], True
    if node.get("properties"):
        node["properties"] = {key: _structural(value, definitions) for key, value in node["properties"].items()}
        node.pop("additionalProperties", None)
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            node[key] = _structural(node[key], definitions)
    return node


def _written(default: Any) -> Any:
    """Return `default` without fields that are None or an empty list."""
    if isinstance(default, dict):
        return {key: _written(value) for key, value in default.items() if value not in (None, [])}
    return default


def render(crd: Crd) -> str:
    """Return the YAML text of `crd`, as it is committed."""
    header = "# Generated from controller/resources by `make crds`. Do not edit.\n"
    return header + yaml.safe_dump(crd.manifest(), sort_keys=False, width=120, allow_unicode=True)


def main() -> None:
    """Write all CRDs into the folder given on the command line."""
    folder = Path(sys.argv[1])
    for crd in CRDS:
        (folder / f"{GROUP}_{crd.plural}.yaml").write_text(render(crd), encoding="utf-8")


if __name__ == "__main__":
    main()
