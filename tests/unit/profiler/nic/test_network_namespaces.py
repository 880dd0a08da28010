"""Namespaces of the kernel that runs the tests. What needs rights is skipped without them."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiler.nic.network_namespaces import inside, namespace_inode, pod_processes

UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
PROC = Path("/proc")


def a_process(proc: Path, pid: int, cgroup: str, namespace: str | None) -> None:
    (proc / str(pid) / "ns").mkdir(parents=True)
    (proc / str(pid) / "cgroup").write_text(cgroup + "\n")
    if namespace is not None:
        (proc / str(pid) / "ns" / "net").write_text(namespace)


def test_processes_are_grouped_by_pod_and_the_oldest_is_taken(tmp_path: Path) -> None:
    a_process(tmp_path, 1, "0::/init.scope", "host")
    a_process(tmp_path, 30, f"0::/kubepods/pod{UID}/b", "pod")
    a_process(tmp_path, 7, f"0::/kubepods/pod{UID}/a", "pod")
    (tmp_path / "31").mkdir()  # it ended while it was read
    (tmp_path / "self").mkdir()
    assert {uid: pod.pid for uid, pod in pod_processes(tmp_path).items()} == {UID: 7}


def test_a_process_whose_namespace_may_not_be_read_gives_way_to_another(tmp_path: Path) -> None:
    a_process(tmp_path, 7, f"0::/kubepods/pod{UID}/a", None)
    assert pod_processes(tmp_path)[UID].namespace is None
    a_process(tmp_path, 30, f"0::/kubepods/pod{UID}/b", "pod")
    assert pod_processes(tmp_path)[UID].pid == 30


def test_a_process_that_is_gone_has_no_namespace() -> None:
    assert namespace_inode(PROC, 2**30) is None
    assert namespace_inode(PROC, "self") == Path("/proc/self/ns/net").stat().st_ino


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A process in a network namespace of its own."""
    started = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert started.stdout is not None
    if started.stdout.readline() != "ready\n":
        pytest.skip("no right to make a network namespace")
    yield PROC / str(started.pid)
    started.communicate(timeout=10)


def test_work_is_done_inside_and_no_other_thread_is_moved(elsewhere: Path) -> None:
    def look() -> tuple[int, list[str]]:
        return Path("/proc/thread-self/ns/net").stat().st_ino, sorted(
            line.split(":")[0].strip() for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        )

    before = namespace_inode(PROC, "self")
    inode, devices = inside(elsewhere / "ns" / "net", look)
    assert inode == namespace_inode(PROC, elsewhere.name) != before
    assert devices == ["lo"]
    assert Path("/proc/thread-self/ns/net").stat().st_ino == before
    assert "network-namespace" not in {thread.name for thread in threading.enumerate()}


def test_errors_are_those_of_the_thread_that_waits() -> None:
    with pytest.raises(FileNotFoundError):
        inside(PROC / str(2**30) / "ns" / "net", lambda: None)

    def fail() -> None:
        raise ZeroDivisionError

    try:
        inside(PROC / "self" / "ns" / "net", lambda: None)
    except PermissionError:
        pytest.skip("no right to enter a network namespace")
    with pytest.raises(ZeroDivisionError):
        inside(PROC / "self" / "ns" / "net", fail)
