"""Why replicas change: the bound that the change obeys, else what has changed since the last plan."""

from collections.abc import Collection, Mapping, Sequence

from controller.core.assess.assessment import Assessment
from controller.core.bounds.outages import OUTAGE, PATIENT_TRIAL, TRIAL
from controller.core.state.bound import Bound, Level
from controller.core.state.decision import ChangeReason
from optimizer.model import PlacementKey, PoolName, pool_of


def reasons_of(
    assessment: Assessment,
    after: Mapping[PlacementKey, int],
    planned: Mapping[PlacementKey, int],
    bounds: Sequence[Bound],
    repriced: Mapping[PoolName, float],
) -> Mapping[PlacementKey, ChangeReason]:
    """Return the reason of every placement that has other replicas `after` the cycle than now.

    It is that of the strongest of `bounds` which the current replicas break and the change obeys. `planned` are the
    replicas without floors. `repriced` has the pools whose price changed lately, and by how much.
    """
    reasons: dict[PlacementKey, ChangeReason] = {}
    for stage in assessment.spec.stages:
        keys = [(stage.name, placement.name) for placement in stage.placements]
        if all(assessment.current[key] == after[key] for key in keys):
            continue
        own = sorted((bound for bound in bounds if bound.stage == stage.name), key=lambda bound: bound.level)
        for key in keys:
            if assessment.current[key] != after[key]:
                found = _by_bound(assessment, key, after, planned, own)
                reasons[key] = found or _by_change(assessment, key, keys, after, planned, repriced)
    return reasons


def _by_bound(
    assessment: Assessment,
    key: PlacementKey,
    after: Mapping[PlacementKey, int],
    planned: Mapping[PlacementKey, int],
    bounds: Sequence[Bound],
) -> ChangeReason | None:
    """Return the reason of the bound that makes the change, None where none does; `bounds` are those of the stage."""
    now, then = assessment.current[key], after[key]
    own = [bound for bound in bounds if bound.key == key or (bound.key is None and bound.most == 0)]
    if then > now and then > planned[key] and (floor := _floor(bounds)) is not None:
        return floor.change
    for bound in own:
        # A least count below what the plan has anyway is not why replicas are added.
        up = bound.least is not None and bound.least > now and bound.least >= planned[key]
        if bound.change is not None and (up if then > now else bound.most is not None and now > bound.most):
            return bound.change
    if then < now:
        return None
    displaced = _displaced(assessment, key, after, planned, bounds)
    if displaced is not None:
        return displaced.change
    return next((bound.change for bound in own if bound.mechanism in (TRIAL, PATIENT_TRIAL)), None)


def _floor(bounds: Sequence[Bound]) -> Bound | None:
    """Return the highest floor of a stage, of equal ones the first; `bounds` are those of the stage."""
    floors = [bound for bound in bounds if bound.key is None and bound.level is Level.FLOOR]
    return max(floors, key=lambda bound: bound.least or 0, default=None)


def _displaced(
    assessment: Assessment,
    key: PlacementKey,
    after: Mapping[PlacementKey, int],
    planned: Mapping[PlacementKey, int],
    bounds: Sequence[Bound],
) -> Bound | None:
    """Return the bound that moves replicas of other placements of the stage to `key`, None where none does.

    One does if replicas are removed where it is, and added elsewhere in their place. An outage that removes none does
    so too, unless the demand rises or the addition is beyond the plan.
    """
    uppers = [bound for bound in bounds if bound.key not in (None, key) and bound.change and bound.most is not None]
    lost = [
        bound
        for bound in uppers
        if bound.key and after[bound.key] < assessment.current[bound.key] and _lowers(bound, assessment)
    ]
    if lost or _rises(assessment) or after[key] > planned[key]:
        return next(iter(lost), None)
    if any(bound.key == key and bound.mechanism is OUTAGE for bound in bounds):
        return None
    return next((bound for bound in bounds if bound.mechanism is OUTAGE), None)


def _lowers(bound: Bound, assessment: Assessment) -> bool:
    if bound.mechanism is OUTAGE:
        return True
    return bound.key is not None and bound.most is not None and assessment.current[bound.key] > bound.most


def _rises(assessment: Assessment) -> bool:
    before = assessment.state.memory.planned_demand
    return before is None or (assessment.demand.demand or 0.0) > before


def _by_change(
    assessment: Assessment,
    key: PlacementKey,
    keys: Collection[PlacementKey],
    after: Mapping[PlacementKey, int],
    planned: Mapping[PlacementKey, int],
    repriced: Mapping[PoolName, float],
) -> ChangeReason:
    """Return what has changed since the last plan: the demand, a price, or what is known of the latency."""
    more, before = after[key] > assessment.current[key], assessment.state.memory.planned_demand
    cheaper = ChangeReason.PRICE if _follows_price(repriced, key, keys, more=more) else ChangeReason.COST
    if not more:
        falls = before is not None and (assessment.demand.demand or 0.0) < before
        return ChangeReason.DEMAND if falls else cheaper
    if assessment.demand_missing and not assessment.demand.from_floor:
        return ChangeReason.METRICS_LOST
    if _rises(assessment):
        return ChangeReason.DEMAND
    moves = any(planned[other] < assessment.current[other] for other in keys)
    return cheaper if moves else ChangeReason.SLA


def _follows_price(
    repriced: Mapping[PoolName, float], key: PlacementKey, keys: Collection[PlacementKey], *, more: bool
) -> bool:
    """Whether a change of the placement `key` follows a price of its stage, whose placements are `keys`.

    It has more replicas when its own price fell or that of another rose, and fewer when it is the other way round. The
    steps of a move follow each other, so not every one of them changes both pools.
    """
    rose = {other: repriced.get(pool_of(other[1]), 0.0) * (1 if other == key else -1) for other in keys}
    return any(change < 0 if more else change > 0 for change in rose.values())
