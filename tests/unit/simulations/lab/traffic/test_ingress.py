"""The ingress as its clients and Prometheus see it."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from laws import with_law
from loopback import an_address
from prometheus_client.parser import text_string_to_metric_families

from controller.core.state.spec import DemandUnit
from optimizer.model import Routing
from simulations.lab.host.processes import free_ports
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import NO_SESSION, Client, Status
from simulations.lab.pods.worker import StageWorker, WorkerSpec
from simulations.lab.traffic.backend import PodState
from simulations.lab.traffic.backlog import Additions
from simulations.lab.traffic.ingress import Ingress, Limit, arrival_payload, read_pod
from simulations.lab.traffic.records import read_records
from simulations.lab.traffic.topology import IngressConfig, PipelineTopology, PlacementTopology, StageTopology
from simulations.results.scoring import Outcome


class Lab:
    def __init__(self, ingress: Ingress, client: Client, worker: StageWorker, config: IngressConfig) -> None:
        self.ingress, self.client, self.worker, self.config = ingress, client, worker, config

    def payload(self, arrival_s: float = 0.0) -> bytes:
        return arrival_payload(arrival_s, time.monotonic())

    async def metrics(self) -> dict[str, float]:
        """Return samples by name, with the outcome or the bound in brackets."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.config.metrics_port}/metrics") as answer,
        ):
            text = await answer.text()
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                assert sample.labels["namespace"] == "speech"
                assert sample.labels["pipeline"] == "captions"
                extra = sample.labels.get("outcome") or sample.labels.get("le")
                found[f"{sample.name}[{extra}]" if extra else sample.name] = sample.value
        return found


def play(
    use: Callable[[Lab], Awaitable[None]],
    folder: Path,
    unit: DemandUnit,
    *,
    ready: bool = True,
    routing: Routing = Routing.STICKY,
    **fields: Any,
) -> IngressConfig:
    port, metrics_port = free_ports(2)
    placement = PlacementTopology(pool="cpu", selector={"app": "asr"}, weight=1, limit=1)
    stage = StageTopology(
        name="asr", after=(), pass_ratio=1, routing=routing, memory=routing is Routing.STICKY, placements=(placement,)
    )
    topology = PipelineTopology(
        namespace="speech", name="captions", unit=unit, sla_s=0.2, port=port, seed=1, stages=(stage,)
    )
    config = IngressConfig(
        metrics_port=metrics_port, records=folder / "items", summary=folder / "summary", pipelines=(topology,)
    )

    async def run() -> None:
        timers = Timers()
        host = an_address()
        spec = WorkerSpec(
            pipeline="captions", stage="asr", **with_law(**{"fixed_s": 0.002, "session_slots": 2, **fields})
        )
        worker = StageWorker(spec, host, timers)
        await worker.start()
        ingress = Ingress(config)
        await ingress.start()
        ingress.pod_changed(PodState(uid="1", namespace="speech", labels={"app": "asr"}, ip=host, ready=ready))
        client = await Client.connect("127.0.0.1", port)
        try:
            async with asyncio.timeout(10):
                await use(Lab(ingress, client, worker, config))
        finally:
            client.close()
            await ingress.stop()
            await worker.abort()
            timers.close()

    asyncio.run(run())
    return config


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 - what is awaited is inner state
        await asyncio.sleep(0.001)


def test_streams_are_served_measured_and_recorded(tmp_path: Path) -> None:
    async def use(lab: Lab) -> None:
        assert (await lab.client.open_session(7)).status is Status.OK
        answers = [lab.client.send(number, 7, lab.payload(float(number))) for number in range(1, 11)]
        assert {answer.status for answer in await asyncio.gather(*answers)} == {Status.OK}

        metrics = await lab.metrics()
        assert metrics["sluice_ingress_active_streams"] == 1
        assert metrics["sluice_ingress_items_total[offered]"] == 10
        assert metrics["sluice_ingress_items_total[served]"] == 10
        assert metrics["sluice_ingress_latency_seconds_count"] == 10
        assert metrics["sluice_ingress_latency_seconds_bucket[0.2]"] == 10
        assert "sluice_ingress_requests_total" not in metrics
        lab.client.end_session(7)
        await until(lambda: not lab.worker.gauges().sessions)
        assert (await lab.metrics())["sluice_ingress_active_streams"] == 0

    config = play(use, tmp_path, DemandUnit.STREAMS)
    items = read_records(config.records, 0)
    assert sorted(items.arrival_s) == list(range(1, 11))
    assert set(items.outcome.tolist()) == {Outcome.SERVED}
    (totals,) = json.loads(config.summary.read_text())
    assert (totals["offered"], totals["served"], totals["in_flight"], totals["sessions_cut"]) == (10, 10, 0, 0)


