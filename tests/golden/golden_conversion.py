"""Records written under earlier names, converted to the names of today."""

from typing import Any

RENAMED_FIELDS = {
    "contests": "conflicts",
    "rivals": "autoscalers",
    "rung": "tier",
    "strays": "unaccounted",
    "work_limit": "search_effort",
}
RENAMED_VALUES: dict[str, str] = {}
DROPPED_FIELDS = frozenset({"memoryUse"})
"""Readings of quantities that are no longer read."""


def converted(value: Any) -> Any:
    """Return recorded JSON with every renamed field and enumeration value under its name of today.

    Fields that no longer exist are left out.
    """
    if isinstance(value, dict):
        kept = {name: inner for name, inner in value.items() if name not in DROPPED_FIELDS}
        return {RENAMED_FIELDS.get(name, name): converted(inner) for name, inner in kept.items()}
    if isinstance(value, list):
        return [converted(inner) for inner in value]
    return RENAMED_VALUES.get(value, value) if isinstance(value, str) else value
