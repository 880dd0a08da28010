"""Network namespaces of the pods on this node: which processes have them, and work done inside them."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from profiler.nic.kernel_files import pod_uid

_CLONE_NEWNET = 0x40000000
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodProcess:
    """A process of a pod. `namespace` is the inode of its network namespace, None where it may not be read."""

    pid: int
    uid: str
    namespace: int | None


def namespace_inode(proc: Path, pid: int | str) -> int | None:
    """Return the inode of a process's network namespace; None without the right to it, or after its end."""
    try:
        return (proc / str(pid) / "ns" / "net").stat().st_ino
    except OSError:
        return None


def pod_processes(proc: Path) -> Mapping[str, PodProcess]:
    """Return a process of each pod by the pod's UID. Of several processes the oldest is taken, the pause process."""
    found: dict[str, PodProcess] = {}
    for pid in sorted(_pids(proc)):
        try:
            # The name of a control group may have any byte but a slash.
            uid = pod_uid((proc / str(pid) / "cgroup").read_text(errors="replace"))
        except OSError:
            continue  # it ended
        if uid is None or (uid in found and found[uid].namespace is not None):
            continue
        found[uid] = PodProcess(pid=pid, uid=uid, namespace=namespace_inode(proc, pid))
    return found


def inside(namespace: Path, work: Callable[[], Result]) -> Result:
    """Return the result of `work`, done in the network namespace of the file `namespace`, such as /proc/1/ns/net.

    It is done in a thread of its own, which ends with it: a thread that has changed its namespace is of no other use.
    It needs the capability SYS_ADMIN.

    Raises:
        OSError: the namespace is gone, or may not be entered.
        Exception: whatever `work` raises.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _enter(descriptor)
            finally:
                os.close(descriptor)
            results.append(work())
        except BaseException as error:  # noqa: BLE001 it is raised in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="network-namespace", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter(descriptor: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(descriptor, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _pids(proc: Path) -> Iterator[int]:
    return (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
