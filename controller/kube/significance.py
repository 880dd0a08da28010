"""Decides whether a status differs enough from the stored one to be written. Pure functions of two documents."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from controller.core.act.admission import LAPSE_S
from controller.core.messages.reasons import ConditionReason, ConditionType
from controller.kube.gateway import Json
from controller.kube.workloads import seconds

REFRESH_S = 60.0
"""Minimum seconds between two writes of a status in which only observed values changed."""
NEIGHBOURS_S = 1800.0
"""The same where only what was measured beside busy neighbours changed. It moves with every measurement, and a restart
loses little without the last of it: the statuses of thousands of pipelines would be written all the time."""
REDATE_S = 3600.0
"""Age in seconds from which the date of a price or quota is renewed although it is still the same."""
RESCHEDULED_S = 300.0
"""Seconds by which a time that is expected of a backlog must at least change to be written."""
_MOVED = 0.1  # share by which an observed number must change to be written
_EXPECTED = ("deadline", "expectedFinish", "waitsUntil")
_REPLICAS = ("current", "ready", "terminating", "updated", "desired", "recommended")
_NOT_COMPARED = {"explanation", "planned"}
_NEIGHBOURS = "interference"
_NUMBERS = re.compile(r"\d+(\.\d+)?")


def worth_writing(old: Json, new: Json, written_s_ago: float) -> bool:
    """Return whether the status `new` should replace `old`, which was written `written_s_ago` seconds ago.

    A changed decision is written at once. A limit on the load is renewed when half of its time is over. Other changes
    are written `REFRESH_S` or `NEIGHBOURS_S` after the last write at the earliest; numbers must have moved by more than
    a tenth, and expected times by more than `RESCHEDULED_S` and a tenth of the time until then.
    """
    if _decided(old) != _decided(new):
        return True
    if "admissibleUntil" in new and written_s_ago >= LAPSE_S / 2:
        return True
    if written_s_ago >= NEIGHBOURS_S and _moved(_learned(old).get(_NEIGHBOURS), _learned(new).get(_NEIGHBOURS)):
        return True
    return written_s_ago >= REFRESH_S and (
        _followed(new) or _redated(old, new) or _rescheduled(old, new) or _moved(_condensed(old), _condensed(new))
    )


def merge_patch(old: Mapping[str, object], new: Mapping[str, object]) -> Json:
    """Return the JSON merge patch (RFC 7386) that turns `old` into `new`; empty when they are equal."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch(before, value):
                patch[key] = inner
        elif value != before:
            patch[key] = value
    return patch


def _decided(status: Json) -> object:
    """Return the parts whose changes are written at once: replicas, conditions, limits, and what a restart needs."""
    memory = status.get("memory") or {}
    return (
        status.get("observedGeneration"),
        [(c["type"], c["status"], c["reason"], c.get("observedGeneration")) for c in status.get("conditions", [])],
        (status.get("metrics") or {}).get("source"),
        *(status.get(field) for field in ("limitedBy", "admissible", "budgetPerHour", "lastDecision")),
        *(status.get(field) for field in ("limitPerHour", "pipelines", "shortCount", "namespaces", "validSpec")),
        *(status.get(field) for field in ("limit", "zones", "planned", "pricePerHour", "unavailableUntil", "reason")),
        [(status.get("price") or {}).get(field) for field in ("source", "lookup", "changedAt")],
        [(status.get("quota") or {}).get(field) for field in ("code", "limitVcpus", "increaseToVcpus")],
        [
            (
                stage["name"],
                [[p.get(field) for field in ("pool", "variant", *_REPLICAS)] for p in stage.get("placements", [])],
            )
            for stage in status.get("stages", [])
        ],
        [(name, rule.get("floor"), rule.get("fired")) for name, rule in memory.get("rules", [])],
        memory.get("excess_excused_until_s"),
        (memory.get("feedback") or {}).get("floors"),
        memory.get("owned", []),
        "planned" in memory,
        [(name, failure["cause"], failure["outage"]) for name, failure in memory.get("failures", [])],
    )


def _redated(old: Json, new: Json) -> bool:
    """Return whether the price or the quota of a pool was looked up again, and the stored date is old by now."""
    dates = [((old.get(part) or {}).get("asOf"), (new.get(part) or {}).get("asOf")) for part in ("price", "quota")]
    try:
        return any(a is not None and b is not None and seconds(b) - seconds(a) >= REDATE_S for a, b in dates)
    except ValueError:
        return True  # the stored one was edited


def _rescheduled(old: Json, new: Json) -> bool:
    """Return whether a time that is expected of a backlog has changed by much, for how far away it is."""
    before, after = old.get("backlog") or {}, new.get("backlog") or {}
    pairs = [(before[field], after[field]) for field in _EXPECTED if field in before and field in after]
    try:
        now_s = seconds(new["memory"]["explanation"]["time"]) if pairs else 0.0
        return any(
            abs(seconds(a) - seconds(b)) > max(RESCHEDULED_S, _MOVED * (seconds(b) - now_s)) for a, b in pairs if a != b
        )
    except ValueError:
        return True  # the stored one was edited


def _followed(status: Json) -> bool:
    """Return whether the status recommends replicas of workloads that another autoscaler scales."""
    conflict = next((c for c in status.get("conditions", []) if c["type"] == ConditionType.CONFLICT.value), None)
    return (
        conflict is not None
        and conflict["reason"] != ConditionReason.NO_CONFLICT.value
        and any("recommended" in p for stage in status.get("stages", []) for p in stage.get("placements", []))
    )


def _condensed(status: Json) -> Json:
    """Return the status without explanation, plan and what was measured beside neighbours.

    The demand samples are reduced to minimum, maximum and last. A plan that changes no replica is made again from time
    to time, and an earlier one serves as well after a restart.
    """
    memory = {name: value for name, value in (status.get("memory") or {}).items() if name not in _NOT_COMPARED}
    samples = memory.get("samples", [])
    kept = [sample["forecast"] for sample in samples], [sample.get("peak") or sample["forecast"] for sample in samples]
    extremes = [[min(loads), max(loads), loads[-1]] for loads in kept] if samples else []
    learned = {name: value for name, value in _learned(status).items() if name != _NEIGHBOURS}
    return {**status, "memory": {**memory, "samples": extremes, "learned": learned}}


def _learned(status: Json) -> Json:
    return (status.get("memory") or {}).get("learned") or {}


def _moved(old: object, new: object) -> bool:
    """Return whether a number moved by more than a tenth or anything else changed, except numbers within a text."""
    if old == new:  # most of a status: to look at each part would take a millisecond
        return False
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() != new.keys() or any(_moved(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) != len(new) or any(_moved(a, b) for a, b in zip(old, new, strict=True))
    a, b = _number(old), _number(new)
    if a is not None and b is not None:
        return abs(a - b) > _MOVED * max(abs(a), abs(b))
    if isinstance(old, str) and isinstance(new, str):
        return _NUMBERS.sub("#", old) != _NUMBERS.sub("#", new)
    return old != new


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        try:
            return float(Decimal(value))
        except InvalidOperation:
            return None
    return None
