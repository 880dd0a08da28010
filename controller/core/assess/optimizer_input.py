"""Makes the optimizer's `Pipeline` and `Pool` from declared and measured values, for the operator and `sluice plan`."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from controller.core.state.bound import Limits
from controller.core.state.snapshot import PoolState
from controller.core.state.spec import DemandUnit, PipelineSpec, PlacementSpec, PoolSpec, StageSpec
from optimizer.model import (
    MOST_PASSED,
    Demand,
    Mixing,
    Pipeline,
    Placement,
    PlacementKey,
    PlacementName,
    Pool,
    ServiceLaw,
    Size,
    Sla,
    Stage,
)
from profiler.correction import left_to_stages_s
from profiler.samples import Answer
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
    latency_headroom: float = 0.0,
    known_only: bool = True,
) -> Pipeline:
    """Return the pipeline `spec` for the optimizer, with `demand` in the pipeline's unit, within its declared bounds.

    The measurements in `profile`, rounded to the grain, replace priors and correct the model; None: the priors are
    used. `current` has the present replicas. `latency_headroom` is the share of the SLA that the plan leaves unused,
    beside the measured time outside the stages. With `known_only`, placements that `never_measured` names get no more
    replicas than they have.
    """
    overhead_s = None if profile is None else profile.overhead_s
    profiles = {} if profile is None else {stage.name: stage for stage in profile.stages}
    return Pipeline(
        key=spec.key,
        stages=tuple(
            _stage(
                stage,
                profiles.get(stage.name),
                current,
                known_only=known_only,
                usable=_usable(spec),
                mixing=spec.scaling.mixing,
            )
            for stage in spec.stages
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

    def raised(stage: Stage, placement: Placement) -> tuple[int, int]:
        least = max(placement.min_replicas, replicas.get((stage.name, placement.name), 0))
        return least, max(placement.max_replicas, least)

    return pipeline.bounded(raised) if replicas else pipeline


def with_floors(pipeline: Pipeline, replicas: Mapping[PlacementKey, int]) -> Pipeline:
    """Return `pipeline` with `replicas` as the least of their placements, and their sums as the least of the stages."""
    kept = keeping(pipeline, replicas)
    least = {stage.name: sum(placement.min_replicas for placement in stage.placements) for stage in kept.stages}
    stages = (replace(stage, min_replicas=max(stage.min_replicas, least[stage.name])) for stage in kept.stages)
    return replace(kept, stages=tuple(stages))


def inside(pipeline: Pipeline, limits: Limits) -> Pipeline:
    """Return `pipeline` with `limits` as the bounds of its placements. A stage that may have no replica has no minimum.

    The placements of shared stages that belong to other pipelines keep their bounds if `limits` has none for them.
    """

    def within(stage: Stage, placement: Placement) -> tuple[int, int]:
        key = (stage.name, placement.name)
        if key not in limits.lower and key not in limits.upper:
            return placement.min_replicas, placement.max_replicas
        least = limits.least(key)
        return least, int(limits.most(key)) if key in limits.upper else max(least, placement.max_replicas)

    bounded = pipeline.bounded(within)
    if all(limits.floors.get(stage.name) for stage in bounded.stages):
        return bounded
    stages = (
        replace(stage, min_replicas=0)
        if stage.name not in limits.floors and not any(placement.max_replicas for placement in stage.placements)
        else stage
        for stage in bounded.stages
    )
    return replace(bounded, stages=tuple(stages))


def optimizer_pool(spec: PoolSpec, instances: int) -> Pool:
    """Return the pool `spec` for the optimizer, with `instances` as its capacity."""
    return Pool(name=spec.name, price_per_hour=spec.price_per_hour, instances=instances)


def billed_pool(state: PoolState, instances: int, held: Iterable[tuple[Size, int]] = ()) -> Pool:
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
    *,
    known_only: bool,
    usable: Callable[[PlacementSpec], bool],
    mixing: Mixing,
) -> Stage:
    unknown = never_measured(spec, profile, lambda placement: placement.prior.max_replicas) if known_only else ()
    measured = {} if profile is None else {placement.name: placement for placement in profile.placements}
    laws = _laws(spec, profile, measured)
    return Stage(
        name=spec.name,
        placements=tuple(
            _placement(
                placement,
                laws[placement.name],
                measured.get(placement.name),
                current.get((spec.name, placement.name), 0),
                may_grow=placement.name not in unknown,
                usable=usable(placement),
            )
            for placement in spec.placements
        ),
        after=spec.after,
        pass_ratio=spec.pass_ratio if profile is None else min(MOST_PASSED, to_grain(profile.pass_ratio)),
        routing=spec.routing,
        latency_factor=1.0 if profile is None else to_grain(profile.latency_factor),
        first_answer=spec.metrics_answer is Answer.FIRST,
        cascade=None if spec.cascade is None else spec.cascade.planned,
        mixing=mixing,
    )


def _usable(spec: PipelineSpec) -> Callable[[PlacementSpec], bool]:
    return lambda placement: spec.excess_wer(placement) is None


def has_law(placement: PlacementSpec, profile: StageProfile | None) -> bool:
    """Return whether the service law of a placement is declared, or measured as its stage's `profile` says."""
    if placement.declared.service or profile is None:
        return placement.declared.service
    return any(own.name == placement.name and own.measured for own in profile.placements)


