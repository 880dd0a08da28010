"""The queries that faults of Prometheus send instead."""

import pytest
from prometheus_faults import doubled

A, B = (f', "prometheus_replica", "{replica}", "", "")' for replica in "ab")


@pytest.mark.parametrize(
    "own",
    [
        'rate(speech_stage_items_total{namespace=~"a"}[4000ms])',
        'avg_over_time(speech_stage_queue_depth{namespace=~"a"}[4000ms])',
        'timestamp(speech_stage_queue_depth{namespace=~"a"})',
        'speech_stage_sessions{namespace=~"a"}',
    ],
)
def test_each_series_of_a_pod_is_doubled_before_it_is_added_up(own: str) -> None:
    found = doubled(f"sum by (namespace, pod) ({own})")
    assert found == f"sum by (namespace, pod) ((label_replace({own}{A} or label_replace({own}{B}))"


@pytest.mark.parametrize("query", ['sum(ingress_streams{pipeline="a"})', "vector(1)", ""])
def test_queries_of_users_stay(query: str) -> None:
    assert doubled(query) == query
