"""What is known of each pipeline before anything is planned: its profile, demand, rules, and what must not change."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controller.core.assess.availability import Availability, unavailable
from controller.core.assess.conflicts import conflicting, conflicts
from controller.core.assess.demand import DemandState, stabilised_demand
from controller.core.assess.problem import pipeline_problem, rounded_up
from controller.core.assess.rules import evaluate_rules
from controller.core.state.carry_over import Conflict, FailureCause, PlacementFailure, PoolMemory, RuleMemory
from controller.core.state.decision import Hold, HoldReason, RuleState
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState, Snapshot, TargetMissing, TargetState
from controller.core.state.spec import Mode, PipelineSpec, PlacementKey
from optimizer.latency.predict import predicted_latency_s, stage_load
from optimizer.model import Pipeline, PipelineKey, Placement, PoolName, StageName
from profiler.correction import RunningPlacement, RunningStage, with_corrections
from profiler.estimate import PlacementInput, StageInput, estimate_pipeline
from profiler.profile import PipelineProfile
from profiler.samples import THROUGHPUT, Absence, AbsenceReason, Reading

SILENT_BY_NATURE = (AbsenceReason.NO_TRAFFIC, AbsenceReason.UNSUPPORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """One pipeline as it is.

    `current` is every placement's desired replicas, 0 where the workload is missing; `at_most` bounds those where no
    more can be had, `on_trial` has how many may be added where a failure is over and nothing has proven it yet.
    `moved_at_s` is when replicas last came or went. `blind` names the stages that run without usable samples and why,
    `targets_missing` the placements whose workload cannot be read, `pools_missing` the pools that do not exist: what
    runs on those stays as it is. `conflicting` names the placements that others scale too, `conflicts` is what shows
    it. `failures` are the placements that fail by themselves, `outages` says of every placement that cannot be had why,
    and until when.
    """

    state: PipelineState
    profile: PipelineProfile
    demand: DemandState
    moved_at_s: float | None
    rules: tuple[RuleState, ...]
    rule_memories: Mapping[tuple[StageName, str], RuleMemory]
    current: Mapping[PlacementKey, int]
    at_most: Mapping[PlacementKey, int]
    on_trial: Mapping[PlacementKey, int]
    blind: Mapping[StageName, str]
    targets_missing: Mapping[PlacementKey, str]
    pools_missing: frozenset[PoolName]
    conflicts: Mapping[PlacementKey, Conflict]
    conflicting: Mapping[PlacementKey, str]
    failures: Mapping[PlacementKey, PlacementFailure]
    outages: tuple[Hold, ...]

    @property
    def key(self) -> PipelineKey:
        """Return the pipeline's key."""
        return self.state.spec.key

    @property
    def spec(self) -> PipelineSpec:
        """Return what the user asked for."""
        return self.state.spec

    @property
    def acting(self) -> bool:
        """Whether this cycle may change the pipeline's replicas."""
        return self.spec.mode is Mode.AUTO and not self.conflicting

    @property
    def planned_demand(self) -> float:
        """Return the demand to plan for, in the pipeline's unit: the stabilised one, rounded up; 0 before any."""
        return rounded_up(self.demand.demand or 0.0)

    @property
    def share_before(self) -> float | None:
        """Return the share of the demand to plan for that the last cycle admitted, None where that was all."""
        admitted, demand = self.state.memory.admissible, self.planned_demand
        return None if admitted is None or demand <= 0 else min(1.0, admitted / demand)

    @property
    def demand_missing(self) -> bool:
        """Whether there is no demand to plan for this cycle."""
        return isinstance(self.demand.observed, Absence)

    @property
    def never_down(self) -> bool:
        """Whether too little is known to take anything away."""
        return self.demand_missing or bool(self.blind) or bool(self.targets_missing)

    @property
    def leaving(self) -> Mapping[PlacementKey, int]:
        """Return how many replicas of each placement serve on nodes that are to go soon, where there are any."""
        targets = {key: self.state.target(*key) for key in self.spec.placement_keys()}
        return {
            key: target.leaving for key, target in targets.items() if isinstance(target, TargetState) and target.leaving
        }

    @property
    def spend_unknown(self) -> bool:
        """Whether a workload that may run cannot be read, or runs on a pool without a price: nobody knows the spend."""
        targets = {key: self.state.target(*key) for key in self.spec.placement_keys()}
        return any(
            target.unreadable
            if isinstance(target, TargetMissing)
            else key[1] in self.pools_missing and max(target.desired, target.existing + target.terminating) > 0
            for key, target in targets.items()
        )

    @property
    def kept(self) -> Mapping[PlacementKey, int]:
        """Return the replicas that stay whatever the plan says: all of a pipeline that never goes down.

        Else those whose pool does not exist: nobody knows what they are worth.
        """
        return {
            key: min(count, self.at_most.get(key, count))
            for key, count in self.current.items()
            if count and (self.never_down or key[1] in self.pools_missing)
        }

    def problem(self, policy: Policy, *, at_least: Mapping[PlacementKey, int]) -> Pipeline:
        """Return the pipeline's part of the optimizer's question, keeping `at_least` replicas."""
        return pipeline_problem(
            self.spec,
            self.planned_demand,
            profile=self.profile,
            # What is to go has to be had anew, wherever that is.
            current={key: max(0, count - self.leaving.get(key, 0)) for key, count in self.current.items()},
            at_least=at_least,
            at_most=self.at_most,
            latency_headroom=policy.latency_headroom,
        )


