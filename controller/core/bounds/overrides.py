"""What the annotations of pipelines set for a time: pauses and pinned replicas."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from controller.core.assess.budgets import group_budgets
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, PoolState, Snapshot
from controller.core.state.spec import Mode, Pin, PipelineSpec
from optimizer.model import Basis, PlacementKey, PoolName, pool_of, whole_instances

_EPSILON = 1e-9


def with_overrides(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """Return the snapshot with the overrides in force applied to the specs, and without those that have ended.

    A paused pipeline gets mode Paused. Of a pin that costs more than the budgets allow, or needs more of its pool than
    there is, as many replicas fit as leave money and room for one replica of every other stage: otherwise no plan would
    serve anything. `controller.core.bounds.pins` makes bounds of the pins.
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
        pins = _possible(replace(state, spec=spec), snapshot.pools, money)
        return replace(state, spec=replace(spec, overrides=replace(spec.overrides, pins=pins)))

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


def _possible(state: PipelineState, pools: Mapping[PoolName, PoolState], per_hour: float) -> Mapping[PlacementKey, Pin]:
    """Return the pins with `fits`: reduced to what `per_hour` USD and the pools have room for.

    The pins count in the order of the annotation. Money and room for one replica of every other stage are left.
    """
    spec = state.spec
    placements, pins, money = spec.placements(), spec.overrides.pins, per_hour
    stages = {stage.name: [key for key in placements if key[0] == stage.name] for stage in spec.stages}
    candidates = {
        stage.name: [key for key in stages[stage.name] if key not in pins or pins[key].replicas]
        for stage in spec.stages
        if stage.shared_from is None
    }
    room = {pool: _room(state, pools[pool]) for key in pins if (pool := pool_of(key[1])) in pools}
    counted: dict[PlacementKey, int] = {}

    def cost_per_hour(key: PlacementKey, replicas: int) -> float:
        if (pool := pools.get(pool_of(key[1]))) is None:
            return 0.0
        instances = replicas / placements[key].prior.per_instance
        return pool.spec.price_per_hour * (math.ceil(instances) if spec.basis is Basis.INSTANCES else instances)

    def instances(counts: Mapping[PlacementKey, int], pool: PoolName) -> int:
        sizes = [
            (placements[key].prior.per_instance, count) for key, count in counts.items() if pool_of(key[1]) == pool
        ]
        return whole_instances(sizes)

    def affordable(key: PlacementKey, count: int, per_hour: float) -> bool:
        return cost_per_hour(key, count) <= per_hour + _EPSILON

    def placeable(key: PlacementKey, count: int, others: Mapping[PlacementKey, int]) -> bool:
        pool = pool_of(key[1])
        return pool not in room or instances({**others, key: count}, pool) <= room[pool]

    fitting: dict[PlacementKey, Pin] = {}
    for key, pin in pins.items():
        served = {stage for (stage, _), count in counted.items() if count} | {key[0]}
        unserved = [keys for stage, keys in candidates.items() if stage not in served and keys]
        left = money - sum(min(cost_per_hour(other, 1) for other in keys) for keys in unserved)
        beside = counted | {
            keys[0]: 1 for keys in unserved if all(pool_of(other[1]) == pool_of(key[1]) for other in keys)
        }
        by_budget = _most(pin.replicas, partial(affordable, key, per_hour=left))
        by_pool = _most(pin.replicas, partial(placeable, key, others=beside))
        fits = min(by_budget, by_pool)
        short_of = "" if fits == pin.replicas else f"pool {pool_of(key[1])}" if by_pool < by_budget else "the budget"
        fitting[key] = replace(pin, fits=fits, short_of=short_of)
        counted[key] = fits
        money -= cost_per_hour(key, fits)
    return fitting


def _room(state: PipelineState, pool: PoolState) -> int:
    """Return how many instances of the pool the pins may have: at least those that they have, if the limit may rise."""
    placements = state.spec.placements()
    running = [
        (placements[key].prior.per_instance, min(pin.replicas, state.desired(*key)))
        for key, pin in state.spec.overrides.pins.items()
        if pool_of(key[1]) == pool.spec.name
    ]
    return pool.limit_holding(whole_instances(running))


def _most(most: int, possible: Callable[[int], bool]) -> int:
    """Return the largest count up to `most` that is `possible`, 0 where none is."""
    return next((count for count in range(most, 0, -1) if possible(count)), 0)
