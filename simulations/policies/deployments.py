"""What autoscalers that know only workloads look at: replicas, their readings, and what may be asked for.

Most rivals act on one Deployment each. Of a stage they get its first placement: the user's preference, or the cheapest
one where their settings say so (`simulations.experiment.hardware`). When that pool is exhausted they get pending pods.
A stage needs a replica in total, which no such rival knows of: whoever set it up gave the first placement a minimum of
one where no placement declares any.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from controller.core.assess.problem import pipeline_problem
from controller.core.state.snapshot import PipelineState, TargetMissing, TargetState
from controller.core.state.spec import DemandUnit, PipelineSpec, PlacementSpec, StageSpec
from optimizer.model import PipelineKey, PoolName, StageName
from simulations.policies.autoscaler import DetailedSnapshot, PlacementName, ReplicaReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One placement's Deployment: its state, the readings of its ready replicas, and the bounds of its replicas."""

    pipeline: PipelineKey
    stage: StageSpec
    placement: PlacementSpec
    target: TargetState
    replicas: tuple[ReplicaReading, ...]
    least: int
    most: int

    @property
    def name(self) -> PlacementName:
        """Return the placement's name in the fleet."""
        return (self.pipeline, self.stage.name, self.placement.pool)

    @property
    def slots(self) -> int:
        """Return the items that one replica serves at once: its batches, full."""
        return self.placement.prior.concurrency * self.placement.prior.batch_sizes[-1]

    @property
    def ongoing(self) -> float:
        """Return the items that wait or are in service, over the replicas that report."""
        return sum(replica.queued + replica.in_service for replica in self.replicas)

    @property
    def arrival_rate_rps(self) -> float:
        """Return the items per second offered to the replicas that report."""
        return sum(replica.arrival_rate_rps for replica in self.replicas)

    def within(self, count: float) -> int:
        """Return `count` within the bounds of the replicas."""
        return int(min(max(count, self.least), self.most))


def first_placements(snapshot: DetailedSnapshot) -> Iterator[Deployment]:
    """Yield the first placement of every stage, as far as its workload is there."""
    for state in snapshot.pipelines:
        for stage in state.spec.stages:
            yield from islice(_placements(snapshot, state, stage), 1)


def placements(snapshot: DetailedSnapshot, state: PipelineState, stage: StageSpec) -> tuple[Deployment, ...]:
    """Return all placements of a stage in the order declared, as far as their workloads are there."""
    return tuple(_placements(snapshot, state, stage))


def _placements(snapshot: DetailedSnapshot, state: PipelineState, stage: StageSpec) -> Iterator[Deployment]:
    nothing_declared = not any(placement.prior.min_replicas for placement in stage.placements)
    for index, placement in enumerate(stage.placements):
        target = state.target(stage.name, placement.pool)
        if not isinstance(target, TargetMissing):
            name = (state.spec.key, stage.name, placement.pool)
            least = 1 if index == 0 and nothing_declared else placement.prior.min_replicas
            yield Deployment(
                pipeline=state.spec.key,
                stage=stage,
                placement=placement,
                target=target,
                replicas=snapshot.replicas.get(name, ()),
                least=min(least, placement.prior.max_replicas),
                most=placement.prior.max_replicas,
            )


def carried_out(state: PipelineState, stage: StageSpec, pool: PoolName, replicas: int) -> dict[PlacementName, int]:
    """Return the replicas of a stage's placements when `pool` is to have so many, as far as its bounds allow.

    What is elsewhere stays until these are ready, and then goes, as in a rolling update. Without a workload on `pool`
    everything stays.
    """
    there = {
        placement.pool: (placement.prior, target)
        for placement in stage.placements
        if not isinstance(target := state.target(stage.name, placement.pool), TargetMissing)
    }
    if pool not in there:
        return {}
    prior, target = there[pool]
    wanted = min(replicas, prior.max_replicas)
    arrived = target.ready >= wanted
    counts = {other: own.min_replicas if arrived else held.desired for other, (own, held) in there.items()}
    return {(state.spec.key, stage.name, other): count for other, count in (counts | {pool: wanted}).items()}


def latency_targets(spec: PipelineSpec, latency_s: float) -> Mapping[StageName, float]:
    """Return a share of `latency_s` for every stage, for autoscalers that know targets of single models only.

    As a person with a profile at hand would split a promise that is made end to end: each stage gets what a lone item
    takes on its first placement, and of what is left on the longest way through it a part in proportion to the time of
    a full batch. Where lone items take too long already, what there is is split in proportion to them.
    """
    lone = {stage.name: _batch_s(stage.placements[0], 1) for stage in spec.stages}
    full = {
        stage.name: _batch_s(stage.placements[0], stage.placements[0].prior.batch_sizes[-1]) for stage in spec.stages
    }
    lone_way, full_way = _longest_ways(spec, lone), _longest_ways(spec, full)
    targets = {}
    for name, own in lone.items():
        left = latency_s - lone_way[name]
        targets[name] = own + left * full[name] / full_way[name] if left > 0 else latency_s * own / lone_way[name]
    return targets


def _longest_ways(spec: PipelineSpec, own: Mapping[StageName, float]) -> Mapping[StageName, float]:
    """Return for each stage the longest way from the entry to the end that leads through it."""
    until: dict[StageName, float] = {}
    for stage in spec.stages:
        until[stage.name] = own[stage.name] + max((until[name] for name in stage.after), default=0.0)
    since: dict[StageName, float] = {}
    for stage in reversed(spec.stages):
        after = [since[other.name] for other in spec.stages if stage.name in other.after]
        since[stage.name] = own[stage.name] + max(after, default=0.0)
    return {name: until[name] + since[name] - own[name] for name in own}


def offered_rates(snapshot: DetailedSnapshot, spec: PipelineSpec) -> Mapping[StageName, float] | None:
    """Return the items per second that the load offered at the ingress means for every stage, None without a reading.

    By the declared pass ratios. What reaches a stage is no measure of demand while one before it turns items away.
    """
    reading = snapshot.ingress.get(spec.key)
    if reading is None:
        return None
    return {name: reading.offered_rps * visits for name, visits in pipeline_problem(spec, 0.0).visit_ratios.items()}


def slots_rate_rps(spec: PipelineSpec, stage: StageName, placement: PlacementSpec) -> float:
    """Return the items per second of as many streams as one replica has session slots for, infinite without a limit."""
    slots = placement.prior.session_slots
    if slots is None or spec.unit is not DemandUnit.STREAMS:
        return math.inf
    return slots * spec.items_per_unit_s * pipeline_problem(spec, 0.0).visit_ratios[stage]


def _batch_s(placement: PlacementSpec, items: int) -> float:
    return placement.prior.batch_wait_s + placement.prior.service.mean_s(items)


def ceil(value: float) -> int:
    """Return the least whole number that is not below `value`, rounding errors aside."""
    return math.ceil(round(value, 9))
