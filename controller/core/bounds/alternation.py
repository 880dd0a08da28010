"""Alternation: what is added, removed and added again at the same load stays, for longer each time.

Whichever mechanisms undo each other's changes, each change cuts sessions or pays for a start-up, and changes nothing.
"""

from collections.abc import Iterator, Mapping

from controller.core.assess.assessment import Assessment
from controller.core.bounds.steps import ready_beyond
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.carry_over import Turn
from controller.core.state.decision import Hold, HoldReason
from optimizer.model import PlacementKey

ALTERNATE = Mechanism(
    name="alternation",
    level=Level.STEP,
    evidence=Evidence.PLACEMENT,
    does="what was added, removed and added again at the same load is not removed to save, for longer each time",
    planned=False,
)
WITHIN_S = 900.0
"""Changes of a placement follow each other if they are at most so far apart, beyond start-up and scale-down window."""
SAME_LOAD = 0.1
"""Share by which the planned demands of changes may differ so that a change of load is not their reason."""
MOST_TURNS = 2
"""So many changes in a row that undo the one before are allowed: added, removed, added."""
REST_S, LONGEST_REST_S = 1800.0, 86_400.0


def bounds(assessment: Assessment, goal: Mapping[PlacementKey, int], now_s: float) -> Iterator[Bound]:
    """Yield the bounds of the placements that keep ready replicas beyond their `goal`."""
    turns = assessment.state.memory.turns
    ends_s = {key: until_s for key, turn in turns.items() if (until_s := _ends_s(turn)) is not None}
    for key, least in ready_beyond(assessment, goal) if ends_s else ():
        if now_s < (until_s := ends_s.get(key, now_s)):
            hold = Hold(reason=HoldReason.ALTERNATING, stage=key[0], placement=key[1], until_s=until_s)
            yield ALTERNATE.on(key, least=least, hold=hold, since_s=turns[key].at_s, until_s=until_s)


def next_turns(
    assessment: Assessment, changes: Mapping[PlacementKey, int], now_s: float
) -> Mapping[PlacementKey, Turn]:
    """Return the last change of each placement, after `changes` of this cycle: by how many replicas, by placement."""
    demand = assessment.demand.demand
    found = {
        key: turn
        for key, turn in assessment.state.memory.turns.items()
        if key in assessment.current and now_s - _over_s(turn) <= _within_s(assessment, key)
    }
    for key, by in changes.items():
        before = found.pop(key, None)
        if demand is None or key[0] in assessment.spec.borrowed:
            continue
        lowest = demand if before is None else min(demand, before.lowest)
        highest = demand if before is None else max(demand, before.highest)
        same, on = highest - lowest <= SAME_LOAD * highest, before is not None and before.added == (by > 0)
        turns = before.turns + (not on) if before is not None and same else 0
        found[key] = Turn(
            at_s=now_s,
            added=by > 0,
            lowest=lowest if on else demand,
            highest=highest if on else demand,
            turns=turns,
        )
    return found


def _within_s(assessment: Assessment, key: PlacementKey) -> float:
    scaling, startup_s = assessment.spec.scaling, assessment.spec.placements()[key].startup_s
    return WITHIN_S + scaling.down.stabilization_s + startup_s


def _ends_s(turn: Turn) -> float | None:
    """Return until when a placement keeps its replicas, None where nothing says that they would come back."""
    if not turn.added or turn.turns < MOST_TURNS:
        return None
    return turn.at_s + min(LONGEST_REST_S, REST_S * 2.0 ** ((turn.turns - MOST_TURNS) // 2))


def _over_s(turn: Turn) -> float:
    ends_s = _ends_s(turn)
    return turn.at_s if ends_s is None else ends_s
