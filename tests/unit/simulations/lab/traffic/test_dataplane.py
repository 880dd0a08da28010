"""Items and streams through real workers, on loopback sockets."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from laws import with_law
from loopback import an_address

from controller.core.state.spec import DemandUnit
from optimizer.model import Routing
from simulations.engine.draws import LONGEST_DELAY_S
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import ITEM_PORT, RequestKind, Respondent, ServerConnection, Status
from simulations.lab.pods.worker import StageWorker, WorkerSpec
from simulations.lab.traffic import dataplane
from simulations.lab.traffic.backend import PodState
from simulations.lab.traffic.dataplane import PipelineTraffic, Stream
from simulations.lab.traffic.topology import PipelineTopology, PlacementTopology, StageTopology
from simulations.results.scoring import Outcome

SLA_S = 0.2  # so that an item is lost after 2 s


def stage(name: str = "asr", *after: str, **fields: Any) -> StageTopology:
    placement = PlacementTopology(pool="cpu", selector={"app": name}, weight=1, limit=fields.pop("limit", 1))
    defaults: dict[str, Any] = {"pass_ratio": 1.0, "routing": Routing.LEAST_LOADED, "memory": False}
    return StageTopology(name=name, after=after, placements=(placement,), **{**defaults, **fields})


class Lab:
    """A pipeline with workers in the same process; `results` has the outcome of each item, by its number."""

    def __init__(self, stages: tuple[StageTopology, ...], unit: DemandUnit, **fields: Any) -> None:
        self.timers = Timers()
        self.results: dict[int, Outcome] = {}
        self.answers: dict[int, bytes] = {}
        self.latencies_s: dict[float, float] = {}
        self.pipeline = PipelineTraffic(
            PipelineTopology(namespace="speech", name="p", unit=unit, port=1, seed=1, stages=stages, **fields),
            self._record,
            self.timers,
        )
        self.workers: list[StageWorker] = []
        self._numbers = itertools.count(1)

    async def add(self, app: str = "asr", *, ready: bool = True, **fields: Any) -> StageWorker:
        spec = WorkerSpec(pipeline="p", stage=app, **with_law(**{"fixed_s": 0.001, **fields}))
        host = an_address()
        worker = StageWorker(spec, host, self.timers)
        await worker.start()
        self.workers.append(worker)
        self.tell(worker, ready=ready)
        return worker

    def tell(self, worker: StageWorker, *, ready: bool) -> None:
        pod = PodState(
            uid=worker.host,
            namespace="speech",
            labels={"app": worker.spec.stage},
            ip=worker.host,
            ready=ready,
            name=worker.host,
        )
        self.pipeline.pod_changed(pod)

    def offer(self, stream: Stream | None = None, *, later_s: float = 0.0, payload: bytes = b"") -> int:
        """Offer an item that may be answered `later_s` later than one of now."""
        number = next(self._numbers)

        def answer(outcome: Outcome, made: bytes) -> None:
            self.results[number], self.answers[number] = outcome, made

        self.pipeline.offer(
            stream,
            number=number,
            arrival_s=float(number),
            arrived_s=time.monotonic() + later_s,
            answer=answer,
            payload=payload,
        )
        return number

    async def outcomes(self, items: int) -> Counter[Outcome]:
        """Return the outcomes of all items, once there are as many as expected."""
        await until(lambda: len(self.results) >= items)
        return Counter(self.results.values())

    async def open(self) -> tuple[Stream, bool]:
        decision: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        stream = self.pipeline.open_stream(decision.set_result)
        return stream, await decision

    async def try_again(self, stream: Stream) -> bool:
        decision: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.pipeline.try_again(stream, decision.set_result)
        return await decision

    def _record(self, outcome: Outcome, arrival_s: float, latency_s: float) -> None:
        assert arrival_s not in self.latencies_s
        self.latencies_s[arrival_s] = latency_s


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - what is awaited is inner state
        await asyncio.sleep(0.001)


def play(
    use: Callable[[Lab], Awaitable[None]],
    *stages: StageTopology,
    unit: DemandUnit = DemandUnit.REQUESTS,
    sla_s: float = SLA_S,
    overhead_s: float = 0.0,
    **fields: bool,
) -> None:
    async def run() -> None:
        lab = Lab(stages or (stage(),), unit, sla_s=sla_s, overhead_s=overhead_s, **fields)
        try:
            async with asyncio.timeout(10):
                await use(lab)
        finally:
            lab.pipeline.finish()
            for worker in lab.workers:
                await worker.abort()
            lab.timers.close()

    asyncio.run(run())


@pytest.mark.parametrize("routing", list(Routing))
def test_every_item_is_served_and_the_pods_share_the_work(routing: Routing) -> None:
    async def use(lab: Lab) -> None:
        for _ in range(3):
            await lab.add()
        for _ in range(90):
            lab.offer()

        assert await lab.outcomes(90) == {Outcome.SERVED: 90}
        assert sum(worker.counts.served for worker in lab.workers) == 90
        assert min(worker.counts.served for worker in lab.workers) >= 10

    play(use, stage(routing=routing))


def test_items_pass_through_the_stages_one_after_the_other() -> None:
    async def use(lab: Lab) -> None:
        await lab.add("vad", fixed_s=0.02)
        await lab.add("asr", fixed_s=0.03)
        lab.offer()

        assert await lab.outcomes(1) == {Outcome.SERVED: 1}
        assert 0.05 <= lab.latencies_s[1.0] < 0.08

    play(use, stage("vad"), stage("asr", "vad"))


class Working:
    """A server that says what it got, in brackets, and filters or refuses what asks for it."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self.verdict = Status.OK  # on sessions; INVALID: on those that bring a state
        self.opened: list[bytes] = []

    def on_item(self, connection: Respondent, item_id: int, session_id: int, payload: bytes) -> None:
        status = {b"silence": Status.FILTERED, b"nonsense": Status.INVALID}.get(payload, Status.OK)
        made = b"" if payload == b"as it is" else self._name + b"(" + payload + b")"
        connection.respond(RequestKind.ITEM, item_id, status, made)

    def on_open_session(self, connection: ServerConnection, session_id: int, state: bytes) -> None:
        status = self.verdict if state or self.verdict is not Status.INVALID else Status.OK
        self.opened.append(state)
        connection.respond(RequestKind.OPEN_SESSION, session_id, status)

    def on_take_session(self, connection: ServerConnection, session_id: int) -> None:
        connection.respond(RequestKind.TAKE_SESSION, session_id, Status.OK, b"state by " + self._name)

    def on_end_session(self, session_id: int) -> None:
        pass

    def on_connected(self, connection: ServerConnection) -> None:
        pass

    def on_disconnected(self, connection: ServerConnection) -> None:
        pass


