"""Every preset by every source, of real stage workers under a Poisson load: by a real Prometheus that scrapes them, and
by direct scrapes.

Two pods per preset serve the same arrivals under the same law, so the presets must agree with each other, with the law
and with what the clients saw; and the sources with each other.
"""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest
from kubernetes import client

from optimizer.model import PipelineKey, PoolName, ServiceLaw, StageName
from profiler.samples import Absence, AbsenceReason, PlacementTarget, PodEndpoint, Quantity, Reading
from profiler.sources.access import Access
from profiler.sources.base import MetricSource, ReadRequest
from profiler.sources.demand_history import PrometheusHistory
from profiler.sources.direct import DirectSource
from profiler.sources.prometheus import PrometheusSource
from profiler.sources.prometheus_api import Period
from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.cluster.prometheus import PrometheusServer
from simulations.lab.host.binaries import Binaries
from simulations.lab.net.timers import Timers
from simulations.lab.net.wire import ITEM_PORT, METRICS_PORT, NO_SESSION, Client
from simulations.lab.pods.exposition import ModelServer, Preset
from simulations.lab.pods.worker import StageWorker, WorkerSpec

pytestmark = [pytest.mark.lab, pytest.mark.quiet]

PRESETS: tuple[Preset, ...] = ("generic", "triton", "vllm")
SOURCES = ("prometheus", "direct")
Settled = dict[Preset, dict[Quantity, float]]
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
            service=LAW,
            batch_max=BATCH_MAX,
            session_slots=SLOTS,
            server=ModelServer(preset=preset),
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
    """All replicas in an event loop of their own, and the sources that read them."""

    def __init__(self, namespace: str, sources: dict[str, MetricSource]) -> None:
        self.namespace = namespace
        self.sources = sources
        self.replicas = {f"{preset}-{index}": Replica(preset, index) for preset in PRESETS for index in range(2)}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._loads: list[asyncio.Task[None]] = []
        self.timers: Timers | None = None
        self.history: PrometheusHistory | None = None

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

    def read(self, source: str, *more_pods: str) -> dict[Preset, dict[Quantity, Reading]]:
        """What a source says of every preset; each may have one more pod that there is not."""
        targets = tuple(self._target(preset, *(f"{preset}-{pod}" for pod in more_pods)) for preset in PRESETS)
        answer = self.sources[source].read(ReadRequest(placements=targets, scalars={}, deadline_s=10))
        return {
            preset: dict(answer.placements[target.pipeline, target.stage, target.placement].readings)
            for preset, target in zip(PRESETS, targets, strict=True)
        }

    def scalar(self, query: str) -> Reading:
        request = ReadRequest(placements=(), scalars={"q": query}, deadline_s=10)
        return self.sources["prometheus"].read(request).scalars["q"]

    def _target(self, preset: Preset, *more_pods: str) -> PlacementTarget:
        own = {name: replica for name, replica in self.replicas.items() if replica.spec.server.preset == preset}
        return PlacementTarget(
            pipeline=PipelineKey("speech/captions"),
            stage=StageName(preset),
            placement=PoolName("cpu"),
            namespace=self.namespace,
            pods=frozenset({*own, *more_pods}),
            preset=preset,
            window_s=WINDOW_S,
            concurrency=1,
            batch_limit=BATCH_MAX,
            overrides={},
            endpoints={name: PodEndpoint(host=each.host, port=METRICS_PORT) for name, each in own.items()},
        )


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
        prometheus, direct = PrometheusSource(server.url), DirectSource(cadence_s=SCRAPE_S)
        stand = Stand(namespace, {"prometheus": prometheus, "direct": direct})
        stand.history = PrometheusHistory(server.url, Access())
        stand.start()
        for replica in stand.replicas.values():
            create_pod(core, namespace, replica)
        yield stand
        stand.stop()
        prometheus.close()
        direct.close()
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
def everything(stand: Stand) -> dict[str, Settled]:
    """Return the readings after a full window under load, when every exported quantity is there."""
    since_s = time.monotonic()
    for source in SOURCES:
        stand.read(source)  # direct scrapes begin with the first read

    def look() -> dict[str, Settled] | None:
        # Workers and clients run in this process too: other work in it makes them late.
        if time.monotonic() < since_s + WINDOW_S + 4:
            return None
        readings_now = {source: stand.read(source) for source in SOURCES}
        found = {
            source: {
                preset: {what: value for what, value in readings.items() if not isinstance(value, Absence)}
                for preset, readings in presets.items()
            }
            for source, presets in readings_now.items()
        }
        whole = all(Quantity.LATENCY_P95 in readings for presets in found.values() for readings in presets.values())
        return found if whole else None

    return eventually(look)  # type: ignore[no-any-return]


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def settled(everything: dict[str, Settled], source: str) -> Settled:
    return everything[source]


