"""The promises of `MetricSource`, kept by the Prometheus adapter when the back end misbehaves.

The back end here is a server that breaks the rules on purpose; what a real Prometheus answers is in
`tests/integration/profiler/test_prometheus.py`.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from http_upstream import serving

from optimizer.model import PipelineKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason, PlacementTarget, Quantity, Reading, SeriesLabels
from profiler.sources.access import Access
from profiler.sources.base import MetricSource, QueryKind, ReadAnswer, ReadRequest
from profiler.sources.presets import PresetFiles
from profiler.sources.prometheus import PrometheusSource

PODS = frozenset({"vad-1", "vad-2", "vad-3", "vad-4"})
UNTOLD = {
    Quantity.SERVED_BATCH,
    Quantity.PRESENT_BATCH,
    Quantity.PREFILL_TIME,
    Quantity.PREFIX_HIT_RATE,
    Quantity.WORK_VARIATION,
    Quantity.ENGINES,
}
KEY = (PipelineKey("speech/captions"), StageName("vad"), PoolName("cpu"))


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    cut: bool = False
    """Close the connection before the whole body is sent."""
    halts: bool = False
    """Send half of the body, and then nothing."""
    drip: bool = False
    """Send a byte now and then, so that no single wait is long."""


def vector(values: dict[str, str | float], *, warnings: tuple[str, ...] = (), evaluated_s: float = 0.0) -> Answer:
    """One series per pod; `pod/bound` is a bucket. It was evaluated `evaluated_s` from now."""
    result = []
    for name, value in values.items():
        pod, _, bound = name.partition("/")
        labels = {"namespace": "speech", "pod": pod} | ({"le": bound} if bound else {})
        result.append({"metric": labels, "value": [time.time() + evaluated_s, str(value)]})
    document = {"status": "success", "data": {"resultType": "vector", "result": result}}
    return Answer(body=json.dumps(document | ({"warnings": list(warnings)} if warnings else {})).encode())


def healthy(query: str) -> Answer:
    """Four pods: 10 items/s each in batches of 2 that take 20 ms; latencies of 50 to 100 ms; one item waits each."""
    if query == "scalar":
        result = {"resultType": "scalar", "result": [time.time(), "17"]}
        return Answer(body=json.dumps({"status": "success", "data": result}).encode())
    if "_bucket" in query:
        buckets = {"0.05": 0.0, "0.1": 10.0, "+Inf": 10.0}
        return vector({f"{pod}/{bound}": rate for pod in PODS for bound, rate in buckets.items()})
    metric = re.search(r"speech_\w+", query)
    assert metric is not None, query
    value = {
        "speech_stage_arrivals_total": 10.0,
        "speech_stage_items_total": 10.0,
        "speech_stage_batches_total": 5.0,
        "speech_stage_busy_seconds_total": 0.1,
        "speech_stage_capacity": 1.0,
        "speech_stage_queue_depth": 1.0,
        "speech_stage_latency_seconds_sum": 0.7,
        "speech_stage_latency_seconds_count": 10.0,
        "speech_stage_sessions": 8.0,
        "speech_stage_sessions_refused_total": 0.5,
        "speech_nic_rx_queue_pressure": 0.2,
    }[metric.group()]
    return vector(dict.fromkeys(PODS, 1.5 if "timestamp(" in query else value))


def once_scraped(query: str) -> Answer | None:
    """What a back end says of pods that one job scrapes every 15 s; None if `query` is not about scrapes."""
    if "present_over_time" in query or "label_replace(count" in query:
        return vector({})
    if "count_over_time" in query:
        return vector(dict.fromkeys(PODS, 20.0))
    return vector(dict.fromkeys(PODS, 1.0)) if "instance" in query else None


@dataclass
class BackEnd:
    """A server whose answers a test decides."""

    url: str = ""
    answer: Callable[[str], Answer] = healthy
    scrapes: Callable[[str], Answer | None] = once_scraped
    refusal: Callable[[str], Answer | None] = lambda _: None
    """Whether a request is refused because of its method."""
    queries: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def drip(self, connection: BufferedIOBase, body: bytes) -> None:
        for byte in body:
            if self.released.wait(0.05):
                return
            connection.write(bytes([byte]))

    def stall(self, query: str) -> Answer:
        self.released.wait(30)
        return healthy(query)


@pytest.fixture
def back_end() -> Iterator[BackEnd]:
    back_end = BackEnd()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve(urlsplit(self.path).query)

        def do_POST(self) -> None:
            self._serve(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def _serve(self, form: str) -> None:
            query = parse_qs(form)["query"][0]
            back_end.queries.append(query)
            back_end.methods.append(self.command)
            back_end.authorizations.append(self.headers["Authorization"])
            answer = back_end.refusal(self.command) or back_end.scrapes(query) or back_end.answer(query)
            try:
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                if answer.drip:
                    back_end.drip(self.wfile, answer.body)
                elif answer.halts:
                    self.wfile.write(answer.body[: len(answer.body) // 2])
                    back_end.released.wait(30)
                else:
                    self.wfile.write(answer.body[: len(answer.body) // 2] if answer.cut else answer.body)
            except ConnectionError:
                pass  # the client has given up, as it should

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as back_end.url:
        yield back_end
        back_end.released.set()


@pytest.fixture
def source(back_end: BackEnd) -> Iterator[MetricSource]:
    source = PrometheusSource(back_end.url)
    yield source
    source.close()


TARGET = PlacementTarget(
    pipeline=KEY[0],
    stage=KEY[1],
    placement=KEY[2],
    namespace="speech",
    pods=PODS,
    preset="generic",
    window_s=60.0,
    concurrency=1,
    batch_limit=8,
    overrides={},
)


def read(source: MetricSource, *targets: PlacementTarget, deadline_s: float = 5.0, **scalars: str) -> ReadAnswer:
    return source.read(
        ReadRequest(
            placements=targets or (TARGET,), scalars=dict[Hashable, str](scalars.items()), deadline_s=deadline_s
        )
    )


def reason(reading: Reading) -> AbsenceReason:
    assert isinstance(reading, Absence), reading
    return reading.reason


def test_every_quantity_of_a_placement_is_read(source: MetricSource) -> None:
    samples = read(source).placements[KEY]
    expected = {
        Quantity.ARRIVAL_RATE: 40.0,
        Quantity.COMPLETION_RATE: 40.0,
        Quantity.LATENCY_MEAN: 0.07,
        Quantity.LATENCY_P95: 0.0975,
        Quantity.LATENCY_P99: 0.0995,
        Quantity.SERVICE_TIME: 0.02,
        Quantity.BATCH_SIZE: 2.0,
        Quantity.UTILIZATION: 0.1,
        Quantity.QUEUE_DEPTH: 4.0,
        Quantity.SESSIONS: 32.0,
        Quantity.SESSION_REFUSALS: 2.0,
        Quantity.RX_QUEUE_PRESSURE: 0.2,
    }
    assert {quantity: samples.of(quantity) for quantity in expected} == pytest.approx(expected)
    assert reason(samples.of(Quantity.SERVED_BATCH)) is AbsenceReason.UNSUPPORTED


def test_placements_that_speak_alike_share_their_queries(source: MetricSource, back_end: BackEnd) -> None:
    read(source)
    alone = len(back_end.queries)
    back_end.queries.clear()
    read(source, *(replace(TARGET, stage=StageName(f"stage-{number}")) for number in range(50)))
    assert len(back_end.queries) == alone


def test_pods_of_other_placements_do_not_count(source: MetricSource) -> None:
    answer = read(source, replace(TARGET, pods=frozenset({"vad-1"})))
    assert answer.placements[KEY].of(Quantity.ARRIVAL_RATE) == 10.0


def test_a_scalar_is_one_number(source: MetricSource) -> None:
    assert read(source, demand="scalar").scalars["demand"] == 17.0


@pytest.mark.parametrize(("preset", "expected"), [("triton", 4.0 / 2), ("vllm", 4.0 / (2 * 8))])
def test_what_a_server_does_not_tell_of_its_size_comes_from_the_placement(
    source: MetricSource, back_end: BackEnd, preset: str, expected: float
) -> None:
    back_end.answer = lambda _: vector(dict.fromkeys(PODS, 4.0))
    answer = read(source, replace(TARGET, preset=preset, concurrency=2, batch_limit=8))
    assert answer.placements[KEY].of(Quantity.UTILIZATION) == pytest.approx(expected)


def test_an_override_replaces_the_presets_query_and_knows_the_pods(source: MetricSource, back_end: BackEnd) -> None:
    query = "scalar"
    answer = read(source, replace(TARGET, overrides={Quantity.QUEUE_DEPTH: query, Quantity.UTILIZATION: "scalar"}))
    assert answer.placements[KEY].of(Quantity.QUEUE_DEPTH) == 17.0
    back_end.queries.clear()
    back_end.answer = lambda _: healthy("scalar")
    read(source, replace(TARGET, overrides={Quantity.QUEUE_DEPTH: "max(q{$pods}[$window])"}))
    assert r'max(q{namespace=~"speech", pod=~"vad\\-1|vad\\-2|vad\\-3|vad\\-4"}[60000ms])' in back_end.queries


class TestHowPodsAreScraped:
    def test_pods_that_are_scraped_twice_count_once(self, source: MetricSource, back_end: BackEnd) -> None:
        twice = {"vad-1": 2.0, "vad-2": 2.0, "vad-3": 1.0, "vad-4": 1.0}

        def doubled(query: str) -> Answer:
            answer = healthy(query)
            if "sum by" not in query:
                return answer
            document = json.loads(answer.body)
            for series in document["data"]["result"]:
                copies = twice[series["metric"]["pod"]]
                series["value"][1] = str(copies * float(series["value"][1]))
            return Answer(body=json.dumps(document).encode())

        alone = read(source).placements[KEY]
        back_end.answer = doubled
        back_end.scrapes = lambda query: vector(dict(twice)) if "instance" in query else once_scraped(query)
        samples = read(source).placements[KEY]
        assert samples.readings == pytest.approx(alone.readings)
        assert samples.sessions == alone.sessions
        assert (samples.scrapes.duplicated, alone.scrapes.duplicated) == (("vad-1", "vad-2"), ())

    def test_a_maximum_over_copies_is_not_divided(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.scrapes = lambda query: (
            vector(dict.fromkeys(PODS, 2.0)) if "instance" in query else once_scraped(query)
        )
        assert read(source).placements[KEY].of(Quantity.RX_QUEUE_PRESSURE) == 0.2

    def test_while_it_is_not_known_how_often_a_pod_is_scraped_nothing_is_read(
        self, source: MetricSource, back_end: BackEnd
    ) -> None:
        back_end.scrapes = lambda query: Answer(status=500) if "instance" in query else once_scraped(query)
        assert reason(read(source).placements[KEY].of(Quantity.ARRIVAL_RATE)) is AbsenceReason.UNAVAILABLE

    def silent(self, back_end: BackEnd, *, seen_lately: bool) -> None:
        """Make `vad-4` silent; it had samples in the last ten minutes if `seen_lately`."""

        def without(query: str) -> Answer:
            document = json.loads(healthy(query).body)
            result = document["data"]["result"]
            document["data"]["result"] = [series for series in result if series["metric"]["pod"] != "vad-4"]
            return Answer(body=json.dumps(document).encode())

        lately = vector({"vad-4": 1.0} if seen_lately else {})
        back_end.answer = without
        back_end.scrapes = lambda query: lately if "present_over_time" in query else once_scraped(query)

    @pytest.mark.parametrize(
        ("long_ready", "seen_lately"), [(PODS, True), (frozenset[str](), False)], ids=["seen lately", "young"]
    )
    def test_a_silent_pod_is_named_and_holds_sums_back(
        self, source: MetricSource, back_end: BackEnd, long_ready: frozenset[str], seen_lately: bool
    ) -> None:
        self.silent(back_end, seen_lately=seen_lately)
        samples = read(source, replace(TARGET, long_ready=long_ready)).placements[KEY]
        absence = samples.of(Quantity.ARRIVAL_RATE)
        assert absence == Absence(reason=AbsenceReason.PARTIAL, detail="3 of 4 pods, 1 silent (vad-4)")
        assert (samples.scrapes.silent, samples.scrapes.excused) == (("vad-4",), ())

    def test_after_ten_minutes_the_others_count_for_it(self, source: MetricSource, back_end: BackEnd) -> None:
        self.silent(back_end, seen_lately=False)
        samples = read(source, replace(TARGET, long_ready=PODS)).placements[KEY]
        assert samples.of(Quantity.ARRIVAL_RATE) == 40.0
        assert samples.of(Quantity.UTILIZATION) == pytest.approx(0.1)
        assert samples.scrapes.excused == ("vad-4",)

    def test_without_most_of_the_pods_nothing_is_extrapolated(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = lambda query: vector({"vad-1": 1.0})
        samples = read(source, replace(TARGET, long_ready=PODS)).placements[KEY]
        assert reason(samples.of(Quantity.ARRIVAL_RATE)) is AbsenceReason.PARTIAL

    @pytest.mark.parametrize(("count", "interval_s"), [(300, 1.0), (20, 15.0), (19, 15.0), (10, 30.0), (5, 60.0)])
    def test_the_scrape_interval_is_observed(
        self, source: MetricSource, back_end: BackEnd, count: int, interval_s: float
    ) -> None:
        counted = vector({**dict.fromkeys(PODS, count / 2), "vad-2": float(count)})
        back_end.scrapes = lambda query: counted if "count_over_time" in query else once_scraped(query)
        assert read(source).placements[KEY].scrapes.interval_s == interval_s

    @pytest.mark.parametrize(
        ("count", "age_s", "expected"),
        [
            (20, 46.0, AbsenceReason.STALE),
            (10, 46.0, None),
            (10, 91.0, AbsenceReason.STALE),
            (60, 16.0, AbsenceReason.STALE),
        ],
        ids=["15 s", "30 s", "30 s, old", "5 s"],
    )
    def test_samples_are_stale_after_three_scrapes(
        self, source: MetricSource, back_end: BackEnd, count: int, age_s: float, expected: AbsenceReason | None
    ) -> None:
        counted = vector(dict.fromkeys(PODS, float(count)))
        back_end.scrapes = lambda query: counted if "count_over_time" in query else once_scraped(query)
        back_end.answer = lambda query: vector(dict.fromkeys(PODS, age_s)) if "timestamp(" in query else healthy(query)
        reading = read(source).placements[KEY].of(Quantity.ARRIVAL_RATE)
        assert (reason(reading) if isinstance(reading, Absence) else None) is expected

    @pytest.mark.parametrize(("found", "words"), [("none", "have no label pod"), ("exported", "label exported_pod")])
    def test_series_without_the_label_of_a_pod_are_told_with_what_to_do(
        self, source: MetricSource, back_end: BackEnd, found: str, words: str
    ) -> None:
        stranger = {"metric": {"found": found}, "value": [time.time(), "4"]}
        document = {"status": "success", "data": {"resultType": "vector", "result": [stranger]}}
        body = Answer(body=json.dumps(document).encode())
        back_end.answer = lambda _: vector({})
        back_end.scrapes = lambda query: body if "label_replace(count" in query else once_scraped(query)
        unlabelled = read(source).placements[KEY].scrapes.unlabelled
        assert words in unlabelled
        assert "metrics.labels" in unlabelled
        assert "--pod-label" in unlabelled

    def test_metrics_under_other_names_are_told_with_both_names(self, source: MetricSource, back_end: BackEnd) -> None:
        other = {"metric": {"__name__": "otel_speech_stage_items"}, "value": [time.time(), "4"]}
        document = {"status": "success", "data": {"resultType": "vector", "result": [other]}}
        body = Answer(body=json.dumps(document).encode())
        back_end.answer = lambda _: vector({})
        back_end.scrapes = lambda query: body if "label_replace(count" in query else once_scraped(query)
        unlabelled = read(source).placements[KEY].scrapes.unlabelled
        assert "no series speech_stage_" in unlabelled
        assert "there is otel_speech_stage_items" in unlabelled

    def test_series_that_vanish_without_load_are_zero_for_pods_that_are_scraped_and_for_no_others(
        self, back_end: BackEnd, tmp_path: Path
    ) -> None:
        value = "sum by (namespace, pod) (rate(requests_total{$pods}[$window]))"
        tables = [
            f"[{quantity}]\ncombine = 'sum'\nvanishes = {vanishes}\nvalue = '{value}'\n"
            for quantity, vanishes in (("arrivalRate", "true"), ("completionRate", "false"))
        ]
        (tmp_path / "mine.toml").write_text("freshness = 'up'\n" + "".join(tables))
        source = PrometheusSource(back_end.url, presets=PresetFiles(tmp_path))
        scraped: dict[str, str | float] = dict.fromkeys(PODS, 1.0)
        back_end.answer = lambda query: vector(scraped) if "timestamp(" in query else vector({})
        samples = read(source, replace(TARGET, preset="mine")).placements[KEY]
        assert samples.of(Quantity.ARRIVAL_RATE) == 0.0
        assert reason(samples.of(Quantity.COMPLETION_RATE)) is AbsenceReason.MISSING
        del scraped["vad-1"]
        samples = read(source, replace(TARGET, preset="mine")).placements[KEY]
        source.close()
        assert reason(samples.of(Quantity.ARRIVAL_RATE)) is AbsenceReason.PARTIAL

    def test_an_invalid_preset_of_a_user_is_told_where_it_is_used(self, back_end: BackEnd, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text("freshness = 3")
        source = PrometheusSource(back_end.url, presets=PresetFiles(tmp_path))
        answer = read(source, replace(TARGET, preset="mine"), replace(TARGET, placement=PoolName("gpu")))
        source.close()
        words = "mine.toml: freshness: 3: must be the name of a metric"
        assert answer.placements[KEY].of(Quantity.ARRIVAL_RATE) == Absence(
            reason=AbsenceReason.MISSING, detail=f"metrics.preset: 'mine': {words}"
        )
        assert answer.placements[KEY[0], KEY[1], PoolName("gpu")].of(Quantity.ARRIVAL_RATE) == 40.0
        assert answer.problems == (words,)

    @pytest.mark.parametrize("by_stage", [True, False])
    def test_the_labels_of_series_are_settings_and_fields_of_a_stage(self, back_end: BackEnd, by_stage: bool) -> None:
        labels = SeriesLabels(namespace="exported_namespace", pod="exported_pod", match=(("cluster", "eu-1"),))

        def exported(answer: Answer) -> Answer:
            return replace(answer, body=re.sub(rb'"(namespace|pod)"', rb'"exported_\1"', answer.body))

        back_end.answer = lambda query: exported(healthy(query))
        back_end.scrapes = lambda query: None if (found := once_scraped(query)) is None else exported(found)
        source = PrometheusSource(back_end.url, labels=SeriesLabels(pod="other") if by_stage else labels)
        overrides = {Quantity.QUEUE_DEPTH: "max(q{$pods})"}
        target = replace(TARGET, labels=labels if by_stage else None, overrides=overrides)
        samples = read(source, target).placements[KEY]
        source.close()
        assert samples.of(Quantity.ARRIVAL_RATE) == 40.0
        assert len(samples.sessions) == 4
        selecting = [query for query in back_end.queries if "label_replace(count" not in query]
        assert all('exported_namespace=~"speech", ' in query and 'cluster="eu-1"' in query for query in selecting)
        assert not [query for query in selecting if re.search(r"(?<!exported_)(namespace|\bpod)\b", query)]
        assert (
            r'max(q{exported_namespace=~"speech", exported_pod=~"vad\\-1|vad\\-2|vad\\-3|vad\\-4", cluster="eu-1"})'
            in back_end.queries
        )


def fleet(query: str) -> Answer:
    """A back end with one series for each `streams{pipeline="N"}`, of value N; 503 is the only wrong pipeline."""
    parts = re.findall(r'label_replace\((.*?), "sluice_query", "(\d+)", "", ""\)', query) or [(query, "")]
    result = []
    for own, number in parts:
        found = re.fullmatch(r'sum\(streams\{pipeline="(\d+)"\}\)', own)
        if found is None:
            refusal = {"status": "error", "errorType": "bad_data", "error": f"no such function in {own}"}
            return Answer(status=400, body=json.dumps(refusal).encode())
        labels = {"sluice_query": number} if number else {}
        result.append({"metric": labels, "value": [time.time(), found[1]]})
    return Answer(body=json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode())


def demands(count: int) -> dict[Hashable, str]:
    return {f"p{number}": f'sum(streams{{pipeline="{number}"}})' for number in range(count)}


def read_demands(source: MetricSource, queries: Mapping[Hashable, str]) -> ReadAnswer:
    return source.read(ReadRequest(placements=(), scalars=queries, deadline_s=30.0))


class TestManyPipelines:
    def test_thousands_of_demands_are_read_in_a_few_requests(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = fleet
        answer = read_demands(source, demands(2000))
        assert answer.scalars == {f"p{number}": float(number) for number in range(2000)}
        assert len(back_end.queries) <= 20

    def test_one_wrong_query_costs_no_other_its_answer(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = fleet
        for _ in range(2):
            back_end.queries.clear()
            answer = read_demands(source, demands(100) | {"wrong": "sum(wrong)"})
            assert reason(answer.scalars["wrong"]) is AbsenceReason.UNAVAILABLE
            assert [answer.scalars[f"p{number}"] for number in range(100)] == [float(n) for n in range(100)]
            assert answer.problems == ("Prometheus: no such function in sum(wrong), in: sum(wrong)",)
        assert len(back_end.queries) == 2  # it is known by now, and sent alone

    def test_a_query_that_reaches_beyond_its_place_reads_no_other_demand(
        self, source: MetricSource, back_end: BackEnd
    ) -> None:
        forged = 'x, "sluice_query", "0", "", "") or label_replace(y'
        back_end.answer = fleet
        answer = read_demands(source, demands(2) | {"forged": forged})
        assert [answer.scalars[name] for name in ("p0", "p1")] == [0.0, 1.0]
        assert forged in back_end.queries

    def test_long_queries_are_sent_by_post_and_others_by_get(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = fleet
        read_demands(source, demands(2))
        read_demands(source, demands(200))
        assert back_end.methods == ["GET", "POST"]
        assert max(map(len, back_end.queries)) > 2000

    @pytest.mark.parametrize("status", [403, 405])
    def test_where_post_is_refused_all_is_read_by_get(
        self, source: MetricSource, back_end: BackEnd, status: int
    ) -> None:
        back_end.answer = fleet
        back_end.refusal = lambda method: Answer(status=status) if method == "POST" else None
        for _ in range(2):
            answer = read_demands(source, demands(200))
            assert answer.scalars == {f"p{number}": float(number) for number in range(200)}
        assert back_end.methods.count("POST") == 1
        assert (
            max(len(query) for query, method in zip(back_end.queries, back_end.methods, strict=True) if method == "GET")
            <= 2000
        )

    def test_a_body_that_is_too_large_is_sent_in_parts(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = lambda query: Answer(status=413) if len(query) > 4000 else fleet(query)
        answer = read_demands(source, demands(200))
        assert answer.scalars == {f"p{number}": float(number) for number in range(200)}


class TestABackEndTooSlowForAllQueries:
    """It answers the first requests of each read, and no other until the read is over."""

    @pytest.fixture
    def few(self, back_end: BackEnd) -> Callable[[MetricSource], ReadAnswer]:
        def read_few(source: MetricSource) -> ReadAnswer:
            back_end.queries.clear()
            first = threading.Barrier(8)  # as many as are sent at the same time

            def answer(query: str) -> Answer:
                if back_end.queries.index(query) < first.parties:
                    first.wait(5)
                else:
                    back_end.released.wait(5)
                return once_scraped(query) or healthy(query)

            back_end.answer, back_end.scrapes = answer, lambda _: None
            back_end.released.clear()
            found = source.read(ReadRequest(placements=(TARGET,), scalars={"demand": "scalar"}, deadline_s=1.5))
            back_end.released.set()
            return found

        return read_few

    def test_freshness_demand_and_throughput_are_read(
        self, source: MetricSource, few: Callable[[MetricSource], ReadAnswer]
    ) -> None:
        answer = few(source)
        samples = answer.placements[KEY]
        assert answer.scalars["demand"] == 17.0
        assert [samples.of(quantity) for quantity in (Quantity.ARRIVAL_RATE, Quantity.COMPLETION_RATE)] == [40.0, 40.0]
        assert reason(samples.of(Quantity.QUEUE_DEPTH)) is AbsenceReason.UNAVAILABLE
        shares = answer.unanswered
        assert shares[QueryKind.FRESHNESS] == shares[QueryKind.DEMAND] == shares[QueryKind.THROUGHPUT] == 0.0
        assert shares[QueryKind.OTHER] > 0

    def test_what_was_not_answered_has_its_turn(
        self, source: MetricSource, few: Callable[[MetricSource], ReadAnswer]
    ) -> None:
        known: set[Quantity] = set()
        exported = set(Quantity) - UNTOLD
        for _ in range(20):  # in the first few, unless late requests of one read take the place of others in the next
            readings = few(source).placements[KEY].readings
            known |= {quantity for quantity, reading in readings.items() if not isinstance(reading, Absence)}
            if known == exported:
                break
        assert known == exported


class TestAFailingBackEnd:
    def all_absent(self, answer: ReadAnswer, expected: AbsenceReason) -> None:
        readings = [reading for quantity, reading in answer.placements[KEY].readings.items()]
        readings = [reading for reading in readings if reason(reading) is not AbsenceReason.UNSUPPORTED]
        assert {reason(reading) for reading in [*readings, *answer.scalars.values()]} == {expected}

    @pytest.mark.parametrize(
        "broken",
        [
            Answer(status=503, body=b"upstream"),
            Answer(status=429),
            Answer(status=401, body=b"who are you"),
            Answer(status=302),
            Answer(body=b"<html>please log in</html>", content_type="text/html"),
            Answer(body=b'{"status":"success","data":{"resu'),
            Answer(body=b'{"status":"success","data":{"result":[]}}', cut=True),
            Answer(body=b"[]"),
            Answer(body=b'{"status":"error","error":"internal"}'),
            Answer(body=b""),
        ],
        ids=["503", "429", "401", "302", "login page", "bad json", "cut", "other json", "error with 200", "empty"],
    )
    def test_what_is_no_answer_is_unavailable_and_told_once(
        self, source: MetricSource, back_end: BackEnd, broken: Answer
    ) -> None:
        back_end.answer = lambda _: broken
        answer = read(source, demand="scalar")
        self.all_absent(answer, AbsenceReason.UNAVAILABLE)
        assert len(answer.problems) == 1
        assert "queries)" in answer.problems[0]

    def test_a_path_that_does_not_exist_points_to_the_url(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = lambda _: Answer(status=404, body=b"404 page not found")
        (problem,) = read(source, demand="scalar").problems
        assert "HTTP status 404: check --prometheus-url" in problem

    def test_one_that_is_not_there_is_unavailable(self) -> None:
        source = PrometheusSource("http://127.0.0.1:1")
        answer = read(source, demand="scalar")
        source.close()
        self.all_absent(answer, AbsenceReason.UNAVAILABLE)
        assert len(answer.problems) == 1
        assert "refused" in answer.problems[0]

    def test_one_that_stalls_is_not_waited_for_beyond_the_deadline(
        self, source: MetricSource, back_end: BackEnd
    ) -> None:
        back_end.answer = back_end.stall
        answer = read(source, demand="scalar", deadline_s=0.3)
        assert not back_end.released.is_set()
        self.all_absent(answer, AbsenceReason.UNAVAILABLE)

    def test_one_that_drips_is_not_waited_for_beyond_the_deadline(
        self, source: MetricSource, back_end: BackEnd
    ) -> None:
        back_end.answer = lambda query: replace(healthy(query), drip=True)
        answer = read(source, demand="scalar", deadline_s=0.3)
        self.all_absent(answer, AbsenceReason.UNAVAILABLE)

    def test_one_that_stops_in_the_middle_of_its_answer_is_told_of_without_its_address(
        self, source: MetricSource, back_end: BackEnd
    ) -> None:
        back_end.answer = lambda query: replace(healthy(query), halts=True)
        answer = read(source, demand="scalar", deadline_s=0.5)
        self.all_absent(answer, AbsenceReason.UNAVAILABLE)
        assert not [problem for problem in answer.problems if "127.0.0.1" in problem]

    def test_a_partial_answer_is_partial_though_it_looks_whole(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = lambda _: vector(dict.fromkeys(PODS, 1.0), warnings=("store 3 did not answer",))
        answer = read(source)
        self.all_absent(answer, AbsenceReason.PARTIAL)
        assert "store 3 did not answer" in answer.problems[0]

    def test_an_answer_without_an_end_is_not_kept(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = lambda _: Answer(body=b" " * (65 << 20))
        answer = read(source, replace(TARGET, pods=frozenset()), demand="scalar", deadline_s=30.0)
        assert reason(answer.scalars["demand"]) is AbsenceReason.UNAVAILABLE
        assert answer.problems == ("Prometheus: more than 64 KiB in answer to one query",)

    @pytest.mark.parametrize(("evaluated_s", "words"), [(-300.0, "60 s before"), (300.0, "60 s after")])
    def test_an_answer_of_another_time_is_stale(
        self, source: MetricSource, back_end: BackEnd, evaluated_s: float, words: str
    ) -> None:
        back_end.answer = lambda _: vector(dict.fromkeys(PODS, 1.0), evaluated_s=evaluated_s)
        answer = read(source, demand="x")
        self.all_absent(answer, AbsenceReason.STALE)
        assert words in answer.problems[0]

    def test_one_hiccup_is_asked_again(self, source: MetricSource, back_end: BackEnd) -> None:
        seen: set[str] = set()

        def hiccup(query: str) -> Answer:
            first = query not in seen
            seen.add(query)
            return Answer(status=503) if first else healthy(query)

        back_end.answer = hiccup
        answer = read(source)
        assert answer.placements[KEY].of(Quantity.ARRIVAL_RATE) == 40.0
        assert answer.problems == ()

    def test_a_query_is_not_asked_for_ever(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = lambda _: Answer(status=503)
        read(source, replace(TARGET, pods=frozenset()), demand="scalar")
        assert len(back_end.queries) == 2

    def test_one_failing_query_costs_only_what_needs_it(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = lambda query: Answer(status=500) if "avg_over_time" in query else healthy(query)
        samples = read(source).placements[KEY]
        assert reason(samples.of(Quantity.QUEUE_DEPTH)) is AbsenceReason.UNAVAILABLE
        assert samples.of(Quantity.ARRIVAL_RATE) == 40.0

    def test_a_query_that_cannot_be_parsed_is_quoted_and_not_repeated(
        self, source: MetricSource, back_end: BackEnd
    ) -> None:
        refusal = b'{"status":"error","errorType":"bad_data","error":"1:4: parse error"}'
        back_end.answer = lambda query: Answer(status=400, body=refusal) if query == "sum(" else healthy(query)
        answer = read(source, demand="sum(")
        assert reason(answer.scalars["demand"]) is AbsenceReason.UNAVAILABLE
        assert answer.problems == ("Prometheus: 1:4: parse error, in: sum(",)
        assert back_end.queries.count("sum(") == 1


class TestWhatIsNotANumber:
    def test_no_series_is_missing(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = lambda _: vector({})
        answer = read(source, demand="x")
        readings = [answer.placements[KEY].of(quantity) for quantity in Quantity if quantity not in UNTOLD]
        assert {reason(reading) for reading in [*readings, answer.scalars["demand"]]} == {AbsenceReason.MISSING}

    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "text"])
    def test_nan_and_infinity_are_named(self, source: MetricSource, back_end: BackEnd, value: str) -> None:
        back_end.answer = lambda query: healthy(query) if "timestamp(" in query else vector(dict.fromkeys(PODS, value))
        answer = read(source)
        assert reason(answer.placements[KEY].of(Quantity.ARRIVAL_RATE)) is AbsenceReason.NOT_A_NUMBER
        assert reason(answer.placements[KEY].of(Quantity.UTILIZATION)) is AbsenceReason.NOT_A_NUMBER
        back_end.answer = lambda _: vector({"any": value})
        assert reason(read(source, demand="x").scalars["demand"]) is AbsenceReason.NOT_A_NUMBER

    def test_old_samples_are_stale_whatever_they_say(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = lambda query: vector(dict.fromkeys(PODS, 46.0)) if "timestamp(" in query else healthy(query)
        samples = read(source).placements[KEY]
        assert reason(samples.of(Quantity.ARRIVAL_RATE)) is AbsenceReason.STALE
        assert reason(samples.of(Quantity.LATENCY_P95)) is AbsenceReason.STALE

    def test_a_silent_pod_makes_sums_partial_and_leaves_means(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = lambda query: (
            vector({"vad-1": 1.0, "vad-2": 1.0}) if "timestamp(" in query else healthy(query)
        )
        samples = read(source).placements[KEY]
        for quantity in (Quantity.ARRIVAL_RATE, Quantity.COMPLETION_RATE, Quantity.QUEUE_DEPTH, Quantity.SESSIONS):
            assert reason(samples.of(quantity)) is AbsenceReason.PARTIAL
        assert samples.of(Quantity.SERVICE_TIME) == pytest.approx(0.02)
        assert samples.of(Quantity.LATENCY_P95) == pytest.approx(0.0975)

    def test_no_items_are_no_traffic_and_no_load(self, source: MetricSource, back_end: BackEnd) -> None:
        def idle(query: str) -> Answer:
            answer = healthy(query)
            return answer if "rate(" not in query else Answer(body=re.sub(rb'"\d+\.\d+"\]', b'"0.0"]', answer.body))

        back_end.answer = idle
        samples = read(source).placements[KEY]
        assert samples.of(Quantity.ARRIVAL_RATE) == 0.0
        assert samples.of(Quantity.UTILIZATION) == 0.0
        for quantity in (Quantity.SERVICE_TIME, Quantity.BATCH_SIZE, Quantity.LATENCY_MEAN, Quantity.LATENCY_P95):
            assert reason(samples.of(quantity)) is AbsenceReason.NO_TRAFFIC

    def test_several_series_are_no_scalar(self, source: MetricSource, back_end: BackEnd) -> None:
        back_end.answer = lambda _: vector({"a": 1.0, "b": 2.0})
        assert reason(read(source, demand="x").scalars["demand"]) is AbsenceReason.NOT_A_NUMBER

    def test_a_placement_without_pods_that_can_have_samples_is_too_new_and_asks_nothing(
        self, source: MetricSource, back_end: BackEnd
    ) -> None:
        answer = read(source, replace(TARGET, pods=frozenset()))
        assert {reason(reading) for reading in answer.placements[KEY].readings.values()} == {AbsenceReason.TOO_NEW}
        assert back_end.queries == []

    def test_an_unknown_preset_is_missing_and_named(self, source: MetricSource) -> None:
        reading = read(source, replace(TARGET, preset="tritton")).placements[KEY].of(Quantity.ARRIVAL_RATE)
        assert reading == Absence(
            reason=AbsenceReason.MISSING,
            detail="metrics.preset: 'tritton': must be one of generic, ray-serve, triton, vllm",
        )


def test_the_token_is_read_again_for_every_query(back_end: BackEnd, tmp_path: Path) -> None:
    token = tmp_path / "token"
    source = PrometheusSource(back_end.url, Access(token_file=token))
    answer = read(source, replace(TARGET, pods=frozenset()), demand="scalar")
    assert "No such file" in answer.problems[0]
    for value in ("first", "second"):
        token.write_text(f"{value}\n")
        read(source, replace(TARGET, pods=frozenset()), demand="scalar")
    source.close()
    assert back_end.authorizations == ["Bearer first", "Bearer second"]
