"""Binary frames between load generator, ingress and stage workers: one TCP connection carries many requests at once.

Request   u8 kind | u64 item id | u64 session id | u32 payload length | payload     (network byte order)
Response  u8 kind | u64 item or session id | u8 status | u32 payload length | payload   (END_SESSION has no response)

Responses come in the order of completion, and are matched to requests by their id. The session id `NO_SESSION` means
that the item belongs to no session. The lab's own workers answer without a payload.

A session moves by TAKE_SESSION, whose answer has its state as payload once all its items have been answered, and which
frees its slot; OPEN_SESSION with that payload gives another replica the state. Without one a session begins empty.
"""

import asyncio
import struct
from enum import IntEnum
from typing import NamedTuple, Protocol, Self

from typing_extensions import override

ITEM_PORT = 7000
"""The port of a worker for items, in these frames."""
METRICS_PORT = 7001
MAX_PAYLOAD_BYTES = 1 << 20
NO_SESSION = 0

_REQUEST = struct.Struct("!BQQI")
_RESPONSE = struct.Struct("!BQBI")


class RequestKind(IntEnum):
    """The kinds of requests: an item to serve, the begin of a session, its end, and its move to another replica."""

    ITEM = 1
    OPEN_SESSION = 2
    END_SESSION = 3
    TAKE_SESSION = 4


class Status(IntEnum):
    """The answers to all requests but END_SESSION."""

    OK = 0
    REFUSED_QUEUE = 1  # the queue is full
    REFUSED_SLOT = 2  # every session slot is in use
    DRAINING = 3  # the worker is shutting down: use another one
    FILTERED = 4  # served, and nothing of it goes on to the next stage
    INVALID = 5  # the payload is not what the stage takes; the answer says why


_STATUSES = {status.value: status for status in Status}


class Response(NamedTuple):
    """The answer to a request: its status, and what the worker made of an item, or the state of a session."""

    status: Status
    payload: bytes


class Respondent(Protocol):
    """Takes the answer to a request."""

    def respond(self, kind: RequestKind, identifier: int, status: Status, payload: bytes = b"") -> None:
        """Answer an ITEM (by item id), OPEN_SESSION or TAKE_SESSION (by session id)."""

    def abort(self) -> None:
        """Close the connection immediately, without an answer."""


class Handler(Protocol):
    """Handles the requests of a server's connections.

    It answers every ITEM, OPEN_SESSION and TAKE_SESSION once, with `connection.respond`.
    """

    def on_item(self, connection: Respondent, item_id: int, session_id: int, payload: bytes) -> None:
        """Serve an item."""

    def on_open_session(self, connection: "ServerConnection", session_id: int, state: bytes) -> None:
        """Give a session a slot, with `state` unless that is empty, or refuse the session."""

    def on_take_session(self, connection: "ServerConnection", session_id: int) -> None:
        """Give up a session and its slot, and answer with its state: OK, or REFUSED_SLOT if it is not known."""

    def on_end_session(self, session_id: int) -> None:
        """Free the slot of a session."""

    def on_connected(self, connection: "ServerConnection") -> None:
        """Register a connected client."""

    def on_disconnected(self, connection: "ServerConnection") -> None:
        """Unregister a disconnected client, whose requests can no longer be answered."""


class ServerConnection(asyncio.Protocol):
    """The server's end of one connection: passes requests to a `Handler`; a malformed frame aborts the connection."""

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
            if kind == RequestKind.ITEM:
                self._handler.on_item(self, item_id, session_id, bytes(buffer[start + _REQUEST.size : end]))
            elif kind == RequestKind.OPEN_SESSION:
                self._handler.on_open_session(self, session_id, bytes(buffer[start + _REQUEST.size : end]))
            elif kind == RequestKind.TAKE_SESSION:
                self._handler.on_take_session(self, session_id)
            elif kind == RequestKind.END_SESSION:
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

    def respond(self, kind: RequestKind, identifier: int, status: Status, payload: bytes = b"") -> None:
        """Answer a request, by its item or session id; no effect after the client has disconnected.

        Raises:
            ValueError: the payload exceeds `MAX_PAYLOAD_BYTES`.
        """
        _check_size(payload)
        if self._transport is not None:
            self._transport.write(_RESPONSE.pack(kind, identifier, status, len(payload)) + payload)

    def close(self) -> None:
        """Close the connection after all written data has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately; unsent data is lost."""
        if self._transport is not None:
            self._transport.abort()


