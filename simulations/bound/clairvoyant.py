"""The clairvoyant bound: a lower bound on the cost of any schedule of replicas that meets the SLA in enough windows.

A schedule here knows load and faults in advance, but not the random service time of a batch. It may change at any
time. It respects budget, pools, `replicas.max`, `maxWer` and start-up, sheds nothing, and in at least
`required_share` of the scored windows answers the SLA's percentile of the items in time. For every such schedule the
averages over segments of time (windows, or equal parts of them) satisfy the linear program that is solved here, at the
schedule's own cost; so the program's minimum is at most the cost of the cheapest schedule. What the program requires,
and what it relaxes:

* Work. In a window that is met, `percentile` percent of the items that count are done at every stage that they visit.
  Filtered items are done too, except for as many as may be lost without the window being missed. An item takes a
  replica's time for its share of a full batch (the largest that can be answered in time); queues and batches that are
  not full cost nothing. Work is done in the segment in which it arrives, unless it arrives so late that it may be
  answered after the segment's end: within the SLA, or within ten SLAs where the item is filtered. Service times count
  with their mean: the bound holds for the expected cost, whatever their law.
* Windows. A window with fewer than 20 items that count requires nothing. Of the other windows, as many may be given up
  as a run may miss: 1 − `required_share` of them, rounded down to a whole number. A window may be given up in part: its
  requirement falls in proportion, as it does when a window is met for some service times only.
* Slots. Streams that are answered hold a slot at every stage with memory, from their first chunk to their last.
* Start-up. A serving replica has been paid for since its start: paid(t) ≥ serving(u) for t ≤ u ≤ t + start-up. Cost
  before the scored time is free.
* Whole replicas. In any interval there is a time at which a whole number of replicas of each placement together carries
  the interval's mean rate. Because of start-up, all these replicas are paid for in the segments before. So the cost of
  the cheapest whole mix is a lower bound there. The program has straight lines below that cost, as a function of the
  work left undone.
* Budget and capacity. Spend is within the budget, except for the drain and two cycles after a change of price or
  budget; a pool has no more replicas than all its instances together hold. `replicas.min` is paid for while no fault
  has removed machines of the pool and the minimums fit.
* Faults. While a pool is unavailable, no placement on it grows; while it is lost, there is none. A stage that is slow
  takes as long as at the fastest moment of a segment. Spot machines that are reclaimed may be replaced at once; slow
  starts are ignored; lost metrics have no effect, because the schedule knows the load.

How far the bound is below the cheapest real schedule depends on the load. It leaves out the replicas that real queues
need beyond the work itself, and lets the schedule choose the few items that may be late, which no policy can. With one
or two replicas at a stage the distance is large.

Replicas that drain count towards `replicas.max`. A stream that has lost its replica gets its next slot at once.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc

from controller.core.state.spec import DemandUnit, PipelineSpec, PlacementSpec, PoolSpec, StageSpec
from optimizer.model import PipelineKey, PoolName, ServiceLaw
from simulations.bound.arrivals import Arrivals, count_arrivals
from simulations.bound.program import CapacityLimit, Need, Program, ReplicaSupply, solve
from simulations.results.scoring import LOST_AFTER_SLAS, MIN_WINDOW_ITEMS, REQUIRED_SHARE, Clock, Interval
from simulations.scenario.scenario import Fault
from simulations.scenario.schedule import Schedule

Array = NDArray[np.float64]

_MAX_SEGMENTS = 600
_EXCUSE_CYCLES_S = 120.0
"""Two cycles of the slowest policy."""
_WHOLE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """All resources as they are from `at_s` on, until the next `set` fault changes them."""

    at_s: float
    pipelines: tuple[PipelineSpec, ...]
    pools: tuple[PoolSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least cost in USD over the scored time; None where no schedule meets the SLA often enough.

    `windows_share` is the share (0–1) of the scored windows that are met at that cost. `cost_per_hour[i]` is the cost
    in the segment of time that begins at `times_s[i]`; both are empty where `cost` is None.
    """

    cost: float | None
    windows_share: float
    times_s: tuple[float, ...] = ()
    cost_per_hour: tuple[float, ...] = ()


