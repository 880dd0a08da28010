"""Assesses each pipeline before planning: its profile, its demand, and what of it is missing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from controller.core.assess.backlog import Pace, capacity_rps, pace_of, paced_demand
from controller.core.assess.conflicts import conflicting, conflicts
from controller.core.assess.demand import NO_LAUNCHES, DemandState, horizon, planning_demand
from controller.core.assess.learned_numbers import settled, warming
from controller.core.assess.neighbours import ALONE, Neighbours
from controller.core.assess.optimizer_input import optimizer_demand, optimizer_pipeline
from controller.core.state.bound import NO_BOUNDS, Bounds
from controller.core.state.carry_over import Conflict
from controller.core.state.policy import Policy
from controller.core.state.shared import users_of
from controller.core.state.snapshot import PipelineState, Snapshot, TargetMissing, TargetState
from controller.core.state.spec import DemandUnit, Mode, PipelineSpec, StageKey
from optimizer.latency.batching_table import UTILIZATION_CEILING
from optimizer.model import Pipeline, PipelineKey, PlacementKey, PlacementName, PoolName, StageName, pool_of
from profiler.profile import profile_pipeline
from profiler.samples import THROUGHPUT, Absence, AbsenceReason, Answer, Quantity
from profiler.stages import Learned, PipelineInput, PipelineProfile, PlacementInput, SharedInput, StageInput, rounded_up

SILENT_BY_NATURE = (AbsenceReason.NO_TRAFFIC, AbsenceReason.UNSUPPORTED)


UNPACED = DemandState(
    observed=Absence(reason=AbsenceReason.UNSUPPORTED, detail="a backlog has no offered load"),
    stabilized=None,
    samples=(),
)
"""What is known of the load of a backlog before its pace: replicas take items when they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingReading:
    """A quantity that the ready replicas of a placement do not report."""

    placement: PlacementName
    quantity: Quantity
    absence: Absence


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """The parts of a pipeline that cannot be read or do not exist.

    `samples` has the stages whose ready replicas report no usable load, `targets` the placements whose workload cannot
    be read, with the reason, and `pools` the pools that do not exist. `too_new` has the stages whose load is not known
    only because all ready replicas on a pool are too new to have samples.

    `demands` has the shared stages that another pipeline uses whose demand is missing: nothing is removed there.
    `owners` has the shared stages whose replicas belong to a pipeline that does not act: they stay as they are.
    """

    samples: Mapping[StageName, MissingReading]
    targets: Mapping[PlacementKey, str]
    pools: frozenset[PoolName]
    too_new: frozenset[StageName] = frozenset()
    demands: frozenset[StageName] = frozenset()
    owners: frozenset[StageName] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What is known of one pipeline before planning.

    `pipeline` is the optimizer's input, at `planned_demand`. `current` has the desired replicas of every placement, 0
    where the workload is missing. `seen` is what the profiler was given. `stages_moved_at_s` is when replicas of each
    stage last started or stopped: what is measured until a window later is not of the present replicas.

    `conflicts` are changes by other controllers to replicas that Sluice wrote; `conflicting` are the placements that
    Sluice does not write to because of them. `leaving` has how many replicas of placements are to be replaced, because
    their nodes are being removed, or have not been ready for long.

    `bounds` are those of the mechanisms (`controller.core.bounds.stated` adds them), and `pipeline` is then within
    their limits. `fallback` is the same without the bounds that only save money, None where these make no difference.
    `pace` is that of a backlog, None for a pipeline without one.
    """

    state: PipelineState
    profile: PipelineProfile
    learned: Learned
    seen: PipelineInput
    demand: DemandState
    pipeline: Pipeline
    stages_moved_at_s: Mapping[StageName, float]
    current: Mapping[PlacementKey, int]
    missing: Missing
    conflicts: Mapping[PlacementKey, Conflict]
    conflicting: Mapping[PlacementKey, str | Conflict]
    leaving: Mapping[PlacementKey, int] = field(default_factory=dict)
    bounds: Bounds = NO_BOUNDS
    fallback: Pipeline | None = None
    pace: Pace | None = None

    @property
    def key(self) -> PipelineKey:
        """Return the pipeline's key."""
        return self.state.spec.key

    @property
    def spec(self) -> PipelineSpec:
        """Return the declared pipeline."""
        return self.state.spec

    @property
    def acting(self) -> bool:
        """Whether this cycle may change the pipeline's replicas."""
        return self.spec.mode is Mode.AUTO and not self.conflicting

    @property
    def planned_demand(self) -> float:
        """Return the demand to plan for, in the pipeline's unit, rounded up; 0 if none is known yet."""
        return _planned(self.demand)

    @property
    def share_before(self) -> float | None:
        """Return the share of the planned demand that the last plan admitted, None where it admitted all."""
        admitted, demand = self.state.memory.admissible, self.planned_demand
        return None if admitted is None or demand <= 0 else min(1.0, admitted / demand)

    @property
    def demand_missing(self) -> bool:
        """Whether the demand was not observed in this cycle."""
        return isinstance(self.demand.observed, Absence)

    @property
    def never_down(self) -> bool:
        """Whether no replica may be removed, because metrics or a workload are missing."""
        missing = self.missing
        return self.demand_missing or bool(missing.samples or missing.too_new or missing.targets)

    @property
    def owners(self) -> frozenset[PipelineKey]:
        """Return the other pipelines that own workloads which this pipeline, which does not act, only reads."""
        return frozenset(
            target.owner
            for key, target in self.state.found()
            if target.owner is not None and key[0] not in self.spec.borrowed
        )

    @property
    def lenders(self) -> frozenset[PipelineKey]:
        """Return the pipelines whose replicas serve shared stages of this one."""
        return frozenset(key for key, _ in self.spec.borrowed.values())

    def cost_share(self, stage: StageName) -> float:
        """Return the share of the cost of a stage's replicas that this pipeline pays: all of it unless shared."""
        return next((own.cost_share for own in self.pipeline.stages if own.name == stage), 1.0)

    @property
    def held(self) -> Mapping[PlacementKey, int]:
        """Return the replicas of every placement that count against others, 0 where another pipeline owns the workload.

        They are the desired ones where Sluice scales them. Of a pipeline that does not act, only those that have a node
        count: what is desired beyond them is `claimed`.
        """
        counts = self.current if self.acting else {key: target.placed for key, target in self.state.found()}
        return {key: counts.get(key, 0) if self.state.target(*key).owner is None else 0 for key in self.current}

    @property
    def claimed(self) -> Mapping[PlacementKey, int]:
        """Return the replicas that a pipeline which does not act desires beyond those `held`."""
        if self.acting:
            return {}
        found = {key: target.observed - target.placed for key, target in self.state.found() if target.owner is None}
        return {key: count for key, count in found.items() if count > 0}

    @property
    def existing(self) -> Mapping[PlacementKey, int]:
        """Return the desired replicas of every placement that exist; see `present`."""
        there = {key: target.existing for key, target in self.state.found()}
        return {key: min(count, there.get(key, 0)) for key, count in self.present.items()}

    @property
    def present(self) -> Mapping[PlacementKey, int]:
        """Return the desired replicas of every placement, 0 where they serve a shared stage for another pipeline."""
        return {key: 0 if key[0] in self.spec.borrowed else count for key, count in self.current.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedUse:
    """The observed streams of each pipeline that uses a shared stage, None where its demand is missing."""

    streams: Mapping[PipelineKey, float | None]

    def of_others(self, key: PipelineKey) -> float | None:
        """Return the streams of the other pipelines than `key`, None if the demand of one is missing."""
        known = [streams for user, streams in self.streams.items() if user != key]
        return None if None in known else sum(streams for streams in known if streams is not None)


NOT_SHARED: Mapping[StageKey, SharedUse] = MappingProxyType({})


def observed_uses(snapshot: Snapshot) -> Mapping[StageKey, SharedUse]:
    """Return what is observed of every shared stage, by the stage that declares it."""
    users = users_of(state.spec for state in snapshot.pipelines)
    if not users:
        return NOT_SHARED
    by_key = {state.spec.key: state for state in snapshot.pipelines}

    def streams(key: PipelineKey) -> float | None:
        state = by_key[key]
        if state.spec.unit is not DemandUnit.STREAMS:
            return 0.0
        return None if isinstance(state.demand, Absence) else state.demand

    return {stage: SharedUse(streams={key: streams(key) for key, _ in named}) for stage, named in users.items()}


def assess(
    state: PipelineState,
    snapshot: Snapshot,
    policy: Policy,
    *,
    launches_s: Mapping[PoolName, float] = NO_LAUNCHES,
    shared: Mapping[StageKey, SharedUse] = NOT_SHARED,
    neighbours: Neighbours = ALONE,
) -> Assessment:
    """Return the assessment of the pipeline `state` at the time of `snapshot`.

    `launches_s` has how long new nodes of elastic pools take. `shared` is what is observed of the shared stages, by the
    stage that declares them. The load that others put on them is added by `controller.core.assess.shared`.
    `neighbours` are on the instances of its replicas.
    """
    spec, now_s = state.spec, snapshot.now_s
    # While replicas start or stop, rates over a window are not yet those of all replicas. A time ahead is of a clock
    # that was set back since.
    stages_moved_at_s = {
        **{name: min(now_s, moved_at_s) for name, moved_at_s in state.memory.stages_moved_at_s.items()},
        **{stage.name: now_s for stage in spec.stages if not state.settled(stage.name)},
    }
    others = frozenset(stage.name for stage in spec.stages if (stage.shared_from or (spec.key, stage.name)) in shared)
    waits = spec.backlog is not None
    demand = UNPACED if waits else planning_demand(state, now_s, policy.interval_s, launches_s, others)
    seen = _profiler_input(state, demand, shared, stages_moved_at_s, neighbours, now_s)
    profile, learned = profile_pipeline(
        seen,
        state.memory.learned,
        now_s=now_s,
        interval_s=policy.interval_s,
    )
    current = {key: state.desired(*key) for key in spec.placement_keys()}
    silent = _stages_without_samples(state)
    missing = Missing(
        samples={name: own for name, own in silent.items() if own.absence.reason is not AbsenceReason.TOO_NEW},
        too_new=frozenset(name for name, own in silent.items() if own.absence.reason is AbsenceReason.TOO_NEW),
        targets={key: target.reason for key in current if isinstance(target := state.target(*key), TargetMissing)},
        pools=frozenset(pool for _, name in current if (pool := pool_of(name)) not in snapshot.pools),
    )
    leaving = _leaving(state, snapshot)
    changes = conflicts(state, now_s)
    pace: Pace | None = None
    if waits:
        pace, demand = _paced(state, profile, policy, launches_s, now_s)
    return Assessment(
        state=state,
        profile=profile,
        learned=learned,
        seen=seen,
        demand=demand,
        pipeline=optimizer_pipeline(
            spec,
            _offered(demand, pace),
            profile=profile,
            # Replicas on nodes that are being removed must be placed anew.
            current={key: max(0, count - leaving.get(key, 0)) for key, count in current.items()},
            latency_headroom=policy.latency_headroom,
            known_only=False,
        ),
        stages_moved_at_s=stages_moved_at_s,
        current=current,
        missing=missing,
        conflicts=changes,
        leaving=leaving,
        conflicting=conflicting(state, changes, now_s),
        pace=pace,
    )


def _paced(
    state: PipelineState,
    profile: PipelineProfile,
    policy: Policy,
    launches_s: Mapping[PoolName, float],
    now_s: float,
) -> tuple[Pace, DemandState]:
    """Return the pace of a pipeline with a backlog, and the demand to plan for."""
    spec, memory = state.spec, state.memory
    assert spec.backlog is not None
    pipeline = optimizer_pipeline(spec, 0.0, profile=profile, known_only=False)
    most = {(stage.name, own.name): own.max_replicas for stage in pipeline.stages for own in stage.placements}
    ahead = horizon(spec, policy.interval_s, launches_s)
    pace = pace_of(
        spec.backlog,
        state.demand,
        memory,
        ready_rps=capacity_rps(pipeline, {key: state.ready(*key) for key in most}, memory.batches),
        most_rps=capacity_rps(pipeline, most, memory.batches),
        startup_s=ahead.ahead_s,
        now_s=now_s,
    )
    return pace, paced_demand(pace, spec.scaling.idle_after_s, memory, ahead, now_s)


def at_pace(assessment: Assessment, rate: float, now_s: float) -> Assessment:
    """Return the assessment of a backlog, without bounds, that is to go at `rate` items per second."""
    assert assessment.pace is not None
    assert assessment.demand.horizon is not None
    pace = replace(assessment.pace, rate=rate)
    idle_after_s, memory = assessment.spec.scaling.idle_after_s, assessment.state.memory
    demand = paced_demand(pace, idle_after_s, memory, assessment.demand.horizon, now_s)
    pipeline = replace(assessment.pipeline, demand=optimizer_demand(assessment.spec, _offered(demand, pace)))
    return replace(assessment, pace=pace, demand=demand, pipeline=pipeline)


def _offered(demand: DemandState, pace: Pace | None) -> float:
    """Return the load to plan replicas for: those of a backlog are always busy, and plans keep room below that."""
    return _planned(demand) if pace is None else rounded_up((demand.demand or 0.0) * UTILIZATION_CEILING)


def _planned(demand: DemandState) -> float:
    return rounded_up(demand.demand or 0.0)


def _leaving(state: PipelineState, snapshot: Snapshot) -> Mapping[PlacementKey, int]:
    """Return how many replicas of each placement are to be replaced, because their nodes are being removed or are dead.

    A node is dead that has not been ready for the pool's deadline. Only where Sluice chooses which replicas go: other
    controllers would remove the replacements.
    """
    placements = state.spec.placements()

    def dead(key: PlacementKey, target: TargetState) -> int:
        pool = snapshot.pools.get(pool_of(key[1]))
        waits_s = math.inf if pool is None else pool.spec.pending_deadline_s
        late = [replica for replica in target.stranded if snapshot.now_s - replica.since_s >= waits_s]
        return min(len(late), max(0, target.desired - target.ready))

    found = {
        key: target.leaving + dead(key, target)
        for key, target in state.found()
        if placements[key].target.heeds_costs and (target.leaving or target.stranded)
    }
    return {key: count for key, count in found.items() if count}


def _profiler_input(
    state: PipelineState,
    demand: DemandState,
    shared: Mapping[StageKey, SharedUse],
    stages_moved_at_s: Mapping[StageName, float],
    neighbours: Neighbours,
    now_s: float,
) -> PipelineInput:
    spec, batches = state.spec, state.memory.batches
    return PipelineInput(
        stages=tuple(
            StageInput(
                name=stage.name,
                after=stage.after,
                pass_ratio=stage.pass_ratio,
                routing=stage.routing,
                window_s=stage.metrics_window_s,
                first_answer=stage.metrics_answer is Answer.FIRST,
                settled=settled(stage, stages_moved_at_s, now_s),
                shared=_shared_with(shared.get(stage.shared_from or (spec.key, stage.name)), spec.key),
                cascade=None if stage.cascade is None else stage.cascade.planned,
                placements=tuple(
                    PlacementInput(
                        prior=placement.prior,
                        replicas=state.ready(stage.name, placement.name),
                        batch=batches.get((stage.name, placement.name), placement.prior.batch_sizes[-1]),
                        samples=state.samples_of(stage.name, placement.name),
                        law_declared=placement.declared.service,
                        cv_declared=placement.declared.cv,
                        memory_declared=placement.declared.memory,
                        startup_s=None if placement.declared.startup else _startup_s(state, stage.name, placement.name),
                        warming=warming(state, stage, placement, now_s),
                        neighbours=neighbours.get((stage.name, placement.name), ()),
                    )
                    for placement in stage.placements
                ),
            )
            for stage in spec.stages
        ),
        sla=spec.sla,
        latency_s=state.latency_s,
        demand=None if isinstance(demand.observed, Absence) else optimizer_demand(spec, demand.observed),
    )


def _shared_with(use: SharedUse | None, key: PipelineKey) -> SharedInput | None:
    return None if use is None else SharedInput(other_sessions=use.of_others(key))


def _startup_s(state: PipelineState, stage: StageName, placement: PlacementName) -> float | None:
    target = state.target(stage, placement)
    return (
        None
        if isinstance(target, TargetMissing)
        else target.startup_s(state.memory.learned.startups_s.get((stage, placement)))
    )


def _stages_without_samples(state: PipelineState) -> Mapping[StageName, MissingReading]:
    """Return the stages whose ready replicas report no usable load, each with the first missing quantity.

    One that is missing because replicas are too new comes last.
    """
    silent: dict[StageName, MissingReading] = {}
    for stage, placement in state.spec.placement_keys():
        known = silent.get(stage)
        if state.ready(stage, placement) == 0 or (
            known is not None and known.absence.reason is not AbsenceReason.TOO_NEW
        ):
            continue
        for quantity in THROUGHPUT:
            reading = state.samples_of(stage, placement).of(quantity)
            if isinstance(reading, Absence) and reading.reason not in SILENT_BY_NATURE:
                found = MissingReading(placement=placement, quantity=quantity, absence=reading)
                if known is None or reading.reason is not AbsenceReason.TOO_NEW:
                    silent[stage] = known = found
                break
    return silent
