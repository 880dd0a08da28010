"""Streams of audio for Locust, with latencies from when each chunk was due.

    sluice speech corpus --out corpus
    CORPUS=corpus locust -f locustfile.py --headless -u 40 -r 10 -t 60s --host ws://127.0.0.1:8080

A user is one stream. Locust measures from the send, and a stream that waits for answers sends late when the server is
slow: then the load falls just when it matters (coordinated omission). This file sends each chunk when it is due, and
counts latency from then.
"""

import json
import math
import os
import struct
import time
import wave
from pathlib import Path

import gevent
import websocket
from locust import User, constant, events, task

CHUNK_S = float(os.environ.get("CHUNK_S", "0.16"))
PATIENCE_S = 5.0
FILES = sorted(Path(os.environ.get("CORPUS", "corpus")).glob("*.wav"))
UNKNOWN_TIMES = struct.pack("!dd", math.nan, math.nan)  # only clients on the server's machine share its clock
ONGOING = b"\x00"  # the client does not know where an utterance ends


def chunks_of(path: Path) -> list[bytes]:
    """Return the audio of a file in messages of `CHUNK_S` seconds."""
    with wave.open(str(path), "rb") as file:
        size = round(CHUNK_S * file.getframerate()) * file.getsampwidth()
        audio = file.readframes(file.getnframes())
    return [UNKNOWN_TIMES + ONGOING + audio[at : at + size] for at in range(0, len(audio) - size + 1, size)]


class Stream(User):
    """Speaks one conversation over and over."""

    wait_time = constant(0)
    count = 0

    def on_start(self) -> None:
        """Choose what to say."""
        Stream.count += 1
        self.name = f"stream-{Stream.count}"
        self.chunks = chunks_of(FILES[Stream.count % len(FILES)])

    @task
    def speak(self) -> None:
        """Speak the conversation once."""
        connection = websocket.create_connection(f"{self.host}/{self.name}", timeout=PATIENCE_S)
        try:
            connection.recv()  # admitted; a refused stream is closed with code 1013 instead
            due_s: list[float] = []
            reader = gevent.spawn(self.listen, connection, due_s)
            began_s = time.monotonic()
            for number, chunk in enumerate(self.chunks, start=1):
                due_s.append(began_s + number * CHUNK_S)
                gevent.sleep(max(0.0, due_s[-1] - time.monotonic()))
                connection.send_binary(chunk)
            reader.join(timeout=PATIENCE_S)
        except (websocket.WebSocketException, OSError) as error:
            events.request.fire(
                request_type="stream", name="connection", response_time=0, response_length=0, exception=error
            )
            gevent.sleep(1.0)
        finally:
            connection.close()

    def listen(self, connection: websocket.WebSocket, due_s: list[float]) -> None:
        """Count each answer, with its time from when its chunk was due."""
        for _ in self.chunks:
            try:
                answer = json.loads(connection.recv())
            except (websocket.WebSocketException, OSError, ValueError):
                return  # `speak` notices that the connection is closed
            lost = answer["outcome"] not in {"served", "filtered"}
            events.request.fire(
                request_type="chunk",
                name="words" if "transcript" in answer else "silence",
                response_time=1000 * (time.monotonic() - due_s[answer["chunk"]]),
                response_length=0,
                exception=RuntimeError(answer["outcome"]) if lost else None,
            )