async def joined(lab: Lab, working: Working, app: str, stack: contextlib.AsyncExitStack) -> str:
    """Add a server to the pods of `app`, and return its name, which is its address."""
    host = an_address()
    server = await asyncio.get_running_loop().create_server(lambda: ServerConnection(working), host, ITEM_PORT)
    stack.callback(server.close)
    lab.pipeline.pod_changed(
        PodState(uid=host, namespace="speech", labels={"app": app}, ip=host, ready=True, name=host)
    )
    return host


@pytest.mark.parametrize("unit", [DemandUnit.REQUESTS, DemandUnit.STREAMS])
def test_a_stage_gets_what_the_one_before_it_made_and_decides_what_goes_on(unit: DemandUnit) -> None:
    async def use(lab: Lab) -> None:
        stack = contextlib.AsyncExitStack()
        for app in ("vad", "asr"):
            await joined(lab, Working(app), app, stack)
        stream = (await lab.open())[0] if unit is DemandUnit.STREAMS else None
        for payload in (b"audio", b"silence", b"as it is", b"nonsense"):
            lab.offer(stream, payload=payload)
        await lab.outcomes(4)
        assert [lab.results[number] for number in range(1, 5)] == [
            Outcome.SERVED,
            Outcome.FILTERED,
            Outcome.SERVED,
            Outcome.LOST,
        ]
        # An empty answer leaves what the item carries as it was.
        assert [lab.answers[number] for number in range(1, 4)] == [b"asr(vad(audio))", b"vad(silence)", b"as it is"]
        await stack.aclose()

    play(use, stage("vad"), stage("asr", "vad", memory=unit is DemandUnit.STREAMS), unit=unit)


