"""What one pod, tenant, node or number can do to others is bounded: rules that hold in every hostile world.

Each test draws many worlds from seeds; a failure names its seed.
"""

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from builders import NOW_S, applied
from explained import explain
from hostile_worlds import (
    KEY,
    World,
    a_victim,
    a_world,
    contradicted,
    failed_launches,
    remembered,
    serving,
    who_does_not_act,
    with_stuck_pods,
)

from controller.core.assess.demand import stabilised_demand
from controller.core.bounds.availability import find_availability
from controller.core.cycle import decide
from controller.core.messages.conditions import conditions, pool_conditions
from controller.core.messages.summary import summary
from controller.core.state.carry_over import PipelineMemory
from controller.core.state.decision import Decision
from controller.core.state.snapshot import PipelineState, TargetState
from controller.core.state.spec import Mode
from optimizer.model import PipelineKey, pool_of

SHARE = 10
PARTS = 2
parts = pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.extended)])
"""The worlds of a test in parts, which run at the same time."""


def rngs(part: int, salt: int, count: int, *known: int) -> Iterator[tuple[int, random.Random]]:
    """Yield the seeds of a part of `count` worlds, and those `known` to have failed, each with its generator."""
    for seed in (*range(part, count, PARTS), *(known if part == 0 else ())):
        yield seed, random.Random(seed * 1009 + salt)


def after(decision: Decision) -> Mapping[str, int]:
    return {own.spec.name: own.desired[KEY] for own in decision.pipelines}


def victims(world: World) -> Iterator[PipelineState]:
    return (state for state in world.snapshot.pipelines if state.spec.name.startswith("v"))


def ready(state: PipelineState) -> int:
    return state.ready(*KEY)


def only_occupying(state: PipelineState) -> PipelineState:
    """Return a pipeline that does not act with only those replicas that have a node of the pool."""
    target = state.target(*KEY)
    assert isinstance(target, TargetState)
    there = target.placed
    return replace(
        state, targets={KEY: replace(target, desired=there, existing=there, terminating=0, pending=(), starting=())}
    )