def assess(state: PipelineState, snapshot: Snapshot, availability: Availability, policy: Policy) -> Assessment:
    """Return what is known of one pipeline."""
    spec, now_s = state.spec, snapshot.now_s
    moved_at_s = now_s if _moves(state) else state.memory.moved_at_s
    window_s = max(stage.metrics_window_s for stage in spec.stages)
    settled = moved_at_s is None or moved_at_s < now_s - window_s
    demand = stabilised_demand(state, now_s, policy.interval_s)
    profile = estimate_pipeline(
        _stage_inputs(state),
        sla=spec.sla,
        measured_latency_s=state.latency_s,
        settled=settled,
        interval_s=policy.interval_s,
    )
    profile = with_corrections(
        profile,
        _running(state, profile, demand.observed),
        sla_latency_s=spec.sla.latency_s,
        # Without the demand nobody knows how many streams there are.
        settled=settled and not isinstance(demand.observed, Absence),
        now_s=now_s,
        interval_s=policy.interval_s,
    )
    replicas = {
        stage.name: sum(state.desired(stage.name, placement.pool) for placement in stage.placements)
        for stage in spec.stages
    }
    rules, rule_memories = evaluate_rules(state, profile, replicas, snapshot.pools, now_s)
    missing: dict[PlacementKey, str] = {}
    for key in spec.placement_keys():
        target = state.target(*key)
        if isinstance(target, TargetMissing):
            missing[key] = target.reason
    changes = conflicts(state, now_s)
    current = {key: state.desired(*key) for key in spec.placement_keys()}
    pools_missing = frozenset(pool for _, pool in current if pool not in snapshot.pools)
    at_most = {
        **{key: count for key, count in current.items() if key[1] in pools_missing},
        **availability.at_most(state),
    }
    on_trial = availability.on_trial(state)
    if on_trial and not _runs_well(state, profile, demand, at_most, policy):
        # What is short now is not to wait for what may still fail.
        at_most |= {key: current[key] + allowed for key, allowed in on_trial.items()}
    return Assessment(
        state=state,
        profile=profile,
        demand=demand,
        moved_at_s=moved_at_s,
        rules=rules,
        rule_memories=rule_memories,
        current=current,
        at_most=at_most,
        on_trial=on_trial,
        blind=_blind_stages(state),
        targets_missing=missing,
        pools_missing=pools_missing,
        conflicts=changes,
        conflicting=conflicting(state, changes, now_s),
        failures=availability.failures.get(spec.key, {}),
        outages=tuple(_outages(state, availability)),
    )


def _runs_well(
    state: PipelineState,
    profile: PipelineProfile,
    demand: DemandState,
    at_most: Mapping[PlacementKey, int],
    policy: Policy,
) -> bool:
    """Whether what has a place carries the demand within the SLA, so that there is time for a trial."""
    if demand.demand is None or isinstance(demand.observed, Absence):
        return False
    placed = {
        key: min(target.existing - len(target.pending) - len(target.stranded), at_most.get(key, target.desired))
        for key in state.spec.placement_keys()
        if isinstance(target := state.target(*key), TargetState)
    }
    asked = pipeline_problem(state.spec, demand.demand, profile=profile)
    latency_s = predicted_latency_s(asked, placed, state.memory.batches, composition=policy.composition)
    return latency_s is not None and latency_s <= state.spec.sla.latency_s


