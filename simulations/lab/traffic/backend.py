"""The values that the ingress and its stages share: pods, connections to pods, streams and items."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controller.kube.matching import SESSIONS_LABEL
from controller.kube.workloads import OPEN
from simulations.lab.net.wire import ITEM_PORT, Client
from simulations.lab.traffic.routing import Replica
from simulations.lab.traffic.topology import PlacementTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """A pod as the API server reports it.

    `ip` is None before the pod has an address; `ready` is False as soon as the pod is being deleted. `takes_sessions`
    is False while a Service that selects `sluice.dev/sessions: open` leaves the pod out.
    """

    uid: str
    namespace: str
    labels: Mapping[str, str]
    ip: str | None
    ready: bool
    name: str = ""

    @property
    def takes_sessions(self) -> bool:
        """Return whether the pod gets new streams."""
        return self.labels.get(SESSIONS_LABEL, OPEN) == OPEN


@dataclass(slots=True, eq=False, kw_only=True)
class PinnedSession:
    """A stream in the ingress; `pins` maps the index of each stage that pins streams to the pod of this stream.

    `busy` counts the tasks and items that use the pins. `release` frees the pins; it is called when the stream has
    ended and `busy` is 0. `lock` protects the choice of pods.
    """

    id: int
    release: "Callable[[PinnedSession], None]"
    ended: bool = False
    busy: int = 0
    pins: "dict[int, Backend]" = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def end(self) -> None:
        """End the stream: no further items will come."""
        self.ended = True
        if not self.busy:
            self.release(self)

    def let_go(self) -> None:
        """End one use of the pins, which reduces `busy` by 1."""
        self.busy -= 1
        if self.ended and not self.busy:
            self.release(self)


@dataclass(slots=True, eq=False, kw_only=True)
class Item:
    """A chunk or a request in the pipeline; once `settled`, it has an outcome and is not processed further.

    `session` is None for a request. After `deadline_s` (seconds, monotonic clock) the item counts as lost. `payload` is
    what it carries: what it came with, then what the last stage that answered made of it.
    """

    id: int
    session: PinnedSession | None
    deadline_s: float
    payload: bytes
    settled: bool = False


@dataclass(slots=True)
class Recoveries:
    """Counts of one pipeline: items sent again to a pod, sessions that lost their pod, and sessions that were moved.

    Those moved took their state along (`moved_carried`), or began on the other pod without any (`moved_empty`).
    """

    retries: int = 0
    sessions_cut: int = 0
    moved_carried: int = 0
    moved_empty: int = 0


class Backend(Replica):
    """A pod of a stage, with the connection to it; it is not used before `suspended_until_s` (monotonic clock)."""

    def __init__(self, pod: PodState, placement: PlacementTopology) -> None:
        assert pod.ip is not None
        super().__init__(weight=placement.weight, limit=placement.limit)
        self.name = pod.name
        self.ready = pod.ready
        self.takes_sessions = pod.takes_sessions
        self.suspended_until_s = 0.0
        self.pinned: set[PinnedSession] = set()
        self._host = pod.ip
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def client(self) -> Client:
        """Return the connection to the pod; connect again if it is lost.

        Raises:
            OSError: the pod does not accept a connection.
        """
        if self._client is None or self._client.closed:
            async with self._connecting:
                if self._client is None or self._client.closed:
                    self._client = await Client.connect(self._host, ITEM_PORT)
        return self._client

    def end_session(self, session_id: int) -> None:
        """Free the session's slot on the pod."""
        if self._client is not None:
            self._client.end_session(session_id)

    def close(self) -> None:
        """Close the connection to the pod."""
        if self._client is not None:
            self._client.close()
