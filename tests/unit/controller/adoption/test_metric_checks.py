from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pytest
import yaml
from made_clusters import vector

from controller.adoption.check import Check
from controller.adoption.metric_checks import Metrics, check_metrics, further_queries
from controller.core.state.spec import PipelineSpec
from controller.kube.metrics_reader import metrics_target, user_queries
from controller.resources.parsing import parse
from controller.resources.pipeline import SpeechPipeline
from controller.resources.translate import pipeline_spec
from profiler.samples import Absence, AbsenceReason, PlacementSamples, PlacementTarget, Quantity, Reading
from profiler.sources.base import ReadAnswer
from profiler.sources.presets import load_presets

PRESETS = load_presets()
PIPELINE = """
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: captions, namespace: speech}
spec:
  demand: {unit: Streams, chunk: 160ms, query: sum(gateway_active_streams)}
  sla: {latency: 400ms, query: 'histogram_quantile(0.95, sum by (le) (rate(gateway_latency_seconds_bucket[2m])))'}
  budget: {perHour: "9"}
  stages:
    - name: vad
      placements:
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: vad}
          replicas: {max: 6}
"""
READINGS: Mapping[Quantity, Reading] = {
    Quantity.ARRIVAL_RATE: 250.0,
    Quantity.COMPLETION_RATE: 250.0,
    Quantity.LATENCY_MEAN: 0.01,
    Quantity.LATENCY_P95: 0.02,
    Quantity.SERVICE_TIME: 0.01,
    Quantity.BATCH_SIZE: 1.0,
    Quantity.UTILIZATION: 0.4,
    Quantity.QUEUE_DEPTH: 0.0,
}
ANSWERS: Mapping[str, Sequence[Any]] = {
    "timestamp(": vector(({}, 3.0)),
    "[20s]": vector(({}, 1)),
    "[60s]": vector(({}, 4)),
    "[300s]": vector(({}, 20)),
    "count by (namespace, pod, exported_pod)": vector(({"namespace": "speech", "pod": "vad-0"}, 1)),
    "count by (namespace, pod) (count by": vector(({"namespace": "speech", "pod": "vad-0"}, 1)),
    "count by (le) (gateway": vector(*(({"le": bound}, 1) for bound in ("0.1", "0.4", "1", "+Inf"))),
    "count by (le) (speech_stage": vector(*(({"le": bound}, 1) for bound in ("0.002", "10", "+Inf"))),
    "count(": vector(({}, 1)),
}
"""By a text in the query; the first that is in a query is its answer."""


def the_pipeline(text: str = PIPELINE) -> PipelineSpec:
    return pipeline_spec(parse(SpeechPipeline, yaml.safe_load(text)))


def checked(
    spec: PipelineSpec | None = None,
    *,
    readings: Mapping[Quantity, Reading] = READINGS,
    demand: Reading = 40.0,
    latency: Reading = 0.2,
    pods: frozenset[str] = frozenset({"vad-0"}),
    answers: Mapping[str, Sequence[Any] | Absence] | None = None,
) -> dict[str, Check]:
    spec = spec or the_pipeline()
    targets: list[PlacementTarget] = [
        metrics_target(spec, stage, placement, pods=pods, endpoints={})
        for stage in spec.stages
        for placement in stage.placements
    ]
    queries = user_queries(spec)
    scalars: dict[Hashable, Reading] = {(spec.key, "demand"): demand, (spec.key, "sla"): latency}
    answers = {**(answers or {}), **{text: found for text, found in ANSWERS.items() if text not in (answers or {})}}
    results = {
        query: next((found for text, found in answers.items() if text in query), [])
        for query in further_queries([spec], queries, targets, PRESETS)
    }
    answer = ReadAnswer(
        placements={
            (each.pipeline, each.stage, each.placement): PlacementSamples(readings=readings) for each in targets
        },
        scalars=scalars,
        problems=(),
    )
    found = check_metrics(spec, queries, targets, Metrics(answer=answer, results=results), PRESETS)
    return {check.name: check for check in found}


