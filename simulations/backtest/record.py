"""What Prometheus has recorded of pipelines: demand, measured latency and replicas over a period. Pure.

A step without a number stays without one (NaN): a gap is never read as zero.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.core.messages.phrases import count_of, duration, number, timestamp
from controller.core.state.spec import PipelineSpec, Target
from optimizer.model import PlacementKey
from profiler.samples import Absence, sane
from profiler.sources.prometheus_api import Period

_MILLISECONDS = 30.0
"""A median latency of more than so many times the SLA is surely in another unit; `sluice doctor` has the same limit."""
_WORKLOADS = {"Deployment": "deployment", "StatefulSet": "statefulset"}
"""Kinds whose replicas kube-state-metrics exports, with the label that has the name."""

Results = Mapping[str, Any]
"""For every query its series over the period, as `PrometheusApi.ask_ranges` returns them, or the `Absence`."""
Values = NDArray[np.float64]


class NoRecord(ValueError):
    """There is no record to replay; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """What was recorded of a pipeline: arrays of shape (steps,), NaN in steps without a number.

    `demand` is in the pipeline's unit. `latency_s` is the measured percentile of the SLA, None where it is not
    measured. `replicas` has the existing replicas of each placement, None where no placement's are known. `notes` say
    what is missing, and why.
    """

    spec: PipelineSpec
    demand: Values
    latency_s: Values | None
    replicas: Mapping[PlacementKey, Values] | None
    notes: tuple[str, ...]

    @property
    def known(self) -> NDArray[np.bool_]:
        """Return in which steps everything that a replay needs is known."""
        parts = [self.demand, *(() if self.replicas is None else self.replicas.values())]
        return np.asarray(np.all([np.isfinite(part) for part in parts], axis=0))

    def cost_per_hour(self, prices: Mapping[PlacementKey, float]) -> Values | None:
        """Return what the replicas cost in each step, USD per hour, at these prices of a replica; None if not known."""
        if self.replicas is None:
            return None
        return np.asarray(np.sum([counts * prices[key] for key, counts in self.replicas.items()], axis=0))


def queries(specs: Iterable[PipelineSpec]) -> tuple[str, ...]:
    """Return the queries about the pipelines, each once."""
    found: list[str] = []
    for spec in specs:
        found += [spec.queries.demand, *filter(None, [spec.queries.latency])]
        found += [_exported(spec, kind) for kind in _kinds(spec)] + [_own(spec)]
    return tuple(dict.fromkeys(found))


def record(spec: PipelineSpec, results: Results, period: Period) -> PipelineRecord:
    """Return the record of a pipeline from the results of `queries`.

    Raises:
        NoRecord: Prometheus did not answer, or there is no demand in the period.
    """
    demand = _single(spec, "demand.query", results[spec.queries.demand], period)
    demand[demand < 0] = np.nan
    if not np.isfinite(demand).any():
        raise NoRecord(
            f"{spec.key}: demand.query has no number from {timestamp(period.start_s)} to {timestamp(period.end_s)}: "
            "check the query, the labels and the retention of Prometheus"
        )
    latency_s, notes = _latency(spec, results, period)
    replicas, more = _replicas(spec, results, period)
    return PipelineRecord(spec=spec, demand=demand, latency_s=latency_s, replicas=replicas, notes=(*notes, *more))


