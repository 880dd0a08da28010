"""Items that wait, and replicas that take them, on loopback sockets: each item is done once, and none is lost."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from loopback import an_address

from controller.core.state.spec import DemandUnit
from optimizer.model import Routing
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import ITEM_PORT, RequestKind, Respondent, ServerConnection, Status
from simulations.lab.traffic.backend import PodState
from simulations.lab.traffic.backlog import Additions, BacklogTraffic
from simulations.lab.traffic.topology import PipelineTopology, PlacementTopology, StageTopology
from simulations.results.scoring import Outcome

LIMIT = 2


class Replica:
    """A pod that keeps the items that it has taken until it is asked to answer."""

    def __init__(self, lab: "Lab", app: str) -> None:
        self.host = an_address()
        self.items: list[tuple[Respondent, int]] = []
        self._lab, self._app = lab, app

    def on_item(self, connection: Respondent, item_id: int, _: int, __: bytes) -> None:
        self.items.append((connection, item_id))

    def on_open_session(self, connection: ServerConnection, session_id: int, state: bytes) -> None: ...

    def on_take_session(self, connection: ServerConnection, session_id: int) -> None: ...

    def on_end_session(self, session_id: int) -> None: ...

    def on_connected(self, connection: ServerConnection) -> None: ...

    def on_disconnected(self, connection: ServerConnection) -> None: ...

    def answer(self, status: Status = Status.OK) -> None:
        """Answer the oldest item."""
        connection, item_id = self.items.pop(0)
        connection.respond(RequestKind.ITEM, item_id, status)

    def vanish(self) -> None:
        """Break the connections of the items."""
        for connection, _ in self.items:
            connection.abort()
        self.items.clear()
        self.tell(ready=False)

    def tell(self, *, ready: bool) -> None:
        """Let the API server report the pod."""
        self._lab.traffic.pod_changed(
            PodState(uid=self.host, namespace="speech", labels={"app": self._app}, ip=self.host, ready=ready)
        )


class Lab:
    """A backlog, and the records of its items."""

    def __init__(self, stack: AsyncExitStack, *stages: StageTopology) -> None:
        self.records: list[tuple[Outcome, float]] = []
        self._timers, self._stack = Timers(), stack
        topology = PipelineTopology(
            namespace="speech", name="archive", unit=DemandUnit.ITEMS, sla_s=1e5, port=1, seed=1, stages=stages
        )
        self.traffic = BacklogTraffic(topology, self._record, self._timers)
        stack.callback(self._timers.close)
        stack.callback(self.traffic.finish)

    def _record(self, outcome: Outcome, arrival_s: float, _: float) -> None:
        self.records.append((outcome, arrival_s))

    def add(self, items: int, arrival_s: float = 0.0) -> None:
        self.traffic.add(items, arrival_s=arrival_s, arrived_s=time.monotonic())

    async def replica(self, app: str = "asr") -> Replica:
        """Add a ready replica of a stage."""
        replica = Replica(self, app)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: ServerConnection(replica), replica.host, ITEM_PORT)
        self._stack.callback(server.close)
        replica.tell(ready=True)
        return replica


def stage(name: str = "asr", *after: str) -> StageTopology:
    placement = PlacementTopology(pool="cpu", selector={"app": name}, weight=1, limit=LIMIT)
    return StageTopology(
        name=name, after=after, pass_ratio=1, routing=Routing.PULL, memory=False, placements=(placement,)
    )


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - what is awaited is inner state
        await asyncio.sleep(0.001)


def play(use: Callable[[Lab], Awaitable[None]], *stages: StageTopology) -> Lab:
    async def run() -> Lab:
        async with AsyncExitStack() as stack, asyncio.timeout(10):
            lab = Lab(stack, *(stages or (stage(),)))
            await use(lab)
        return lab

    return asyncio.run(run())


def test_a_replica_takes_as_many_items_as_it_serves_at_once_and_the_next_when_one_is_done() -> None:
    async def use(lab: Lab) -> None:
        first, second = await lab.replica(), await lab.replica()
        lab.add(10)
        await until(lambda: len(first.items) == len(second.items) == LIMIT)
        assert lab.traffic.left == 10
        first.answer()
        await until(lambda: lab.traffic.left == 9 and len(first.items) == LIMIT)
        while lab.traffic.left:
            for replica in (first, second):
                assert len(replica.items) <= LIMIT
                if replica.items:
                    replica.answer()
            await asyncio.sleep(0)

    assert Counter(play(use).records) == {(Outcome.SERVED, 0.0): 10}


def test_items_wait_for_the_first_replica_and_those_that_were_added_first_are_taken_first() -> None:
    async def use(lab: Lab) -> None:
        lab.add(1, arrival_s=1.0)
        lab.add(100_000, arrival_s=2.0)
        replica = await lab.replica()
        await until(lambda: len(replica.items) == LIMIT)
        replica.answer()
        await until(lambda: lab.traffic.left == 100_000)
        assert lab.records == [(Outcome.SERVED, 1.0)]

    play(use)


def test_what_a_replica_gives_back_is_done_by_another_and_counted_once() -> None:
    async def use(lab: Lab) -> None:
        leaving = await lab.replica()
        lab.add(3)
        await until(lambda: len(leaving.items) == LIMIT)
        leaving.tell(ready=False)
        leaving.answer(Status.DRAINING)
        leaving.answer(Status.DRAINING)
        other = await lab.replica()
        await until(lambda: len(other.items) == LIMIT)
        assert (lab.traffic.left, leaving.items) == (3, [])
        for left in (2, 1, 0):
            await until(lambda: bool(other.items))
            other.answer()
            await until(lambda left=left: lab.traffic.left == left)  # type: ignore[misc]

    assert play(use).records == [(Outcome.SERVED, 0.0)] * 3


def test_what_was_in_a_replica_that_vanishes_is_done_by_another_and_counted_once() -> None:
    async def use(lab: Lab) -> None:
        vanishing = await lab.replica()
        lab.add(LIMIT)
        await until(lambda: len(vanishing.items) == LIMIT)
        vanishing.vanish()
        other = await lab.replica()
        await until(lambda: len(other.items) == LIMIT)
        assert lab.traffic.left == LIMIT
        other.answer()
        other.answer()
        await until(lambda: lab.traffic.left == 0)

    assert play(use).records == [(Outcome.SERVED, 0.0)] * LIMIT


def test_an_item_that_is_refused_again_and_again_waits_again_and_is_not_lost() -> None:
    async def use(lab: Lab) -> None:
        replicas = [await lab.replica() for _ in range(4)]
        lab.add(1)
        for _ in range(5):
            await until(lambda: any(replica.items for replica in replicas))
            next(replica for replica in replicas if replica.items).answer(Status.REFUSED_QUEUE)
        assert lab.traffic.left == 1
        await until(lambda: any(replica.items for replica in replicas))
        next(replica for replica in replicas if replica.items).answer()
        await until(lambda: lab.traffic.left == 0)

    assert play(use).records == [(Outcome.SERVED, 0.0)]


def test_an_item_is_done_when_the_last_stage_has_answered_it_and_the_first_takes_the_next_meanwhile() -> None:
    async def use(lab: Lab) -> None:
        first, last = await lab.replica("vad"), await lab.replica("asr")
        lab.add(LIMIT + 1)
        await until(lambda: len(first.items) == LIMIT)
        first.answer()
        await until(lambda: len(last.items) == 1 and len(first.items) == LIMIT)
        assert lab.traffic.left == LIMIT + 1
        last.answer(Status.DRAINING)  # another replica of this stage takes it, not the first stage again
        last.tell(ready=False)
        other = await lab.replica("asr")
        await until(lambda: len(other.items) == 1)
        other.answer()
        await until(lambda: lab.traffic.left == LIMIT)
        assert len(first.items) == LIMIT

    play(use, stage("vad"), stage("asr", "vad"))


def test_items_that_are_not_done_at_the_end_are_in_flight_whether_they_wait_or_are_in_work() -> None:
    async def use(lab: Lab) -> None:
        replica = await lab.replica()
        lab.add(10)
        await until(lambda: len(replica.items) == LIMIT)
        replica.answer()
        await until(lambda: lab.traffic.left == 9 and len(replica.items) == LIMIT)

    lab = play(use)
    assert Counter(lab.records) == {(Outcome.SERVED, 0.0): 1, (Outcome.IN_FLIGHT, 0.0): 9}
    assert (lab.traffic.tally.offered, lab.traffic.left) == (10, 0)


def test_items_are_added_at_their_times_in_the_run() -> None:
    async def use(lab: Lab) -> None:
        lab.traffic.expect(Additions(start_s=time.monotonic() - 60.0, items=((0.0, 3), (30.0, 4), (3600.0, 5))))
        await until(lambda: lab.traffic.left == 7)
        replica = await lab.replica()
        await until(lambda: bool(replica.items))
        replica.answer()
        await until(lambda: lab.traffic.left == 6)
        assert lab.records == [(Outcome.SERVED, 0.0)]

    play(use)
