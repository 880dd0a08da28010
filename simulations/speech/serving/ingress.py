"""The ingress of the reference service: one WebSocket per stream, audio in, words out.

`python -m simulations.speech.serving.ingress --config FILE --kubeconfig FILE`; the configuration, the metrics and the
way of items through the stages are those of `simulations.lab.traffic.ingress`.

A client sends chunks as binary messages: `encoded`. The first message that it gets is {"admitted": true}; a stream that
is shed or refused is closed with code 1013 instead, and may connect again later. With the same path, such as
/meeting-42, it is the same stream then, and counts once in the demand. Each chunk is answered once, in the order of
completion, as JSON: its number from 0, its outcome, and the transcript of its utterance where there is one.
"""

import asyncio
import json
import math
import struct
import time
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from simulations.engine.draws import LONGEST_DELAY_S
from simulations.lab.host.processes import LOOPBACK
from simulations.lab.traffic import ingress
from simulations.lab.traffic.dataplane import Answer, PipelineTraffic, Stream
from simulations.results.scoring import Outcome
from simulations.speech.serving.messages import Audio

TRY_AGAIN_LATER = 1013
"""The code with which a stream is closed that found no slot (RFC 6455 and its registry of close codes)."""
INVALID = 1007
"""The code with which a stream is closed that sent something else than a chunk."""

_HEADER = struct.Struct("!dd")
_LONGEST = _HEADER.size + 1 + 2 * 16_000  # a second of audio
_CLOSED_S = 1.0
_NAMELESS = "/"


def encoded(audio: Audio, *, due_s: float = math.nan, arrival_s: float = math.nan) -> bytes:
    """Return a chunk as a client sends it.

    `due_s` is when it was due on the monotonic clock, for clients on the ingress' own machine: latency counts from
    then. `arrival_s` is the same time in seconds since a run began. Not a number: when the ingress receives it.
    """
    return _HEADER.pack(arrival_s, due_s) + audio.encode()


def decoded(message: bytes | str) -> tuple[float, float, bytes]:
    """Return `arrival_s` and `due_s` of a chunk, as in `encoded`, and the chunk as the stages take it.

    Raises:
        ValueError: the message is not a chunk.
    """
    if isinstance(message, str):
        raise ValueError("chunk: text, must be a binary message")  # noqa: TRY004 - a client's mistake, not ours
    if len(message) < _HEADER.size:
        raise ValueError(f"chunk: {len(message)} bytes, must be at least {_HEADER.size}")
    arrival_s, due_s = _HEADER.unpack_from(message)
    Audio.decode(message[_HEADER.size :])
    return arrival_s, due_s, message[_HEADER.size :]


class Door:
    """Takes the streams of one pipeline."""

    def __init__(self, pipeline: PipelineTraffic) -> None:
        """Take streams for `pipeline`."""
        self._pipeline = pipeline
        self._refused: dict[str, tuple[Stream, asyncio.TimerHandle]] = {}  # by path

    async def attend(self, connection: ServerConnection) -> None:
        """Serve one stream until its client closes it."""
        loop = asyncio.get_running_loop()
        decided: asyncio.Queue[bool] = asyncio.Queue()
        answers: asyncio.Queue[str] = asyncio.Queue()
        stream, kept = self._stream(connection, decided), False
        writer: asyncio.Task[None] | None = None
        try:
            if not await decided.get():
                kept = self._keep(connection, stream)
                await connection.close(TRY_AGAIN_LATER, "no slot is free; try again later")
                return
            await connection.send(json.dumps({"admitted": True}))
            writer = loop.create_task(_write(connection, answers))
            number = 0
            async for message in connection:
                arrival_s, due_s, chunk = decoded(message)
                now_s = time.monotonic()
                self._pipeline.offer(
                    stream,
                    number=number,
                    arrival_s=0.0 if math.isnan(arrival_s) else arrival_s,
                    arrived_s=now_s if math.isnan(due_s) else min(due_s, now_s),
                    answer=_answer(answers, number),
                    payload=chunk,
                )
                number += 1
        except ValueError as error:
            await connection.close(INVALID, str(error))
        except ConnectionClosed:
            pass
        finally:
            if not kept:
                self._pipeline.end_stream(stream)
            if writer is not None:
                writer.cancel()

    def _stream(self, connection: ServerConnection, decided: asyncio.Queue[bool]) -> Stream:
        """Return the stream of a connection: a new one, or a refused one that tries again."""
        known = self._refused.pop(_path(connection), None)
        if known is None:
            return self._pipeline.open_stream(decided.put_nowait)
        stream, forgotten = known
        forgotten.cancel()
        self._pipeline.try_again(stream, decided.put_nowait)
        return stream

    def _keep(self, connection: ServerConnection, stream: Stream) -> bool:
        """Keep a refused stream for as long as it may try again; not one without a name."""
        path = _path(connection)
        if path == _NAMELESS or path in self._refused:
            return False
        forget = asyncio.get_running_loop().call_later(LONGEST_DELAY_S, self._forget, path)
        self._refused[path] = stream, forget
        return True

    def _forget(self, path: str) -> None:
        stream, _ = self._refused.pop(path)
        self._pipeline.end_stream(stream)


def _path(connection: ServerConnection) -> str:
    assert connection.request is not None, "it is open"
    return connection.request.path


def _answer(answers: asyncio.Queue[str], number: int) -> Answer:
    def answer(outcome: Outcome, payload: bytes) -> None:
        found: dict[str, Any] = {"chunk": number, "outcome": outcome.name.lower()}
        if payload[:1] == b"{":
            found["transcript"] = json.loads(payload)
        answers.put_nowait(json.dumps(found, separators=(",", ":")))

    return answer


async def _write(connection: ServerConnection, answers: asyncio.Queue[str]) -> None:
    try:
        while True:
            await connection.send(await answers.get())
    except ConnectionClosed:
        return


def _health(connection: ServerConnection, request: Request) -> Response | None:
    """Answer a plain request, which is no stream, so that the port can be probed."""
    if "Upgrade" in request.headers:
        return None
    return connection.respond(HTTPStatus.OK, "streams are WebSockets\n")


async def listen(pipeline: PipelineTraffic) -> ingress.Listener:
    """Accept the streams of a pipeline as WebSockets on its port.

    Raises:
        OSError: the port is in use.
    """
    return await serve(
        Door(pipeline).attend,
        LOOPBACK,
        pipeline.topology.port,
        compression=None,  # audio does not shrink, and deflating it takes more than recognising it
        max_size=_LONGEST,
        process_request=_health,
        close_timeout=_CLOSED_S,
    )


if __name__ == "__main__":
    ingress.main("simulations.speech.serving.ingress", __doc__, listen)
