"""The state of the engine: arrays that compiled code writes. Nothing is allocated per item.

`State` and `Constants` are records of arrays for the compiled kernel, so they have more than fifteen fields.

Sizes: S stages, P placements (those of a stage are neighbours), R replicas, K ends of the pipeline (stages without a
successor), N sessions or requests of the schedule, C items that can be in flight (a power of two). Items have numbers
from 1, and are stored at number mod C. -1 means none.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.core.state.spec import DemandUnit, PipelineSpec, StageSpec
from optimizer.model import Routing
from simulations.engine.draws import gamma_constants
from simulations.results.histogram import VLLM_FIRST_TOKEN_S, WORKER_LATENCY_S
from simulations.results.scoring import LOST_AFTER_SLAS
from simulations.scenario.schedule import Schedule, chunk_phases

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Records = NDArray[np.void]

_FINENESS = 1.1


def _finer(bounds_s: set[float]) -> tuple[float, ...]:
    """Return the bounds in ascending order, with more in between: no ratio of two neighbours exceeds `_FINENESS`."""
    made: list[float] = []
    for low_s, high_s in pairwise(sorted(bounds_s)):
        parts = math.ceil(math.log(high_s / low_s) / math.log(_FINENESS))
        made += np.geomspace(low_s, high_s, parts, endpoint=False).tolist()
    return (*made, max(bounds_s))


_LONGEST_S = 10.0
LATENCY_BOUNDS_S = _finer({bound_s for bound_s in (*WORKER_LATENCY_S, *VLLM_FIRST_TOKEN_S) if bound_s <= _LONGEST_S})
"""Upper bounds (s) of the buckets in which replicas count latencies. One more bucket has the latencies above them.

