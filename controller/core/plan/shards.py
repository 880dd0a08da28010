"""How shards share a pool or a budget: what a shard agrees to, and how shard 0 divides. `docs/shards.md` has the rules.

Every function is from the stored entries to those of the next write, which the API server accepts only if the stored
ones have not changed. So the order of the writes is that of the functions here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.core.state.shards import Allowance, Entry, Shard, Want, committed

LARGEST_STEP = 0.05
"""Share of the limit that one shard gives back for another in one step."""
MARGIN = 1.25
"""An exchange needs a value that is this many times the other one: two plans value the same instance within 20 %."""
UNSERVED_MARGIN = 0.02
"""The least difference of unserved shares for an exchange: below it the shares differ by whole instances alone."""
REMEMBERED_S = 1800.0
"""How long it is remembered what was lost by giving back: a load that lasts half an hour is another one afterwards."""
PATIENCE_S = 600.0
"""How long a shard has time to give back: longer than drains and stabilisation windows by default."""
STALE_S = 180.0
"""An entry that was not renewed for so long is of a shard that is away: three times as long as renewals are apart."""
SEEN_S = 10.0
"""What an operator did before it ended is seen by the others within this time."""
RENEW_S = 60.0
"""Entries are renewed at least so often."""
_MOVED = 0.1
_PARTS = 200
"""What is left is given in so many parts at most."""
_NOTHING = Want()


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a shard uses of a shared resource now, what its last plans want, and how many pipelines it waits for.

    `users` counts the pipelines that may use it. `leaving` counts the pipelines of other shards that this one has
    claimed and that none of them has taken yet.
    """

    used: int
    want: Want | None = None
    awaiting: int = 0
    leaving: int = 0
    users: int = 1


def agreed(before: Entry | None, shard: Shard, use: Use, now_s: float) -> Entry:
    """Return the entry that the shard writes next; `before` is its stored one.

    An entry that was written for another number of shards gives no allowance, nor does one while pipelines leave. Until
    these are with their new operator, what was agreed to stays committed: it has their replicas.
    """
    allowed = None if before is None or before.of != shard.count or use.leaving else before.allowed
    if allowed is not None:
        own = max(allowed, use.used)
    elif use.leaving and before is not None:
        own = max(before.agreed, use.used)
    else:
        own = use.used
    return Entry(
        shard=shard.index,
        of=shard.count,
        used=use.used,
        agreed=own,
        allowed=allowed,
        reduce=allowed is not None and before is not None and before.reduce,
        awaiting=use.awaiting + use.leaving,
        users=use.users,
        want=use.want,
        renewed_at_s=now_s,
    )


def allowance(entry: Entry, *, written: Entry | None) -> Allowance:
    """Return what the shard works within, for the `entry` that it wanted to write.

    `written` is the entry that is stored for certain, None where nothing is. They are the same if the write succeeded.
    """
    most = min(entry.agreed, 0 if written is None else written.agreed)
    if entry.allowed is None:
        return Allowance(amount=min(entry.used, most), granted=False, entry=entry)
    return Allowance(amount=min(entry.allowed, most), firm=entry.reduce, entry=entry)


