"""The input of baseline autoscalers, for tests: replicas with readings, in the world of `builders`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from builders import NOW_S, a_snapshot, a_spec, a_state

from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, PoolState
from controller.core.state.spec import StageSpec
from optimizer.model import PipelineKey, PlacementKey, PoolName
from simulations.policies.autoscaler import Autoscaler, DetailedSnapshot, IngressReading, ReplicaReading
from simulations.policies.deployments import Deployment, placements

CAPTIONS = PipelineKey("speech/captions")


def a_reading(
    *,
    utilization: float = 0.5,
    queued: float = 0.0,
    in_service: float = 0.0,
    sessions: float = 0.0,
    arrival_rps: float = 1.0,
    completion_rps: float | None = None,
    p95_s: float | None = 0.1,
    ready_since_s: float = 0.0,
) -> ReplicaReading:
    return ReplicaReading(
        ready_since_s=ready_since_s,
        arrival_rate_rps=arrival_rps,
        completion_rate_rps=arrival_rps if completion_rps is None else completion_rps,
        utilization=utilization,
        queued=queued,
        in_service=in_service,
        sessions=sessions,
        latency_p95_s=p95_s,
    )


def a_detailed(
    *states: PipelineState,
    replicas: Mapping[PlacementKey, Sequence[ReplicaReading]] | None = None,
    offered_rps: float | None = None,
    p95_s: float | None = None,
    fleet: Mapping[PoolName, PoolState] | None = None,
    now_s: float = NOW_S,
) -> DetailedSnapshot:
    """Return a snapshot in which `replicas` of the captions pipeline report; its ingress too, if it offers anything."""
    plain = a_snapshot(*states, fleet=fleet, now_s=now_s)
    reading = IngressReading(
        offered_rps=offered_rps or 0.0, active_streams=0.0, latency_p50_s=p95_s, latency_p95_s=p95_s
    )
    return DetailedSnapshot(
        now_s=plain.now_s,
        pipelines=plain.pipelines,
        pools=plain.pools,
        replicas={(CAPTIONS, *key): tuple(readings) for key, readings in (replicas or {}).items()},
        ingress={} if offered_rps is None and p95_s is None else {CAPTIONS: reading},
    )


def a_workload(stage: StageSpec, desired: int, readings: Sequence[ReplicaReading] = ()) -> Deployment:
    """Return the first placement of `stage` with `desired` replicas, all ready."""
    key = (stage.name, stage.placements[0].pool)
    whole = a_state(a_spec(stage), replicas={key: desired})
    snapshot = a_detailed(whole, replicas={key: readings})
    return placements(snapshot, whole, stage)[0]


def desired(autoscaler: Autoscaler, snapshot: DetailedSnapshot) -> dict[PlacementKey, int]:
    """Return the replicas that an autoscaler wants for the captions pipeline."""
    decision: Decision = autoscaler(snapshot, Policy())
    return dict(next(own for own in decision.pipelines if own.key == CAPTIONS).desired)


def at(snapshot: DetailedSnapshot, now_s: float) -> DetailedSnapshot:
    """Return the same world at another time."""
    return replace(snapshot, now_s=now_s)