The histograms that servers export are derived from these buckets, up to ten seconds. The buckets are finer than those
histograms because some servers export percentiles.
"""

DEFAULT_QUEUE_LIMIT = 512
CELL_SHIFT = 47
"""The number of low bits of a float64 that `cells_of` ignores: a cell is at most 1/32 of its values wide."""
ITEMS_PER_SLICE = 512
MAX_REFUSALS = 3
"""An item is lost when this many replicas have refused it."""
_FIRST_ITEMS = 4 * ITEMS_PER_SLICE
_FIRST_REPLICAS = 16

NONE = -1
LEAST_LOADED, ROUND_ROBIN, RANDOM, PULL = range(4)
_ROUTINGS = {
    Routing.LEAST_LOADED: LEAST_LOADED,
    Routing.STICKY: LEAST_LOADED,  # for items that belong to no stream
    Routing.ROUND_ROBIN: ROUND_ROBIN,
    Routing.RANDOM: RANDOM,
    Routing.PULL: PULL,
}

SERVING, DRAINING, GONE = range(3)
OPEN, REFUSED_STREAM, SHED_STREAM = range(3)

# Indexes of State.whole
(
    STREAMS,
    ADMITTED,
    OFFERED,
    SERVED_ITEMS,
    FILTERED_ITEMS,
    SHED_ITEMS,
    REFUSED_ITEMS,
    LOST_ITEMS,
    RETRIES,
    SESSIONS_CUT,
    OLDEST,  # the oldest item whose place is not free
    UNSETTLED,  # no item before it waits for its outcome
    NEXT_START,
    NEXT_FIRST,
    NEXT_END,
    CHUNK_HEAD,  # the queue of streams by their next chunk, without first chunks
    CHUNK_TAIL,
    MISSING,  # number of pins that active streams lack
    CANDIDATES,  # number of items in State.candidates
    SETTLED,  # number of items that wait to be counted in the tally
    REPLICAS,
    LATENCY_NS,  # whole nanoseconds, so the sum does not depend on the order of adding
    TRIES,  # number of entries in State.later
    REPEATED,  # items sent again, which have a number but no outcome
    WHOLE,
) = range(25)

# Indexes of State.real
NOW_S, ADMISSIBLE, TOKENS, TOKENS_AT_S, SENDS, REAL = range(6)  # SENDS: how often each item is sent, on average


_STAGE = np.dtype(
    [
        ("routing", np.int64),
        ("pinned", np.int64),  # whether it keeps a stream's items on one replica
        ("memory", np.int64),
        ("first", np.int64),  # index of its first placement
        ("last", np.int64),  # index after its last placement
        ("needs", np.int64),  # how many stages are before it
        ("after", np.int64),  # how many stages follow
        ("end", np.int64),  # its index among the ends, or -1
        ("depth", np.int64),  # hops to it
        ("filters", np.int64),
        ("passes_below", np.uint64),  # an item goes on when its word is below
        ("way_s", np.float64),  # time on the way to it that is the same for all items, hops left out
    ]
)
_PLACEMENT = np.dtype(
    [
        ("owner", np.int64),  # the stage
        ("weight", np.float64),  # capacity as a share of the largest at the stage
        ("batch", np.int64),  # items that start together at most: 1 with continuous batching
        ("concurrency", np.int64),  # batches that a replica serves at once
        ("engines", np.int64),  # of a replica with continuous batching, 0 with dynamic batching
        ("slots", np.int64),  # sessions that it holds, or -1
        ("queue_limit", np.int64),
        ("wait_s", np.float64),
        ("prefill_s", np.float64),
        ("varies", np.int64),
        ("shape_d", np.float64),  # of the gamma distribution: see `draws.gamma_constants`
        ("shape_c", np.float64),
        ("power", np.float64),
    ]
)
_SESSION = np.dtype(
    [("end_s", np.float64), ("first_s", np.float64), ("chunks", np.int64)]
)  # `end_s` is not after the run's end; `first_s` is the time of the first chunk


class Constants(NamedTuple):
    """The values that do not change while the engine runs."""

    numbers: Floats  # patience, chunk (0: requests), hop, duration, whether streams reconnect, overhead
    seed: Counts  # decides what is filtered
    stage: Records  # (S,)
    before: Counts  # (S, S) the stages before each, then -1
    ends_below: Counts  # (S, K) whether an end is reached through it
    placement: Records  # (P,)
    mean_s: Floats  # (P, B) mean service time of each number of items from 0
    start_s: Floats  # (N,) start of each session or request
    session: Records  # (N,); this and the next two are empty for requests
    by_first: Counts  # sessions with chunks, in the order of their first chunk
    by_end: Counts  # sessions in the order of their end
    bounds_s: Floats  # of the ingress's histogram
    cells: Counts  # see `cells_of`


_REPLICA = np.dtype(
    [  # what every batch touches is together, in the first two of three lines of the processor's cache
        ("placement", np.uint32),
        ("phase", np.uint32),
        ("idle", np.int64),  # batch slots
        ("in_service", np.int64),
        ("arrived", np.int64),
        ("started", np.int64),  # batches
        ("drawn", np.uint64),  # the seed of its service times
        ("slow", np.float64),  # factor of its service times
        ("completed", np.int64),
        ("batches", np.float64),  # with continuous batching an item among n others is an n-th of one
        ("busy_s", np.float64),
        ("service_s", np.float64),
        ("latency_sum_s", np.float64),
        ("refused", np.int64),
        ("sessions", np.int64),
        ("turn", np.float64),  # as `_TURN.credit`, for sessions
        ("member_at", np.int64),
        ("handed_over_s", np.float64),
        ("alone_s", np.float64),  # since when a draining one has no sessions
        ("empty_s", np.float64),  # since when it has no items
        ("ended_at_s", np.float64),
        ("refused_sessions", np.int64),
        ("progress", np.float64),  # work done for every item that runs, with continuous batching
        ("progress_at_s", np.float64),  # up to when; later than now while an item is prefilled
        ("running_s", np.float64),  # the integral of the items in service
        ("running_at_s", np.float64),  # up to when
    ]
)
_TURN = np.dtype(
    [
        ("credit", np.float64),  # the credit of a replica in weighted round robin
        ("above", np.uint32),  # the next richer one of equal load
        ("below", np.uint32),
    ]
)
_STREAM = np.dtype(
    [  # what every chunk touches is in one line of the processor's cache: most chunks find it in none
        ("next_s", np.float64),  # time of the next chunk
        ("follower", np.int64),  # the stream that is next in the queue by next chunk
        ("left", np.int64),  # chunks not offered yet
        ("chunks", np.int64),  # as in `_SESSION`
        ("first_s", np.float64),
        ("missing", np.int16),  # how many pins it lacks
        ("status", np.int16),
        ("attempts", np.int32),  # how often it has asked to be admitted since it was last open
        ("give_up_s", np.float64),  # when it stops looking for its first pins
        ("tried_s", np.float64),  # its last attempt
    ]
)
_LATER = np.dtype([("t_s", np.float64), ("what", np.int64)])  # a stream that tries again, or -1 - one to forget
_PIN = np.dtype([("replica", np.int64), ("since_s", np.float64)])
_ITEM = np.dtype(
    [
        ("arrival_s", np.float64),
        ("lost_s", np.float64),  # when it was refused
        ("session", np.int32),
        ("holds", np.int16),  # in how many places it is
        ("settled", np.int8),
        ("reached", np.int8),  # an end
    ]
)
_VISIT = np.dtype([("entered_s", np.float64), ("behind", np.int64)])
_QUEUE = np.dtype([("head", np.int64), ("tail", np.int64), ("n", np.int64), ("armed", np.int64)])
_SLOT = np.dtype(
    [
        ("head", np.int64),
        ("start_s", np.float64),
        ("n", np.int64),
        ("next", np.int32),
        ("replica", np.uint32),
        ("ends_at", np.float64),  # the progress of its replica at which its item ends, with continuous batching
        ("running_s", np.float64),  # its replica's when it started
    ]
)
_DUE = np.dtype(
    [("t_s", np.float64), ("what", np.int64)]
)  # a batch slot whose batch ends, or -1 - queue where a batch stops waiting for items
_RANK = np.dtype([("gain", np.float64), ("n", np.int64)])
_GROUP = np.dtype([("n", np.int64), ("lowest", np.int64)])
_AT_STAGE = np.dtype(
    [
        ("slow", np.float64),
        ("takes", np.float64),  # the share of the items that it serves; it passes the others on at once
        ("idle_head", np.int64),
        ("idle_tail", np.int64),
        ("draws", np.int64),
        ("due_n", np.int64),
    ]
)


class State(NamedTuple):
    """The values that change while the engine runs. The items of a queue are linked by `visit.behind`.

    The replicas of a placement that have equal load form a ring in `turn`, the highest credit first. A ring begins and
    ends at an entry of infinite credit, whose index in `turn` is the flat index of the load in `rank`. The entries of
    the replicas follow after all of these.
    """

    whole: Counts
    real: Floats
    ingress_counts: Counts  # (buckets,)
    stage: Records  # (S,)
    stream: Records  # (N,), none for requests
    later: Records  # (N,) a heap, the soonest first: the streams that are not open and still count as offered
    pin: Records  # (N, S), those of a stream side by side; none where nothing is pinned
    item: Records  # (C,)
    ended_s: Floats  # (K, C)
    visit: Records  # (S, C)
    waits: Counts  # (S, C) for how many branches an item still waits at a join
    out_s: Floats  # (S + 2, C) what leaves each stage, what enters the pipeline, what enters a join
    out_item: Counts
    out_n: Counts  # (S + 2,)
    candidates: Counts  # (S C,) items that may have come to an end
    taken: Counts  # (S,) working space: how much of what leaves each stage a join has
    tried: Counts  # working space: the replicas that refused an item
    tally_arrival_s: Floats
    tally_latency_s: Floats
    tally_outcome: NDArray[np.uint8]
    due: Records  # (S, H) the calendar of each stage, the soonest last
    queue: Records  # of items: S for Pull, S for items that wait for a replica, R of replicas
    replica: Records  # (R,)
    latency_counts: Counts  # (R, buckets)
    slot: Records  # (R · widest,) room for a batch each; idle where n is 0
    group: Records  # (P,)
    members: Counts  # (P, R)
    rank: Records  # (P, levels) the replicas of equal load
    turn: Records  # (P levels + R,)


def constants_of(
    pipeline: PipelineSpec,
    schedule: Schedule,
    *,
    duration_s: float,
    seed: int,
    hop_s: float,
    bounds_s: Floats,
    reconnects: bool = True,
    overhead_s: float = 0.0,
) -> Constants:
    """Return the constants of a pipeline and its load.

    `seed` decides the phases of streams and what is filtered. `hop_s` is the latency of a hop between stages.
    `bounds_s` are the upper bounds of the ingress's latency buckets. `reconnects` says whether refused streams come
    back, `overhead_s` is time of every item outside the stages.

    Raises:
        ValueError: a stage is listed before a stage in its `after`.
    """
    stages = pipeline.stages
    names = [stage.name for stage in stages]
    before = np.full((len(stages), len(stages)), -1, dtype=np.int64)
    depth = np.ones(len(stages), dtype=np.int64)
    for index, stage in enumerate(stages):
        for place, name in enumerate(stage.after):
            at = names.index(name)
            if at >= index:
                raise ValueError(f"stage {stage.name}.after: {name}: must name an earlier stage")
            before[index, place] = at
            depth[index] = max(depth[index], depth[at] + 1)
    follows = [[index for index in range(len(stages)) if at in before[index]] for at in range(len(stages))]
    ends = [at for at in range(len(stages)) if not follows[at]]
    below = np.zeros((len(stages), len(ends)), dtype=np.int64)
    for at in reversed(range(len(stages))):
        if at in ends:
            below[at, ends.index(at)] = 1
        for index in follows[at]:
            below[at] |= below[index]
    placements = [placement.prior for stage in stages for placement in stage.placements]
    limits = [
        DEFAULT_QUEUE_LIMIT if stage.queue_limit is None else stage.queue_limit
        for stage in stages
        for _ in stage.placements
    ]
    batch = np.array([prior.batch_sizes[-1] for prior in placements], dtype=np.int64)
    concurrency = np.array([prior.concurrency for prior in placements], dtype=np.int64)
    capacity = np.array([prior.law_rps(prior.batch_sizes[-1]) for prior in placements])
    running = np.array([prior.continuous for prior in placements])
    sizes = [len(stage.placements) for stage in stages]
    owner = np.repeat(np.arange(len(stages)), sizes)
    largest = np.array([capacity[owner == index].max() for index in range(len(stages))])
    memory = np.array([any(p.prior.session_slots is not None for p in stage.placements) for stage in stages])
    sticky = np.array([stage.routing is Routing.STICKY for stage in stages])
    streams = pipeline.unit is DemandUnit.STREAMS
    chunk_s = pipeline.chunk_s if streams and pipeline.chunk_s is not None else 0.0
    sessions = np.zeros(len(schedule) if chunk_s else 0, dtype=_SESSION)
    if chunk_s:
        sessions["end_s"] = np.minimum(schedule.end_s, duration_s)
        sessions["first_s"] = schedule.start_s + chunk_phases(schedule, chunk_s, seed)
        sessions["chunks"] = np.maximum(np.ceil((sessions["end_s"] - sessions["first_s"]) / chunk_s), 0)
    by_first = np.argsort(sessions["first_s"], kind="stable")
    stage_records = np.zeros(len(stages), dtype=_STAGE)
    stage_records["routing"] = [_ROUTINGS[stage.routing] for stage in stages]
    stage_records["pinned"] = streams & (memory | sticky)
    stage_records["memory"] = memory
    stage_records["last"] = np.cumsum(sizes)
    stage_records["first"] = stage_records["last"] - sizes
    stage_records["needs"] = [len(stage.after) for stage in stages]
    stage_records["after"] = [len(following) for following in follows]
    stage_records["end"] = [ends.index(at) if at in ends else -1 for at in range(len(stages))]
    stage_records["depth"] = depth
    stage_records["filters"] = [
        stage.pass_ratio < 1 and bool(follow) for stage, follow in zip(stages, follows, strict=True)
    ]
    stage_records["passes_below"] = [min(int(stage.pass_ratio * 2.0**64), 2**64 - 1) for stage in stages]
    stage_records["way_s"] = _ways_s(stages, before)
    placement_records = np.zeros(len(placements), dtype=_PLACEMENT)
    placement_records["owner"] = owner
    placement_records["weight"] = capacity / largest[owner]
    placement_records["batch"] = np.where(running, 1, batch)
    placement_records["concurrency"] = np.where(running, concurrency * batch, concurrency)
    placement_records["engines"] = np.where(running, concurrency, 0)
    placement_records["slots"] = [-1 if prior.session_slots is None else prior.session_slots for prior in placements]
    placement_records["queue_limit"] = limits
    placement_records["wait_s"] = [prior.batch_wait_s for prior in placements]
    placement_records["prefill_s"] = [prior.service.prefill_s for prior in placements]
    for record, prior in zip(placement_records, placements, strict=True):
        if prior.service.cv > 0:
            record["varies"] = 1
            record["shape_d"], record["shape_c"], record["power"] = gamma_constants(prior.service.cv)
    return Constants(
        numbers=np.array(
            [LOST_AFTER_SLAS * pipeline.sla.latency_s, chunk_s, hop_s, duration_s, float(reconnects), overhead_s]
        ),
        seed=np.array([seed]),
        stage=stage_records,
        before=before,
        ends_below=below,
        placement=placement_records,
        mean_s=np.array([prior.service.times_s(int(batch.max())) for prior in placements]),
        start_s=np.array(schedule.start_s, dtype=np.float64),  # always float64: another type is compiled again
        session=sessions,
        by_first=by_first[sessions["chunks"][by_first] > 0].astype(np.int64),
        by_end=np.argsort(sessions["end_s"], kind="stable").astype(np.int64),
        bounds_s=bounds_s,
        cells=cells_of(bounds_s),
    )


def _ways_s(stages: Sequence[StageSpec], before: Counts) -> Floats:
    """Return the constant times of the links on the longest way to each stage, its own included, in seconds."""
    ways = np.zeros(len(stages))
    for index, stage in enumerate(stages):
        link = stage.placements[0].prior.link
        sources = [ways[at] for at in before[index] if at >= 0]
        ways[index] = max(sources, default=0.0) + (0.0 if link is None else link.fixed_s)
    return ways


def cells_of(bounds_s: Floats) -> Counts:
    """Return the number of bounds below each cell of a grid, from the cell of the first bound to that of the last.

    The cell of a value is its bits without the last `CELL_SHIFT`, which makes 32 cells for every factor of two. No two
    bounds are in the same cell, so one comparison gives the bucket of a value whose cell is known.

    Raises:
        ValueError: two bounds are in the same cell.
    """
    cells = np.asarray(bounds_s, dtype=np.float64).view(np.int64) >> CELL_SHIFT
    if np.any(np.diff(cells) < 1):
        raise ValueError(f"bounds_s: {bounds_s!r}: must ascend by at least a {2 ** (52 - CELL_SHIFT)}th each")
    return np.searchsorted(cells, np.arange(cells[0], cells[-1] + 1)).astype(np.int64)


def state_of(constants: Constants) -> State:
    """Return the state before the run: no items, no replicas."""
    c = constants
    stages, placements, streams, ends = len(c.stage), len(c.placement), len(c.session), c.ends_below.shape[1]
    items, replicas, widest = _FIRST_ITEMS, _FIRST_REPLICAS, int(c.placement["concurrency"].max())
    levels = int((c.placement["queue_limit"] + c.placement["concurrency"] * c.placement["batch"]).max()) + 2
    whole = np.zeros(WHOLE, dtype=np.int64)
    whole[[OLDEST, UNSETTLED]] = 1
    whole[[CHUNK_HEAD, CHUNK_TAIL]] = NONE
    real = np.zeros(REAL)
    real[ADMISSIBLE] = np.inf
    real[TOKENS] = real[SENDS] = 1.0
    stream = _records(_STREAM, streams, follower=NONE, give_up_s=np.inf)
    if streams:
        stream["left"] = stream["chunks"] = c.session["chunks"]
        stream["next_s"] = stream["first_s"] = c.session["first_s"]
    calendar = 2 * (replicas * (widest + 1) + stages)
    return State(
        whole=whole,
        real=real,
        ingress_counts=np.zeros(len(c.bounds_s) + 1, dtype=np.int64),
        stage=_records(_AT_STAGE, stages, slow=1.0, takes=1.0, idle_head=NONE, idle_tail=NONE),
        stream=stream,
        later=_records(_LATER, streams),
        pin=_records(_PIN, (streams if c.stage["pinned"].any() else 0, stages), replica=NONE),
        item=_records(_ITEM, items, session=NONE),
        ended_s=np.zeros((ends, items)),
        visit=_records(_VISIT, (stages, items), behind=NONE),
        waits=np.zeros((stages, items), dtype=np.int64),
        out_s=np.zeros((stages + 2, items)),
        out_item=np.zeros((stages + 2, items), dtype=np.int64),
        out_n=np.zeros(stages + 2, dtype=np.int64),
        candidates=np.zeros(stages * items, dtype=np.int64),
        taken=np.zeros(stages, dtype=np.int64),
        tried=np.zeros(MAX_REFUSALS, dtype=np.int64),
        tally_arrival_s=np.zeros(ITEMS_PER_SLICE),
        tally_latency_s=np.zeros(ITEMS_PER_SLICE),
        tally_outcome=np.zeros(ITEMS_PER_SLICE, dtype=np.uint8),
        due=_records(_DUE, (stages, calendar)),
        queue=_records(_QUEUE, 2 * stages + replicas, head=NONE, tail=NONE),
        replica=_records(_REPLICA, replicas, **_NEW_REPLICA),
        latency_counts=np.zeros((replicas, len(LATENCY_BOUNDS_S) + 1), dtype=np.int64),
        slot=_slots(0, replicas, widest),
        group=_records(_GROUP, placements),
        members=np.full((placements, replicas), NONE, dtype=np.int64),
        rank=_records(_RANK, (placements, levels)),
        turn=np.concatenate([_rings(placements * levels), _records(_TURN, replicas)]),
    )


_NEW_REPLICA = {
    "phase": GONE, "slow": 1.0, "member_at": NONE, "handed_over_s": np.inf, "alone_s": np.inf, "ended_at_s": np.inf,
}  # fmt: skip


def with_items(state: State) -> State:
    """Return the state with room for twice as many items. It may be called only between slices of time."""
    old, new = len(state.item), 2 * len(state.item)
    numbers = np.arange(state.whole[OLDEST], state.whole[OFFERED] + 1)

    def moved(array: NDArray[Any]) -> NDArray[Any]:
        bigger = np.zeros((*array.shape[:-1], new), dtype=array.dtype)
        bigger[..., numbers % new] = array[..., numbers % old]
        return bigger

    return state._replace(
        item=moved(state.item),
        ended_s=moved(state.ended_s),
        visit=moved(state.visit),
        waits=moved(state.waits),
        out_s=_longer(state.out_s),
        out_item=_longer(state.out_item),
        candidates=_longer(state.candidates),
    )


def with_replicas(state: State) -> State:
    """Return the state with room for twice as many replicas."""
    old = len(state.replica)
    return state._replace(
        replica=np.concatenate([state.replica, _records(_REPLICA, old, **_NEW_REPLICA)]),
        latency_counts=np.concatenate([state.latency_counts, np.zeros_like(state.latency_counts)]),
        slot=np.concatenate([state.slot, _slots(old, 2 * old, len(state.slot) // old)]),
        queue=np.concatenate([state.queue, _records(_QUEUE, old, head=NONE, tail=NONE)]),
        members=_longer(state.members),
        turn=np.concatenate([state.turn, _records(_TURN, old)]),
        due=_longer(state.due),
    )


def _records(kind: np.dtype[np.void], shape: int | tuple[int, ...], **values: float) -> Records:
    """Return records whose fields are 0, except those in `values`."""
    records = np.zeros(shape, dtype=kind)
    for name, value in values.items():
        records[name] = value
    return records


def _slots(first: int, last: int, widest: int) -> Records:
    """Return idle batch slots for the replicas from `first` to before `last`."""
    slots = _records(_SLOT, (last - first) * widest, head=NONE, next=NONE)
    slots["replica"] = np.repeat(np.arange(first, last), widest)
    return slots


def _rings(count: int) -> Records:
    """Return `count` rings without replicas: each has only the entry at which it begins and ends."""
    rings = _records(_TURN, count, credit=np.inf)
    rings["above"] = rings["below"] = np.arange(count)
    return rings


def _longer(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array with its last axis twice as long."""
    return np.concatenate([array, np.zeros_like(array)], axis=-1)
