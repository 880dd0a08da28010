"""The promises of `MetricSource`, kept by the direct scrape when the pods misbehave.

The pods here are servers that break the rules on purpose; that it says of real workers what a real Prometheus says is
in `tests/integration/profiler/test_direct.py`.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

import pytest

from optimizer.model import PipelineKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason, MetricsTier, PlacementTarget, PodEndpoint, Quantity, Reading
from profiler.sources.base import ReadAnswer, ReadRequest
from profiler.sources.direct import DirectSource
from profiler.sources.scraper import MOST_BYTES

T = TypeVar("T")
KEY = (PipelineKey("speech/captions"), StageName("vad"), PoolName("cpu"))
CADENCE_S = 0.1
WINDOW_S = 3.0
DEADLINE_S = 20.0


@dataclass
class Pod:
    """A server on a port of its own whose counters a test drives, and which can be told to misbehave.

    `served` grows with every visit by `per_visit`, so that rates do not depend on how fast this machine is.
    """

    per_visit: float = 10.0
    served: float = 0.0
    gauges: dict[str, float] = field(default_factory=lambda: {"speech_stage_queue_depth": 1.0})
    more: str = ""
    answer: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False
    """Answers in its own way, and says whether it did."""
    visits: int = 0
    requests: list[Mapping[str, str]] = field(default_factory=list)
    port: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def text(self) -> str:
        self.served += self.per_visit
        lines = [
            *(f"{name} {value}" for name, value in self.gauges.items()),
            f'speech_stage_arrivals_total{{stage="vad"}} {self.served}',
            f'speech_stage_items_total{{stage="vad"}} {self.served}',
            f"speech_stage_batches_total {self.served / 2}",
            f"speech_stage_busy_seconds_total {self.served / 100}",
            'speech_stage_latency_seconds_bucket{le="0.05"} 0',
            f'speech_stage_latency_seconds_bucket{{le="0.1"}} {self.served}',
            f'speech_stage_latency_seconds_bucket{{le="+Inf"}} {self.served}',
            "speech_stage_capacity 1",
            self.more,
        ]
        return "\n".join(lines) + "\n"

    @contextlib.contextmanager
    def serving(self) -> Iterator["Pod"]:
        pod = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if pod.released.is_set():  # its server has ended; connections outlive it
                    self.close_connection = True
                    return
                pod.requests.append(dict(self.headers))
                with contextlib.suppress(ConnectionError):  # the client has given up, as it should
                    if not pod.answer(self):
                        send(self, pod.text().encode())
                pod.visits += 1

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle()

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        server.daemon_threads = True
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            server.shutdown()
            thread.join()
            server.server_close()


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> bool:
    handler.send_response(status)
    for name, value in {"Content_Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)
    return True


@pytest.fixture
def pods() -> Iterator[dict[str, Pod]]:
    with contextlib.ExitStack() as running:
        yield {f"vad-{index}": running.enter_context(Pod().serving()) for index in range(4)}


@pytest.fixture
def source() -> Iterator[DirectSource]:
    source = DirectSource(cadence_s=CADENCE_S)
    yield source
    source.close()


def a_target(pods: Mapping[str, Pod]) -> PlacementTarget:
    return PlacementTarget(
        pipeline=KEY[0],
        stage=KEY[1],
        placement=KEY[2],
        namespace="speech",
        pods=frozenset(pods),
        preset="generic",
        window_s=WINDOW_S,
        concurrency=1,
        batch_limit=8,
        overrides={},
        endpoints={name: PodEndpoint(host="127.0.0.1", port=pod.port) for name, pod in pods.items()},
    )


def read(source: DirectSource, *targets: PlacementTarget, **scalars: str) -> ReadAnswer:
    request = ReadRequest(placements=targets, scalars=dict[Hashable, str](scalars.items()), deadline_s=1.0)
    began_s = time.monotonic()
    answer = source.read(request)
    assert time.monotonic() - began_s < 1.5
    return answer


def eventually(look: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := look()):
        assert time.monotonic() < deadline, "not within the deadline"
        time.sleep(0.02)
    return found


def whole(source: DirectSource, *targets: PlacementTarget) -> ReadAnswer:
    """The first answer in which the first target's arrivals are a number."""

    def look() -> ReadAnswer | None:
        answer = read(source, *targets)
        return answer if isinstance(answer.placements[KEY].of(Quantity.ARRIVAL_RATE), float) else None

    return eventually(look)


