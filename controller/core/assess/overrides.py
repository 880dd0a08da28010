"""What the annotations of pipelines set for a time: pauses and pinned replicas."""

import math
from collections.abc import Mapping
from dataclasses import replace

from controller.core.assess.budgets import group_budgets
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, PoolState, Snapshot
from controller.core.state.spec import Mode, PipelineSpec, PlacementKey, PlacementSpec
from optimizer.model import Basis, PoolName

_EPSILON = 1e-9


def with_overrides(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """Return the snapshot with the overrides in force applied to the specs, and without those that have ended.

    A paused pipeline gets mode Paused. A pinned placement gets the pinned replicas as its bounds, so that plans have
    exactly these, and the other placements of its stage carry the rest. Of a pin that costs more than the budgets
    allow, as many replicas count as leave the money for one replica of every other stage: otherwise no plan would
    serve anything.
    """
    if not any(state.spec.overrides.pause or state.spec.overrides.pins for state in snapshot.pipelines):
        return snapshot
    fleet = math.inf if policy.budget_per_hour is None else policy.budget_per_hour
    budgets = group_budgets(snapshot)

    def applied(state: PipelineState) -> PipelineState:
        spec = _in_force(state.spec, snapshot.now_s)
        if not spec.overrides.pins:
            return state if spec == state.spec else replace(state, spec=spec)
        groups = (budget.per_hour for budget in budgets if spec.key in budget.pipelines)
        money = min(spec.budget_per_hour, fleet, *groups)
        return replace(state, spec=_bounded(spec, _affordable(spec, snapshot.pools, money)))

    return replace(snapshot, pipelines=tuple(map(applied, snapshot.pipelines)))


def _in_force(spec: PipelineSpec, now_s: float) -> PipelineSpec:
    """Return `spec` in mode Paused while it is paused, without the overrides that have ended at `now_s`."""

    def ended(until_s: float | None) -> bool:
        return until_s is not None and now_s >= until_s

    pause = spec.overrides.pause
    if pause is not None and (ended(pause.until_s) or spec.mode is Mode.PAUSED):
        pause = None
    pins = {key: pin for key, pin in spec.overrides.pins.items() if not ended(pin.until_s)}
    overrides = replace(spec.overrides, pause=pause, pins=pins)
    return replace(spec, overrides=overrides, mode=spec.mode if pause is None else Mode.PAUSED)


def _affordable(spec: PipelineSpec, pools: Mapping[PoolName, PoolState], per_hour: float) -> Mapping[PlacementKey, int]:
    """Return the pinned replicas, reduced where they cost more than `per_hour` USD with a replica of each other stage.

    The pins count in the order of the annotation.
    """
    placements, pins = spec.placements(), spec.overrides.pins

    def cost_per_hour(key: PlacementKey, replicas: int) -> float:
        placement = placements[key]
        if placement.pool not in pools:
            return 0.0
        per_instance, price = placement.prior.per_instance, pools[placement.pool].spec.price_per_hour
        instances = replicas / per_instance
        return price * (math.ceil(instances) if spec.basis is Basis.INSTANCES else instances)

    left = per_hour
    for stage in spec.stages:
        keys = [(stage.name, placement.pool) for placement in stage.placements]
        if keys and stage.shared_from is None and not any(key in pins and pins[key].replicas for key in keys):
            left -= min((cost_per_hour(key, 1) for key in keys if key not in pins), default=0.0)
    counts: dict[PlacementKey, int] = {}
    for key, pin in pins.items():
        count = pin.replicas
        while count and cost_per_hour(key, count) > left + _EPSILON:
            count -= 1
        counts[key] = count
        left -= cost_per_hour(key, count)
    return counts


def _bounded(spec: PipelineSpec, replicas: Mapping[PlacementKey, int]) -> PipelineSpec:
    """Return `spec` with `replicas` as both bounds of their placements."""

    def bounded(placement: PlacementSpec, count: int | None) -> PlacementSpec:
        if count is None:
            return placement
        return replace(placement, prior=replace(placement.prior, min_replicas=count, max_replicas=count))

    return replace(
        spec,
        stages=tuple(
            replace(
                stage,
                placements=tuple(
                    bounded(placement, replicas.get((stage.name, placement.pool))) for placement in stage.placements
                ),
            )
            for stage in spec.stages
        ),
    )
