"""JSON merge patches (RFC 7396), as in `set` of scenario files: apply one, and undo it. Pure."""

from collections.abc import Mapping
from typing import Any


def merged(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return `document` with `patch` applied: mappings are merged, null removes, anything else replaces."""
    result = dict(document)
    for field, value in patch.items():
        if value is None:
            result.pop(field, None)
        elif isinstance(value, Mapping):
            before = result.get(field)
            result[field] = merged(before if isinstance(before, Mapping) else {}, value)
        else:
            result[field] = value
    return result


def undo(patch: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that undoes `patch`; `before` is the document as it was before `patch`."""
    return {
        field: undo(value, before[field])
        if isinstance(value, Mapping) and isinstance(before.get(field), Mapping)
        else before.get(field)
        for field, value in patch.items()
    }