@pytest.mark.parametrize(
    ("verdict", "opened", "counts"),
    [
        (Status.OK, [b"state by here"], (1, 0, 0)),
        (Status.INVALID, [b"state by here", b""], (0, 1, 0)),  # a pod of another variant
        (Status.REFUSED_SLOT, [b"state by here"], (0, 0, 0)),  # it goes back
    ],
)
def test_a_stream_that_moves_takes_its_state_along_or_begins_without(
    verdict: Status, opened: list[bytes], counts: tuple[int, int, int]
) -> None:
    async def use(lab: Lab) -> None:
        async with contextlib.AsyncExitStack() as stack:
            here, there = Working("here"), Working("there")
            first = await joined(lab, here, "asr", stack)
            stream, _ = await lab.open()
            lab.offer(stream, payload=b"a")
            await lab.outcomes(1)
            second = await joined(lab, there, "asr", stack)
            there.verdict = verdict
            lab.pipeline.rebalance({"asr": {first: 0}})
            await until(lambda: there.opened == opened and not stream.busy)
            lab.offer(stream, payload=b"b")
            await lab.outcomes(2)
            recoveries = lab.pipeline.tally.recoveries
            found = recoveries.moved_carried, recoveries.moved_empty, recoveries.sessions_cut
            assert found == counts
            moved = any(counts)
            assert lab.answers[2] == (b"there(b)" if moved else b"here(b)")
            assert here.opened == ([b""] if moved else [b"", b"state by here"])
            assert second != first

    play(use, stage("asr", memory=True), unit=DemandUnit.STREAMS, hands_over=True, carries_state=True)


def test_what_a_stage_does_not_pass_on_is_filtered_the_same_items_in_every_run() -> None:
    filtered: list[set[int]] = []

    async def use(lab: Lab) -> None:
        vad, asr = await lab.add("vad"), await lab.add("asr")
        for _ in range(400):
            lab.offer()
        counts = await lab.outcomes(400)

        assert counts[Outcome.FILTERED] == pytest.approx(220, abs=40)
        assert counts[Outcome.SERVED] == 400 - counts[Outcome.FILTERED]
        assert (vad.counts.served, asr.counts.served) == (400, counts[Outcome.SERVED])
        filtered.append({number for number, outcome in lab.results.items() if outcome is Outcome.FILTERED})

    for _ in range(2):
        play(use, stage("vad", pass_ratio=0.45), stage("asr", "vad"))
    assert filtered[0] == filtered[1]


def test_a_join_waits_for_its_slower_branch_and_is_served_once() -> None:
    async def use(lab: Lab) -> None:
        workers = [await lab.add(name, fixed_s=s) for name, s in (("a", 0.01), ("b", 0.05), ("c", 0.01), ("d", 0.02))]
        lab.offer()

        assert await lab.outcomes(1) == {Outcome.SERVED: 1}
        assert 0.08 <= lab.latencies_s[1.0] < 0.12  # a, then b beside c, then d
        assert [worker.counts.served for worker in workers] == [1, 1, 1, 1]

    play(use, stage("a"), stage("b", "a"), stage("c", "a"), stage("d", "b", "c"))


def test_an_item_whose_one_branch_is_filtered_is_served_by_the_other() -> None:
    async def use(lab: Lab) -> None:
        for name in ("a", "b", "c", "after-c"):
            await lab.add(name)
        for _ in range(50):
            lab.offer()

        assert await lab.outcomes(50) == {Outcome.SERVED: 50}

    play(use, stage("a"), stage("b", "a"), stage("c", "a", pass_ratio=0.01), stage("after-c", "c"))


def test_an_item_refused_by_a_full_queue_is_tried_on_another_pod() -> None:
    async def use(lab: Lab) -> None:
        await lab.add(fixed_s=1, queue_limit=1)
        lab.offer()
        lab.offer()
        await until(lambda: lab.workers[0].gauges().queued == 1)
        await lab.add(fixed_s=0.001)
        lab.offer()
        lab.offer()

        await until(lambda: len(lab.results) == 2)
        assert set(lab.results.values()) == {Outcome.SERVED}
        assert lab.pipeline.tally.recoveries.retries >= 1

    play(use, stage(routing=Routing.ROUND_ROBIN))


