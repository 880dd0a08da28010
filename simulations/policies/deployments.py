"""Single Deployments, as baseline autoscalers see them: replicas, their readings, and bounds of the replica count.

Most baselines act on one Deployment per stage. It is the stage's first placement: the user's preference, or the
cheapest one where their settings say so (`simulations.experiment.hardware`). When its pool is full, pods stay pending.

Such an autoscaler does not know that a stage needs at least one replica in total. So the first placement has a minimum
of one where no placement declares a minimum.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from controller.core.assess.optimizer_input import optimizer_pipeline
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, TargetMissing, TargetState
from controller.core.state.spec import DemandUnit, PipelineSpec, PlacementSpec, StageSpec
from optimizer.model import PipelineKey, PlacementId, PlacementName, StageName
from simulations.policies.autoscaler import (
    AutoscalerDecision,
    DetailedSnapshot,
    ReplicaReading,
    decision_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The Deployment of one placement. The autoscaler may set `least` to `most` replicas.

    `replicas` has the readings of the ready replicas that report.
    """

    pipeline: PipelineKey
    stage: StageSpec
    placement: PlacementSpec
    target: TargetState
    replicas: tuple[ReplicaReading, ...]
    least: int
    most: int

    @property
    def name(self) -> PlacementId:
        """Return the placement's name in the fleet."""
        return (self.pipeline, self.stage.name, self.placement.name)

    @property
    def slots(self) -> int:
        """Return how many items one replica serves at once: its concurrency times its largest batch."""
        return self.placement.prior.concurrency * self.placement.prior.batch_sizes[-1]

    @property
    def ongoing(self) -> float:
        """Return the items that wait or are in service, summed over the replicas that report."""
        return sum(replica.queued + replica.in_service for replica in self.replicas)

    @property
    def arrival_rate_rps(self) -> float:
        """Return the items per second offered to the replicas that report."""
        return sum(replica.arrival_rate_rps for replica in self.replicas)

    def within(self, count: float) -> int:
        """Return `count` limited to `least` … `most`, as an integer."""
        return int(min(max(count, self.least), self.most))


def first_placements(snapshot: DetailedSnapshot) -> Iterator[Deployment]:
    """Yield, for every stage, the first placement whose workload exists."""
    for state in snapshot.pipelines:
        for stage in state.spec.stages:
            yield from islice(_placements(snapshot, state, stage), 1)


def placements(snapshot: DetailedSnapshot, state: PipelineState, stage: StageSpec) -> tuple[Deployment, ...]:
    """Return the placements of a stage whose workloads exist, in the order declared."""
    return tuple(_placements(snapshot, state, stage))


def _placements(snapshot: DetailedSnapshot, state: PipelineState, stage: StageSpec) -> Iterator[Deployment]:
    for index, placement in enumerate(stage.placements):
        target = state.target(stage.name, placement.name)
        if not isinstance(target, TargetMissing):
            name = (state.spec.key, stage.name, placement.name)
            yield Deployment(
                pipeline=state.spec.key,
                stage=stage,
                placement=placement,
                target=target,
                replicas=snapshot.replicas.get(name, ()),
                least=least_replicas(stage, index),
                most=placement.prior.max_replicas,
            )


def least_replicas(stage: StageSpec, index: int) -> int:
    """Return the least replicas of a placement, by its `index` in the stage: the first one keeps one, as said above."""
    nothing_declared = not any(placement.prior.min_replicas for placement in stage.placements)
    prior = stage.placements[index].prior
    return min(1 if index == 0 and nothing_declared else prior.min_replicas, prior.max_replicas)


def carried_out(state: PipelineState, stage: StageSpec, name: PlacementName, replicas: int) -> dict[PlacementId, int]:
    """Return the replicas to set for all placements of a stage, to move the stage to `replicas` replicas of one.

    `replicas` is limited to the placement's maximum. The others keep their replicas until those of `name` are ready,
    and then go to their minimum, as in a rolling update. Without a workload the result is empty.
    """
    existing = {
        placement.name: (placement.prior, target)
        for placement in stage.placements
        if not isinstance(target := state.target(stage.name, placement.name), TargetMissing)
    }
    if name not in existing:
        return {}
    prior, target = existing[name]
    wanted = min(replicas, prior.max_replicas)
    arrived = target.ready >= wanted
    counts = {other: own.min_replicas if arrived else held.desired for other, (own, held) in existing.items()}
    return {(state.spec.key, stage.name, other): count for other, count in (counts | {name: wanted}).items()}


