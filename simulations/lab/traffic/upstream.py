"""One stage as the ingress sees it: its pods, the routing of items and streams to its pods, and retries."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping

from optimizer.model import Routing
from simulations.lab.net.wire import NO_SESSION, Response, Status
from simulations.lab.traffic.backend import Backend, Item, PinnedSession, PodState, Recoveries
from simulations.lab.traffic.routing import Router
from simulations.lab.traffic.topology import StageTopology

_MAX_REFUSALS = 3
_SUSPENDED_S = 0.2
_RECHECK_S = 0.1


class Upstream:
    """A stage of the pipeline, with the index `index`.

    If `pins_streams` is set, all items of a stream go to one pod. If `memory` is set, a stream also holds a slot there.
    """

    def __init__(
        self,
        index: int,
        stage: StageTopology,
        namespace: str,
        recoveries: Recoveries,
        *,
        seed: int,
        carries_state: bool = False,
    ) -> None:
        """Create a stage without pods; `recoveries` gets the counts of retries and of sessions cut and moved.

        `carries_state` says whether streams that move take the state along that a stage with memory has of them.
        """
        self.index = index
        self.pins_streams = stage.memory or stage.routing is Routing.STICKY
        self.memory = stage.memory
        self._carries_state = carries_state and stage.memory
        self._stage = stage
        self._namespace = namespace
        self._router = Router(stage.routing, seed)
        self._recoveries = recoveries
        self._backends: dict[str, Backend] = {}
        self._changed = asyncio.Event()
        self._pullers: deque[tuple[Item, asyncio.Future[Backend | None]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- pods

    def pod_changed(self, pod: PodState) -> None:
        """Add a new pod of this stage or update a known one; pods of other stages are ignored."""
        backend = self._backends.get(pod.uid)
        if backend is None:
            if pod.ip is None or pod.namespace != self._namespace:
                return
            placement = next((p for p in self._stage.placements if p.selects(pod.labels)), None)
            if placement is None:
                return
            self._backends[pod.uid] = Backend(pod, placement)
        else:
            backend.ready, backend.takes_sessions = pod.ready, pod.takes_sessions
        self._wake()

    def pod_gone(self, uid: str) -> None:
        """Remove a deleted pod.

        Streams that it held a slot for look for another pod immediately, other pinned streams with their next item.
        """
        backend = self._backends.pop(uid, None)
        if backend is None:
            return
        # The pod closes the connection: answers may still be on their way.
        for session in tuple(backend.pinned):
            self._cut(session, backend)
            if self.memory and not session.ended:
                session.busy += 1
                task = asyncio.get_running_loop().create_task(self._reattach(session))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Close the connections to all pods."""
        for backend in self._backends.values():
            backend.close()

    # -- items

    async def serve(self, item: Item, backend: Backend | None = None) -> Response | None:
        """Send the item to a pod, and after a failure to other pods; return the answer OK or FILTERED of a pod.

        `backend` is the pod that `free` returned for it, None if it has none. The result is None when the item is
        settled in the meantime, or refused: by the pod of its stream, by all usable pods, or by `_MAX_REFUSALS` pods.
        """
        if self.pins_streams and item.session is not None:
            return await self._serve_pinned(item, item.session)
        full: set[Backend] = set()
        tried = False
        while not item.settled:
            backend = backend or await self._reserve(item, full)
            if backend is None:
                if full:
                    return None
                await self._change()
                continue
            self._recoveries.retries += tried
            tried = True
            response = await self._send(backend, item, NO_SESSION)
            match response.status:
                case Status.OK | Status.FILTERED:
                    return response
                case Status.DRAINING:
                    self._suspend(backend)
                case Status.INVALID:
                    return None
                case Status.REFUSED_QUEUE | Status.REFUSED_SLOT:
                    full.add(backend)
                    if len(full) >= _MAX_REFUSALS:
                        return None
            backend = None
        return None

    async def free(self, item: Item) -> Backend | None:
        """Wait for a pod that is free to take the item, which counts there as outstanding; None if it is settled."""
        turn: asyncio.Future[Backend | None] = asyncio.get_running_loop().create_future()
        self._pullers.append((item, turn))
        self.hand_over()
        return await turn

    async def _serve_pinned(self, item: Item, session: PinnedSession) -> Response | None:
        tried = False
        while not item.settled:
            backend = session.pins.get(self.index) or await self.attach(session, item.deadline_s)
            if backend is None:
                return None
            self._recoveries.retries += tried
            tried = True
            backend.outstanding += 1
            response = await self._send(backend, item, session.id)
            match response.status:
                case Status.OK | Status.FILTERED:
                    return response
                case Status.REFUSED_QUEUE | Status.INVALID:
                    return None  # no other pod has the stream's state, or would take it
                case Status.DRAINING:
                    self._suspend(backend)
                    self._cut(session, backend)
                case Status.REFUSED_SLOT:
                    self._cut(session, backend)
        return None

    async def _send(self, backend: Backend, item: Item, session_id: int) -> Response:
        """Send an item to `backend`, where it already counts as outstanding, and return the answer.

        Its status is DRAINING if the connection is lost.
        """
        try:
            client = await backend.client()
            return await client.send(item.id, session_id, item.payload)
        except OSError:
            return Response(Status.DRAINING, b"")
        finally:
            backend.outstanding -= 1
            self.hand_over()

    async def _reserve(self, item: Item, full: set[Backend]) -> Backend | None:
        """Return the pod for an item, which counts there as outstanding; None when no pod is usable.

        With the routing `Pull`, wait for a free pod; None when the item is settled before.
        """
        if self._stage.routing is Routing.PULL:
            return await self.free(item)
        backend = self._router.for_item(self._usable(full))
        if backend is not None:
            backend.outstanding += 1
        return backend

    def hand_over(self) -> None:
        """Give free pods to the items that wait for one under the routing `Pull`, the oldest item first."""
        while self._pullers:
            item, turn = self._pullers[0]
            if item.settled:
                self._pullers.popleft()
                turn.set_result(None)
                continue
            backend = self._router.for_item(self._usable(frozenset()))
            if backend is None:
                return
            self._pullers.popleft()
            backend.outstanding += 1
            turn.set_result(backend)

    # -- streams

    async def attach(self, session: PinnedSession, deadline_s: float) -> Backend | None:
        """Pin a stream to a pod and return the pod; in a stage with memory, the stream gets a slot there.

        None when every pod refuses the stream, or no pod accepts it before `deadline_s` (seconds, monotonic clock).
        """
        async with session.lock:
            if self.index in session.pins:
                return session.pins[self.index]
            full: set[Backend] = set()
            while time.monotonic() < deadline_s:
                backend = self._router.for_session(self._open_to_sessions(full))
                if backend is None:
                    if full:
                        return None
                    await self._change(deadline_s)
                    continue
                backend.sessions += 1
                status = (await self._open(backend, session.id)).status if self.memory else Status.OK
                if status is Status.OK:
                    self._pin(session, backend)
                    return backend
                backend.sessions -= 1
                if status is Status.DRAINING:
                    self._suspend(backend)
                else:
                    full.add(backend)
            return None

    def rebalance(self, keep: Mapping[str, int]) -> None:
        """Move streams off the pods named in `keep` until each has at most so many; pods that leave keep none.

        A stream gets its slot on the other pod before it gives up the one that it has: none is cut.
        """
        for backend in self._backends.values():
            most = keep.get(backend.name) if backend.ready else 0
            above = 0 if most is None else max(0, len(backend.pinned) - most)
            for session in tuple(backend.pinned)[:above]:
                session.busy += 1
                task = asyncio.get_running_loop().create_task(self._move(session, backend))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def release(self, session: PinnedSession) -> None:
        """Unpin the stream, and free its slot."""
        backend = session.pins.get(self.index)
        if backend is not None:
            self._unpin(session, backend)
            if self.memory:
                backend.end_session(session.id)

    async def _open(self, backend: Backend, session_id: int, state: bytes = b"") -> Response:
        try:
            client = await backend.client()
            return await client.open_session(session_id, state)
        except OSError:
            return Response(Status.DRAINING, b"")

    async def _take(self, backend: Backend, session_id: int) -> bytes:
        """Return the state of a stream, which gives up its slot; empty if the pod has none or is gone."""
        try:
            client = await backend.client()
            return (await client.take_session(session_id)).payload
        except OSError:
            return b""

    async def _move(self, session: PinnedSession, backend: Backend) -> None:
        try:
            async with session.lock:
                other = self._router.for_session(self._open_to_sessions({backend}))
                if session.ended or session.pins.get(self.index) is not backend or other is None:
                    return
                if backend.ready and (other.sessions + 1) / other.weight > backend.sessions / backend.weight:
                    return  # the streams are even by now
                if self._carries_state:
                    await self._carry(session, backend, other)
                    return
                other.sessions += 1
                if self.memory and (await self._open(other, session.id)).status is not Status.OK:
                    other.sessions -= 1
                    return
                self._unpin(session, backend)
                self._pin(session, other)
                self._recoveries.moved_empty += self.memory
                if self.memory:
                    backend.end_session(session.id)
        finally:
            session.let_go()

    async def _carry(self, session: PinnedSession, backend: Backend, other: Backend) -> None:
        """Move a stream with its state, while its next items wait: the state is that after the last one before.

        The other pod may be unable to use it, because it runs another variant of the model; then the stream begins
        there without any. Where it has no slot either, the stream goes back.
        """
        other.sessions += 1
        del session.pins[self.index]
        state = await self._take(backend, session.id)
        opened = await self._open(other, session.id, state)
        carried = bool(state) and opened.status is Status.OK and not opened.payload
        if opened.status is Status.INVALID:
            opened = await self._open(other, session.id)
        if opened.status is not Status.OK:
            other.sessions -= 1
            session.pins[self.index] = backend
            if (await self._open(backend, session.id, state)).status is not Status.OK:
                self._cut(session, backend)
            return
        self._unpin(session, backend)
        self._pin(session, other)
        self._recoveries.moved_carried += carried
        self._recoveries.moved_empty += not carried

    def _pin(self, session: PinnedSession, backend: Backend) -> None:
        """Pin a stream to a pod where it counts already."""
        session.pins[self.index] = backend
        backend.pinned.add(session)

    def _unpin(self, session: PinnedSession, backend: Backend) -> None:
        session.pins.pop(self.index, None)
        backend.sessions -= 1
        backend.pinned.discard(session)

    async def _reattach(self, session: PinnedSession) -> None:
        try:
            # If no pod accepts the stream in time, its next item tries again.
            await self.attach(session, time.monotonic() + _RECHECK_S)
        finally:
            session.let_go()

    def _cut(self, session: PinnedSession, backend: Backend) -> None:
        """Unpin a stream that has lost its pod; a second call for the same pod has no effect."""
        if session.pins.get(self.index) is backend:
            self._unpin(session, backend)
            self._recoveries.sessions_cut += self.memory

    # -- usable pods

    def _usable(self, full: "set[Backend] | frozenset[Backend]") -> list[Backend]:
        now_s = time.monotonic()
        return [
            backend
            for backend in self._backends.values()
            if backend.ready and backend.suspended_until_s <= now_s and backend not in full
        ]

    def _open_to_sessions(self, full: "set[Backend]") -> list[Backend]:
        """Return the usable pods that a Service would select for a new stream."""
        return [backend for backend in self._usable(full) if backend.takes_sessions]

    def _suspend(self, backend: Backend) -> None:
        """Do not use a pod for `_SUSPENDED_S`: it is leaving or unreachable, and the API server reports that later."""
        backend.suspended_until_s = time.monotonic() + _SUSPENDED_S
        asyncio.get_running_loop().call_later(_SUSPENDED_S, self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.hand_over()

    async def _change(self, deadline_s: float = math.inf) -> None:
        """Wait until the usable pods may have changed, at most `_RECHECK_S`, and not after `deadline_s`."""
        try:
            await asyncio.wait_for(self._changed.wait(), min(_RECHECK_S, deadline_s - time.monotonic()))
        except TimeoutError:
            return
