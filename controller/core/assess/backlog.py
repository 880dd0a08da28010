"""The pace of work that can wait: from the items left, the deadline and what the ready replicas do.

The pace takes the place of a demand: `planning_demand` is not used for a pipeline with a backlog.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.core.assess.demand import DemandState, Horizon
from controller.core.messages import details
from controller.core.state.carry_over import MetricsLoss, PipelineMemory
from controller.core.state.spec import BacklogSpec
from optimizer.latency.stage import carried_rps
from optimizer.model import Pipeline, PlacementKey
from profiler.samples import Absence, AbsenceReason, Reading

RESERVE = 0.1
"""The share of the time from the start of a backlog to its deadline that its pace leaves unused, for replicas that
fail, are late, or give their capacity to live pipelines."""
LEAST_S = 10.0
"""The least time that a pace is computed for: after the deadline, the work goes on as fast as caps allow."""
MOST_ITEMS = 1e15
"""More items than this are no number of items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a backlog must be done. Times are in seconds since the epoch, rates in items per second at the entry.

    `left` is the number of items left. `begun_s` is when the backlog was last empty, None where it was never observed.
    `due_s` is its deadline, None where that is not known, and while an empty backlog has none. `rate` is the pace to
    plan for, None: no pace is known, and no replica is planned. `required` is the even pace that meets the deadline,
    `most` what the spec allows.

    `work` is what a schedule is made for, None where nothing is to be scheduled.
    """

    left: Reading
    begun_s: float | None
    due_s: float | None
    rate: float | None
    required: float | None = None
    most: float = 0.0
    work: "TimedWork | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWork:
    """`items` to do in `time_s` seconds, the reserve left out; the ready replicas do `ready_rps` items per second.

    `waiting` says that the last cycle has decided to wait.
    """

    items: float
    time_s: float
    ready_rps: float
    waiting: bool


def items_left(reading: Reading) -> Reading:
    """Return `reading` if it can be a number of items, else an absence: what is no number is not an empty backlog."""
    if isinstance(reading, float | int) and not 0 <= reading <= MOST_ITEMS:
        return Absence(reason=AbsenceReason.NOT_A_NUMBER, detail=details.invalid_demand(reading))
    return reading


def begun_s(left: Reading, memory: PipelineMemory, now_s: float) -> float | None:
    """Return when a backlog was last empty: now while it is, and at its first observation."""
    if isinstance(left, Absence):
        return memory.begun_s
    before_s = memory.begun_s
    return now_s if before_s is None or left == 0 else min(now_s, before_s)


def pace_of(
    spec: BacklogSpec,
    reading: Reading,
    memory: PipelineMemory,
    *,
    ready_rps: float,
    most_rps: float,
    startup_s: float,
    now_s: float,
) -> Pace:
    """Return the pace of a backlog with `reading` items left.

    `ready_rps` is what the ready replicas do, `most_rps` what as many as the spec allows would do. A replica that is
    started now is ready after `startup_s` seconds. Without a reading, the last pace holds. Where that was to wait, what
    was last left counts: waiting for an answer would cost the deadline.
    """
    left = items_left(reading)
    since_s = begun_s(left, memory, now_s)
    due_s = spec.deadline_s if since_s is None else spec.due_s(since_s)
    items = left if isinstance(left, float | int) else None if memory.demand else memory.items_left
    if items is None or since_s is None or due_s is None:
        return Pace(left=left, begun_s=since_s, due_s=due_s, rate=memory.demand, required=memory.demand)
    if items == 0:
        return Pace(left=left, begun_s=since_s, due_s=spec.deadline_s, rate=0.0, required=0.0)
    time_s = usable_s(since_s, due_s, now_s)
    rate = min(most_rps, required_rps(items, time_s, ready_rps=ready_rps, startup_s=startup_s))
    waiting = memory.demand == 0 and bool(memory.items_left)
    work = TimedWork(items=items, time_s=time_s, ready_rps=ready_rps, waiting=waiting)
    return Pace(left=left, begun_s=since_s, due_s=due_s, rate=rate, required=rate, most=most_rps, work=work)


def items_remembered(pace: Pace | None, memory: PipelineMemory) -> float | None:
    """Return the last known number of items left."""
    if pace is None:
        return None
    return memory.items_left if isinstance(pace.left, Absence) else float(pace.left)


def usable_s(since_s: float, due_s: float, now_s: float) -> float:
    """Return the time (s) to do the items left in: that to the deadline less the reserve, of which half may be used."""
    time_left_s = due_s - now_s
    reserve_s = min(RESERVE * max(0.0, due_s - since_s), time_left_s / 2)
    return max(LEAST_S, time_left_s - reserve_s)


def required_rps(left: float, time_s: float, *, ready_rps: float, startup_s: float) -> float:
    """Return the items per second with which `left` items are done in `time_s`.

    What the ready replicas cannot do in this time is for replicas that have to start first.
    """
    missing = left - ready_rps * time_s
    if missing <= 0:
        return left / time_s
    return ready_rps + missing / max(LEAST_S, time_s - startup_s)


def capacity_rps(
    pipeline: Pipeline, replicas: Mapping[PlacementKey, int], batches: Mapping[PlacementKey, int]
) -> float:
    """Return the items per second at the entry that busy `replicas` do: those of the scarcest stage.

    `batches` has the batch limits in force, by placement; without one it is the largest.
    """
    return min(
        sum(
            replicas.get((stage.name, own.name), 0)
            * carried_rps(stage, own, batches.get((stage.name, own.name), own.batch_sizes[-1]))
            for own in stage.placements
        )
        / pipeline.visit_ratios[stage.name]
        for stage in pipeline.stages
    )


def paced_demand(
    pace: Pace, idle_after_s: float | None, memory: PipelineMemory, ahead: Horizon, now_s: float
) -> DemandState:
    """Return the demand to plan for at `pace`, in items per second. A pace is not stabilized: it follows the deadline.

    A backlog that has been empty for `idle_after_s` seconds is idle. One that was never observed is idle too: it starts
    nothing. What is known of an idle one when its query is not answered is that it was empty.
    """
    empty, before_s = pace.rate == 0, memory.idle_since_s
    idle_since_s = None if not empty else now_s if before_s is None else min(now_s, before_s)
    waited = idle_since_s is not None and idle_after_s is not None and now_s - idle_since_s >= idle_after_s
    return DemandState(
        observed=pace.left if isinstance(pace.left, Absence) or pace.rate is None else pace.rate,
        stabilized=pace.rate,
        samples=(),
        loss=loss_of(pace, memory, now_s),
        idle_since_s=idle_since_s,
        idle=waited or pace.rate is None,
        begun_s=pace.begun_s,
        horizon=ahead,
    )


def loss_of(pace: Pace, memory: PipelineMemory, now_s: float) -> MetricsLoss | None:
    """Return the loss of the number of items, None while it is known. A pace does not grow while it is missing."""
    if not isinstance(pace.left, Absence):
        return None
    return memory.metrics_lost or MetricsLoss(since_s=now_s, demand=memory.demand, growth_per_minute=0.0)
