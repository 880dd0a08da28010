"""The comparison of devices for the stages of one pipeline: replicas, latency and cost on each, and the best mix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

from controller.core.assess.optimizer_input import optimizer_demand
from controller.core.state.spec import DemandUnit, PipelineSpec, PlacementSpec
from controller.hardware.priors import Prior
from controller.hardware.spot import away_share, spares
from optimizer.model import Demand, Placement, PlacementName, PoolName, Stage, StageName, whole_instances
from optimizer.plan import PipelinePlan, StagePlan
from optimizer.reports.devices import BreakEven, Devices, replicas_by_work

WORK_UTILIZATION = 0.7
"""The utilization at which plain arithmetic counts replicas, for comparison with the plan."""
LAUNCH_S = 120.0
"""How long the node takes that replaces a reclaimed spot instance, in seconds: as long as AWS warns before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRisk:
    """The replicas that stand in for reclaimed ones: `spares` more of them, at `cost_per_hour` USD for all.

    `interruptions` is the share of instances that are interrupted in a month, `per_month` how often that is for all
    together, and `away` the share of its time that a replica is then away.
    """

    interruptions: float
    per_month: float
    away: float
    spares: int
    cost_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A stage on one placement only, at the load that is compared.

    `planned` is the stage in the cheapest plan of the whole pipeline with it there, `pipeline` that plan. Costs are in
    USD per hour: `cost_per_hour` of the stage, None where no plan keeps the SLA. A unit of the load takes `device_s`
    seconds of a replica each second, with full batches. `law_from` says whose the service law
    is, with its `source` and `confidence`. `beyond` has the declared instances of the pool where more are needed.
    """

    name: PlacementName
    pipeline: PipelinePlan
    planned: StagePlan
    replicas: int
    instances: int
    cost_per_hour: float | None
    device_s: float
    law_from: str
    source: str | None
    confidence: str | None
    wer: float | None
    beyond: int | None = None
    excluded: str | None = None
    spot: SpotRisk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDevices:
    """A stage on each of its devices, the cheapest first, and the loads from which another one is cheaper."""

    name: StageName
    devices: tuple[Device, ...]
    break_evens: tuple[BreakEven, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The cheapest plan at one load (in the pipeline's unit), with cost in USD per hour and instances of each pool."""

    load: float
    plan: PipelinePlan
    cost_per_hour: Mapping[PoolName, float]
    instances: Mapping[PoolName, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison for the pipeline `spec` at `demand`, in its own unit. `notes` are for people."""

    spec: PipelineSpec
    demand: float
    stages: tuple[StageDevices, ...]
    mix: tuple[Mix, ...]
    notes: tuple[str, ...] = ()

    def by_work(self, device: Device) -> int:
        """Return the replicas of `device` by plain arithmetic, at `WORK_UTILIZATION`."""
        return replicas_by_work(self.demand, device.device_s, WORK_UTILIZATION)

    @property
    def feasible(self) -> bool:
        """Return whether some device of every stage keeps the SLA at the load."""
        return all(any(device.cost_per_hour is not None for device in own.devices) for own in self.stages)

    def per_unit(self, cost_per_hour: float) -> float:
        """Return a cost per hour as cost per stream-hour or, with unit Requests, per 1,000 requests."""
        each = cost_per_hour / self.demand if self.demand else 0.0
        return each if self.spec.unit is DemandUnit.STREAMS else each / 3600 * 1000

    def load_of(self, demand: Demand) -> float:
        """Return a demand of the optimizer in the pipeline's own unit."""
        return demand.entry_rate_rps / self.spec.items_per_unit_s


def compared(
    devices: Devices,
    spec: PipelineSpec,
    demand: float,
    *,
    limits: Mapping[PoolName, int | None],
    priors: Mapping[PlacementName, Prior],
    interruptions: Mapping[PoolName, float],
    loads: Sequence[float],
    only: str | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """Return the comparison at `demand`, with the cheapest mix at each of `loads`, all in the unit of `spec`.

    `limits` has the declared instances of each pool, `priors` what the placements are that `spec` does not declare,
    `interruptions` the share of instances that are interrupted in a month, for pools of spot instances. `only` names
    the one stage to compare, None: all.
    """
    asked, demands = optimizer_demand(spec, demand), [optimizer_demand(spec, load) for load in loads]
    stages = []
    for stage in devices.pipeline.stages:
        if only is not None and stage.name != only:
            continue
        found = [
            _device(devices, spec, asked, stage, placement, limits, priors, interruptions)
            for placement in stage.placements
        ]
        found.sort(key=lambda own: (own.cost_per_hour is None, own.pipeline.cost_per_hour))
        stages.append(
            StageDevices(name=stage.name, devices=tuple(found), break_evens=devices.break_evens(stage.name, demands))
        )
    points = devices.mix(demands)
    return Comparison(
        spec=spec,
        demand=demand,
        stages=tuple(stages),
        mix=tuple(
            Mix(load=load, plan=point.plan, cost_per_hour=point.cost_per_hour, instances=point.instances)
            for load, point in zip(loads, points, strict=True)
        ),
        notes=tuple(notes),
    )


def _device(
    devices: Devices,
    spec: PipelineSpec,
    demand: Demand,
    stage: Stage,
    placement: Placement,
    limits: Mapping[PoolName, int | None],
    priors: Mapping[PlacementName, Prior],
    interruptions: Mapping[PoolName, float],
) -> Device:
    plan = devices.plan(demand, stage.name, placement.name)
    (planned,) = (own for own in plan.stages if own.name == stage.name)
    visits = planned.rate_rps / demand.entry_rate_rps
    replicas = sum(each.replicas for each in planned.placements)
    instances = whole_instances([(placement.per_instance, replicas)])
    cost = devices.stage_cost_per_hour(planned) if plan.feasible else None
    declared = spec.placements().get((stage.name, placement.name))
    prior, limit = priors.get(placement.name), limits.get(placement.pool)
    excess = None if declared is None else spec.excess_wer(declared)
    return Device(
        name=placement.name,
        pipeline=plan,
        planned=planned,
        replicas=replicas,
        instances=instances,
        cost_per_hour=cost,
        device_s=visits * spec.items_per_unit_s / placement.law_rps(placement.batch_sizes[-1]),
        law_from="prior" if prior is not None else "declared",
        source=prior.source if prior is not None else None if declared is None else declared.source,
        confidence=prior.confidence if prior is not None else None if declared is None else declared.confidence,
        wer=placement.wer,
        beyond=limit if limit is not None and instances > limit else None,
        excluded=None if excess is None else excess.field,
        spot=_spot(interruptions.get(placement.pool), declared, replicas, cost),
    )


def _spot(
    interruptions: float | None, declared: PlacementSpec | None, replicas: int, cost_per_hour: float | None
) -> SpotRisk | None:
    if interruptions is None or cost_per_hour is None or declared is None or not replicas:
        return None
    away = away_share(interruptions, LAUNCH_S + declared.startup_s)
    more = spares(replicas, away)
    instances = whole_instances([(declared.prior.per_instance, replicas)])
    return SpotRisk(
        interruptions=interruptions,
        per_month=-log(1 - interruptions) * instances,
        away=away,
        spares=more,
        cost_per_hour=cost_per_hour / replicas * (replicas + more),
    )
