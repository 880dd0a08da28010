"""How every command of `sluice` ends early, as processes."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import psutil
import pytest
from api_server import api_server

ROOT = Path(__file__).parents[3]
SLUICE = [sys.executable, "-m", "controller"]
WAITS = ["explain", "--from-record", "-"]
"""A command that waits for its standard input."""
T = TypeVar("T")


def eventually(look: Callable[[], T], within_s: float = 120.0) -> T:
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@contextmanager
def started(program: list[str], **how: Any) -> Iterator[subprocess.Popen[str]]:
    # Python ignores SIGINT where it was ignored when the program started, as in the background of a shell.
    command = ["env", "--default-signal=INT", *program]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **how
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def catches(process: subprocess.Popen[str], number: int) -> bool:
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [(signal.SIGTERM, 143, "interrupted\n"), (signal.SIGINT, 130, "interrupted\n"), (signal.SIGPIPE, 141, "")],
)
def test_a_signal_ends_a_command_as_shells_do(number: signal.Signals, code: int, says: str) -> None:
    with started([*SLUICE, *WAITS], stdout=subprocess.DEVNULL) as process:
        # The last handler to be installed; until then a signal ends Python itself.
        eventually(lambda: catches(process, signal.SIGPIPE))
        process.send_signal(number)
        errors = process.stderr.read() if process.stderr else ""
        assert (process.wait(), errors) == (code, says)


def test_a_command_that_does_not_return_to_the_interpreter_is_ended_with_its_children() -> None:
    # A child stands in for compiled code, which the main thread waits for just the same: with the signal blocked.
    program = (
        "import subprocess\n"
        "from controller.ending import ended_by_signals\n"
        "with ended_by_signals():\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    while True:\n"
        "        try:\n"
        "            print(child.pid, flush=True)\n"  # the signal that follows arrives in the block
        "            child.wait()\n"
        "        except SystemExit:\n"
        "            pass\n"  # as code that cannot be interrupted
    )
    with started([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_simulation_ends_with_its_processes_and_without_a_word_of_theirs() -> None:
    scenario = ROOT / "simulations" / "scenarios" / "daily" / "scenario.yaml"
    with started([*SLUICE, "simulate", str(scenario), "--jobs", "2"], stdout=subprocess.DEVNULL) as process:
        children = eventually(lambda: workers(process.pid))
        process.send_signal(signal.SIGTERM)
        errors = process.stderr.read() if process.stderr else ""
        assert (process.wait(), errors) == (143, "interrupted\n")
        _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


def test_the_processes_of_a_simulation_that_is_killed_end_too() -> None:
    scenario = ROOT / "simulations" / "scenarios" / "daily" / "scenario.yaml"
    with started([*SLUICE, "simulate", str(scenario), "--jobs", "2"], stdout=subprocess.DEVNULL) as process:
        children = eventually(lambda: workers(process.pid))
        process.kill()
        _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def workers(pid: int) -> list[psutil.Process]:
    """The two processes for the runs, once they are simulating: the engine is loaded."""
    with suppress(OSError, psutil.Error):
        found = [
            each for each in psutil.Process(pid).children() if any("spawn_main" in word for word in each.cmdline())
        ]
        ready = [each for each in found if "numba" in Path(f"/proc/{each.pid}/maps").read_text()]
        return found if len(ready) == 2 else []
    return []


def run(arguments: list[str], output: IO[bytes] | None = None, shell: str = "") -> subprocess.CompletedProcess[str]:
    command = [*SLUICE, *arguments]
    if shell:
        command = ["bash", "-c", shell, "bash", *command]
    return subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["validate", "--help"], ["--version"]])
def test_a_full_disk_at_standard_output_is_an_error_of_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = run(arguments, full)
    assert (ended.returncode, ended.stderr) == (1, "Error: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["validate", "crds/examples/pools.yaml"]])
def test_a_closed_standard_output_is_an_error_of_one_line(arguments: list[str]) -> None:
    ended = run(arguments, shell='"$@" >&-')
    assert ended.returncode == 1
    assert ended.stderr == "Error: standard output is closed; redirect it to a file or to /dev/null\n"


@pytest.mark.parametrize("arguments", [["version"], ["plan", "--help"]])
def test_a_reader_that_has_gone_ends_a_command_as_sigpipe_does(arguments: list[str]) -> None:
    ended = run(arguments, shell='"$@" | true; exit "${PIPESTATUS[0]}"')
    assert (ended.returncode, ended.stderr) == (141, "")


def test_an_error_of_usage_is_one_line_that_names_the_help() -> None:
    ended = run(["plan"])
    assert ended.returncode == 2
    assert re.fullmatch(r"Error: Missing argument 'FILE...'\. See '.*plan --help'\.\n", ended.stderr)


def test_an_operator_without_an_api_server_says_so_again_and_ends_on_sigterm(tmp_path: Path) -> None:
    with api_server(tmp_path, {}) as kubeconfig:
        pass  # from here on nothing listens at its address
    flags = ["--kubeconfig", str(kubeconfig), "--metrics", "direct", "--port", "0", "--lease-namespace", "sluice"]
    with started([*SLUICE, "operator", *flags], stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        lines = (line for line in process.stderr if "the API server at " in line)
        at_s = []
        for _ in range(2):
            assert "does not answer, so nothing is scaled; retrying: " in next(lines)
            at_s.append(time.monotonic())
        assert at_s[1] - at_s[0] > 1.0
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(10) == 0
