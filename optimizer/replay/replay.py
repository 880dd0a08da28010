"""Simulate the demand of a pipeline on a plan: the items pass the queues of one stage after the other.

Latencies of consecutive stages depend on one another: the items of a batch arrive together at the next stage, and an
item that is late at one stage is late at the next. A composition of the stages' distributions cannot show that. The
result of a replay depends only on its arguments. Its random numbers are hashes of a seed, so that two plans are
compared under the same random numbers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from optimizer.model import Demand, Link, Pipeline, PlacementKey, Routing, Stage, StageName
from optimizer.replay.queues import MASK, ServerGroup, serve, units

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_WORK_NS, _MOST_WORK_NS = 5e6, 25e6
_ITEM_NS, _REPLICA_NS = 90.0, 9.0
"""Computing time per item and stage, and per replica where the least loaded one is searched for. The number of items of
a replay follows from them."""
_PRECISION = 0.015
_DECIDED = 3.0
"""A short replay decides only if its latency is this many half-widths from the SLA. Its half-width comes from few
segments: if one half-width were enough, it would pass plans that miss the SLA three times as often as a long one."""
_FEWEST, _MOST = 5_000, 60_000
_MOST_DROPPED = 60_000
"""The most items that enter where stages drop most of them, so that enough reach the end."""
_MOST_CALLS = 1_000_000
"""The most calls that a stage gets in one replay. Where fewer than `_BLOCK` items would cause more, none is made."""
_SHORT = 1.01
"""Percentiles of replays are below those of runs ten times as long by this factor, because long waits are rare."""
_WARM_UP = 0.1
_WINDOW = 20.0
"""How many times its latency a replay lasts at least. Queues start empty: with thousands of streams, replays of one
latency find p95 12 % too short, and replays of 10 find it 2 % too short."""
_FEWEST_REPLICAS = 8
"""Replicas that each stage keeps where only a part of a large pipeline is replayed. With fewer, the turns of a common
queue would be too uneven."""
_SEGMENTS = 16
_INTERVAL = 1.753
"""Quantile of Student's distribution with 15 degrees of freedom for a two-sided interval of 90 %."""
_APART_S = 1_000.0
"""Items further apart in time than this, and than the drain time, never meet in a queue."""
_BLOCK, _BLOCK_WARM_UP = 480, 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of a replay, in seconds.

    `latency_s` is the end-to-end latency at the SLA's percentile, `mean_s` its mean, over the `items` that arrived
    after the warm-up and were not dropped on the way. `half_width_s` is half the 90 % confidence interval of
    `latency_s`.
    """

    latency_s: float
    mean_s: float
    half_width_s: float
    items: int

    @property
    def error(self) -> float:
        """Return the relative error of `latency_s`."""
        return self.at_most_s / self.latency_s - 1 if self.latency_s > 0 else 0.0

    @property
    def at_most_s(self) -> float:
        """Return the latency with its half-width added, and 1 % for a short replay, in seconds."""
        return (self.latency_s + self.half_width_s) * _SHORT

    def keeps(self, sla_s: float) -> bool:
        """Return whether the latency is surely within the SLA."""
        return self.at_most_s <= sla_s

    def may_keep(self, sla_s: float) -> bool:
        """Return whether the latency is within the SLA, or exceeds it by at most the half-width."""
        return self.latency_s <= sla_s + self.half_width_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entering:
    """The items at the entry, in the order of arrival: time, session, and whether it is after the warm-up.

    The arrays have the shape (items,). The items are `blocks` blocks of equal length, far apart in time.
    """

    arrivals_s: Array
    sessions: Counts
    measured: NDArray[np.bool_]
    blocks: int = 1


def replay(
    pipeline: Pipeline,
    replicas: Mapping[PlacementKey, int],
    batches: Mapping[PlacementKey, int],
    *,
    items: int | None = None,
    decides_s: float | None = None,
    seed: int = 1,
) -> Replayed | None:
    """Return the latency that the pipeline's demand experiences on `replicas` with the batch limits `batches`.

    None where no latency can be measured: a stage has no replica, or its load is at least its capacity, or all items
    are dropped, or each causes thousands of calls. A placement missing in `replicas` has none; one missing in `batches`
    has its largest batch size.

    Requests arrive as a renewal process with the demand's rate and dispersion. Each stream sends items at even
    intervals, from a random phase. `items` is the number of arrivals. By default it is what a few milliseconds of
    computing allow, and more where the half-width is too large. With `decides_s`, a latency in seconds such as the SLA,
    more items are used only where the result is too near to it. Limits of session slots are not simulated.

    After fan-out, the calls of all items load the stage, as if they arrived independently, and the item goes on when
    one of its calls is done: as in the model, the slowest call is not waited for. At a shared stage, the items of the
    other pipelines arrive independently as well.
    """
    groups = [_groups(stage, replicas, batches) for stage in pipeline.stages]
    demand, calls = pipeline.demand, _calls(pipeline)
    for stage, own in zip(pipeline.stages, groups, strict=True):
        rate_rps = demand.entry_rate_rps * calls[stage.name]
        if any(share * rate_rps >= _capacity_rps(stage, tier) for tier, share in _tiers(stage, own)):
            return None
    if _BLOCK * max(calls.values()) > _MOST_CALLS:
        return None
    whole = _Part(pipeline=pipeline, groups=groups, demand=demand, calls=calls)
    if items is not None:
        return _replay(whole, max(items, _SEGMENTS), seed)
    part = whole if decides_s is None else _part(whole, _WINDOW * decides_s)
    count, most = _affordable(part, _WORK_NS), _affordable(part, _MOST_WORK_NS)
    if decides_s is not None:  # a replay of a late plan needs not show how late it is
        count = max(count, min(int(_WINDOW * decides_s * part.demand.entry_rate_rps), most))
    while True:
        answer = _replay(part, count, seed)
        if answer is None or answer.latency_s <= 0:  # too short to differ from 0 at these times
            return answer
        precise_s = _PRECISION * answer.latency_s
        if decides_s is not None:  # the farther from it, the less precision is needed
            precise_s = max(precise_s, abs(answer.latency_s - decides_s) / _DECIDED)
        # Under a high load latencies are correlated over many items, so that more of them are needed.
        wanted = count * min((answer.half_width_s / precise_s) ** 2, 100.0)
        more = int(min(max(wanted, _WINDOW * answer.latency_s * part.demand.entry_rate_rps), most))
        if more < 1.25 * count:
            return answer
        count = more


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The servers of one placement. Their simulated times are multiplied by `factor`.

    `last` says that they take only what the other groups of the stage are uncertain about, where there are others.
    """

    servers: ServerGroup
    factor: float
    last: bool = False

    @property
    def capacity_rps(self) -> float:
        return self.servers.replicas * self.servers.capacity_rps

    def with_replicas(self, replicas: int) -> "_Group":
        return replace(self, servers=replace(self.servers, replicas=replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What is replayed: a pipeline, or a part of a large one with a part of the replicas of each stage.

    `groups` has the server groups of each stage, `demand` what enters. `calls` are those that each stage gets per item
    at the entry, other pipelines' at shared stages and those that fill up its replicas included.
    """

    pipeline: Pipeline
    groups: list[list[_Group]]
    demand: Demand
    calls: Mapping[StageName, float]


def _part(whole: _Part, window_s: float) -> _Part:
    """Return a part of the pipeline, so small that a short replay takes `window_s`; the whole one where it is small.

    One of n parts has an n-th of the items that enter and of the replicas, rounded up. Stages get so many more calls
    that their replicas are as busy as in the whole.
    """
    if any(stage.cascade is not None for stage in whole.pipeline.stages):
        return whole  # replicas that are rounded up would not be as busy in both of its models
    fewest = min(each.servers.replicas for own in whole.groups for each in own)
    needed = window_s * whole.demand.entry_rate_rps
    parts = min(math.ceil(needed / _affordable(whole, _WORK_NS)), fewest // _FEWEST_REPLICAS)
    if parts <= 1:
        return whole
    groups, calls = [], {}
    for stage, own in zip(whole.pipeline.stages, whole.groups, strict=True):
        groups.append([each.with_replicas(-(-each.servers.replicas // parts)) for each in own])
        before, after = (sum(each.capacity_rps for each in some) for some in (own, groups[-1]))
        calls[stage.name] = whole.calls[stage.name] * after * parts / before
    demand, sessions = whole.demand, whole.demand.sessions
    demand = replace(
        demand,
        entry_rate_rps=demand.entry_rate_rps / parts,
        sessions=None if sessions is None else sessions / parts,
    )
    return _Part(pipeline=whole.pipeline, groups=groups, demand=demand, calls=calls)


def _replay(part: _Part, count: int, seed: int) -> Replayed | None:
    pipeline = part.pipeline
    entering = _arrivals(part.demand, count, _drain_s(part.groups), seed)
    # One number per item: an item that passes a rare branch passes every more frequent one, so that at a join the
    # branch with the least pass ratio decides.
    draw = _units(len(entering.arrivals_s), seed, 3)
    reach = _reach(pipeline)
    done = _through(part, entering, draw, seed, reach=reach)
    seen = entering.measured & (draw < _leaving(pipeline, reach))
    if not seen.any():
        return None
    times = (done - entering.arrivals_s)[seen]
    return Replayed(
        latency_s=_percentile(times, pipeline.sla.percentile),
        mean_s=float(times.mean()),
        half_width_s=_half_width(times, pipeline.sla.percentile),
        items=len(times),
    )


def _groups(stage: Stage, replicas: Mapping[PlacementKey, int], batches: Mapping[PlacementKey, int]) -> list[_Group]:
    """Return the server groups of a stage.

    A replica with a saturation rate below the capacity of its service law is simulated with longer service times, so
    that its utilisation is the same as in the model. The factor converts times back to those of the law, and applies
    the stage's `latency_factor`.
    """
    found = []
    for placement in stage.placements:
        count = replicas.get((stage.name, placement.name), 0)
        if count <= 0:
            continue
        batch = batches.get((stage.name, placement.name), placement.batch_sizes[-1])
        capacity = placement.law_rps(batch)
        slower = 1.0 if placement.saturation_rps is None else max(1.0, capacity / placement.saturation_rps)
        group = ServerGroup(
            replicas=count,
            service=placement.service.scaled(slower),
            concurrency=placement.concurrency,
            batch=batch,
            batch_wait_s=placement.batch_wait_s * slower,
            continuous=placement.continuous,
        )
        last = stage.cascade is not None and placement.name == stage.cascade.to
        found.append(_Group(servers=group, factor=stage.latency_factor / slower, last=last))
    return found


def _tiers(stage: Stage, groups: list[_Group]) -> list[tuple[list[_Group], float]]:
    """Return the groups that serve one after the other, each tier with the share of the items that it gets.

    There is one tier, unless the stage has a cascade and replicas of its first placements.
    """
    first = [each for each in groups if not each.last]
    if stage.cascade is None or not first:
        return [(groups, 1.0)]
    return [(first, 1.0), ([each for each in groups if each.last], stage.cascade.share)]


def _capacity_rps(stage: Stage, groups: list[_Group]) -> float:
    """Return the items per second that reach `groups` of a stage and that these complete; 0 without a group."""
    link = _link(stage)
    on_links = math.inf if link is None else sum(each.servers.replicas for each in groups) * link.capacity_rps
    return min(sum(each.capacity_rps for each in groups), on_links)


def _last(pipeline: Pipeline) -> list[Stage]:
    sources = {name for stage in pipeline.stages for name in stage.after}
    return [stage for stage in pipeline.stages if stage.name not in sources]


def _calls(pipeline: Pipeline) -> Mapping[StageName, float]:
    """Return the calls that each stage gets per item at the entry, those of other pipelines at shared stages included.

    Infinite where a shared stage has load of other pipelines while this one has none.
    """
    calls = dict(pipeline.visit_ratios)
    rate_rps = pipeline.demand.entry_rate_rps
    for stage in pipeline.stages:
        if stage.sharing is not None and stage.sharing.other_rps > 0:
            calls[stage.name] += stage.sharing.other_rps / rate_rps if rate_rps > 0 else math.inf
    return calls


def _reach(pipeline: Pipeline) -> Mapping[StageName, float]:
    """Return the share of the items at the entry that reach each stage, once or more often: at most 1.

    Fan-out does not bring back items that an earlier stage has dropped: behind pass ratios of 0.5 and 3, half of the
    items make 3 calls each.
    """
    reach: dict[StageName, float] = {}
    for stage in pipeline.stages:
        reach[stage.name] = min([1.0, pipeline.visit_ratios[stage.name], *(reach[name] for name in stage.after)])
    return reach


def _leaving(pipeline: Pipeline, reach: Mapping[StageName, float]) -> float:
    """Return the share of the items at the entry that reach all last stages."""
    return min(reach[stage.name] for stage in _last(pipeline))


def _affordable(part: _Part, work_ns: float) -> int:
    """Return the number of items that enter: what `work_ns` of computing allows, more where few reach the end.

    It is less where fan-out would cause too many calls.
    """
    cost, calls, pipeline = 0.0, part.calls, part.pipeline
    for stage, own in zip(pipeline.stages, part.groups, strict=True):
        replicas = sum(each.servers.replicas for each in own)
        searched = _REPLICA_NS * replicas if stage.routing is Routing.LEAST_LOADED else 0.0
        cost += calls[stage.name] * (_ITEM_NS + searched)
    count = min(max(work_ns / cost, _FEWEST), _MOST)
    count = min(max(count, _FEWEST / _leaving(pipeline, _reach(pipeline))), max(count, _MOST_DROPPED))
    return int(min(count, _MOST_CALLS / max(calls.values())))


def _drain_s(groups: list[list[_Group]]) -> float:
    """Return a time, in seconds, after which all items of a block of arrivals have left: 100 batches at each stage."""
    return sum(
        100
        * max(
            servers.batch / servers.service.rate_rps(servers.batch) + servers.batch_wait_s
            for servers in (each.servers for each in own)
        )
        for own in groups
    )


def _arrivals(demand: Demand, count: int, drain_s: float, seed: int) -> _Entering:
    """Return about `count` items that arrive at the demand's rate, as requests or from its streams."""
    rate = max(demand.entry_rate_rps, 1 / max(_APART_S, drain_s))
    streams = 0 if demand.sessions is None else math.ceil(demand.sessions)
    if streams == 0 or streams > count // 2:
        # With so many streams the replay ends within one interval, in which their items arrive nearly at random.
        cv2 = demand.arrival_cv2 if streams == 0 else 1.0
        gaps = _gaps(count, cv2, seed)
        # Scaled to exactly the demand's rate: a random count would be most of the difference between two replays.
        times = np.cumsum(gaps * (1 / (rate * gaps.mean())))
        turn = np.arange(count, dtype=np.int64)
        owner = turn if streams == 0 else turn % streams
        return _Entering(arrivals_s=times, sessions=owner, measured=turn >= _WARM_UP * count)
    interval_s = streams / rate
    rounds = max(3, math.ceil(_BLOCK / streams))
    warm_up = max(1, math.ceil(_BLOCK_WARM_UP / streams))
    blocks = max(1, count // (streams * rounds))
    # Phases differ from block to block, so that a replay averages over them, too.
    phases = np.sort(_units(blocks * streams, seed, 1).reshape(blocks, 1, streams), axis=2)
    round_ = np.arange(rounds).reshape(1, rounds, 1)
    starts = np.arange(blocks).reshape(blocks, 1, 1) * (rounds * interval_s + drain_s)
    times = (starts + (round_ + phases) * interval_s).ravel()
    sessions = np.broadcast_to(np.arange(streams), (blocks, rounds, streams)).ravel().astype(np.int64)
    measured = np.broadcast_to(round_ >= warm_up, (blocks, rounds, streams)).ravel()
    return _Entering(arrivals_s=times, sessions=sessions, measured=measured, blocks=blocks)


def _gaps(count: int, cv2: float, seed: int) -> Array:
    """Return times between arrivals with mean 1 and squared coefficient of variation `cv2`.

    They are exponential (cv2 = 1), hyperexponential (cv2 > 1), or a constant plus an exponential (cv2 < 1).
    """
    gaps = -np.log1p(-_units(count, seed, 1))
    if cv2 > 1:
        often = (1 + math.sqrt((cv2 - 1) / (cv2 + 1))) / 2
        return np.asarray(gaps * np.where(_units(count, seed, 2) < often, 0.5 / often, 0.5 / (1 - often)))
    deviation = math.sqrt(cv2)
    return 1 - deviation + deviation * gaps


def _through(
    part: _Part,
    entering: _Entering,
    draw: Array,
    seed: int,
    *,
    reach: Mapping[StageName, float],
) -> Array:
    """Return the time at which each item has left all last stages, NaN if it was dropped before.

    `draw` (items,) is a random number of each item; it reaches the stages whose `reach` is greater.
    """
    arrivals, sessions, pipeline, calls = entering.arrivals_s, entering.sessions, part.pipeline, part.calls
    turn = {name: k for k, name in enumerate(sorted(stage.name for stage in pipeline.stages))}
    left: dict[StageName, Array] = {}
    for stage, own in zip(pipeline.stages, part.groups, strict=True):
        at = arrivals
        for k, name in enumerate(stage.after):
            at = left[name] if k == 0 else np.maximum(at, left[name])
        share = reach[stage.name]
        present = np.nonzero(draw < share)[0]
        order = present[np.argsort(at[present], kind="stable")] if stage.after else present
        came, users, kept = at[order], sessions[order], np.arange(len(order))
        further = round((calls[stage.name] / share - 1) * len(order))
        if further > 0:
            block = order // (len(arrivals) // entering.blocks)
            came, users, kept = _with_calls(came, users, block, further, _seed(seed, 1024 + turn[stage.name]))
        went = _served(stage, came, users, own, _seed(seed, 16 + turn[stage.name]))
        after = np.full(len(arrivals), np.nan)
        after[order] = went[kept]
        left[stage.name] = after
    ends = [left[stage.name] for stage in _last(pipeline)]
    return np.max(ends, axis=0) if len(ends) > 1 else ends[0]


def _link(stage: Stage) -> Link | None:
    """Return the link to the replicas of a stage; all of its placements have the same one."""
    return stage.placements[0].link


def _served(stage: Stage, came: Array, users: Counts, groups: list[_Group], seed: int) -> Array:
    """Return when each item leaves the stage, after one tier of it or, of a cascade, after both."""
    went = came
    for number, (tier, share) in enumerate(_tiers(stage, groups)):
        if number == 0:
            went = _by(tier, stage, came, users, seed)
            continue
        uncertain = np.nonzero(_units(len(came), seed, 7) < share)[0]
        order = uncertain[np.argsort(went[uncertain], kind="stable")]
        if len(order):
            went[order] = _by(tier, stage, went[order], users[order], _seed(seed, 8))
    return went


def _by(groups: list[_Group], stage: Stage, came: Array, users: Counts, seed: int) -> Array:
    """Return when each item leaves `groups` of a stage: over the link of a replica, if there is one, then a replica."""
    link, servers = _link(stage), [each.servers for each in groups]
    if link is None:
        went = serve(came, users, groups=servers, routing=stage.routing, seed=seed)
    else:
        links = [ServerGroup(replicas=each.replicas, service=link.law) for each in servers]
        there = came.copy()
        takes = np.nonzero(_units(len(came), seed, 9) < link.share)[0] if link.share < 1 else np.arange(len(came))
        if len(takes):
            by_links = serve(came[takes], users[takes], groups=links, routing=stage.routing.of_links, seed=seed)
            there[takes] = by_links + link.fixed_s
        order = np.argsort(there, kind="stable")
        went = np.empty(len(came))
        went[order] = serve(there[order], users[order], groups=servers, routing=stage.routing, seed=seed)
    factor = sum(each.capacity_rps * each.factor for each in groups) / sum(each.capacity_rps for each in groups)
    return went if factor == 1 else came + (went - came) * factor


def _with_calls(came: Array, users: Counts, block: Counts, further: int, seed: int) -> tuple[Array, Counts, Counts]:
    """Return arrival times and sessions, by time, of one call of each item and of `further` calls among them.

    `came`, `users` and `block` are times, sessions and blocks of the items, by time. The further calls arrive at random
    times within the blocks. The third value has the positions of the items' own calls.
    """
    first, last = np.full(block.max() + 1, np.inf), np.full(block.max() + 1, -np.inf)
    np.minimum.at(first, block, came)
    np.maximum.at(last, block, came)
    like = (_units(further, seed, 1) * len(came)).astype(np.int64)
    from_s = first[block[like]]
    times = np.concatenate([came, from_s + _units(further, seed, 2) * (last[block[like]] - from_s)])
    order = np.argsort(times, kind="stable")
    positions = np.empty(len(order), dtype=np.int64)
    positions[order] = np.arange(len(order))
    return times[order], np.concatenate([users, users[like]])[order], positions[: len(came)]


def _percentile(times: Array, percentile: float) -> float:
    rank = min(len(times) - 1, math.ceil(percentile / 100 * len(times)) - 1)
    return float(np.partition(times, rank)[rank])


def _half_width(times: Array, percentile: float) -> float:
    """Return half the 90 % confidence interval of the percentile, from its values in the segments of the replay.

    It is infinite with fewer times than segments.
    """
    size = len(times) // _SEGMENTS
    if size == 0:
        return math.inf
    parts = np.sort(times[: size * _SEGMENTS].reshape(_SEGMENTS, size), axis=1)
    own = parts[:, min(size - 1, math.ceil(percentile / 100 * size) - 1)]
    return float(_INTERVAL * own.std(ddof=1) / math.sqrt(_SEGMENTS))


def _seed(seed: int, stream: int) -> int:
    """Return the seed of an independent stream of random numbers."""
    return (seed * 0xD1342543DE82EF95 + (stream + 1) * 0x2545F4914F6CDD1D) & MASK


def _units(count: int, seed: int, stream: int) -> Array:
    """Return `count` random numbers in [0, 1)."""
    return units(np.arange(1, count + 1, dtype=np.uint64), _seed(seed, stream))
