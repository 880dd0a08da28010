"""A lab that stays up: `python -m simulations.lab.standing FOLDER [MANIFEST…]` is the process that all of it dies with.

It writes FOLDER/state.json when all is up, and ends on SIGTERM.
"""

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from controller.resources.manifests import load_documents
from controller.resources.translate import pipeline_spec, pool_spec
from controller.resources.validation import validate_files
from simulations.lab.binaries import ensure
from simulations.lab.cluster import Cluster

_POLL_S = 1.0
_INTERVAL_S = 5.0


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
        """Return the state of the lab in `folder`, None when none is up there."""
        try:
            state = cls(**json.loads((folder / "state.json").read_text()))
        except (FileNotFoundError, json.JSONDecodeError, TypeError):
            return None
        return state if _is_alive(state.pid) else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    """Keep a lab up until told to stop."""
    folder, *manifests = map(Path, sys.argv[1:])
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    binaries = ensure(lambda line: print(line, flush=True))
    with Cluster(folder, binaries) as cluster:
        resources = validate_files(manifests)
        cluster.apply(
            [document.data for path in manifests for document in load_documents(path)],
            [pipeline_spec(resource) for resource in resources.pipelines],
            [pool_spec(resource) for resource in resources.pools],
        )
        cluster.start_operator(interval_s=_INTERVAL_S)
        state = State(
            pid=os.getpid(),
            kubeconfig=str(cluster.kubeconfig),
            kubectl=str(binaries.kubectl),
            prometheus_url=cluster.prometheus_url,
            operator_url=cluster.operator_url,
        )
        written = folder / "state.json"
        written.with_suffix(".new").write_text(json.dumps(asdict(state), indent=1))
        written.with_suffix(".new").rename(written)
        try:
            while not stopped.wait(_POLL_S):
                cluster.check()
        finally:
            written.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
