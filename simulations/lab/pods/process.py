"""A pod whose container is a process on this machine: any program that serves on the pod's own loopback address.

Its start-up is what the program takes until it accepts connections; nothing is drawn or declared.
"""

import asyncio
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controller.resources.fields import quantity_bytes
from simulations.lab.host import launch
from simulations.lab.net.wire import ITEM_PORT
from simulations.lab.pods.worker import WorkerCounts

IMAGE = "lab/process"
"""The image of containers whose `command` the agent runs; a first word `python` is the agent's own interpreter."""

_LOOK_S = 0.02
_MEMORY_LOOK_S = 0.1
_TAIL_LINES = 5


class ProcessEnded(Exception):
    """A process ended by itself, or had more memory than its limit; the message has its exit code and last words."""

    def __init__(self, message: str, *, out_of_memory: bool = False) -> None:
        """Say `message`."""
        super().__init__(message)
        self.out_of_memory = out_of_memory


class ProcessPod:
    """Runs the command of a container on `host`, from `start` until the end of `drain` or `abort`.

    The process gets the environment of the container, and its address as POD_IP. It is ready once it accepts
    connections on port 7000. On SIGUSR1 it should let a quota limit its share of a core, on SIGUSR2 do so evenly again;
    only a process that has said that it has a `share` gets these. On SIGTERM it should end by itself, and may say at
    last how many items it `served` and how many sessions it cut (`sessions_cut`). It says things as one JSON object on
    a line of its standard output. A process with more memory than the limit of the container is killed.
    """

    def __init__(self, container: Mapping[str, Any], host: str) -> None:
        """Take the command and environment of `container`, as in a pod's manifest.

        Raises:
            ValueError: the container has no command, or its environment needs a source other than a value.
        """
        command = [*container.get("command", ()), *container.get("args", ())]
        if not command:
            raise ValueError("command: missing; the lab runs it as a process")
        for entry in container.get("env", ()):
            if "value" not in entry:
                raise ValueError(f"env: {entry['name']}: must have a value in the lab")
        self.host = host
        self.counts = WorkerCounts()
        self._command = [sys.executable if command[0] == "python" else command[0], *command[1:]]
        self._environment = {entry["name"]: entry["value"] for entry in container.get("env", ())}
        limit = container.get("resources", {}).get("limits", {}).get("memory")
        self._memory_bytes = None if limit is None else quantity_bytes(limit)
        self._out_of_memory = False
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._has_share = False
        self._quota = False
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    async def start(self) -> None:
        """Start the process, and return once it accepts connections.

        Raises:
            ProcessEnded: it ended before, or could not be started.
        """
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid())]
        self._process = await asyncio.create_subprocess_exec(
            *launcher,
            *self._command,
            env={**os.environ, **self._environment, "POD_IP": self.host},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = asyncio.create_task(self._read())
        while not await self._listens():
            if self._process.returncode is not None:
                raise await self._ended()
            await asyncio.sleep(_LOOK_S)

    async def wait(self) -> None:
        """Wait for the end of the process that nothing asked for, and raise.

        Raises:
            ProcessEnded: always.
        """
        assert self._process is not None
        watching = asyncio.create_task(self._watch_memory(self._process.pid))
        try:
            await self._process.wait()
        finally:
            watching.cancel()
        raise await self._ended()

    async def _watch_memory(self, pid: int) -> None:
        """Kill the process once it has more memory than its limit."""
        self._out_of_memory = False
        while self._memory_bytes is not None:
            if _resident_bytes(pid) > self._memory_bytes:
                self._out_of_memory = True
                os.killpg(pid, signal.SIGKILL)
                return
            await asyncio.sleep(_MEMORY_LOOK_S)

    def limit_by_quota(self, *, on: bool) -> None:
        """Let a quota limit the process, or limit it evenly; nothing happens to one that has no share of a core."""
        self._quota = on
        if self._process is not None and self._process.returncode is None and self._has_share:
            os.kill(self._process.pid, signal.SIGUSR1 if on else signal.SIGUSR2)

    async def drain(self) -> None:
        """Ask the process to end, and wait until it has."""
        assert self._process is not None
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            await self._process.wait()
        await self._read_all()

    async def abort(self) -> None:
        """Kill the process, if it runs, with all that it started."""
        if self._process is None:
            return
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        await self._read_all()

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(self.host, ITEM_PORT)
        except OSError:
            return False
        writer.close()
        return True

    async def _ended(self) -> ProcessEnded:
        assert self._process is not None
        await self._read_all()
        said = " | ".join(self._tail) or "it said nothing"
        return ProcessEnded(f"exit code {self._process.returncode}: {said}", out_of_memory=self._out_of_memory)

    async def _read_all(self) -> None:
        if self._reader is not None:
            await asyncio.wait([self._reader])

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip()
            self._tail.append(text)
            self._count(text)

    def _count(self, text: str) -> None:
        try:
            said = json.loads(text)
            if "share" in said:
                self._has_share = True
                if self._quota:
                    self.limit_by_quota(on=True)
            self.counts.served = int(said.get("served", self.counts.served))
            self.counts.sessions_cut = int(said.get("sessions_cut", self.counts.sessions_cut))
        except (ValueError, AttributeError, TypeError):
            return  # a line that is not for the agent


def _resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, 0 if it has ended (proc(5), statm)."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0