def _outages(state: PipelineState, availability: Availability) -> Iterator[Hold]:
    for stage, pool in state.spec.placement_keys():
        memory = availability.pools.get(pool, PoolMemory())
        failure = availability.failures.get(state.spec.key, {}).get((stage, pool))
        if unavailable(memory, availability.now_s):
            reason = HoldReason.POOL_UNAVAILABLE
        elif failure is not None and unavailable(failure.outage, availability.now_s):
            fragmented = failure.cause is FailureCause.FRAGMENTED
            reason = HoldReason.FRAGMENTED if fragmented else HoldReason.CANNOT_START
            memory = failure.outage
        else:
            continue
        yield Hold(reason=reason, stage=stage, pool=pool, until_s=memory.unavailable_until_s, detail=memory.reason)


def _moves(state: PipelineState) -> bool:
    """Whether replicas are coming or going, so that rates over a window are not yet those of all work."""
    return any(
        target.terminating or not target.ready == target.existing == target.desired
        for key in state.spec.placement_keys()
        if isinstance(target := state.target(*key), TargetState)
    )


def _stage_inputs(state: PipelineState) -> tuple[StageInput, ...]:
    memory = state.memory
    return tuple(
        StageInput(
            name=stage.name,
            after=stage.after,
            prior_pass_ratio=stage.pass_ratio,
            pass_ratio=memory.pass_ratios.get(stage.name),
            window_s=stage.metrics_window_s,
            placements=tuple(
                PlacementInput(
                    pool=placement.pool,
                    prior=placement.prior.service,
                    batch_limit=placement.prior.batch_sizes[-1],
                    replicas=_ready(state, (stage.name, placement.pool)),
                    samples=state.samples_of(stage.name, placement.pool),
                    factor=memory.service_factors.get((stage.name, placement.pool)),
                )
                for placement in stage.placements
            ),
        )
        for stage in state.spec.stages
    )


def _running(state: PipelineState, profile: PipelineProfile, observed: Reading) -> Mapping[StageName, RunningStage]:
    """Return the stages as they run, for the model to be held against what was measured."""
    memory = state.memory
    asked = pipeline_problem(state.spec, 0.0 if isinstance(observed, Absence) else observed, profile=profile)
    return {
        stage.name: RunningStage(
            load=stage_load(asked, stage),
            routing=stage.routing,
            window_s=spec.metrics_window_s,
            placements={
                placement.pool: RunningPlacement(
                    placement=placement,
                    replicas=_ready(state, (stage.name, placement.pool)),
                    batch=memory.batches.get((stage.name, placement.pool), placement.batch_sizes[-1]),
                    throughput=memory.throughput_corrections.get((stage.name, placement.pool)),
                )
                for placement in stage.placements
            },
            latency=memory.latency_corrections.get(stage.name),
        )
        for spec, stage in zip(state.spec.stages, asked.stages, strict=True)
    }


def _blind_stages(state: PipelineState) -> Mapping[StageName, str]:
    """Return the stages in which ready replicas say nothing usable about their load."""
    blind: dict[StageName, str] = {}
    for stage, pool in state.spec.placement_keys():
        if stage in blind or _ready(state, (stage, pool)) == 0:
            continue
        for quantity in THROUGHPUT:
            reading = state.samples_of(stage, pool).of(quantity)
            if isinstance(reading, Absence) and reading.reason not in SILENT_BY_NATURE:
                blind[stage] = f"{quantity.value} on {pool}: {reading.reason.value} {reading.detail}".rstrip()
                break
    return blind


def _ready(state: PipelineState, key: PlacementKey) -> int:
    target = state.target(*key)
    return 0 if isinstance(target, TargetMissing) else target.ready


def out_of_bounds(assessment: Assessment) -> bool:
    """Return whether what runs breaks the declared bounds, or nothing of a stage runs."""
    for stage in assessment.spec.stages:
        if all(assessment.current[(stage.name, placement.pool)] == 0 for placement in stage.placements):
            return True
        for placement in stage.placements:
            key = (stage.name, placement.pool)
            most = most_allowed(assessment, key, placement.prior)
            if not min(placement.prior.min_replicas, most) <= assessment.current[key] <= most:
                return True
    return False


def most_allowed(assessment: Assessment, key: PlacementKey, prior: Placement) -> int:
    """Return how many replicas a placement may have: none where its model makes too many errors."""
    if assessment.spec.max_wer is not None and prior.wer is not None and prior.wer > assessment.spec.max_wer:
        return 0
    most = min(prior.max_replicas, assessment.at_most.get(key, prior.max_replicas))
    return min(most, assessment.current[key] + assessment.on_trial[key]) if key in assessment.on_trial else most