def becomes(source: DirectSource, target: PlacementTarget, quantity: Quantity, reason: AbsenceReason) -> Absence:
    """The reading of `quantity`, as soon as it is absent for that reason."""

    def look() -> Absence | None:
        reading = read(source, target).placements[KEY].of(quantity)
        return reading if isinstance(reading, Absence) and reading.reason is reason else None

    return eventually(look)


def value(reading: Reading) -> float:
    assert isinstance(reading, float), reading
    return reading


def test_every_quantity_of_a_placement_is_read(source: DirectSource, pods: dict[str, Pod]) -> None:
    answer = whole(source, a_target(pods))
    samples = answer.placements[KEY]
    assert value(samples.of(Quantity.ARRIVAL_RATE)) > 0
    assert value(samples.of(Quantity.SERVICE_TIME)) == pytest.approx(0.02)
    assert value(samples.of(Quantity.BATCH_SIZE)) == pytest.approx(2.0)
    assert value(samples.of(Quantity.LATENCY_P95)) == pytest.approx(0.0975)
    assert value(samples.of(Quantity.QUEUE_DEPTH)) == 4.0
    assert samples.of(Quantity.SERVED_BATCH) == Absence(
        reason=AbsenceReason.UNSUPPORTED, detail="generic does not export it"
    )
    assert answer.origins[KEY[0]].tier is MetricsTier.DIRECT_SCRAPE
    assert answer.problems == ()


def test_the_first_read_looks_around_so_that_a_restart_is_not_blind(pods: dict[str, Pod]) -> None:
    source = DirectSource(cadence_s=60.0)
    request = ReadRequest(placements=(a_target(pods),), scalars={}, deadline_s=DEADLINE_S)
    assert value(source.read(request).placements[KEY].of(Quantity.ARRIVAL_RATE)) > 0
    source.close()


def test_the_first_read_does_not_wait_for_what_does_not_come(pods: dict[str, Pod]) -> None:
    pods["vad-0"].answer = lambda handler: stall(handler, pods["vad-0"])
    source = DirectSource(cadence_s=60.0)
    answer = read(source, a_target(pods))
    source.close()
    assert isinstance(answer.placements[KEY].of(Quantity.ARRIVAL_RATE), Absence)


def test_a_silent_pod_makes_sums_partial_and_leaves_means(source: DirectSource, pods: dict[str, Pod]) -> None:
    target = a_target(pods)
    whole(source, target)
    pods["vad-0"].answer = lambda handler: send(handler, b"", status=503)
    absence = becomes(source, target, Quantity.ARRIVAL_RATE, AbsenceReason.PARTIAL)
    assert absence.detail == "3 of 4 pods, 1 stale (vad-0)"
    samples = read(source, target).placements[KEY]
    assert value(samples.of(Quantity.SERVICE_TIME)) == pytest.approx(0.02)
    assert read(source, target).problems == ("direct scrape: HTTP status 503",)


def stall(handler: BaseHTTPRequestHandler, pod: Pod) -> bool:
    pod.released.wait(30)
    return send(handler, b"")


def drip(handler: BaseHTTPRequestHandler, pod: Pod) -> bool:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    for _ in range(1_000_000):
        if pod.released.wait(0.02):
            break
        handler.wfile.write(b"#")
    return True


