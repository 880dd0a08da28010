"""Names the windows that are too short for the time between two scrapes, where readings are absent because of them.

A rate needs two samples, so a window shorter than two scrape intervals has none at times, or always. Nothing else about
a reading says so: Prometheus returns no series.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from controller.core.messages import details
from controller.core.state.snapshot import PipelineState, Snapshot
from profiler.samples import Absence, AbsenceReason, Quantity, Reading

LEAST_INTERVALS = 2
"""The scrape intervals that every window must have."""

_CAUSED = frozenset({AbsenceReason.MISSING, AbsenceReason.STALE, AbsenceReason.PARTIAL})
_RANGE = re.compile(r"\[\s*((?:\d+(?:ms|[smhdwy]))+)\s*[\]:]")
_PART = re.compile(r"(\d+)(ms|[smhdwy])")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interval:
    """The time between two scrapes, observed or as it is set."""

    seconds: float
    is_observed: bool


def with_short_windows_named(snapshot: Snapshot, scrape_interval_s: float | None) -> Snapshot:
    """Return the snapshot in which absent readings over windows that are too short say so.

    These windows are `metrics.window` of a stage and the ranges in users' queries. The time between two scrapes is the
    longest that was observed of the pipeline's pods, else `scrape_interval_s`, the one that is set. With None, where it
    is not known either, nothing is changed.
    """
    return replace(snapshot, pipelines=tuple(_named(state, scrape_interval_s) for state in snapshot.pipelines))


def _named(state: PipelineState, set_interval_s: float | None) -> PipelineState:
    intervals_s = (samples.scrapes.interval_s for samples in state.samples.values())
    observed_s = max((interval_s for interval_s in intervals_s if interval_s is not None), default=None)
    if observed_s is not None:
        return _explained_state(state, _Interval(seconds=observed_s, is_observed=True))
    if set_interval_s is not None:
        return _explained_state(state, _Interval(seconds=set_interval_s, is_observed=False))
    return state


def _explained_state(state: PipelineState, interval: _Interval) -> PipelineState:
    spec = state.spec
    too_short = {
        stage.name: stage.metrics_window_s
        for stage in spec.stages
        if stage.metrics_window_s < LEAST_INTERVALS * interval.seconds
    }
    samples = {
        key: own
        if key[0] not in too_short
        else replace(
            own,
            readings={
                quantity: _explained(own.of(quantity), "metrics.window", too_short[key[0]], interval)
                for quantity in Quantity
            },
        )
        for key, own in state.samples.items()
    }
    queries = {(stage.name, rule.name): rule.query for stage in spec.stages for rule in stage.rules}
    return replace(
        state,
        samples=samples if too_short else state.samples,
        demand=_of_query(state.demand, "demand.query", spec.queries.demand, interval),
        latency_s=None
        if state.latency_s is None
        else _of_query(state.latency_s, "sla.query", spec.queries.latency, interval),
        rule_readings={
            key: _of_query(reading, f"rule {key[1]}", queries.get(key), interval)
            for key, reading in state.rule_readings.items()
        },
    )


def _of_query(reading: Reading, field: str, query: str | None, interval: _Interval) -> Reading:
    if not isinstance(reading, Absence) or query is None:
        return reading
    shortest_s = min(_ranges_s(query), default=None)
    if shortest_s is None or shortest_s >= LEAST_INTERVALS * interval.seconds:
        return reading
    return _explained(reading, field, shortest_s, interval)


def _explained(reading: Reading, field: str, window_s: float, interval: _Interval) -> Reading:
    if not isinstance(reading, Absence) or reading.reason not in _CAUSED:
        return reading
    detail = details.window_too_short(field, window_s, interval.seconds, reading, is_observed=interval.is_observed)
    return Absence(reason=AbsenceReason.WINDOW_TOO_SHORT, detail=detail)


def _ranges_s(query: str) -> Iterable[float]:
    """Yield the ranges of the range selectors and subqueries in PromQL, in seconds."""
    for found in _RANGE.finditer(query):
        yield sum(float(count) * _UNIT_S[unit] for count, unit in _PART.findall(found[1]))
