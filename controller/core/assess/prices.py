"""Changes of the prices of pools, which are a reason of their own for moving replicas."""

from collections.abc import Mapping
from dataclasses import replace

from controller.core.state.carry_over import PriceMemory
from controller.core.state.snapshot import PoolState
from optimizer.model import PoolName

RECENT_S = 600.0
"""How long after a change of a price the replicas that it moves may take: new ones start before old ones stop."""
EXCUSED_S = 3600.0
"""For so long a price that rose does not count against what runs: a reading may be wrong, and a spot price falls."""
_RAMP = 1.02
"""By this factor per cycle the price that counts against what runs rises after that, so that replicas go in steps."""
_SAME = 1e-9
"""Relative difference below which two prices are the same."""


def next_price(pool: PoolState, now_s: float) -> PriceMemory:
    """Return what to remember of the price of `pool`: the present one, and the one before its last change."""
    before, per_hour = pool.priced, pool.spec.price_per_hour
    if before is None:
        return PriceMemory(per_hour=per_hour)
    if abs(per_hour - before.per_hour) > _SAME * max(per_hour, before.per_hour):
        before = replace(
            before,
            per_hour=per_hour,
            before_per_hour=before.per_hour,
            changed_at_s=now_s,
            counted_per_hour=before.counted,
        )
    if per_hour <= before.counted * (1 + _SAME):
        return replace(before, counted_per_hour=None, risen_at_s=None)
    risen_at_s = now_s if before.risen_at_s is None else min(now_s, before.risen_at_s)
    counted = before.counted
    if now_s - risen_at_s >= EXCUSED_S:
        counted = min(per_hour, _RAMP * counted if counted > 0 else per_hour)
    return replace(before, counted_per_hour=counted, risen_at_s=risen_at_s)


def recent_changes(pools: Mapping[PoolName, PoolState], now_s: float) -> Mapping[PoolName, float]:
    """Return by how much the price of each pool rose (in USD per hour; negative: fell), where it changed lately."""
    prices = {name: next_price(pool, now_s) for name, pool in pools.items()}
    return {
        name: price.per_hour - price.before_per_hour
        for name, price in prices.items()
        if price.before_per_hour is not None
        and price.changed_at_s is not None
        and now_s - price.changed_at_s <= RECENT_S
    }
