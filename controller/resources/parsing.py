"""One object as plain data -> its model, or everything that is wrong with it.

The operator reads tolerantly (unknown fields are a newer version's), `sluice validate` strictly.
"""

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar, get_args

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
    "bool_type": "must be true or false",
    "model_type": "must be a mapping of fields",
    "dict_type": "must be a mapping of fields",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be shorter than {min_length} characters",
    "string_too_long": "must not be longer than {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "value_error": "{error}",
}


class InvalidResource(ValueError):
    """An object that breaks rules: `breaches` has each with its path from the root of the object."""

    def __init__(self, found: tuple[Breach, ...]) -> None:
        super().__init__("; ".join(f"{format_path(breach.path)}: {breach.rule}" for breach in found))
        self.breaches = found


def parse(model: type[Resource], data: dict[str, Any]) -> Resource:
    """Return the stored object `data`; unknown fields are ignored. Raise `InvalidResource` when it breaks a rule."""
    resource, found = inspect(model, data)
    if any(breach.path[0] == "status" for breach in found):
        # Written by another version of the operator: what is asked stays valid without it.
        resource, found = inspect(model, _without_status(data))
    if found:
        raise InvalidResource(tuple(found))
    assert isinstance(resource, model)
    return resource


def inspect_strictly(model: type[Resource], data: dict[str, Any]) -> tuple[Resource | Unusable, list[Breach]]:
    """Return `data` as far as it can be used and every mistake in it, unknown fields included, each once.

    The status is left out: on the way in, the API server drops it.
    """
    known, unknown = _without_unknown_fields(model, _without_status(data))
    resource, found = inspect(model, known)
    return resource, [*unknown, *found]


def inspect(model: type[Resource], data: dict[str, Any]) -> tuple[Resource | Unusable, list[Breach]]:
    """Return `data` as far as it can be used and every mistake in the fields that `model` has, each once."""
    try:
        resource: Resource | Unusable = model.model_validate(data)
        found = []
    except ValidationError as error:
        resource = model.model_validate(data, context=LENIENT)
        found = [_breach(detail) for detail in error.errors(include_url=False)]
    if isinstance(resource, Part):
        found += breaches(resource)
    return resource, found


def _without_status(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != "status"}


def _breach(detail: ErrorDetails) -> Breach:
    path = tuple(detail["loc"])
    value = None if detail["type"] == "missing" else detail["input"]
    return Breach(path=path, value=value, rule=_rule(detail))


def _rule(detail: ErrorDetails) -> str:
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


def _without_unknown_fields(model: type[Part], data: dict[str, Any]) -> tuple[dict[str, Any], list[Breach]]:
    """Return `data` without the fields that `model` does not have, and a breach for each.

    A misspelt field stays under the name it was meant to have, so that its absence is not reported as well.
    """
    found: list[Breach] = []

    def clean(part: type[Part], fields: dict[str, Any], path: FieldPath) -> dict[str, Any]:
        names = part.field_names()
        kept: dict[str, Any] = {key: value for key, value in fields.items() if key in names}
        for key in fields.keys() - names.keys():
            nearest = nearest_name(key, [name for name in names if name not in fields])
            hint = f"did you mean {nearest}?" if nearest else f"known are {', '.join(names)}"
            found.append(Breach(path=(*path, key), value=fields[key], rule=f"unknown field; {hint}"))
            if nearest:
                kept.setdefault(nearest, fields[key])
        for key, value in kept.items():
            inner = _part_of(part.model_fields[names[key]].annotation)
            if inner is None:
                continue
            if isinstance(value, dict):
                kept[key] = clean(inner, value, (*path, key))
            elif isinstance(value, list):
                kept[key] = [
                    clean(inner, item, (*path, key, index)) if isinstance(item, dict) else item
                    for index, item in enumerate(value)
                ]
        return kept

    return clean(model, data, ()), found


def _part_of(annotation: Any) -> type[Part] | None:
    """Return the part that `annotation` (such as `list[Stage] | None`) is about, None when it is about none."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next(filter(None, map(_part_of, get_args(annotation))), None)


def nearest_name(word: str, candidates: Iterable[str]) -> str | None:
    """Return the one of `candidates` that `word` was probably meant to be, None when none is near."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[matches[0]] if matches else None