def runs_of(known: NDArray[np.bool_]) -> tuple[slice, ...]:
    """Return the longest runs of consecutive steps in which `known` holds, in order."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    return tuple(slice(int(first), int(end)) for first, end in zip(edges[::2], edges[1::2], strict=True))


def gap_words(known: NDArray[np.bool_], period: Period, *, most: int = 5) -> tuple[str, ...]:
    """Return the gaps of a record as text, one line each, and a line for those beyond `most`."""
    gaps = runs_of(~known)
    lines = [
        f"no record from {timestamp(period.start_s + gap.start * period.step_s)} to "
        f"{timestamp(period.start_s + gap.stop * period.step_s)}"
        + (": Prometheus has nothing older (retention, or a younger metric)" if gap.start == 0 else "")
        for gap in gaps
    ]
    if len(lines) <= most:
        return tuple(lines)
    rest = sum(gap.stop - gap.start for gap in gaps[most:]) * period.step_s
    return (*lines[:most], f"{count_of(len(lines) - most, 'further gap')}, {duration(rest)} in all")


def _single(spec: PipelineSpec, field: str, result: Any, period: Period) -> Values:
    """Return the only series in `result` on the steps of the period."""
    if isinstance(result, Absence):
        raise NoRecord(f"{spec.key}: {field}: {result.detail}")
    labels = {tuple(sorted(each["metric"].items())) for each in result}
    if len(labels) > 1:
        raise NoRecord(f"{spec.key}: {field}: returns {len(labels)} series; aggregate them to one, as with sum(…)")
    return _on_steps(result, period)


def _on_steps(series: Sequence[Any], period: Period) -> Values:
    """Return the samples of `series`, which are parts of one series, by step; NaN and infinities are no numbers."""
    values = np.full(period.count, np.nan)
    for each in series:
        for at_s, text in each["values"]:
            index = round((float(at_s) - period.start_s) / period.step_s)
            value = float(text)
            if 0 <= index < period.count and sane(value):
                values[index] = value
    return values


def _latency(spec: PipelineSpec, results: Results, period: Period) -> tuple[Values | None, tuple[str, ...]]:
    if spec.queries.latency is None:
        return None, ("latency not measured: sla.query is not set",)
    try:
        latency_s = _single(spec, "sla.query", results[spec.queries.latency], period)
    except NoRecord as error:
        return None, (f"latency not measured: {error}",)
    latency_s[latency_s < 0] = np.nan
    if not np.isfinite(latency_s).any():
        return None, ("latency not measured: sla.query has no number in the period",)
    median_s = float(np.nanmedian(latency_s))
    if median_s > _MILLISECONDS * spec.sla.latency_s:
        words = (
            f"latency not used: sla.query returns {number(median_s)} in the median, read as seconds, and sla.latency "
            f"is {duration(spec.sla.latency_s)}: if these are milliseconds, divide the query by 1000"
        )
        return None, (words,)
    return latency_s, ()


def _kinds(spec: PipelineSpec) -> tuple[str, ...]:
    found = {placement.target.kind for placement in spec.placements().values()}
    return tuple(kind for kind in _WORKLOADS if kind in found)


def _exported(spec: PipelineSpec, kind: str) -> str:
    label = _WORKLOADS[kind]
    return f'max by ({label}) (kube_{label}_status_replicas{{namespace="{spec.namespace}"}})'


def _own(spec: PipelineSpec) -> str:
    where = f'namespace="{spec.namespace}", pipeline="{spec.name}"'
    return f"max by (stage, pool) (sluice_stage_replicas_ready{{{where}}})"


def _replicas(
    spec: PipelineSpec, results: Results, period: Period
) -> tuple[Mapping[PlacementKey, Values] | None, tuple[str, ...]]:
    """Return the replicas by placement, from kube-state-metrics or else from Sluice's own metrics.

    A workload that kube-state-metrics does not list in a step, although it lists others of the namespace, did not
    exist then: 0 replicas.
    """
    by_kind = {kind: _by_label(results[_exported(spec, kind)], (_WORKLOADS[kind],), period) for kind in _kinds(spec)}
    absent: list[str] = []
    found: dict[PlacementKey, Values] = {}
    for key, placement in spec.placements().items():
        values = _of_workload(placement.target, by_kind.get(placement.target.kind, {}))
        if values is None:
            break
        found[key] = values
        if not np.nansum(values):
            absent.append(str(placement.target))
    if len(found) == len(spec.placements()):
        words = f"no replicas in the whole period, by kube-state-metrics: {', '.join(absent)}"
        return found, (words,) if absent else ()
    own = _by_label(results[_own(spec)], ("stage", "pool"), period)
    if all((str(stage), str(pool)) in own for stage, pool in spec.placements()):
        return {(stage, pool): own[str(stage), str(pool)] for stage, pool in spec.placements()}, (
            "replicas from sluice_stage_replicas_ready: those that were not ready are not counted",
        )
    words = (
        "replicas not recorded: neither kube_deployment_status_replicas (kube-state-metrics) nor "
        "sluice_stage_replicas_ready has all workloads, so what ran, and its cost, are unknown"
    )
    return None, (words,)


def _by_label(result: Any, labels: tuple[str, ...], period: Period) -> dict[tuple[str, ...], Values]:
    if isinstance(result, Absence):
        return {}
    parts: dict[tuple[str, ...], list[Any]] = {}
    for each in result:
        parts.setdefault(tuple(each["metric"].get(label, "") for label in labels), []).append(each)
    return {name: _on_steps(series, period) for name, series in parts.items()}


def _of_workload(target: Target, workloads: Mapping[tuple[str, ...], Values]) -> Values | None:
    if not workloads:
        return None
    answered = np.any([np.isfinite(values) for values in workloads.values()], axis=0)
    values = workloads.get((target.name,), np.full(len(answered), np.nan))
    return np.where(answered & ~np.isfinite(values), 0.0, values)
