"""The simulated data plane of one pipeline: its items from the ingress to the last stage.

It differs from the lab's data plane in these points:
* A hop between stages takes `hop_s`.
* The slots of a stream are free when the stream ends, not when the last of its chunks has left.
* A new stream that finds no replica at a stage waits for one for 10 × SLA, and looks with each chunk that it offers.
* After one branch of an item is refused, its other branches go on.
* With Pull, a free batch slot takes the items that wait.
"""

import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.core.state.spec import PipelineSpec
from optimizer.model import BatchSettings, PlacementKey, StageName
from simulations.engine import kernel
from simulations.engine import state as places
from simulations.engine.played import played
from simulations.engine.state import PULL, Counts, Floats, constants_of, state_of, with_items, with_replicas
from simulations.results.histogram import LatencyHistogram
from simulations.results.scoring import (
    FILTERED,
    IN_FLIGHT,
    LOST,
    LOST_AFTER_SLAS,
    REFUSED,
    SERVED,
    SHED,
    Clock,
    Items,
    SlaChanges,
    Tally,
)
from simulations.scenario.schedule import Schedule
from simulations.scenario.values import MOST_SENDS

_NOTHING = np.empty(0, dtype=np.int64)
HANDOVER_S = 0.5
"""The least time that a draining replica still takes items pinned to it, unless its drain is shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCounters:
    """The counters of all replicas since the start of the run. Each array is indexed by replica number.

    `placement` is the index of the replica's placement in `PipelineSpec.placement_keys()`. Times are in seconds.
    `busy_s` has the service time of each batch once, `service_s` once per item of the batch. `latency_sum_s` is waiting
    plus service. `refused_sessions` counts streams, and items that need a slot of their own, that found no free slot; a
    stream counts at one replica of each placement. `latency_counts` has shape (replicas, len(LATENCY_BOUNDS_S) + 1).
    `queued`, `in_service` and `sessions` are current values.
    """

    placement: Counts
    arrived: Counts
    refused: Counts
    completed: Counts
    batches: Counts
    busy_s: Floats
    service_s: Floats
    latency_sum_s: Floats
    refused_sessions: Counts
    latency_counts: Counts
    queued: Counts
    in_service: Counts
    sessions: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressCounters:
    """The metrics of the ingress: items since the start, and the streams offered now.

    A stream that is shed or refused counts as offered until 30 s after its last attempt. offered = served + filtered +
    shed + refused + lost + in_flight. `latency_counts` has the number of served items per latency
    bucket (upper bounds: `PipelineEngine.ingress_bounds_s`); lost items are in the last bucket.
    """

    active_streams: int
    offered: int
    served: int
    filtered: int
    shed: int
    refused: int
    lost: int
    in_flight: int
    retries: int
    sessions_cut: int
    latency_counts: Counts
    latency_sum_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What differs from an ideal cluster.

    `reconnects`: refused and shed streams come back. `overhead_s`: time of every item outside the stages.
    `speed_spread`: the service times of replicas differ by a factor, log-normal with mean 1 and this coefficient of
    variation.
    """

    reconnects: bool = True
    overhead_s: float = 0.0
    speed_spread: float = 0.0


IDEAL = Conditions()