class Client(asyncio.Protocol):
    """The client's end of a connection.

    Use `await Client.connect(host, port)`, then `send`, `open_session` and `end_session`, and `close` at the end.
    A malformed response closes the connection.
    """

    def __init__(self) -> None:
        self._pending: dict[tuple[int, int], asyncio.Future[Response]] = {}
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, host: str, port: int) -> Self:
        """Return a client that is connected to the server at `host` and `port`.

        Raises:
            OSError: no server listens there.
        """
        _, client = await asyncio.get_running_loop().create_connection(cls, host, port)
        return client

    @property
    def closed(self) -> bool:
        """Whether the connection is closed, so that every further request fails with ConnectionError."""
        return self._transport is None or self._transport.is_closing()

    def send(self, item_id: int, session_id: int, payload: bytes = b"") -> asyncio.Future[Response]:
        """Send an item, and return a future of the server's answer; ConnectionError when the connection is lost first.

        `item_id` is unique among the items of this client that have no answer yet.

        Raises:
            ValueError: an item with the same id has no answer yet, or the payload exceeds `MAX_PAYLOAD_BYTES`.
        """
        return self._request(RequestKind.ITEM, item_id, item_id, session_id, payload)

    def open_session(self, session_id: int, state: bytes = b"") -> asyncio.Future[Response]:
        """Request a slot for a session before its first item; return a future of OK, REFUSED_SLOT or DRAINING.

        A worker answers OK for a session that has a slot already. The ingress aborts the connection instead. A request
        for a refused session is a new attempt. With `state`, from `take_session`, INVALID says that it is not one of
        this worker's, and OK with a payload that the model could not use it. The future fails with ConnectionError when
        the connection is lost.
        """
        return self._request(RequestKind.OPEN_SESSION, session_id, 0, session_id, state)

    def take_session(self, session_id: int) -> asyncio.Future[Response]:
        """End a session here, after its last item was answered; return a future of OK with its state, or REFUSED_SLOT.

        The future fails with ConnectionError when the connection is lost.
        """
        return self._request(RequestKind.TAKE_SESSION, session_id, 0, session_id, b"")

    def end_session(self, session_id: int) -> None:
        """Free the session's slot. There is no answer, and no error when the connection is closed."""
        if self._transport is not None:
            self._transport.write(_REQUEST.pack(RequestKind.END_SESSION, 0, session_id, 0))

    def close(self) -> None:
        """Close the connection; every request without an answer fails with ConnectionError."""
        if self._transport is not None:
            self._transport.close()

    def _request(
        self, kind: RequestKind, key: int, item_id: int, session_id: int, payload: bytes
    ) -> asyncio.Future[Response]:
        _check_size(payload)
        if (kind, key) in self._pending:
            raise ValueError(f"{kind.name} {key}: this client still waits for an answer to the same id")
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
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
        start = 0
        while len(buffer) - start >= _RESPONSE.size:
            kind, identifier, status, length = _RESPONSE.unpack_from(buffer, start)
            if length > MAX_PAYLOAD_BYTES or status not in _STATUSES:
                self.close()
                return
            end = start + _RESPONSE.size + length
            if len(buffer) < end:
                break
            future = self._pending.pop((kind, identifier), None)
            if future is not None and not future.done():
                future.set_result(Response(_STATUSES[status], bytes(buffer[start + _RESPONSE.size : end])))
            start = end
        del buffer[:start]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(ConnectionError(f"connection to the worker lost: {exc or 'closed'}"))


def _check_size(payload: bytes) -> None:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"payload: {len(payload)} bytes, at most {MAX_PAYLOAD_BYTES} are allowed")