def latency_targets(spec: PipelineSpec, latency_s: float) -> Mapping[StageName, float]:
    """Return a latency target per stage that splits `latency_s`, for autoscalers with targets per model.

    Each stage gets the time of a batch of one on its first placement. Of the latency that is left on the longest path
    through the stage, it gets a share in proportion to the time of a full batch. If batches of one alone exceed the
    latency, the whole latency is split in proportion to the times of batches of one.
    """
    lone = {stage.name: _batch_s(stage.placements[0], 1) for stage in spec.stages}
    full = {
        stage.name: _batch_s(stage.placements[0], stage.placements[0].prior.batch_sizes[-1]) for stage in spec.stages
    }
    lone_path, full_path = _longest_paths(spec, lone), _longest_paths(spec, full)
    targets = {}
    for name, own in lone.items():
        left = latency_s - lone_path[name]
        targets[name] = own + left * full[name] / full_path[name] if left > 0 else latency_s * own / lone_path[name]
    return targets


def _longest_paths(spec: PipelineSpec, own: Mapping[StageName, float]) -> Mapping[StageName, float]:
    """Return for each stage the length of the longest path from entry to end that passes through it."""
    until: dict[StageName, float] = {}
    for stage in spec.stages:
        until[stage.name] = own[stage.name] + max((until[name] for name in stage.after), default=0.0)
    since: dict[StageName, float] = {}
    for stage in reversed(spec.stages):
        after = [since[other.name] for other in spec.stages if stage.name in other.after]
        since[stage.name] = own[stage.name] + max(after, default=0.0)
    return {name: until[name] + since[name] - own[name] for name in own}


def offered_rates(snapshot: DetailedSnapshot, spec: PipelineSpec) -> Mapping[StageName, float] | None:
    """Return the items per second that every stage would get of the load offered at the ingress; None if unknown.

    They follow from the declared pass ratios. Arrivals at a stage would be too few while an earlier stage refuses
    items.
    """
    reading = snapshot.ingress.get(spec.key)
    if reading is None:
        return None
    return {name: reading.offered_rps * visits for name, visits in optimizer_pipeline(spec, 0.0).visit_ratios.items()}


def slots_rate_rps(spec: PipelineSpec, stage: StageName, placement: PlacementSpec) -> float:
    """Return the items per second that one replica's session slots allow; infinite if slots do not limit the rate.

    It is the rate at `stage` of as many streams as the replica has slots.
    """
    slots = placement.prior.session_slots
    if slots is None or spec.unit is not DemandUnit.STREAMS:
        return math.inf
    return slots * spec.items_per_unit_s * optimizer_pipeline(spec, 0.0).visit_ratios[stage]


def _batch_s(placement: PlacementSpec, items: int) -> float:
    return placement.prior.batch_wait_s + placement.prior.service.mean_s(items)


class PerDeployment(ABC):
    """An autoscaler that applies one rule to the first placement of every stage."""

    def __init__(self, *, interval_s: float, metrics_window_s: float, reason: str) -> None:
        self.interval_s = interval_s
        self.metrics_window_s = metrics_window_s
        self._reason = reason

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> AutoscalerDecision:
        """Return the decision with the desired replicas of every Deployment."""
        desired = {work.name: self._replicas(work, snapshot.now_s) for work in first_placements(snapshot)}
        return decision_of(snapshot, desired, self._reason, policy)

    @abstractmethod
    def _replicas(self, work: Deployment, now_s: float) -> int:
        """Return the desired replicas of a Deployment, within its bounds."""


def ceil(value: float) -> int:
    """Return `value` rounded up, after rounding to nine digits to remove rounding errors."""
    return math.ceil(round(value, 9))
