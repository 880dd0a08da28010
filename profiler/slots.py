"""Learns how many sessions a replica holds, where its memory is not declared: as many as were held without a refusal.

Pure. While nothing is refused there is no limit. Once sessions are refused, a replica holds the most that its placement
was seen to hold per replica. Refusals while all offered streams are held have another cause and teach nothing.
"""

import math

from optimizer.model import PlacementKey
from profiler.samples import Absence, Quantity, Reading
from profiler.stages import Learned, PipelineInput, PlacementInput, StageInput

MOST_SLOTS = 1_000_000_000
"""No replica holds more sessions; bounds what an absurd reading can teach."""
UNHELD_SHARE = 0.01
"""Offered streams beyond those held, as a share of the latter, from which on streams are being refused now. Below it
the two may differ because they were not counted at the same time. Refusals are those of a whole window, the sessions
are those of now: with fewer streams than slots since, the sessions say nothing about the limit."""


def learned_slots(pipeline: PipelineInput, learned: Learned) -> tuple[dict[PlacementKey, int], dict[PlacementKey, int]]:
    """Return the session slots of a replica by placement, and the most sessions that it was seen to hold.

    Placements with declared memory are in neither, those without a limit only in the second. `learned` has what the
    last call returned.
    """
    slots, most_held = dict[PlacementKey, int](), dict[PlacementKey, int]()
    for stage in pipeline.stages:
        wants = wants_slots(stage, pipeline)
        short = stage.settled and bool(wants)
        for placement in stage.placements:
            if placement.memory_declared:
                continue
            key = (stage.name, placement.name)
            before = learned.session_slots.get(key), learned.sessions_held.get(key)
            known, held = _after(placement, *before, short=short, heard=wants is not False)
            if known is not None:
                slots[key] = known
            if held is not None:
                most_held[key] = held
    return slots, most_held


def _after(
    placement: PlacementInput, slots: int | None, most_held: int | None, *, short: bool, heard: bool
) -> tuple[int | None, int | None]:
    """Return slots and most sessions held of a replica, updated.

    `heard` says that refusals may be for want of a slot, and `short` that settled replicas refuse streams now.

    While replicas start or stop, their mean may be far below what a full one holds, but it is never above.
    """
    held, refused_rps = placement.samples.of(Quantity.SESSIONS), placement.samples.of(Quantity.SESSION_REFUSALS)
    if placement.replicas == 0 or isinstance(held, Absence) or isinstance(refused_rps, Absence):
        return slots, most_held
    refuses = heard and refused_rps > 0
    each = min(MOST_SLOTS, math.floor(held / placement.replicas))
    if refuses:
        each = max(1, each)
    if each > 0 and (most_held is None or each > most_held or (refuses and short)):
        most_held = each
    if refuses or slots is not None:
        slots = most_held
    return slots, most_held


def wants_slots(stage: StageInput, pipeline: PipelineInput) -> bool | None:
    """Return whether `stage` holds fewer streams than are offered to it; None: that is not known.

    It is not known for requests, whose slots are free in between, nor while the demand of a pipeline that shares the
    stage is missing.
    """
    offered = None if pipeline.demand is None else pipeline.demand.sessions
    if stage.shared is not None:
        if stage.shared.other_sessions is None:
            return None
        offered = ((offered or 0.0) + stage.shared.other_sessions) or None
    held = _held(stage)
    return None if offered is None or isinstance(held, Absence) else offered > held * (1 + UNHELD_SHARE)


def _held(stage: StageInput) -> Reading:
    """Return the sessions that the stage holds; absent where a placement with ready replicas does not report them."""
    held = 0.0
    for placement in stage.placements:
        reading = placement.samples.of(Quantity.SESSIONS)
        if not isinstance(reading, Absence):
            held += reading
        elif placement.replicas > 0:
            return reading
    return held
