"""The series of a run, made from item scores and observations, for the simulator and the lab."""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from controller.core.state.spec import PipelineSpec
from optimizer.model import PipelineKey, PlacementId, StageName
from simulations.results import spending
from simulations.results.results import PipelineSeries, PlacementSeries, RunSeries
from simulations.results.scoring import ItemScore, Steps, Window
from simulations.results.spending import Observation

ReceivePressures = Sequence[tuple[float, Mapping[StageName, float]]]
"""Times in seconds since the run began, ascending, each with the receive pressure of the stages where it is known."""


def run_series(
    pipelines: Sequence[PipelineSpec],
    scores: Mapping[PipelineKey, ItemScore],
    observations: Sequence[Observation],
    receive_pressures: Mapping[PipelineKey, ReceivePressures] = MappingProxyType({}),
) -> RunSeries:
    """Return the series over the windows of `scores`, which are the same for every pipeline.

    Replicas, spend, budget and prices come from the last observation up to the end of a window. Cost is the mean over
    the window.
    """
    windows = scores[pipelines[0].key].windows
    ends_s = np.array([window.t_s + window.length_s for window in windows])
    pools = sorted({pool for seen in observations for pool in seen.price_per_hour})
    return RunSeries(
        t_s=tuple(window.t_s for window in windows),
        length_s=tuple(window.length_s for window in windows),
        calm=tuple(window.calm for window in windows),
        pipelines=tuple(_pipeline(spec, scores[spec.key].windows, observations, ends_s) for spec in pipelines),
        receive_pressure={
            str(spec.key): _highest(receive_pressures.get(spec.key, ()), scores[spec.key].windows) for spec in pipelines
        },
        price_per_hour={
            str(pool): _at(observations, ends_s, lambda seen, pool=pool: seen.price_per_hour.get(pool, 0.0))  # type: ignore[misc]
            for pool in pools
        },
    )


def means(steps: Steps, begun_s: NDArray[np.float64], ended_s: NDArray[np.float64]) -> tuple[float, ...]:
    """Return the mean of a step function over each interval [begun_s[i], ended_s[i]); both arrays ascend.

    Each mean is the integral up to the end, minus the integral up to the beginning, over the length.
    """
    if not len(begun_s):
        return ()
    edges, values = steps.parts(float(begun_s[0]), float(ended_s[-1]))
    summed = np.concatenate([[0.0], np.cumsum(np.diff(edges) * values)])
    sums = np.interp(ended_s, edges, summed) - np.interp(begun_s, edges, summed)
    return tuple((sums / (ended_s - begun_s)).tolist())


def _pipeline(
    spec: PipelineSpec, windows: Sequence[Window], observations: Sequence[Observation], ends_s: NDArray[np.float64]
) -> PipelineSeries:
    costs = [spending.placement_costs(seen, spec) for seen in observations]
    times_s = [seen.t_s for seen in observations]

    def cost_per_hour(places: Collection[PlacementId]) -> tuple[float, ...]:
        values = [sum(own.get(place, 0.0) for place in places) for own in costs]
        return means(Steps(times_s=times_s, values=values), begun_s, ends_s)

    begun_s = np.array([window.t_s for window in windows])
    budgets = _at(observations, ends_s, lambda seen: seen.budget_per_hour.get(spec.key, math.inf))
    return PipelineSeries(
        pipeline=str(spec.key),
        sla_s=tuple(window.sla.latency_s for window in windows),
        percentile=tuple(window.sla.percentile for window in windows),
        offered_rps=tuple(window.offered / window.length_s for window in windows),
        served_rps=tuple(window.served / window.length_s for window in windows),
        filtered_rps=tuple(window.filtered / window.length_s for window in windows),
        shed_rps=tuple(window.shed / window.length_s for window in windows),
        refused_rps=tuple(window.refused / window.length_s for window in windows),
        lost_rps=tuple(window.lost / window.length_s for window in windows),
        p95_s=tuple(window.p95_s for window in windows),
        met=tuple(window.met for window in windows),
        spend_per_hour=_at(observations, ends_s, lambda seen: seen.spend_per_hour[spec.key]),
        cost_per_hour=cost_per_hour([(spec.key, *place) for place in spec.placement_keys()]),
        budget_per_hour=tuple(budget if math.isfinite(budget) else None for budget in budgets),
        placements=tuple(
            _placement((spec.key, *place), observations, ends_s, cost_per_hour([(spec.key, *place)]))
            for place in spec.placement_keys()
        ),
    )


def _highest(found: ReceivePressures, windows: Sequence[Window]) -> dict[str, tuple[float | None, ...]]:
    """Return the highest receive pressure of each stage in each window."""
    stages = sorted({stage for _, pressures in found for stage in pressures})
    values: dict[str, list[float | None]] = {str(stage): [None] * len(windows) for stage in stages}
    begun_s = [window.t_s for window in windows]
    for at_s, pressures in found:
        index = bisect_right(begun_s, at_s) - 1
        if index < 0 or at_s >= windows[index].t_s + windows[index].length_s:
            continue
        for stage, pressure in pressures.items():
            before = values[str(stage)][index]
            values[str(stage)][index] = pressure if before is None else max(before, pressure)
    return {stage: tuple(own) for stage, own in values.items()}


def _placement(
    key: PlacementId,
    observations: Sequence[Observation],
    ends_s: NDArray[np.float64],
    cost_per_hour: tuple[float, ...],
) -> PlacementSeries:
    _, stage, placement = key
    desired = _at(observations, ends_s, lambda seen: seen.placements[key].desired)
    ready = _at(observations, ends_s, lambda seen: seen.placements[key].ready)
    return PlacementSeries(
        stage=str(stage),
        placement=str(placement),
        desired=tuple(map(int, desired)),
        ready=tuple(map(int, ready)),
        cost_per_hour=cost_per_hour,
    )


def _at(
    observations: Sequence[Observation], ends_s: NDArray[np.float64], value: Callable[[Observation], float]
) -> tuple[float, ...]:
    """Return `value` of the last observation up to each of `ends_s`; 0 before the first observation."""
    return tuple(spending.steps(observations, value).at(ends_s).tolist())