def test_an_item_that_every_pod_refuses_is_lost() -> None:
    async def use(lab: Lab) -> None:
        await lab.add(fixed_s=0.3, queue_limit=1)
        for _ in range(5):
            lab.offer()

        assert await lab.outcomes(5) == {Outcome.SERVED: 2, Outcome.LOST: 3}

    play(use)


def test_an_item_waits_for_a_pod_when_there_is_none() -> None:
    async def use(lab: Lab) -> None:
        lab.offer()
        worker = await lab.add(ready=False)
        await asyncio.sleep(0)
        assert not lab.results
        lab.tell(worker, ready=True)

        assert await lab.outcomes(1) == {Outcome.SERVED: 1}

    play(use)


@pytest.mark.parametrize("routing", [Routing.PULL, Routing.LEAST_LOADED])
def test_without_an_answer_for_ten_slas_an_item_is_lost_and_infinitely_late(routing: Routing) -> None:
    async def use(lab: Lab) -> None:
        lab.offer()

        assert await lab.outcomes(1) == {Outcome.LOST: 1}
        assert lab.latencies_s[1.0] == float("inf")
        assert lab.pipeline.tally.latency.counts[-1] == 1

    play(use, stage(routing=routing), sla_s=0.01)


def test_every_answer_is_delayed_by_the_overhead_which_counts_as_latency() -> None:
    async def use(lab: Lab) -> None:
        await lab.add()
        lab.offer()

        assert await lab.outcomes(1) == {Outcome.SERVED: 1}
        assert 0.05 < lab.latencies_s[1.0] < 0.08
        assert lab.pipeline.tally.latency.sum_s == pytest.approx(lab.latencies_s[1.0])

    play(use, overhead_s=0.05)


def test_what_clients_send_again_reaches_the_stages_and_is_counted_once() -> None:
    async def use(lab: Lab) -> None:
        vad, asr = await lab.add("vad"), await lab.add("asr")
        lab.pipeline.topology = replace(lab.pipeline.topology, sends=1.5)
        for _ in range(200):
            lab.offer()
        assert await lab.outcomes(200) == {Outcome.SERVED: 200}
        await until(lambda: asr.counts.served == vad.counts.served)

        assert 270 < vad.counts.served < 330
        assert lab.pipeline.tally.offered == lab.pipeline.tally.outcomes[Outcome.SERVED] == 200
        assert sum(lab.pipeline.tally.latency.counts) == 200

    play(use, stage("vad"), stage("asr", "vad"))


def test_an_item_that_the_overhead_makes_too_late_is_lost() -> None:
    async def use(lab: Lab) -> None:
        await lab.add()
        lab.offer()

        assert await lab.outcomes(1) == {Outcome.LOST: 1}

    play(use, sla_s=0.01, overhead_s=0.5)


def test_a_late_answer_neither_counts_twice_nor_goes_on_to_the_next_stage() -> None:
    async def use(lab: Lab) -> None:
        await lab.add("vad", fixed_s=0.3)
        asr = await lab.add("asr")
        lab.offer()
        assert await lab.outcomes(1) == {Outcome.LOST: 1}
        await until(lambda: lab.workers[0].counts.served == 1)
        await asyncio.sleep(0.02)

        assert asr.counts.served == 0
        assert sum(lab.pipeline.tally.outcomes.values()) == 1

    play(use, stage("vad"), stage("asr", "vad"), sla_s=0.01)


@pytest.mark.parametrize("routing", list(Routing))
def test_no_item_is_lost_when_a_pod_drains_under_load(routing: Routing) -> None:
    async def use(lab: Lab) -> None:
        leaving = await lab.add(fixed_s=0.005)
        await lab.add(fixed_s=0.002)
        for _ in range(60):
            lab.offer()
        drain = asyncio.get_running_loop().create_task(leaving.drain(0.1))
        for _ in range(60):  # the ingress does not know yet that the pod is leaving
            await asyncio.sleep(0.004)
            lab.offer()
        lab.tell(leaving, ready=False)
        for _ in range(20):
            lab.offer()
        await drain
        lab.pipeline.pod_gone(leaving.host)

        assert await lab.outcomes(140) == {Outcome.SERVED: 140}

    play(use, stage(routing=routing))


