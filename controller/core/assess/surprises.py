"""Rises of the load that came too fast: how often they cost the SLA lately, and what room that asks for. Pure.

The room for growth (`profiler.forecast.growth`) covers nine of ten rises within the time that a replica takes to
start. Where bursts leave queues, the tenth costs far more time than that, and rises too rare for nine of ten may cost
the SLA for a third of the time. How much they cost is measured, so the room follows from it: the more of the last
minutes was missed, the rarer the rises that count, and the longer a miss took, the longer the time within which a load
may rise: the replicas for it did not catch up sooner. The room stays within the highest load of these minutes, and goes
when they are over.

Only misses that begin with a load beyond the plan count. A slow stage, a full pool or a wrong query are no reason to
expect more load.
"""

from collections.abc import Sequence
from dataclasses import replace

from controller.core.state.carry_over import DemandSample, Surprise
from controller.core.state.spec import PipelineSpec
from profiler.forecast import GROWTH_SHARE

LASTING_S = 600.0
"""Misses count for this long: bursts are minutes apart."""
LEAST_S = 60.0
"""The least time of which a share is missed, where the load was observed for less."""
LAG_S = 30.0
"""How much later than the load the latency may show: a window, a scrape and a cycle."""
MOST = 16
"""So many misses are kept, the last ones: more in ten minutes are one in a row."""


def surprises(
    before: Sequence[Surprise],
    earlier: Sequence[DemandSample],
    now: tuple[float, float],
    *,
    late: bool,
    ahead_s: float,
) -> tuple[Surprise, ...]:
    """Return the misses of the SLA of the last minutes that a load beyond the plan has begun, oldest first.

    Args:
        before: what the last cycle returned.
        earlier: the demand and the forecasts until then, oldest first.
        now: the time (s) and the load that is observed.
        late: whether the last known latency was above the SLA.
        ahead_s: how long before a load the replicas for it are ordered, in seconds.
    """
    now_s, load = now
    kept = [each for each in before if now_s - LASTING_S < each.until_s and each.since_s <= now_s]
    if not late:
        return tuple(kept)
    last_s = earlier[-1].t_s if earlier else now_s
    if kept and kept[-1].until_s >= last_s:
        kept[-1] = replace(kept[-1], until_s=now_s)
    elif _beyond_plan(earlier, now_s, load, ahead_s):
        kept.append(Surprise(since_s=last_s, until_s=now_s))
    return tuple(kept[-MOST:])


def _beyond_plan(earlier: Sequence[DemandSample], now_s: float, load: float, ahead_s: float) -> bool:
    """Return whether the load is, or was until shortly before, above what was planned for it `ahead_s` earlier."""
    since_s = now_s - ahead_s - LAG_S
    loads = [(sample.t_s, sample.observed) for sample in earlier if sample.t_s >= since_s]
    return any(each is not None and _beyond(earlier, t_s - ahead_s, each) for t_s, each in (*loads, (now_s, load)))


def _beyond(earlier: Sequence[DemandSample], ordered_s: float, load: float) -> bool:
    """Return whether `load` is above what was planned at `ordered_s`; not where nothing was yet."""
    before = [sample for sample in earlier if sample.t_s <= ordered_s]
    return bool(before) and load > before[-1].planned


def missed_share(found: Sequence[Surprise], begun_s: float, now_s: float) -> float:
    """Return the share (0–1) of the last `LASTING_S`, or of the time since `begun_s`, that the `found` misses took."""
    since_s = now_s - LASTING_S
    missed_s = sum(max(0.0, min(each.until_s, now_s) - max(each.since_s, since_s)) for each in found)
    return missed_s / max(LEAST_S, min(LASTING_S, now_s - begun_s))


def growth_share(spec: PipelineSpec, missed: float) -> float:
    """Return the share of the past rises that the room for growth covers, where `missed` of the time was missed.

    As long as that is less than the SLA's percentile allows, it is `GROWTH_SHARE`. Beyond, as much rarer rises count as
    more was missed.
    """
    allowed = spec.sla.late_share
    return GROWTH_SHARE if missed <= allowed else 1 - (1 - GROWTH_SHARE) * allowed / missed


def rise_s(spec: PipelineSpec, found: Sequence[Surprise], missed: float, ahead_s: float) -> float:
    """Return the time (s) within which the load may rise, where `missed` of the time was missed, in `found`.

    As long as that is less than the SLA's percentile allows, it is `ahead_s`. Beyond, it is how long the longest of the
    misses took, where that is longer: so long it was until the replicas for a rise were there and their queues gone.
    """
    if missed <= spec.sla.late_share:
        return ahead_s
    return max(ahead_s, *(each.until_s - each.since_s for each in found))