def test_metrics_in_order_have_nothing_to_fix() -> None:
    found = checked()
    assert set(found) == {
        *("demand.query", "demand.query age", "sla.query", "sla.query age", "sla.query window", "sla.query unit"),
        *("sla.query buckets", "window", "buckets", "metrics", "demand unit"),
    }
    assert [check for check in found.values() if check.ok is not True] == []
    assert found["metrics"].message == "preset generic answers for 1 pod: 250 items/s, p95 20 ms"


@pytest.mark.parametrize(
    ("levels", "ok", "words"),
    [
        (2304, True, "8 of 8 seasons of demand are recorded"),
        (
            864,
            True,
            "3 of 8 seasons of demand are recorded, the last one included; those are used; check the retention",
        ),
        (288, False, "1 of 8 seasons of demand are recorded, the last one included; at least 2 are needed"),
    ],
)
def test_too_little_history_is_noted(levels: int, ok: bool, words: str) -> None:
    spec = the_pipeline(PIPELINE.replace("chunk: 160ms", "chunk: 160ms, history: {}"))
    found = checked(
        spec, answers={"count_over_time((sum(gateway_active_streams))[691200s:300s])": vector(({}, levels))}
    )
    assert found["demand.history"].ok is ok
    assert found["demand.history"].message.startswith(words)


def test_a_history_that_is_not_answered_is_not_known() -> None:
    spec = the_pipeline(PIPELINE.replace("chunk: 160ms", "chunk: 160ms, history: {}"))
    late = Absence(reason=AbsenceReason.UNAVAILABLE, detail="no answer in time")
    found = checked(spec, answers={"count_over_time((": late})["demand.history"]
    assert (found.ok, found.message) == (None, "not read: Unavailable: no answer in time")


def test_without_prometheus_nothing_is_claimed() -> None:
    (check,) = check_metrics(the_pipeline(), {}, [], Metrics(problem="set --prometheus-url"), PRESETS)
    assert (check.ok, check.message) == (None, "set --prometheus-url")


def test_a_query_for_a_metric_that_does_not_exist_names_it() -> None:
    missing = Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")
    found = checked(demand=missing, answers={"count(": []})["demand.query"]
    assert found.ok is False
    assert found.message.startswith("Prometheus has no metric gateway_active_streams: correct the name")


@pytest.mark.parametrize("other", ["gateway_streams_active_ratio", "otel_gateway_active_streams"])
def test_a_metric_that_has_another_name_now_is_suggested(other: str) -> None:
    missing = Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")
    answers = {"count(gateway_active_streams)": [], "active[:_.]streams)": vector(({"__name__": other}, 3))}
    found = checked(demand=missing, answers={"count by (__name__)": answers.popitem()[1], **answers})["demand.query"]
    assert found.message == f"Prometheus has no metric gateway_active_streams, but it has {other}: correct the name"


def test_a_preset_whose_metrics_are_renamed_says_what_it_looked_for_and_what_there_is() -> None:
    answers = {
        "count by (namespace, pod, exported_pod)": [],
        "count by (__name__)": vector(({"__name__": "vllm_num_requests_running"}, 3)),
    }
    text = PIPELINE.replace("    - name: vad", "    - name: vad\n      metrics: {preset: vllm}")
    found = checked(the_pipeline(text), answers=answers)["labels"]
    assert found.ok is False
    assert "no series vllm:num_requests_running, for which preset vllm looks" in found.message
    assert "there is vllm_num_requests_running" in found.message


def test_a_demand_of_completed_items_is_told() -> None:
    text = PIPELINE.replace("sum(gateway_active_streams)", "'sum(rate(vllm:request_success_total[1m]))'")
    found = checked(the_pipeline(text))["demand.query source"]
    assert found.ok is False
    assert "vllm:request_success_total" in found.message
    assert "at the ingress" in found.message


def test_a_query_whose_labels_match_nothing_says_so() -> None:
    missing = Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")
    assert "correct the labels in the query" in checked(demand=missing)["demand.query"].message