def recent_s(stand: Stand, preset: Preset) -> list[float]:
    now_s = time.monotonic()
    return sorted(
        sojourn_s
        for replica in stand.replicas.values()
        if replica.spec.server.preset == preset
        for at_s, sojourn_s in replica.sojourns_s
        if at_s >= now_s - WINDOW_S
    )


@pytest.mark.parametrize("preset", PRESETS)
class TestEveryPreset:
    def test_rates_are_those_offered(self, settled: Settled, preset: Preset) -> None:
        assert settled[preset][Quantity.ARRIVAL_RATE] == pytest.approx(2 * RATE_RPS, rel=0.15)
        assert settled[preset][Quantity.COMPLETION_RATE] == pytest.approx(2 * RATE_RPS, rel=0.15)

    def test_the_service_time_fits_the_law_at_the_batch_it_belongs_to(self, settled: Settled, preset: Preset) -> None:
        readings = settled[preset]
        if preset == "vllm":
            # Its batch is a gauge with thirty samples per pod and window: too few to compare with a law.
            # Its times are weighted by requests, as Triton's are.
            assert readings[Quantity.SERVICE_TIME] == pytest.approx(settled["triton"][Quantity.SERVICE_TIME], rel=0.1)
            assert readings[Quantity.BATCH_SIZE] <= readings[Quantity.PRESENT_BATCH] <= BATCH_MAX
        else:
            # Triton weights times by requests and batches not at all: what goes with them is inferred from the mean.
            batch = readings.get(Quantity.SERVED_BATCH, readings[Quantity.BATCH_SIZE])
            tolerance = {"triton": 0.1}.get(preset, 0.06)
            assert readings[Quantity.SERVICE_TIME] == pytest.approx(LAW.mean_s(batch), rel=tolerance)

    def test_the_batch_size_is_that_of_the_contract(self, settled: Settled, preset: Preset) -> None:
        own, contract = settled[preset][Quantity.BATCH_SIZE], settled["generic"][Quantity.BATCH_SIZE]
        if preset == "vllm":
            # A mean over time, in which long and hence large batches count for more, of thirty samples a pod.
            assert 0.6 * contract <= own <= 2 * contract
        else:
            assert own == pytest.approx(contract, rel=0.03)

    def test_utilisation_is_the_busy_share_or_the_share_of_slots(self, settled: Settled, preset: Preset) -> None:
        contract = settled["generic"]
        busy = RATE_RPS / contract[Quantity.BATCH_SIZE] * contract[Quantity.SERVICE_TIME]
        in_slots = RATE_RPS * settled[preset][Quantity.SERVICE_TIME] / BATCH_MAX
        expected = pytest.approx(in_slots, rel=0.5) if preset == "vllm" else pytest.approx(busy, rel=0.2)
        assert settled[preset][Quantity.UTILIZATION] == expected

    def test_latencies_are_what_the_clients_saw(self, stand: Stand, settled: Settled, preset: Preset) -> None:
        seen_s = recent_s(stand, preset)
        mean_s, p95_s = sum(seen_s) / len(seen_s), seen_s[int(0.95 * len(seen_s))]
        readings = settled[preset]
        assert readings[Quantity.LATENCY_MEAN] == pytest.approx(mean_s, rel=0.15)
        # A bucket is up to twice as wide as its lower bound.
        assert readings[Quantity.LATENCY_P95] == pytest.approx(p95_s, rel=0.35)
        assert readings[Quantity.LATENCY_P99] >= readings[Quantity.LATENCY_P95]

    def test_the_queue_obeys_littles_law(self, settled: Settled, preset: Preset) -> None:
        readings = settled[preset]
        waiting = 2 * RATE_RPS * (readings[Quantity.LATENCY_MEAN] - readings[Quantity.SERVICE_TIME])
        # The queue is a gauge too: means of thirty samples are sometimes an item off.
        assert readings[Quantity.QUEUE_DEPTH] == pytest.approx(waiting, rel=0.5, abs=1.25)

    def test_sessions_are_at_most_the_slots(self, settled: Settled, preset: Preset) -> None:
        assert 0 <= settled[preset][Quantity.SESSIONS] <= 2 * SLOTS

    def test_a_pod_that_was_never_scraped_makes_sums_partial(
        self, stand: Stand, settled: Settled, source: str, preset: Preset
    ) -> None:
        readings = stand.read(source, "9")[preset]
        arrivals = readings[Quantity.ARRIVAL_RATE]
        assert isinstance(arrivals, Absence)
        assert arrivals.reason is AbsenceReason.PARTIAL
        assert "2 of 3 pods" in arrivals.detail
        assert not isinstance(readings[Quantity.SERVICE_TIME], Absence)


