"""Records written under earlier names, converted to the names of today."""

from typing import Any

RENAMED_FIELDS = {
    "contests": "conflicts",
    "question": "pipeline",
    "rivals": "autoscalers",
    "rung": "tier",
    "strays": "unaccounted",
    "work_limit": "search_effort",
}
RENAMED_VALUES = {"SlaMissed": "SLAMissed", "SlaUnreachable": "SLAUnreachable"}
GROUPED_FIELDS = {"queries": {"demand_query": "demand", "sla_query": "latency"}}
"""Fields of one value that are now in a value of their own: its field, and their names before and now."""


def converted(value: Any) -> Any:
    """Return recorded JSON with every renamed field and enumeration value under its name of today."""
    if isinstance(value, dict):
        for group, names in GROUPED_FIELDS.items():
            if names.keys() <= value.keys():
                inside = {now: value[before] for before, now in names.items()}
                value = {**{name: inner for name, inner in value.items() if name not in names}, group: inside}
        return {RENAMED_FIELDS.get(name, name): converted(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [converted(inner) for inner in value]
    return RENAMED_VALUES.get(value, value) if isinstance(value, str) else value