@parts
def test_what_is_only_asked_for_ends_no_ready_replica_of_others(part: int) -> None:
    for seed, rng in rngs(part, 1, 1500 // SHARE, 132):
        hostile = [who_does_not_act(rng, f"h{number}") for number in range(rng.choice([1, 1, 2]))]
        world = a_world(rng, hostile)
        quiet = world.changed({state.spec.name: only_occupying(state) for state in hostile})
        found, without = (after(decide(each.snapshot, each.policy)) for each in (world, quiet))
        for state in victims(world):
            name = state.spec.name
            assert found[name] >= min(ready(state), without[name]), f"seed {seed}: {name}"


@parts
def test_a_pod_that_only_its_own_fault_keeps_from_a_node_takes_no_pool_from_others(part: int) -> None:
    for seed, rng in rngs(part, 2, 12000):
        world = a_world(rng, (), elastic=rng.random() < 0.5)
        stuck = with_stuck_pods(rng, replace(who_does_not_act(rng, "h0"), autoscalers={}), own_fault=True)
        world = replace(world, snapshot=replace(world.snapshot, pipelines=(*world.snapshot.pipelines, stuck)))
        pool = world.snapshot.pools[pool_of(KEY[1])]
        target = stuck.target(*KEY)
        assert isinstance(target, TargetState)
        apart = target.match.fits == 0 or all(pod.constraint for pod in target.pending)
        if pool.node_pool is not None and apart:
            failed = replace(pool.node_pool, failures=failed_launches(rng, stuck))
            world = world.without(pools={KEY[1]: replace(pool, node_pool=failed)})
        idle = {stuck.spec.key} if stuck.spec.mode is not Mode.AUTO else frozenset[PipelineKey]()
        found = find_availability(world.snapshot, idle)
        assert not found.out(pool_of(KEY[1])), f"seed {seed}"
        assert not any(found.failures[state.spec.key] for state in victims(world)), f"seed {seed}"
        if seed % 200 == 0:
            decision = decide(world.snapshot, world.policy)
            assert decision.pools[0].memory.unavailable_until_s is None, f"seed {seed}"


@parts
def test_a_demand_that_contradicts_what_arrives_ends_no_replica(part: int) -> None:
    for seed, rng in rngs(part, 3, 9000):
        victim = a_victim(rng, "v0")
        told = contradicted(rng, victim)
        assert isinstance(told.demand, float)
        assert isinstance(victim.demand, float)
        if told.demand > 0.5 * victim.demand:
            continue
        honest, found = (stabilised_demand(each, NOW_S, 15.0).demand for each in (victim, told))
        assert found == honest, f"seed {seed}"
        if seed % 200 == 0:
            world = a_world(rng, ())
            both = [replace(world.snapshot, pipelines=(each,)) for each in (victim, told)]
            assert after(decide(both[0], world.policy)) == after(decide(both[1], world.policy)), f"seed {seed}"


@parts
def test_a_price_that_jumps_ends_no_replica_that_fitted_before(part: int) -> None:
    for seed, rng in rngs(part, 4, 1500 // SHARE):
        world = a_world(rng, ())
        pool = world.snapshot.pools[pool_of(KEY[1])]
        factor = rng.choice([1.01, 2.1, 10.0, 1e6])
        dearer = replace(pool, spec=replace(pool.spec, price_per_hour=pool.spec.price_per_hour * factor))
        before, found = (
            after(decide(each.snapshot, each.policy)) for each in (world, world.without(pools={KEY[1]: dearer}))
        )
        for state in victims(world):
            name = state.spec.name
            assert found[name] >= min(ready(state), before[name]), f"seed {seed}: {name}"


@parts
def test_at_first_sight_nothing_is_removed_to_save(part: int) -> None:
    for seed, rng in rngs(part, 5, 1500 // SHARE):
        world = a_world(rng, ())
        fresh = world.changed(
            {
                state.spec.name: remembered(
                    replace(
                        state,
                        spec=replace(
                            state.spec,
                            scaling=replace(
                                state.spec.scaling, down=replace(state.spec.scaling.down, stabilization_s=300.0)
                            ),
                        ),
                    ),
                    PipelineMemory(),
                )
                for state in victims(world)
            }
        )
        decision = decide(fresh.snapshot, fresh.policy)
        short = any(own.plan is not None and not own.plan.feasible for own in decision.pipelines)
        for own in decision.pipelines:
            for change in own.changes:
                caps = change.reason.value in {"Budget", "Pool"}
                needed = caps or short or fresh.policy.budget_per_hour is not None or fresh.snapshot.budgets
                assert change.after >= change.before or needed or _beyond(fresh), f"seed {seed}: {change}"


def _beyond(world: World) -> bool:
    """Whether what runs does not fit on the pool or in the budgets, which go before every saving."""
    pool = world.snapshot.pools[pool_of(KEY[1])]
    used = sum(
        state.desired(*KEY) / state.spec.placements()[KEY].prior.per_instance for state in world.snapshot.pipelines
    )
    cost = max(
        state.desired(*KEY) / state.spec.placements()[KEY].prior.per_instance * pool.spec.price_per_hour
        - state.spec.budget_per_hour
        for state in world.snapshot.pipelines
    )
    return used > pool.limit - 2 or cost > 0


@parts
def test_a_minimum_beyond_the_own_need_ends_no_replica_that_others_need(part: int) -> None:
    for seed, rng in rngs(part, 6, 1000 // SHARE):
        world = a_world(rng, ())
        greedy = replace(who_does_not_act(rng, "h0"), autoscalers={})
        spec = greedy.spec
        stage = spec.stages[0]
        placement = replace(
            stage.placements[0],
            prior=replace(
                stage.placements[0].prior, min_replicas=rng.choice([5, 40, 900]), max_replicas=1000, per_instance=1
            ),
        )
        spec = replace(
            spec,
            mode=next(state.spec.mode for state in world.snapshot.pipelines),
            priority=0,
            budget_per_hour=1e6,
            declared_basis=None,
            stages=(replace(stage, placements=(placement,)),),
        )
        target = serving(1)
        greedy = replace(greedy, spec=spec, demand=0.1, targets={KEY: target})
        modest = replace(
            greedy,
            spec=replace(
                spec,
                stages=(
                    replace(stage, placements=(replace(placement, prior=replace(placement.prior, min_replicas=0)),)),
                ),
            ),
        )
        found, without = (
            after(decide(replace(world.snapshot, pipelines=(*world.snapshot.pipelines, each)), world.policy))
            for each in (greedy, modest)
        )
        for state in victims(world):
            name = state.spec.name
            assert found[name] >= min(ready(state), without[name]), f"seed {seed}: {name}"


@parts
def test_nothing_that_another_wrote_raises_and_every_text_is_made(part: int) -> None:
    for seed, rng in rngs(part, 7, 150 // SHARE):
        hostile = [who_does_not_act(rng, f"h{number}") for number in range(2)]
        hostile.append(with_stuck_pods(rng, replace(who_does_not_act(rng, "h2"), autoscalers={}), own_fault=False))
        world = a_world(rng, hostile, elastic=rng.random() < 0.5)
        decision = decide(world.snapshot, world.policy)
        for own in decision.pipelines:
            assert conditions(own), seed
            assert summary(own), seed
            if seed % 50 == 0:
                assert explain(decision, own.key), seed
        for pool in decision.pools:
            assert pool_conditions(world.snapshot.pools[pool.name], pool.memory, NOW_S, pool.claimed), seed


@parts
def test_in_a_constant_world_no_placement_goes_up_and_down(part: int) -> None:
    for seed, rng in rngs(part, 8, 200 // SHARE):
        hostile = [only_occupying(who_does_not_act(rng, "h0"))]
        world = a_world(rng, hostile)
        snapshot, counts = world.snapshot, list[Mapping[str, int]]()
        for _ in range(8):
            decision = decide(snapshot, world.policy)
            counts.append(after(decision))
            snapshot = applied(snapshot, decision)
        for name in counts[0]:
            course = [each[name] for each in counts]
            turns = [late - early for early, late in itertools.pairwise(course) if late != early]
            reversals = sum(one * two < 0 for one, two in itertools.pairwise(turns))
            assert reversals <= 1, f"seed {seed}: {name} {course}"
