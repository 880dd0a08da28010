"""The values that ingress and stages share: pods, backends, streams and items."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simulations.lab.net.wire import Client
from simulations.lab.pods.worker import ITEM_PORT
from simulations.lab.traffic.routing import Replica
from simulations.lab.traffic.topology import PlacementTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """A pod as the API server reports it; `ready` is false as soon as it is being deleted."""

    uid: str
    namespace: str
    labels: Mapping[str, str]
    ip: str | None
    ready: bool


@dataclass(slots=True, eq=False, kw_only=True)
class PinnedSession:
    """A stream; `pins` maps each stage (by index) that pins streams to the pod of this stream.

    `busy` counts the users of the pins; `release` frees the pins when the stream has ended and `busy` is 0.
    """

    id: int
    release: "Callable[[PinnedSession], None]"
    ended: bool = False
    busy: int = 0
    pins: "dict[int, Backend]" = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def end(self) -> None:
        """End the stream: it has no further items."""
        self.ended = True
        if not self.busy:
            self.release(self)

    def let_go(self) -> None:
        """End one use of the pins."""
        self.busy -= 1
        if self.ended and not self.busy:
            self.release(self)


@dataclass(slots=True, eq=False, kw_only=True)
class Item:
    """A chunk or a request in the pipeline; once `settled`, it has an outcome and is not processed further."""

    id: int
    session: PinnedSession | None
    deadline_s: float
    settled: bool = False


@dataclass(slots=True)
class Recoveries:
    """Counts of items sent again and of sessions that lost their pod."""

    retries: int = 0
    sessions_cut: int = 0


class Backend(Replica):
    """A pod of a stage, with the connection to it."""

    def __init__(self, pod: PodState, placement: PlacementTopology) -> None:
        assert pod.ip is not None
        super().__init__(weight=placement.weight, limit=placement.limit)
        self.ready = pod.ready
        self.suspended_until_s = 0.0
        self.pinned: set[PinnedSession] = set()
        self._host = pod.ip
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def client(self) -> Client:
        """Return the connection, after connecting again if it is lost; OSError when the pod does not accept it."""
        if self._client is None or self._client.closed:
            async with self._connecting:
                if self._client is None or self._client.closed:
                    self._client = await Client.connect(self._host, ITEM_PORT)
        return self._client

    def end_session(self, session_id: int) -> None:
        """Free the session's slot."""
        if self._client is not None:
            self._client.end_session(session_id)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
