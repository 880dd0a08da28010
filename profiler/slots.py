"""Learns how many sessions a replica holds, where its memory is not declared: as many as were held without a refusal.

Pure. While nothing is refused there is no limit. Once sessions are refused, a replica holds the most that its placement
was seen to hold per replica.
"""

import math

from profiler.samples import Absence, Quantity
from profiler.stages import Learned, PipelineInput, PlacementInput, PlacementKey, StageInput

MOST_SLOTS = 1_000_000_000
"""No replica holds more sessions; bounds what an absurd reading can teach."""
UNHELD_SHARE = 0.01
"""Offered streams beyond those held, as a share of the latter, from which on streams are being refused now. Below it
the two may differ because they were not counted at the same time."""


def learned_slots(pipeline: PipelineInput, learned: Learned) -> tuple[dict[PlacementKey, int], dict[PlacementKey, int]]:
    """Return the session slots of a replica by placement, and the most sessions that it was seen to hold.

    Placements with declared memory are in neither, those without a limit only in the second. `learned` has what the
    last call returned.
    """
    slots, most_held = dict[PlacementKey, int](), dict[PlacementKey, int]()
    for stage in pipeline.stages:
        short = stage.settled and _offered_exceed_held(stage, pipeline)
        for placement in stage.placements:
            if placement.memory_declared:
                continue
            key = (stage.name, placement.pool)
            known, held = _after(placement, learned.session_slots.get(key), learned.sessions_held.get(key), short=short)
            if known is not None:
                slots[key] = known
            if held is not None:
                most_held[key] = held
    return slots, most_held


def _after(
    placement: PlacementInput, slots: int | None, most_held: int | None, *, short: bool
) -> tuple[int | None, int | None]:
    """Return slots and most sessions held of a replica, updated; `short`: settled replicas are refusing streams now.

    While replicas start or stop, their mean may be far below what a full one holds, but it is never above.
    """
    held, refused_rps = placement.samples.of(Quantity.SESSIONS), placement.samples.of(Quantity.SESSION_REFUSALS)
    if placement.replicas == 0 or isinstance(held, Absence) or isinstance(refused_rps, Absence):
        return slots, most_held
    refuses = refused_rps > 0
    each = min(MOST_SLOTS, math.floor(held / placement.replicas))
    if refuses:
        each = max(1, each)
    if each > 0 and (most_held is None or each > most_held or (refuses and short)):
        most_held = each
    if refuses or slots is not None:
        slots = most_held
    return slots, most_held


def _offered_exceed_held(stage: StageInput, pipeline: PipelineInput) -> bool:
    """Whether the stage holds fewer streams than are offered; False for requests, whose slots are free in between.

    Refusals are those of a whole window, the sessions are those of now: with fewer streams than slots since, the
    sessions say nothing about the limit.
    """
    offered = None if pipeline.demand is None else pipeline.demand.sessions
    if stage.shared is not None:
        if stage.shared.other_sessions is None:
            return False
        offered = ((offered or 0.0) + stage.shared.other_sessions) or None
    if offered is None:
        return False
    held = 0.0
    for placement in stage.placements:
        reading = placement.samples.of(Quantity.SESSIONS)
        if placement.replicas > 0 and isinstance(reading, Absence):
            return False
        held += 0.0 if isinstance(reading, Absence) else reading
    return offered > held * (1 + UNHELD_SHARE)
