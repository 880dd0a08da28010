"""The network of a pod: nothing but loopback, which relays join to that of the host.

Needs neither a bridge nor a packet filter, and nothing leaves the machine.
"""

import asyncio
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

Address = tuple[str, int]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
T = TypeVar("T")

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_SET_FLAGS, _UP = 0x8914, 0x1  # SIOCSIFFLAGS, IFF_UP
_SET_ADDRESS = 0x8916  # SIOCSIFADDR
_CHUNK = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


class PodNetwork:
    """A network namespace with relays, until `close`; `path` names it for containers."""

    def __init__(self) -> None:
        """Make the namespace, in which every address 10.x.x.x is local."""
        self._namespace = _in_a_thread(_make_namespace)
        self.path = f"/proc/{os.getpid()}/fd/{self._namespace}"
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def reaches(self, address: Address, target: Callable[[], Awaitable[Address]]) -> None:
        """Let the pod reach, at `address`, the address on the host that `target` returns for each connection."""
        listener = self._inside(lambda: _listener(address))

        async def dial() -> Stream:
            return await asyncio.open_connection(*await target())

        await self._serve(listener, dial)

    async def is_reached(self, address: Address) -> None:
        """Let the host reach, at `address`, the port of the same number in the pod."""

        async def dial() -> Stream:
            # A socket belongs to the namespace in which it was made.
            inside = self._inside(socket.socket)
            inside.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(inside, ("127.0.0.1", address[1]))
            except OSError:
                inside.close()
                raise
            return await asyncio.open_connection(sock=inside)

        await self._serve(_listener(address), dial)

    def close(self) -> None:
        """End all relays."""
        for server in self._servers:
            server.close()
        for connection in self._connections:
            connection.cancel()
        os.close(self._namespace)

    async def _serve(self, listener: socket.socket, dial: Callable[[], Awaitable[Stream]]) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                await relay((reader, writer), dial)
            except asyncio.CancelledError:
                pass  # by `close`
            finally:
                self._connections.discard(task)

        self._servers.append(await asyncio.start_server(connected, sock=listener))

    def _inside(self, make: Callable[[], T]) -> T:
        """Return what `make` returns in the namespace."""

        def enter() -> T:
            _checked(_libc.setns(self._namespace, 0))
            return make()

        return _in_a_thread(enter)


def _in_a_thread(call: Callable[[], T]) -> T:
    """Return what `call` returns in a thread that then ends: only that thread enters another namespace."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(call).result()


def _make_namespace() -> int:
    _checked(_libc.unshare(_NEW_NETWORK))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))
        # The class of the address makes its mask 255.0.0.0; on a loopback device the whole range is then local.
        address = struct.pack("16sHH4s8x", b"lo:0", socket.AF_INET, 0, socket.inet_aton("10.0.0.1"))
        fcntl.ioctl(control, _SET_ADDRESS, address)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def _listener(address: Address) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


async def relay(near: Stream, dial: Callable[[], Awaitable[Stream]]) -> None:
    """Join a connection to the one that `dial` makes, until both have ended. A refused one ends the other."""
    writers = [near[1]]
    try:
        with suppress(OSError):
            far = await dial()
            writers.append(far[1])
            await asyncio.gather(_copy(near[0], far[1]), _copy(far[0], near[1]))
    finally:
        for writer in writers:
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
