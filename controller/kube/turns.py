"""Chooses the pipelines of a large fleet that a cycle reads and assesses; the last decision about the others stands.

To read and assess a pipeline takes some milliseconds, so a cycle cannot do it for thousands. Up to `AT_ONCE` pipelines
are all assessed in every cycle. Above that, a cycle assesses, up to `MOST` together:

1. those that were not assessed for `_LONGEST` cycles;
2. those that have no plan yet, up to `PER_TURN`;
3. where more is used than a pool or a budget allows, the least important that use it, up to half of `MOST`;
4. those whose last decision their status does not have yet, up to `FIRST_UNWRITTEN`;
5. those of which something has changed: the spec, a workload or a pod, a demand above what was planned for or much
   below, a latency above the SLA; and those whose demand is expected to change with the time of day, several times
   within the time for which they plan ahead;
6. those about which something is under way: a pool or a budget of theirs has changed, or replicas are not all ready;
   and those that were not assessed since the start;
7. more of those of 4, up to `PER_TURN`: the API server takes so many statuses in a cycle;
8. the longest unassessed of the others, an `EVERY`th of the fleet.

The queries of all pipelines for demand and latency are sent in every cycle. What is read of the metrics of a standing
pipeline is acted on in the next one.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from controller.core.assess.demand import horizon_s
from controller.core.assess.standing import (
    Levels,
    exceeds,
    fleet_spend_per_hour,
    has_moved,
    is_settled,
    levels,
    may_stand,
    standing,
)
from controller.core.plan.large_fleet import AT_ONCE, PER_TURN
from controller.core.plan.ledger import EPSILON, FLEET
from controller.core.state.decision import Decision, HoldReason
from controller.core.state.snapshot import PipelineState, Snapshot, StandingPipeline
from controller.core.state.spec import PipelineSpec
from optimizer.model import PipelineKey, PoolName, pool_of
from profiler.samples import Reading

MOST = 500
"""So many pipelines are assessed in a cycle, besides those that cannot stand."""
EVERY = 12
"""A settled pipeline is assessed at least every so many cycles."""
FIRST_UNWRITTEN = 50
_LONGEST = 2 * EVERY
"""A pipeline that was not assessed for so many cycles comes before all others."""
_TIMES_AHEAD = 4
"""A demand that changes with the time of day is assessed so many times within the time that plans look ahead."""
_AWAITED = frozenset({HoldReason.AWAITING_CAPACITY, HoldReason.POOL_UNAVAILABLE, HoldReason.ON_TRIAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a pipeline was when it was last read: its resource's UID and version, and its workloads with their pods."""

    uid: str
    version: Hashable
    workloads: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assessed:
    """The last assessment of a pipeline, in cycle `cycle` (0: none); `levels` are None where it has not settled.

    `shares` are the pools that it shares with others. It is assessed again `within` so many cycles.
    """

    cycle: int
    seen: Seen
    standing: StandingPipeline
    levels: Levels | None
    planned: bool
    shares: frozenset[str]
    within: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """Pools by name, and the namespaces of ComputeBudgets; with `all`, what every pipeline shares."""

    pools: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    all: bool = False

    def concerns(self, known: _Assessed) -> bool:
        """Whether a pipeline uses one of the pools, or is in one of the budgets."""
        return self.all or known.standing.namespace in self.namespaces or not self.pools.isdisjoint(known.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The pipelines that a cycle assesses, and those that stand as they were; the `others` have to be read to stand.

    `seen` has what those that are read and may stand are now, for the next cycle to compare; empty for a small fleet.
    """

    assessed: frozenset[PipelineKey]
    standing: Mapping[PipelineKey, StandingPipeline]
    others: frozenset[PipelineKey]
    seen: Mapping[PipelineKey, Seen] = field(default_factory=dict)


_NEVER = _Assessed(
    cycle=0,
    seen=Seen(uid="", version=None, workloads=None),
    standing=StandingPipeline(key=PipelineKey(""), namespace="", placements=()),
    levels=None,
    planned=False,
    shares=frozenset(),
)


class Turns:
    """Knows of each pipeline, by the UID of its resource, how it was when it was last assessed."""

    def __init__(self) -> None:
        self._cycle = 0
        self._known: dict[str, _Assessed] = {}
        self._moved: set[str] = set()
        self._unwritten: set[str] = set()
        """Those whose last decision their status does not have yet."""
        self._shared: Mapping[str, Hashable] = {}
        self._exceeded = _Shared()

    @property
    def unwritten(self) -> int:
        """How many pipelines have a decision that their status does not have yet."""
        return len(self._unwritten)

    def choose(
        self,
        specs: Sequence[PipelineSpec],
        seen: Callable[[PipelineSpec], Seen],
        has_plan: Callable[[str], bool],
        billed: Collection[PoolName] = frozenset(),
    ) -> Chosen:
        """Return which of all `specs` this cycle assesses.

        `seen` returns what a pipeline is now. `has_plan` says of the UID of a pipeline that was not assessed yet
        whether an earlier process has planned it. On the pools `billed`, whole instances are paid for.
        """
        self._cycle += 1
        present = {spec.uid for spec in specs}
        self._known = {uid: known for uid, known in self._known.items() if uid in present}
        self._unwritten &= present
        keys = frozenset(spec.key for spec in specs)
        if len(specs) <= AT_ONCE:
            return Chosen(assessed=keys, standing={}, others=frozenset())
        lenders = frozenset(owner for spec in specs for owner, _ in spec.borrowed.values())
        always = set[PipelineKey]()
        unplanned, unwritten, urgent = list[_Due](), list[_Due](), list[_Due]()
        unsettled, settled, giving = list[_Due](), list[_Due](), list[tuple[int, int, PipelineKey]]()
        kept: dict[PipelineKey, StandingPipeline] = {}
        now: dict[PipelineKey, Seen] = {}
        for spec in specs:
            known = self._known.get(spec.uid)
            if not may_stand(spec, lenders, billed):
                always.add(spec.key)
            else:
                now[spec.key] = seen(spec)
                same = known is not None and known.seen == now[spec.key]
                known = known or _NEVER
                due = (known.cycle, -spec.priority, spec.key)
                if same:
                    kept[spec.key] = known.standing
                if not known.planned and not (known.cycle == 0 and has_plan(spec.uid)):
                    unplanned.append(due)
                    continue
                if self._exceeded.concerns(known):
                    giving.append((spec.priority, known.cycle, spec.key))
                if known.cycle == 0:
                    unsettled.append(due)
                elif not same or spec.uid in self._moved or self._cycle - known.cycle >= known.within:
                    urgent.append(due)
                elif known.levels is None:
                    unsettled.append(due)
                elif spec.uid in self._unwritten:
                    unwritten.append(due)
                else:
                    settled.append(due)
        old = [due for due in (*settled, *unwritten, *urgent, *unsettled) if self._cycle - due[0] >= _LONGEST]
        # The changed ones come after those without a plan, of which there are few: they must not keep these waiting.
        late = sorted(unwritten)[:PER_TURN]
        order = [*sorted(old), *sorted(unplanned)[:PER_TURN], *sorted(giving)[: MOST // 2], *late[:FIRST_UNWRITTEN]]
        order += [*sorted(urgent), *sorted(unsettled), *late[FIRST_UNWRITTEN:]]
        order += sorted(settled)[: math.ceil(len(specs) / EVERY)]
        assessed = always | set(list(dict.fromkeys(key for *_, key in order))[:MOST])
        standing_now = {key: each for key, each in kept.items() if key not in assessed}
        return Chosen(
            assessed=frozenset(assessed),
            standing=standing_now,
            others=keys - assessed - kept.keys(),
            seen={key: each for key, each in now.items() if key not in standing_now},
        )

    def as_read(self, state: PipelineState, planned_at_s: float | None) -> StandingPipeline:
        """Return one of the `others` with the workloads of `state`, which has just been read.

        `planned_at_s` is when an earlier process planned it, in epoch seconds; None: it has left no plan.
        """
        known = self._known.get(state.spec.uid)
        if known is None:
            return standing(state, None, planned_at_s)
        return standing(state, known.standing.assessed_at_s, known.standing.planned_at_s)

    def look(
        self, specs: Iterable[PipelineSpec], answers: Callable[[PipelineSpec], tuple[Reading, Reading | None]]
    ) -> Mapping[PipelineKey, bool]:
        """Note which of the standing pipelines `specs` are to be assessed next, by their demand and latency now.

        Return whether the latency exceeds the SLA, of those of which that is known.
        """
        moved, late = set[str](), dict[PipelineKey, bool]()
        for spec in specs:
            demand, latency_s = answers(spec)
            known = self._known.get(spec.uid)
            if known is not None and known.levels is not None and has_moved(known.levels, demand, latency_s):
                moved.add(spec.uid)
            if (above := exceeds(latency_s, spec.sla.latency_s)) is not None:
                late[spec.key] = above
        self._moved = moved
        return late

    def conclude(
        self,
        snapshot: Snapshot,
        decision: Decision,
        seen: Mapping[PipelineKey, Seen],
        *,
        news: Collection[PipelineKey],
        written: Collection[PipelineKey],
    ) -> None:
        """Note what was assessed in this cycle.

        Those of which there are `news` come before others until their status is `written`: a restart continues from it.
        """
        for each in snapshot.standing:
            if (read := seen.get(each.key)) is not None:
                before = self._known.get(read.uid, _NEVER)
                self._known[read.uid] = replace(before, seen=read, standing=each, levels=None)
        for state, own in zip(snapshot.pipelines, decision.pipelines, strict=True):
            if own.key not in seen:
                continue
            if own.key in written:
                self._unwritten.discard(own.spec.uid)
            elif own.key in news:
                self._unwritten.add(own.spec.uid)
            settled = is_settled(state, own)
            stands = standing(state, snapshot.now_s, None if own.planned is None else own.planned.at_s)
            self._known[own.spec.uid] = _Assessed(
                cycle=self._cycle,
                seen=seen[own.key],
                standing=stands,
                levels=levels(state, own) if settled else None,
                planned=not any(hold.reason is HoldReason.AWAITING_TURN for hold in own.holds),
                shares=frozenset(pool_of(each.key[1]) for each in stands.placements),
                within=_within(state, decision.policy.interval_s),
            )
        now = _shared(snapshot, decision)
        changed = {name for name, terms in now.items() if self._shared and self._shared.get(name) != terms}
        self._unsettle(_users(changed | pressed(decision), snapshot))
        self._shared = now
        self._exceeded = _users(exceeded(snapshot, decision), snapshot)

    def _unsettle(self, shared: _Shared) -> None:
        """Let the pipelines be assessed that use one of the pools, or are in one of the budgets of `shared`."""
        for uid, known in self._known.items():
            if known.levels is not None and shared.concerns(known):
                self._known[uid] = replace(known, levels=None)


def _within(state: PipelineState, interval_s: float) -> float:
    """Return within how many cycles a pipeline is assessed again: none starts too late for an opening of its day."""
    if state.spec.history is None:
        return math.inf
    return max(1, int(horizon_s(state.spec, interval_s) / _TIMES_AHEAD / interval_s))


def _users(names: Set[str], snapshot: Snapshot) -> _Shared:
    """Return the pools and the namespaces of the ComputeBudgets with `names`; with that of the fleet, all pipelines."""
    of_budgets = (state.namespaces for state in snapshot.budgets if state.spec.name in names)
    return _Shared(pools=frozenset(names), namespaces=frozenset().union(*of_budgets), all=FLEET in names)


def exceeded(snapshot: Snapshot, decision: Decision) -> frozenset[str]:
    """Return the pools and ComputeBudgets of which more is used than they allow, with `FLEET` for that of the fleet."""
    found = {str(pool.name) for pool in decision.pools if pool.planned > pool.limit}
    found |= {budget.name for budget in decision.budgets if budget.exceeded}
    most = decision.policy.budget_per_hour
    if most is not None and fleet_spend_per_hour(snapshot, decision) > most + EPSILON:
        found.add(FLEET)
    return frozenset(found)


def pressed(decision: Decision) -> frozenset[str]:
    """Return the pools and ComputeBudgets that a pipeline lacks: others that use them may have to give."""
    found: set[str] = {budget.name for budget in decision.budgets if budget.short or budget.exceeded}
    for own in decision.pipelines:
        if own.spec.backlog is not None:  # it gets what the others leave
            continue
        limit = None if own.plan is None else own.plan.limited_by
        if limit is not None and limit.name is not None:
            found.add(limit.name)
        found.update(pool_of(hold.placement) for hold in own.holds if hold.reason in _AWAITED and hold.placement)
    return frozenset(found)


def _shared(snapshot: Snapshot, decision: Decision) -> Mapping[str, Hashable]:
    """Return what of pools and ComputeBudgets the decisions of all that share them were made from."""
    pools: dict[str, Hashable] = {
        name: (pool.spec, pool.leaving_instances, pool.memory.unavailable_until_s)
        for name, pool in snapshot.pools.items()
    }
    members = {state.spec.name: state.namespaces for state in snapshot.budgets}
    return pools | {budget.name: (budget.limit_per_hour, members.get(budget.name)) for budget in decision.budgets}


_Due = tuple[int, int, PipelineKey]
"""The cycle of the last assessment, the negative priority, and the key."""
