"""The queries that the simulated ingress answers, and the refusal of others."""

import pytest

from optimizer.model import PipelineKey
from simulations.cluster.ingress_queries import (
    ActiveStreams,
    LatencyQuantile,
    RequestRate,
    UnansweredQuery,
    parse_query,
)

CAPTIONS, NOTES = PipelineKey("speech/captions"), PipelineKey("speech/notes")
OURS = '{namespace="speech", pipeline="captions"}'

KNOWN = [
    (f"sum(sluice_ingress_active_streams{OURS})", ActiveStreams(pipeline=CAPTIONS)),
    (f"sluice_ingress_active_streams{OURS}", ActiveStreams(pipeline=CAPTIONS)),
    (f"sum(rate(sluice_ingress_requests_total{OURS}[1m30s]))", RequestRate(pipeline=CAPTIONS, window_s=90.0)),
    (
        f"histogram_quantile(0.95, sum by (le) (rate(sluice_ingress_latency_seconds_bucket{OURS}[1m])))",
        LatencyQuantile(pipeline=CAPTIONS, window_s=60.0, share=0.95),
    ),
    (
        f"histogram_quantile(0.5,\n  sum(rate(sluice_ingress_latency_seconds_bucket{OURS}[500ms])) by (le))",
        LatencyQuantile(pipeline=CAPTIONS, window_s=0.5, share=0.5),
    ),
]


@pytest.mark.parametrize(("text", "query"), KNOWN)
def test_what_the_ingress_exports_can_be_asked_for(text: str, query: object) -> None:
    assert parse_query(text, [CAPTIONS, NOTES]) == query


UNKNOWN = [
    "sum(gateway_open_streams)",
    f"2 * sum(sluice_ingress_active_streams{OURS})",
    f"sum(sluice_ingress_active_streams{OURS}",
    f"rate(sluice_ingress_active_streams{OURS}[1m])",
    f"sum(rate(sluice_ingress_requests_total{OURS}[soon]))",
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UnansweredQuery, match=r"parentheses|the simulated ingress supports: sum\(sluice_ingress"):
        parse_query(text, [CAPTIONS, NOTES])


def test_labels_must_leave_one_pipeline() -> None:
    text = 'sum(sluice_ingress_active_streams{namespace="speech"})'
    with pytest.raises(UnansweredQuery, match="it matches speech/captions, speech/notes"):
        parse_query(text, [CAPTIONS, NOTES])
    assert parse_query(text, [NOTES]) == ActiveStreams(pipeline=NOTES)
    with pytest.raises(UnansweredQuery, match="it matches none"):
        parse_query('sum(sluice_ingress_active_streams{pipeline="other"})', [CAPTIONS, NOTES])
