import pytest

from controller.monitoring.pipeline_dashboard import PIPELINE_DASHBOARD
from controller.monitoring.promql import CUT_SESSIONS, UnknownMetric, gauge, series
from controller.telemetry import metric_names


def test_a_series_has_the_name_that_the_operator_exports() -> None:
    assert series("pipeline_demand") == "sluice_pipeline_demand"
    assert series("process_resident_memory_bytes") == "process_resident_memory_bytes"


@pytest.mark.parametrize("name", ["pipeline_wishes", "cycles", "cycle_duration_seconds", "process_wishes"])
def test_a_name_that_the_operator_does_not_export_is_refused(name: str) -> None:
    with pytest.raises(UnknownMetric, match=name):
        series(name)


def test_a_gauge_is_one_series_for_each_value_of_its_labels() -> None:
    assert gauge("pipelines") == "max(sluice_pipelines)"
    selected = gauge("pool_replicas", by="pool", where='state="pending"')
    assert selected == 'max by (pool) (sluice_pool_replicas{state="pending"})'
    assert gauge("pipelines", by="namespace, job") == "max by (namespace, job) (sluice_pipelines)"


def test_a_label_that_the_metric_does_not_have_is_refused() -> None:
    with pytest.raises(UnknownMetric, match="sluice_pool_limit: has no label pipeline"):
        gauge("pool_limit", by="pool, pipeline")


def test_streams_that_no_ingress_counts_as_cut_are_unknown_and_never_0() -> None:
    assert not any("cut" in name for name in metric_names())
    queries = [query for row in PIPELINE_DASHBOARD.rows for panel in row.panels for query in panel.queries]
    (cut,) = [query for query in queries if CUT_SESSIONS in query.expr]
    assert " or " not in cut.expr  # a default would show 0 where nothing is known
    assert "unknown" in cut.empty_because