def clairvoyant_bound(
    pipelines: Sequence[PipelineSpec],
    pools: Sequence[PoolSpec],
    schedules: Mapping[PipelineKey, Schedule],
    clock: Clock,
    *,
    seeds: Mapping[PipelineKey, int],
    faults: Iterable[Fault] = (),
    changes: Iterable[Epoch] = (),
    required_share: float = REQUIRED_SHARE,
) -> Bound:
    """Return the bound for one load; the module's docstring defines it.

    Args:
        pipelines: the pipelines at the beginning of the run.
        pools: the pools at the beginning of the run.
        schedules: the load of each pipeline, spikes included.
        clock: the scored time.
        seeds: the engine's seed for each pipeline, which decides when streams offer chunks and which are filtered.
        faults: all faults of the scenario. For `set` faults only `changes` is used.
        changes: the resources after each `set` fault, sorted by time.
        required_share: the share of the scored windows that must be met, in every run.

    Raises:
        BoundNotFound: the solver failed.
    """
    world = _World(
        epochs=(Epoch(at_s=0.0, pipelines=tuple(pipelines), pools=tuple(pools)), *changes),
        faults=tuple(faults),
        clock=clock,
    )
    windows = [
        _PipelineWindows(world, index, pipeline, schedules[pipeline.key], seed=seeds[pipeline.key])
        for index, pipeline in enumerate(world.pipelines)
    ]
    scored = sum(part.scored for part in windows)
    program = Program(
        edges_s=world.edges_s,
        window_of=world.window_of,
        windows=len(windows) * world.windows,
        given_up=math.floor((1 - required_share) * sum(part.candidates for part in windows) + _WHOLE),
        supplies=tuple(world.supplies()),
        needs=tuple(need for part in windows for need in part.needs()),
        limits=tuple(world.limits()),
    )
    solution = solve(program)
    if solution is None:
        return Bound(cost=None, windows_share=0.0)
    given_up = sum(
        float(solution.given_up[k * world.windows : (k + 1) * world.windows][part.asks].sum())
        for k, part in enumerate(windows)
    )
    return Bound(
        cost=float(solution.cost.sum()),
        windows_share=1 - given_up / scored if scored else 1.0,
        times_s=tuple(world.edges_s[:-1].tolist()),
        cost_per_hour=tuple((solution.cost / program.lengths_s * 3600).tolist()),
    )


