import _thread
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typing_extensions import override

from simulations.lab.host.processes import LOOPBACK, Child, ProcessError, Processes, Service, free_ports

FOREVER = "import signal; print('up', flush=True); signal.pause()"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {FOREVER}"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path / "logs") as processes:
        yield processes


def start(processes: Processes, program: str, name: str = "part") -> Child:
    return processes.start(name, [sys.executable, "-c", program])


def is_up(child: Child) -> Callable[[], bool]:
    return lambda: "up" in child.log.read_text()


def test_what_a_program_prints_is_in_its_log(processes: Processes) -> None:
    child = start(processes, "import sys; print('to one'); print('to two', file=sys.stderr)")
    child.wait_until(lambda: len(child.log.read_text().splitlines()) == 2, timeout_s=10)
    assert sorted(child.log.read_text().splitlines()) == ["to one", "to two"]
    assert child.log.name == "part.log"


def test_a_program_that_ends_before_it_is_ready_is_reported_with_its_last_words(processes: Processes) -> None:
    child = start(processes, "import sys; print('bind: address in use'); sys.exit(3)")
    with pytest.raises(ProcessError, match=r"part ended with exit status 3; last lines of .*part.log:\n.*address in"):
        child.wait_until(lambda: False, timeout_s=10)


def test_a_program_killed_from_outside_is_found_by_the_check(processes: Processes) -> None:
    well = start(processes, FOREVER, "well")
    ill = start(processes, FOREVER, "ill")
    for child in (well, ill):
        child.wait_until(is_up(child), timeout_s=10)
    processes.check()
    os.kill(ill.pid, signal.SIGKILL)
    with pytest.raises(ProcessError, match="ill ended with signal SIGKILL"):
        ill.wait_until(lambda: False, timeout_s=10)
    with pytest.raises(ProcessError, match="ill ended"):
        processes.check()


def test_a_program_that_is_not_ready_in_time_is_reported(processes: Processes) -> None:
    child = start(processes, FOREVER)
    with pytest.raises(ProcessError, match=r"part was not ready after 0.1 s"):
        child.wait_until(lambda: False, timeout_s=0.1)


def test_a_program_that_does_not_exist_is_named(processes: Processes) -> None:
    child = processes.start("part", [Path("/no/such/program")])
    with pytest.raises(ProcessError, match="cannot run /no/such/program: No such file or directory"):
        child.wait_until(lambda: False, timeout_s=10)


def test_a_program_whose_start_was_interrupted_is_stopped_as_well(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def interrupted(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        _thread.interrupt_main()  # Ctrl-C while the program is being started
        begun.append(begin(command, **how))
        return begun[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            start(processes, FOREVER)
    finally:
        signal.signal(signal.SIGINT, before)
    processes.stop()
    (process,) = begun
    assert not psutil.pid_exists(process.pid)


def test_programs_stop_in_the_reverse_of_the_order_of_starting(tmp_path: Path) -> None:
    order = tmp_path / "order"
    program = f"""
import signal, sys
def leave(*_):
    with open({str(order)!r}, "a") as file:
        file.write(sys.argv[1])
    sys.exit()
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
signal.pause()
"""
    with Processes(tmp_path) as processes:
        for name in "abc":
            child = processes.start(name, [sys.executable, "-c", program, name])
            child.wait_until(is_up(child), timeout_s=10)
    assert order.read_text() == "cba"


def test_a_program_that_ignores_the_request_to_end_is_killed(processes: Processes) -> None:
    child = start(processes, DEAF)
    child.wait_until(is_up(child), timeout_s=10)
    assert child.stop(timeout_s=0.1) == -signal.SIGKILL
    assert not psutil.pid_exists(child.pid)


def test_what_a_program_left_running_goes_with_it(processes: Processes) -> None:
    program = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}]); import signal; signal.pause()"
    )
    child = start(processes, program)
    child.wait_until(is_up(child), timeout_s=10)
    (grandchild,) = psutil.Process(child.pid).children()
    child.stop()
    _, alive = psutil.wait_procs([grandchild], timeout=10)
    assert alive == []


def test_programs_started_from_a_thread_outlive_it(processes: Processes) -> None:
    started: list[Child] = []
    program = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("up", flush=True)
signal.sigwait([signal.SIGUSR1])
print("again", flush=True)
signal.pause()
"""

    def work() -> None:
        child = start(processes, program)
        child.wait_until(is_up(child), timeout_s=10)
        started.append(child)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    deadline = time.monotonic() + 10
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        assert time.monotonic() < deadline
    (child,) = started
    os.kill(child.pid, signal.SIGUSR1)
    child.wait_until(lambda: "again" in child.log.read_text(), timeout_s=10)


def test_programs_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from simulations.lab.host.processes import Processes
child = Processes(Path({str(tmp_path)!r})).start("part", [sys.executable, "-c", {DEAF!r}])
child.wait_until(lambda: "up" in child.log.read_text(), timeout_s=10)
print(child.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    _, alive = psutil.wait_procs([child], timeout=10)
    assert alive == []


def test_free_ports_are_different_and_can_be_bound() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as server:
            server.bind((LOOPBACK, port))


def test_a_port_that_was_drawn_is_not_offered_again_to_any_process(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    script = f"""
import simulations.lab.host.processes as processes
processes._PORTS = range({port}, {port + 1})
try:
    print(processes.free_ports(1))
except processes.ProcessError as error:
    print("none")
"""
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == "none"
    monkeypatch.setattr("simulations.lab.host.processes._PORTS", range(port, port + 1))
    with pytest.raises(ProcessError):
        free_ports(1)


def test_a_port_that_something_listens_on_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("simulations.lab.host.processes._PORTS", range(port, port + 1))
        with pytest.raises(ProcessError, match=f"no 1 free TCP ports on {LOOPBACK} in {port}-{port}"):
            free_ports(1)


def test_stopping_twice_is_harmless(processes: Processes) -> None:
    child = start(processes, FOREVER)
    first = child.stop()
    assert child.stop() == first
    processes.stop()
    processes.stop()


def test_readiness_is_polled_until_it_holds(processes: Processes) -> None:
    child = start(processes, FOREVER)
    answers = iter([False, False, True])
    child.wait_until(lambda: next(answers), timeout_s=10)
    assert next(answers, None) is None


class Stack(Service):
    """A service with a part below its process; `stopped` has the order in which they stop."""

    def __init__(self, folder: Path, *, fails: bool = False) -> None:
        super().__init__(folder)
        self.stopped: list[str] = []
        self.child: Child
        self._fails = fails

    @override
    def _start(self) -> None:
        self._parts.callback(lambda: self.stopped.append("first part"))
        self._parts.callback(lambda: self.stopped.append("second part"))
        self.child = self._processes.start("part", [sys.executable, "-c", FOREVER])
        self._parts.callback(lambda: self.stopped.append(f"process up: {psutil.pid_exists(self.child.pid)}"))
        if self._fails:
            raise ProcessError("part was not ready")


def test_a_service_stops_its_processes_and_then_its_parts_in_reverse_order(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.check()
        assert stack.stopped == []
    stack.stop()
    assert stack.stopped == ["process up: False", "second part", "first part"]


def test_a_service_that_fails_to_start_stops_what_it_has_started(tmp_path: Path) -> None:
    stack = Stack(tmp_path, fails=True)
    with pytest.raises(ProcessError, match="not ready"):
        stack.start()
    assert stack.stopped == ["process up: False", "second part", "first part"]