def test_several_series_are_to_be_aggregated() -> None:
    several = Absence(reason=AbsenceReason.NOT_A_NUMBER, detail="the query returns 2 series instead of one: aggregate")
    found = checked(demand=several)["demand.query"]
    assert found.ok is False
    assert "aggregate" in found.message


def test_a_prometheus_that_does_not_answer_leaves_the_query_unknown() -> None:
    gone = Absence(reason=AbsenceReason.UNAVAILABLE, detail="Prometheus: no answer in time")
    found = checked(demand=gone)["demand.query"]
    assert found.ok is None
    assert "--prometheus-url" in found.message
    other = Absence(reason=AbsenceReason.UNAVAILABLE, detail="Prometheus: HTTP status 401: check the credentials")
    assert checked(demand=other)["demand.query"].message.endswith("401: check the credentials")


def test_a_query_that_prometheus_refuses_is_to_be_corrected() -> None:
    detail = "Prometheus: unclosed left parenthesis, in: sum(gateway_active_streams)"
    found = checked(demand=Absence(reason=AbsenceReason.UNAVAILABLE, detail=detail))["demand.query"]
    assert found.ok is False
    assert found.message == f"Unavailable: {detail}: correct the query"


def test_labels_are_not_judged_without_an_answer() -> None:
    gone = Absence(reason=AbsenceReason.UNAVAILABLE, detail="Prometheus: Connection refused")
    found = checked(readings=dict.fromkeys(READINGS, gone), answers={"exported_pod": gone})
    assert "labels" not in found
    assert found["metrics"].ok is None
    assert "Connection refused" in found["metrics"].message


def test_old_samples_are_told() -> None:
    found = checked(answers={"timestamp(": vector(({}, 200.0))})["demand.query age"]
    assert found.ok is False
    assert "200 s old" in found.message


