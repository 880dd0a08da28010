"""Random snapshots and policies, for properties of decisions."""

from builders import (
    NOW_S,
    a_placement,
    a_pool,
    a_rule,
    a_scaling,
    a_spec,
    a_stage,
    a_state,
    a_target,
    pools,
    seen,
)
from hypothesis import strategies as st

from controller.core.state.carry_over import DemandSample, PipelineMemory, PoolMemory, RuleMemory
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, Snapshot, TargetMissing, TargetState
from controller.core.state.spec import Mode, PlacementSpec
from optimizer.model import Basis, Composition, Mixing, StageName
from profiler.samples import Absence, AbsenceReason, PlacementSamples, Reading

POOLS = ("cpu", "inferentia", "gpu")
WORDS = ("0/3 nodes are available: 3 Insufficient cpu.", "0/3 nodes are available: 3 node(s) were unschedulable.")
absences = st.sampled_from(AbsenceReason).map(lambda reason: Absence(reason=reason, detail="for a test"))


def maybe(strategy: st.SearchStrategy[float]) -> st.SearchStrategy[Reading]:
    return st.one_of(strategy, strategy, strategy, absences)


@st.composite
def placements(draw: st.DrawFn, names: tuple[str, ...] = POOLS) -> tuple[PlacementSpec, ...]:
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    return tuple(
        a_placement(
            pool,
            service_s=draw(st.sampled_from([0.01, 0.05, 0.2])),
            bounds=(draw(st.integers(0, 2)), draw(st.integers(2, 9))),
            per_instance=draw(st.sampled_from([1, 2, 3])),
            startup_s=draw(st.sampled_from([0.0, 30.0])),
        )
        for pool in chosen
    )


@st.composite
def targets(draw: st.DrawFn) -> TargetState | TargetMissing:
    if draw(st.integers(0, 12)) == 0:
        return TargetMissing(reason="for a test")
    desired = draw(st.integers(0, 6))
    existing = max(0, desired + draw(st.integers(-1, 1)))
    return a_target(
        desired,
        existing=existing,
        ready=draw(st.integers(0, existing)),
        terminating=draw(st.sampled_from([0, 0, 0, 1])),
        pending_since_s=[NOW_S - draw(st.sampled_from([10.0, 600.0]))] if draw(st.integers(0, 5)) == 0 else [],
        words=draw(st.sampled_from(WORDS)),
    )


@st.composite
def states(draw: st.DrawFn, name: str, names: tuple[str, ...] = POOLS, *, healthy: bool = False) -> PipelineState:
    stages = [
        a_stage(
            f"stage{index}",
            *draw(placements(names)),
            after=[f"stage{index - 1}"] if index else [],
            pass_ratio=draw(st.sampled_from([1.0, 0.5])),
            rules=[a_rule(per_zone=draw(st.booleans()))] if draw(st.booleans()) else [],
        )
        for index in range(draw(st.integers(1, 3)))
    ]
    spec = a_spec(
        *stages,
        name=name,
        mode=Mode.AUTO if healthy else draw(st.sampled_from([Mode.AUTO, Mode.AUTO, Mode.AUTO, *Mode])),
        priority=draw(st.integers(0, 2)),
        budget=draw(st.sampled_from([1.0, 5.0, 20.0, 100.0])),
        scaling=a_scaling(
            up=draw(st.integers(1, 5)),
            down=draw(st.integers(1, 5)),
            down_s=draw(st.sampled_from([0.0, 300.0])),
            mixing=draw(st.sampled_from([Mixing.OVERFLOW, Mixing.FREE])),
        ),
        basis=draw(st.sampled_from([None, None, *Basis])),
    )
    demand = st.floats(0, 200)
    keys = spec.placement_keys()
    if healthy:
        replicas = {key: a_target(draw(st.integers(0, 6))) for key in keys}
        return a_state(spec, demand=draw(demand), replicas=replicas)
    before = draw(st.one_of(st.none(), demand))
    memory = PipelineMemory(
        demand=before,
        samples=() if before is None else (DemandSample(t_s=NOW_S - 100, observed=before, forecast=before),),
        rules={(StageName("stage0"), "busy"): RuleMemory(floor=draw(st.integers(1, 30)), fired=True)},
        excess_excused_until_s=draw(st.sampled_from([None, NOW_S + 30])),
    )
    samples = {key: seen(rx_queue_pressure=draw(maybe(st.floats(0, 1)))) for key in keys}
    if draw(st.integers(0, 3)) == 0:
        samples[keys[0]] = PlacementSamples(readings={})
    return a_state(
        spec,
        demand=draw(maybe(demand)),
        replicas={key: draw(targets()) for key in keys},
        samples=samples,
        memory=memory,
    )


@st.composite
def snapshots(draw: st.DrawFn, *, healthy: bool = False) -> Snapshot:
    memories = st.sampled_from(
        [PoolMemory(), PoolMemory(unavailable_until_s=NOW_S + 60, backoff_s=600.0, reason="full")]
    )
    return Snapshot(
        now_s=NOW_S,
        pipelines=tuple(draw(states(name, healthy=healthy)) for name in "ab"[: draw(st.integers(1, 2))]),
        pools=pools(
            *(
                a_pool(
                    name,
                    price=draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
                    instances=draw(st.sampled_from([0, 3, 10, 40] if healthy else [0, 3, 10, 40, None])),
                    ready=draw(st.integers(0, 20)),
                    zones=draw(st.integers(0, 3)),
                    memory=PoolMemory() if healthy else draw(memories),
                )
                for name in (POOLS if healthy else draw(st.sampled_from([POOLS, POOLS, POOLS[:2]])))
            )
        ),
    )


policies = st.sampled_from(
    [
        Policy(),
        Policy(budget_per_hour=10.0),
        Policy(latency_headroom=0.1, search_effort=1000, composition=Composition.RSS),
    ]
)
