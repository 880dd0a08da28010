"""Every preset against a real Prometheus that scrapes real stage workers under a Poisson load.

Two pods per preset serve the same arrivals under the same law, so the presets must agree with each other, with the law
and with what the clients saw.
"""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from kubernetes import client

from optimizer.model import PipelineKey, PoolName, ServiceLaw, StageName
from profiler.samples import Absence, AbsenceReason, PlacementTarget, Quantity, Reading
from profiler.sources.base import ReadRequest
from profiler.sources.prometheus import PrometheusSource
from simulations.lab.binaries import Binaries
from simulations.lab.control_plane import ControlPlane
from simulations.lab.exposition import Preset
from simulations.lab.prometheus import PrometheusServer
from simulations.lab.timers import Timers
from simulations.lab.wire import NO_SESSION, Client
from simulations.lab.worker import ITEM_PORT, METRICS_PORT, StageWorker, WorkerSpec

pytestmark = pytest.mark.lab

PRESETS: tuple[Preset, ...] = ("generic", "triton", "vllm")
LAW = ServiceLaw(fixed_s=0.015, per_item_s=0.005, cv=0.3)
RATE_RPS = 60.0
BATCH_MAX = 8
SLOTS = 50
WINDOW_S = 16.0
SCRAPE_S = 0.5


class Replica:
    """A worker behind a pod object, and a client that offers it items as a Poisson process."""

    def __init__(self, preset: Preset, index: int) -> None:
        self.name = f"{preset}-{index}"
        self.spec = WorkerSpec(
            pipeline="captions",
            stage=preset,
            fixed_s=LAW.fixed_s,
            per_item_s=LAW.per_item_s,
            cv=LAW.cv,
            batch_max=BATCH_MAX,
            session_slots=SLOTS,
            preset=preset,
        )
        self.host = f"127.77.{random.Random(time.time_ns()).randrange(1, 255)}.{10 * PRESETS.index(preset) + index + 1}"
        self.sojourns_s: list[tuple[float, float]] = []
        """(time of the answer, time from the intended sending to it)."""
        self._index = index
        self._worker: StageWorker | None = None

    async def serve(self, timers: Timers) -> None:
        self._worker = StageWorker(self.spec, self.host, timers, ordinal=self._index)
        await self._worker.start()

    async def end(self) -> None:
        assert self._worker is not None
        await self._worker.abort()

    async def offer(self, timers: Timers) -> None:
        draw = random.Random(self._index)
        connection = await Client.connect(self.host, ITEM_PORT)
        due_s = time.monotonic()
        try:
            for item in itertools.count():
                due_s += draw.expovariate(RATE_RPS)
                await timers.sleep_until(due_s)
                if connection.closed:
                    connection = await Client.connect(self.host, ITEM_PORT)
                connection.send(item, NO_SESSION).add_done_callback(self._noting(due_s))
        finally:
            connection.close()

    def _noting(self, due_s: float) -> Callable[[asyncio.Future[Any]], None]:
        def note(answer: asyncio.Future[Any]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                now_s = time.monotonic()
                self.sojourns_s.append((now_s, now_s - due_s))

        return note


class Stand:
    """All replicas in an event loop of their own, and a source that reads their Prometheus."""

    def __init__(self, namespace: str, source: PrometheusSource) -> None:
        self.namespace = namespace
        self.source = source
        self.replicas = {f"{preset}-{index}": Replica(preset, index) for preset in PRESETS for index in range(2)}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._loads: list[asyncio.Task[None]] = []
        self.timers: Timers | None = None

    def start(self) -> None:
        self._thread.start()
        self.run(self._start())

    async def _start(self) -> None:
        self.timers = Timers()
        for replica in self.replicas.values():
            await replica.serve(self.timers)
            self._loads.append(asyncio.create_task(replica.offer(self.timers)))

    async def _stop(self) -> None:
        for load in self._loads:
            load.cancel()
        await asyncio.gather(*self._loads, return_exceptions=True)
        for replica in self.replicas.values():
            await replica.end()
        assert self.timers is not None
        self.timers.close()

    def stop(self) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def read(self, preset: Preset, *more_pods: str) -> dict[Quantity, Reading]:
        target = PlacementTarget(
            pipeline=PipelineKey("speech/captions"),
            stage=StageName(preset),
            pool=PoolName("cpu"),
            namespace=self.namespace,
            pods=frozenset({f"{preset}-0", f"{preset}-1", *more_pods}),
            preset=preset,
            window_s=WINDOW_S,
            concurrency=1,
            batch_limit=BATCH_MAX,
            overrides={},
        )
        answer = self.source.read(ReadRequest(placements=(target,), scalars={}, deadline_s=10))
        assert answer.problems == ()
        (samples,) = answer.placements.values()
        return dict(samples.readings)

    def scalar(self, query: str) -> Reading:
        return self.source.read(ReadRequest(placements=(), scalars={"q": query}, deadline_s=10)).scalars["q"]


@pytest.fixture(scope="module")
def stand(
    control_plane: ControlPlane,
    admin: client.ApiClient,
    binaries: Binaries,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stand]:
    core = client.CoreV1Api(admin)
    namespace = f"profiler-{time.time_ns() % 10**8}"
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=namespace)))
    folder = tmp_path_factory.mktemp("prometheus")
    with PrometheusServer(folder, binaries, kubeconfig=control_plane.kubeconfig, scrape_interval_s=SCRAPE_S) as server:
        stand = Stand(namespace, PrometheusSource(server.url))
        stand.start()
        for replica in stand.replicas.values():
            create_pod(core, namespace, replica)
        yield stand
        stand.stop()
        stand.source.close()
    core.delete_namespace(namespace)
    core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)