def test_latency_runs_from_the_intended_arrival_not_from_the_sending(tmp_path: Path) -> None:
    async def use(lab: Lab) -> None:
        late = arrival_payload(0.0, time.monotonic() - 0.5)
        assert (await lab.client.send(1, NO_SESSION, late)).status is Status.OK

    config = play(use, tmp_path, DemandUnit.REQUESTS)
    assert read_records(config.records, 0).latency_s[0] >= 0.5


def test_offered_requests_are_counted_and_streams_are_not(tmp_path: Path) -> None:
    async def use(lab: Lab) -> None:
        await asyncio.gather(*(lab.client.send(number, NO_SESSION, lab.payload()) for number in range(1, 3)))
        metrics = await lab.metrics()
        assert metrics["sluice_ingress_requests_total"] == 2
        assert "sluice_ingress_active_streams" not in metrics

    play(use, tmp_path, DemandUnit.REQUESTS)


def test_a_stream_without_a_slot_is_told_so_and_may_come_back(tmp_path: Path) -> None:
    async def use(lab: Lab) -> None:
        found = [(await lab.client.open_session(number)).status for number in (1, 2, 3)]
        assert found == [Status.OK, Status.OK, Status.REFUSED_SLOT]
        assert (await lab.client.send(1, 3, lab.payload())).status is Status.REFUSED_QUEUE
        metrics = await lab.metrics()
        assert (metrics["sluice_ingress_items_total[refused]"], metrics["sluice_ingress_items_total[lost]"]) == (1, 0)
        assert metrics["sluice_ingress_latency_seconds_count"] == 0, "it was not sent"
        assert metrics["sluice_ingress_active_streams"] == 3

        assert (await lab.client.open_session(3)).status is Status.REFUSED_SLOT
        lab.client.end_session(1)
        await until(lambda: lab.worker.gauges().sessions == 1)
        assert (await lab.client.open_session(3)).status is Status.OK
        assert (await lab.client.send(2, 3, lab.payload())).status is Status.OK
        assert (await lab.metrics())["sluice_ingress_active_streams"] == 2

    config = play(use, tmp_path, DemandUnit.STREAMS)
    (totals,) = json.loads(config.summary.read_text())
    assert (totals["offered"], totals["refused"], totals["served"], totals["lost"]) == (2, 1, 1, 0)
    assert read_records(config.records, 0).outcome.tolist() == [Outcome.REFUSED, Outcome.SERVED]


def test_the_items_left_of_a_backlog_are_counted_until_they_are_done(tmp_path: Path) -> None:
    async def use(lab: Lab) -> None:
        assert (await lab.metrics())["sluice_ingress_backlog_items"] == 0
        additions = Additions(start_s=time.monotonic() - 1.0, items=((0.0, 3), (3600.0, 5)))
        url = f"http://127.0.0.1:{lab.config.metrics_port}/backlogs/speech/captions"
        async with aiohttp.ClientSession() as session, session.put(url, data=additions.to_json()) as answer:
            assert answer.status == 204
        while not (metrics := await lab.metrics())["sluice_ingress_items_total[offered]"]:
            pass
        assert metrics["sluice_ingress_backlog_items"] == 3
        assert "sluice_ingress_requests_total" not in metrics
        lab.ingress.pod_changed(PodState(uid="1", namespace="speech", labels={"app": "asr"}, ip=None, ready=True))
        while (metrics := await lab.metrics())["sluice_ingress_backlog_items"]:
            pass
        assert metrics["sluice_ingress_items_total[served]"] == 3

    config = play(use, tmp_path, DemandUnit.ITEMS, ready=False, routing=Routing.PULL, session_slots=None)
    items = read_records(config.records, 0)
    assert (items.arrival_s.tolist(), items.outcome.tolist()) == ([0.0] * 3, [Outcome.SERVED] * 3)
    (totals,) = json.loads(config.summary.read_text())
    assert (totals["offered"], totals["served"], totals["in_flight"], totals["retries"]) == (3, 3, 0, 0)


