"""Makes the optimizer's `Pipeline` and `Pool` from declared and measured values, for the operator and `sluice plan`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from controller.core.state.snapshot import PoolState
from controller.core.state.spec import DemandUnit, PipelineSpec, PlacementKey, PlacementSpec, PoolSpec, StageSpec
from optimizer.model import MOST_PASSED, Demand, Pipeline, Placement, Pool, PoolName, ServiceLaw, Sla, Stage
from profiler.correction import left_to_stages_s
from profiler.stages import PipelineProfile, PlacementProfile, StageProfile, to_grain

UNMEASURED = ServiceLaw(fixed_s=1e-6)
"""The service law in plans of a stage of which nothing was ever measured: it takes no part of the SLA."""
NO_REPLICAS: Mapping[PlacementKey, int] = MappingProxyType({})


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
    fallbacks: bool = False,
) -> Pipeline:
    """Return the pipeline `spec` for the optimizer, with `demand` in the pipeline's unit.

    The measurements in `profile`, rounded to the grain, replace priors and correct the model; None: the priors are
    used. `current` has the present replicas. `at_most` lowers the declared bounds where a pool cannot deliver.
    `latency_headroom` is the share of the SLA that the plan leaves unused, beside the measured time outside the stages.
    Placements without a declared or measured service law get new replicas only with `fallbacks`: nothing says that they
    would save money.
    """
    overhead_s = None if profile is None else profile.overhead_s
    profiles = {} if profile is None else {stage.name: stage for stage in profile.stages}
    return Pipeline(
        key=spec.key,
        stages=tuple(
            _stage(stage, profiles.get(stage.name), current, at_most, fallbacks=fallbacks) for stage in spec.stages
        ),
        demand=optimizer_demand(spec, demand),
        sla=Sla(
            latency_s=left_to_stages_s(spec.sla.latency_s, overhead_s) * (1 - latency_headroom),
            percentile=spec.sla.percentile,
        ),
        budget_per_hour=spec.budget_per_hour,
        priority=spec.priority,
        max_wer=spec.max_wer,
        basis=spec.basis,
    )


def stages_sla_s(spec: PipelineSpec, profile: PipelineProfile | None) -> float:
    """Return how much of the SLA (s) the measured time outside the stages leaves to them."""
    return left_to_stages_s(spec.sla.latency_s, None if profile is None else profile.overhead_s)


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


def billed_pool(state: PoolState, instances: int, held: Iterable[tuple[int, int]] = ()) -> Pool:
    """Return the pool for plans that count whole instances: with the prices of its nodes, and the replicas on them.

    `held` are the replicas that are not planned, as pairs (replicas per instance, replicas). Unaccounted replicas are
    added to them.
    """
    prices = sorted(map(state.node_price_per_hour, state.nodes), reverse=True)
    return replace(
        optimizer_pool(state.spec, instances),
        node_prices_per_hour=tuple(prices),
        held=(*(pair for pair in held if pair[1]), *(pair for pair in state.unaccounted.items() if pair[1])),
    )


def _stage(
    spec: StageSpec,
    profile: StageProfile | None,
    current: Mapping[PlacementKey, int],
    at_most: Mapping[PlacementKey, int],
    *,
    fallbacks: bool,
) -> Stage:
    measured = {} if profile is None else {placement.pool: placement for placement in profile.placements}
    most = {
        placement.pool: at_most.get((spec.name, placement.pool), placement.prior.max_replicas)
        for placement in spec.placements
    }
    return Stage(
        name=spec.name,
        placements=tuple(
            _placement(
                placement,
                law,
                measured.get(placement.pool),
                current=current.get((spec.name, placement.pool), 0),
                at_most=most[placement.pool]
                if may_grow
                else min(most[placement.pool], current.get((spec.name, placement.pool), 0)),
            )
            for placement, law, may_grow in _laws(spec, measured, most, fallbacks=fallbacks)
        ),
        after=spec.after,
        pass_ratio=spec.pass_ratio if profile is None else min(MOST_PASSED, to_grain(profile.pass_ratio)),
        routing=spec.routing,
        latency_factor=1.0 if profile is None else to_grain(profile.latency_factor),
    )


def _laws(
    spec: StageSpec, measured: Mapping[PoolName, PlacementProfile], most: Mapping[PoolName, int], *, fallbacks: bool
) -> Iterator[tuple[PlacementSpec, ServiceLaw, bool]]:
    """Yield each placement with the service law to plan with, and whether it may get new replicas.

    A placement without a law of its own is planned as the slowest measured one of its stage, and only as a fallback.
    While none of the stage is measured, the first placement that may have replicas gets them: how many does not follow
    from a law (`controller.core.assess.learning`).
    """
    own = {
        placement.pool: _law(placement, measured.get(placement.pool))
        for placement in spec.placements
        if placement.declared.service or (placement.pool in measured and measured[placement.pool].measured)
    }
    limits = {placement.pool: placement.prior.batch_sizes[-1] for placement in spec.placements}
    slowest = max(own, key=lambda pool: own[pool].mean_s(limits[pool]) / limits[pool], default=None)
    first = next((pool for pool, count in most.items() if count > 0), None)
    for placement in spec.placements:
        if placement.pool in own:
            yield placement, own[placement.pool], True
        elif slowest is not None:
            yield placement, own[slowest], fallbacks
        else:
            yield placement, UNMEASURED, fallbacks or placement.pool == first


def _law(spec: PlacementSpec, measured: PlacementProfile | None) -> ServiceLaw:
    if measured is None:
        return spec.prior.service
    if spec.declared.service:
        return spec.prior.service.scaled(to_grain(measured.service_factor))
    law = measured.service
    return ServiceLaw(fixed_s=to_grain(law.fixed_s), per_item_s=to_grain(law.per_item_s), cv=to_grain(law.cv))


def _placement(
    spec: PlacementSpec, service: ServiceLaw, measured: PlacementProfile | None, *, current: int, at_most: int
) -> Placement:
    prior = spec.prior
    most = max(0, min(prior.max_replicas, at_most))
    saturation_rps = prior.saturation_rps
    if measured is not None:
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
