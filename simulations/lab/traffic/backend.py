"""What moves between ingress and pods: a pod as routing sees it, streams pinned to it, items under way."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simulations.lab.net.wire import Client
from simulations.lab.pods.worker import ITEM_PORT
from simulations.lab.traffic.routing import Replica
from simulations.lab.traffic.topology import PlacementTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod as the API server has it; `ready` is false as soon as it is being deleted."""

    uid: str
    namespace: str
    labels: Mapping[str, str]
    ip: str | None
    ready: bool


@dataclass(slots=True, eq=False, kw_only=True)
class Session:
    """A stream; `pins` has the pod it is pinned to at each stage (by index) that pins it.

    `busy` counts what still uses the pins; `release` gives them back when the stream has ended and nothing does.
    """

    id: int
    release: "Callable[[Session], None]"
    ended: bool = False
    busy: int = 0
    pins: "dict[int, Backend]" = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def end(self) -> None:
        """There will be no more items."""
        self.ended = True
        if not self.busy:
            self.release(self)

    def let_go(self) -> None:
        """One use less."""
        self.busy -= 1
        if self.ended and not self.busy:
            self.release(self)


@dataclass(slots=True, eq=False, kw_only=True)
class Item:
    """A chunk or a request under way; once `settled`, nothing more is done for it."""

    id: int
    session: Session | None
    deadline_s: float
    settled: bool = False


@dataclass(slots=True)
class Recoveries:
    """What went wrong and was made good."""

    retries: int = 0
    sessions_cut: int = 0


class Backend(Replica):
    """A pod that serves a stage."""

    def __init__(self, pod: Pod, placement: PlacementTopology) -> None:
        assert pod.ip is not None
        super().__init__(weight=placement.weight, limit=placement.limit)
        self.ready = pod.ready
        self.suspended_until_s = 0.0
        self.pinned: set[Session] = set()
        self._host = pod.ip
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def client(self) -> Client:
        """The connection, made anew where it is lost; OSError when there is nobody."""
        if self._client is None or self._client.closed:
            async with self._connecting:
                if self._client is None or self._client.closed:
                    self._client = await Client.connect(self._host, ITEM_PORT)
        return self._client

    def end_session(self, session_id: int) -> None:
        """Give its slot back."""
        if self._client is not None:
            self._client.end_session(session_id)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
