"""The compiled kernel of the simulation.

It advances stage by stage in slices of time. A full queue refuses items and does not block earlier stages, so a stage
can be simulated to the end of a slice before the next one; items in flight are carried over. Within a stage time passes
from event to event: an arrival, the end of a batch, the end of a batch's wait for more items. An event at the instant
of an arrival comes first. Nothing depends on where slices end.
"""

import numpy as np

from simulations.engine import state as at
from simulations.engine.borrowed import borrowing, woven
from simulations.engine.draws import LONGEST_DELAY_S, gamma, mix, reconnect_delay_s, uniform, verdict
from simulations.engine.state import CELL_SHIFT, LATENCY_BOUNDS_S, Constants, Counts, Floats, Records, State, cells_of
from simulations.results.scoring import FILTERED, LOST, REFUSED, SERVED, SHED, TallyArrays, observe

_BOUNDS_S = np.array(LATENCY_BOUNDS_S)
_CELLS = cells_of(_BOUNDS_S)
_FULL, _NONE_READY = -1, -2
_INF = np.inf

NOW_S, ADMISSIBLE, TOKENS, TOKENS_AT_S, SENDS = at.NOW_S, at.ADMISSIBLE, at.TOKENS, at.TOKENS_AT_S, at.SENDS


@woven
def _place(item: int, mask: int) -> int:
    """Return the index at which an item is stored: unsigned, so that no check for negative indexes is compiled."""
    return int(np.uint32(item & mask))


# -- the order in which replicas of a placement take turns


@woven
def _enlist(s: State, placement: int, rank: int, replica: int, credit: float, weight: float) -> None:
    """Add a replica to the ring of those whose load is `rank`, which is sorted by credit, the highest first."""
    equals, own = s.rank[placement, rank], s.turn[np.uint32(s.rank.size + replica)]
    own.credit = credit - equals.gain * weight
    above = s.turn[_ring(s, placement, rank)].above
    while s.turn[above].credit < own.credit:
        above = s.turn[above].above
    own.above = above
    own.below = s.turn[above].below
    s.turn[above].below = s.rank.size + replica
    s.turn[own.below].above = s.rank.size + replica
    equals.n += 1
    s.group[placement].lowest = min(s.group[placement].lowest, rank)


@woven
def _delist(s: State, placement: int, rank: int, replica: int, weight: float) -> float:
    """Remove a replica from the ring of those whose load is `rank`; return its credit."""
    equals, own = s.rank[placement, rank], s.turn[np.uint32(s.rank.size + replica)]
    s.turn[own.above].below = own.below
    s.turn[own.below].above = own.above
    equals.n -= 1
    return float(own.credit + equals.gain * weight)


@woven
def _ring(s: State, placement: int, rank: int) -> int:
    """Return the index in `turn` at which the ring of the replicas whose load is `rank` begins and ends."""
    return int(np.uint32(placement * s.rank.shape[1] + rank))


@woven
def _richest(s: State, placement: int, rank: int) -> int:
    """Return the replica with the highest credit among those whose load is `rank`."""
    return int(np.uint32(s.turn[_ring(s, placement, rank)].below - s.rank.size))


@woven
def _ranks(c: Constants, stage: int) -> bool:
    return bool(c.stage[stage].pinned == 0 and c.stage[stage].routing <= at.ROUND_ROBIN)


@woven
def _load(s: State, replica: int, queues: int) -> int:
    return int(s.queue[queues + replica].n + s.replica[replica].in_service)


@borrowing
def join_routing(c: Constants, s: State, replica: int) -> None:
    """Let a replica take items from now on."""
    placement = s.replica[replica].placement
    stage = c.placement[placement].owner
    s.replica[replica].member_at = s.group[placement].n
    s.members[placement, s.group[placement].n] = replica
    s.group[placement].n += 1
    if _ranks(c, stage):
        _enlist(s, placement, 0, replica, 0.0, c.placement[placement].weight)
    if c.stage[stage].routing == at.PULL:
        widest = len(s.slot) // len(s.replica)
        for slot in range(c.placement[placement].concurrency):
            _idle(s, stage, replica * widest + slot)


@borrowing
def leave_routing(c: Constants, s: State, replica: int) -> None:
    """Let a replica take only items that are pinned to it."""
    placement = s.replica[replica].placement
    stage = c.placement[placement].owner
    place = s.replica[replica].member_at
    last = s.group[placement].n - 1
    other = s.members[placement, last]
    s.members[placement, place] = other
    s.replica[other].member_at = place
    s.group[placement].n = last
    s.replica[replica].member_at = -1
    if _ranks(c, stage):
        rank = 0
        if c.stage[stage].routing == at.LEAST_LOADED:
            rank = _load(s, replica, 2 * len(c.stage))
        _delist(s, placement, rank, replica, c.placement[placement].weight)


@woven
def _idle(s: State, stage: int, slot: int) -> None:
    """Add a batch slot to the idle slots of a stage with Pull."""
    s.slot[slot].next = -1
    if s.stage[stage].idle_head < 0:
        s.stage[stage].idle_head = slot
    else:
        s.slot[s.stage[stage].idle_tail].next = slot
    s.stage[stage].idle_tail = slot


