"""Makes the optimizer's `Pipeline` and `Pool` from declared and measured values, for the operator and `sluice plan`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from controller.core.state.spec import DemandUnit, PipelineSpec, PlacementKey, PlacementSpec, PoolSpec, StageSpec
from optimizer.model import MOST_PASSED, Demand, Pipeline, Placement, Pool, Sla, Stage
from profiler.stages import GRAIN, PipelineProfile, PlacementProfile, StageProfile, to_grain

NEGLIGIBLE_OVERHEAD = 0.05
LEAST_SHARE = 0.05
"""The share of the SLA that the stages keep at least: an SLA of zero would be no problem to solve."""
NO_REPLICAS: Mapping[PlacementKey, int] = MappingProxyType({})


def rounded_up(demand: float) -> float:
    """Return the demand to plan for: `demand` rounded up to a power of e^GRAIN, by about 1 % at most."""
    if demand <= 0:
        return demand
    return max(demand, math.exp(math.ceil(math.log(demand) / GRAIN - 1e-9) * GRAIN))


def optimizer_demand(spec: PipelineSpec, demand: float) -> Demand:
    """Return `demand`, given in the pipeline's unit, as items per second and, for unit Streams, as streams."""
    return Demand(
        entry_rate_rps=demand * spec.items_per_unit_s,
        sessions=demand if spec.unit is DemandUnit.STREAMS else None,
    )


def optimizer_pipeline(
    spec: PipelineSpec,
    demand: float,
    *,
    profile: PipelineProfile | None = None,
    current: Mapping[PlacementKey, int] = NO_REPLICAS,
    at_most: Mapping[PlacementKey, int] = NO_REPLICAS,
    latency_headroom: float = 0.0,
) -> Pipeline:
    """Return the pipeline `spec` for the optimizer, with `demand` in the pipeline's unit.

    The measurements in `profile`, rounded to the grain, replace priors and correct the model; None: the priors are
    used. `current` has the present replicas. `at_most` lowers the declared bounds where a pool cannot deliver.
    `latency_headroom` is the share of the SLA that the plan leaves unused, beside the measured time outside the stages.
    """
    profiles = {} if profile is None else {stage.name: stage for stage in profile.stages}
    return Pipeline(
        key=spec.key,
        stages=tuple(_stage(stage, profiles.get(stage.name), current, at_most) for stage in spec.stages),
        demand=optimizer_demand(spec, demand),
        sla=Sla(
            latency_s=stages_sla_s(spec, profile) * (1 - latency_headroom),
            percentile=spec.sla.percentile,
        ),
        budget_per_hour=spec.budget_per_hour,
        priority=spec.priority,
        max_wer=spec.max_wer,
    )


def stages_sla_s(spec: PipelineSpec, profile: PipelineProfile | None) -> float:
    """Return how much of the SLA (s) the measured time outside the stages leaves to them.

    A measured overhead below `NEGLIGIBLE_OVERHEAD` of the SLA is within the error of the measurement.
    """
    sla_s = spec.sla.latency_s
    overhead_s = 0.0 if profile is None or profile.overhead_s is None else profile.overhead_s
    if overhead_s < NEGLIGIBLE_OVERHEAD * sla_s:
        return sla_s
    return sla_s * to_grain(max(LEAST_SHARE, 1 - overhead_s / sla_s))


def keeping(pipeline: Pipeline, replicas: Mapping[PlacementKey, int]) -> Pipeline:
    """Return `pipeline` with `replicas` as the least of their placements, also where they exceed a maximum."""

    def raised(placement: Placement, least: int) -> Placement:
        least, most = max(placement.min_replicas, least), max(placement.max_replicas, least)
        return replace(placement, min_replicas=least, max_replicas=most)

    return _bounded(pipeline, replicas, raised)


def limited(pipeline: Pipeline, at_most: Mapping[PlacementKey, int]) -> Pipeline:
    """Return `pipeline` with `at_most` as the most of their placements, also where they are below a minimum."""

    def lowered(placement: Placement, most: int) -> Placement:
        least, most = min(placement.min_replicas, most), min(placement.max_replicas, most)
        return replace(placement, min_replicas=least, max_replicas=most)

    return _bounded(pipeline, at_most, lowered)


def _bounded(
    pipeline: Pipeline, counts: Mapping[PlacementKey, int], bounded: Callable[[Placement, int], Placement]
) -> Pipeline:
    if not counts:
        return pipeline
    stages = tuple(
        replace(
            stage,
            placements=tuple(
                bounded(placement, counts[(stage.name, placement.pool)])
                if (stage.name, placement.pool) in counts
                else placement
                for placement in stage.placements
            ),
        )
        for stage in pipeline.stages
    )
    return replace(pipeline, stages=stages)


def optimizer_pool(spec: PoolSpec, instances: int) -> Pool:
    """Return the pool `spec` for the optimizer, with `instances` as its capacity."""
    return Pool(name=spec.name, price_per_hour=spec.price_per_hour, instances=instances)


def _stage(
    spec: StageSpec,
    profile: StageProfile | None,
    current: Mapping[PlacementKey, int],
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
                at_most=at_most.get((spec.name, placement.pool), placement.prior.max_replicas),
            )
            for placement in spec.placements
        ),
        after=spec.after,
        pass_ratio=spec.pass_ratio if profile is None else min(MOST_PASSED, to_grain(profile.pass_ratio)),
        routing=spec.routing,
        latency_factor=1.0 if profile is None else to_grain(profile.latency_factor),
    )


def _placement(spec: PlacementSpec, measured: PlacementProfile | None, *, current: int, at_most: int) -> Placement:
    prior = spec.prior
    most = max(0, min(prior.max_replicas, at_most))
    service, saturation_rps = prior.service, prior.saturation_rps
    if measured is not None:
        service = service.scaled(to_grain(measured.service_factor))
        saturation_rps = None if measured.saturation_rps is None else to_grain(measured.saturation_rps)
    now: dict[str, Any] = {
        "service": service,
        "saturation_rps": saturation_rps,
        "min_replicas": min(prior.min_replicas, most),
        "max_replicas": most,
        "current": current,
    }
    changed = {name: value for name, value in now.items() if value != getattr(prior, name)}
    return replace(prior, **changed) if changed else prior
