"""Learns how many packets per second a replica takes before its receive path loses some. Pure.

It is a limit like session slots: while nothing is lost there is none. Once packets are lost, a replica takes the most
that its placement was seen to take per replica. A loss at a lower load, such as that of a burst, does not lower the
limit: more replicas would lower the load of each, and the limit with it, without end. An hour after the last loss the
limit begins to rise, because buffers and nodes change, and plans that keep to it never test it.
"""

import math
from collections.abc import Mapping

from optimizer.model import PlacementKey
from profiler.samples import Absence, DeviceQuantity, Quantity
from profiler.stages import Learned, PipelineInput, PlacementInput, ReceiveLimit, StageInput

LOSING = 0.99
"""Receive pressure from which on packets are lost."""
KEPT_S = 3600.0
"""How long a limit stays after the last loss."""
RISING_TIME_CONSTANT_S = 4 * 3600.0
"""Time constant with which it rises after `KEPT_S`, as corrections fade."""
MOST_PACKETS_PER_S = 1e9
"""No replica takes more; bounds what an absurd reading can teach."""
MOST_PACKETS_PER_ITEM = 1e6
_SMOOTHING = 0.3
_MIN_ITEMS = 30.0


def learned_receive_limits(
    pipeline: PipelineInput, learned: Learned, *, now_s: float
) -> Mapping[PlacementKey, ReceiveLimit]:
    """Return what is known of the packets of each placement's replicas; `learned` has what the last call returned."""
    found: dict[PlacementKey, ReceiveLimit] = {}
    for stage in pipeline.stages:
        for placement in stage.placements:
            key = (stage.name, placement.name)
            limit = _after(placement, stage, learned.receive_limits.get(key), now_s)
            if limit is not None:
                found[key] = limit
    return found


def limit_rps(limit: ReceiveLimit | None, now_s: float) -> float | None:
    """Return the items per second that a replica can receive, None while there is no limit."""
    if limit is None or limit.lost_at_s is None:
        return None
    since_s = max(0.0, now_s - limit.lost_at_s - KEPT_S)
    # Beyond e⁵⁰ times the limit there is none, whatever the service time.
    return limit.packets_per_s / limit.packets_per_item * math.exp(min(50.0, since_s / RISING_TIME_CONSTANT_S))


def _after(
    placement: PlacementInput, stage: StageInput, before: ReceiveLimit | None, now_s: float
) -> ReceiveLimit | None:
    packets = placement.samples.of_devices(DeviceQuantity.RX_PACKETS_RPS)
    items, pressure = placement.samples.of(Quantity.ARRIVAL_RATE), placement.samples.of(Quantity.RX_QUEUE_PRESSURE)
    if isinstance(packets, Absence) or isinstance(items, Absence) or isinstance(pressure, Absence):
        return before
    if placement.replicas == 0 or packets <= 0 or items * stage.window_s < _MIN_ITEMS:
        return before
    ratio = min(MOST_PACKETS_PER_ITEM, packets / items)
    taken = 0.0 if before is None else before.packets_per_s
    if pressure < LOSING:
        each = ratio if before is None else before.packets_per_item + _SMOOTHING * (ratio - before.packets_per_item)
        return ReceiveLimit(
            packets_per_s=min(MOST_PACKETS_PER_S, max(taken, packets / placement.replicas)),
            packets_per_item=each,
            lost_at_s=None if before is None else before.lost_at_s,
        )
    if not stage.settled:
        return before
    # Lost packets are among those received, so what reached the server counts, at the ratio without losses.
    each = ratio if before is None else before.packets_per_item
    delivered = min(packets, items * each) / placement.replicas
    return ReceiveLimit(
        packets_per_s=min(MOST_PACKETS_PER_S, max(taken, delivered)), packets_per_item=each, lost_at_s=now_s
    )
