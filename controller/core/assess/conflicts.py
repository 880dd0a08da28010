"""Workloads whose replicas somebody else sets too: found, told, and not fought over.

An object that says so (an autoscaler with the workload as its target) counts at once. Where there is none, it shows in
what happens: replicas that were written, and are others when they are read next. Once or twice is a person or a
roll-out; more often within an hour is a controller, and writing against it would go on for ever.
"""

from collections.abc import Mapping

from controller.core.state.carry_over import Conflict
from controller.core.state.snapshot import PipelineState, TargetState
from controller.core.state.spec import PlacementKey

ENOUGH = 3
"""Changes by others that make a contest."""
TRUCE_S = 600.0
"""For so long after the last change by others nothing is written; then once more it is tried."""
FORGET_S = 3600.0
"""After so long without one, changes by others are forgotten."""


def conflicts(state: PipelineState, now_s: float) -> Mapping[PlacementKey, Conflict]:
    """Return the changes that others have made to what was written, this cycle's included."""
    found: dict[PlacementKey, Conflict] = {}
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
            found[key] = conflict
    return found


def conflicting(
    state: PipelineState, changes: Mapping[PlacementKey, Conflict], now_s: float
) -> Mapping[PlacementKey, str]:
    """Return the placements that are not written to now because others set their replicas, and who or how it shows."""
    found: dict[PlacementKey, str] = {}
    for key in state.spec.placement_keys():
        conflict = changes.get(key)
        if key in state.autoscalers:
            found[key] = f"{state.autoscalers[key]} sets its replicas too"
        elif conflict is not None and conflict.changes >= ENOUGH and now_s < conflict.changed_at_s + TRUCE_S:
            found[key] = (
                f"somebody else sets its replicas too: {conflict.found} were found "
                f"after {conflict.written} had been written, {conflict.changes} times by now"
            )
    return found
