"""A lab that stays up: `python -m simulations.lab.cluster.standing FOLDER [MANIFEST…]` runs until SIGTERM.

All parts of the lab end with this process. It writes FOLDER/state.json when all parts have started, and holds a lock on
FOLDER/lock while it runs: unlike a process number, a lock is never reused by another process.
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
    """Another lab uses the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingLab:
    """The process and the addresses of a standing lab."""

    pid: int
    kubeconfig: str
    kubectl: str
    prometheus_url: str
    operator_url: str

    @classmethod
    def read(cls, folder: Path) -> "StandingLab | None":
        """Return the lab in `folder`; None when none is up."""
        if not is_occupied(folder):
            return None
        try:
            return cls(**json.loads((folder / "state.json").read_text()))
        except FileNotFoundError:
            return None

    def write(self, folder: Path) -> None:
        """Write for `read`, atomically."""
        new = folder / "state.new"
        new.write_text(json.dumps(asdict(self), indent=1))
        new.rename(folder / "state.json")


def occupy(folder: Path) -> int:
    """Lock `folder` for a lab; return the lock file's descriptor. The lock lasts until all its copies are closed.

    Raises:
        Occupied: a lab is up there, starting or stopping.
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
    """Whether a lab is up in `folder`, starting or stopping."""
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
    """Run a lab until SIGTERM; the parent process passes the lock to this one."""
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