@woven
def _next_in_turn(c: Constants, s: State, stage: int) -> int:
    """Choose the replica with the least load per weight, and count the item as part of its load.

    Among equals, and with RoundRobin among all replicas, the choice is by smooth weighted round robin. _NONE_READY if
    there is no replica.
    """
    first, last = c.stage[stage].first, c.stage[stage].last
    up = 1 if c.stage[stage].routing == at.LEAST_LOADED else 0
    if last - first == 1:  # no other placement to compare with
        if s.group[first].n == 0:
            return _NONE_READY
        rank = s.group[first].lowest
        while s.rank[first, rank].n == 0:
            rank += 1
        s.group[first].lowest = rank
        s.rank[first, rank].gain += 1.0
        head, weight = _richest(s, first, rank), c.placement[first].weight
        paid = weight * s.rank[first, rank].n
        _enlist(s, first, rank + up, head, _delist(s, first, rank, head, weight) - paid, weight)
        return int(head)
    lowest = _INF
    for p in range(first, last):
        if s.group[p].n == 0:
            continue
        rank = s.group[p].lowest
        while s.rank[p, rank].n == 0:
            rank += 1
        s.group[p].lowest = rank
        lowest = min(lowest, rank / c.placement[p].weight)
    chosen, richest, total, of = _NONE_READY, -_INF, 0.0, 0
    for p in range(first, last):
        if s.group[p].n == 0 or s.group[p].lowest / c.placement[p].weight != lowest:
            continue
        rank = s.group[p].lowest
        s.rank[p, rank].gain += 1.0
        total += c.placement[p].weight * s.rank[p, rank].n
        head = _richest(s, p, rank)
        saved = s.turn[s.rank.size + head].credit + s.rank[p, rank].gain * c.placement[p].weight
        if saved > richest:
            chosen, richest, of = head, saved, p
    if chosen >= 0:
        rank = s.group[of].lowest
        _delist(s, of, rank, chosen, c.placement[of].weight)
        _enlist(s, of, rank + up, chosen, richest - total, c.placement[of].weight)
    return int(chosen)


@borrowing
def _by_lot(c: Constants, s: State, stage: int) -> int:
    """Return a random replica, with a probability in proportion to its weight; _NONE_READY if there is none."""
    first, last = c.stage[stage].first, c.stage[stage].last
    total = 0.0
    for p in range(first, last):
        total += c.placement[p].weight * s.group[p].n
    if total == 0.0:
        return _NONE_READY
    s.stage[stage].draws += 1
    word = mix(
        np.uint64(c.seed[0])
        + np.uint64(stage + 1) * np.uint64(0xD1B54A32D192ED03)
        + np.uint64(s.stage[stage].draws) * np.uint64(0x8CB92BA72F3D8DD7)
    )
    left = uniform(word) * total
    for p in range(first, last):
        share = c.placement[p].weight * s.group[p].n
        if left < share:
            return int(s.members[p, min(np.int64(left / c.placement[p].weight), s.group[p].n - 1)])
        left -= share
    return _NONE_READY  # only by a rounding error


@borrowing
def _another(c: Constants, s: State, stage: int, tried: Counts, count: int) -> int:
    """Return the replica with the least load per weight that is not among the first `count` of `tried`; or _FULL."""
    chosen, lowest = _FULL, _INF
    for p in range(c.stage[stage].first, c.stage[stage].last):
        for k in range(s.group[p].n):
            replica = s.members[p, k]
            refused = False
            for j in range(count):
                refused |= tried[j] == replica
            load = _load(s, replica, 2 * len(c.stage)) / c.placement[p].weight
            if not refused and load < lowest:
                chosen, lowest = replica, load
    return int(chosen)


# -- sessions


@borrowing
def attach(c: Constants, s: State, stage: int, session: int, t: float) -> int:
    """Pin a stream to the replica with the fewest sessions per weight, and return that replica.

    Return _FULL instead if no replica has a free slot, _NONE_READY if there is no replica.
    """
    first, last = c.stage[stage].first, c.stage[stage].last
    lowest, found = _INF, _NONE_READY
    for p in range(first, last):
        for k in range(s.group[p].n):
            replica = s.members[p, k]
            found = max(found, _FULL)
            if c.placement[p].slots < 0 or s.replica[replica].sessions < c.placement[p].slots:
                lowest = min(lowest, s.replica[replica].sessions / c.placement[p].weight)
    if lowest == _INF:
        return int(found)
    richest, total = -_INF, 0.0
    for p in range(first, last):
        for k in range(s.group[p].n):
            replica = s.members[p, k]
            free = c.placement[p].slots < 0 or s.replica[replica].sessions < c.placement[p].slots
            if free and s.replica[replica].sessions / c.placement[p].weight == lowest:
                s.replica[replica].turn += c.placement[p].weight
                total += c.placement[p].weight
                if s.replica[replica].turn > richest:
                    found, richest = replica, s.replica[replica].turn
    s.replica[found].turn -= total
    s.replica[found].sessions += 1
    s.pin[session, stage].replica = found
    s.pin[session, stage].since_s = t
    return int(found)


@borrowing
def _count_refusal(c: Constants, s: State, stage: int) -> None:
    """Count a stream that found no free slot, at one replica of each placement of the stage."""
    for p in range(c.stage[stage].first, c.stage[stage].last):
        if s.group[p].n > 0:
            s.replica[s.members[p, 0]].refused_sessions += 1


@borrowing
def _one_less(s: State, replica: int, t: float) -> None:
    """Take a stream off a replica; note when a draining one has none left."""
    s.replica[replica].sessions -= 1
    if (
        s.replica[replica].phase == at.DRAINING
        and s.replica[replica].sessions == 0
        and s.replica[replica].alone_s == _INF
    ):
        s.replica[replica].alone_s = t


@borrowing
def _let_go(c: Constants, s: State, session: int, t: float) -> None:
    """Free the stream's slots. Its pins stay, because chunks may still be in flight."""
    for stage in range(len(c.stage)):
        if c.stage[stage].pinned == 0 or s.pin[session, stage].replica < 0:
            continue
        _one_less(s, s.pin[session, stage].replica, t)
    s.whole[at.MISSING] -= s.stream[session].missing
    s.stream[session].missing = 0


