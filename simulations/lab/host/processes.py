"""The lab's child processes: they log to files, listen on loopback, and end with their parent."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from controller.ending import is_interrupted
from simulations.lab.host import launch

LOOPBACK = "127.0.0.1"

_TAIL_LINES = 15
_STOP_S = 5.0
_POLL_S = 0.02
# Below the kernel's ephemeral range, from which an outgoing connection could take the port before its owner binds it.
_PORTS = range(20_000, 32_000)

# The kernel sends the parent-death signal when the starting *thread* ends, so one lasting thread starts all children.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lab-starter")


class ProcessError(RuntimeError):
    """A process of the lab ended unexpectedly, was not ready in time or refused a request.

    For a process that ended or was not ready, the message has the last lines of its log.
    """


class Child:
    """A running program in its own session; `log` is the file with its output."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.pid = process.pid
        self.log = log
        self._process = process

    def check(self) -> None:
        """Raise `ProcessError` if the program has ended."""
        code = self._ended()
        if code is not None:
            raise ProcessError(f"{self.name} ended with {_in_words(code)}; {self._tail()}")

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Poll `ready` until it returns True.

        Raises:
            ProcessError: the program ended first, or `ready` was still False after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} was not ready after {timeout_s:g} s; {self._tail()}")
            time.sleep(_POLL_S)

    def stop(self, timeout_s: float = _STOP_S) -> int:
        """End the program and its process group, with SIGTERM and after `timeout_s` SIGKILL; return its exit code.

        The exit code is the negative signal number if a signal ended the program.
        """
        if self._process.returncode is None:
            deadline = time.monotonic() + timeout_s
            os.killpg(self.pid, signal.SIGTERM)
            while self._ended() is None and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def _ended(self) -> int | None:
        # Does not reap the process: the kernel cannot give its process group number to another one before that.
        if self._process.returncode is not None:
            return self._process.returncode
        end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if end is None:
            return None
        return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n  ".join([f"last lines of {self.log}:", *(lines or ["(empty)"])])


class Processes:
    """Starts child processes, and stops them in the reverse order of their start."""

    def __init__(self, folder: Path) -> None:
        """Set the folder for logs, `<folder>/<name>.log`; `start` creates the folder if it is missing."""
        self._folder = folder
        self._children: list[Child] = []

    def start(self, name: str, command: Sequence[str | Path]) -> Child:
        """Start `command`, whose first item is the path of a program; its log is `<name>.log`."""
        return _starter.submit(self._start, name, command).result()

    def start_module(self, name: str, module: str, flags: Mapping[str, object]) -> Child:
        """Start `python -m MODULE --FLAG VALUE…`."""
        return self.start_program(name, ["-m", module], flags)

    def start_program(self, name: str, program: Sequence[str], flags: Mapping[str, object]) -> Child:
        """Start `python PROGRAM… --FLAG VALUE…`."""
        arguments = [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
        return self.start(name, [sys.executable, *program, *arguments])

    def _start(self, name: str, command: Sequence[str | Path]) -> Child:
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / f"{name}.log"
        launcher = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid())]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*launcher, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the parent only, which stops them in order
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raise `ProcessError` if any of the programs has ended."""
        for child in self._children:
            child.check()

    def kill(self, child: Child) -> None:
        """Kill `child`; `check` no longer reports that it has ended."""
        self._children.remove(child)
        child.stop(0.0)

    def stop(self) -> None:
        """Stop all processes, the last started first; at once if a signal ends this one. Stopping twice is harmless."""
        _starter.submit(lambda: None).result()  # an interrupted `start` may still be running in that thread
        while self._children:
            self._children[-1].stop(0.0 if is_interrupted() else _STOP_S)
            self._children.pop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Service(ABC):
    """A service of the lab: its processes, with their logs in one folder, and for some services further parts.

    It stops with `stop()`, at the end of its `with` block, or with this process. The processes stop first, then the
    parts, both in the reverse order of their start.
    """

    def __init__(self, logs: Path) -> None:
        """Set the folder for the logs of the processes; nothing runs before `start()`."""
        self._processes = Processes(logs)
        self._parts = contextlib.ExitStack()

    @abstractmethod
    def _start(self) -> None:
        """Start all processes and parts; a part that is entered into `_parts` is stopped by `stop`."""

    def start(self) -> Self:
        """Start the service, and return it when it is ready; after a failure, stop everything that has started.

        Raises:
            ProcessError: a process ended or was not ready in time; the message has its last log lines.
        """
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the processes, then the further parts; their data and logs stay on disk. Stopping twice is harmless."""
        with self._parts:
            self._processes.stop()

    def check(self) -> None:
        """Raise `ProcessError` if a process has ended."""
        self._processes.check()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


_reserved: dict[int, socket.socket] = {}


def _reserve(port: int) -> bool:
    """Reserve `port` for this process, which may bind it later; return whether no process had reserved it.

    A socket with an abstract name stands for it until this process ends. It leaves no file, and is in the network
    namespace whose port it is.
    """
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind(f"\0sluice-lab-port-{port}")
    except OSError:
        mark.close()
        return False
    _reserved[port] = mark
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports on which nothing listens on loopback, and that no other process has drawn.

    Raises:
        ProcessError: there are not enough free ports.
    """
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        candidates = random.sample(_PORTS, len(_PORTS))
        while len(ports) < count and candidates:
            attempt = held.enter_context(socket.socket())
            # As servers do: a port whose last connections are in TIME_WAIT is free.
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = candidates.pop()
            with contextlib.suppress(OSError):
                attempt.bind((LOOPBACK, port))
                if _reserve(port):
                    ports.append(port)
    if len(ports) < count:
        raise ProcessError(f"no {count} free TCP ports on {LOOPBACK} in {_PORTS.start}-{_PORTS.stop - 1}")
    return ports


def _in_words(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
