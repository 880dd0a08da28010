"""Binary frames between ingress and stage workers: one multiplexed TCP connection per (client, worker).

Request   u8 kind | u64 item id | u64 session id | u32 payload length | payload     (network byte order)
Response  u8 kind | u64 item or session id | u8 status                              (END_SESSION has none)

Answers come in the order in which work completes, not in the order of requests; ids tie them together. An item whose
session id is `NO_SESSION` belongs to none.
"""

import asyncio
import struct
from enum import IntEnum
from typing import Protocol, Self

from typing_extensions import override

MAX_PAYLOAD_BYTES = 1 << 20
NO_SESSION = 0

_REQUEST = struct.Struct("!BQQI")
_RESPONSE = struct.Struct("!BQB")


class Kind(IntEnum):
    """What a request asks for."""

    ITEM = 1
    OPEN_SESSION = 2
    END_SESSION = 3


class Status(IntEnum):
    """How a worker answers an ITEM or an OPEN_SESSION."""

    OK = 0
    REFUSED_QUEUE = 1  # as many items wait as the queue may hold
    REFUSED_SLOT = 2  # every session slot is taken
    DRAINING = 3  # the worker is on its way out: try another one


class Handler(Protocol):
    """What a server does with requests; every ITEM and OPEN_SESSION is answered once through `connection.respond`."""

    def on_item(self, connection: "Connection", item_id: int, session_id: int, payload: bytes) -> None:
        """One item to serve."""

    def on_open_session(self, connection: "Connection", session_id: int) -> None:
        """A session asks for a slot."""

    def on_end_session(self, session_id: int) -> None:
        """A session gives its slot back."""

    def on_connected(self, connection: "Connection") -> None:
        """A client has connected."""

    def on_disconnected(self, connection: "Connection") -> None:
        """A client has gone; what it still waits for can no longer be answered."""


class Connection(asyncio.Protocol):
    """The server's end of one connection; a malformed frame aborts it."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._handler.on_connected(self)

    @override
    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _REQUEST.size:
            kind, item_id, session_id, length = _REQUEST.unpack_from(buffer, start)
            if length > MAX_PAYLOAD_BYTES:
                self.abort()
                return
            end = start + _REQUEST.size + length
            if len(buffer) < end:
                break
            if kind == Kind.ITEM:
                self._handler.on_item(self, item_id, session_id, bytes(buffer[start + _REQUEST.size : end]))
            elif kind == Kind.OPEN_SESSION:
                self._handler.on_open_session(self, session_id)
            elif kind == Kind.END_SESSION:
                self._handler.on_end_session(session_id)
            else:
                self.abort()
                return
            start = end
        del buffer[:start]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._handler.on_disconnected(self)

    def respond(self, kind: Kind, identifier: int, status: Status) -> None:
        """Answer an item (by item id) or an opened session (by session id); nothing if the client has gone."""
        if self._transport is not None:
            self._transport.write(_RESPONSE.pack(kind, identifier, status))

    def close(self) -> None:
        """Close after everything written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what is unsent is lost."""
        if self._transport is not None:
            self._transport.abort()


class Client(asyncio.Protocol):
    """The client's end: `await Client.connect(host, port)`, then `send`, `open_session`, `end_session`, `close`."""

    def __init__(self) -> None:
        self._pending: dict[tuple[int, int], asyncio.Future[Status]] = {}
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, host: str, port: int) -> Self:
        """Connect to a worker; OSError when nothing listens there."""
        _, client = await asyncio.get_running_loop().create_connection(cls, host, port)
        return client

    @property
    def closed(self) -> bool:
        """Whether the connection has gone; every later request fails with ConnectionError."""
        return self._transport is None or self._transport.is_closing()

    def send(self, item_id: int, session_id: int, payload: bytes = b"") -> asyncio.Future[Status]:
        """Send one item; `item_id` is unique among those this client waits for.

        The future ends with the worker's status, or with ConnectionError when the connection is lost first.
        """
        return self._request(Kind.ITEM, item_id, item_id, session_id, payload)

    def open_session(self, session_id: int) -> asyncio.Future[Status]:
        """Take a session slot before the first item: OK, REFUSED_SLOT or DRAINING. Taking it twice is OK."""
        return self._request(Kind.OPEN_SESSION, session_id, 0, session_id, b"")

    def end_session(self, session_id: int) -> None:
        """Give the session's slot back; no answer, and no error when the connection has gone."""
        if self._transport is not None:
            self._transport.write(_REQUEST.pack(Kind.END_SESSION, 0, session_id, 0))

    def close(self) -> None:
        """Close; every outstanding request fails with ConnectionError."""
        if self._transport is not None:
            self._transport.close()

    def _request(self, kind: Kind, key: int, item_id: int, session_id: int, payload: bytes) -> asyncio.Future[Status]:
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ValueError(f"payload: {len(payload)} bytes, at most {MAX_PAYLOAD_BYTES} are allowed")
        if (kind, key) in self._pending:
            raise ValueError(f"{kind.name} {key}: this client still waits for an answer to the same id")
        future: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(ConnectionError("the worker has closed the connection"))
            return future
        self._pending[kind, key] = future
        self._transport.write(_REQUEST.pack(kind, item_id, session_id, len(payload)) + payload)
        return future

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        whole = len(buffer) - len(buffer) % _RESPONSE.size
        for kind, identifier, status in _RESPONSE.iter_unpack(bytes(buffer[:whole])):
            future = self._pending.pop((kind, identifier), None)
            if future is not None and not future.done():
                future.set_result(Status(status))
        del buffer[:whole]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(ConnectionError(f"connection to the worker lost: {exc or 'closed'}"))
