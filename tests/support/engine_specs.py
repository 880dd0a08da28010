"""Pipelines for tests of the simulator's engine, and runs of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.core.state.spec import (
    DemandUnit,
    Mode,
    PipelineQueries,
    PipelineSpec,
    PlacementSpec,
    Scaling,
    StageSpec,
    StepPolicy,
    Target,
)
from optimizer.model import PipelineKey, Placement, PlacementKey, PoolName, Routing, ServiceLaw, Sla, StageName
from simulations.engine.pipeline_engine import IDEAL, Conditions, PipelineEngine
from simulations.results.scoring import Clock
from simulations.scenario.schedule import Schedule


def a_placement(
    pool: str = "cpu", *, fixed_s: float = 0.01, per_item_s: float = 0.0, cv: float = 0.0, **limits: Any
) -> Placement:
    law = {"service": ServiceLaw(fixed_s=fixed_s, per_item_s=per_item_s, cv=cv)}
    return Placement(pool=PoolName(pool), max_replicas=100, **{**law, **limits})


def a_stage(
    name: str,
    *placements: Placement,
    after: Sequence[str] = (),
    pass_ratio: float = 1.0,
    routing: Routing = Routing.LEAST_LOADED,
    queue_limit: int | None = None,
) -> StageSpec:
    return StageSpec(
        name=StageName(name),
        after=tuple(map(StageName, after)),
        pass_ratio=pass_ratio,
        routing=routing,
        queue_limit=queue_limit,
        preset="generic",
        metrics_window_s=60.0,
        metric_overrides={},
        rules=(),
        placements=tuple(
            PlacementSpec(
                target=Target(api_version="apps/v1", kind="Deployment", name=f"{name}-{prior.pool}"),
                prior=prior,
                startup_s=0.0,
            )
            for prior in placements or (a_placement(),)
        ),
    )


def a_pipeline(*stages: StageSpec, chunk_s: float | None = None, sla_s: float = 1.0) -> PipelineSpec:
    step = StepPolicy(stabilization_s=0.0, max_share=1.0, max_replicas=1)
    return PipelineSpec(
        key=PipelineKey("speech/captions"),
        namespace="speech",
        name="captions",
        uid="1",
        generation=1,
        mode=Mode.AUTO,
        priority=0,
        unit=DemandUnit.REQUESTS if chunk_s is None else DemandUnit.STREAMS,
        chunk_s=chunk_s,
        queries=PipelineQueries(demand=""),
        sla=Sla(latency_s=sla_s),
        max_wer=None,
        budget_per_hour=1.0,
        scaling=Scaling(tolerance=0.0, up=step, down=step, drain_s=10.0),
        stages=stages,
    )


def requests(times_s: Iterable[float]) -> Schedule:
    start_s = np.array(list(times_s), dtype=np.float64)
    return Schedule(start_s=start_s, end_s=start_s)


def poisson(rate_rps: float, duration_s: float, seed: int = 1) -> Schedule:
    gaps = np.random.default_rng(seed).exponential(1 / rate_rps, round(rate_rps * duration_s * 1.5) + 50)
    times_s = np.cumsum(gaps)
    return requests(times_s[times_s < duration_s])


def streams(count: int, duration_s: float, *, mean_s: float, seed: int = 1) -> Schedule:
    rng = np.random.default_rng(seed)
    start_s = np.sort(rng.random(count) * duration_s * 0.8)
    return Schedule(start_s=start_s, end_s=start_s + rng.exponential(mean_s, count))


def an_engine(
    pipeline: PipelineSpec,
    schedule: Schedule,
    replicas: Mapping[tuple[str, str], int],
    *,
    duration_s: float,
    seed: int = 1,
    window_s: float = 10.0,
    conditions: Conditions = IDEAL,
) -> PipelineEngine:
    clock = Clock(duration_s=duration_s, warmup_s=0.0, window_s=window_s)
    engine = PipelineEngine(pipeline, schedule, clock=clock, seed=seed, conditions=conditions)
    for (stage, pool), count in replicas.items():
        key: PlacementKey = (StageName(stage), PoolName(pool))
        for _ in range(count):
            engine.add_replica(key)
    return engine


def fingerprint(engine: PipelineEngine) -> tuple[Any, ...]:
    """All that the engine shows of itself."""
    counters, ingress, arrays = engine.counters(), engine.ingress(), engine.tally().arrays
    values: list[NDArray[Any]] = [getattr(counters, name) for name in counters.__slots__]
    values += [np.asarray(getattr(ingress, name)) for name in ingress.__slots__]
    values += list(arrays)
    return tuple(value.tobytes() for value in values)
