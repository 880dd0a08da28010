"""A lab that stays up: `python -m simulations.lab.cluster.standing FOLDER [MANIFEST…]` is the process that all of it
dies with.

It writes FOLDER/state.json when all is up, and ends on SIGTERM. While it lives it holds a lock on FOLDER/lock: unlike a
process number, a lock cannot come to belong to somebody else.
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
from simulations.lab.cluster.cluster import Cluster
from simulations.lab.host.binaries import ensure

_POLL_S = 0.5
_INTERVAL_S = 5.0


class Occupied(RuntimeError):
    """Another lab has the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where a standing lab is to be found."""

    pid: int
    kubeconfig: str
    kubectl: str
    prometheus_url: str
    operator_url: str

    @classmethod
    def read(cls, folder: Path) -> "State | None":
        """Return the state of the lab in `folder`; None when none is up there, or not yet."""
        if not is_occupied(folder):
            return None
        try:
            return cls(**json.loads((folder / "state.json").read_text()))
        except FileNotFoundError:
            return None

    def write(self, folder: Path) -> None:
        """Write for `read`, all at once."""
        new = folder / "state.new"
        new.write_text(json.dumps(asdict(self), indent=1))
        new.rename(folder / "state.json")


def occupy(folder: Path) -> int:
    """Take `folder` for a lab, and return the open file that holds it: for as long as any process has it open.

    Raises:
        Occupied: a lab is up there, starting or stopping.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise Occupied(f"a lab is up already in {folder}; end it with: sluice lab down") from None
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
    """Keep a lab up until told to stop; whoever starts this process hands it the lock."""
    folder, *manifests = map(Path, sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    binaries = ensure(lambda line: print(line, flush=True))
    with Cluster(folder, binaries) as cluster:
        resources = validate_files(manifests)
        cluster.apply(
            [document.data for path in manifests for document in load_documents(path)],
            [pipeline_spec(resource) for resource in resources.pipelines],
            [pool_spec(resource) for resource in resources.pools],
        )
        cluster.start_operator(interval_s=_INTERVAL_S)
        State(
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