def without_law(spec: PipelineSpec, profile: PipelineProfile) -> StageSpec | None:
    """Return the first stage of which no placement has a service law, None where every stage has one.

    What replicas of such a stage do is not known: plans count them as if they took no time.
    """
    profiles = {stage.name: stage for stage in profile.stages}
    return next(
        (stage for stage in spec.stages if not any(has_law(own, profiles[stage.name]) for own in stage.placements)),
        None,
    )


def never_measured(
    spec: StageSpec, profile: StageProfile | None, most: Callable[[PlacementSpec], float]
) -> Collection[PlacementName]:
    """Return the placements that get no replica to save money: nothing says that it would.

    These are the placements without a service law. While no placement of the stage has one, the first of
    them that may have replicas (by `most`) is left out.
    """
    without = [placement for placement in spec.placements if not has_law(placement, profile)]
    if len(without) == len(spec.placements):
        first = next((placement for placement in without if most(placement) > 0), None)
        without = [placement for placement in without if placement is not first]
    return [placement.name for placement in without]


def _laws(
    spec: StageSpec, profile: StageProfile | None, measured: Mapping[PlacementName, PlacementProfile]
) -> Mapping[PlacementName, ServiceLaw]:
    """Return the service law to plan with for each placement: without one of its own, that of the slowest known one."""
    own = {
        placement.name: _law(
            placement,
            measured.get(placement.name),
            1.0 if profile is None else profile.crowding(placement.name).growth,
        )
        for placement in spec.placements
        if has_law(placement, profile)
    }
    if len(own) == len(spec.placements):
        return own
    limits = {placement.name: placement.prior.batch_sizes[-1] for placement in spec.placements}
    slowest = min(own, key=lambda name: own[name].rate_rps(limits[name]), default=None)
    other = UNMEASURED if slowest is None else own[slowest]
    return {placement.name: own.get(placement.name, other) for placement in spec.placements}


def _law(spec: PlacementSpec, measured: PlacementProfile | None, growth: float) -> ServiceLaw:
    """Return the service law of a placement whose times grow by `growth` when its neighbours are as busy as planned."""
    if measured is None:
        return spec.prior.service
    if spec.declared.service:
        return spec.prior.service.scaled(to_grain(measured.service_factor * growth))
    return measured.service.scaled(growth).rounded(to_grain)


def _placement(
    spec: PlacementSpec,
    service: ServiceLaw,
    measured: PlacementProfile | None,
    current: int,
    *,
    may_grow: bool,
    usable: bool,
) -> Placement:
    prior = spec.prior
    most = 0 if not usable else prior.max_replicas if may_grow else min(prior.max_replicas, current)
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
