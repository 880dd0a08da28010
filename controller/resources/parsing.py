"""Parses one object from plain data into its model, or reports all rules that the object breaks.

The operator ignores unknown fields, which may come from a newer version; `sluice validate` reports them.
"""

import copy
import difflib
import json
from collections.abc import Iterable
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from controller.resources.base import LENIENT, Breach, Part, Unusable, breaches
from controller.resources.fields import PATTERN_RULES
from controller.resources.manifests import FieldPath, format_path

Resource = TypeVar("Resource", bound=Part)

_RULES = {
    "missing": "required",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "finite_number": "must be a finite number",
    "model_type": "must be a mapping of fields",
    "dict_type": "must be a mapping of fields",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be shorter than {min_length} characters",
    "string_too_long": "must not be longer than {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "value_error": "{error}",
}


class InvalidResource(ValueError):
    """An object breaks rules; `breaches` has each broken rule with its path from the root of the object."""

    def __init__(self, found: tuple[Breach, ...]) -> None:
        super().__init__("; ".join(f"{format_path(breach.path)}: {breach.rule}" for breach in found))
        self.breaches = found


def parse(model: type[Resource], data: dict[str, Any]) -> Resource:
    """Return `data`, an object from the API server, as its model; unknown fields and an invalid status are ignored.

    Raises:
        InvalidResource: `data` breaks a rule outside of its status.
    """
    resource, found = inspect(model, data)
    if any(breach.path[0] == "status" for breach in found):
        # The status is from another version of the operator; the spec is valid without it.
        resource, found = inspect(model, _without_status(data))
    if found:
        raise InvalidResource(tuple(found))
    assert isinstance(resource, model)
    return resource


def inspect_strictly(model: type[Resource], data: dict[str, Any]) -> tuple[Resource | Unusable, list[Breach]]:
    """Return `data` as its model, and all breaches in `data`, each once; an unknown field is a breach too.

    Invalid values are as in `inspect`. The status is ignored, as the API server does when a user writes the object.
    """
    known = _KnownFields()
    resource, found = inspect(model, known.of(model, _without_status(data), ()))
    unknown = {breach.path for breach in known.breaches}
    # If the value of a misspelt field is invalid too, only the name is reported.
    others = [breach for breach in map(known.as_written, found) if breach.path not in unknown]
    return resource, [*map(known.as_written, known.breaches), *others]


def inspect(model: type[Resource], data: dict[str, Any]) -> tuple[Resource | Unusable, list[Breach]]:
    """Return `data` as its model, and all breaches in the fields of `model`, each once; unknown fields are ignored.

    Invalid values in the model are `Unusable`, and so is the model itself if it cannot be built.
    """
    try:
        resource: Resource | Unusable = model.model_validate(data)
        found = []
    except ValidationError as error:
        resource = model.model_validate(data, context=LENIENT)
        details = error.errors(include_url=False)
        quoted = _as_quoted(model, data, details)
        found = [
            Breach(path=tuple(detail["loc"]), rule=quoted.get(tuple(detail["loc"])) or rule_text(detail))
            for detail in details
        ]
    if isinstance(resource, Part):
        found += breaches(resource)
    return resource, found


def _as_quoted(model: type[Part], data: dict[str, Any], details: list[ErrorDetails]) -> dict[FieldPath, str]:
    """Return the rules that scalars which must be strings would still break in quotes, by path.

    The advice to put such a value in quotes would lead from one error to the next.
    """
    changed: dict[str, Any] = copy.deepcopy(data)
    paths = set()
    for detail in details:
        if detail["type"] == "string_type" and isinstance(detail["input"], bool | int | float):
            *parents, last = detail["loc"]
            place: Any = changed
            try:
                for part in parents:
                    place = place[part]
                place[last] = json.dumps(detail["input"])
            except (KeyError, IndexError, TypeError):
                continue
            paths.add(tuple(detail["loc"]))
    if not paths:
        return {}
    try:
        model.model_validate(changed)
    except ValidationError as error:
        again = error.errors(include_url=False)
        return {tuple(detail["loc"]): rule_text(detail) for detail in again if tuple(detail["loc"]) in paths}
    return {}


def _without_status(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != "status"}


def rule_text(detail: ErrorDetails) -> str:
    """Return the text of the rule that a value breaks, from pydantic's details of the error."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "string_type":
            is_scalar = isinstance(detail["input"], bool | int | float)
            return "must be a string: put it in quotes" if is_scalar else "must be a string"
        case "string_pattern_mismatch":
            return PATTERN_RULES.get(context["pattern"], f"must match {context['pattern']}")
        case kind if kind in _RULES:
            return _RULES[kind].format_map(context).replace("'", "")
        case _:
            return detail["msg"]


class _KnownFields:
    """Removes and reports unknown fields. A misspelt field is renamed to the nearest known one, so that the known field
    is not reported as missing and its value is checked.
    """

    def __init__(self) -> None:
        self.breaches: list[Breach] = []
        self._spelt: dict[FieldPath, FieldPath] = {}

    def of(self, model: type[Part], fields: dict[str, Any], path: FieldPath) -> dict[str, Any]:
        """Return the `fields`, at `path`, that `model` has, misspelt ones by their right name; note the others."""
        names = model.field_names()
        known = {key: value for key, value in fields.items() if key in names}
        for key in [key for key in fields if key not in names]:
            nearest = nearest_name(key, [name for name in names if name not in known])
            hint = f"did you mean {nearest}?" if nearest else f"known fields: {', '.join(names)}"
            self.breaches.append(Breach(path=(*path, key), rule=f"unknown field; {hint}"))
            if nearest:
                known[nearest] = fields[key]
                self._spelt[*path, nearest] = (*path, key)
        for key, value in known.items():
            annotation = model.model_fields[names[key]].annotation
            if isinstance(value, dict) and (part := _part_of(annotation)):
                known[key] = self.of(part, value, (*path, key))
            elif isinstance(value, list) and (part := _part_of(annotation, listed=True)):
                known[key] = [
                    self.of(part, item, (*path, key, index)) if isinstance(item, dict) else item
                    for index, item in enumerate(value)
                ]
        return known

    def as_written(self, breach: Breach) -> Breach:
        """Return `breach` with the path as in the manifest, where names may be misspelt."""
        path = breach.path
        for length in range(len(path), 0, -1):
            path = self._spelt.get(path[:length], path[:length]) + path[length:]
        return Breach(path=path, rule=breach.rule)


def _part_of(annotation: Any, *, listed: bool = False) -> type[Part] | None:
    """Return the part in `annotation`, such as `Stage | None`, or with `listed`, in `list[Stage] | None`."""
    if get_origin(annotation) is list:
        return _part_of(get_args(annotation)[0]) if listed else None
    if not listed and isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next(filter(None, (_part_of(each, listed=listed) for each in get_args(annotation))), None)


def nearest_name(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that is most similar to `word`, ignoring case; None if none is similar."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[matches[0]] if matches else None