@borrowing
def _find_slots(c: Constants, s: State, session: int, t: float) -> None:
    """Pin a stream at all stages where it lacks a pin; refuse a new stream if a stage has no free slot."""
    new = s.stream[session].give_up_s < _INF
    refused = t > s.stream[session].give_up_s
    for stage in range(len(c.stage)):
        if refused or c.stage[stage].pinned == 0 or s.pin[session, stage].replica >= 0:
            continue
        found = attach(c, s, stage, session, t)
        if found >= 0:
            s.stream[session].missing -= 1
            s.whole[at.MISSING] -= 1
        elif found == _FULL:
            refused = new
            _count_refusal(c, s, stage)
    if s.stream[session].missing == 0:
        s.stream[session].give_up_s = _INF
    elif refused:  # its first pins
        _let_go(c, s, session, t)
        s.stream[session].give_up_s = _INF
        s.stream[session].status = at.REFUSED_STREAM
        s.whole[at.ADMITTED] -= 1
        _try_later(c, s, session, t)


@borrowing
def _ask(c: Constants, s: State, session: int, t: float) -> None:
    """Admit a stream that asks, shed it, or refuse it because a stage has no free slot."""
    own = s.stream[session]
    own.attempts += 1
    own.tried_s = t
    if s.whole[at.ADMITTED] + 1 > s.real[ADMISSIBLE]:
        own.status = at.SHED_STREAM
        _try_later(c, s, session, t)
        return
    own.status = at.OPEN
    s.whole[at.ADMITTED] += 1
    lacks = 0
    for stage in range(len(c.stage)):
        if c.stage[stage].pinned == 1:
            lacks += 1
            s.pin[session, stage].replica = -1
    if lacks > 0:
        own.missing = lacks
        s.whole[at.MISSING] += lacks
        own.give_up_s = t + c.numbers[0]
        _find_slots(c, s, session, t)


@borrowing
def _try_later(c: Constants, s: State, session: int, t: float) -> None:
    """Plan the next attempt of a stream that failed at `t`; without one, when the ingress forgets the stream."""
    again_s = t + reconnect_delay_s(c.seed[0], session + 1, s.stream[session].attempts)
    if c.numbers[4] > 0.0 and again_s < c.session[session].end_s:
        _push(s, again_s, session)
    else:
        _push(s, t + LONGEST_DELAY_S, -1 - session)


