"""The path of items through a pipeline: admission, stages, joins, filters, and the outcome of each item.

Latency is the time from the scheduled arrival of an item to the answer of the last stage.
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simulations.engine.draws import LONGEST_DELAY_S
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import Status
from simulations.lab.traffic.backend import Backend, Item, PinnedSession, PodState, Recoveries
from simulations.lab.traffic.topology import PipelineTopology, StageTopology
from simulations.lab.traffic.upstream import Upstream
from simulations.results.histogram import LatencyHistogram
from simulations.results.scoring import LOST_AFTER_SLAS, Outcome

_SWEEP_S = 0.05
_WORD = (1 << 64) - 1

Record = Callable[[Outcome, float, float], None]
Answer = Callable[[Outcome, bytes], None]
"""Takes the outcome of an item, and what the last stage that served it made of it."""


@dataclass(slots=True, eq=False, kw_only=True)
class Stream(PinnedSession):
    """An active stream.

    `refused_as` is the outcome of the chunks offered while it is not admitted (shed or refused), otherwise None.
    `opened` is set when its last attempt is decided: it has a slot in each stage with memory, or was refused. `counted`
    says whether it is among the tally's active streams; `forgotten` is the timer that ends this for one not admitted.
    """

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    admitted: bool = False
    refused_as: Outcome | None = None
    counted: bool = False
    forgotten: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Journey(Item):
    """An item on its way through the stages.

    `waits_for` has for each stage the number of branches that it still waits for. `ends_left` is the number of last
    stages that the item may still reach, and `reached_an_end` says whether it has reached one. A `copy` of an item that
    clients sent again has no outcome.
    """

    number: int
    stream: Stream | None
    arrival_s: float
    arrived_s: float
    answer: Answer
    waits_for: list[int]
    ends_left: int
    reached_an_end: bool = False
    copy: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Tally:
    """The counts of one pipeline: items `offered`, items by outcome, their latency, and active streams.

    `active_streams` is the offered load: a stream that was shed or refused is included until `LONGEST_DELAY_S` after
    its last attempt, even if it has ended. Items of such a stream are not in `latency`, because they are not sent.
    """

    latency: LatencyHistogram
    offered: int = 0
    active_streams: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    recoveries: Recoveries = field(default_factory=Recoveries)


class _Graph:
    """The stages of a pipeline by index: those `before` and `following` each, and the `entries`.

    `waits_for` is the number of stages before each, `ends_below` the number of last stages that can be reached from
    each, and `ends` the number of all last stages.
    """

    __slots__ = ("before", "ends", "ends_below", "entries", "following", "waits_for")

    def __init__(self, stages: Sequence[StageTopology]) -> None:
        names = [stage.name for stage in stages]
        self.before = [[names.index(name) for name in stage.after] for stage in stages]
        self.following = [[k for k in range(len(names)) if index in self.before[k]] for index in range(len(names))]
        self.waits_for = [len(before) for before in self.before]
        self.entries = [index for index, before in enumerate(self.before) if not before]
        self.ends_below = [self._count_ends(index) for index in range(len(names))]
        self.ends = sum(not following for following in self.following)

    def _count_ends(self, index: int) -> int:
        reached, found = [index], {index}
        for stage in reached:
            for following in self.following[stage]:
                if following not in found:
                    found.add(following)
                    reached.append(following)
        return sum(not self.following[stage] for stage in found)


class _TokenBucket:
    """Admits requests, for one token each; holds at most the tokens of one second, or one token if that is more."""

    __slots__ = ("_at_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = 1.0
        self._at_s = time.monotonic()

    def take(self, rate: float) -> bool:
        """Take a token and return True; False when there is none. The bucket is filled at `rate` tokens/s."""
        now_s = time.monotonic()
        self._tokens = min(self._tokens + (now_s - self._at_s) * rate, max(1.0, rate))
        self._at_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class PipelineTraffic:
    """The traffic of one pipeline in the ingress.

    New streams or requests above `admissible` (streams or requests/s, None: no limit) are shed.
    """

    def __init__(self, topology: PipelineTopology, record: Record, timers: Timers) -> None:
        """Start the traffic of the pipeline `topology`; needs a running event loop.

        `record` is called once per item with its outcome, its arrival (seconds since the run began) and its latency
        (seconds; infinite for a lost item). `timers` stay open until `finish`.
        """
        self.topology = topology
        self.admissible: float | None = None
        self.tally = Tally(latency=LatencyHistogram(topology.sla_s))
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._patience_s = LOST_AFTER_SLAS * topology.sla_s
        self._stages = [
            Upstream(
                index,
                stage,
                topology.namespace,
                self.tally.recoveries,
                seed=topology.seed + index,
                carries_state=topology.carries_state,
            )
            for index, stage in enumerate(topology.stages)
        ]
        self._graph = _Graph(topology.stages)
        self._admitted = 0
        self._last_id = 0
        self._bucket = _TokenBucket()
        self._timers = timers
        self._under_way: deque[Journey] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep()

    # -- the cluster

    def pod_changed(self, pod: PodState) -> None:
        """Add a new pod to the routing, or update a changed one."""
        for stage in self._stages:
            stage.pod_changed(pod)

    def pod_gone(self, uid: str) -> None:
        """Remove a deleted pod from the routing."""
        for stage in self._stages:
            stage.pod_gone(uid)

    def rebalance(self, keep: Mapping[str, Mapping[str, int]]) -> None:
        """Move streams so that pods have at most as many as `keep` says, by stage and pod, and leaving pods none.

        Nothing happens where the ingress cannot hand streams over.
        """
        if self.topology.hands_over:
            for stage, topology in zip(self._stages, self.topology.stages, strict=True):
                stage.rebalance(keep.get(topology.name, {}))

    # -- the load

    def open_stream(self, decided: Callable[[bool], None]) -> Stream:
        """Begin a stream and return it; `decided` is as in `try_again`."""
        stream = Stream(id=self._new_id(), release=self._release)
        self.try_again(stream, decided)
        return stream

    def try_again(self, stream: Stream, decided: Callable[[bool], None]) -> None:
        """Try to admit a stream that is new, or was shed or refused.

        `decided` is called once, with whether the stream was admitted and found a slot in every stage that needs one.
        """
        self._count(stream)
        if self.admissible is not None and self._admitted + 1 > self.admissible:
            self._turn_away(stream, Outcome.SHED)
            decided(False)
            return
        stream.refused_as = None
        stream.opened = asyncio.Event()
        stream.admitted = True
        self._admitted += 1
        stream.busy += 1
        self._spawn(self._find_slots(stream, decided))

    def end_stream(self, stream: Stream) -> None:
        """End a stream; its slots become free when the last of its chunks has left the pipeline."""
        if stream.refused_as is None:
            self._uncount(stream)
        self._leave(stream)
        stream.end()

    def offer(
        self,
        stream: Stream | None,
        *,
        number: int,
        arrival_s: float,
        arrived_s: float,
        answer: Answer,
        payload: bytes = b"",
    ) -> None:
        """Offer an item to the pipeline: a chunk of a stream, or a request.

        Args:
            stream: the stream of the chunk; None for a request.
            number: identifies the item in every run of the same load; it decides whether a stage filters the item.
            arrival_s: the arrival of the item, in seconds since the run began.
            arrived_s: the same time on the monotonic clock.
            answer: called once with the outcome of the item, and what the last stage that served it answered.
            payload: what the entry stages get; a stage gets what the one before it answered, if that is not empty.
        """
        self.tally.offered += 1
        journey = self._journey(stream, number, arrival_s, arrived_s, answer, payload)
        if stream is None and not self._admit_request():
            self._leave_out(journey, Outcome.SHED)
        elif stream is not None and stream.refused_as is not None:
            self._leave_out(journey, stream.refused_as)
        else:
            self._send(journey)
            for _ in range(self._copies(number)):
                self._send(replace(journey, id=self._new_id(), copy=True, waits_for=list(self._graph.waits_for)))

    def finish(self) -> None:
        """End the run: items without an answer count as in flight, or as lost if they are older than 10 × SLA."""
        for journey in self._under_way:
            if not journey.settled:
                self._settle(journey, Outcome.IN_FLIGHT)
        self._sweeper.cancel()
        for task in self._tasks:
            task.cancel()
        for stage in self._stages:
            stage.close()

    # -- streams

    async def _find_slots(self, stream: Stream, decided: Callable[[bool], None]) -> None:
        deadline_s = time.monotonic() + self._patience_s
        try:
            found = await asyncio.gather(*(stage.attach(stream, deadline_s) for stage in self._stages if stage.memory))
            if None in found:
                self._leave(stream)
                self._release(stream)
                self._turn_away(stream, Outcome.REFUSED)
            # Before the client can try again: the chunks that wait for this attempt share its result.
            stream.opened.set()
            decided(stream.refused_as is None)
        finally:
            stream.let_go()

    def _turn_away(self, stream: Stream, outcome: Outcome) -> None:
        stream.refused_as = outcome
        stream.forgotten = self._loop.call_later(LONGEST_DELAY_S, self._uncount, stream)

    def _count(self, stream: Stream) -> None:
        """Count a stream as active, until `_uncount`."""
        if stream.forgotten is not None:
            stream.forgotten.cancel()
        self.tally.active_streams += not stream.counted
        stream.counted = True

    def _uncount(self, stream: Stream) -> None:
        self.tally.active_streams -= stream.counted
        stream.counted = False

    def _leave(self, stream: Stream) -> None:
        self._admitted -= stream.admitted
        stream.admitted = False

    def _release(self, session: PinnedSession) -> None:
        for stage in self._stages:
            stage.release(session)

    # -- items

    def _journey(
        self, stream: Stream | None, number: int, arrival_s: float, arrived_s: float, answer: Answer, payload: bytes
    ) -> Journey:
        return Journey(
            id=self._new_id(),
            session=stream,
            stream=stream,
            deadline_s=arrived_s + self._patience_s,
            number=number,
            arrival_s=arrival_s,
            arrived_s=arrived_s,
            answer=answer,
            payload=payload,
            waits_for=list(self._graph.waits_for),
            ends_left=self._graph.ends,
        )

    def _copies(self, number: int) -> int:
        """Return how many times more than once the item `number` is sent: a function of the seed and the number."""
        more, stages = self.topology.sends - 1, len(self.topology.stages)
        return int(more + _uniform(self.topology.seed, 2 * stages, number)) if more > 0 else 0

    def _send(self, journey: Journey) -> None:
        self._under_way.append(journey)
        for entry in self._graph.entries:
            self._walk(journey, entry)

    def _walk(self, journey: Journey, index: int) -> None:
        if journey.stream is not None:
            journey.stream.busy += 1
        self._spawn(self._pass_through(journey, index))

    async def _pass_through(self, journey: Journey, index: int, backend: Backend | None = None) -> None:
        """Serve the item from stage `index` on, until it ends or has to wait at a join for another branch.

        `backend` is the pod that has taken it there, None if none has.
        """
        stream, graph = journey.stream, self._graph
        try:
            if stream is not None:
                await stream.opened.wait()
                if stream.refused_as is not None:
                    self._leave_out(journey, stream.refused_as)
            while not journey.settled:
                response = await self._stages[index].serve(journey, backend)
                backend = None
                if response is not None and response.payload:
                    journey.payload = response.payload
                if response is None:
                    self._settle(journey, Outcome.LOST)
                elif response.status is Status.FILTERED or self._filters(index, journey.number):
                    self._branch_ends(journey, graph.ends_below[index], reached=False)
                    return
                elif not graph.following[index]:
                    self._branch_ends(journey, 1, reached=True)
                    return
                else:
                    ready = [following for following in graph.following[index] if self._arrives(journey, following)]
                    if not ready:
                        return
                    for other in ready[1:]:
                        self._walk(journey, other)
                    index = ready[0]
        finally:
            if stream is not None:
                stream.let_go()

    def _arrives(self, journey: Journey, index: int) -> bool:
        journey.waits_for[index] -= 1
        return journey.waits_for[index] == 0

    def _branch_ends(self, journey: Journey, ends: int, *, reached: bool) -> None:
        """Count `ends` last stages as done: `reached`, or cut off by a filter.

        After all of them the item is served if it has reached at least one, otherwise filtered.
        """
        journey.ends_left -= ends
        journey.reached_an_end |= reached
        if not journey.ends_left:
            outcome = Outcome.SERVED if journey.reached_an_end else Outcome.FILTERED
            if self.topology.overhead_s:
                answered_s = time.monotonic() + self.topology.overhead_s
                self._timers.call_at(answered_s, lambda: self._settle(journey, outcome))
            else:
                self._settle(journey, outcome)

    def _filters(self, index: int, number: int) -> bool:
        """Whether a stage filters an item; drawn from the item's number, so that it is the same in every run."""
        share = self.topology.stages[index].pass_ratio
        return share < 1 and bool(self._graph.following[index]) and _uniform(self.topology.seed, index, number) >= share

    def _leave_out(self, journey: Journey, outcome: Outcome) -> None:
        """Settle an item that is not sent: as filtered if it would have been filtered on all its ways to an end."""
        graph, goes_on = self._graph, list[bool]()
        reaches_an_end = False
        for index, before in enumerate(graph.before):
            arrives = all(goes_on[k] for k in before)
            reaches_an_end |= arrives and not graph.following[index]
            goes_on.append(arrives and not self._filters(index, journey.number))
        self._settle(journey, outcome if reaches_an_end else Outcome.FILTERED)

    def _settle(self, journey: Journey, outcome: Outcome) -> None:
        if journey.settled:
            return
        journey.settled = True
        if journey.copy:
            return
        latency_s = time.monotonic() - journey.arrived_s
        if latency_s > self._patience_s and outcome in {Outcome.SERVED, Outcome.IN_FLIGHT}:
            outcome = Outcome.LOST
        self.tally.outcomes[outcome] += 1
        if outcome in {Outcome.SERVED, Outcome.LOST}:
            answered = outcome is Outcome.SERVED
            self.tally.latency.observe(latency_s if answered else self._patience_s, answered=answered)
        self._record(outcome, journey.arrival_s, math.inf if outcome is Outcome.LOST else latency_s)
        journey.answer(outcome, journey.payload)

    def _sweep(self) -> None:
        """Count items past their deadline as lost, and do so again every `_SWEEP_S`.

        Items are in the order of their arrival.
        """
        now_s = time.monotonic()
        while self._under_way and (self._under_way[0].settled or self._under_way[0].deadline_s < now_s):
            self._settle(self._under_way.popleft(), Outcome.LOST)
        for stage in self._stages:
            stage.hand_over()
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    def _admit_request(self) -> bool:
        return self.admissible is None or self._bucket.take(self.admissible)

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _uniform(seed: int, stage: int, number: int) -> float:
    """Return a pseudo-random number in [0, 1), a function of the arguments: splitmix64 (Steele, Lea, Flood 2014)."""
    word = (seed * 0x9E3779B97F4A7C15 + stage * 0xD1B54A32D192ED03 + number * 0x8CB92BA72F3D8DD7) & _WORD
    for _ in range(2):
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
        word ^= word >> 31
    return word / 2**64