def test_items_of_a_pod_that_vanishes_are_tried_elsewhere() -> None:
    async def use(lab: Lab) -> None:
        doomed = await lab.add(fixed_s=0.5)
        lab.offer()
        await until(lambda: doomed.gauges().in_service == 1)
        await lab.add()
        await doomed.abort()

        assert await lab.outcomes(1) == {Outcome.SERVED: 1}
        assert lab.pipeline.tally.recoveries.retries == 1

    play(use)


def test_pull_hands_items_out_in_the_order_of_their_arrival() -> None:
    order: list[int] = []

    async def use(lab: Lab) -> None:
        await lab.add(fixed_s=0.005)
        await lab.add(fixed_s=0.005)
        for _ in range(20):
            lab.offer()
        assert max(worker.gauges().queued for worker in lab.workers) == 0
        await lab.outcomes(20)
        order.extend(lab.results)

    play(use, stage(routing=Routing.PULL))
    assert all(abs(number - position) <= 2 for position, number in enumerate(order, 1))


# -- streams


MEMORY = stage("asr", "vad", memory=True, routing=Routing.STICKY)


def test_a_stream_holds_a_slot_in_every_stage_with_memory_from_its_start_to_its_end() -> None:
    async def use(lab: Lab) -> None:
        await lab.add("vad")
        asr = await lab.add("asr", session_slots=4)
        streams = [(await lab.open())[0] for _ in range(3)]
        assert asr.gauges().sessions == 3  # without a single chunk
        assert lab.pipeline.tally.active_streams == 3

        lab.pipeline.end_stream(streams[0])
        await until(lambda: asr.gauges().sessions == 2)
        assert lab.pipeline.tally.active_streams == 2

    play(use, stage("vad"), MEMORY, unit=DemandUnit.STREAMS)


def test_a_stream_that_finds_no_slot_is_refused_and_none_of_its_chunks_is_sent() -> None:
    async def use(lab: Lab) -> None:
        await lab.add("vad")
        for _ in range(2):
            await lab.add("asr", session_slots=1)
        opened = [await lab.open() for _ in range(3)]
        assert [found for _, found in opened] == [True, True, False]
        for stream, _ in opened:
            lab.offer(stream)
            lab.offer(stream)

        assert await lab.outcomes(6) == {Outcome.SERVED: 4, Outcome.REFUSED: 2}
        assert lab.workers[0].counts.served == 4  # a refused stream reaches no worker
        assert sum(lab.pipeline.tally.latency.counts) == 4
        assert lab.pipeline.tally.active_streams == 3  # it is offered load all the same

    play(use, stage("vad"), MEMORY, unit=DemandUnit.STREAMS)


def test_chunks_offered_while_their_stream_waits_for_a_replica_in_vain_are_refused() -> None:
    async def use(lab: Lab) -> None:
        decisions: list[bool] = []
        stream = lab.pipeline.open_stream(decisions.append)
        lab.offer(stream, later_s=5.0)  # the stream is refused long before the chunks are lost
        lab.offer(stream, later_s=5.0)

        assert await lab.outcomes(2) == {Outcome.REFUSED: 2}
        assert decisions == [False]
        assert sum(lab.pipeline.tally.latency.counts) == 0

    play(use, stage(memory=True, routing=Routing.STICKY), unit=DemandUnit.STREAMS, sla_s=0.02)


def test_a_refused_stream_that_tries_again_gets_a_slot_that_is_free_by_then() -> None:
    async def use(lab: Lab) -> None:
        asr = await lab.add("asr", session_slots=1)
        first, _ = await lab.open()
        second, found = await lab.open()
        assert not found
        assert not await lab.try_again(second)
        lab.offer(second)
        lab.pipeline.end_stream(first)
        await until(lambda: asr.gauges().sessions == 0)

        assert await lab.try_again(second)
        lab.offer(second)
        assert await lab.outcomes(2) == {Outcome.REFUSED: 1, Outcome.SERVED: 1}
        assert lab.pipeline.tally.active_streams == 1
        lab.pipeline.end_stream(second)
        await until(lambda: asr.gauges().sessions == 0)
        assert lab.pipeline.tally.active_streams == 0

    play(use, stage(memory=True, routing=Routing.STICKY), unit=DemandUnit.STREAMS)