@borrowing
def _push(s: State, t: float, what: int) -> None:
    """Add an entry to the heap `later`."""
    k = s.whole[at.TRIES]
    s.whole[at.TRIES] = k + 1
    while k > 0 and s.later[(k - 1) // 2].t_s > t:
        above = (k - 1) // 2
        s.later[k].t_s = s.later[above].t_s
        s.later[k].what = s.later[above].what
        k = above
    s.later[k].t_s = t
    s.later[k].what = what


@borrowing
def _pop(s: State) -> int:
    """Remove the first entry of the heap `later`; return what it says."""
    first = int(s.later[0].what)
    n = s.whole[at.TRIES] - 1
    s.whole[at.TRIES] = n
    t, what, k = s.later[n].t_s, s.later[n].what, 0
    while 2 * k + 1 < n:
        below = 2 * k + 1
        if below + 1 < n and s.later[below + 1].t_s < s.later[below].t_s:
            below += 1
        if s.later[below].t_s >= t:
            break
        s.later[k].t_s = s.later[below].t_s
        s.later[k].what = s.later[below].what
        k = below
    s.later[k].t_s = t
    s.later[k].what = what
    return first


@borrowing
def find_missing(c: Constants, s: State, t: float) -> None:
    """Try again to pin all streams that lack a pin. Call it after a replica is added."""
    if s.whole[at.MISSING] == 0:
        return
    for session in range(len(s.stream)):
        if s.stream[session].missing > 0:
            _find_slots(c, s, session, t)


@borrowing
def cut(c: Constants, s: State, replica: int, t: float) -> None:
    """Unpin all streams from a replica, and try to pin those that are still open to another replica."""
    stage = c.placement[s.replica[replica].placement].owner
    if c.stage[stage].pinned == 0:
        return
    for session in range(len(s.pin)):
        if s.pin[session, stage].replica != replica:
            continue
        s.pin[session, stage].replica = -1
        if s.stream[session].status == at.OPEN and c.session[session].end_s > t:
            s.whole[at.SESSIONS_CUT] += c.stage[stage].memory
            s.stream[session].missing += 1
            s.whole[at.MISSING] += 1
            s.replica[replica].sessions -= 1
            _find_slots(c, s, session, t)


@borrowing
def hand_over(c: Constants, s: State, replica: int, keep: int, t: float) -> None:
    """Move streams from a replica to the ones with the fewest until it has at most `keep`. None of them is cut."""
    stage = c.placement[s.replica[replica].placement].owner
    if c.stage[stage].pinned == 0:
        return
    for session in range(len(s.pin)):
        if s.replica[replica].sessions <= keep:
            return
        if s.pin[session, stage].replica != replica:
            continue
        if s.stream[session].status == at.OPEN and c.session[session].end_s > t:
            found = attach(c, s, stage, session, t)
            if found < 0:
                return
            _one_less(s, replica, t)
            if found == replica:  # no other has fewer
                return


# -- arrivals


@borrowing
def _enter(c: Constants, s: State, until_s: float) -> float:
    """Offer the schedule's items up to `until_s`, or until the slice is full; return the time reached.

    -1 if there is no room for any item.
    """
    w, mask = s.whole, len(s.item) - 1
    streams = c.numbers[1] > 0.0
    later_s = _INF
    stages, n = len(c.stage), 0
    entries, joins = 0, 0
    for stage in range(stages):
        entries += c.stage[stage].needs == 0
        joins += c.stage[stage].needs > 1
    room = min(at.ITEMS_PER_SLICE, len(s.item) - (w[at.OFFERED] + 1 - w[at.OLDEST]))
    room = min(room, len(s.tally_arrival_s) - w[at.SETTLED])
    while True:
        start_s = c.start_s[w[at.NEXT_START]] if w[at.NEXT_START] < len(c.start_s) else _INF
        if not streams:
            t, session = start_s, -1
            if t > until_s or t >= c.numbers[3]:
                break
        else:
            first_s = s.stream[c.by_first[w[at.NEXT_FIRST]]].next_s if w[at.NEXT_FIRST] < len(c.by_first) else _INF
            chunk_s = s.stream[w[at.CHUNK_HEAD]].next_s if w[at.CHUNK_HEAD] >= 0 else _INF
            end_s = c.session[c.by_end[w[at.NEXT_END]]].end_s if w[at.NEXT_END] < len(c.by_end) else _INF
            later_s = s.later[0].t_s if w[at.TRIES] > 0 else _INF
            t = min(first_s, chunk_s)
            if min(start_s, t, end_s, later_s) > until_s:
                break
            if start_s <= t and start_s <= end_s and start_s <= later_s:
                w[at.NEXT_START] += 1
                w[at.STREAMS] += 1
                _ask(c, s, w[at.NEXT_START] - 1, start_s)
                continue
            if later_s <= t and later_s <= end_s:
                what = _pop(s)
                if what >= 0:
                    _ask(c, s, what, later_s)
                else:
                    w[at.STREAMS] -= 1
                continue
            if end_s < t:
                session = c.by_end[w[at.NEXT_END]]
                w[at.NEXT_END] += 1
                if s.stream[session].status == at.OPEN:
                    w[at.STREAMS] -= 1
                    w[at.ADMITTED] -= 1
                    _let_go(c, s, session, end_s)
                continue
        again = 0
        if s.real[SENDS] > 1.0:
            again = int(s.real[SENDS] - 1.0 + uniform(verdict(c.seed[0], 2 * stages, w[at.OFFERED] + 1)))
        if n + again >= room:
            return float(t) if n > 0 else -1.0
        # an item
        shed = False
        kind = SHED
        if not streams:
            w[at.NEXT_START] += 1
            if s.real[ADMISSIBLE] < _INF:
                earned = (t - s.real[TOKENS_AT_S]) * s.real[ADMISSIBLE]
                s.real[TOKENS] = min(s.real[TOKENS] + earned, max(1.0, s.real[ADMISSIBLE]))
                shed = s.real[TOKENS] < 1.0
                if not shed:
                    s.real[TOKENS] -= 1.0
            s.real[TOKENS_AT_S] = t
        else:
            if chunk_s < first_s:
                session = w[at.CHUNK_HEAD]
                w[at.CHUNK_HEAD] = s.stream[session].follower
                if w[at.CHUNK_HEAD] < 0:
                    w[at.CHUNK_TAIL] = -1
            else:
                session = c.by_first[w[at.NEXT_FIRST]]
                w[at.NEXT_FIRST] += 1
            s.stream[session].left -= 1
            if s.stream[session].left > 0:
                done = s.stream[session].chunks - s.stream[session].left
                s.stream[session].next_s = s.stream[session].first_s + done * c.numbers[1]
                s.stream[session].follower = -1
                if w[at.CHUNK_TAIL] < 0:
                    w[at.CHUNK_HEAD] = session
                else:
                    s.stream[w[at.CHUNK_TAIL]].follower = session
                w[at.CHUNK_TAIL] = session
            if s.stream[session].missing > 0:
                _find_slots(c, s, session, t)
            if s.stream[session].status != at.OPEN:
                shed = True
                kind = SHED if s.stream[session].status == at.SHED_STREAM else REFUSED
        if shed:
            w[at.OFFERED] += 1
            entering = s.item[_place(w[at.OFFERED], mask)]
            entering.arrival_s = t
            entering.session = session
            entering.holds = 0
            entering.settled = 1
            _account(c, s, t, 0.0, FILTERED if _silent(c, s, w[at.OFFERED]) else kind)
            n += 1
            continue
        for copy in range(1 + again):
            w[at.OFFERED] += 1
            place = _place(w[at.OFFERED], mask)
            entering = s.item[place]
            entering.arrival_s = t
            entering.session = session
            entering.holds = entries
            entering.settled = copy > 0  # the outcome of the item is that of its first copy
            entering.reached = 0
            entering.lost_s = _INF
            for k in range(len(s.ended_s)):
                s.ended_s[k, place] = _INF
            if joins > 0:
                for stage in range(stages):
                    s.waits[stage, place] = c.stage[stage].needs
            s.out_s[stages, s.out_n[stages]] = t
            s.out_item[stages, s.out_n[stages]] = w[at.OFFERED]
            s.out_n[stages] += 1
            n += 1
        w[at.REPEATED] += again
    return until_s


@borrowing
def _silent(c: Constants, s: State, item: int) -> bool:
    """Return whether an item that is not sent would have been filtered on all its ways."""
    goes_on = s.taken
    reached = False
    for stage in range(len(c.stage)):
        goes_on[stage] = 1
        for k in range(c.stage[stage].needs):
            goes_on[stage] = min(goes_on[stage], goes_on[c.before[stage, k]])
        reached |= goes_on[stage] == 1 and c.stage[stage].end >= 0
        if c.stage[stage].filters == 1 and verdict(c.seed[0], stage, item) >= c.stage[stage].passes_below:
            goes_on[stage] = 0
    return not reached


@woven
def _unadmitted(s: State, session: int) -> bool:
    """Return whether a stream waits for its first slots, or has found none: what it offered was not accepted."""
    own = s.stream[session]
    return bool(own.status != at.OPEN or (own.missing > 0 and own.give_up_s < _INF))


@woven
def _account(c: Constants, s: State, arrival_s: float, latency_s: float, kind: int) -> None:
    """Count the outcome of an item, and add it to the items for the tally."""
    w = s.whole
    k = w[at.SETTLED]
    s.tally_arrival_s[k] = arrival_s
    s.tally_latency_s[k] = latency_s
    s.tally_outcome[k] = kind
    w[at.SETTLED] = k + 1
    w[at.SERVED_ITEMS + kind] += 1
    if kind == SERVED:
        s.ingress_counts[bucket(c.bounds_s, c.cells, latency_s)] += 1
        w[at.LATENCY_NS] += np.int64(round(latency_s * 1e9))
    elif kind == LOST:
        s.ingress_counts[len(s.ingress_counts) - 1] += 1
        w[at.LATENCY_NS] += np.int64(round(c.numbers[0] * 1e9))


# -- one stage


@woven
def bucket(bounds_s: Floats, cells: Counts, value_s: float) -> int:
    """Return how many of `bounds_s` are below a value that is not negative; `cells` comes from `cells_of(bounds_s)`."""
    first = int(np.float64(bounds_s[0]).view(np.int64) >> CELL_SHIFT)
    cell = int(np.float64(value_s).view(np.int64) >> CELL_SHIFT) - first
    below = np.uint32(cells[np.uint32(min(max(cell, 0), len(cells) - 1))])
    return int(np.uint32(below + (1 if bounds_s[below] < value_s else 0)))


@woven
def _plan(due: Records, n: int, t: float, what: int) -> None:
    """Insert an event at `t` into a calendar of `n` entries, the soonest last; FIFO for equal times."""
    k = np.uint64(n)
    one = np.uint64(1)
    while k > 0 and due[k - one].t_s <= t:
        due[k].t_s = due[k - one].t_s
        due[k].what = due[k - one].what
        k -= one
    due[k].t_s = t
    due[k].what = what


@woven
def _together_s(c: Constants, s: State, stage: int, replica: int) -> float:
    """Return T(n) for the n items that run at each engine of a replica with continuous batching."""
    server = s.replica[replica]
    each = -(-server.in_service // c.placement[server.placement].engines)
    return float(c.mean_s[server.placement, each] * s.stage[stage].slow * server.slow)


@woven
def _pass(c: Constants, s: State, stage: int, replica: int, t: float) -> None:
    """Let the items that run at a replica with continuous batching progress up to `t`.

    Its engines share them evenly, and each progresses at 1/T(n) while n run.
    """
    server = s.replica[replica]
    server.running_s += server.in_service * (t - server.running_at_s)
    server.running_at_s = t
    if t > server.progress_at_s:
        if server.in_service > 0:
            server.progress += (t - server.progress_at_s) / _together_s(c, s, stage, replica)
        server.progress_at_s = t


@woven
def _plan_next(c: Constants, s: State, stage: int, replica: int, widest: int, due_n: int) -> int:
    """Plan when the next item ends at a replica with continuous batching; return the new length of the calendar.

    The event planned before, if there is one, is removed: the item ends at another time when more or fewer run.
    """
    due, server = s.due[stage], s.replica[replica]
    first = replica * widest
    k = due_n - 1
    while k >= 0 and not first <= due[k].what < first + widest:
        k -= 1
    if k >= 0:
        due_n -= 1
        while k < due_n:
            due[k].t_s = due[k + 1].t_s
            due[k].what = due[k + 1].what
            k += 1
    if server.in_service == 0:
        return due_n
    soonest, chosen = _INF, first
    for slot in range(first, first + c.placement[server.placement].concurrency):
        if s.slot[slot].n > 0 and s.slot[slot].ends_at < soonest:
            soonest, chosen = s.slot[slot].ends_at, slot
    left_s = max(soonest - server.progress, 0.0) * _together_s(c, s, stage, replica)
    _plan(due, due_n, server.progress_at_s + left_s, chosen)
    return due_n + 1


@woven
def _append(s: State, stage: int, queue: int, item: int, mask: int) -> None:
    """Append an item to a queue of its stage."""
    line = s.queue[np.uint32(queue)]
    if line.n == 0:
        line.head = item
    else:
        s.visit[stage, _place(line.tail, mask)].behind = item
    line.tail = item
    line.n += 1


@borrowing
def _refused(s: State, item: int, t: float) -> None:
    """Mark an item as lost, because a stage refused it."""
    mask = len(s.item) - 1
    lost = s.item[_place(item, mask)]
    lost.lost_s = min(lost.lost_s, t)
    lost.holds -= 1
    s.candidates[s.whole[at.CANDIDATES]] = item
    s.whole[at.CANDIDATES] += 1


@woven
def _room(c: Constants, s: State, replica: int) -> bool:
    """Return whether a replica can take one more item: its queue has room, and a slot is free if the item needs one."""
    placement, queues = s.replica[replica].placement, 2 * len(c.stage)
    if s.queue[queues + replica].n >= c.placement[placement].queue_limit:
        return False
    own_slot = c.placement[placement].slots >= 0 and c.stage[c.placement[placement].owner].pinned == 0
    return bool(not own_slot or _load(s, replica, queues) < c.placement[placement].slots)


@woven
def _refuse(c: Constants, s: State, replica: int) -> None:
    """Count an item that a replica has no room for."""
    s.replica[replica].refused += 1
    if s.queue[2 * len(c.stage) + replica].n < c.placement[s.replica[replica].placement].queue_limit:
        s.replica[replica].refused_sessions += 1


@borrowing
def _try_others(c: Constants, s: State, stage: int, item: int, t: float, chosen: int) -> int:
    """Return the queue of another replica for an item that `chosen` has refused; -1 if the item is lost."""
    queues, tried = 2 * len(c.stage), s.tried
    ranked = c.stage[stage].routing == at.LEAST_LOADED
    if ranked:  # it was counted as one more
        placement = s.replica[chosen].placement
        load = _load(s, chosen, queues)
        _enlist(
            s,
            placement,
            load,
            chosen,
            _delist(s, placement, load + 1, chosen, c.placement[placement].weight),
            c.placement[placement].weight,
        )
    for count in range(1, at.MAX_REFUSALS + 1):
        _refuse(c, s, chosen)
        tried[count - 1] = chosen
        if count == at.MAX_REFUSALS:
            break
        chosen = _another(c, s, stage, tried, count)
        if chosen < 0:
            break
        s.whole[at.RETRIES] += 1
        s.replica[chosen].arrived += 1
        if _room(c, s, chosen):
            if ranked:
                placement = s.replica[chosen].placement
                load = _load(s, chosen, queues)
                _enlist(
                    s,
                    placement,
                    load + 1,
                    chosen,
                    _delist(s, placement, load, chosen, c.placement[placement].weight),
                    c.placement[placement].weight,
                )
            return int(queues + chosen)
    _refused(s, item, t)
    return -1


@woven
def _route(c: Constants, s: State, stage: int, item: int, t: float, mask: int) -> int:
    """Return the queue that an item joins; -1 if the item is lost."""
    stages = len(c.stage)
    queues = 2 * stages
    chosen = _NONE_READY
    if c.stage[stage].pinned == 1:
        session = s.item[_place(item, mask)].session
        chosen = int(s.pin[session, stage].replica)
        if chosen < 0 or s.pin[session, stage].since_s > t:
            chosen = _another(c, s, stage, s.tried, 0)
            if chosen == _FULL:
                return stages + stage
            if c.session[session].end_s > t:
                _refused(s, item, t)
                return -1
        s.replica[chosen].arrived += 1
        if not _room(c, s, chosen):
            _refuse(c, s, chosen)
            _refused(s, item, t)
            return -1
        return int(queues + chosen)
    routing = c.stage[stage].routing
    if routing == at.PULL:
        return stage
    chosen = _by_lot(c, s, stage) if routing == at.RANDOM else _next_in_turn(c, s, stage)
    if chosen == _NONE_READY:
        return stages + stage
    s.replica[chosen].arrived += 1
    if _room(c, s, chosen):
        return int(queues + chosen)
    return _try_others(c, s, stage, item, t, chosen)


@woven
def _goes_on(c: Constants, s: State, stage: int, item: int, t: float, hops_s: float) -> bool:
    """Let an item leave a stage; return whether it goes on to the next ones."""
    place = _place(item, len(s.item) - 1)
    leaving, own = s.item[place], c.stage[stage]
    if t > leaving.arrival_s + c.numbers[0] - hops_s:
        leaving.holds -= 1
        return False
    if own.filters == 1 and verdict(c.seed[0], stage, item) >= own.passes_below:
        leaving.holds -= 1
        for k in range(len(s.ended_s)):
            if c.ends_below[stage, k] == 1:
                s.ended_s[k, place] = min(s.ended_s[k, place], t + hops_s)
    elif own.end >= 0:
        leaving.holds -= 1
        leaving.reached = 1
        s.ended_s[own.end, place] = min(s.ended_s[own.end, place], t + hops_s)
    else:
        if own.after != 1:
            leaving.holds += own.after - 1
        return True
    s.candidates[s.whole[at.CANDIDATES]] = item
    s.whole[at.CANDIDATES] += 1
    return False


@borrowing
def _play(c: Constants, s: State, stage: int, in_s: Floats, in_item: Counts, n: int, until_s: float) -> None:
    """Simulate a stage up to `until_s`, with the items it holds and the `n` items that arrive."""
    mask = len(s.item) - 1
    stages = len(c.stage)
    queues = 2 * stages
    widest = len(s.slot) // len(s.replica)
    due = s.due[stage]
    visit = s.visit[stage]
    pull = c.stage[stage].routing == at.PULL and c.stage[stage].pinned == 0
    ranks = _ranks(c, stage) and c.stage[stage].routing == at.LEAST_LOADED
    hops_s = c.numbers[2] * c.stage[stage].depth + c.stage[stage].way_s + c.numbers[5]
    patience_s = c.numbers[0] - hops_s
    takes = s.stage[stage].takes
    out_s, out_item, out_n = s.out_s[stage], s.out_item[stage], s.out_n[stage]
    due_n = s.stage[stage].due_n
    i = 0
    while True:
        arrival_s = in_s[i] if i < n else _INF
        event_s = due[due_n - 1].t_s if due_n > 0 else _INF
        if event_s <= arrival_s:
            if event_s > until_s:
                break
            t = event_s
            due_n -= 1
            code = due[due_n].what
            if code < 0:
                queue = -1 - code
                s.queue[queue].armed = 0
                replica = int(np.uint32(queue - queues))
                if queue >= queues and s.replica[replica].phase == at.GONE:
                    continue
            else:
                done = s.slot[np.uint32(code)]
                replica = done.replica
                queue = queues + replica
                server, size = s.replica[replica], done.n
                if server.phase == at.GONE:
                    continue
                service_s, together = t - done.start_s, 1.0
                if c.placement[server.placement].engines > 0:
                    _pass(c, s, stage, replica, t)
                    if service_s > 0.0:
                        together = (server.running_s - done.running_s) / service_s
                latency_sum_s = server.latency_sum_s
                item = done.head
                for _ in range(size):
                    place = _place(item, mask)
                    spent_s = t - visit[place].entered_s
                    s.latency_counts[replica, bucket(_BOUNDS_S, _CELLS, spent_s)] += 1
                    latency_sum_s += spent_s
                    if _goes_on(c, s, stage, item, t, hops_s):
                        out_s[out_n] = t
                        out_item[out_n] = item
                        out_n += 1
                    item = visit[place].behind
                server.latency_sum_s = latency_sum_s
                server.completed += size
                server.batches += 1 / together
                server.busy_s += service_s / together
                server.service_s += service_s * size
                done.n = 0
                before = _load(s, replica, queues)
                server.in_service -= size
                server.idle += 1
                if c.placement[server.placement].engines > 0:
                    due_n = _plan_next(c, s, stage, replica, widest, due_n)
                if server.phase == at.SERVING:
                    if ranks:
                        placement = server.placement
                        saved = _delist(s, placement, before, replica, c.placement[placement].weight)
                        _enlist(s, placement, before - size, replica, saved, c.placement[placement].weight)
                    if pull:
                        _idle(s, stage, code)
                elif before == size:
                    server.empty_s = t
                if pull:
                    queue = stage
        else:
            if arrival_s > until_s:
                break
            t = arrival_s
            item = in_item[i]
            i += 1
            if takes < 1.0 and uniform(verdict(c.seed[0], stages + stage, item)) > takes:
                if _goes_on(c, s, stage, item, t, hops_s):
                    out_s[out_n] = t
                    out_item[out_n] = item
                    out_n += 1
                continue
            visit[_place(item, mask)].entered_s = t
            queue = _route(c, s, stage, item, t, mask)
            if queue < 0:
                continue
            replica = int(np.uint32(queue - queues))
            if queue >= queues and s.replica[replica].phase == at.DRAINING:
                note_end(s, replica, queues, t)
            _append(s, stage, queue, item, mask)
            if stages <= queue < queues:
                continue  # it waits for a replica
        # start every batch that is due
        line = s.queue[np.uint32(queue)]
        while line.n > 0:
            slot = -1
            if pull:
                head = line.head
                place = _place(head, mask)
                if t > s.item[place].arrival_s + patience_s:
                    s.item[place].holds -= 1
                    line.head = visit[place].behind
                    line.n -= 1
                    continue
                slot = s.stage[stage].idle_head
                while slot >= 0 and s.replica[s.slot[slot].replica].phase != at.SERVING:
                    slot = s.slot[slot].next
                s.stage[stage].idle_head = slot
                if slot < 0:
                    break
                replica = s.slot[slot].replica
            elif s.replica[replica].idle == 0:
                break
            server, law = s.replica[replica], c.placement[s.replica[replica].placement]
            size, head = min(line.n, law.batch), line.head
            if size < law.batch and law.wait_s > 0.0:
                full_s = visit[_place(head, mask)].entered_s + law.wait_s
                if t < full_s:
                    if line.armed == 0:
                        line.armed = 1
                        _plan(due, due_n, full_s, -1 - queue)
                        due_n += 1
                    break
            if pull:
                s.stage[stage].idle_head = s.slot[slot].next
                server.arrived += size
            else:
                slot = replica * widest
                while s.slot[np.uint32(slot)].n > 0:
                    slot += 1
            service_s = 1.0
            if law.varies == 1:
                service_s = gamma(law.shape_d, law.shape_c, law.power, server.drawn, server.started)
            if law.engines > 0:
                _pass(c, s, stage, replica, t)
                slow = s.stage[stage].slow * server.slow
                server.progress_at_s = max(server.progress_at_s, t) + law.prefill_s * slow / law.engines
                s.slot[np.uint32(slot)].ends_at = server.progress + service_s
                s.slot[np.uint32(slot)].running_s = server.running_s
            else:
                service_s *= c.mean_s[server.placement, size] * s.stage[stage].slow * server.slow
            server.started += 1
            server.idle -= 1
            server.in_service += size
            begun = s.slot[np.uint32(slot)]
            begun.n = size
            begun.head = head
            begun.start_s = t
            for _ in range(size):
                head = visit[_place(head, mask)].behind
            line.head = head
            line.n -= size
            if law.engines > 0:
                due_n = _plan_next(c, s, stage, replica, widest, due_n)
            else:
                _plan(due, due_n, t + service_s, slot)
                due_n += 1
    s.stage[stage].due_n = due_n
    s.out_n[stage] = out_n


@woven
def note_end(s: State, replica: int, queues: int, t: float) -> None:
    """Store when a draining replica ended, if it has by `t`: it is handed over, and has no items and no sessions."""
    if _load(s, replica, queues) == 0 and s.replica[replica].ended_at_s == _INF:
        ended_s = max(s.replica[replica].handed_over_s, s.replica[replica].alone_s, s.replica[replica].empty_s)
        if ended_s <= t:
            s.replica[replica].ended_at_s = ended_s


# -- all stages


@borrowing
def _gather(c: Constants, s: State, stage: int) -> int:
    """Write the items that arrive at a join to the last row of `out_s` and `out_item`; return how many there are.

    An item arrives when the last of its branches does.
    """
    stages, mask = len(c.stage), len(s.item) - 1
    taken = s.taken
    taken[:] = 0
    n = 0
    while True:
        soonest, of = _INF, -1
        for k in range(c.stage[stage].needs):
            before = c.before[stage, k]
            if taken[before] < s.out_n[before] and s.out_s[before, taken[before]] < soonest:
                soonest, of = s.out_s[before, taken[before]], before
        if of < 0:
            return n
        item = s.out_item[of, taken[of]]
        taken[of] += 1
        place = _place(item, mask)
        s.waits[stage, place] -= 1
        if s.waits[stage, place] > 0:
            s.item[place].holds -= 1
        else:
            s.out_s[stages + 1, n] = soonest
            s.out_item[stages + 1, n] = item
            n += 1


@borrowing
def settle(c: Constants, s: State, tally: TallyArrays, now_s: float) -> None:
    """Settle every item with an outcome by `now_s`, and free the places of items that no stage holds."""
    w, mask = s.whole, len(s.item) - 1
    patience_s = c.numbers[0]
    if w[at.SETTLED] == len(s.tally_outcome):  # all items of the slice were shed or refused: no room for one more
        _hand_in(s, tally)
    for k in range(w[at.CANDIDATES]):
        place = _place(s.candidates[k], mask)
        item = s.item[place]
        if item.settled == 1:
            continue
        ended_s = 0.0
        for e in range(len(s.ended_s)):
            ended_s = max(ended_s, s.ended_s[e, place])
        lost_s = item.lost_s
        if ended_s == _INF and lost_s == _INF:
            continue
        spent_s = ended_s - item.arrival_s
        item.settled = 1
        if lost_s <= ended_s or spent_s > patience_s:
            _account(c, s, item.arrival_s, 0.0, LOST)
        elif item.reached == 1:
            _account(c, s, item.arrival_s, spent_s, SERVED)
        else:
            _account(c, s, item.arrival_s, 0.0, FILTERED)
        if w[at.SETTLED] == len(s.tally_outcome):
            _hand_in(s, tally)
    w[at.CANDIDATES] = 0
    unsettled, offered = w[at.UNSETTLED], w[at.OFFERED]
    while unsettled <= offered:
        item = s.item[_place(unsettled, mask)]
        if item.settled == 0:
            if item.arrival_s + patience_s >= now_s:
                break
            item.settled = 1
            kind = LOST
            if item.session >= 0 and _unadmitted(s, item.session):
                kind = FILTERED if _silent(c, s, unsettled) else REFUSED
            _account(c, s, item.arrival_s, 0.0, kind)
            if w[at.SETTLED] == len(s.tally_outcome):
                _hand_in(s, tally)
        unsettled += 1
    w[at.UNSETTLED] = unsettled
    for stage in range(len(c.stage)):
        for queue in (stage, len(c.stage) + stage):
            while s.queue[queue].n > 0:
                place = _place(s.queue[queue].head, mask)
                if s.item[place].arrival_s + patience_s >= now_s:
                    break  # even if settled: the end of a slice must not decide whether it is served here
                s.item[place].holds -= 1
                s.queue[queue].head = s.visit[stage, place].behind
                s.queue[queue].n -= 1
    oldest = w[at.OLDEST]
    while oldest < unsettled and s.item[_place(oldest, mask)].holds == 0:
        oldest += 1
    w[at.OLDEST] = oldest
    _hand_in(s, tally)


@borrowing
def _hand_in(s: State, tally: TallyArrays) -> None:
    observe(tally, s.whole[at.SETTLED], s.tally_arrival_s, s.tally_latency_s, s.tally_outcome)
    s.whole[at.SETTLED] = 0


@borrowing
def advance(c: Constants, s: State, tally: TallyArrays, until_s: float, again_at: int, items: Counts, n: int) -> bool:
    """Advance the simulation to `until_s`; return False if it stopped before, because the arrays have no room left.

    If `again_at` is a stage (not -1), `until_s` must be now: no time passes, and the first `n` of `items` arrive at
    that stage.
    """
    stages = len(c.stage)
    only = again_at >= 0
    while only or s.real[NOW_S] < until_s:
        reached_s = until_s
        if not only:
            reached_s = _enter(c, s, min(until_s, s.real[NOW_S] + tally.numbers[2]))
            if reached_s < 0.0:
                return False
        # Row `stages` has the items that enter the pipeline; the row after it has those that enter a join.
        for stage in range(stages):
            if only and stage != again_at:
                continue
            row = stages
            if only:
                s.out_n[stages] = _again(s, items, n, until_s, c.numbers[0])
            elif c.stage[stage].needs == 1:
                row = c.before[stage, 0]
            elif c.stage[stage].needs > 1:
                row = stages + 1
                s.out_n[row] = _gather(c, s, stage)
            _play(c, s, stage, s.out_s[row], s.out_item[row], s.out_n[row], reached_s)
        if only:
            s.out_n[stages] = 0
        else:
            s.out_n[:] = 0
            s.real[NOW_S] = reached_s
        settle(c, s, tally, s.real[NOW_S])
        if only:
            return True
    return True


@borrowing
def _again(s: State, items: Counts, n: int, now_s: float, patience_s: float) -> int:
    """Let the first `n` of `items` arrive again now; return how many of them have not timed out.

    They lost their replica, or waited for one.
    """
    mask, count, row = len(s.item) - 1, 0, len(s.out_n) - 2
    for k in range(n):
        place = _place(items[k], mask)
        if s.item[place].settled == 1 or now_s > s.item[place].arrival_s + patience_s:
            s.item[place].holds -= 1
        else:
            s.out_s[row, count] = now_s
            s.out_item[row, count] = items[k]
            count += 1
    return count


@borrowing
def held(c: Constants, s: State, replica: int, items: Counts) -> int:
    """Move all items that a replica serves or queues to `items`; return how many there are."""
    stage, mask, n = c.placement[s.replica[replica].placement].owner, len(s.item) - 1, 0
    widest, queue = len(s.slot) // len(s.replica), 2 * len(c.stage) + replica
    for slot in range(replica * widest, replica * widest + c.placement[s.replica[replica].placement].concurrency):
        item = s.slot[slot].head
        for _ in range(s.slot[slot].n):
            items[n] = item
            n += 1
            item = s.visit[stage, _place(item, mask)].behind
        s.slot[slot].n = 0
    n = unqueue(s, stage, queue, items, n)
    s.replica[replica].in_service = 0
    s.replica[replica].idle = 0
    return n


@borrowing
def unqueue(s: State, stage: int, queue: int, items: Counts, n: int) -> int:
    """Move a queue's items into `items`, after the first `n`; return the new count."""
    mask = len(s.item) - 1
    while s.queue[queue].n > 0:
        items[n] = s.queue[queue].head
        n += 1
        s.queue[queue].head = s.visit[stage, _place(s.queue[queue].head, mask)].behind
        s.queue[queue].n -= 1
    return n


@borrowing
def in_flight(s: State) -> int:
    """Write the indexes (in `item`) of the items without an outcome to `candidates`; return how many there are."""
    w, mask, n = s.whole, len(s.item) - 1, 0
    for item in range(w[at.UNSETTLED], w[at.OFFERED] + 1):
        place = _place(item, mask)
        if s.item[place].settled == 0:
            s.candidates[n] = place
            n += 1
    return n
