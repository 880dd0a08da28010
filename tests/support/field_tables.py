"""Markdown tables of the fields of a resource or of a scenario file, made from its pydantic model."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from controller.resources.base import Part
from controller.resources.fields import (
    ADDRESS_PATTERN,
    API_VERSION_PATTERN,
    CLOCK_PATTERN,
    CONFIG_KEY_PATTERN,
    DECIMAL_PATTERN,
    DURATION_PATTERN,
    END_PATTERN,
    GROUP_PATTERN,
    INSTANCE_TYPE_PATTERN,
    KIND_PATTERN,
    LABEL_KEY_PATTERN,
    LABEL_PATTERN,
    LABEL_VALUE_PATTERN,
    MODEL_PATTERN,
    MOMENT_PATTERN,
    NUMBER_PATTERN,
    PASS_RATIO_PATTERN,
    PATTERN_RULES,
    QUANTITY_PATTERN,
    QUOTA_CODE_PATTERN,
    RATIO_PATTERN,
    REGION_PATTERN,
    SERIES_LABEL_PATTERN,
    SERIES_VALUE_PATTERN,
    SERVE_NAME_PATTERN,
    SUBDOMAIN_PATTERN,
    ZONE_PATTERN,
)

Schema = dict[str, Any]
_BOUNDS = (
    ("minimum", "at least {}"),
    ("maximum", "at most {}"),
    ("minItems", "at least {} entries"),
    ("maxItems", "at most {} entries"),
    ("maxLength", "at most {} characters"),
)
_AT_MOST_A_DAY = "must be at most 24h"
TYPES = {
    DURATION_PATTERN: "duration",
    DECIMAL_PATTERN: "decimal",
    RATIO_PATTERN: "ratio",
    PASS_RATIO_PATTERN: "pass ratio",
    QUANTITY_PATTERN: "quantity",
    NUMBER_PATTERN: "number",
    LABEL_PATTERN: "DNS label",
    SUBDOMAIN_PATTERN: "DNS name",
    INSTANCE_TYPE_PATTERN: "instance type",
    REGION_PATTERN: "region or zone",
    GROUP_PATTERN: "group name",
    QUOTA_CODE_PATTERN: "quota code",
    KIND_PATTERN: "kind",
    API_VERSION_PATTERN: "API version",
    LABEL_KEY_PATTERN: "label key",
    LABEL_VALUE_PATTERN: "label value",
    MODEL_PATTERN: "model name",
    SERVE_NAME_PATTERN: "name of Ray Serve",
    CONFIG_KEY_PATTERN: "ConfigMap key",
    ADDRESS_PATTERN: "address",
    SERIES_LABEL_PATTERN: "label name in Prometheus",
    SERIES_VALUE_PATTERN: "string",
    CLOCK_PATTERN: "time of day",
    END_PATTERN: "end of hours",
    MOMENT_PATTERN: "time",
    ZONE_PATTERN: "time zone",
}
"""Names of the strings with a pattern. `types_table` has their rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field: its name, type, default, rules and text, as Markdown. `default` is "" where there is none."""

    name: str
    type: str
    required: bool
    default: str
    rules: tuple[str, ...]
    text: str

    def row(self) -> str:
        default = "required" if self.required else self.default or "–"
        text = " ".join(filter(None, [self.text, *(f"{rule[0].upper()}{rule[1:]}." for rule in self.rules)]))
        return f"| `{self.name}` | {_cell(self.type)} | {_cell(default)} | {_cell(text)} |\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """One mapping of fields: its path, its text, its fields, and the rules between them."""

    path: str
    text: str
    fields: tuple[Field, ...]
    rules: tuple[str, ...]

    def section(self) -> str:
        """Return the section of the document: heading, text, table, rules."""
        rules = "".join(f"* {rule}\n" for rule in self.rules)
        rows = "".join(field.row() for field in self.fields)
        table = f"| field | type | default | meaning and rule |\n|---|---|---|---|\n{rows}"
        return f"## {self.path}\n\n{self.text}\n\n{table}" + (f"\nRules between fields:\n\n{rules}" if rules else "")


def mappings(schema: Schema, model: type[Part], path: str) -> Iterator[Mapping]:
    """Yield the mapping at `path`, which `schema` describes and `model` validates, and those inside it.

    `schema` has no references left (`structural`).
    """
    names = model.field_names()
    required = set(schema.get("required", ()))
    yield Mapping(
        path=path,
        text=schema["description"],
        fields=tuple(_field(name, node, name in required) for name, node in schema["properties"].items()),
        rules=tuple(_rules_between(model)),
    )
    for name, node in schema["properties"].items():
        inside, listed = (node["items"], "[]") if node.get("type") == "array" else (node, "")
        if "properties" in inside:
            part = part_in(model.model_fields[names[name]].annotation)
            assert part is not None, name
            yield from mappings(inside, part, f"{path}.{name}{listed}" if path else f"{name}{listed}")


def types_table() -> str:
    """Return the table of the types of strings: name, rule, pattern."""
    rules = {**PATTERN_RULES, DURATION_PATTERN: f"{PATTERN_RULES[DURATION_PATTERN]}; {_AT_MOST_A_DAY}"}
    rows = "".join(f"| {name} | {_cell(rules[pattern])} | `{_cell(pattern)}` |\n" for pattern, name in TYPES.items())
    return f"| type | rule | pattern |\n|---|---|---|\n{rows}"


def _rules_between(model: type[Part]) -> Iterator[str]:
    for item in model.constraints:
        if item.rule:
            rule = re.sub(r" \(\{\w+\}\)", "", item.rule)
            yield (
                f"`{item.field}`: {rule}."
                if item.field
                else f"{'It ' if rule.startswith(('must', 'needs')) else ''}{rule}."
            )


def _field(name: str, node: Schema, required: bool) -> Field:
    given = node.get("default")
    default = "" if given is None or isinstance(given, dict) or given == [] else f"`{_written(given)}`"
    return Field(
        name=name,
        type=_type(node),
        required=required,
        default=default,
        rules=tuple(_rules(node)),
        text=node.get("description", ""),
    )


def _type(node: Schema) -> str:
    if "enum" in node:
        return " | ".join(f"`{value}`" for value in node["enum"])
    match node.get("type"):
        case "array":
            return f"list of {_type(node['items'])}"
        case "object" if "properties" not in node and "additionalProperties" in node:
            inside = node["additionalProperties"]
            return f"map to {_type(inside)}" if isinstance(inside, dict) else "mapping"
        case "object":
            return "mapping"
        case "string" if node.get("pattern") in TYPES:
            return f"[{TYPES[node['pattern']]}](types.md)"
        case str(kind):
            return kind
        case _:
            return "any"


def _rules(node: Schema) -> Iterator[str]:
    if (pattern := node.get("pattern")) is not None and pattern not in TYPES:
        yield f"must match `{pattern}`"
    if (form := node.get("format")) is not None:
        yield f"must be {form}"
    for keyword, words in _BOUNDS:
        if keyword in node and not (keyword == "maxLength" and pattern is not None):
            above = keyword == "minimum" and node.get("exclusiveMinimum")
            yield f"above {node[keyword]}" if above else words.format(node[keyword])
    for rule in node.get("x-kubernetes-validations", ()) if "properties" not in node else ():
        if not (pattern == DURATION_PATTERN and rule["message"] == _AT_MOST_A_DAY):
            yield rule["message"]
    for key in node.get("x-kubernetes-list-map-keys", ()):
        yield f"`{key}` must be unique"
    if node.get("x-kubernetes-list-type") == "set":
        yield "entries must be unique"
    inside = node.get("items", node.get("additionalProperties"))
    if isinstance(inside, dict) and "properties" not in inside:
        for rule in _rules(inside):
            yield f"each entry: {rule}"


def _written(default: Any) -> str:
    return default if isinstance(default, str) and default else json.dumps(default, ensure_ascii=False)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def part_in(annotation: Any) -> type[Part] | None:
    """Return the part somewhere in `annotation`, such as `list[Stage] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next(filter(None, map(part_in, get_args(annotation))), None)