def test_what_would_have_been_filtered_is_filtered_although_it_is_not_sent() -> None:
    filtered: list[set[int]] = []

    async def use(lab: Lab) -> None:
        await lab.add("vad")
        await lab.add("asr", session_slots=1)
        served, _ = await lab.open()
        refused, _ = await lab.open()
        for stream in (served, refused):
            lab.results.clear()
            lab._numbers = itertools.count(1)
            lab.latencies_s.clear()
            for _ in range(100):
                lab.offer(stream)
            counts = await lab.outcomes(100)
            assert counts[Outcome.SERVED if stream is served else Outcome.REFUSED] == 100 - counts[Outcome.FILTERED]
            filtered.append({number for number, outcome in lab.results.items() if outcome is Outcome.FILTERED})

    play(use, stage("vad", pass_ratio=0.45), MEMORY, unit=DemandUnit.STREAMS)
    assert filtered[0] == filtered[1]
    assert 40 < len(filtered[0]) < 70


def test_an_unsent_item_is_filtered_only_where_no_way_is_left_to_an_end() -> None:
    async def use(lab: Lab) -> None:
        lab.pipeline.admissible = 0.0
        stream, _ = await lab.open()
        for _ in range(50):
            lab.offer(stream)

        assert await lab.outcomes(50) == {Outcome.SHED: 50}

    stages = (stage("a"), stage("b", "a"), stage("c", "a", pass_ratio=0.01), stage("after-c", "c"))
    play(use, *stages, unit=DemandUnit.STREAMS)


@pytest.mark.parametrize("ended", [True, False])
def test_a_refused_stream_counts_as_offered_for_a_while_after_its_last_attempt(
    monkeypatch: pytest.MonkeyPatch,
    ended: bool,
) -> None:
    async def use(lab: Lab) -> None:
        await lab.add("asr", session_slots=1)
        tally = lab.pipeline.tally
        admitted, _ = await lab.open()
        refused, _ = await lab.open()
        if ended:
            lab.pipeline.end_stream(refused)
        assert tally.active_streams == 2
        await until(lambda: tally.active_streams == 1)

        if not ended:  # a client that comes back later than the longest delay
            assert not await lab.try_again(refused)
            assert tally.active_streams == 2
            lab.pipeline.end_stream(admitted)
            assert await lab.try_again(refused)
            assert tally.active_streams == 1
            assert refused.forgotten is not None
            assert refused.forgotten.cancelled(), "it counts until it ends"

    assert LONGEST_DELAY_S == 30
    monkeypatch.setattr(dataplane, "LONGEST_DELAY_S", 0.04)
    play(use, stage(memory=True, routing=Routing.STICKY), unit=DemandUnit.STREAMS)


def test_a_stream_refused_at_one_stage_gives_its_slots_at_the_others_back() -> None:
    async def use(lab: Lab) -> None:
        first = await lab.add("vad", session_slots=5)
        await lab.add("asr", session_slots=1)
        await lab.open()
        _, found = await lab.open()
        assert not found

        await until(lambda: first.gauges().sessions == 1)

    play(use, stage("vad", memory=True, routing=Routing.STICKY), MEMORY, unit=DemandUnit.STREAMS)


def test_all_chunks_of_a_stream_go_to_one_pod() -> None:
    async def use(lab: Lab) -> None:
        for _ in range(3):
            await lab.add("asr", session_slots=10)
        stream, _ = await lab.open()
        for _ in range(30):
            lab.offer(stream)
        await lab.outcomes(30)

        assert sorted(worker.counts.served for worker in lab.workers) == [0, 0, 30]

    play(use, stage(memory=True, routing=Routing.STICKY), unit=DemandUnit.STREAMS)


def test_chunks_offered_before_the_slots_are_found_wait_for_them() -> None:
    async def use(lab: Lab) -> None:
        await lab.add("asr", session_slots=1)
        stream = lab.pipeline.open_stream(lambda _: None)
        lab.offer(stream)

        assert await lab.outcomes(1) == {Outcome.SERVED: 1}

    play(use, stage(memory=True, routing=Routing.STICKY), unit=DemandUnit.STREAMS)


