"""A TCP relay on loopback in front of a server, which can cut connections or hold bytes back."""

import asyncio
import contextlib
import threading
from enum import Enum
from types import TracebackType
from typing import Self

from simulations.lab.host.processes import LOOPBACK, free_ports

_START_S = 10.0


class Link(Enum):
    """The states of the relay."""

    OPEN = "open"
    CUT = "cut"
    """Connections are reset, new ones included."""
    HELD = "held"
    """Bytes wait in the relay and arrive when it is open again, as after retransmissions."""


class TcpRelay:
    """Relays connections from its own port to another port on this machine, in a thread, inside its `with` block."""

    def __init__(self, upstream_port: int) -> None:
        (self.port,) = free_ports(1)
        self._upstream_port = upstream_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._relays: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._pass = asyncio.Event()
        self._link = Link.OPEN
        self._server: asyncio.Server | None = None

    def set(self, link: Link) -> None:
        """Change the state; return when it is in force."""
        asyncio.run_coroutine_threadsafe(self._set(link), self._loop).result(_START_S)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(_START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    async def _open(self) -> None:
        self._pass.set()
        self._server = await asyncio.start_server(self._relay, LOOPBACK, self.port)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._set(Link.CUT)
        await asyncio.gather(*self._relays)

    async def _set(self, link: Link) -> None:
        self._link = link
        if link is Link.HELD:
            self._pass.clear()
        else:
            self._pass.set()
        if link is Link.CUT:
            for writer in list(self._writers):
                writer.transport.abort()

    async def _relay(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        if self._link is Link.CUT:
            client_writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(LOOPBACK, self._upstream_port)
        except OSError:
            client_writer.transport.abort()
            return
        pair = {client_writer, server_writer}
        task = asyncio.current_task()
        assert task is not None
        self._writers |= pair
        self._relays.add(task)
        try:
            await asyncio.gather(
                self._pump(client_reader, server_writer),
                self._pump(server_reader, client_writer),
            )
        finally:
            self._writers -= pair
            self._relays.discard(task)
            for writer in pair:
                writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._pass.wait()
                writer.write(data)
                await writer.drain()
            await self._pass.wait()
            writer.write_eof()
