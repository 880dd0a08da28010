"""Drains the fullest replica of a sticky stage, so that its sessions attach elsewhere.

A session that lasts for hours stays on its replica, however full that is (`controller.core.assess.skews`). Where the
ingress does not move it, only a cut does: the client comes back, and gets the replica with the fewest sessions. A cut
has a price, `scaling.rebalance.cutCost`: so much time outside the SLA is as bad. How long a session would still last is
not known, so it is cut once it has missed for that time: never more than twice what the better of both choices costs
(ski rental; Karlin, Manasse, Rudolph and Sleator 1988).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.core.assess.assessment import Assessment
from controller.core.assess.skews import FULL, empty_replica, held_sessions
from controller.core.bounds.measured_miss import late
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.carry_over import DrainMemory
from controller.core.state.decision import ChangeReason, CrowdedReplica, Drain, DrainStep, Skew
from controller.core.state.snapshot import TargetMissing, TargetState
from optimizer.latency.predict import stage_load
from optimizer.model import Stage, StageName

DRAIN = Mechanism(
    name="drain of a crowded replica",
    level=Level.STEP,
    evidence=Evidence.PLACEMENT,
    does="with `scaling.rebalance.mode: Drain`, the fullest replica of a stage goes, one at a time, once its sessions "
    "have missed the SLA for `cutCost`; no other step keeps it, nor does a measured miss",
    planned=False,
)
ROOM = Mechanism(
    name="room for a drain",
    level=Level.FLOOR,
    evidence=Evidence.PLACEMENT,
    does="where the others cannot take the sessions of a crowded replica, its placement gets the replicas that can, "
    "until it is drained",
)
HOUR_S = 3600.0
"""In this time, no more sessions of a stage are cut than there are: each session once, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drains:
    """The drains of a pipeline, their bounds, and what the next cycle knows."""

    found: tuple[Drain, ...] = ()
    bounds: tuple[Bound, ...] = ()
    memories: Mapping[StageName, DrainMemory] = field(default_factory=dict)


def evaluate_drains(assessment: Assessment, uneven: Sequence[Skew], now_s: float, interval_s: float) -> Drains:
    """Return the drains of a pipeline whose stages `uneven` are crowded; `interval_s` is the time between cycles.

    Only a measured end-to-end latency says that sessions miss: the utilization that makes a replica crowded may rest on
    declared numbers. Without it nothing is cut. One stage is drained at a time.
    """
    cut_cost_s = assessment.spec.scaling.cut_cost_s
    if cut_cost_s is None or not assessment.acting:
        return Drains()
    memories = dict(_remembered(assessment, now_s))
    found: list[Drain] = []
    bounds: list[Bound] = []
    for skew in uneven:
        (stage,) = (own for own in assessment.pipeline.stages if own.name == skew.stage)
        memory = memories.get(skew.stage, DrainMemory(seen_s=now_s))
        if late(assessment) and skew.utilization >= FULL:
            passed_s = min(max(0.0, now_s - memory.seen_s), 2 * interval_s)
            memory = replace(memory, missed_s=memory.missed_s + passed_s)
        due = not any(own.step is DrainStep.DRAINING for own in found)
        drain, bound = _drain(assessment, stage, skew, memory, cut_cost_s, due=due)
        found.append(drain)
        bounds += [] if bound is None else [bound]
        chosen = drain.pod if bound is not None and bound.mechanism is DRAIN else None
        memories[skew.stage] = replace(memory, seen_s=now_s, pod=chosen, pod_sessions=drain.sessions if chosen else 0.0)
    kept = {
        stage: memory if memory.seen_s == now_s else replace(memory, seen_s=now_s, missed_s=0.0)
        for stage, memory in memories.items()
        if memory.seen_s == now_s or memory.hour_s is not None
    }
    return Drains(found=tuple(found), bounds=tuple(bounds), memories=kept)


def _remembered(assessment: Assessment, now_s: float) -> Iterator[tuple[StageName, DrainMemory]]:
    """Yield the memory of each stage; a replica that was to be drained counts as cut once it is gone."""
    for stage, memory in assessment.state.memory.drains.items():
        own = memory
        if own.hour_s is not None and not 0 <= now_s - own.hour_s < HOUR_S:
            own = replace(own, cut=0.0, hour_s=None)
        if own.pod is not None:
            if not any(own.pod == each.name for target in _targets(assessment, stage) for each in target.serving):
                hour_s = now_s if own.hour_s is None else own.hour_s
                own = replace(own, missed_s=0.0, cut=own.cut + own.pod_sessions, hour_s=hour_s)
            own = replace(own, pod=None, pod_sessions=0.0)
        if any(each.name == stage for each in assessment.spec.stages):
            yield stage, own


def _targets(assessment: Assessment, stage: StageName) -> Sequence[TargetState]:
    return [target for key, target in assessment.state.found() if key[0] == stage]


def _drain(
    assessment: Assessment, stage: Stage, skew: Skew, memory: DrainMemory, cut_cost_s: float, *, due: bool
) -> tuple[Drain, Bound | None]:
    """Return the drain of the fullest replica of a crowded stage, and the bound that it needs in this cycle."""
    fullest = skew.crowded[0]
    key = (stage.name, fullest.placement)
    target = assessment.state.target(*key)
    drain = Drain(
        stage=stage.name,
        placement=fullest.placement,
        pod=fullest.pod,
        sessions=fullest.sessions,
        missed_s=memory.missed_s,
        cut_cost_s=cut_cost_s,
        step=DrainStep.MISSING,
    )
    if isinstance(target, TargetMissing) or not assessment.spec.placements()[key].target.heeds_costs:
        return replace(drain, step=DrainStep.UNABLE), None
    if memory.missed_s < cut_cost_s:
        return drain, None
    going = any(
        own.terminating or own.rolling or any(each.leaving for each in own.serving)
        for own in _targets(assessment, stage.name)
    )
    if going or not due:
        return replace(drain, step=DrainStep.DRAINING), None
    if memory.cut + fullest.sessions > skew.sessions and memory.cut:
        return replace(drain, step=DrainStep.RESTING), None
    missing = _replicas_missing(assessment, stage, skew, fullest)
    count = assessment.current[key]
    if missing is not None:
        bound = ROOM.on(key, least=count + missing, change=ChangeReason.REBALANCE)
        return replace(drain, step=DrainStep.MAKING_ROOM), bound
    return replace(drain, step=DrainStep.DRAINING), DRAIN.on(key, most=count - 1, change=ChangeReason.REBALANCE)


def _replicas_missing(assessment: Assessment, stage: Stage, skew: Skew, fullest: CrowdedReplica) -> int | None:
    """Return how many replicas must be added so that the others can take the sessions of the fullest one.

    None: those that report their sessions can take them all. 0: they can with those that do not report any yet.
    """
    session_rps = stage_load(assessment.pipeline, stage).rate_rps / skew.sessions
    held = tuple(held_sessions(assessment, stage))
    others = [own for own in held if own.pod != fullest.pod]
    short = fullest.sessions - sum(max(0.0, own.most(session_rps) - own.sessions) for own in others)
    if short <= 0:
        return None
    empty = {placement.name: empty_replica(placement).most(session_rps) for placement in stage.placements}
    for key, target in assessment.state.found():
        if key[0] == stage.name and key[1] in empty and empty[key[1]] > 0:
            silent = target.desired - sum(own.placement == key[1] for own in held)
            short -= max(0, silent) * empty[key[1]]
    if short <= 0 or empty[fullest.placement] <= 0:
        return 0
    return math.ceil(short / empty[fullest.placement])
