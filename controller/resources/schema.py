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
from controller.resources.budget import ComputeBudget
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool

GROUP = "sluice.dev"
VERSION = "v1alpha1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crd:
    """A CustomResourceDefinition: its model, names, scope and columns.

    Each of `columns` of `kubectl get` is (name, JSON path, description). `wide` ones are shown only with `-o wide`.
    """

    model: type[Part]
    plural: str
    singular: str
    short_name: str
    namespaced: bool
    columns: tuple[tuple[str, str, str], ...]
    wide: tuple[tuple[str, str, str], ...]

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
            "additionalPrinterColumns": [
                *(_column(*column) for column in self.columns),
                *({**_column(*column), "priority": 1} for column in self.wide),
                _column("AGE", ".metadata.creationTimestamp", "Age of the object"),
            ],
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


_TYPES = {"AGE": "date", "LIMIT": "integer", "PIPELINES": "integer", "SHORT": "integer"}


def _column(name: str, json_path: str, description: str) -> dict[str, Any]:
    return {"name": name, "type": _TYPES.get(name, "string"), "jsonPath": json_path, "description": description}


CRDS = (
    Crd(
        model=SpeechPipeline,
        plural="speechpipelines",
        singular="speechpipeline",
        short_name="sp",
        namespaced=True,
        columns=(
            ("HEALTH", ".status.summary.health", "OK, or the first problem"),
            ("MODE", ".spec.mode", "Auto, Recommend or Paused"),
            ("DEMAND", ".status.summary.demand", "Demand planned for"),
            ("P95/SLA", ".status.summary.latency", "Observed latency and SLA"),
            ("BOTTLENECK", ".status.summary.bottleneck", "Stage with the most pressure"),
            ("LIMITED-BY", ".status.summary.limitedBy", "Binding constraint"),
            ("COST/BUDGET", ".status.summary.cost", "Cost and budget in USD per hour"),
        ),
        wide=(
            ("REPLICAS", ".status.summary.replicas", "Replicas per stage"),
            ("LAST", ".status.lastDecision.message", "Last decision"),
        ),
    ),
    Crd(
        model=ComputePool,
        plural="computepools",
        singular="computepool",
        short_name="cpool",
        namespaced=False,
        columns=(
            ("DEVICE", ".spec.device", "Kind of device"),
            ("PRICE", ".status.pricePerHour", "USD per instance and hour"),
            ("IN-USE", ".status.inUse", "Instances in use by replicas"),
            ("LIMIT", ".status.limit", "Maximum number of instances"),
            ("AVAILABLE", ".status.conditions[?(@.type=='Available')].status", "Whether replicas can be scheduled"),
        ),
        wide=(
            ("UNTIL", ".status.unavailableUntil", "Avoided until"),
            ("REASON", ".status.reason", "Why it is unavailable"),
        ),
    ),
    Crd(
        model=ComputeBudget,
        plural="computebudgets",
        singular="computebudget",
        short_name="cbudget",
        namespaced=False,
        columns=(
            ("PER-HOUR", ".status.limitPerHour", "USD per hour that may be spent now"),
            ("SPENT", ".status.spendPerHour", "USD per hour that is spent"),
            ("PLANNED", ".status.plannedPerHour", "USD per hour of the plans"),
            ("PIPELINES", ".status.pipelines", "Pipelines that have this budget together"),
            ("SHORT", ".status.shortCount", "Pipelines that are served in part because of this budget"),
            ("WITHIN", ".status.conditions[?(@.type=='WithinBudget')].status", "Whether the spend is within the limit"),
        ),
        wide=(("REASON", ".status.reason", "Why pipelines are served in part"),),
    ),
)


def structural_schema(model: type[Part]) -> dict[str, Any]:
    """Return the OpenAPI v3 schema of a resource `model` as the structural schema that a CRD requires."""
    schema = model.model_json_schema()
    root = structural(schema, schema.get("$defs", {}))
    properties = root["properties"]
    name = {key: value for key, value in properties["metadata"]["properties"]["name"].items() if key != "description"}
    # The API server validates these; of the metadata, a schema may restrict only the name.
    for field in ("apiVersion", "kind"):
        properties[field] = {"type": "string", "description": properties[field]["description"]}
    properties["metadata"] = {"type": "object", "properties": {"name": name}}
    root["required"] = ["spec"]
    return root


def structural(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a node of pydantic's JSON schema without references, nulls and titles; `definitions` is its `$defs`."""
    node = {key: value for key, value in node.items() if key not in {"title", "$defs"}}
    if "$ref" in node:
        target = definitions[node.pop("$ref").rsplit("/", 1)[-1]]
        node = {**target, **node}
        return structural(node, definitions)
    if "anyOf" in node:
        # An optional field: the API server drops nulls, so null needs no type.
        (choice,) = [choice for choice in node.pop("anyOf") if choice != {"type": "null"}]
        return structural({**choice, **node}, definitions)
    if isinstance(node.get("description"), str):
        node["description"] = " ".join(node["description"].split())
    if node.get("default", ...) is None:
        del node["default"]
    if "default" in node:
        node["default"] = _written(node["default"])
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if "exclusiveMinimum" in node:
        node["minimum"], node["exclusiveMinimum"] = node["exclusiveMinimum"], True
    if node.get("properties"):
        node["properties"] = {key: structural(value, definitions) for key, value in node["properties"].items()}
        node.pop("additionalProperties", None)
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            node[key] = structural(node[key], definitions)
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
