"""Small worlds for tests: every builder has defaults for all that a test does not care about.

The default world: pipeline `speech/captions` with two stages, `vad` on pool cpu and `encoder` on inferentia or gpu,
which serves 20 requests/s per encoder replica.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.core.state.carry_over import PipelineMemory, PoolMemory
from controller.core.state.decision import Decision, PipelineDecision
from controller.core.state.snapshot import (
    NodePoolState,
    PendingReplica,
    PipelineState,
    PoolState,
    Snapshot,
    TargetMissing,
    TargetState,
)
from controller.core.state.spec import (
    DemandUnit,
    Mode,
    PipelineQueries,
    PipelineSpec,
    PlacementSpec,
    PoolSpec,
    Rule,
    RuleMetric,
    Scaling,
    StageSpec,
    StepPolicy,
    Target,
)
from optimizer.model import (
    Basis,
    Mixing,
    PipelineKey,
    Placement,
    PlacementKey,
    PoolName,
    Routing,
    ServiceLaw,
    Size,
    Sla,
    StageName,
)
from profiler.samples import PlacementSamples, Quantity, Reading

VAD: PlacementKey = (StageName("vad"), PoolName("cpu"))
ENCODER: PlacementKey = (StageName("encoder"), PoolName("inferentia"))
ENCODER_GPU: PlacementKey = (StageName("encoder"), PoolName("gpu"))
NOW_S = 10_000.0


def a_pool(
    name: str,
    *,
    price: float = 1.0,
    instances: int | None = 20,
    ready: int = 20,
    zones: int = 1,
    leaving: int = 0,
    memory: PoolMemory | None = None,
    unread: str = "",
    unaccounted: Mapping[Size, int] | None = None,
    node_pool: NodePoolState | None = None,
    ready_nodes: bool = False,
    shared_nodes: Mapping[PoolName, tuple[str, ...]] | None = None,
    nodes: Mapping[str, str] | None = None,
    node_prices: Mapping[str, float] | None = None,
) -> PoolState:
    """Return a pool; with `node_pool` it is the elastic pool of the NodePool of its name."""
    return PoolState(
        spec=PoolSpec(
            name=PoolName(name),
            uid=f"uid-{name}",
            generation=1,
            device="CPU",
            node_selector={"pool": name},
            price_per_hour=price,
            instances=instances,
            pending_deadline_s=300.0,
            backoff_initial_s=300.0,
            backoff_max_s=3600.0,
            node_pool=None if node_pool is None else name,
            ready_nodes=ready_nodes,
            node_prices_per_hour=node_prices or {},
        ),
        ready_instances=ready,
        zones=zones,
        memory=memory or PoolMemory(),
        leaving_instances=leaving,
        unread=unread,
        unaccounted=unaccounted or {},
        node_pool=node_pool,
        shared_nodes=shared_nodes or {},
        nodes=nodes or {},
    )


def pools(*states: PoolState) -> Mapping[PoolName, PoolState]:
    return {state.spec.name: state for state in states}


def default_pools(*, inferentia_ready: int = 20) -> Mapping[PoolName, PoolState]:
    return pools(
        a_pool("cpu", price=0.5), a_pool("inferentia", price=1.0, ready=inferentia_ready), a_pool("gpu", price=2.0)
    )


def a_placement(
    pool: str,
    *,
    service_s: float = 0.05,
    bounds: tuple[int, int] = (0, 20),
    per_instance: int = 1,
    startup_s: float = 0.0,
    stage: str = "stage",
) -> PlacementSpec:
    return PlacementSpec(
        target=Target(api_version="apps/v1", kind="Deployment", name=f"{stage}-{pool}"),
        prior=Placement(
            pool=PoolName(pool),
            service=ServiceLaw(fixed_s=service_s, cv=1.0),
            min_replicas=bounds[0],
            max_replicas=bounds[1],
            per_instance=per_instance,
        ),
        startup_s=startup_s,
    )


def a_rule(
    name: str = "busy",
    *,
    metric: RuleMetric | None = RuleMetric.RX_QUEUE_PRESSURE,
    above: float | None = 0.8,
    below: float | None = None,
    add: int = 2,
    per_zone: bool = False,
    cooldown_s: float = 60.0,
) -> Rule:
    return Rule(
        name=name,
        metric=metric,
        query="a_query" if metric is None else None,
        above=above,
        below=below,
        add_replicas=add,
        per_zone=per_zone,
        cooldown_s=cooldown_s,
    )


def a_stage(
    name: str,
    *placements: PlacementSpec,
    after: Sequence[str] = (),
    pass_ratio: float = 1.0,
    rules: Sequence[Rule] = (),
) -> StageSpec:
    return StageSpec(
        name=StageName(name),
        after=tuple(StageName(other) for other in after),
        pass_ratio=pass_ratio,
        routing=Routing.LEAST_LOADED,
        queue_limit=None,
        preset="generic",
        metrics_window_s=60.0,
        metric_overrides={},
        rules=tuple(rules),
        placements=tuple(
            replace(placement, target=replace(placement.target, name=f"{name}-{placement.pool}"))
            for placement in placements
        ),
    )


def a_scaling(
    *,
    tolerance: float = 0.1,
    up_s: float = 0.0,
    down_s: float = 300.0,
    up: int = 100,
    down: int = 100,
    mixing: Mixing = Mixing.OVERFLOW,
) -> Scaling:
    return Scaling(
        tolerance=tolerance,
        up=StepPolicy(stabilization_s=up_s, max_share=1.0, max_replicas=up),
        down=StepPolicy(stabilization_s=down_s, max_share=0.5, max_replicas=down),
        drain_s=60.0,
        mixing=mixing,
    )


def a_spec(
    *stages: StageSpec,
    name: str = "captions",
    mode: Mode = Mode.AUTO,
    priority: int = 0,
    budget: float = 100.0,
    sla_s: float = 0.5,
    scaling: Scaling | None = None,
    basis: Basis | None = None,
) -> PipelineSpec:
    return PipelineSpec(
        key=PipelineKey(f"speech/{name}"),
        namespace="speech",
        name=name,
        uid=f"uid-{name}",
        generation=1,
        mode=mode,
        priority=priority,
        unit=DemandUnit.REQUESTS,
        chunk_s=None,
        queries=PipelineQueries(demand="offered"),
        sla=Sla(latency_s=sla_s),
        max_wer=None,
        budget_per_hour=budget,
        scaling=scaling or a_scaling(),
        stages=stages or default_stages(),
        declared_basis=basis,
    )


def default_stages(*, vad_rules: Sequence[Rule] = ()) -> tuple[StageSpec, ...]:
    return (
        a_stage("vad", a_placement("cpu", service_s=0.01, per_instance=4), rules=vad_rules),
        a_stage("encoder", a_placement("inferentia"), a_placement("gpu", service_s=0.02), after=["vad"]),
    )


def with_sticky_encoder(spec: PipelineSpec, *, capacity: float, kind: str = "") -> PipelineSpec:
    """Return `spec` with streams that stay with a replica of the encoder, which serves `capacity` of them in time.

    Each stream sends an item per second. `kind` is that of the encoder's workloads, "" for the one that they have.
    """

    def changed(placement: PlacementSpec) -> PlacementSpec:
        service = replace(placement.prior.service, fixed_s=0.9 / capacity, per_item_s=0.0)
        prior = replace(placement.prior, batch_sizes=(1,), service=service)
        target = replace(placement.target, kind=kind or placement.target.kind)
        return replace(placement, prior=prior, target=target)

    stages = tuple(
        replace(stage, routing=Routing.STICKY, placements=tuple(changed(each) for each in stage.placements))
        if stage.name == ENCODER[0]
        else stage
        for stage in spec.stages
    )
    return replace(spec, unit=DemandUnit.STREAMS, chunk_s=1.0, stages=stages)


def a_target(
    desired: int,
    *,
    ready: int | None = None,
    existing: int | None = None,
    terminating: int = 0,
    pending_since_s: Sequence[float] = (),
    stranded_since_s: Sequence[float] = (),
    starting_since_s: Sequence[float] = (),
    words: str = "0/3 nodes are available: 3 node(s) were unschedulable.",
    nodes: Mapping[str, int] | None = None,
) -> TargetState:
    def waiting(since_s: Sequence[float], reason: str) -> tuple[PendingReplica, ...]:
        return tuple(
            PendingReplica(name=f"pod-{index}", since_s=since, reason=reason) for index, since in enumerate(since_s)
        )

    return TargetState(
        desired=desired,
        existing=desired if existing is None else existing,
        ready=desired if ready is None else ready,
        terminating=terminating,
        pending=waiting(pending_since_s, words),
        stranded=waiting(stranded_since_s, "its node is not ready"),
        starting=waiting(starting_since_s, "CrashLoopBackOff"),
        resource_version="1",
        nodes=nodes or {},
    )


def seen(**readings: Reading) -> PlacementSamples:
    """Return samples of a stage that reports its throughput, and `readings` named as the quantities are.

    So few items that nothing is corrected by them.
    """
    return PlacementSamples(
        readings={
            Quantity.ARRIVAL_RATE: 0.1,
            Quantity.COMPLETION_RATE: 0.1,
            **{Quantity[name.upper()]: reading for name, reading in readings.items()},
        }
    )


def a_state(
    spec: PipelineSpec | None = None,
    *,
    demand: Reading = 10.0,
    replicas: Mapping[PlacementKey, int | TargetState | TargetMissing] | None = None,
    samples: Mapping[PlacementKey, PlacementSamples] | None = None,
    rule_readings: Mapping[tuple[StageName, str], Reading] | None = None,
    memory: PipelineMemory | None = None,
) -> PipelineState:
    """Return a pipeline that has been observed for long, unless `memory` says since when."""
    spec, memory = spec or a_spec(), memory or PipelineMemory()
    if memory.begun_s is None:
        memory = replace(memory, begun_s=0.0)
    given = replicas or {}
    targets: dict[PlacementKey, TargetState | TargetMissing] = {}
    for key in spec.placement_keys():
        state = given.get(key, 0)
        targets[key] = a_target(state) if isinstance(state, int) else state
    return PipelineState(
        spec=spec,
        targets=targets,
        samples={**dict.fromkeys(targets, seen()), **(samples or {})},
        demand=demand,
        latency_s=None,
        rule_readings=rule_readings or {},
        memory=memory,
    )


def a_snapshot(
    *states: PipelineState, fleet: Mapping[PoolName, PoolState] | None = None, now_s: float = NOW_S
) -> Snapshot:
    return Snapshot(now_s=now_s, pipelines=states or (a_state(),), pools=fleet or default_pools())


def applied(snapshot: Snapshot, decision: Decision, *, ready: bool = True, after_s: float = 15.0) -> Snapshot:
    """Return the world after `decision`: replicas as asked for, all ready at once unless `ready` is false."""
    return replace(
        snapshot,
        now_s=snapshot.now_s + after_s,
        pipelines=tuple(
            _applied(state, decided, ready=ready)
            for state, decided in zip(snapshot.pipelines, decision.pipelines, strict=True)
        ),
        pools={pool.name: replace(snapshot.pools[pool.name], memory=pool.memory) for pool in decision.pools},
    )


def _applied(state: PipelineState, decided: PipelineDecision, *, ready: bool) -> PipelineState:
    targets = dict(state.targets)
    for change in decided.changes:
        before = targets[(change.stage, change.placement)]
        assert isinstance(before, TargetState)
        serving = change.after if ready else min(before.ready, change.after)
        targets[(change.stage, change.placement)] = a_target(change.after, ready=serving)
    return replace(state, targets=targets, memory=decided.memory, planned=decided.planned)
