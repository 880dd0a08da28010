"""Finds workloads whose replicas another controller sets too. Sluice does not write to these.

An autoscaler that names the workload as its target counts at once; one that follows Sluice's recommendation counts only
in mode Auto, in which Sluice writes too. Any other controller is recognized by its changes:
the replicas differ from those that Sluice wrote. One or two changes may come from a person or a roll-out. More changes,
each within an hour of the last, come from a controller, and writing against it would never end.

Such a truce must not leave less than was needed: replicas that another removed are restored first, at once after the
first changes and ever later after further ones.
"""

from collections.abc import Mapping

from controller.core.state.carry_over import Conflict
from controller.core.state.snapshot import PipelineState, TargetState
from controller.core.state.spec import Mode
from optimizer.model import PlacementKey

ENOUGH = 3
"""Changes by others after which another controller is assumed."""
TRUCE_S = 600.0
"""Time after the last change by others during which nothing is written; then writing is tried again."""
RESTORE_S = 30.0
"""How long after one change more than `ENOUGH` removed replicas are restored; twice as long after each further one."""
FORGET_S = 3600.0
"""Time without a change by others after which earlier ones are forgotten."""


def conflicts(state: PipelineState, now_s: float) -> Mapping[PlacementKey, Conflict]:
    """Return the changes by others to the replicas that Sluice wrote, by placement, up to and with this cycle."""
    changes: dict[PlacementKey, Conflict] = {}
    for key in state.spec.placement_keys():
        conflict = state.memory.conflicts.get(key)
        if conflict is not None and not now_s - FORGET_S <= conflict.changed_at_s <= now_s:  # or a clock was set back
            conflict = None
        target, written = state.target(*key), state.written.get(key)
        if isinstance(target, TargetState) and written is not None and target.desired != written:
            conflict = Conflict(
                changes=1 if conflict is None else conflict.changes + 1,
                changed_at_s=now_s,
                written=written,
                found=target.desired,
            )
        if conflict is not None:
            changes[key] = conflict
    return changes


def conflicting(
    state: PipelineState, changes: Mapping[PlacementKey, Conflict], now_s: float
) -> Mapping[PlacementKey, str | Conflict]:
    """Return the placements not to write to in this cycle, each with its cause: an autoscaler, or changes by others."""
    causes: dict[PlacementKey, str | Conflict] = {}
    autoscalers = {**state.followers, **state.autoscalers} if state.spec.mode is Mode.AUTO else state.autoscalers
    for key in state.spec.placement_keys():
        conflict = changes.get(key)
        if key in autoscalers:
            causes[key] = autoscalers[key]
        elif conflict is not None and _truce(conflict, now_s) and not _restored(state, key, conflict, now_s):
            causes[key] = conflict
    return causes


def _truce(conflict: Conflict, now_s: float) -> bool:
    return conflict.changes >= ENOUGH and now_s < conflict.changed_at_s + TRUCE_S


def _restored(state: PipelineState, key: PlacementKey, conflict: Conflict, now_s: float) -> bool:
    """Whether the replicas of a placement that another controller removed are to be restored in this cycle."""
    waits_s = RESTORE_S * (2.0 ** min(16, conflict.changes - ENOUGH) - 1)
    return state.desired(*key) == conflict.found < conflict.written and now_s >= conflict.changed_at_s + waits_s
