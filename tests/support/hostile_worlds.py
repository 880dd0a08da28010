"""Worlds in which other tenants, pods and numbers do their worst: drawn from a seed, so that a failure is repeated."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from builders import NOW_S, a_placement, a_pool, a_scaling, a_spec, a_stage, a_state, pools, seen

from controller.core.state.carry_over import PipelineMemory, PoolMemory, PriceMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import (
    BudgetState,
    ExpectedNode,
    LaunchFailure,
    NodePoolState,
    PendingReplica,
    PipelineState,
    PoolMatch,
    ServingReplica,
    Snapshot,
    TargetState,
)
from controller.core.state.spec import BudgetSpec, LabelSelector, Mode
from optimizer.model import Basis, PlacementKey, PoolName, StageName
from profiler.samples import Absence, AbsenceReason, Reading

KEY: PlacementKey = (StageName("asr"), PoolName("gpu"))
WORDS = (
    "",
    "no nodes available to schedule pods",
    "0/6 nodes are available: 6 node(s) didn't match Pod's node affinity/selector.",
    "0/6 nodes are available: 6 node(s) exceed max volume count.",
    "0/6 nodes are available: 6 cannot allocate all claims.",
    "0/6 nodes are available: 6 Too many pods.",
    "0/6 nodes are available: 3 Insufficient nvidia.com/gpu, 3 node(s) had volume node affinity conflict.",
    "Scheduling is blocked due to non-empty scheduling gates",
    "0/0 nodes are available: " + "6 Insufficient cpu, " * 400,
    "0/6 nodes are available: 6 Insufficient nvidia.com/gpu.",
    "0/6 nodes are available: 6 node(s) were unschedulable.",
)
CAPACITY = WORDS[-2:]
"""Words of a lack of capacity alone."""
CONSTRAINTS = ("volume data", "scheduling gate kueue.x-k8s.io/admission", "node label zone", "schedulerName other")
EVERYWHERE = LabelSelector(labels={}, requirements=())


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A snapshot with the victims `v0`, `v1` …, which do nothing wrong, and the hostile pipelines `h0` …."""

    snapshot: Snapshot
    policy: Policy

    def without(self, **changes: object) -> "World":
        """Return the world with other fields of its snapshot."""
        return replace(self, snapshot=replace(self.snapshot, **changes))  # type: ignore[arg-type]

    def changed(self, change: "Mapping[str, PipelineState]") -> "World":
        """Return the world with other states of some pipelines, by their names."""
        states = tuple(change.get(state.spec.name, state) for state in self.snapshot.pipelines)
        return replace(self, snapshot=replace(self.snapshot, pipelines=states))


def a_world(rng: random.Random, hostile: Sequence[PipelineState], *, elastic: bool = False) -> World:
    """Return a world of one or two victims on one pool beside the pipelines `hostile`."""
    victims = [a_victim(rng, f"v{number}") for number in range(rng.choice([1, 1, 2]))]
    instances = rng.choice([3, 8, 20])
    node_pool = NodePoolState(instances=instances) if elastic else None
    pool = a_pool(
        "gpu",
        price=rng.choice([0.5, 1.0, 3.0]),
        instances=None if elastic and rng.random() < 0.5 else instances,
        ready=rng.randint(1, instances),
        node_pool=node_pool,
        memory=rng.choice([PoolMemory(), PoolMemory(), PoolMemory(launch_s=90.0)]),
    )
    budget = BudgetSpec(
        name="team", uid="uid", generation=1, per_hour=rng.choice([2.0, 9.0, 60.0]), selector=EVERYWHERE
    )
    states = [*victims, *hostile]
    rng.shuffle(states)
    return World(
        snapshot=Snapshot(
            now_s=NOW_S,
            pipelines=tuple(states),
            pools=pools(replace(pool, priced=PriceMemory(per_hour=pool.spec.price_per_hour))),
            budgets=() if rng.random() < 0.7 else (BudgetState(spec=budget, namespaces=frozenset({"speech"})),),
        ),
        policy=Policy(budget_per_hour=rng.choice([None, None, 4.0, 15.0]), advice=False, search_effort=10_000),
    )


def a_victim(rng: random.Random, name: str) -> PipelineState:
    """Return a pipeline that acts, with one placement, whose replicas are all ready."""
    stage = a_stage("asr", a_placement("gpu", bounds=(0, 20), per_instance=rng.choice([1, 1, 2])))
    spec = a_spec(
        stage,
        name=name,
        priority=rng.choice([0, 0, 1]),
        budget=rng.choice([3.0, 100.0]),
        scaling=a_scaling(down_s=0.0, tolerance=0.0),
    )
    replicas = rng.randint(0, 12)
    return a_state(spec, demand=float(rng.choice([0, 5, 40, 90, 150])), replicas={KEY: serving(replicas)})


def serving(count: int, nodes: int | None = None, *, name: str = "pod") -> TargetState:
    """Return `count` ready replicas, spread over `nodes` nodes where that is given."""
    pods = tuple(
        ServingReplica(name=f"{name}-{i}", node="" if nodes is None else f"node-{i % nodes}") for i in range(count)
    )
    return TargetState(
        desired=count,
        existing=count,
        ready=count,
        terminating=0,
        pending=(),
        serving=pods if nodes is not None else (),
        resource_version="1",
    )


