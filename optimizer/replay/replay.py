"""A plan put to the test: its demand simulated through its queues, stage by stage, and a target that holds.

The latencies of stages that follow one another depend on one another, which no composition of marginals sees: batches
arrive together, and what is late here is late there. The replay sees it. It is a function of its arguments: its random
numbers are hashes of a seed, so that two plans are compared under the same luck.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from optimizer.model import Composition, Demand, Pipeline, PoolName, Routing, Stage, StageName
from optimizer.replay.queues import ServerGroup, serve_mixed

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Placed = tuple[StageName, PoolName]
P = TypeVar("P")

ROUNDS = 5
MARGIN = 0.985
"""A tightened target aims this much below the SLA, so that it is reached in one round more often than not."""

_WORK_NS, _MOST_WORK_NS = 3e6, 25e6
_ITEM_NS, _REPLICA_NS = 90.0, 9.0
"""What an item costs in a stage, and what a replica adds where the least loaded is looked for: sets how many items."""
_PRECISION = 0.02
_DECIDED = 4.0
"""Half-widths from what it is to decide that a short replay must be. It begins empty and its width is told by few
segments, so that one alone keeps plans that miss the SLA by a tenth three times as often as a long replay; four, no
more often."""
_FEWEST, _MOST = 2_000, 60_000
_MOST_DROPPED = 60_000
"""Where stages drop most items, more enter, so that enough come out."""
_LONGEST_TRACE = 200_000
_WARM_UP = 0.1
_SEGMENTS = 16
_INTERVAL = 1.753
"""Of Student's distribution with 15 degrees of freedom: nine of ten."""
_APART_S = 1_000.0
"""Items further apart than this, and than what is left of them takes, never meet."""
_BLOCK, _BLOCK_WARM_UP = 480, 160
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay saw, in seconds.

    `latency_s` is from the entry to the last stage at the SLA's percentile, over the `items` that were not dropped on
    the way and came after the warm-up; nine of ten replays of another luck differ by no more than `half_width_s`.
    """

    latency_s: float
    mean_s: float
    half_width_s: float
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entering:
    """Items at the entry, ascending: when, of which session, and whether after the warm-up; shape (items,) each."""

    arrivals_s: Array
    sessions: Counts
    measured: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified(Generic[P]):
    """A plan, how it was asked for, and what its replay said.

    The plan is the best for `target_s` under `composition`, as far as the search proves: that is what a proof means
    after tightening, and not that no cheaper plan would pass a replay. `held` says that the replay kept the SLA.
    """

    plan: P
    target_s: float
    composition: Composition
    replayed_s: float | None
    replays: int
    held: bool


def replay(
    pipeline: Pipeline,
    replicas: Mapping[Placed, int],
    batches: Mapping[Placed, int],
    *,
    items: int | None = None,
    arrivals_s: Array | None = None,
    decides_s: float | None = None,
    seed: int = 1,
) -> Replayed | None:
    """Return what the pipeline's demand experiences on `replicas` with the batch limits `batches`.

    None where there is nothing to see: a stage has no replica or as much load as it has capacity, or all items are
    dropped. `replicas` default to 0, `batches` to the placement's largest. `arrivals_s` is a trace of arrivals at the
    entry, ascending, of which the first 200,000 are taken; without one the arrivals are made: requests by a renewal
    process of the demand's rate and dispersion, the items of streams at even intervals from random phases. `items` is
    how many to make; by default as many as a few milliseconds allow, more where they say little: with `decides_s` only
    where that latency is within what they leave open. The limits of session slots are not replayed.
    """
    groups = [_groups(stage, replicas, batches) for stage in pipeline.stages]
    demand, visits = pipeline.demand, pipeline.visit_ratios
    for stage, own in zip(pipeline.stages, groups, strict=True):
        capacity = sum(group.replicas * group.capacity_rps for group, _ in own)
        if not own or demand.entry_rate_rps * visits[stage.name] >= capacity:
            return None
    if arrivals_s is not None:
        arrivals = np.ascontiguousarray(arrivals_s[:_LONGEST_TRACE], dtype=np.float64)
        sessions = np.arange(len(arrivals), dtype=np.int64)
        if demand.sessions is not None:
            sessions %= max(1, math.ceil(demand.sessions))
        entering = _Entering(
            arrivals_s=arrivals, sessions=sessions, measured=np.arange(len(arrivals)) >= _WARM_UP * len(arrivals)
        )
        return _replay(pipeline, groups, entering, seed)
    drain_s = _drain_s(groups)
    if items is not None:
        return _replay(pipeline, groups, _arrivals(demand, max(items, _SEGMENTS), drain_s, seed), seed)
    count = _affordable(pipeline, groups, _WORK_NS)
    answer = _replay(pipeline, groups, _arrivals(demand, count, drain_s, seed), seed)
    if answer is None or answer.latency_s <= 0:  # too short for the times at which it happens
        return answer
    precise_s = _PRECISION * answer.latency_s
    if decides_s is not None:  # the farther from it, the less need be known
        precise_s = max(precise_s, abs(answer.latency_s - decides_s) / _DECIDED)
    # Under a high load times depend on one another for long: then it takes more of them to say as much.
    wanted = count * min((answer.half_width_s / precise_s) ** 2, 100.0)
    more = int(min(wanted, _affordable(pipeline, groups, _MOST_WORK_NS)))
    if more < 1.25 * count:
        return answer
    return _replay(pipeline, groups, _arrivals(demand, more, drain_s, seed), seed)


def _replay(
    pipeline: Pipeline, groups: list[list[tuple[ServerGroup, float]]], entering: "_Entering", seed: int
) -> Replayed | None:
    # An item that passes a rare branch passes every more frequent one: at a join the scarcest branch decides.
    luck = _units(len(entering.arrivals_s), seed, 3)
    done = _through(pipeline, groups, entering, luck, seed)
    seen = entering.measured & (luck < _leaving(pipeline))
    if not seen.any():
        return None
    times = (done - entering.arrivals_s)[seen]
    return Replayed(
        latency_s=_percentile(times, pipeline.sla.percentile),
        mean_s=float(times.mean()),
        half_width_s=_half_width(times, pipeline.sla.percentile),
        items=len(times),
    )


def tighter_target_s(target_s: float, sla_s: float, replayed_s: float) -> float:
    """Return the latency to plan for next, when the plan for `target_s` took `replayed_s` > `sla_s` in its replay."""
    return target_s * MARGIN * sla_s / replayed_s


def verified(
    plan_for: Callable[[float, Composition], P | None], replayed_s: Callable[[P], float | None], sla_s: float
) -> Verified[P] | None:
    """Return a plan whose replay keeps the SLA, or the one that comes closest; None if there is no plan at all.

    `plan_for` returns the best plan for a latency target and a composition, or None; `replayed_s` the latency of a
    plan's replay, or None where that says nothing, which counts as not kept. Plans by `Composition.RSS`, then up to
    five times for a tighter target, at last by `Composition.SUM`. The target is never loosened: a composition that is
    right on average gives little away, and chasing the luck of one replay would.
    """
    target_s, composition, replays = sla_s, Composition.RSS, 0
    best: Verified[P] | None = None
    for attempt in range(ROUNDS + 2):
        if attempt == ROUNDS + 1:
            target_s, composition = sla_s, Composition.SUM
        plan = plan_for(target_s, composition)
        if plan is None:
            if best is None or composition is Composition.SUM:
                break
            target_s, composition = sla_s, Composition.SUM
            plan = plan_for(target_s, composition)
            if plan is None:
                break
        took = best.replayed_s if best is not None and best.plan == plan else replayed_s(plan)
        replays += 1
        held = took is not None and took <= sla_s
        if held or best is None or _less(took, best.replayed_s):
            best = Verified(
                plan=plan,
                target_s=target_s,
                composition=composition,
                replayed_s=took,
                replays=replays,
                held=held,
            )
        if held or composition is Composition.SUM:
            break
        target_s = MARGIN * target_s if took is None else tighter_target_s(target_s, sla_s, took)
    if best is None:
        return None
    return Verified(
        plan=best.plan,
        target_s=best.target_s,
        composition=best.composition,
        replayed_s=best.replayed_s,
        replays=replays,
        held=best.held,
    )


def _less(one: float | None, other: float | None) -> bool:
    return one is not None and (other is None or one < other)


def _groups(
    stage: Stage, replicas: Mapping[Placed, int], batches: Mapping[Placed, int]
) -> list[tuple[ServerGroup, float]]:
    """Return the groups that serve a stage, and what the simulated time in each is multiplied by.

    A replica that was never seen to carry what its law promises is simulated slower, so that it is as loaded as the
    model takes it to be, and its times are given back in the law's measure.
    """
    found = []
    for placement in stage.placements:
        count = replicas.get((stage.name, placement.pool), 0)
        if count <= 0:
            continue
        batch = batches.get((stage.name, placement.pool), placement.batch_sizes[-1])
        capacity = placement.concurrency * batch / placement.service.mean_s(batch)
        slower = 1.0 if placement.saturation_rps is None else max(1.0, capacity / placement.saturation_rps)
        law = placement.service.scaled(slower)
        group = ServerGroup(
            replicas=count,
            concurrency=placement.concurrency,
            batch=batch,
            batch_wait_s=placement.batch_wait_s * slower,
            fixed_s=law.fixed_s,
            per_item_s=law.per_item_s,
            cv=law.cv,
        )
        found.append((group, stage.latency_factor / slower))
    return found


def _last(pipeline: Pipeline) -> list[Stage]:
    sources = {name for stage in pipeline.stages for name in stage.after}
    return [stage for stage in pipeline.stages if stage.name not in sources]


def _leaving(pipeline: Pipeline) -> float:
    """Return the share of the items that come to the end."""
    return min(pipeline.visit_ratios[stage.name] for stage in _last(pipeline))


def _affordable(pipeline: Pipeline, groups: list[list[tuple[ServerGroup, float]]], work_ns: float) -> int:
    """Return how many items may enter: as many as `work_ns` allows, and so many that enough come out."""
    cost = 0.0
    for stage, own in zip(pipeline.stages, groups, strict=True):
        replicas = sum(group.replicas for group, _ in own)
        searched = _REPLICA_NS * replicas if stage.routing is Routing.LEAST_LOADED else 0.0
        cost += pipeline.visit_ratios[stage.name] * (_ITEM_NS + searched)
    count = min(max(work_ns / cost, _FEWEST), _MOST)
    return int(min(max(count, _FEWEST / _leaving(pipeline)), max(count, _MOST_DROPPED)))


def _drain_s(groups: list[list[tuple[ServerGroup, float]]]) -> float:
    """Return a time after which what one block of arrivals left behind is gone."""
    return sum(
        100 * max(group.fixed_s + group.batch * group.per_item_s + group.batch_wait_s for group, _ in own)
        for own in groups
    )


def _arrivals(demand: Demand, count: int, drain_s: float, seed: int) -> _Entering:
    """Return about `count` items as the demand would send them."""
    rate = max(demand.entry_rate_rps, 1 / max(_APART_S, drain_s))
    streams = 0 if demand.sessions is None else math.ceil(demand.sessions)
    if streams == 0 or streams > count // 2:
        # So many streams that the replay ends within one interval: locally their items come as at random.
        cv2 = demand.arrival_cv2 if streams == 0 else 1.0
        gaps = _gaps(count, cv2, seed)
        # At exactly the rate asked for: the luck of the count would be most of what two replays differ by.
        times = np.cumsum(gaps * (1 / (rate * gaps.mean())))
        turn = np.arange(count, dtype=np.int64)
        return _Entering(arrivals_s=times, sessions=turn, measured=turn >= _WARM_UP * count)
    interval_s = streams / rate
    rounds = max(3, math.ceil(_BLOCK / streams))
    warm_up = max(1, math.ceil(_BLOCK_WARM_UP / streams))
    blocks = max(1, count // (streams * rounds))
    # Phases differ from block to block: a replay is over the luck of the phases, too.
    phases = np.sort(_units(blocks * streams, seed, 1).reshape(blocks, 1, streams), axis=2)
    round_ = np.arange(rounds).reshape(1, rounds, 1)
    starts = np.arange(blocks).reshape(blocks, 1, 1) * (rounds * interval_s + drain_s)
    times = (starts + (round_ + phases) * interval_s).ravel()
    sessions = np.broadcast_to(np.arange(streams), (blocks, rounds, streams)).ravel().astype(np.int64)
    measured = np.broadcast_to(round_ >= warm_up, (blocks, rounds, streams)).ravel()
    return _Entering(arrivals_s=times, sessions=sessions, measured=measured)


def _gaps(count: int, cv2: float, seed: int) -> Array:
    """Return times between arrivals of mean 1: exponential, hyperexponential (cv2 > 1), or an exponential after a
    constant (cv2 < 1)."""
    gaps = -np.log1p(-_units(count, seed, 1))
    if cv2 > 1:
        often = (1 + math.sqrt((cv2 - 1) / (cv2 + 1))) / 2
        return np.asarray(gaps * np.where(_units(count, seed, 2) < often, 0.5 / often, 0.5 / (1 - often)))
    deviation = math.sqrt(cv2)
    return 1 - deviation + deviation * gaps


def _through(
    pipeline: Pipeline,
    groups: list[list[tuple[ServerGroup, float]]],
    entering: _Entering,
    luck: Array,
    seed: int,
) -> Array:
    """Return when each item has left the last stages, as far as it came."""
    arrivals, sessions = entering.arrivals_s, entering.sessions
    turn = {name: k for k, name in enumerate(sorted(stage.name for stage in pipeline.stages))}
    left: dict[StageName, Array] = {}
    for stage, own in zip(pipeline.stages, groups, strict=True):
        at = arrivals
        for k, name in enumerate(stage.after):
            at = left[name] if k == 0 else np.maximum(at, left[name])
        present = np.nonzero(luck < pipeline.visit_ratios[stage.name])[0]
        order = present[np.argsort(at[present], kind="stable")] if stage.after else present
        came = at[order]
        went = serve_mixed(
            came,
            sessions[order],
            groups=[group for group, _ in own],
            routing=stage.routing,
            seed=_seed(seed, 16 + turn[stage.name]),
        )
        capacity = [group.replicas * group.capacity_rps for group, _ in own]
        factor = sum(c * f for c, (_, f) in zip(capacity, own, strict=True)) / sum(capacity)
        if factor != 1:
            went = came + (went - came) * factor
        after = np.full(len(arrivals), np.nan)
        after[order] = went
        left[stage.name] = after
    ends = [left[stage.name] for stage in _last(pipeline)]
    return np.max(ends, axis=0) if len(ends) > 1 else ends[0]


def _percentile(times: Array, percentile: float) -> float:
    rank = min(len(times) - 1, math.ceil(percentile / 100 * len(times)) - 1)
    return float(np.partition(times, rank)[rank])


def _half_width(times: Array, percentile: float) -> float:
    """Return half the interval that holds the percentile nine times of ten, from what it was in parts of the replay."""
    size = len(times) // _SEGMENTS
    if size == 0:
        return math.inf
    parts = np.sort(times[: size * _SEGMENTS].reshape(_SEGMENTS, size), axis=1)
    own = parts[:, min(size - 1, math.ceil(percentile / 100 * size) - 1)]
    return float(_INTERVAL * own.std(ddof=1) / math.sqrt(_SEGMENTS))


def _seed(seed: int, stream: int) -> int:
    """Return the seed of an independent stream of random numbers."""
    return (seed * 0xD1342543DE82EF95 + (stream + 1) * 0x2545F4914F6CDD1D) & _MASK


def _units(count: int, seed: int, stream: int) -> Array:
    """Return `count` numbers in [0, 1), by splitmix64 (Steele, Lea and Flood 2014)."""
    z = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN + np.uint64(_seed(seed, stream))
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    z ^= z >> np.uint64(31)
    return np.asarray((z >> np.uint64(11)).astype(np.float64) * 2.0**-53)
