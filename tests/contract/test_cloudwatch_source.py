"""The promises of `MetricSource`, kept by the CloudWatch adapter: what `test_metric_source.py` holds Prometheus to.

The back end is a stand-in with the rules of GetMetricData, held against moto's server where that has them: percentiles
and metric math it has not.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aws_answers import StubbedAws
from botocore.exceptions import ClientError, ConnectTimeoutError, NoCredentialsError
from botocore.parsers import ResponseParserError
from moto_account import moto_account

from optimizer.model import PipelineKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason, MetricsTier, PlacementTarget, Quantity, Reading
from profiler.sources.base import MetricSource, QueryKind, ReadAnswer, ReadRequest
from profiler.sources.cloudwatch import LOOK_BACK_S, MOST_QUERIES, USD_PER_METRIC, CloudWatchSource

PODS = frozenset({"vad-1", "vad-2", "vad-3", "vad-4"})
KEY = (PipelineKey("speech/captions"), StageName("vad"), PoolName("cpu"))
MINUTE_S = 1_790_000_040.0
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
PER_MINUTE = {
    ("speech_stage_arrivals_total", "Sum"): 600.0,
    ("speech_stage_items_total", "Sum"): 600.0,
    ("speech_stage_batches_total", "Sum"): 300.0,
    ("speech_stage_busy_seconds_total", "Sum"): 6.0,
    ("speech_stage_latency_seconds", "Sum"): 42.0,
    ("speech_stage_latency_seconds", "SampleCount"): 600.0,
    ("speech_stage_latency_seconds", "p95"): 0.0975,
    ("speech_stage_latency_seconds", "p99"): 0.0995,
    ("speech_stage_capacity", "Average"): 1.0,
    ("speech_stage_queue_depth", "Average"): 1.0,
    ("speech_stage_sessions", "Average"): 8.0,
    ("speech_stage_sessions_refused_total", "Sum"): 30.0,
    ("speech_nic_rx_queue_pressure", "Maximum"): 0.2,
}


@dataclass
class CloudWatch:
    """A stand-in for the service. By default each pod has one value of every metric in each of the last minutes."""

    now_s: float = MINUTE_S
    pods: frozenset[str] = PODS
    value: Callable[[str, str, str], float] = lambda _, name, statistic: PER_MINUTE[name, statistic]
    late_s: Mapping[str, float] = field(default_factory=dict)
    """How much older the values of a pod are."""
    expressions: dict[str, list[list[float]]] = field(default_factory=dict)
    refuse: Callable[[list[dict[str, Any]]], Exception | None] = lambda _: None
    page: int = 10_000
    requests: list[list[dict[str, Any]]] = field(default_factory=list)

    def get_metric_data(self, **arguments: Any) -> dict[str, Any]:
        queries = arguments["MetricDataQueries"]
        assert len(queries) <= MOST_QUERIES
        self.requests.append(queries)
        if (error := self.refuse(queries)) is not None:
            raise error
        begin = int(arguments.get("NextToken", 0))
        results = [result for query in queries for result in self._results(query, arguments)]
        page = results[begin : begin + self.page]
        more = {"NextToken": str(begin + self.page)} if begin + self.page < len(results) else {}
        return {"MetricDataResults": page, **more}

    def _results(self, query: dict[str, Any], arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        times = [datetime.fromtimestamp(self.now_s - 60 * (i + 1), UTC) for i in range(5)]
        if "Expression" in query:
            if query["Expression"] not in self.expressions:
                text = f"Error in expression '{query['Id']}': Unsupported operand"
                raise ClientError({"Error": {"Code": "ValidationError", "Message": text}}, "GetMetricData")
            series = self.expressions[query["Expression"]]
            return [
                {"Id": query["Id"], "Label": f"s{i}", "Timestamps": times[: len(one)], "Values": one}
                for i, one in enumerate(series)
            ]
        metric = query["MetricStat"]["Metric"]
        assert metric["Namespace"] == "Sluice"
        dimensions = {each["Name"]: each["Value"] for each in metric["Dimensions"]}
        pod = dimensions["PodName"]
        assert dimensions["Namespace"] == "speech"
        if pod not in self.pods:
            return [{"Id": query["Id"], "Label": metric["MetricName"], "Timestamps": [], "Values": []}]
        late = timedelta(seconds=self.late_s.get(pod, 0.0))
        moments = [each - late for each in times if each - late >= arguments["StartTime"]]
        value = self.value(pod, metric["MetricName"], query["MetricStat"]["Stat"])
        return [
            {"Id": query["Id"], "Label": metric["MetricName"], "Timestamps": moments, "Values": [value] * len(moments)}
        ]


@pytest.fixture
def cloudwatch() -> CloudWatch:
    return CloudWatch()


@pytest.fixture
def source(cloudwatch: CloudWatch) -> Iterator[CloudWatchSource]:
    source = CloudWatchSource("us-east-1", client=lambda: cloudwatch, clock=lambda: cloudwatch.now_s)
    yield source
    source.close()


def read(source: MetricSource, *targets: PlacementTarget, deadline_s: float = 5.0, **scalars: str) -> ReadAnswer:
    return source.read(
        ReadRequest(
            placements=targets or (TARGET,), scalars=dict[Hashable, str](scalars.items()), deadline_s=deadline_s
        )
    )


def reason(reading: Reading) -> AbsenceReason:
    assert isinstance(reading, Absence), reading
    return reading.reason


def test_every_quantity_of_a_placement_is_read(source: CloudWatchSource) -> None:
    answer = read(source)
    samples = answer.placements[KEY]
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
    assert samples.sessions == dict.fromkeys(PODS, 8.0)
    assert answer.origins[KEY[0]].tier is MetricsTier.CLOUDWATCH
    assert answer.problems == ()


def test_a_sum_needs_every_pod_and_a_mean_half_of_them(source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
    cloudwatch.pods = frozenset({"vad-1", "vad-2"})
    samples = read(source).placements[KEY]
    assert reason(samples.of(Quantity.ARRIVAL_RATE)) is AbsenceReason.PARTIAL
    assert samples.of(Quantity.SERVICE_TIME) == pytest.approx(0.02)
    assert samples.of(Quantity.LATENCY_P95) == pytest.approx(0.0975)
    assert samples.scrapes.silent == ("vad-3", "vad-4")


def test_fewer_than_half_of_the_pods_are_partial_and_none_are_missing(
    source: CloudWatchSource, cloudwatch: CloudWatch
) -> None:
    cloudwatch.pods = frozenset({"vad-1"})
    assert reason(read(source).placements[KEY].of(Quantity.SERVICE_TIME)) is AbsenceReason.PARTIAL
    cloudwatch.pods, cloudwatch.now_s = frozenset(), cloudwatch.now_s + 60
    samples = read(source).placements[KEY]
    assert {reason(samples.of(quantity)) for quantity in (Quantity.ARRIVAL_RATE, Quantity.SERVICE_TIME)} == {
        AbsenceReason.MISSING
    }


def test_old_values_are_stale(source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
    cloudwatch.late_s = dict.fromkeys(PODS, 301.0)
    assert reason(read(source).placements[KEY].of(Quantity.ARRIVAL_RATE)) is AbsenceReason.STALE


def test_values_that_cloudwatch_shows_two_minutes_late_are_not_old(
    source: CloudWatchSource, cloudwatch: CloudWatch
) -> None:
    cloudwatch.late_s = dict.fromkeys(PODS, 120.0)
    assert read(source).placements[KEY].of(Quantity.ARRIVAL_RATE) == pytest.approx(40.0)


def test_after_ten_minutes_the_others_count_for_a_silent_pod(source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
    cloudwatch.pods = PODS - {"vad-4"}
    samples = read(source, replace(TARGET, long_ready=PODS)).placements[KEY]
    assert samples.of(Quantity.ARRIVAL_RATE) == pytest.approx(40.0)
    assert samples.scrapes.excused == ("vad-4",)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_what_is_no_number_is_none(source: CloudWatchSource, cloudwatch: CloudWatch, value: float) -> None:
    cloudwatch.value = lambda _, name, statistic: (
        value if name == "speech_stage_arrivals_total" else PER_MINUTE[name, statistic]
    )
    samples = read(source).placements[KEY]
    assert reason(samples.of(Quantity.ARRIVAL_RATE)) is AbsenceReason.NOT_A_NUMBER
    assert samples.of(Quantity.COMPLETION_RATE) == pytest.approx(40.0)


def test_a_counter_that_began_again_gives_no_negative_rate(source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
    cloudwatch.value = lambda pod, name, statistic: -600.0 if pod == "vad-1" else PER_MINUTE[name, statistic]
    assert reason(read(source).placements[KEY].of(Quantity.ARRIVAL_RATE)) is AbsenceReason.PARTIAL


def test_a_ratio_without_items_has_no_traffic(source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
    cloudwatch.value = lambda _, name, statistic: 0.0 if statistic != "Average" else PER_MINUTE[name, statistic]
    samples = read(source).placements[KEY]
    assert reason(samples.of(Quantity.SERVICE_TIME)) is AbsenceReason.NO_TRAFFIC
    assert samples.of(Quantity.ARRIVAL_RATE) == 0.0


def test_another_preset_is_unsupported_and_costs_nothing(source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
    samples = read(source, replace(TARGET, preset="vllm")).placements[KEY]
    assert reason(samples.of(Quantity.ARRIVAL_RATE)) is AbsenceReason.UNSUPPORTED
    assert cloudwatch.requests == []


def test_a_placement_without_pods_is_too_new(source: CloudWatchSource) -> None:
    samples = read(source, replace(TARGET, pods=frozenset())).placements[KEY]
    assert reason(samples.of(Quantity.ARRIVAL_RATE)) is AbsenceReason.TOO_NEW


class TestScalars:
    def test_a_scalar_is_the_number_of_the_newest_complete_minute(
        self, source: CloudWatchSource, cloudwatch: CloudWatch
    ) -> None:
        cloudwatch.expressions["SELECT SUM(streams) FROM Ingress"] = [[1.0, 16.0, 17.0, 12.0]]
        assert read(source, demand="SELECT SUM(streams) FROM Ingress").scalars["demand"] == 17.0

    def test_a_minute_has_all_publishers_before_it_counts(
        self, source: CloudWatchSource, cloudwatch: CloudWatch
    ) -> None:
        """Of 100 publishers, 9 have flushed when the minute is over, and all a minute later."""
        read_as = []
        for _ in range(8):
            cloudwatch.expressions["q"] = [[9.0, 100.0, 100.0, 100.0]]
            read_as.append(read(source, demand="q").scalars["demand"])
            cloudwatch.now_s += 60.0
        assert read_as == [100.0] * 8

    def test_a_minute_that_no_longer_changes_counts_earlier(
        self, source: CloudWatchSource, cloudwatch: CloudWatch
    ) -> None:
        cloudwatch.expressions["q"] = [[20.0, 10.0, 10.0]]
        assert read(source, demand="q").scalars["demand"] == 10.0
        cloudwatch.now_s += 60.0
        cloudwatch.expressions["q"] = [[30.0, 20.0, 10.0, 10.0]]
        assert read(source, demand="q").scalars["demand"] == 20.0

    def test_without_a_complete_minute_nothing_is_known(self, source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
        cloudwatch.expressions["q"] = [[0.0]]
        assert reason(read(source, demand="q").scalars["demand"]) is AbsenceReason.STALE

    @pytest.mark.parametrize(
        ("series", "expected"),
        [
            ([[1.0], [2.0]], AbsenceReason.NOT_A_NUMBER),
            ([], AbsenceReason.MISSING),
            ([[]], AbsenceReason.MISSING),
            ([[float("nan")] * 3], AbsenceReason.NOT_A_NUMBER),
        ],
    )
    def test_several_series_are_no_number_and_none_is_missing(
        self, source: CloudWatchSource, cloudwatch: CloudWatch, series: list[list[float]], expected: AbsenceReason
    ) -> None:
        cloudwatch.expressions["q"] = series
        assert reason(read(source, demand="q").scalars["demand"]) is expected

    def test_a_wrong_expression_makes_only_its_own_number_absent(
        self, source: CloudWatchSource, cloudwatch: CloudWatch
    ) -> None:
        cloudwatch.expressions["right"] = [[3.0] * 3]
        answer = read(source, demand="right", sla="wrong(")
        assert answer.scalars["demand"] == 3.0
        absence = answer.scalars["sla"]
        assert isinstance(absence, Absence)
        assert absence.reason is AbsenceReason.UNSUPPORTED
        assert "Unsupported operand" in absence.detail
        assert answer.placements[KEY].of(Quantity.ARRIVAL_RATE) == pytest.approx(40.0)

    def test_an_override_replaces_a_quantity_and_knows_the_window(
        self, source: CloudWatchSource, cloudwatch: CloudWatch
    ) -> None:
        cloudwatch.expressions["depth over 60"] = [[9.0] * 3]
        target = replace(TARGET, overrides={Quantity.QUEUE_DEPTH: "depth over $window"})
        assert read(source, target).placements[KEY].of(Quantity.QUEUE_DEPTH) == 9.0


class TestFailures:
    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (
                ClientError({"Error": {"Code": "AccessDenied", "Message": "not authorized"}}, "GetMetricData"),
                "CloudWatch: AccessDenied: not authorized",
            ),
            (ClientError({"Error": {"Code": "Throttling", "Message": "Rate exceeded"}}, "GetMetricData"), "Throttling"),
            (ConnectTimeoutError(endpoint_url="https://x"), "ConnectTimeoutError"),
            (NoCredentialsError(), "no AWS credentials"),
        ],
    )
    def test_a_failure_makes_numbers_absent_with_the_reason_and_raises_nothing(
        self, source: CloudWatchSource, cloudwatch: CloudWatch, error: Exception, words: str
    ) -> None:
        cloudwatch.refuse = lambda _: error
        answer = read(source, demand="q")
        absence = answer.placements[KEY].of(Quantity.ARRIVAL_RATE)
        assert isinstance(absence, Absence)
        assert absence.reason is AbsenceReason.UNAVAILABLE
        assert words in absence.detail
        assert reason(answer.scalars["demand"]) is AbsenceReason.UNAVAILABLE
        assert len(answer.problems) == 1
        assert answer.unanswered == {QueryKind.DEMAND: 1.0, QueryKind.THROUGHPUT: 1.0}

    def test_an_answer_of_another_form_is_a_failure(self, source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
        cloudwatch.get_metric_data = lambda **_: {"MetricDataResults": [{"Id": "q0"}]}  # type: ignore[method-assign]
        assert reason(read(source).placements[KEY].of(Quantity.ARRIVAL_RATE)) is AbsenceReason.UNAVAILABLE

    @pytest.mark.parametrize(
        "answer",
        [
            {"MetricDataResults": [{"Id": "q99999", "Timestamps": [], "Values": []}]},
            {"MetricDataResults": [], "NextToken": "again"},
        ],
    )
    def test_an_answer_of_another_service_ends(
        self, source: CloudWatchSource, cloudwatch: CloudWatch, answer: dict[str, Any]
    ) -> None:
        asked: list[object] = []

        def get_metric_data(**arguments: Any) -> dict[str, Any]:
            asked.append(arguments)
            assert len(asked) < 200, "asked for ever"
            return answer

        cloudwatch.get_metric_data = get_metric_data  # type: ignore[method-assign]
        assert isinstance(read(source).placements[KEY].of(Quantity.ARRIVAL_RATE), Absence)

    def test_a_page_of_a_proxy_is_a_failure(self, source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
        cloudwatch.refuse = lambda _: ResponseParserError("Unable to parse response: <html>")
        absence = read(source).placements[KEY].of(Quantity.ARRIVAL_RATE)
        assert isinstance(absence, Absence)
        assert "Unable to parse response" in absence.detail

    def test_the_signed_request_is_not_told(self, source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
        message = "The signature does not match.\n\nThe Canonical String was 'POST\nx-amz-security-token:IQoJb3"
        error = ClientError({"Error": {"Code": "SignatureDoesNotMatch", "Message": message}}, "GetMetricData")
        cloudwatch.refuse = lambda _: error
        assert read(source).problems == ("CloudWatch: SignatureDoesNotMatch: The signature does not match.",)

    def test_credentials_that_come_later_are_used(self, cloudwatch: CloudWatch) -> None:
        without = CloudWatch(refuse=lambda _: NoCredentialsError())
        made = iter([without, cloudwatch])
        source = CloudWatchSource("us-east-1", client=lambda: next(made), clock=lambda: cloudwatch.now_s)
        read(source)
        cloudwatch.now_s += 60.0
        assert read(source).placements[KEY].of(Quantity.ARRIVAL_RATE) == pytest.approx(40.0)
        source.close()

    def test_a_service_that_hangs_is_given_up_within_the_deadline(
        self, source: CloudWatchSource, cloudwatch: CloudWatch
    ) -> None:
        cloudwatch.refuse = lambda _: time.sleep(2.0)
        started_s = time.monotonic()
        answer = read(source, deadline_s=0.5)
        assert time.monotonic() - started_s < 1.0
        assert reason(answer.placements[KEY].of(Quantity.ARRIVAL_RATE)) is AbsenceReason.UNAVAILABLE

    def test_what_was_not_answered_is_asked_for_again_in_the_same_minute(
        self, source: CloudWatchSource, cloudwatch: CloudWatch
    ) -> None:
        cloudwatch.refuse = lambda _: time.sleep(0.6)
        read(source, deadline_s=0.4)
        cloudwatch.refuse = lambda _: None
        time.sleep(0.7)
        assert read(source).placements[KEY].of(Quantity.ARRIVAL_RATE) == pytest.approx(40.0)


class TestLimits:
    def test_requests_have_at_most_500_queries(self, source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
        pods = frozenset(f"vad-{i}" for i in range(60))
        cloudwatch.pods = pods
        samples = read(source, replace(TARGET, pods=pods)).placements[KEY]
        assert samples.of(Quantity.ARRIVAL_RATE) == pytest.approx(600.0)
        assert sum(map(len, cloudwatch.requests)) == 13 * 60
        assert max(map(len, cloudwatch.requests)) == MOST_QUERIES

    def test_pages_of_an_answer_are_read_and_cost_once(self, source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
        cloudwatch.page = 7
        assert read(source).placements[KEY].of(Quantity.ARRIVAL_RATE) == pytest.approx(40.0)
        assert source.metrics_asked == 13 * 4

    def test_a_minute_is_paid_for_once(self, source: CloudWatchSource, cloudwatch: CloudWatch) -> None:
        for seconds in (0, 15, 30, 45):
            cloudwatch.now_s = MINUTE_S + seconds
            read(source)
        assert source.metrics_asked == 13 * 4
        cloudwatch.now_s = MINUTE_S + 60
        read(source)
        assert source.metrics_asked == 2 * 13 * 4

    def test_what_it_costs_is_told(self, source: CloudWatchSource, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO"):
            read(source)
        assert "52 metrics a minute, about 0.03 USD per hour" in caplog.text
        assert pytest.approx(0.0312) == 52 * 60 * USD_PER_METRIC


def test_the_service_itself_takes_the_requests_percentiles_included() -> None:
    # Botocore checks the parameters against the API's own description.
    aws = StubbedAws()
    aws.stub("cloudwatch").add_response("get_metric_data", {"MetricDataResults": [], "Messages": []})
    source = CloudWatchSource("us-east-1", client=lambda: aws.client("cloudwatch", "us-east-1"), clock=lambda: MINUTE_S)
    answer = read(source)
    source.close()
    assert answer.problems == ()
    assert reason(answer.placements[KEY].of(Quantity.ARRIVAL_RATE)) is AbsenceReason.MISSING
    aws.all_asked()


def test_sums_and_averages_of_a_real_back_end() -> None:
    # Percentiles and metric math are not modelled there, so they are overridden with an expression that is refused.
    with moto_account() as account:
        client = account.client("cloudwatch")
        end_s = time.time() // 60 * 60
        names = {"speech_stage_arrivals_total": 60.0, "speech_stage_queue_depth": 2.0, "speech_stage_items_total": 30.0}
        for pod in ("vad-1", "vad-2"):
            dimensions = [{"Name": "Namespace", "Value": "speech"}, {"Name": "PodName", "Value": pod}]
            client.put_metric_data(
                Namespace="Sluice",
                MetricData=[
                    {
                        "MetricName": name,
                        "Dimensions": dimensions,
                        "Timestamp": datetime.fromtimestamp(end_s - 30, UTC),
                        "Value": value,
                    }
                    for name, value in names.items()
                ],
            )
        source = CloudWatchSource("us-east-1", client=lambda: client)
        target = replace(
            TARGET,
            pods=frozenset({"vad-1", "vad-2"}),
            overrides={Quantity.LATENCY_P95: "none", Quantity.LATENCY_P99: "none"},
        )
        samples = read(source, target).placements[KEY]
        source.close()
    assert samples.of(Quantity.ARRIVAL_RATE) == pytest.approx(2.0)
    assert samples.of(Quantity.COMPLETION_RATE) == pytest.approx(1.0)
    assert samples.of(Quantity.QUEUE_DEPTH) == pytest.approx(4.0)
    assert reason(samples.of(Quantity.SESSIONS)) is AbsenceReason.MISSING
    assert LOOK_BACK_S > 600
