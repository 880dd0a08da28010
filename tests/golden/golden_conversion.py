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
DROPPED_FIELDS = frozenset({"memoryUse"})
"""Readings of quantities that are no longer read."""
GROUPED_FIELDS = {
    "queries": {"demand_query": "demand", "sla_query": "latency"},
    "replay": {"replayed_latency_s": "latency_s", "target_latency_s": "target_latency_s"},
    "advice": {
        "required_budget_per_hour": "required_budget_per_hour",
        "best_latency_s": "best_latency_s",
    },
}
"""Fields that are now in a value of their own: the field of that value, and their names before and now."""


def converted(value: Any) -> Any:
    """Return recorded JSON with every renamed field and enumeration value under its name of today.

    Fields that no longer exist are left out.
    """
    if isinstance(value, dict):
        for group, names in GROUPED_FIELDS.items():
            if names.keys() < value.keys():  # a proper subset: a group by itself is converted already
                inside = {now: value[before] for before, now in names.items()}
                value = {**{name: inner for name, inner in value.items() if name not in names}, group: inside}
        kept = {name: inner for name, inner in value.items() if name not in DROPPED_FIELDS}
        return {RENAMED_FIELDS.get(name, name): converted(inner) for name, inner in kept.items()}
    if isinstance(value, list):
        return [converted(inner) for inner in value]
    return RENAMED_VALUES.get(value, value) if isinstance(value, str) else value