def each_s(seconds: int) -> dict[str, Any]:
    return {f"[{range_s}s]": vector(({}, range_s // seconds)) for range_s in (20, 60, 300)}


@pytest.mark.parametrize(("seconds", "ok"), [(15, True), (30, True), (60, False)])
def test_the_range_of_a_query_needs_four_scrapes(seconds: int, ok: bool) -> None:
    found = checked(answers=each_s(seconds))
    assert found["sla.query window"].ok is ok
    assert found["window"].ok is (seconds == 15)  # one minute


def test_the_window_to_set_is_named() -> None:
    found = checked(answers=each_s(30))["window"]
    assert found.message == "metrics.window is 60 s and scrapes come each 30 s: set at least 120s"


def test_a_latency_in_milliseconds_is_told() -> None:
    found = checked(latency=213.0)["sla.query unit"]
    assert found.ok is False
    assert "divide the query by 1000" in found.message
    slow = checked(latency=2.5)["sla.query unit"]
    assert slow.ok is True


def test_a_stage_latency_in_milliseconds_is_told() -> None:
    found = checked(readings={**READINGS, Quantity.LATENCY_P95: 20.0})["unit"]
    assert found.ok is False
    assert "export seconds" in found.message


@pytest.mark.parametrize(
    ("bounds", "ok", "words"),
    [
        (("0.1", "0.3", "0.5", "+Inf"), True, "both sides"),
        (("0.1", "0.2", "+Inf"), False, "ends at 200 ms, below the SLA"),
        (("0.1", "1", "+Inf"), False, "Add a bound at 400 ms"),
        (("0.5", "1", "+Inf"), False, "bucket from 0 ms to 500 ms"),
        ((), None, "were not read"),
    ],
)
def test_the_buckets_must_tell_the_sla(bounds: tuple[str, ...], ok: bool | None, words: str) -> None:
    series = vector(*(({"le": bound}, 1) for bound in bounds))
    found = checked(answers={"count by (le) (gateway": series})["sla.query buckets"]
    assert found.ok is ok
    assert words in found.message


def test_the_coarse_histogram_of_vllm_is_accepted_because_its_first_bucket_is_refined() -> None:
    spec = the_pipeline(
        PIPELINE.replace("name: vad\n", "name: vad\n      metrics: {preset: vllm}\n").replace("400ms", "200ms")
    )
    series = vector(*(({"le": bound}, 1) for bound in ("0.3", "0.5", "+Inf")))
    assert checked(spec, answers={"count by (le) (vllm": series})["buckets"].ok is True
    too_low = vector(*(({"le": bound}, 1) for bound in ("0.1", "+Inf")))
    assert checked(spec, answers={"count by (le) (vllm": too_low})["buckets"].ok is False


def test_series_under_exported_pod_are_told_with_the_remedy() -> None:
    labels = vector(({"namespace": "monitoring", "pod": "exporter", "exported_pod": "vad-0"}, 1))
    found = checked(answers={"count by (namespace, pod, exported_pod)": labels})
    assert found["labels"].ok is False
    assert "honorLabels: true" in found["labels"].message
    assert "metrics" not in found


def test_pods_that_are_not_scraped_are_told() -> None:
    found = checked(answers={"count by (namespace, pod, exported_pod)": []})["labels"]
    assert "no series speech_stage_queue_depth has the labels namespace=speech and pod=vad-0" in found.message


def test_a_pod_in_two_scrape_jobs_is_told() -> None:
    twice = vector(({"namespace": "speech", "pod": "vad-0"}, 2))
    found = checked(answers={"count by (namespace, pod) (count by": twice})["scrape jobs"]
    assert found.ok is False
    assert "keep one scrape job" in found.message


def test_quantities_that_are_absent_are_told_together() -> None:
    missing = Absence(reason=AbsenceReason.MISSING, detail="0 of 1 pods, 1 silent")
    readings = {**READINGS, Quantity.SERVICE_TIME: missing, Quantity.BATCH_SIZE: missing}
    found = checked(readings=readings)["metrics"]
    assert found.ok is False
    assert found.message.startswith("serviceTime, batchSize: Missing: 0 of 1 pods, 1 silent. The server must export")


def test_without_traffic_ratios_are_unknown() -> None:
    quiet = Absence(reason=AbsenceReason.NO_TRAFFIC)
    found = checked(readings={**READINGS, Quantity.SERVICE_TIME: quiet}, demand=0.0)
    assert found["metrics"].ok is None
    assert found["metrics"].message == "serviceTime: not known while there is no traffic"


def test_percentiles_that_are_nan_without_traffic_are_unknown() -> None:
    nan = Absence(reason=AbsenceReason.NOT_A_NUMBER, detail="0 of 1 pods")
    idle = {**READINGS, Quantity.ARRIVAL_RATE: 0.0, Quantity.LATENCY_P95: nan}
    assert checked(readings=idle)["metrics"].ok is None
    assert checked(readings={**READINGS, Quantity.LATENCY_P95: nan})["metrics"].ok is False


def test_triton_without_percentiles_is_told_the_flag() -> None:
    spec = the_pipeline(PIPELINE.replace("name: vad\n", "name: vad\n      metrics: {preset: triton}\n"))
    readings = {**READINGS, Quantity.LATENCY_P95: Absence(reason=AbsenceReason.MISSING)}
    assert "--metrics-config summary_latencies=true" in checked(spec, readings=readings)["metrics"].message


def test_young_pods_are_unknown() -> None:
    found = checked(pods=frozenset())["metrics"]
    assert found.ok is None


@pytest.mark.parametrize(("demand", "ok"), [(40.0, True), (4.0, False), (400.0, False), (0.0, None)])
def test_the_demand_must_be_the_load_of_the_entry_stage(demand: float, ok: bool | None) -> None:
    assert checked(demand=demand)["demand unit"].ok is ok


def test_queries_that_the_operator_cannot_parse_are_still_checked_for_their_answer() -> None:
    spec = the_pipeline(
        PIPELINE.replace("sum(gateway_active_streams)", "'sum(a) without (x) / on() group_left b offset 5m'")
    )
    assert checked(spec)["demand.query"].ok is True