class _World:
    """Resources and faults over time, by segment of the program. Where a value is uncertain, the cheaper one counts."""

    def __init__(self, *, epochs: tuple[Epoch, ...], faults: tuple[Fault, ...], clock: Clock) -> None:
        self.epochs = epochs
        self.faults = faults
        self.clock = clock
        self.pipelines = epochs[0].pipelines
        self.placements = [
            (pipeline, stage, placement)
            for pipeline in self.pipelines
            for stage in pipeline.stages
            for placement in stage.placements
        ]
        self.windows = max(0, math.ceil(round((clock.duration_s - clock.warmup_s) / clock.window_s, 9)))
        self.edges_s = self._edges()
        starts_s = self.edges_s[:-1]
        self.window_of = np.floor((starts_s - clock.warmup_s) / clock.window_s + _WHOLE).astype(np.int64)
        self._lag_s = max((pipeline.scaling.drain_s for pipeline in self.pipelines), default=0.0) + _EXCUSE_CYCLES_S

    def _edges(self) -> Array:
        """Return the borders of the segments.

        Segments are windows, or equal parts of windows, so that the cuts apply: at most half a typical start-up, as far
        as `_MAX_SEGMENTS` allows.
        """
        clock = self.clock
        startups_s = sorted(placement.startup_s for *_, placement in self.placements)
        typical_s = startups_s[len(startups_s) // 2] if startups_s else 0.0
        parts = 1
        if typical_s > 0:
            parts = math.ceil(round(2 * clock.window_s / typical_s, 9))
        parts = max(1, min(parts, _MAX_SEGMENTS // max(self.windows, 1)))
        length_s = clock.window_s / parts
        count = math.ceil(round((clock.duration_s - clock.warmup_s) / length_s, 9))
        return np.asarray(np.minimum(clock.warmup_s + np.arange(count + 1) * length_s, clock.duration_s))

    def supplies(self) -> Iterable[ReplicaSupply]:
        """Yield the supply of every placement: its possible replicas."""
        for pipeline, stage, placement in self.placements:
            prior = placement.prior
            usable = pipeline.excess_wer(placement) is None
            lost = self._inside(self._spans("poolLost", placement.pool))
            held = self._inside(self._spans("poolUnavailable", placement.pool))
            declared = [(epoch.at_s, _placement(epoch, pipeline, stage, placement).prior) for epoch in self.epochs]
            least = self._steps([(at_s, each.min_replicas) for at_s, each in declared], min, self._lag_s)
            most = self._steps(
                [(at_s, each.max_replicas if usable else each.min_replicas) for at_s, each in declared],
                max,
                self._lag_s,
            )
            room = np.floor(self._room(placement.pool) * float(prior.per_instance) + _WHOLE)
            most = np.where(lost, 0.0, np.minimum(most, room))
            yield ReplicaSupply(
                startup_s=placement.startup_s * min([1.0, *self._start_factors(placement.pool)]),
                price_per_hour=self._price_per_hour(placement, 0.0),
                at_least=np.where(self._minimum_holds(pipeline, placement.pool), np.minimum(least, most), 0.0),
                at_most=most,
                may_grow=~(held & np.concatenate([[False], held[:-1]])),
            )

    def limits(self) -> Iterable[CapacityLimit]:
        """Yield the limits by the pools' instances and by the pipelines' budgets."""
        for pool in self.epochs[0].pools:
            on_it = [k for k, (*_, placement) in enumerate(self.placements) if placement.pool == pool.name]
            most = self._room(pool.name)
            if on_it and np.all(np.isfinite(most)):
                share = np.array([[float(1 / self.placements[k][2].prior.per_instance)] for k in on_it])
                yield CapacityLimit(supplies=tuple(on_it), weights=np.repeat(share, len(most), axis=1), most=most)
        for pipeline in self.pipelines:
            own = [k for k, (owner, *_) in enumerate(self.placements) if owner is pipeline]
            budgets = [(epoch.at_s, _pipeline(epoch, pipeline).budget_per_hour) for epoch in self.epochs]
            yield CapacityLimit(
                supplies=tuple(own),
                weights=np.array([self._price_per_hour(self.placements[k][2], self._lag_s) for k in own]),
                most=self._steps(budgets, max, self._lag_s),
            )

    def _room(self, pool: PoolName) -> Array:
        return self._steps([(epoch.at_s, _instances(epoch, pool)) for epoch in self.epochs], max, self._lag_s)

    def _price_per_hour(self, placement: PlacementSpec, back_s: float) -> Array:
        """Return, for each segment, a replica's lowest price (USD per hour) in it and in the `back_s` before it."""
        prices = [(epoch.at_s, _pool(epoch, placement.pool).price_per_hour) for epoch in self.epochs]
        return np.asarray(self._steps(prices, min, back_s) / float(placement.prior.per_instance))

    def slow_factor(self, pipeline: PipelineSpec, stage: StageSpec) -> Array:
        """Return, for each segment, the least factor by which batches are slowed down that may end in it."""
        names = {str(stage.name), f"{pipeline.key}/{stage.name}"}
        slow = [
            (fault.interval, fault.slow_stage.factor)
            for fault in self.faults
            if fault.slow_stage is not None and fault.slow_stage.stage in names
        ]
        instants = [0.0, *(t for interval, _ in slow for t in (interval.from_s, interval.until_s))]
        factors = [
            (t, math.prod(factor for interval, factor in slow if interval.from_s <= t < interval.until_s))
            for t in sorted(set(instants))
        ]
        return self._steps(factors, min, LOST_AFTER_SLAS * self.sla_s(pipeline))

    def sla_s(self, pipeline: PipelineSpec) -> float:
        """Return the longest latency (s) of a pipeline's SLAs during the run."""
        return max(_pipeline(epoch, pipeline).sla.latency_s for epoch in self.epochs)

    def percentile(self, pipeline: PipelineSpec) -> float:
        """Return the lowest percentile (0–100) of a pipeline's SLAs during the run."""
        return min(_pipeline(epoch, pipeline).sla.percentile for epoch in self.epochs)

    def _minimum_holds(self, pipeline: PipelineSpec, pool: PoolName) -> NDArray[np.bool_]:
        """Return, for each segment, whether a placement has its minimum of replicas under any policy."""
        taken_s = [interval.from_s for kind in ("poolLost", "spotReclaim") for interval in self._spans(kind, pool)] or [
            math.inf
        ]
        room = min(_instances(epoch, pool) for epoch in self.epochs)
        used = max(
            sum(
                _placement(epoch, owner, stage, other).prior.min_replicas / other.prior.per_instance
                for owner, stage, other in self.placements
                if other.pool == pool
            )
            for epoch in self.epochs
        )
        spend = max(
            sum(
                _placement(epoch, owner, stage, other).prior.min_replicas
                * _pool(epoch, other.pool).price_per_hour
                / other.prior.per_instance
                for owner, stage, other in self.placements
                if owner is pipeline
            )
            for epoch in self.epochs
        )
        budget = min(_pipeline(epoch, pipeline).budget_per_hour for epoch in self.epochs)
        fits = used <= room + _WHOLE and spend <= budget + _WHOLE
        return (self.edges_s[1:] <= min(taken_s)) & fits

    def _start_factors(self, pool: PoolName) -> list[float]:
        return [
            fault.slow_start.factor
            for fault in self.faults
            if fault.slow_start is not None and fault.slow_start.pool == pool
        ]

    def _spans(self, kind: str, pool: PoolName) -> list[Interval]:
        return [fault.interval for fault in self.faults if fault.kind == kind and fault.pool == pool]

    def _inside(self, spans: Iterable[Interval]) -> NDArray[np.bool_]:
        """Return, for each segment, whether it lies within one of the spans."""
        begin, end = self.edges_s[:-1], self.edges_s[1:]
        inside = np.zeros(len(begin), dtype=np.bool_)
        for span in spans:
            inside |= (begin >= span.from_s) & (end <= span.until_s)
        return inside

    def _steps(
        self, steps: Sequence[tuple[float, float]], best: Callable[[Iterable[float]], float], back_s: float
    ) -> Array:
        """Return, for each segment, the `best` value of a step function in it and in the `back_s` before it.

        `steps` has pairs of a time (s) and the value from then on.
        """
        found = []
        for begin, end in zip(self.edges_s[:-1], self.edges_s[1:], strict=True):
            before = [value for at_s, value in steps if at_s <= begin - back_s]
            during = [value for at_s, value in steps if begin - back_s < at_s < end]
            found.append(best([*before[-1:], *during] or [steps[0][1]]))
        return np.array(found, dtype=np.float64)


class _PipelineWindows:
    """The needs of one pipeline's items, window by window.

    `asks` marks the windows with enough unfiltered items to be scored, `scored` is their number. `candidates` counts
    the windows that are scored if filtered items are lost, because lost items count.
    """

    def __init__(self, world: _World, index: int, pipeline: PipelineSpec, schedule: Schedule, *, seed: int) -> None:
        self._world = world
        self._first = index * world.windows
        self._pipeline = pipeline
        self._sla_s = world.sla_s(pipeline)
        self._share = world.percentile(pipeline) / 100
        clock = world.clock
        self._borders_s = np.minimum(clock.warmup_s + np.arange(world.windows + 1) * clock.window_s, clock.duration_s)
        self._arrivals = _arrivals(world, pipeline, schedule, self._borders_s, self._sla_s, seed=seed)
        arrivals = self._arrivals
        self._counted = np.diff(arrivals.at(arrivals.unfiltered, self._borders_s))
        offered = np.diff(arrivals.at((arrivals.needed + arrivals.spared).max(axis=0), self._borders_s))
        self.asks = self._counted >= MIN_WINDOW_ITEMS
        self.scored = int(np.count_nonzero(self.asks))
        self.candidates = int(np.count_nonzero(offered >= MIN_WINDOW_ITEMS))

    def needs(self) -> Iterable[Need]:
        """Yield the needs of every stage: its work, and its slots if it has memory."""
        for index, stage in enumerate(self._pipeline.stages):
            supplies = tuple(
                k
                for k, (owner, other, _) in enumerate(self._world.placements)
                if owner is self._pipeline and other is stage
            )
            yield self._work(index, stage, supplies)
            if self._pipeline.unit is DemandUnit.STREAMS:
                yield from self._slots(stage, supplies)

    def _work(self, index: int, stage: StageSpec, supplies: tuple[int, ...]) -> Need:
        world, arrivals = self._world, self._arrivals
        edges, start_s = world.edges_s, world.clock.warmup_s
        needed, spared = arrivals.needed[index], arrivals.spared[index]
        patient = bool(spared[-1])
        ends = edges[1:]
        carry = arrivals.at(needed, ends) - arrivals.at(needed, np.maximum(ends - self._sla_s, start_s))
        patience_s = LOST_AFTER_SLAS * self._sla_s
        carry += arrivals.at(spared, ends) - arrivals.at(spared, np.maximum(ends - patience_s, start_s))
        slow = world.slow_factor(self._pipeline, stage)
        room_s = patience_s if patient else self._sla_s - self._least_elsewhere_s(index)
        slots = self._pipeline.unit is DemandUnit.REQUESTS
        rate = np.array(
            [
                [_capacity_rps(placement, factor, room_s, one_slot_each=slots) for factor in slow]
                for placement in stage.placements
            ]
        )
        # Of n items that count, (1 − p) n may be late; or p late ones may be filtered items that were lost.
        spare = self._counted * (1 - self._share) / (self._share if patient else 1.0)
        return Need(
            supplies=supplies,
            rate_per_s=rate,
            amount=self._asked(np.diff(arrivals.at(needed + spared, edges))),
            carry=carry,
            spare=spare,
            windows=self._first,
        )

    def _slots(self, stage: StageSpec, supplies: tuple[int, ...]) -> Iterable[Need]:
        """Yield the stage's need of slots in stream-seconds, if all of its placements have slots.

        It may be left undone for as long as the chunks that may be late allow: a refused stream that is present for
        a whole window loses at least floor(window / chunk) chunks.
        """
        slots = [placement.prior.session_slots for placement in stage.placements]
        chunk_s = self._pipeline.chunk_s
        window_s = self._world.clock.window_s
        if chunk_s is None or window_s < chunk_s or any(count is None for count in slots):
            return
        per_chunk_s = window_s / math.floor(window_s / chunk_s)
        edges = self._world.edges_s
        yield Need(
            supplies=supplies,
            rate_per_s=np.array([[float(count or 0)] * (len(edges) - 1) for count in slots]),
            amount=self._asked(np.diff(self._arrivals.at(self._arrivals.present_s, edges))),
            carry=np.zeros(len(edges) - 1),
            spare=self._counted * (1 - self._share) / self._share * per_chunk_s,
            windows=self._first,
        )

    def _asked(self, amount: Array) -> Array:
        return np.where(self.asks[self._world.window_of], amount, 0.0)

    def _least_elsewhere_s(self, index: int) -> float:
        """Return the least time (s) that an item of a stage spends at other stages, on its longest required path."""
        stages = self._pipeline.stages
        names = [stage.name for stage in stages]
        least = [
            min(map(_least_service_s, stage.placements)) * float(self._world.slow_factor(self._pipeline, stage).min())
            for stage in stages
        ]
        to: list[float] = []
        for stage in stages:
            to.append(max((to[names.index(name)] + least[names.index(name)] for name in stage.after), default=0.0))
        # Where a path may end early, an item may be answered on another path, so later stages give no lower bound.
        if any(stage.pass_ratio < 1 for stage in stages) and self._ends() > 1:
            return to[index]
        onward = [0.0] * len(stages)
        for k in reversed(range(len(stages))):
            for name in stages[k].after:
                before = names.index(name)
                onward[before] = max(onward[before], onward[k] + least[k])
        return to[index] + onward[index]

    def _ends(self) -> int:
        stages = self._pipeline.stages
        return sum(all(stage.name not in other.after for other in stages) for stage in stages)


def _arrivals(
    world: _World, pipeline: PipelineSpec, schedule: Schedule, borders_s: Array, sla_s: float, *, seed: int
) -> Arrivals:
    start_s, ends = world.clock.warmup_s, world.edges_s[1:]
    times_s = np.concatenate(
        [
            world.edges_s,
            borders_s,
            np.maximum(ends - sla_s, start_s),
            np.maximum(ends - LOST_AFTER_SLAS * sla_s, start_s),
        ]
    )
    return count_arrivals(pipeline, schedule, times_s, seed=seed, duration_s=world.clock.duration_s)


def _capacity_rps(placement: PlacementSpec, slow_factor: float, room_s: float, *, one_slot_each: bool) -> float:
    """Return the most items per second that one replica can answer within `room_s`, at its best batch size.

    With `one_slot_each` every item in the replica holds a session slot.
    """
    prior = placement.prior
    slots = prior.session_slots if one_slot_each else None
    law = prior.service.scaled(slow_factor)
    best = 0.0
    for batch in range(1, min(prior.batch_sizes[-1], slots or prior.batch_sizes[-1]) + 1):
        at_once = min(batch * prior.concurrency, slots or batch * prior.concurrency)
        best = max(best, at_once / batch * law.rate_rps(batch) * _in_time(law, batch, room_s))
    return best


def _in_time(law: ServiceLaw, batch: int, room_s: float) -> float:
    """Return the probability that a batch takes at most `room_s`."""
    if room_s <= 0:
        return 0.0
    mean_s = law.mean_s(batch)
    if law.cv == 0:
        return float(mean_s <= room_s * (1 + _WHOLE))
    shape = 1 / law.cv**2
    return float(gammainc(shape, shape * room_s / mean_s))


def _least_service_s(placement: PlacementSpec) -> float:
    """Return the least service time of an item: that of a batch of one, or 0 where times are random."""
    return placement.prior.service.mean_s(1) if placement.prior.service.cv == 0 else 0.0


def _pipeline(epoch: Epoch, pipeline: PipelineSpec) -> PipelineSpec:
    return next((found for found in epoch.pipelines if found.key == pipeline.key), pipeline)


def _placement(epoch: Epoch, pipeline: PipelineSpec, stage: StageSpec, placement: PlacementSpec) -> PlacementSpec:
    for found in _pipeline(epoch, pipeline).stages:
        if found.name == stage.name:
            return next((other for other in found.placements if other.name == placement.name), placement)
    return placement


def _pool(epoch: Epoch, name: PoolName) -> PoolSpec:
    return next(pool for pool in epoch.pools if pool.name == name)


def _instances(epoch: Epoch, name: PoolName) -> float:
    instances = _pool(epoch, name).instances
    return math.inf if instances is None else float(instances)