def worth_writing(before: Entry | None, after: Entry) -> bool:
    """Return whether an entry differs enough from the stored one to be written.

    What is committed or asked for is exact. What is used within it, and what more is worth, may be a tenth off.
    """
    if before is None:
        return True
    exact = ("shard", "of", "agreed", "allowed", "reduce", "awaiting", "users", "committed")
    if any(getattr(before, name) != getattr(after, name) for name in exact):
        return True
    if (before.want is None) != (after.want is None) or after.renewed_at_s - before.renewed_at_s >= RENEW_S:
        return True
    old, new = before.want or _NOTHING, after.want or _NOTHING
    if (old.lacking > 0) != (new.lacking > 0):
        return True
    if (old.priority, old.least_priority) != (new.priority, new.least_priority):
        return True
    numbers = (
        (before.used, after.used),
        (old.lacking, new.lacking),
        (old.unserved, new.unserved),
        (old.price_per_hour or 0.0, new.price_per_hour or 0.0),
    )
    return any(abs(a - b) > _MOVED * max(abs(a), abs(b)) for a, b in numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What more of the resource was worth to a shard while it was allowed `allowed`, at `at_s` (epoch seconds)."""

    allowed: int
    want: Want
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the divider remembers of one resource, by shard: what it lacked, and since when it is to give back.

    `refused_s` has when (epoch seconds) a shard had not given back in time. Nothing of this is kept over a restart of
    the operator: then an exchange may be tried once more.
    """

    lost: Mapping[int, tuple[Lost, ...]] = field(default_factory=dict)
    since_s: Mapping[int, float] = field(default_factory=dict)
    refused_s: Mapping[int, float] = field(default_factory=dict)


def without_gone(entries: Sequence[Entry], count: int, gone_since_s: Mapping[int, float]) -> tuple[Entry, ...]:
    """Return `entries` without those beyond `count` shards whose operator has been gone since `gone_since_s`.

    Their pipelines belong to the `count` shards. So an entry goes once all of these have reported since then.
    """
    own = [each for each in entries if each.of == count and each.shard < count]
    if len(own) < count:
        return tuple(entries)
    last_s = min(each.renewed_at_s for each in own)
    return tuple(
        each for each in entries if each.shard < count or last_s <= gone_since_s.get(each.shard, last_s) + SEEN_S
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """The entries after a division, and what the divider remembers."""

    entries: tuple[Entry, ...]
    memory: Memory


def divided(
    entries: Sequence[Entry], count: int, limit: int, now_s: float, memory: Memory, *, firm: bool = True
) -> Divided:
    """Return `entries` with the allowances of `count` shards for a resource of which there is `limit`.

    `firm` says that nothing may stay above the limit. Other entries than those of the `count` shards stay as they are,
    and so do all until every shard has reported, has planned, and waits for none. What is committed never rises above
    the limit.
    """
    own = {each.shard: each for each in entries if each.of == count and each.shard < count}
    if len(own) < count or any(each.awaiting for each in own.values()):
        return Divided(entries=tuple(entries), memory=memory)
    memory = _remembered(memory, own, now_s)
    present = {i: each for i, each in sorted(own.items()) if now_s - each.renewed_at_s <= STALE_S}
    if any(each.want is None for each in present.values()):
        return Divided(entries=tuple(entries), memory=memory)
    rest = limit - committed([each for each in entries if each.shard not in present])
    order = _by_worth(present)
    targets, reducing = _targets(present, order, rest, limit, now_s, memory, firm=firm)
    after = _lowered(present, targets, reducing, rest)
    free = rest - committed(list(after.values()))
    for index in order:
        # A raise is limited by what is committed, also by what has to fall first.
        most = after[index].committed + max(0, free)
        grown = replace(after[index], allowed=max(after[index].allowed or 0, min(targets[index], most)))
        free -= grown.committed - after[index].committed
        after[index] = grown
    return Divided(
        entries=tuple(after.get(each.shard, each) for each in entries),
        memory=replace(memory, since_s={index: memory.since_s.get(index, now_s) for index in reducing}),
    )


def _targets(
    present: Mapping[int, Entry],
    order: Sequence[int],
    rest: int,
    limit: int,
    now_s: float,
    memory: Memory,
    *,
    firm: bool,
) -> tuple[dict[int, int], frozenset[int]]:
    """Return what each shard should be allowed of `rest`, and which shards have to give back what they use."""
    reducing = {index for index, each in present.items() if _gives_back(index, each, now_s, memory)}
    targets = {i: min(each.used, each.allowed or 0) if i in reducing else each.used for i, each in present.items()}
    left = rest - sum(targets.values())
    if left < 0:
        # The limit has fallen, or others than Sluice have added replicas.
        for index in reversed(order) if firm else ():
            cut = min(-left, targets[index])
            targets[index] -= cut
            left += cut
            if cut:
                reducing.add(index)
        return targets, frozenset(reducing)
    full = not left
    given = _granted(present, order, reducing, left)
    left -= sum(given.values())
    targets = {index: target + given[index] for index, target in targets.items()}
    unmet = {i: 0 if i in reducing else _want(each).lacking - given[i] for i, each in present.items()}
    settled = not reducing and all(each.committed <= max(targets[i], each.used) for i, each in present.items())
    found = _exchange(present, order, unmet, limit, memory) if settled and full else None
    if found is not None:
        giver, amount = found
        targets[giver] = present[giver].used - amount
        reducing.add(giver)
    sharing = [index for index in order if index not in reducing and present[index].users]
    for place, index in enumerate(sharing):
        targets[index] += left // len(sharing) + (place < left % len(sharing))
    return targets, frozenset(reducing)


def _granted(
    present: Mapping[int, Entry], order: Sequence[int], reducing: Collection[int], left: int
) -> dict[int, int]:
    """Return how much of what is `left` each shard gets of what it lacks, in the `order` of worth.

    Shards with unserved demand of the same priority get it so that the shares that are not served become equal, as an
    exchange would make them.
    """
    given = dict.fromkeys(present, 0)
    rest = [index for index in order if index not in reducing]
    while rest:
        first = _want(present[rest[0]])
        equals = [i for i in rest if _want(present[i]).unserved > 0 and _want(present[i]).priority == first.priority]
        group = equals if first.unserved > 0 else rest[:1]
        lacking = {index: _want(present[index]).lacking for index in group}
        step = max(1, left // _PARTS)
        while left > 0 and any(given[index] < lacking[index] for index in group):
            index = max(group, key=lambda index: _unserved(present[index], given[index]))
            more = min(step, left, lacking[index] - given[index])
            given[index] += more
            left -= more
        rest = [index for index in rest if index not in group]
    return given


def _unserved(entry: Entry, given: int) -> tuple[bool, float]:
    """Return the share that a shard would not serve with what it is `given`, as a key: the largest is the first."""
    want = _want(entry)
    lacks = want.lacking - given
    return lacks > 0, want.unserved * lacks / want.lacking if want.lacking else 0.0


def _want(entry: Entry) -> Want:
    return entry.want or _NOTHING


def _gives_back(index: int, entry: Entry, now_s: float, memory: Memory) -> bool:
    """Return whether a shard is giving back, and still has time to do so."""
    pending = entry.reduce and entry.allowed is not None and entry.used > entry.allowed
    return pending and now_s - memory.since_s.get(index, now_s) <= PATIENCE_S


def _lowered(
    present: Mapping[int, Entry], targets: Mapping[int, int], reducing: frozenset[int], rest: int
) -> dict[int, Entry]:
    """Return the entries with lower allowances where that is needed; nothing more is committed here.

    For the sake of room alone, allowances fall only if a shard has less than half of the room that it should have.
    """
    short = any(_is_short(each, targets[index]) for index, each in present.items() if index not in reducing)
    above = committed(list(present.values())) > rest
    found: dict[int, Entry] = {}
    for index, each in present.items():
        allowed = min(targets[index], each.committed) if each.allowed is None else each.allowed
        if short or above or index in reducing:
            allowed = min(allowed, targets[index])
        found[index] = replace(each, allowed=allowed, reduce=index in reducing)
    return found


def _is_short(entry: Entry, target: int) -> bool:
    """Return whether a shard has less than it lacks, or less than half of the room for growth that it should have."""
    room = (entry.allowed or 0) - entry.used
    return (entry.allowed or 0) < target and (room < _want(entry).lacking or 2 * room < target - entry.used)


def _by_worth(present: Mapping[int, Entry]) -> list[int]:
    """Return the shards, the one first to which one more unit is worth most."""

    def worth(index: int) -> tuple[float, ...]:
        want = _want(present[index])
        if not want.lacking:
            return (0.0, 0.0, 0.0, 0.0)
        if want.unserved > 0:
            return (2.0, float(want.priority), want.unserved, want.price_per_hour or 0.0)
        return (1.0, 0.0, 0.0, want.price_per_hour or 0.0)

    return sorted(present, key=lambda index: (tuple(-each for each in worth(index)), index))


def _exchange(
    present: Mapping[int, Entry], order: Sequence[int], unmet: Mapping[int, int], limit: int, memory: Memory
) -> tuple[int, int] | None:
    """Return the shard that gives back what it uses for another, and how much; None where no exchange is worth it."""
    taker = next((index for index in order if unmet[index] > 0), None)
    if taker is None:
        return None
    for giver in reversed(order):
        used = present[giver].used
        amount = min(unmet[taker], max(1, int(LARGEST_STEP * limit)), used)
        if giver == taker or amount <= 0 or giver in memory.refused_s:
            continue
        known = [each.want for each in memory.lost.get(giver, ()) if used - amount <= each.allowed < used]
        own = _want(present[giver])
        if all(_beats(_want(present[taker]), want, own.least_priority) for want in (own, *known)):
            return giver, amount
    return None


def _beats(taker: Want, giver: Want, least_priority: int | None) -> bool:
    """Return whether more is worth so much more to `taker` than to `giver` that it should have it.

    `least_priority` is the lowest one of a pipeline of the giver that uses the resource.
    """
    if taker.unserved > 0:
        if least_priority is None or taker.priority < least_priority:
            return False  # or what it uses is nothing that a plan could do without
        if taker.priority > least_priority:
            return True
        theirs = giver.unserved if giver.lacking and giver.priority >= taker.priority else 0.0
        return taker.unserved > MARGIN * theirs + UNSERVED_MARGIN
    if giver.lacking and (giver.unserved > 0 or giver.price_per_hour is None):
        return False
    theirs = (giver.price_per_hour or 0.0) if giver.lacking else 0.0
    return taker.price_per_hour is not None and taker.price_per_hour > MARGIN * theirs


def _remembered(memory: Memory, own: Mapping[int, Entry], now_s: float) -> Memory:
    """Return the memory with what shards lack at their present allowance, and without what is too old."""
    lost: dict[int, tuple[Lost, ...]] = {}
    refused = {index: at_s for index, at_s in memory.refused_s.items() if now_s - at_s <= REMEMBERED_S}
    for index, each in own.items():
        kept = [old for old in memory.lost.get(index, ()) if now_s - old.at_s <= REMEMBERED_S]
        if each.allowed is not None and each.used <= each.allowed == each.agreed < each.used + _want(each).lacking:
            kept = [old for old in kept if old.allowed != each.allowed]
            kept.append(Lost(allowed=each.allowed, want=_want(each), at_s=now_s))
        lost[index] = tuple(kept)
        since_s = memory.since_s.get(index, now_s)
        if each.reduce and each.used > (each.allowed or 0) and now_s - since_s > PATIENCE_S:
            refused[index] = now_s
    return replace(memory, lost=lost, refused_s=refused)
