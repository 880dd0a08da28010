"""From what the user asked and what was measured to the optimizer's question. `sluice plan` asks it the same way."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from controller.core.state.spec import DemandUnit, PipelineSpec, PlacementKey, PlacementSpec, PoolSpec, StageSpec
from optimizer.model import Demand, Pipeline, Placement, Pool, Sla, Stage
from profiler.profile import PipelineProfile, PlacementProfile, StageProfile

NO_REPLICAS: Mapping[PlacementKey, int] = MappingProxyType({})

GRAIN = 0.01
"""What was measured is told apart to this share: no measurement is better, and a question that noise alone has changed
would be searched anew, and answered another way, in every cycle."""


def rounded_up(demand: float) -> float:
    """Return the demand to plan for: the least multiple of the grain that is not below `demand`."""
    if demand <= 0:
        return demand
    return max(demand, math.exp(math.ceil(math.log(demand) / GRAIN - 1e-9) * GRAIN))


def _rounded(value: float) -> float:
    return value if value <= 0 else math.exp(round(math.log(value) / GRAIN) * GRAIN)


def pipeline_problem(
    spec: PipelineSpec,
    demand: float,
    *,
    profile: PipelineProfile | None = None,
    current: Mapping[PlacementKey, int] = NO_REPLICAS,
    at_least: Mapping[PlacementKey, int] = NO_REPLICAS,
    at_most: Mapping[PlacementKey, int] = NO_REPLICAS,
    latency_headroom: float = 0.0,
) -> Pipeline:
    """Return what `spec` asks of the optimizer at `demand` (in the pipeline's own unit).

    Priors are replaced and the model is corrected by what `profile` measured, to the `GRAIN`. `at_least` keeps replicas
    whatever the declared bounds say; `at_most` lowers the bounds where a pool cannot deliver. `latency_headroom` is the
    share of the SLA left unused.
    """
    profiles = {} if profile is None else {stage.name: stage for stage in profile.stages}
    return Pipeline(
        key=spec.key,
        stages=tuple(_stage(stage, profiles.get(stage.name), current, at_least, at_most) for stage in spec.stages),
        demand=Demand(
            entry_rate_rps=demand * spec.items_per_unit_s,
            sessions=demand if spec.unit is DemandUnit.STREAMS else None,
        ),
        sla=Sla(latency_s=spec.sla.latency_s * (1 - latency_headroom), percentile=spec.sla.percentile),
        budget_per_hour=spec.budget_per_hour,
        priority=spec.priority,
        max_wer=spec.max_wer,
    )


def pool_problem(spec: PoolSpec, instances: int) -> Pool:
    """Return the pool with at most `instances` to plan with."""
    return Pool(name=spec.name, price_per_hour=spec.price_per_hour, instances=instances)


def _stage(
    spec: StageSpec,
    profile: StageProfile | None,
    current: Mapping[PlacementKey, int],
    at_least: Mapping[PlacementKey, int],
    at_most: Mapping[PlacementKey, int],
) -> Stage:
    measured = {} if profile is None else {placement.pool: placement for placement in profile.placements}
    return Stage(
        name=spec.name,
        placements=tuple(
            _placement(
                placement,
                measured.get(placement.pool),
                current=current.get((spec.name, placement.pool), 0),
                at_least=at_least.get((spec.name, placement.pool), 0),
                at_most=at_most.get((spec.name, placement.pool), placement.prior.max_replicas),
            )
            for placement in spec.placements
        ),
        after=spec.after,
        pass_ratio=spec.pass_ratio if profile is None else min(1.0, _rounded(profile.pass_ratio)),
        routing=spec.routing,
        latency_factor=1.0 if profile is None else _rounded(profile.latency_factor),
    )


def _placement(
    spec: PlacementSpec, measured: PlacementProfile | None, *, current: int, at_least: int, at_most: int
) -> Placement:
    prior = spec.prior
    highest = max(at_least, min(prior.max_replicas, at_most))
    service, saturation_rps = prior.service, prior.saturation_rps
    if measured is not None:
        service = service.scaled(_rounded(measured.service_factor))
        saturation_rps = None if measured.saturation_rps is None else _rounded(measured.saturation_rps)
    now: dict[str, Any] = {
        "service": service,
        "saturation_rps": saturation_rps,
        "min_replicas": max(at_least, min(prior.min_replicas, highest)),
        "max_replicas": highest,
        "current": current,
    }
    changed = {name: value for name, value in now.items() if value != getattr(prior, name)}
    return replace(prior, **changed) if changed else prior