def test_a_slot_stays_until_the_last_chunk_has_left_and_is_free_then() -> None:
    async def use(lab: Lab) -> None:
        await lab.add("vad", fixed_s=0.1)
        asr = await lab.add("asr", session_slots=1)
        stream, _ = await lab.open()
        lab.offer(stream)
        lab.pipeline.end_stream(stream)
        assert asr.gauges().sessions == 1

        assert await lab.outcomes(1) == {Outcome.SERVED: 1}
        await until(lambda: asr.gauges().sessions == 0)

    play(use, stage("vad"), MEMORY, unit=DemandUnit.STREAMS)


def test_streams_stay_on_a_draining_pod_while_new_ones_go_elsewhere() -> None:
    async def use(lab: Lab) -> None:
        leaving = await lab.add("asr", session_slots=10)
        stream, _ = await lab.open()
        staying = await lab.add("asr", session_slots=10)
        lab.tell(leaving, ready=False)
        drain = asyncio.get_running_loop().create_task(leaving.drain(5))
        newcomer, _ = await lab.open()
        lab.offer(stream)
        lab.offer(newcomer)

        assert await lab.outcomes(2) == {Outcome.SERVED: 2}
        assert (leaving.counts.served, staying.counts.served) == (1, 1)
        lab.pipeline.end_stream(stream)
        await drain  # ends long before its limit, with the last stream
        assert (leaving.counts.sessions_cut, lab.pipeline.tally.recoveries.sessions_cut) == (0, 0)

    play(use, stage(memory=True, routing=Routing.STICKY), unit=DemandUnit.STREAMS)


@pytest.mark.parametrize("memory", [True, False])
def test_streams_are_handed_over_without_a_cut_until_a_pod_has_what_it_should_keep(memory: bool) -> None:
    async def use(lab: Lab) -> None:
        full = await lab.add("asr", session_slots=10)
        streams = [(await lab.open())[0] for _ in range(6)]
        for stream in streams:
            lab.offer(stream)
        await lab.outcomes(6)
        other = await lab.add("asr", session_slots=10)
        for _ in range(2):  # advice that is read twice
            lab.pipeline.rebalance({"asr": {full.host: 3}})
        if memory:
            await until(lambda: (full.gauges().sessions, other.gauges().sessions) == (3, 3))
        for stream in streams:
            lab.offer(stream)

        assert await lab.outcomes(12) == {Outcome.SERVED: 12}
        assert other.counts.served == 3
        assert lab.pipeline.tally.recoveries.sessions_cut == 0

    play(use, stage(memory=memory, routing=Routing.STICKY), unit=DemandUnit.STREAMS, hands_over=True)


def test_a_pod_that_leaves_hands_all_its_streams_over() -> None:
    async def use(lab: Lab) -> None:
        leaving = await lab.add("asr", session_slots=10)
        streams = [(await lab.open())[0] for _ in range(4)]
        staying = await lab.add("asr", session_slots=10)
        lab.tell(leaving, ready=False)
        drain = asyncio.get_running_loop().create_task(leaving.drain(5))
        lab.pipeline.rebalance({})
        await drain  # ends long before its limit
        for stream in streams:
            lab.offer(stream)

        assert await lab.outcomes(4) == {Outcome.SERVED: 4}
        assert staying.counts.served == 4
        assert (leaving.counts.sessions_cut, lab.pipeline.tally.recoveries.sessions_cut) == (0, 0)

    play(use, stage(memory=True, routing=Routing.STICKY), unit=DemandUnit.STREAMS, hands_over=True)


def test_an_ingress_that_cannot_hand_over_moves_nothing() -> None:
    async def use(lab: Lab) -> None:
        full = await lab.add("asr", session_slots=10)
        stream, _ = await lab.open()
        other = await lab.add("asr", session_slots=10)
        lab.pipeline.rebalance({"asr": {full.host: 0}})
        lab.offer(stream)

        assert await lab.outcomes(1) == {Outcome.SERVED: 1}
        assert (full.counts.served, other.counts.served) == (1, 0)

    play(use, stage(memory=True, routing=Routing.STICKY), unit=DemandUnit.STREAMS)


