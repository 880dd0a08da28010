"""Predict the end-to-end latency of a given allocation with the latency model of the search."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from optimizer.latency.composition import Latency, end_to_end, shape_of
from optimizer.latency.stage import StageLoad, predict_all
from optimizer.model import Composition, Pipeline, PlacementKey, Stage

KEPT_DISPERSION = 0.7
"""The share of `arrival_cv2` − 1 at the entry that is left at later stages, from simulations of tandems.

It is an average: the dispersion that a queue passes on depends on its load. See tests/bench/bench_end_to_end.py.
"""


def predicted_latency_s(
    pipeline: Pipeline,
    replicas: Mapping[PlacementKey, int],
    batches: Mapping[PlacementKey, int],
    *,
    composition: Composition = Composition.SUM,
) -> float | None:
    """Return the end-to-end latency at the SLA's percentile when `replicas` serve the pipeline's demand, in seconds.

    None where a stage has no replica, is overloaded or lacks session slots. A placement missing in `replicas` has none;
    one missing in `batches` (batch limits) has its largest batch size.
    """
    parts: list[Latency] = []
    for stage in pipeline.stages:
        keys = [(stage.name, placement.name) for placement in stage.placements]
        counts = tuple(replicas.get(key, 0) for key in keys)
        limits = tuple(
            batches.get(key, placement.batch_sizes[-1]) for key, placement in zip(keys, stage.placements, strict=True)
        )
        part = _in_stage(stage, stage_load(pipeline, stage), counts, limits, pipeline.sla.percentile)
        if not any(counts) or not np.isfinite(part.percentile_s):
            return None
        parts.append(part)
    shape = shape_of([(stage.name, stage.after) for stage in pipeline.stages])
    whole = end_to_end(shape, parts, composition=composition, percentile=pipeline.sla.percentile)
    return float(whole.percentile_s)


@lru_cache(maxsize=1024)
def _in_stage(
    stage: Stage, load: StageLoad, counts: tuple[int, ...], limits: tuple[int, ...], percentile: float
) -> Latency:
    """Return the time in a stage, infinite where it cannot carry the load; cached, as most stages stay the same."""
    answer = predict_all(
        load,
        stage.placements,
        np.array([counts]),
        limits,
        routing=stage.routing,
        percentile=percentile,
        cascade=stage.cascade,
    )
    return Latency(mean_s=answer.mean_s[0], percentile_s=answer.percentile_s[0])


def stage_load(pipeline: Pipeline, stage: Stage) -> StageLoad:
    """Return the load of `stage` under the pipeline's demand.

    Streams are periodic until an earlier stage drops or multiplies some of their items. The options of a stage are
    tabulated before the allocations of earlier stages are known. Therefore one factor, `KEPT_DISPERSION`, gives the
    effect of earlier stages on the dispersion of arrivals. An item may also wait behind others that leave the earlier
    stage in the same batch; that is not part of this model, only of the replay.

    After fan-out, the load is that of all calls, as if they arrived independently, and the latency is that of one call
    at the SLA's percentile. An item is done when all its calls are; that it waits for the slowest of them is not part
    of this model.

    The load of a shared stage includes that of the other pipelines.
    """
    visits = pipeline.visit_ratios[stage.name]
    demand = pipeline.demand
    # Dropping items at random brings the arrivals closer to a Poisson process, in proportion.
    kept = min(1.0, visits) * (KEPT_DISPERSION if stage.after else 1.0)
    rate_rps, sessions = demand.entry_rate_rps * visits, demand.sessions
    periodic = demand.sessions is not None and stage.name in pipeline.once
    if (sharing := stage.sharing) is not None and sharing.other_rps > 0:
        kept *= rate_rps / (rate_rps + sharing.other_rps)  # the others' items come independently
        rate_rps += sharing.other_rps
        periodic = periodic and sharing.others_periodic
        if sharing.other_sessions > 0:
            sessions = (sessions or 0.0) + sharing.other_sessions
    return StageLoad(
        rate_rps=rate_rps,
        sessions=sessions,
        arrival_cv2=1 + kept * (demand.arrival_cv2 - 1),
        periodic=periodic,
        first_answer=stage.first_answer,
        latency_factor=stage.latency_factor,
    )
