"""Frames between ingress and workers."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from simulations.lab.net.wire import (
    MAX_PAYLOAD_BYTES,
    NO_SESSION,
    Client,
    RequestKind,
    Respondent,
    Response,
    ServerConnection,
    Status,
)

SERVED = Response(Status.OK, b"")


class Recorder:
    """Answers OK to everything except items whose id is in `silent`."""

    def __init__(self, silent: frozenset[int] = frozenset()) -> None:
        self.silent = silent
        self.items: list[tuple[int, int, bytes]] = []
        self.ended: asyncio.Queue[int] = asyncio.Queue()
        self.connections: list[ServerConnection] = []

    def on_item(self, connection: Respondent, item_id: int, session_id: int, payload: bytes) -> None:
        self.items.append((item_id, session_id, payload))
        if item_id not in self.silent:
            connection.respond(RequestKind.ITEM, item_id, Status.OK)

    def on_open_session(self, connection: ServerConnection, session_id: int, state: bytes) -> None:
        connection.respond(RequestKind.OPEN_SESSION, session_id, Status.OK if state else Status.REFUSED_SLOT)

    def on_take_session(self, connection: ServerConnection, session_id: int) -> None:
        connection.respond(RequestKind.TAKE_SESSION, session_id, Status.OK, b"state of %d" % session_id)

    def on_end_session(self, session_id: int) -> None:
        self.ended.put_nowait(session_id)

    def on_connected(self, connection: ServerConnection) -> None:
        self.connections.append(connection)

    def on_disconnected(self, connection: ServerConnection) -> None:
        self.connections.remove(connection)


def exchange(recorder: Recorder, talk: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: ServerConnection(recorder), "127.0.0.1", 0)
        client = await Client.connect(*server.sockets[0].getsockname())
        try:
            async with asyncio.timeout(5):
                await talk(client)
        finally:
            client.close()
            server.close()
            await server.wait_closed()

    asyncio.run(run())


def test_an_item_arrives_whole_and_its_answer_comes_back() -> None:
    recorder = Recorder()

    async def talk(client: Client) -> None:
        assert (await client.send(7, 3, b"x" * MAX_PAYLOAD_BYTES)).status is Status.OK
        assert (await client.send(2**64 - 1, NO_SESSION)).status is Status.OK

    exchange(recorder, talk)
    assert recorder.items == [(7, 3, b"x" * MAX_PAYLOAD_BYTES), (2**64 - 1, NO_SESSION, b"")]


def test_many_requests_share_one_connection_and_are_told_apart() -> None:
    recorder = Recorder()

    async def talk(client: Client) -> None:
        answers = [client.send(item, 1, bytes(item % 50)) for item in range(2000)]
        opened = client.open_session(5)
        assert set(await asyncio.gather(*answers)) == {SERVED}
        assert (await opened).status is Status.REFUSED_SLOT

    exchange(recorder, talk)
    assert [item for item, _, _ in recorder.items] == list(range(2000))
    assert all(len(payload) == item % 50 for item, _, payload in recorder.items)


def test_what_a_worker_makes_of_an_item_comes_back_with_its_status() -> None:
    class Upper(Recorder):
        def on_item(self, connection: Respondent, item_id: int, session_id: int, payload: bytes) -> None:
            connection.respond(RequestKind.ITEM, item_id, Status(session_id), payload.upper())

    async def talk(client: Client) -> None:
        requests = [client.send(1, Status.FILTERED, b""), client.send(2, Status.OK, b"words")]
        assert await asyncio.gather(*requests) == [Response(Status.FILTERED, b""), Response(Status.OK, b"WORDS")]
        long = b"x" * MAX_PAYLOAD_BYTES
        assert (await client.send(3, Status.OK, long)).payload == long.upper()

    exchange(Upper(), talk)


def test_an_answer_that_is_too_long_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="payload: 1048577 bytes"):
        ServerConnection(Recorder()).respond(RequestKind.ITEM, 1, Status.OK, bytes(MAX_PAYLOAD_BYTES + 1))


@pytest.mark.parametrize(
    "answer", [b"\x01" + bytes(8) + b"\x63" + bytes(4), b"\x01" + bytes(8) + b"\x00" + b"\xff" * 4]
)
def test_a_malformed_answer_ends_the_connection(answer: bytes) -> None:
    async def run() -> None:
        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(answer)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(reply, "127.0.0.1", 0)
        client = await Client.connect(*server.sockets[0].getsockname())
        async with asyncio.timeout(5):
            with pytest.raises(ConnectionError):
                await client.send(0, 0)
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def test_the_state_of_a_session_is_taken_and_given_to_another_worker() -> None:
    async def talk(client: Client) -> None:
        assert await client.take_session(9) == Response(Status.OK, b"state of 9")
        assert (await client.open_session(9)).status is Status.REFUSED_SLOT
        assert (await client.open_session(9, b"state of 9")).status is Status.OK

    exchange(Recorder(), talk)


def test_ending_a_session_needs_no_answer() -> None:
    recorder = Recorder()

    async def talk(client: Client) -> None:
        client.end_session(11)
        assert await recorder.ended.get() == 11

    exchange(recorder, talk)


def test_a_lost_connection_fails_every_outstanding_request_and_all_later_ones() -> None:
    recorder = Recorder(silent=frozenset({1, 2}))

    async def talk(client: Client) -> None:
        first, second = client.send(1, 0), client.send(2, 0)
        assert (await client.send(3, 0)).status is Status.OK
        recorder.connections[0].abort()
        for request in (first, second, client.send(4, 0)):
            with pytest.raises(ConnectionError):
                await request
        assert client.closed
        with pytest.raises(ConnectionError):
            await client.open_session(1)
        client.end_session(1)

    exchange(recorder, talk)


def test_a_request_that_breaks_the_protocol_is_refused_before_it_is_sent() -> None:
    recorder = Recorder(silent=frozenset({1}))

    async def talk(client: Client) -> None:
        with pytest.raises(ValueError, match="payload: 1048577 bytes"):
            client.send(5, 0, bytes(MAX_PAYLOAD_BYTES + 1))
        waiting = client.send(1, 0)
        with pytest.raises(ValueError, match=r"ITEM 1: .*same id"):
            client.send(1, 0)
        waiting.cancel()

    exchange(recorder, talk)


@pytest.mark.parametrize("frame", [b"\x09" + bytes(20), b"\x01" + bytes(16) + b"\xff\xff\xff\xff"])
def test_a_malformed_frame_ends_the_connection(frame: bytes) -> None:
    async def run() -> None:
        recorder = Recorder()
        server = await asyncio.get_running_loop().create_server(lambda: ServerConnection(recorder), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(frame)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        assert recorder.items == []
        writer.close()
        server.close()
        await server.wait_closed()

    asyncio.run(run())