def flood(handler: BaseHTTPRequestHandler, pod: Pod) -> bool:
    """Promise little and send much, chunk by chunk."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    chunk = b"# nothing\n" * 10_000
    for _ in range(4 * MOST_BYTES // len(chunk)):
        handler.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
    return True


MANY = "".join(f'speech_stage_capacity{{a="{index}"}} 1\n' for index in range(10_001)).encode()
LONG = f'speech_stage_capacity{{a="{"x" * 5000}"}} 1\n'.encode()
BROKEN: Mapping[str, tuple[Callable[[BaseHTTPRequestHandler, Pod], bool], str]] = {
    "404": (lambda handler, _: send(handler, b"", status=404), "HTTP status 404"),
    "redirect": (lambda handler, _: send(handler, b"", status=302, Location="/metrics"), "HTTP status 302"),
    "stall": (stall, "no answer within"),
    "drip": (drip, "no answer within"),
    "flood": (flood, "more than 8 MiB"),
    "compressed": (lambda handler, _: send(handler, b"\x1f\x8b", Content_Encoding="gzip"), "compressed"),
    "no text": (lambda handler, _: send(handler, b"\xff\xfe\n"), "not UTF-8"),
    "cut": (lambda handler, _: send(handler, b"speech_stage_capacity 1\nspeech_sta"), "cut off"),
    "cut body": (lambda handler, _: send(handler, b"a 1\n", Content_Length="100"), "ClientPayloadError"),
    "nonsense": (lambda handler, _: send(handler, b"speech_stage_capacity one\n"), "cannot be parsed"),
    "many series": (lambda handler, _: send(handler, MANY), "more than 10000 series"),
    "long labels": (lambda handler, _: send(handler, LONG), "more than 4096 bytes of labels"),
}


@pytest.mark.parametrize(("answer", "words"), BROKEN.values(), ids=BROKEN)
def test_a_pod_that_misbehaves_costs_only_its_own_numbers_and_is_named_by_cause(
    source: DirectSource,
    pods: dict[str, Pod],
    answer: Callable[[BaseHTTPRequestHandler, Pod], bool],
    words: str,
) -> None:
    bad = pods["vad-0"]

    def misbehave(handler: BaseHTTPRequestHandler) -> bool:
        handler.close_connection = True
        return answer(handler, bad)

    bad.answer = misbehave
    becomes(source, a_target(pods), Quantity.ARRIVAL_RATE, AbsenceReason.PARTIAL)
    problems = eventually(lambda: [each for each in read(source, a_target(pods)).problems if words in each])
    assert all(each.startswith("direct scrape: ") for each in problems)

    def of_the_others() -> bool:
        return read(source, a_target(pods)).placements[KEY].of(Quantity.SERVICE_TIME) == pytest.approx(0.02)

    eventually(of_the_others)


def test_a_pod_that_shows_more_than_is_kept_of_it_costs_only_its_own_numbers(
    monkeypatch: pytest.MonkeyPatch, source: DirectSource, pods: dict[str, Pod]
) -> None:
    monkeypatch.setattr("profiler.sources.history.MOST_SAMPLES", 600)
    pods["vad-0"].more = "\n".join(f'speech_stage_capacity{{a="{index}"}} 1' for index in range(200))
    words = "samples within 5 s: the oldest are not kept"
    # First: three of four answer at the start too, before there is more than is kept.
    eventually(lambda: [each for each in read(source, a_target(pods)).problems if words in each])
    absence = becomes(source, a_target(pods), Quantity.ARRIVAL_RATE, AbsenceReason.PARTIAL)
    assert absence.detail.startswith("3 of 4 pods")

    def of_the_others() -> bool:
        return read(source, a_target(pods)).placements[KEY].of(Quantity.SERVICE_TIME) == pytest.approx(0.02)

    eventually(of_the_others)


def test_pods_that_are_gone_become_stale(source: DirectSource) -> None:
    with Pod().serving() as pod:
        target = a_target({"vad-0": pod})
        whole(source, target)
    absence = becomes(source, target, Quantity.ARRIVAL_RATE, AbsenceReason.STALE)
    assert absence.detail == "0 of 1 pods, 1 stale (vad-0)"


def test_a_pod_without_a_known_port_is_reported(source: DirectSource, pods: dict[str, Pod]) -> None:
    target = a_target(pods)
    target = replace(target, endpoints={**target.endpoints, "vad-0": PodEndpoint(host="127.0.0.1")})
    (problem,) = read(source, target).problems
    assert "prometheus.io/port" in problem


def test_a_counter_that_restarts_yields_no_negative_and_no_huge_rate(source: DirectSource) -> None:
    with Pod(served=1e9).serving() as pod:
        target = a_target({"vad-0": pod})
        usual = value(whole(source, target).placements[KEY].of(Quantity.ARRIVAL_RATE))
        pod.served = 0.0
        visits = pod.visits
        rates = []
        while pod.visits < visits + 20:
            reading = read(source, target).placements[KEY].of(Quantity.ARRIVAL_RATE)
            rates += [reading] if isinstance(reading, float) else []
            time.sleep(0.01)
        assert rates
        assert all(0 <= rate < 1e5 for rate in [usual, *rates])


def test_an_address_that_another_pod_has_now_yields_no_rate_across_the_two(source: DirectSource) -> None:
    with Pod(served=0.0).serving() as pod:
        whole(source, a_target({"old": pod}))
        pod.served = 1e9
        target = a_target({"new": pod})
        assert value(whole(source, target).placements[KEY].of(Quantity.ARRIVAL_RATE)) < 1e5


def test_a_name_that_is_at_another_address_now_yields_no_rate_across_the_two(source: DirectSource) -> None:
    with Pod(served=0.0).serving() as before, Pod(served=1e9).serving() as after:
        whole(source, a_target({"vad-0": before}))
        answer = read(source, a_target({"vad-0": after}))
        assert isinstance(answer.placements[KEY].of(Quantity.ARRIVAL_RATE), Absence)
        assert value(whole(source, a_target({"vad-0": after})).placements[KEY].of(Quantity.ARRIVAL_RATE)) < 1e5


def test_another_process_behind_one_address_is_known_by_when_it_started(source: DirectSource) -> None:
    with Pod(more="process_start_time_seconds 1000").serving() as pod:
        target = a_target({"vad-0": pod})
        whole(source, target)
        pod.served, pod.more = 1e9, "process_start_time_seconds 2000"
        visits = pod.visits
        while pod.visits < visits + 5:
            reading = read(source, target).placements[KEY].of(Quantity.ARRIVAL_RATE)
            assert isinstance(reading, Absence) or reading < 1e5
            time.sleep(0.01)


def test_a_pod_that_goes_is_not_visited_any_more(source: DirectSource, pods: dict[str, Pod]) -> None:
    whole(source, a_target(pods))
    left = {name: pod for name, pod in pods.items() if name != "vad-0"}
    whole(source, a_target(left))
    visits = [pods["vad-0"].visits, pods["vad-1"].visits]
    eventually(lambda: pods["vad-1"].visits > visits[1] + 5)
    assert pods["vad-0"].visits <= visits[0] + 1  # one may have been under way


def test_nan_is_named_and_no_items_are_no_traffic(source: DirectSource) -> None:
    with Pod(per_visit=0.0).serving() as pod:
        target = a_target({"vad-0": pod})
        samples = whole(source, target).placements[KEY]
        assert samples.of(Quantity.ARRIVAL_RATE) == 0.0
        assert samples.of(Quantity.SERVICE_TIME) == Absence(reason=AbsenceReason.NO_TRAFFIC)
        assert samples.of(Quantity.LATENCY_P95) == Absence(reason=AbsenceReason.NO_TRAFFIC)
        pod.gauges["speech_stage_queue_depth"] = float("nan")
        becomes(source, target, Quantity.QUEUE_DEPTH, AbsenceReason.NOT_A_NUMBER)


def test_nothing_but_what_was_asked_for_is_sent(source: DirectSource) -> None:
    with Pod().serving() as pod:
        whole(source, a_target({"vad-0": pod}))
        assert {"Authorization", "Cookie"} & pod.requests[0].keys() == set()
        assert pod.requests[0]["Accept-Encoding"] == "identity"


def test_an_unknown_preset_is_unsupported_and_named(source: DirectSource, pods: dict[str, Pod]) -> None:
    answer = read(source, replace(a_target(pods), preset="tritton"))
    assert answer.placements[KEY].of(Quantity.ARRIVAL_RATE) == Absence(
        reason=AbsenceReason.MISSING,
        detail="metrics.preset: 'tritton': must be one of generic, ray-serve, triton, vllm",
    )


class TestTheUsersOwnQueries:
    """They are answered from the further endpoints, never from the pods."""

    @pytest.fixture
    def ingresses(self) -> Iterator[list[Pod]]:
        with contextlib.ExitStack() as running:
            yield [
                running.enter_context(
                    Pod(gauges={'streams{namespace="speech"}': 20.0, 'streams{namespace="other"}': 5.0}).serving()
                )
                for _ in range(2)
            ]

    @pytest.fixture
    def source(self, ingresses: list[Pod]) -> Iterator[DirectSource]:
        urls = [f"http://127.0.0.1:{ingress.port}/metrics" for ingress in ingresses]
        source = DirectSource(cadence_s=CADENCE_S, endpoints=urls)
        yield source
        source.close()

    def scalar(self, source: DirectSource, query: str, *targets: PlacementTarget) -> Reading:
        return read(source, *targets, q=query).scalars["q"]

    def test_what_is_offered_is_the_sum_over_all_of_them(self, source: DirectSource) -> None:
        query = 'sum(streams{namespace="speech"})'
        eventually(lambda: self.scalar(source, query) == 40.0)
        reading = self.scalar(source, 'streams{namespace="speech"}')
        assert isinstance(reading, Absence)
        assert reading.reason is AbsenceReason.NOT_A_NUMBER
        assert "2 series instead of one" in reading.detail

    def test_one_of_them_that_does_not_answer_makes_the_whole_partial(
        self, source: DirectSource, ingresses: list[Pod]
    ) -> None:
        eventually(lambda: self.scalar(source, "sum(streams)") == 50.0)
        ingresses[0].answer = lambda handler: send(handler, b"", status=500)

        def partial() -> bool:
            reading = self.scalar(source, "sum(streams)")
            return isinstance(reading, Absence) and reading.reason is AbsenceReason.PARTIAL

        eventually(partial)
        ingresses[1].answer = lambda handler: send(handler, b"", status=500)

        def unavailable() -> bool:
            reading = self.scalar(source, "sum(streams)")
            return isinstance(reading, Absence) and reading.reason is AbsenceReason.UNAVAILABLE

        eventually(unavailable)

    def test_a_query_that_looks_back_too_far_leaves_other_queries_their_results(
        self, monkeypatch: pytest.MonkeyPatch, source: DirectSource, ingresses: list[Pod]
    ) -> None:
        monkeypatch.setattr("profiler.sources.history.MOST_SAMPLES", 20)
        long = "sum(max_over_time(streams[60s]))"

        def refused() -> bool:
            answer = read(source, long=long, short="sum(streams)")
            reading = answer.scalars["long"]
            too_far = isinstance(reading, Absence) and "looks back further" in reading.detail
            return too_far and answer.scalars["short"] == 50.0

        eventually(refused)

    def test_the_pods_are_never_added_up_to_what_is_offered(self, source: DirectSource, pods: dict[str, Pod]) -> None:
        target = a_target(pods)
        whole(source, target)
        reading = self.scalar(source, "sum(speech_stage_queue_depth)", target)
        assert reading == Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")

    @pytest.mark.parametrize("query", ["sum(streams) offset 5m", "topk(1, streams)", "sum(", "a / on(b) c"])
    def test_what_takes_a_prometheus_is_unsupported_and_named(self, source: DirectSource, query: str) -> None:
        eventually(lambda: self.scalar(source, "sum(streams)") == 50.0)
        reading = self.scalar(source, query)
        assert isinstance(reading, Absence)
        assert reading.reason is AbsenceReason.UNSUPPORTED
        assert reading.detail.endswith(f"in: {query}")

    def test_without_such_endpoints_they_are_unsupported(self) -> None:
        source = DirectSource(cadence_s=CADENCE_S)
        reading = self.scalar(source, "sum(streams)")
        source.close()
        assert isinstance(reading, Absence)
        assert reading.reason is AbsenceReason.UNSUPPORTED
        assert "--scrape-endpoints" in reading.detail