def create_pod(core: client.CoreV1Api, namespace: str, replica: Replica) -> None:
    annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS_PORT)}
    core.create_namespaced_pod(
        namespace,
        {
            "metadata": {"name": replica.name, "annotations": annotations},
            "spec": {"nodeName": "nowhere", "containers": [{"name": "worker", "image": "lab"}]},
        },
    )
    status = {"phase": "Running", "podIP": replica.host, "podIPs": [{"ip": replica.host}]}
    core.patch_namespaced_pod_status(replica.name, namespace, {"status": status})


def eventually(look: Callable[[], Any], timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, "not within the deadline"
        time.sleep(0.25)
    return found


@pytest.fixture(scope="module")
def settled(stand: Stand) -> dict[Preset, dict[Quantity, float]]:
    """The readings once a full window under load lies behind, with nothing absent that can be told."""
    since_s = time.monotonic()

    def look() -> dict[Preset, dict[Quantity, float]] | None:
        if time.monotonic() < since_s + WINDOW_S + 4:
            return None
        found = {
            preset: {what: value for what, value in stand.read(preset).items() if not isinstance(value, Absence)}
            for preset in PRESETS
        }
        return found if all(Quantity.LATENCY_P95 in readings for readings in found.values()) else None

    return eventually(look)  # type: ignore[no-any-return]


def recent_s(stand: Stand, preset: Preset) -> list[float]:
    now_s = time.monotonic()
    return sorted(
        sojourn_s
        for replica in stand.replicas.values()
        if replica.spec.preset == preset
        for at_s, sojourn_s in replica.sojourns_s
        if at_s >= now_s - WINDOW_S
    )


@pytest.mark.parametrize("preset", PRESETS)
class TestEveryPreset:
    def test_rates_are_those_offered(self, settled: dict[Preset, dict[Quantity, float]], preset: Preset) -> None:
        assert settled[preset][Quantity.ARRIVAL_RATE] == pytest.approx(2 * RATE_RPS, rel=0.15)
        assert settled[preset][Quantity.COMPLETION_RATE] == pytest.approx(2 * RATE_RPS, rel=0.15)

    def test_the_service_time_fits_the_law_at_the_batch_it_belongs_to(
        self, settled: dict[Preset, dict[Quantity, float]], preset: Preset
    ) -> None:
        readings = settled[preset]
        batch = readings.get(Quantity.SERVED_BATCH, readings[Quantity.BATCH_SIZE])
        # vLLM tells its batch as a gauge, seen only when it is scraped: a mean of some thirty samples.
        tolerance = 0.15 if preset == "vllm" else 0.06
        assert readings[Quantity.SERVICE_TIME] == pytest.approx(LAW.mean_s(batch), rel=tolerance)

    def test_the_batch_size_is_that_of_the_contract(
        self, settled: dict[Preset, dict[Quantity, float]], preset: Preset
    ) -> None:
        # vLLM's is sampled at scrapes, hence a mean over time instead of batches.
        own, contract = settled[preset][Quantity.BATCH_SIZE], settled["generic"][Quantity.BATCH_SIZE]
        assert own == pytest.approx(contract, rel=0.03 if preset != "vllm" else 0.3)

    def test_utilisation_is_the_busy_share_or_the_share_of_slots(
        self, settled: dict[Preset, dict[Quantity, float]], preset: Preset
    ) -> None:
        contract = settled["generic"]
        busy = RATE_RPS / contract[Quantity.BATCH_SIZE] * contract[Quantity.SERVICE_TIME]
        in_slots = RATE_RPS * settled[preset][Quantity.SERVICE_TIME] / BATCH_MAX
        assert settled[preset][Quantity.UTILIZATION] == pytest.approx(in_slots if preset == "vllm" else busy, rel=0.2)

    def test_latencies_are_what_the_clients_saw(
        self, stand: Stand, settled: dict[Preset, dict[Quantity, float]], preset: Preset
    ) -> None:
        seen_s = recent_s(stand, preset)
        mean_s, p95_s = sum(seen_s) / len(seen_s), seen_s[int(0.95 * len(seen_s))]
        readings = settled[preset]
        assert readings[Quantity.LATENCY_MEAN] == pytest.approx(mean_s, rel=0.15)
        # A bucket is up to twice as wide as its lower bound.
        assert readings[Quantity.LATENCY_P95] == pytest.approx(p95_s, rel=0.35)
        assert readings[Quantity.LATENCY_P99] >= readings[Quantity.LATENCY_P95]

    def test_the_queue_obeys_littles_law(self, settled: dict[Preset, dict[Quantity, float]], preset: Preset) -> None:
        readings = settled[preset]
        waiting = 2 * RATE_RPS * (readings[Quantity.LATENCY_MEAN] - readings[Quantity.SERVICE_TIME])
        assert readings[Quantity.QUEUE_DEPTH] == pytest.approx(waiting, rel=0.5, abs=0.5)

    def test_slots_in_use_are_a_share_of_all(
        self, settled: dict[Preset, dict[Quantity, float]], preset: Preset
    ) -> None:
        readings = settled[preset]
        assert 0 <= readings[Quantity.SESSIONS] <= 2 * SLOTS
        assert 0 <= readings[Quantity.MEMORY_USE] < 0.5

    def test_a_pod_that_was_never_scraped_makes_sums_partial(
        self, stand: Stand, settled: dict[Preset, dict[Quantity, float]], preset: Preset
    ) -> None:
        readings = stand.read(preset, f"{preset}-9")
        arrivals = readings[Quantity.ARRIVAL_RATE]
        assert isinstance(arrivals, Absence)
        assert arrivals.reason is AbsenceReason.PARTIAL
        assert "2 of 3 pods" in arrivals.detail
        assert not isinstance(readings[Quantity.SERVICE_TIME], Absence)


def test_only_the_contract_and_no_other_server_tells_receive_pressure(
    settled: dict[Preset, dict[Quantity, float]],
) -> None:
    assert [preset for preset in PRESETS if Quantity.RX_QUEUE_PRESSURE in settled[preset]] == ["generic"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("scalar(vector(3))", 3.0),
        ("sum(up{pod=~'generic-.*'})", 2.0),
        ("nothing_of_that_name", AbsenceReason.MISSING),
        ("up", AbsenceReason.NOT_A_NUMBER),
        ("vector(0) / 0", AbsenceReason.NOT_A_NUMBER),
        ("vector(1) / 0", AbsenceReason.NOT_A_NUMBER),
        ("up[1m]", AbsenceReason.NOT_A_NUMBER),
        ('"text"', AbsenceReason.NOT_A_NUMBER),
        ("sum(", AbsenceReason.UNAVAILABLE),
    ],
)
def test_a_users_own_query_is_one_number_or_says_why_not(
    stand: Stand, settled: dict[Preset, dict[Quantity, float]], query: str, expected: float | AbsenceReason
) -> None:
    found = stand.scalar(query)
    assert (found.reason if isinstance(found, Absence) else found) == expected


def test_a_restarted_process_yields_no_nonsense_and_a_dead_one_is_missed(
    stand: Stand, settled: dict[Preset, dict[Quantity, float]]
) -> None:
    replica = stand.replicas["generic-0"]
    assert stand.timers is not None
    stand.run(replica.end())
    lost = eventually(lambda: _absent(stand.read("generic")[Quantity.ARRIVAL_RATE]))
    assert lost.reason is AbsenceReason.PARTIAL
    stand.run(replica.serve(stand.timers))  # its counters begin again at zero

    def back() -> float | None:
        reading = stand.read("generic")[Quantity.ARRIVAL_RATE]
        if isinstance(reading, Absence):
            return None
        assert 0 <= reading < 4 * RATE_RPS
        return reading

    assert eventually(back)


def _absent(reading: Reading) -> Absence | None:
    return reading if isinstance(reading, Absence) else None
