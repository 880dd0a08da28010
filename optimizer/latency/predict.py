"""What a given allocation is predicted to do: the same latency model as the search, for replicas that run."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from optimizer.latency.composition import Latency, end_to_end, shape_of
from optimizer.latency.stage import StageLoad, predict_all
from optimizer.model import Composition, Pipeline, PoolName, Stage, StageName

Placed = tuple[StageName, PoolName]

KEPT_DISPERSION = 0.7
"""How much of the entry's distance from Poisson's dispersion the later stages feel, by simulation of random tandems.

Under a high load queues hand on what they get, under a low one they smooth it. See tests/bench/bench_end_to_end.py.
"""


def predicted_latency_s(
    pipeline: Pipeline,
    replicas: Mapping[Placed, int],
    batches: Mapping[Placed, int],
    *,
    composition: Composition = Composition.SUM,
) -> float | None:
    """Return the end-to-end latency at the SLA's percentile when `replicas` serve the pipeline's demand, in seconds.

    None where a stage has no replica, is overloaded or lacks session slots. `replicas` and `batches` default to 0
    replicas and to the placement's largest batch.
    """
    parts: list[Latency] = []
    for stage in pipeline.stages:
        keys = [(stage.name, placement.pool) for placement in stage.placements]
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
    """Return the time in a stage, infinite where it is not carried. From cycle to cycle most stages stay the same."""
    answer = predict_all(
        load, stage.placements, np.array([counts]), limits, routing=stage.routing, percentile=percentile
    )
    return Latency(mean_s=answer.mean_s[0], percentile_s=answer.percentile_s[0])


def stage_load(pipeline: Pipeline, stage: Stage) -> StageLoad:
    """Return what arrives at `stage`. Streams are periodic until a stage before has dropped some of their items.

    Options of a stage are tabulated before those of the stages before it are chosen, so that what these do to the
    dispersion of arrivals is taken alike for all: see `KEPT_DISPERSION`. What an item waits behind the batch it came in
    is left to the replay.
    """
    visits = pipeline.visit_ratios[stage.name]
    demand = pipeline.demand
    # Dropping items at random brings any arrivals closer to Poisson's, in proportion.
    kept = visits * (KEPT_DISPERSION if stage.after else 1.0)
    return StageLoad(
        rate_rps=demand.entry_rate_rps * visits,
        sessions=demand.sessions,
        arrival_cv2=1 + kept * (demand.arrival_cv2 - 1),
        periodic=demand.sessions is not None and visits >= 1,
        latency_factor=stage.latency_factor,
    )