class PipelineEngine:
    """One pipeline's items, simulated event by event; time only moves forward, from 0.

    The same schedule, seed and calls give the same results, however often `advance` stops in between.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        schedule: Schedule,
        *,
        clock: Clock,
        seed: int,
        hop_s: float = 0.0,
        sla_changes: SlaChanges = (),
        conditions: Conditions = IDEAL,
    ) -> None:
        """Set up the engine at time 0, without replicas.

        `seed` decides the phases of streams, filtering, service times and random routing. `hop_s` is the latency that
        every hop between ingress and stages adds. `conditions` are what a real cluster adds to the ideal. `sla_changes`
        are for the tally only: the timeout of items does not change.

        Raises:
            ValueError: a stage is listed before a stage in its `after`.
        """
        self.pipeline, self._played = pipeline, played(pipeline)
        self._own: list[int] = []  # the number of each replica in the kernel, which numbers links too
        self._link: dict[int, int] = {}  # the link to a replica, by its number
        self.ingress_bounds_s = LatencyHistogram(pipeline.sla.latency_s).bounds_s
        self._keys = self._played.pipeline.placement_keys()
        self._constants = constants_of(
            self._played.pipeline,
            schedule,
            duration_s=clock.duration_s,
            seed=seed,
            hop_s=hop_s,
            bounds_s=np.array(self.ingress_bounds_s),
            reconnects=conditions.reconnects,
            overhead_s=conditions.overhead_s,
        )
        self._state = state_of(self._constants)
        for index, stage in enumerate(self._played.pipeline.stages):
            self._state.stage["takes"][index] = self._played.takes.get(stage.name, 1.0)
        patience_s = LOST_AFTER_SLAS * pipeline.sla.latency_s
        self._tally = Tally(
            pipeline.sla,
            clock,
            changes=sla_changes,
            open_windows=math.ceil(patience_s / clock.window_s) + 3,
        )
        self._seed = seed
        self._speed_spread = conditions.speed_spread
        self._slownesses: list[float] = []  # of the replicas, without what their neighbours do
        self._draining: dict[int, float] = {}  # replica -> when its sessions are cut
        self._closed: set[int] = set()  # serving replicas that get no new streams
        self._ending: set[int] = set()  # draining or drained replicas that `ended` has not returned yet

    @property
    def now_s(self) -> float:
        """Return the current time in seconds since the start of the run."""
        return float(self._state.real[places.NOW_S])

    @property
    def admissible(self) -> float | None:
        """The number of streams, or requests per second, above which new ones are shed; None if there is no limit."""
        limit = float(self._state.real[places.ADMISSIBLE])
        return None if math.isinf(limit) else limit

    @admissible.setter
    def admissible(self, limit: float | None) -> None:
        self._state.real[places.ADMISSIBLE] = math.inf if limit is None else limit

    def advance(self, until_s: float) -> None:
        """Advance the simulation to `until_s`.

        Raises:
            ValueError: `until_s` is before now.
        """
        if until_s < self.now_s:
            raise ValueError(f"until_s: {until_s:g}: must not be before now, {self.now_s:g}")
        while self.now_s < until_s:
            stop_s = min([until_s, *self._draining.values()])
            while not kernel.advance(self._constants, self._state, self._tally.arrays, stop_s, -1, _NOTHING, 0):
                self._state = with_items(self._state)
            for replica in [number for number, cut_s in self._draining.items() if cut_s <= self.now_s]:
                self._close(replica)

    def add_replica(self, key: PlacementKey) -> int:
        """Add a replica that serves from now on; return its number.

        Raises:
            ValueError: the pipeline has no such placement.
        """
        if key not in self.pipeline.placement_keys():
            raise ValueError(f"key: {key!r}: must be one of {list(self.pipeline.placement_keys())}")
        number = len(self._own)
        self._own.append(self._add(self._played.own[key]))
        if (link := self._played.links.get(key)) is not None:  # after the replica: what comes over it finds one
            self._link[number] = self._add(link)
        return number

    def _add(self, key: PlacementKey) -> int:
        state, constants = self._state, self._constants
        number = int(state.whole[places.REPLICAS])
        if number == len(state.replica):
            state = self._state = with_replicas(state)
        placement = self._keys.index(key)
        stage = int(constants.placement["owner"][placement])
        rank = int(np.count_nonzero(state.replica["placement"][:number] == placement))
        state.whole[places.REPLICAS] += 1
        state.replica["placement"][number] = placement
        state.replica["phase"][number] = places.SERVING
        state.replica["drawn"][number] = (
            zlib.crc32(f"{self._seed}/{self.pipeline.key}/{key}/{rank}".encode()) * 0x9E3779B97F4A7C15 % 2**64
        )
        self._slownesses.append(1.0 if key in self._played.links.values() else self._slowness(key, rank))
        state.replica["slow"][number] = self._slownesses[number]
        state.replica["idle"][number] = constants.placement["concurrency"][placement]
        kernel.join_routing(constants, state, number)
        self._divide()
        kernel.find_missing(constants, state, self.now_s)
        waiting = np.empty(len(state.item), dtype=np.int64)
        count = kernel.unqueue(state, stage, len(constants.stage) + stage, waiting, 0)
        self._arrive_again(stage, waiting, count)
        if self.pipeline.backlog is not None:
            self._begin(key, stage)
        return number

    def _begin(self, key: PlacementKey, stage: int) -> None:
        """Let a new replica take items that wait in the queue of its stage: of a backlog, none may arrive any more."""
        state, constants = self._state, self._constants
        if constants.stage["routing"][stage] != PULL:
            return
        placement = self._played.pipeline.placements()[key].prior
        queue, mask = state.queue[stage], len(state.item) - 1
        taken = np.empty(placement.concurrency * placement.batch_sizes[-1], dtype=np.int64)
        count = min(len(taken), int(queue["n"]))
        for index in range(count):
            taken[index] = queue["head"]
            queue["head"] = state.visit["behind"][stage, int(queue["head"]) & mask]
            queue["n"] -= 1
        self._arrive_again(stage, taken, count)

    def _divide(self) -> None:
        """Let the items of a cascade come to its first models while one of these has a replica in the routing."""
        names = [stage.name for stage in self._played.pipeline.stages]
        for stage in self.pipeline.stages:
            if stage.cascade is None:
                continue
            own, first = names.index(stage.name), names.index(self._played.first[stage.name])
            serves = self._state.group["n"][self._constants.placement["owner"] == first].any()
            self._state.stage["takes"][first] = float(serves)
            self._state.stage["takes"][own] = stage.cascade.share if serves else 1.0

    def open_replica(self, number: int, *, takes_streams: bool) -> None:
        """Let a serving replica take new streams or not; it keeps those that it has, and serves them.

        Raises:
            ValueError: the replica is not serving.
        """
        self._require_phase(number, (places.SERVING,))
        for each in self._with_link(number):
            if takes_streams and each in self._closed:
                self._closed.discard(each)
                kernel.join_routing(self._constants, self._state, each)
                kernel.find_missing(self._constants, self._state, self.now_s)
            elif not takes_streams and each not in self._closed:
                self._closed.add(each)
                kernel.leave_routing(self._constants, self._state, each)
        self._divide()

    def drain_replica(self, number: int, until_s: float) -> None:
        """Let a replica take no new items or streams; it ends when it has no items and streams.

        Streams that it still has at `until_s` are cut and move to another replica; items it holds then are served.

        Raises:
            ValueError: the replica is not serving, or `until_s` is before now.
        """
        self._require_phase(number, (places.SERVING,))
        if until_s < self.now_s:
            raise ValueError(f"until_s: {until_s:g}: must not be before now, {self.now_s:g}")
        for each in self._with_link(number):
            self._drain(each, until_s)

    def _drain(self, number: int, until_s: float) -> None:
        state, constants = self._state, self._constants
        self._leave(number)
        state.replica["phase"][number] = places.DRAINING
        self._ending.add(number)
        state.replica["handed_over_s"][number] = min(self.now_s + HANDOVER_S, until_s)
        state.replica["empty_s"][number] = self.now_s
        if state.replica["sessions"][number] == 0:
            state.replica["alone_s"][number] = self.now_s
        memory = constants.stage["memory"][constants.placement["owner"][state.replica["placement"][number]]]
        # A server without session memory does not know the streams pinned to it.
        self._draining[number] = until_s if memory else float(state.replica["handed_over_s"][number])
        if self._draining[number] <= self.now_s:
            self._close(number)

    def _leave(self, number: int) -> None:
        """Take a serving replica out of the routing, unless it is closed and out of it."""
        if number in self._closed:
            self._closed.discard(number)
        else:
            kernel.leave_routing(self._constants, self._state, number)
        self._divide()

    def hand_over(self, number: int, keep: int) -> None:
        """Move streams of a replica to the ones with the fewest, until it has at most `keep`; none of them is cut."""
        own = self._own[number]
        if self._state.replica["phase"][own] in (places.SERVING, places.DRAINING):
            kernel.hand_over(self._constants, self._state, own, keep, self.now_s)

    def kill_replica(self, number: int) -> None:
        """Remove a replica at once: its items are sent again, and its streams move to other replicas.

        Raises:
            ValueError: the replica has ended.
        """
        self._require_phase(number, (places.SERVING, places.DRAINING))
        for each in self._with_link(number):
            if self._state.replica["phase"][each] != places.GONE:
                self._kill(each)

    def _kill(self, number: int) -> None:
        state, constants = self._state, self._constants
        if state.replica["phase"][number] == places.SERVING:
            self._leave(number)
        self._draining.pop(number, None)
        self._ending.discard(number)
        held = np.empty(len(state.item), dtype=np.int64)
        count = kernel.held(constants, state, number, held)
        state.replica["phase"][number] = places.GONE
        kernel.cut(constants, state, number, self.now_s)
        state.replica["sessions"][number] = 0
        state.whole[places.RETRIES] += count
        self._arrive_again(int(constants.placement["owner"][state.replica["placement"][number]]), held, count)

    def ended(self) -> Sequence[tuple[int, float]]:
        """Return the drained replicas that have ended since the last call, each with its time (s), sorted by time."""
        state, now_s = self._state, self.now_s
        found = []
        for number in self._ending:
            replica = state.replica[number]
            if replica["alone_s"] > now_s:
                continue  # most wait for their sessions
            if math.isinf(replica["ended_at_s"]):
                kernel.note_end(state, number, 2 * len(self._constants.stage), now_s)
            if replica["ended_at_s"] <= now_s:
                found.append((number, float(replica["ended_at_s"])))
        self._ending.difference_update(number for number, _ in found)
        numbers = {own: number for number, own in enumerate(self._own)} if found else {}
        known = [(numbers[own], at_s) for own, at_s in found if own in numbers]
        return sorted(known, key=lambda entry: (entry[1], entry[0]))

    def slow_down(self, stage: StageName, factor: float) -> None:
        """Multiply the service time of the batches of a stage that start from now on by `factor`; 1 is normal.

        Raises:
            ValueError: there is no such stage, or the factor is not above 0.
        """
        at = self._place(stage)
        if not (0 < factor < math.inf):
            raise ValueError(f"factor: {factor!r}: must be finite and above 0")
        self._state.stage["slow"][at] = factor
        if (first := self._played.first.get(stage)) is not None:
            names = [each.name for each in self._played.pipeline.stages]
            self._state.stage["slow"][names.index(first)] = factor

    def set_batching(self, key: PlacementKey, settings: BatchSettings) -> None:
        """Let the replicas of a placement form batches by `settings` from now on.

        Raises:
            ValueError: the placement batches continuously, or the limit is above the largest that it declares.
        """
        stage, name = self._played.own[key]
        stages = self._played.pipeline.stages
        at = next(number for number, own in enumerate(stages) if own.name == stage)
        position, placement = next((k, own) for k, own in enumerate(stages[at].placements) if own.name == name)
        if placement.prior.continuous or settings.limit > placement.prior.batch_sizes[-1]:
            raise ValueError(f"batching of {key}: {settings!r}: must be dynamic, with a limit that is declared")
        number = int(self._constants.stage["first"][at]) + position
        self._constants.placement["batch"][number] = settings.limit
        self._constants.placement["wait_s"][number] = settings.wait_s

    def pass_on(self, stage: StageName, ratio: float) -> None:
        """Let another share (0–1) of the items that leave a stage from now on go to the next.

        Raises:
            ValueError: there is no such stage, or the share is outside its range.
        """
        at = self._place(stage)
        if not 0 <= ratio <= 1:
            raise ValueError(f"ratio: {ratio!r}: must be from 0 to 1")
        records = self._constants.stage
        records["filters"][at] = ratio < 1 and records["after"][at] > 0
        records["passes_below"][at] = min(int(ratio * 2.0**64), 2**64 - 1)

    def delay(self, overhead_s: float) -> None:
        """Let every item that is answered from now on take `overhead_s` outside the stages."""
        self._constants.numbers[5] = overhead_s

    def repeat(self, factor: float) -> None:
        """Let every item that enters from now on be sent `factor` times on average; 1 is normal.

        Copies pass the stages as items of their own. The ingress counts an item once, and answers with its first copy.

        Raises:
            ValueError: the factor is not from 1 to `MOST_SENDS`.
        """
        if not 1 <= factor <= MOST_SENDS:
            raise ValueError(f"factor: {factor!r}: must be from 1 to {MOST_SENDS:g}")
        self._state.real[places.SENDS] = factor

    def _place(self, stage: StageName) -> int:
        names = [each.name for each in self._played.pipeline.stages]
        if stage not in [each.name for each in self.pipeline.stages]:
            raise ValueError(f"stage: {stage!r}: must be one of {[each.name for each in self.pipeline.stages]}")
        return names.index(stage)

    def crowd(self, number: int, factor: float) -> None:
        """Multiply the service times of a replica by `factor` from now on, because of what is on its instance."""
        own = self._own[number]
        self._state.replica["slow"][own] = self._slownesses[own] * factor

    def speed_up(self, number: int, factor: float) -> None:
        """Divide the service times of the batches that a replica starts from now on by `factor` (above 0)."""
        own = self._own[number]
        self._slownesses[own] /= factor
        self._state.replica["slow"][own] /= factor

    def busy(self, number: int) -> bool:
        """Return whether a replica serves an item now."""
        return bool(self._state.replica["in_service"][self._own[number]] > 0)

    def session_ages(self, stage: StageName) -> tuple[Counts, Floats]:
        """Return the number of the replica of each open stream at a stage that pins them, and how long it is there.

        The times are in seconds. Streams that have lost their replica are not included.
        """
        state = self._state
        index = [own.name for own in self._played.pipeline.stages].index(stage)
        if not len(state.pin):
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        pins, sessions = state.pin[:, index], self._constants.session
        present = (pins["replica"] >= 0) & (state.stream["status"] == places.OPEN) & (sessions["end_s"] > self.now_s)
        present &= pins["since_s"] <= self.now_s
        numbers = np.full(int(state.whole[places.REPLICAS]), -1, dtype=np.int64)
        numbers[self._own] = np.arange(len(self._own))
        return numbers[pins["replica"][present]], self.now_s - pins["since_s"][present]

    def counters(self) -> ReplicaCounters:
        """Return the counters of all replicas, as copies."""
        state = self._state
        own, queues = np.array(self._own, dtype=np.int64), 2 * len(self._constants.stage)
        keys = {self._played.own[key]: index for index, key in enumerate(self.pipeline.placement_keys())}
        declared = np.array([keys.get(key, -1) for key in self._keys], dtype=np.int64)
        return ReplicaCounters(
            placement=declared[state.replica["placement"][own]],
            arrived=state.replica["arrived"][own],
            refused=state.replica["refused"][own],
            completed=state.replica["completed"][own],
            batches=state.replica["batches"][own],
            busy_s=state.replica["busy_s"][own],
            service_s=state.replica["service_s"][own],
            latency_sum_s=state.replica["latency_sum_s"][own],
            refused_sessions=state.replica["refused_sessions"][own],
            latency_counts=state.latency_counts[own],
            queued=state.queue["n"][queues + own],
            in_service=state.replica["in_service"][own],
            sessions=state.replica["sessions"][own],
        )

    def ingress(self) -> IngressCounters:
        """Return the counters of the ingress."""
        whole = [int(value) for value in self._state.whole]
        outcomes = [whole[places.SERVED_ITEMS + kind] for kind in (SERVED, FILTERED, SHED, REFUSED, LOST)]
        offered = whole[places.OFFERED] - whole[places.REPEATED]
        return IngressCounters(
            active_streams=whole[places.STREAMS],
            offered=offered,
            served=outcomes[0],
            filtered=outcomes[1],
            shed=outcomes[2],
            refused=outcomes[3],
            lost=outcomes[4],
            in_flight=offered - sum(outcomes),
            retries=whole[places.RETRIES],
            sessions_cut=whole[places.SESSIONS_CUT],
            latency_counts=self._state.ingress_counts.copy(),
            latency_sum_s=whole[places.LATENCY_NS] / 1e9,
        )

    def tally(self) -> Tally:
        """Return a tally of the outcomes so far; items in flight count with their current age."""
        tally = self._tally.copy()
        n = kernel.in_flight(self._state)
        arrival_s = self._state.item["arrival_s"][self._state.candidates[:n]]
        tally.record(
            Items(
                arrival_s=arrival_s,
                latency_s=self.now_s - arrival_s,
                outcome=np.full(n, IN_FLIGHT, dtype=np.uint8),
            )
        )
        return tally

    def _slowness(self, key: PlacementKey, rank: int) -> float:
        """Return the factor of a replica's service times: the same for the same seed, placement and rank."""
        if not self._speed_spread:
            return 1.0
        variance = math.log1p(self._speed_spread**2)
        drawn = random.Random(f"{self._seed}/{self.pipeline.key}/{key}/{rank}/speed").gauss(0.0, math.sqrt(variance))
        return math.exp(drawn - variance / 2)

    def _close(self, number: int) -> None:
        """Let a draining replica take no more items: its streams move to other replicas."""
        self._draining.pop(number)
        state = self._state
        kernel.cut(self._constants, state, number, self.now_s)
        state.replica["sessions"][number] = 0
        state.replica["alone_s"][number] = min(state.replica["alone_s"][number], self.now_s)

    def _arrive_again(self, stage: int, items: Counts, count: int) -> None:
        """Let items arrive at a stage now."""
        kernel.advance(self._constants, self._state, self._tally.arrays, self.now_s, stage, items, count)

    def _with_link(self, number: int) -> list[int]:
        """Return the numbers in the kernel of a replica and of the link to it, where there is one."""
        return [self._own[number], *([self._link[number]] if number in self._link else [])]

    def _require_phase(self, number: int, phases: tuple[int, ...]) -> None:
        known = 0 <= number < len(self._own)
        if not known or self._state.replica["phase"][self._own[number]] not in phases:
            raise ValueError(f"number: {number}: must be the number of a replica in a matching phase")