def test_a_stream_cut_at_the_end_of_the_drain_reattaches_elsewhere_and_loses_no_chunk() -> None:
    async def use(lab: Lab) -> None:
        leaving = await lab.add("asr", session_slots=10)
        stream, _ = await lab.open()
        staying = await lab.add("asr", session_slots=10)
        lab.tell(leaving, ready=False)
        drain = asyncio.get_running_loop().create_task(leaving.drain(0.05))
        offered = 0
        while not drain.done():
            lab.offer(stream)
            offered += 1
            await asyncio.sleep(0.002)
        lab.pipeline.pod_gone(leaving.host)

        assert await lab.outcomes(offered) == {Outcome.SERVED: offered}
        await until(lambda: staying.gauges().sessions == 1)
        assert lab.pipeline.tally.recoveries.sessions_cut == 1

    play(use, stage(memory=True, routing=Routing.STICKY), unit=DemandUnit.STREAMS)


def test_a_stream_without_state_moves_at_once_from_a_pod_that_does_not_answer() -> None:
    async def use(lab: Lab) -> None:
        doomed = await lab.add("asr")
        stream, _ = await lab.open()
        lab.offer(stream)
        await lab.outcomes(1)
        await lab.add("asr")
        await doomed.abort()  # and the API server has not noticed
        lab.offer(stream)

        assert await lab.outcomes(2) == {Outcome.SERVED: 2}
        assert (lab.pipeline.tally.recoveries.retries, lab.pipeline.tally.recoveries.sessions_cut) == (1, 0)

    play(use, stage(routing=Routing.STICKY), unit=DemandUnit.STREAMS)


def test_a_silent_stream_gets_a_new_slot_when_its_pod_is_gone() -> None:
    async def use(lab: Lab) -> None:
        doomed = await lab.add("asr", session_slots=10)
        stream, _ = await lab.open()
        staying = await lab.add("asr", session_slots=10)
        await doomed.abort()
        lab.pipeline.pod_gone(doomed.host)

        await until(lambda: staying.gauges().sessions == 1)
        assert lab.pipeline.tally.recoveries.sessions_cut == 1
        lab.pipeline.end_stream(stream)
        await until(lambda: staying.gauges().sessions == 0)

    play(use, stage(memory=True, routing=Routing.STICKY), unit=DemandUnit.STREAMS)


def test_a_request_holds_a_slot_while_it_is_in_the_stage() -> None:
    async def use(lab: Lab) -> None:
        worker = await lab.add("asr", session_slots=2, fixed_s=0.02)
        lab.offer()
        await until(lambda: worker.gauges().sessions == 1)

        assert await lab.outcomes(1) == {Outcome.SERVED: 1}
        assert worker.gauges().sessions == 0

    play(use, stage(memory=True, routing=Routing.STICKY))


# -- admission


def test_new_streams_beyond_the_admissible_load_are_shed_and_the_others_go_on() -> None:
    async def use(lab: Lab) -> None:
        await lab.add()
        early = [await lab.open() for _ in range(3)]
        lab.pipeline.admissible = 2
        late, admitted = await lab.open()
        assert not admitted
        for stream, _ in early:
            lab.offer(stream)
        lab.offer(late)

        assert await lab.outcomes(4) == {Outcome.SERVED: 3, Outcome.SHED: 1}
        for stream, _ in early[:2]:
            lab.pipeline.end_stream(stream)
        assert await lab.try_again(late)
        lab.offer(late)
        assert (await lab.outcomes(5))[Outcome.SERVED] == 4
        assert lab.pipeline.tally.active_streams == 2

    play(use, unit=DemandUnit.STREAMS)


def test_requests_beyond_the_admissible_rate_are_shed() -> None:
    async def use(lab: Lab) -> None:
        await lab.add()
        lab.pipeline.admissible = 0.0
        lab.offer()  # the token saved meanwhile
        lab.offer()

        assert await lab.outcomes(2) == {Outcome.SERVED: 1, Outcome.SHED: 1}

    play(use)


def test_what_has_no_answer_at_the_end_is_in_flight() -> None:
    async def use(lab: Lab) -> None:
        await lab.add(fixed_s=5)
        lab.offer()
        await until(lambda: lab.workers[0].gauges().in_service == 1)
        lab.pipeline.finish()

        assert lab.results == {1: Outcome.IN_FLIGHT}
        assert 0 < lab.latencies_s[1.0] < SLA_S * 10

    play(use)
