"""The lab's data plane against theory: generator (its own process), ingress and one worker, over real sockets."""

import asyncio
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from loopback import an_address

from controller.core.state.spec import DemandUnit
from optimizer.model import Routing, ServiceLaw
from simulations.lab.host.processes import free_ports
from simulations.lab.net.timers import Timers
from simulations.lab.pods.worker import StageWorker, WorkerSpec
from simulations.lab.traffic.backend import PodState
from simulations.lab.traffic.generator import GeneratorConfig, PipelineLoad
from simulations.lab.traffic.ingress import Ingress
from simulations.lab.traffic.records import read_records
from simulations.lab.traffic.topology import IngressConfig, PipelineTopology, PlacementTopology, StageTopology
from simulations.results.scoring import Outcome
from simulations.scenario.schedule import Schedule, chunk_times

DURATION_S = 4.0

pytestmark = pytest.mark.quiet


def ideal_s(worker: WorkerSpec, arrivals_s: Sequence[float]) -> list[float]:
    """Sojourn times of a single server with the worker's own draws (Lindley's recursion)."""
    draw = random.Random(f"{worker.seed}/0")
    free_s, sojourn_s = 0.0, []
    for arrival_s in arrivals_s:
        cv, mean_s = worker.service.cv, worker.service.fixed_s
        service_s = draw.gammavariate(cv**-2, mean_s * cv**2) if cv else mean_s
        free_s = max(free_s, arrival_s) + service_s
        sojourn_s.append(free_s - arrival_s)
    return sojourn_s


def poisson(rate_rps: float) -> Schedule:
    start_s = np.cumsum(np.random.default_rng(3).exponential(1 / rate_rps, round(rate_rps * DURATION_S)))
    return Schedule(start_s=start_s, end_s=start_s)


def streams(count: int) -> Schedule:
    return Schedule(start_s=np.zeros(count), end_s=np.full(count, DURATION_S))


async def live(
    worker: WorkerSpec, schedule: Schedule, chunk_s: float | None, folder: Path
) -> tuple[list[float], float]:
    """Latencies in the order of arrival, and the generator's p99 lag."""
    port, metrics_port = free_ports(2)
    placement = PlacementTopology(pool="cpu", selector={"app": "asr"}, weight=1, limit=1)
    stage = StageTopology(
        name="asr", after=(), pass_ratio=1, routing=Routing.LEAST_LOADED, memory=False, placements=(placement,)
    )
    pipeline = PipelineTopology(
        namespace="speech",
        name="oracle",
        unit=DemandUnit.STREAMS if chunk_s else DemandUnit.REQUESTS,
        sla_s=10.0,
        port=port,
        seed=1,
        stages=(stage,),
    )
    config = IngressConfig(
        metrics_port=metrics_port, records=folder / "items", summary=folder / "summary", pipelines=(pipeline,)
    )
    schedule.save(folder / "schedule.npz")
    load = PipelineLoad(port=port, schedule=folder / "schedule.npz", chunk_s=chunk_s, seed=5)
    plan = GeneratorConfig(duration_s=DURATION_S, drain_s=5.0, report=folder / "report", loads=(load,))
    (folder / "generator.json").write_text(plan.to_json())

    timers = Timers()
    host = an_address()
    server = StageWorker(worker, host, timers)
    await server.start()
    ingress = Ingress(config)
    await ingress.start()
    ingress.pod_changed(PodState(uid="1", namespace="speech", labels={"app": "asr"}, ip=host, ready=True))
    generator = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "simulations.lab.traffic.generator", "--config", folder / "generator.json"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        assert await generator.wait() == 0
    finally:
        await ingress.stop()
        await server.abort()
        timers.close()
    items = read_records(config.records, 0)
    assert set(items.outcome.tolist()) == {Outcome.SERVED}
    report = json.loads((folder / "report").read_text())
    return items.latency_s[np.argsort(items.arrival_s, kind="stable")].tolist(), report["lag_p99_s"]


@pytest.mark.parametrize(
    ("worker", "schedule", "chunk_s"),
    [
        pytest.param(
            WorkerSpec(pipeline="oracle", stage="asr", service=ServiceLaw(fixed_s=0.010, cv=0.5)),
            poisson(70.0),
            None,
            id="M/G/1",
        ),
        pytest.param(
            WorkerSpec(pipeline="oracle", stage="asr", service=ServiceLaw(fixed_s=0.010)),
            streams(28),
            0.4,
            id="streams/D/1",
        ),
    ],
)
def test_median_and_p95_through_the_ingress_are_within_3_percent_and_2_ms(
    worker: WorkerSpec, schedule: Schedule, chunk_s: float | None, tmp_path: Path
) -> None:
    """At a utilisation of 0.7, with the draws of the simulation it is compared with.

    Other load on the machine only adds to the latency, while an error of the lab occurs in every attempt: one good
    attempt of three is enough.
    """
    arrivals_s = schedule.start_s if chunk_s is None else chunk_times(schedule, chunk_s, DURATION_S, 5)[0]
    percent = (50, 95)
    ideal = np.percentile(ideal_s(worker, arrivals_s.tolist()), percent)
    attempts = []
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        latency_s, lag_s = asyncio.run(live(worker, schedule, chunk_s, folder))
        assert len(latency_s) == len(arrivals_s)
        measured = np.percentile(latency_s, percent)
        attempts.append((measured.tolist(), lag_s))
        if np.all(np.abs(measured - ideal) <= 0.03 * ideal + 0.002):
            return
    pytest.fail(f"p50 and p95 in s: {ideal.tolist()} in theory, live with the generator's lag: {attempts}")
