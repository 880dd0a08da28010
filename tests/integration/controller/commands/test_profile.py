"""`sluice profile` finds the capacity of the lab's workers, which batch and interleave for real."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from loopback import an_address

from optimizer.model import Batching, ServiceLaw
from simulations.lab.net.wire import METRICS_PORT
from simulations.lab.pods.worker import WorkerSpec

pytestmark = pytest.mark.quiet

SLUICE = Path(sys.executable).with_name("sluice")
SERVE = """
import asyncio, sys
from simulations.lab.net.timers import Timers
from simulations.lab.pods.worker import WorkerSpec, worker_of

async def serve() -> None:
    await worker_of(WorkerSpec.from_json(sys.argv[1]), sys.argv[2], Timers()).start()
    await asyncio.Event().wait()

asyncio.run(serve())
"""


@contextmanager
def serving(spec: WorkerSpec) -> Iterator[str]:
    """Run a worker in a process of its own, and yield its URL when it answers."""
    host = an_address()
    url = f"http://{host}:{METRICS_PORT}"
    worker = subprocess.Popen([sys.executable, "-c", SERVE, spec.to_json(), host])
    try:
        while worker.poll() is None:
            try:
                with urlopen(f"{url}/metrics"):
                    break
            except URLError:
                continue
        yield url
    finally:
        worker.kill()
        worker.wait()


def profiled(url: str, tmp_path: Path, *options: str) -> dict[str, Any]:
    body = tmp_path / "chunk"
    body.write_bytes(bytes(320))
    command = [str(SLUICE), "profile", f"{url}/", "--body", str(body), "-o", "json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def spec(service: ServiceLaw, **values: Any) -> WorkerSpec:
    return WorkerSpec(pipeline="captions", stage="asr", service=service, **values)


def test_a_worker_with_batches_is_told_by_its_counters(tmp_path: Path) -> None:
    law = ServiceLaw(fixed_s=0.014, per_item_s=0.003, cv=0.1)
    with serving(spec(law, batch_max=8, batch_wait_s=0.005)) as url:
        found = profiled(url, tmp_path, "--max-time", "16s")
    assert (found["batching"], found["batch_max"], found["counters_used"]) == ("Dynamic", 8, True)
    assert found["capacity_rps"] == pytest.approx(law.rate_rps(8), rel=0.1)
    assert "batching: {kind: Dynamic, max: 8}" in found["service_time"]


def test_a_worker_whose_metrics_are_not_known_is_told_by_its_answers(tmp_path: Path) -> None:
    law = ServiceLaw(fixed_s=0.002, per_item_s=0.0023, floor_s=0.014, cv=0.1)
    with serving(spec(law, batch_max=16)) as url:
        found = profiled(url, tmp_path, "--max-time", "16s", "--metrics", f"{url}/none")
    assert (found["batching"], found["batch_max"], found["counters_used"]) == ("Dynamic", 16, False)
    assert found["capacity_rps"] == pytest.approx(law.rate_rps(16), rel=0.1)


def test_a_worker_that_batches_continuously_is_told_from_one_with_batches(tmp_path: Path) -> None:
    law = ServiceLaw(fixed_s=0.1, per_item_s=0.005, cv=0.2)
    with serving(spec(law, batching=Batching.CONTINUOUS, batch_max=8)) as url:
        found = profiled(url, tmp_path, "--max-time", "24s")
    assert found["batching"] == "Continuous"
    assert found["capacity_rps"] == pytest.approx(law.rate_rps(8), rel=0.1)


def test_a_server_with_traffic_of_others_is_not_put_under_load_unasked(tmp_path: Path) -> None:
    law = ServiceLaw(fixed_s=0.01)
    body = tmp_path / "chunk"
    body.write_bytes(bytes(32))
    with serving(spec(law, batch_max=4)) as url:
        loop = f"while True:\n urlopen('{url}/', data=b'x').read()\n"
        other = subprocess.Popen([sys.executable, "-c", f"from urllib.request import urlopen\n{loop}"])
        try:
            while b"items_total" not in urlopen(f"{url}/metrics").read():
                continue
            command = [str(SLUICE), "profile", f"{url}/", "--body", str(body)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        finally:
            other.kill()
            other.wait()
    assert done.returncode == 1
    assert "items/s of others" in done.stderr
    assert "nothing was sent (--yes does not ask)" in done.stderr
