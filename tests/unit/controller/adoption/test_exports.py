import pytest
from made_clusters import vector

from controller.adoption.exports import Exports, Questions, UserMetric, interval_s, scrapes_queries
from profiler.samples import Absence, AbsenceReason
from profiler.sources.presets import load_presets

QUESTIONS = Questions(namespace="speech", presets=load_presets())


def asked(**answers: object) -> Exports:
    """Return what follows if the queries that contain a text have an answer, and the others have no series."""
    results = {
        query: next((found for text, found in answers.items() if text in query), []) for query in QUESTIONS.queries()
    }
    return QUESTIONS.conclude(results)


def test_pods_are_known_by_the_metrics_that_they_export() -> None:
    found = asked(
        **{
            "count by (pod) (speech_stage_queue_depth": vector(({"pod": "vad-0"}, 1)),
            "count by (pod, model) (nv_inference": vector(
                ({"pod": "asr-0", "model": "pre"}, 1), ({"pod": "asr-0", "model": "asr"}, 1)
            ),
            "count by (pod, pipeline, stage)": vector(({"pod": "vad-0", "pipeline": "captions", "stage": "vad"}, 1)),
        }
    )
    assert found.presets == {"vad-0": {"generic": frozenset()}, "asr-0": {"triton": frozenset({"pre", "asr"})}}
    assert found.stages == {"vad-0": ("captions", "vad")}


def test_the_metrics_of_users_are_ranked_and_those_of_infrastructure_are_left_out() -> None:
    names = ["pg_active_connections", "gateway_active_streams", "chat_open_sessions", "other_active_streams"]
    labels = [{"__name__": name, "namespace": "speech"} for name in names]
    labels[3]["namespace"] = "elsewhere"
    found = asked(**{"(active|open": vector(*((each, 1.0) for each in labels))})
    assert [metric.name for metric in found.loads] == ["gateway_active_streams", "chat_open_sessions"]
    assert found.loads[0].selector("speech") == 'gateway_active_streams{namespace="speech"}'


def test_a_metric_without_the_namespace_is_used_without_it() -> None:
    assert UserMetric(name="edge_open_calls", in_namespace=False).selector("speech") == "edge_open_calls"


def test_calls_of_a_mesh_and_prices_of_nodes() -> None:
    edge = {"source_workload": "vad", "destination_workload": "asr"}
    found = asked(istio_requests_total=vector((edge, 12.0)), node_total_hourly_cost=vector(({"node": "n1"}, 0.5)))
    assert found.calls == {("vad", "asr"): 12.0}
    assert found.node_prices == {"n1": 0.5}


def test_if_prometheus_answers_nothing_the_reason_is_kept() -> None:
    gone = Absence(reason=AbsenceReason.UNAVAILABLE, detail="Prometheus: connection refused")
    found = QUESTIONS.conclude(dict.fromkeys(QUESTIONS.queries(), gone))
    assert found.problem == "Prometheus: connection refused"
    assert not found.presets


@pytest.mark.parametrize(
    ("samples", "seconds"),
    [
        ((20, 60, 300), 1.0),
        ((20, 25, 25), 1.0),  # the series is 25 s old
        ((1, 4, 20), 15.0),
        ((0, 1, 5), 60.0),
        ((0, 1, 2), None),
        ((), None),
    ],
)
def test_the_scrape_interval_follows_from_the_shortest_range_with_enough_samples(
    samples: tuple[int, ...], seconds: float | None
) -> None:
    results = {query: vector(({}, count)) for query, count in zip(scrapes_queries("up"), samples, strict=False)}
    assert interval_s(results, "up") == seconds


def test_a_series_that_is_not_a_number_is_no_evidence() -> None:
    assert asked(node_total_hourly_cost=vector(({"node": "n1"}, float("nan")))).node_prices == {}
