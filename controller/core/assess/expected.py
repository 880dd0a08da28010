"""The demand that is expected in later hours, beside the demand that is planned for now."""

from collections.abc import Sequence
from math import ceil, floor

from controller.core.assess.demand import DemandState
from controller.core.assess.schedule import highest_floor
from controller.core.state.schedule import DemandFloor


def expected_demands(
    demand: DemandState, floors: Sequence[DemandFloor], held_s: float, now_s: float, step_s: float, steps: int
) -> tuple[float, ...] | None:
    """Return the demand to plan for in each of `steps` periods of `step_s` seconds from now on, in its unit.

    The first is the present one. Later ones follow from the history of the demand, its error added, and from the
    declared `floors`. Where nothing is known of later hours, the present load holds. A demand counts as long before as
    plans look ahead, and `held_s` longer than it lasts. None: there is no demand to compare with.
    """
    planned = demand.demand
    if planned is None:
        return None
    load = demand.stabilized or 0.0
    base = load if demand.forecast is None else demand.forecast  # the load as it is, without what windows hold
    ahead_s = 0.0 if demand.horizon is None else demand.horizon.ahead_s
    record = None if demand.horizon is None else demand.horizon.record
    if record is None and not floors:
        return (planned,) * steps
    # At the bounds of periods, also those that a plan of the last period looks at.
    times = range(1, steps + ceil(ahead_s / step_s) + 1)
    levels = [load, *(load for _ in times)]
    if record is not None and isinstance(demand.observed, float | int):
        for index, change in zip(times, record.changes([index * step_s for index in times]), strict=True):
            levels[index] = load if change is None else max(0.0, base + change.expected + change.error)

    def at(index: int) -> float:
        begin_s, end_s = index * step_s, (index + 1) * step_s
        first = max(0, floor((begin_s - held_s) / step_s))
        known = highest_floor(floors, now_s + begin_s, now_s + end_s + ahead_s) if floors else None
        return max(*levels[first : ceil((end_s + ahead_s) / step_s) + 1], 0.0 if known is None else known.demand)

    return (planned, *(at(index) for index in range(1, steps)))
