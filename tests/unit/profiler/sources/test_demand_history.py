"""The recorded demand of past days, from the answer to a range query."""

from profiler.samples import Absence, AbsenceReason
from profiler.sources.access import Access
from profiler.sources.demand_history import NoHistorySource, PrometheusHistory, levels_of
from profiler.sources.prometheus_api import Period

PERIOD = Period(start_s=1_000, step_s=300, count=4)


def answer(*values: tuple[int, str], **labels: str) -> dict[str, object]:
    return {"metric": labels, "values": [[at_s, text] for at_s, text in values]}


def test_times_without_a_number_are_gaps() -> None:
    found = levels_of([answer((1_000, "5"), (1_600, "NaN"), (1_900, "7.5"))], PERIOD)
    assert found == [5.0, None, None, 7.5]
    assert levels_of([answer((1_000, "-1"), (1_300, "+Inf"), (1_600, "0"))], PERIOD) == [None, None, 0.0, None]


def test_the_parts_of_a_long_period_are_one_series() -> None:
    assert levels_of([answer((1_000, "1")), answer((1_900, "2"))], PERIOD) == [1.0, None, None, 2.0]


def test_several_series_are_no_history() -> None:
    found = levels_of([answer((1_000, "1"), pod="a"), answer((1_000, "2"), pod="b")], PERIOD)
    assert isinstance(found, Absence)
    assert found.reason is AbsenceReason.NOT_A_NUMBER
    assert "2 series; aggregate them to one" in found.detail


def test_what_is_not_answered_or_empty_says_why() -> None:
    refused = Absence(reason=AbsenceReason.UNAVAILABLE, detail="connection refused")
    assert levels_of(refused, PERIOD) is refused
    empty = levels_of([], PERIOD)
    assert isinstance(empty, Absence)
    assert empty.reason is AbsenceReason.MISSING


def test_a_tier_that_records_nothing_says_so() -> None:
    found = NoHistorySource().levels("up", "speech", PERIOD)
    assert isinstance(found, Absence)
    assert "Prometheus" in found.detail


def test_a_query_that_cannot_be_kept_within_its_namespace_is_not_sent() -> None:
    source = PrometheusHistory("http://127.0.0.1:9", Access(), restricts=True)
    found = source.levels("sum(", "speech", PERIOD)
    source.close()
    assert isinstance(found, Absence)
    assert found.reason is AbsenceReason.UNSUPPORTED
