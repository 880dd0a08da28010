"""The input and the protocol of all policies, and the decision that sets given replica counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from controller.core.plan.ledger import entries
from controller.core.state.decision import ChangeReason, Decision, DemandUse, PipelineDecision, ReplicaChange
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, PoolState, Snapshot, TargetMissing
from controller.core.state.spec import PipelineSpec, PoolSpec
from optimizer.model import PipelineKey, PlacementId, PlacementKey, PoolName
from profiler.samples import Absence, AbsenceReason
from profiler.stages import LatencySource, PipelineProfile
from simulations.scenario.schedule import Schedule

"""The name of a placement within the fleet: pipeline, stage and pool."""


class ReplicaReading(NamedTuple):
    """The readings of one ready replica, averaged over the policy's metrics window.

    Rates are items per second. `utilization` is the busy share of the replica's servers (0–1). `queued` and
    `in_service` are items, `sessions` are streams that hold a slot. `latency_p95_s` is the p95 of waiting plus service,
    None without items. `ready_since_s` is on the clock of `Snapshot.now_s`. It is a tuple because a run makes many.
    """

    ready_since_s: float
    arrival_rate_rps: float
    completion_rate_rps: float
    utilization: float
    queued: float
    in_service: float
    sessions: float
    latency_p95_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressReading:
    """The readings of a pipeline's ingress, averaged over the policy's metrics window.

    `offered_rps` is the items per second offered. `active_streams` is the number of open streams (0 with unit
    Requests). Latencies are end to end, of answered and lost items; None if there are none.
    """

    offered_rps: float
    active_streams: float
    latency_p50_s: float | None
    latency_p95_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailedSnapshot(Snapshot):
    """A Snapshot with readings that only some autoscalers use: each replica, and the ingress.

    Replicas without a sample are not in `replicas`; pipelines without ingress metrics are not in `ingress`.
    """

    replicas: Mapping[PlacementId, tuple[ReplicaReading, ...]]
    ingress: Mapping[PipelineKey, IngressReading]


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerDecision(Decision):
    """A decision with its reason as text, because it has no plan and no holds from which to explain it."""

    reason: str


class Hardware(Enum):
    """The placement of a stage that an autoscaler of single Deployments acts on."""

    FIRST = "first"
    """The first placement that the user declares."""
    CHEAPEST = "cheapest"
    """The placement with the lowest price per item at full batches, by initial prices and declared service times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneWorkloadSettings:
    """The settings of every autoscaler of single Deployments, besides its own."""

    hardware: Hardware = Hardware.FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing:
    """The input with which a policy is set up before a run.

    `loads` is the offered load of each pipeline, and `changes` are the resources as faults will set them. Only policies
    that plan from a recording of the load may read them, and their module says so: the static peak, InferLine for its
    sample, and Sluice with a known load.
    """

    pipelines: tuple[PipelineSpec, ...]
    pools: tuple[PoolSpec, ...]
    changes: tuple[PipelineSpec | PoolSpec, ...]
    loads: Mapping[PipelineKey, Schedule]
    duration_s: float


class Autoscaler(Protocol):
    """An autoscaler, called every `interval_s` (at least 1 s) with readings averaged over `metrics_window_s`.

    Each run makes a new one, which may hold state, as real autoscalers do.
    """

    @property
    def interval_s(self) -> float:
        """The time between two decisions, seconds."""

    @property
    def metrics_window_s(self) -> float:
        """The time over which readings are averaged, seconds."""

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> Decision:
        """Return the decision for `snapshot`."""


def decision_of(
    snapshot: Snapshot, desired: Mapping[PlacementId, int], reason: str, policy: Policy
) -> AutoscalerDecision:
    """Return the decision that sets `desired` replicas, limited to each placement's declared bounds.

    Placements that are not in `desired` keep their replicas. The decision has no pools, no plan and an empty profile,
    and sheds no load.
    """
    return AutoscalerDecision(
        now_s=snapshot.now_s,
        policy=policy,
        pipelines=tuple(_pipeline_decision(state, desired, snapshot.pools) for state in snapshot.pipelines),
        pools=(),
        plan=None,
        reason=reason,
    )


def _pipeline_decision(
    state: PipelineState, wanted: Mapping[PlacementId, int], pools: Mapping[PoolName, PoolState]
) -> PipelineDecision:
    spec = state.spec
    desired: dict[PlacementKey, int] = {}
    changes: list[ReplicaChange] = []
    for stage in spec.stages:
        for placement in stage.placements:
            key = (stage.name, placement.name)
            before = state.desired(*key)
            target = state.target(*key)
            count = wanted.get((spec.key, *key))
            bounds = placement.prior
            if count is None or isinstance(target, TargetMissing):
                desired[key] = before
                continue
            desired[key] = min(max(count, bounds.min_replicas), bounds.max_replicas)
            if desired[key] != before:
                changes.append(
                    ReplicaChange(
                        stage=stage.name,
                        placement=placement.name,
                        target=placement.target,
                        before=before,
                        after=desired[key],
                        reason=ChangeReason.DEMAND,
                        resource_version=target.resource_version,
                    )
                )
    return PipelineDecision(
        spec=spec,
        demand=DemandUse(observed=state.demand, forecast=None, planned=None, before=state.memory.demand),
        profile=PipelineProfile(
            stages=(),
            bottleneck=None,
            latency_s=Absence(reason=AbsenceReason.UNSUPPORTED) if state.latency_s is None else state.latency_s,
            latency_source=LatencySource.MEASURED,
        ),
        plan=None,
        holds=(),
        changes=tuple(changes),
        rules=(),
        desired=desired,
        unconstrained=desired,
        spend_per_hour=sum(entry.observed_per_hour for entry in entries(state, pools).values()),
        admissible=None,
        memory=state.memory,
    )