def who_does_not_act(rng: random.Random, name: str) -> PipelineState:
    """Return a pipeline in any state that Sluice does not scale: by its mode, or because another controller does."""
    mode = rng.choice([Mode.RECOMMEND, Mode.PAUSED, Mode.AUTO])
    stage = a_stage(
        "asr", a_placement("gpu", bounds=(rng.choice([0, 40]), 1000), per_instance=rng.choice([1, 1, 4, 50]))
    )
    spec = a_spec(stage, name=name, mode=mode, priority=rng.choice([-5, 0, 9]), budget=rng.choice([0.0, 5.0, 1e6]))
    if rng.random() < 0.2:
        spec = replace(spec, declared_basis=Basis.INSTANCES)
    placed = rng.choice([0, 0, 1, 4, 12])
    waits = rng.choice([0, 0, 3, 60])
    target = serving(placed, max(1, placed // rng.choice([1, 2, 4])) if placed else None, name=name)
    target = replace(
        target,
        desired=rng.choice([0, placed, placed + waits, 1000, 10**6]),
        existing=placed + waits,
        terminating=rng.choice([0, 0, 2]),
        pending=tuple(a_pending(rng, f"{name}-w{number}") for number in range(waits)),
        match=PoolMatch(fits=rng.choice([None, None, 0, 1, 8])),
    )
    state = a_state(spec, demand=a_reading(rng), replicas={KEY: target})
    if mode is Mode.AUTO:
        state = replace(state, autoscalers={KEY: "HorizontalPodAutoscaler/theirs"})
    return state


def a_pending(rng: random.Random, name: str, *, words: Sequence[str] = WORDS, constraint: str = "") -> PendingReplica:
    """Return a pod without a node."""
    since_s = NOW_S - rng.choice([1.0, 301.0, 4000.0, 9999.0])
    nodes = tuple(ExpectedNode(name=f"gpu-{n}", since_s=since_s + 1) for n in range(rng.choice([0, 0, 1, 3])))
    return PendingReplica(name=name, since_s=since_s, reason=rng.choice(words), expected=nodes, constraint=constraint)


def a_reading(rng: random.Random) -> Reading:
    """Return a demand: a number of any size, or none."""
    absent: list[Reading] = [Absence(reason=AbsenceReason.MISSING), Absence(reason=AbsenceReason.STALE)]
    return rng.choice([0.0, 1.0, 300.0, *absent])


def with_stuck_pods(rng: random.Random, state: PipelineState, *, own_fault: bool) -> PipelineState:
    """Return the pipeline with pods that get no node, or are stranded, or start for ever.

    With `own_fault`, none of them shows anything of the pool: they have a constraint, fit no node, or words that do not
    say that capacity is missing.
    """
    target = state.target(*KEY)
    assert isinstance(target, TargetState)
    count = rng.choice([1, 2, 5])
    fault = rng.choice(["constraint", "fits", "words", "stranded", "starting"])
    words = WORDS[: -len(CAPACITY)] if own_fault and fault == "words" else CAPACITY
    pods = tuple(
        a_pending(rng, f"stuck-{n}", words=words, constraint=rng.choice(CONSTRAINTS) if fault == "constraint" else "")
        for n in range(count)
    )
    if own_fault:
        target = replace(target, existing=target.existing - len(target.pending), pending=())
    target = replace(
        target,
        desired=target.desired + count,
        existing=target.existing + count,
        match=PoolMatch(fits=0 if fault == "fits" else 1),
    )
    if fault == "stranded":
        target = replace(target, stranded=pods)
    elif fault == "starting":
        target = replace(target, starting=pods)
    else:
        target = replace(target, pending=pods)
    return replace(state, targets={KEY: target})


def failed_launches(rng: random.Random, state: PipelineState) -> tuple[LaunchFailure, ...]:
    """Return failed launches of the nodes that were announced for pods of `state`."""
    target = state.target(*KEY)
    assert isinstance(target, TargetState)
    names = {node.name for pod in target.pending for node in pod.expected}
    return tuple(
        LaunchFailure(claim=name, at_s=NOW_S - 60 + index, reason="InsufficientInstanceCapacity: none")
        for index, name in enumerate(sorted(names))
        if rng.random() < 0.9
    )


def contradicted(rng: random.Random, state: PipelineState) -> PipelineState:
    """Return the pipeline with a demand query that says less than arrives at its entry stage."""
    demand = state.demand
    assert isinstance(demand, float)
    samples = {KEY: seen(arrival_rate=demand)}
    said = demand * rng.choice([0.0, 0.0, 0.01, 0.1, 0.5, 0.75])
    return replace(state, demand=said, samples={**state.samples, **samples})


def remembered(state: PipelineState, memory: PipelineMemory) -> PipelineState:
    """Return the pipeline with another memory."""
    return replace(state, memory=memory)