def test_lost_items_are_infinitely_late(tmp_path: Path) -> None:
    async def use(lab: Lab) -> None:
        answers = [lab.client.send(number, NO_SESSION, lab.payload()) for number in (1, 2, 3)]
        assert [answer.status for answer in await asyncio.gather(*answers)].count(Status.REFUSED_QUEUE) == 1
        metrics = await lab.metrics()
        assert metrics["sluice_ingress_items_total[lost]"] == 1
        # In the +Inf bucket, so that a measured percentile includes them.
        inside = max(v for k, v in metrics.items() if "bucket" in k and "Inf" not in k)
        assert metrics["sluice_ingress_latency_seconds_bucket[+Inf]"] - inside == 1

    play(use, tmp_path, DemandUnit.REQUESTS, fixed_s=0.05)


def test_a_client_that_opens_a_stream_twice_is_cut_off(tmp_path: Path) -> None:
    async def use(lab: Lab) -> None:
        assert (await lab.client.open_session(1)).status is Status.OK
        with pytest.raises(ConnectionError):
            await lab.client.open_session(1)

    play(use, tmp_path, DemandUnit.STREAMS)


def test_a_client_that_goes_takes_its_streams_along(tmp_path: Path) -> None:
    async def use(lab: Lab) -> None:
        await lab.client.open_session(1)
        assert lab.ingress.pipelines[0].tally.active_streams == 1
        lab.client.close()
        await until(lambda: lab.ingress.pipelines[0].tally.active_streams == 0)
        await until(lambda: lab.worker.gauges().sessions == 0)

    play(use, tmp_path, DemandUnit.STREAMS)


@pytest.mark.parametrize(("session_id", "payload"), [(9, arrival_payload(0, 0)), (NO_SESSION, b"x")])
def test_a_client_that_breaks_the_protocol_is_cut_off(tmp_path: Path, session_id: int, payload: bytes) -> None:
    async def use(lab: Lab) -> None:
        with pytest.raises(ConnectionError):
            await lab.client.send(1, session_id, payload)

    play(use, tmp_path, DemandUnit.STREAMS)


def test_what_is_under_way_at_the_end_is_in_flight_and_the_books_balance(tmp_path: Path) -> None:
    async def use(lab: Lab) -> None:
        for number in range(1, 4):
            lab.client.send(number, NO_SESSION, lab.payload()).add_done_callback(lambda answer: answer.exception())
        await until(lambda: lab.worker.gauges().in_service == 1)

    config = play(use, tmp_path, DemandUnit.REQUESTS, fixed_s=5, session_slots=None)
    (totals,) = json.loads(config.summary.read_text())
    assert totals["in_flight"] == totals["offered"] == 3
    assert read_records(config.records, 0).outcome.tolist() == [Outcome.IN_FLIGHT] * 3


def pod(**metadata: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "u", "uid": "u", "namespace": "speech", "labels": {"app": "asr"}, **metadata},
        "status": {"podIP": "127.0.0.9", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def test_only_ready_pods_that_stay_get_new_work() -> None:
    unready = pod()
    unready["status"]["conditions"][0]["status"] = "False"

    assert read_pod(pod()) == PodState(
        uid="u", namespace="speech", labels={"app": "asr"}, name="u", ip="127.0.0.9", ready=True
    )
    assert not read_pod(unready).ready
    assert not read_pod(pod(deletionTimestamp="2026-01-01T00:00:00Z")).ready
    assert not read_pod({"metadata": {"name": "u", "uid": "u", "namespace": "speech"}}).ready


def test_a_limit_that_no_operator_renews_lapses() -> None:
    until_s = datetime.fromisoformat("2026-01-01T00:10:00Z").timestamp()
    limit = Limit.of({"admissible": "320", "admissibleUntil": "2026-01-01T00:10:00Z"})
    assert (limit.at(until_s - 1), limit.at(until_s)) == (320.0, None)
    assert Limit.of({}).at(0.0) is None
    assert Limit.of({"admissible": "320"}).at(until_s) == 320.0, "an operator of an earlier version states no end"
