"""A lab that stays up: `python -m simulations.lab.cluster.standing FOLDER [MANIFEST…]` runs until SIGTERM.

All parts of the lab end with this process. It writes FOLDER/state.json when all parts have started. While it runs, it
holds a lock on FOLDER/lock, which shows that a lab is up: a process number could have been reused by another process.
"""

import fcntl
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from controller.resources.manifests import load_documents
from controller.resources.translate import pipeline_spec, pool_spec
from controller.resources.validation import validate_files
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.host.binaries import ensure

_POLL_S = 0.5
_INTERVAL_S = 5.0


class Occupied(RuntimeError):
    """Another lab uses the folder; the message says how to stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingLab:
    """A standing lab: its process number, the paths of its kubeconfig and of kubectl, and its URLs."""

    pid: int
    kubeconfig: str
    kubectl: str
    prometheus_url: str
    operator_url: str

    @classmethod
    def read(cls, folder: Path) -> "StandingLab | None":
        """Return the lab in `folder`; None when no lab is up there, or the lab is still starting."""
        if not is_occupied(folder):
            return None
        try:
            return cls(**json.loads((folder / "state.json").read_text()))
        except FileNotFoundError:
            return None

    def write(self, folder: Path) -> None:
        """Write the lab to `folder` for `read`, atomically."""
        new = folder / "state.new"
        new.write_text(json.dumps(asdict(self), indent=1))
        new.rename(folder / "state.json")


def occupy(folder: Path) -> int:
    """Lock `folder` for a lab, and return the file descriptor of the lock.

    The folder is created if it is missing. The lock lasts until all copies of the descriptor are closed.

    Raises:
        Occupied: a lab is up in the folder, starting or stopping.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise Occupied(f"a lab is already up in {folder}; stop it with: sluice lab down") from None
    (folder / "state.json").unlink(missing_ok=True)
    return lock


def is_occupied(folder: Path) -> bool:
    """Whether a lab in `folder` is up, starting or stopping."""
    try:
        lock = os.open(folder / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def main() -> None:
    """Run a lab until SIGTERM; the parent process has locked the folder and passes the lock to this process."""
    folder, *manifests = map(Path, sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    binaries = ensure(lambda line: print(line, flush=True))
    with LabCluster(folder, binaries) as cluster:
        resources = validate_files(manifests)
        cluster.apply(
            [document.data for path in manifests for document in load_documents(path)],
            [pipeline_spec(resource) for resource in resources.pipelines],
            [pool_spec(resource) for resource in resources.pools],
        )
        cluster.start_operator(interval_s=_INTERVAL_S)
        StandingLab(
            pid=os.getpid(),
            kubeconfig=str(cluster.kubeconfig),
            kubectl=str(binaries.kubectl),
            prometheus_url=cluster.prometheus_url,
            operator_url=cluster.operator_url,
        ).write(folder)
        while True:
            cluster.check()
            time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
