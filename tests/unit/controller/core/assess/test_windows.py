"""Windows that are too short for the scrapes: absent readings name them, and nothing else changes."""

from dataclasses import replace

import pytest
from builders import ENCODER, NOW_S, VAD, a_snapshot, a_state

from controller.core.assess.windows import with_short_windows_named
from controller.core.cycle import decide
from controller.core.messages.conditions import conditions
from controller.core.messages.explain import explain_pipeline
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Quantity, Reading, Scrapes

NO_SERIES = Absence(reason=AbsenceReason.MISSING, detail="the query returns no series")
SCRAPED_S = 60.0


def a_pipeline(*, window_s: float = 60.0, reading: Reading = NO_SERIES, demand: Reading = 100.0) -> PipelineState:
    """Return a pipeline whose first stage has `reading` as its arrival rate over `window_s`."""
    state = a_state(replicas={VAD: 2, ENCODER: 2})
    vad, *others = state.spec.stages
    samples = {VAD: PlacementSamples(readings={Quantity.ARRIVAL_RATE: reading}), ENCODER: state.samples[ENCODER]}
    spec = replace(state.spec, stages=(replace(vad, metrics_window_s=window_s), *others))
    return replace(state, spec=spec, samples=samples, demand=demand)


def with_demand_query(state: PipelineState, query: str) -> PipelineState:
    return replace(state, spec=replace(state.spec, queries=replace(state.spec.queries, demand=query)))


def arrivals(state: PipelineState, scraped_s: float | None = SCRAPED_S) -> Reading:
    (named,) = with_short_windows_named(a_snapshot(state), scraped_s).pipelines
    return named.samples[VAD].of(Quantity.ARRIVAL_RATE)


def demand(query: str, reading: Reading = NO_SERIES) -> Reading:
    state = with_demand_query(a_pipeline(demand=reading), query)
    (named,) = with_short_windows_named(a_snapshot(state), SCRAPED_S).pipelines
    return named.demand


def test_an_absent_reading_over_a_window_below_two_scrapes_names_field_value_and_rule() -> None:
    named = arrivals(a_pipeline(window_s=60.0))

    assert isinstance(named, Absence)
    assert named.reason is AbsenceReason.WINDOW_TOO_SHORT
    assert named.detail == (
        "metrics.window: 60 s: must be at least two scrape intervals (--scrape-interval 60 s), better four; "
        "Missing the query returns no series"
    )


def test_the_interval_that_is_observed_counts_more_than_the_one_that_is_set() -> None:
    state = a_pipeline(window_s=60.0)
    found = {
        key: replace(samples, scrapes=Scrapes(interval_s=45.0 if key == VAD else 15.0))
        for key, samples in state.samples.items()
    }
    named = arrivals(replace(state, samples=found), scraped_s=1.0)

    assert isinstance(named, Absence)
    assert named.detail.startswith("metrics.window: 60 s: must be at least two scrape intervals (45 s observed)")


@pytest.mark.parametrize("reason", [AbsenceReason.STALE, AbsenceReason.PARTIAL])
def test_old_samples_and_silent_pods_may_have_the_same_cause(reason: AbsenceReason) -> None:
    named = arrivals(a_pipeline(reading=Absence(reason=reason, detail="1 of 2 pods")))

    assert isinstance(named, Absence)
    assert named.reason is AbsenceReason.WINDOW_TOO_SHORT
    assert named.detail.endswith(f"{reason.value} 1 of 2 pods")


@pytest.mark.parametrize(
    ("window_s", "scraped_s", "reading"),
    [
        (120.0, SCRAPED_S, NO_SERIES),
        (60.0, None, NO_SERIES),
        (60.0, SCRAPED_S, 5.0),
        (60.0, SCRAPED_S, Absence(reason=AbsenceReason.UNAVAILABLE, detail="connection refused")),
    ],
    ids=["long enough", "interval unknown", "a value", "another cause"],
)
def test_everything_else_stays(window_s: float, scraped_s: float | None, reading: Reading) -> None:
    assert arrivals(a_pipeline(window_s=window_s, reading=reading), scraped_s) == reading


@pytest.mark.parametrize(
    ("query", "window"),
    [
        ("sum(rate(offered[30s]))", "30 s"),
        ("sum(rate(a[5m])) + sum(rate(b[1m30s]))", "90 s"),
        ("max_over_time(sum(rate(a[10m]))[1m:15s])", "60 s"),
    ],
)
def test_the_shortest_range_of_a_query_counts(query: str, window: str) -> None:
    named = demand(query)

    assert isinstance(named, Absence)
    assert named.reason is AbsenceReason.WINDOW_TOO_SHORT
    assert named.detail.startswith(f"demand.query: {window}: must be at least two scrape intervals")


@pytest.mark.parametrize("query", ["sum(active_streams)", "sum(rate(offered[5m]))", 'sum(up{job=~"[0-9]s"})'])
def test_a_query_without_a_short_range_is_not_blamed(query: str) -> None:
    assert demand(query) == NO_SERIES


def test_the_condition_says_it_and_nothing_scales_down() -> None:
    state = with_demand_query(a_pipeline(demand=NO_SERIES), "sum(rate(offered[30s]))")
    (decision,) = decide(a_snapshot(state), Policy(scrape_interval_s=SCRAPED_S)).pipelines

    (condition,) = (c for c in conditions(decision) if c.type == "MetricsAvailable")
    assert condition.status == "False"
    for words in ("demand.query: 30 s: must be", "(--scrape-interval 60 s)"):
        assert words in condition.message
    assert "metrics.window: 60 s: must be" in "\n".join(explain_pipeline(decision, NOW_S))
    assert not [change for change in decision.changes if change.after < change.before]