def test_only_the_generic_preset_has_receive_pressure(
    settled: Settled,
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
    stand: Stand, everything: dict[str, Settled], query: str, expected: float | AbsenceReason
) -> None:
    found = stand.scalar(query)
    assert (found.reason if isinstance(found, Absence) else found) == expected


def test_the_recorded_demand_is_read_with_its_gaps(stand: Stand, everything: dict[str, Settled]) -> None:
    """Before the first scrape there is a gap; then each step has the number of replicas that were up."""
    assert everything
    assert stand.history is not None
    period = Period(start_s=round(time.time()) - 600, step_s=5, count=120)
    found = stand.history.levels("sum(up{pod=~'generic-.*'})", stand.namespace, period)
    assert not isinstance(found, Absence)
    assert len(found) == 120
    assert found[-1] == 2.0
    assert found[0] is None
    apart = stand.history.levels("up{pod=~'generic-.*'}", stand.namespace, period)
    assert isinstance(apart, Absence)
    assert "aggregate them to one" in apart.detail
    nothing = stand.history.levels("nothing_of_that_name", stand.namespace, period)
    assert isinstance(nothing, Absence)
    assert nothing.reason is AbsenceReason.MISSING


@pytest.mark.quiet
def test_the_sources_agree(everything: dict[str, Settled]) -> None:
    """Rates agree within 5 %, although the sources scrape at different times. Means of gauges differ as means of thirty
    samples do; gauges of one moment cannot be compared."""
    of_a_moment = {Quantity.SESSIONS, Quantity.RX_QUEUE_PRESSURE}
    bounds = {Quantity.LATENCY_P95_FLOOR, Quantity.LATENCY_P95_CEILING}
    apart = {
        (preset, what): (value, everything["direct"][preset].get(what))
        for preset, readings in everything["prometheus"].items()
        for what, value in readings.items()
        if what not in of_a_moment | bounds and everything["direct"][preset].get(what) != within(preset, what, value)
    }
    assert apart == {}
    assert [readings.keys() for readings in everything["direct"].values()] == [
        readings.keys() for readings in everything["prometheus"].values()
    ]


def within(preset: Preset, what: Quantity, value: float) -> Any:
    """What agrees with `value`. Waiting times on a busy machine differ within half a second; rates and times of service
    do not. A queue that is mostly empty is seen in a few of thirty samples: means of them can be an item apart."""
    of_gauges = {Quantity.BATCH_SIZE, Quantity.UTILIZATION, Quantity.ARRIVAL_RATE}
    if what is Quantity.PRESENT_BATCH:
        # The mean of the few samples above zero: between one item and eight.
        return pytest.approx(value, abs=2.0)
    if what is Quantity.QUEUE_DEPTH:
        return pytest.approx(value, rel=0.5, abs=1.0)
    if preset == "vllm" and what in of_gauges:
        return pytest.approx(value, rel=0.5)
    rates = {Quantity.ARRIVAL_RATE, Quantity.COMPLETION_RATE, Quantity.SERVICE_TIME, Quantity.BATCH_SIZE}
    return pytest.approx(value, rel=0.05 if what in rates else 0.3)


def test_a_restarted_process_yields_no_nonsense_and_a_dead_one_is_missed(
    stand: Stand, everything: dict[str, Settled]
) -> None:
    replica = stand.replicas["generic-0"]
    assert stand.timers is not None

    def arrivals(source: str) -> Reading:
        return stand.read(source)["generic"][Quantity.ARRIVAL_RATE]

    stand.run(replica.end())
    for source in SOURCES:
        lost = eventually(partial(_absent_of, arrivals, source))
        assert lost.reason is AbsenceReason.PARTIAL
    stand.run(replica.serve(stand.timers))  # its counters begin again at zero

    def back(source: str) -> float | None:
        reading = arrivals(source)
        if isinstance(reading, Absence):
            return None
        assert 0 <= reading < 4 * RATE_RPS
        return reading

    for source in SOURCES:
        assert eventually(partial(back, source))


def _absent_of(arrivals: Callable[[str], Reading], source: str) -> Absence | None:
    reading = arrivals(source)
    return reading if isinstance(reading, Absence) else None
