"""Stages of which not enough is known yet: they keep what carries their load, and double it while it does not.

A placement that was never measured is not used to save money. Where it might, one replica is started there first.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controller.core.state.shared import filled
from controller.core.state.snapshot import PipelineState, Snapshot
from controller.core.state.spec import PlacementKey, PlacementSpec, StageSpec
from optimizer.model import Pipeline, StageName
from profiler.samples import Absence, Quantity
from profiler.slots import wants_slots
from profiler.stages import Learned, PipelineInput, PipelineProfile, StageProfile, to_grain

BUSY = 0.9
"""A stage whose replicas are busy for a larger share of the time is short of replicas."""
BEHIND = 1.05
"""Arrivals over completions from which a stage falls behind."""
PROBE_ROOM = 0.9
"""A first replica is started somewhere only while the latency is below this share of the SLA: it may be slow."""
PACKING, LEAST_PACKED = 2, 32
"""While the session slots of a replica are not known, a plan has at most this many times as many sessions on it as were
seen there, but at least `LEAST_PACKED`."""
WAITING_SHARE = 0.25
"""A stage whose waiting items take a larger share of the SLA to clear is short of replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What is not known of a pipeline's stages, and what follows from that.

    `floors` has the least replicas of the stages of which not enough is known. `probe` is a placement that was never
    measured, on which one replica may be started for that. `fallback` is the optimizer's input with such placements,
    None where there are none. `stages_moved_at_s` is when replicas of each stage last started or stopped: what is
    measured until a window later is not of the present replicas.
    """

    floors: Mapping[StageName, int] = field(default_factory=dict)
    probe: PlacementKey | None = None
    fallback: Pipeline | None = None
    stages_moved_at_s: Mapping[StageName, float]


def settled(stage: StageSpec, stages_moved_at_s: Mapping[StageName, float], now_s: float) -> bool:
    """Return whether no replica of the stage started or stopped within the window of its metrics."""
    return stages_moved_at_s.get(stage.name, -math.inf) < now_s - stage.metrics_window_s


def learning_floors(
    state: PipelineState,
    profile: PipelineProfile,
    learned: Learned,
    seen: PipelineInput,
    stages_moved_at_s: Mapping[StageName, float],
    now_s: float,
) -> Mapping[StageName, int]:
    """Return the least replicas of every stage that runs on replicas of which not enough is known.

    Not enough is known without a service law, and while sessions are refused but nothing says how many a replica holds;
    `learned` is what this cycle has learned from `seen`. The stage has at least the replicas that it has now, because
    no other number is known to carry the load. It gets twice as many while it queues or refuses sessions, and again
    when the new ones have been ready for a window of the metrics.
    """
    floors: dict[StageName, int] = {}
    profiles = {own.name: own for own in profile.stages}
    for stage, seen_of in zip(state.spec.stages, seen.stages, strict=True):
        own = profiles[stage.name]
        # While all streams that are offered are held, refusals have another cause.
        refuses = wants_slots(seen_of, seen) is not False and _refuses(stage, own, state, learned)
        if not refuses and not unknown(stage, own, state):
            continue
        total = max(1, sum(state.desired(stage.name, placement.pool) for placement in stage.placements))
        short = settled(stage, stages_moved_at_s, now_s) and (refuses or _queues(own, state.spec.sla.latency_s))
        floors[stage.name] = 2 * total if short else total
    return floors


def with_learned_numbers(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with what was learned where nothing is declared: variation, start-up times, session slots.

    Learned service laws are in the profile, which has their error bars. What is learned of a shared stage is learned by
    the pipeline that it belongs to.
    """
    states = tuple(map(_with_numbers, snapshot.pipelines))
    specs = {state.spec.key: state.spec for state in states}
    return replace(
        snapshot,
        pipelines=tuple(
            replace(state, spec=filled(state.spec, specs)) if state.spec.borrowed else state for state in states
        ),
    )


def _with_numbers(state: PipelineState) -> PipelineState:
    learned = state.memory.learned
    if not (learned.startups_s or learned.session_slots or learned.sessions_held or learned.cvs):
        return state
    stages = tuple(
        replace(
            stage,
            placements=tuple(
                _learned(placement, (stage.name, placement.pool), learned) for placement in stage.placements
            ),
        )
        for stage in state.spec.stages
    )
    return replace(state, spec=replace(state.spec, stages=stages))


def _learned(placement: PlacementSpec, key: PlacementKey, learned: Learned) -> PlacementSpec:
    declared, prior = placement.declared, placement.prior
    law, slots, startup_s = prior.service, prior.session_slots, placement.startup_s
    if declared.service and not declared.cv:
        law = replace(law, cv=to_grain(learned.cvs.get(key, law.cv)))
    if not declared.memory:
        slots = learned.session_slots.get(key, _packed(learned.sessions_held.get(key)))
    if not declared.startup:
        startup_s = learned.startups_s.get(key, startup_s)
    if (law, slots, startup_s) == (prior.service, prior.session_slots, placement.startup_s):
        return placement
    return replace(placement, prior=replace(prior, service=law, session_slots=slots), startup_s=startup_s)


def _packed(held: int | None) -> int | None:
    """Return the most sessions to plan on a replica of which `held` were seen without a refusal; None: no limit.

    Where the limit is not known, fewer replicas find it by refusing streams: plans go there in steps.
    """
    return None if held is None else max(LEAST_PACKED, PACKING * held)


def unknown(stage: StageSpec, profile: StageProfile, state: PipelineState) -> bool:
    """Return whether the stage has replicas whose service law is neither declared nor known, or none at all."""
    running = [own for own in profile.placements if state.desired(stage.name, own.pool) > 0]
    if not running:
        return not any(placement.declared.service for placement in stage.placements) and not any(
            own.known for own in profile.placements
        )
    return any(not own.known for own in running)


def probe(state: PipelineState, profile: PipelineProfile, at_most: Mapping[PlacementKey, int]) -> PlacementKey | None:
    """Return a placement to measure with one replica, None where there is none, or where the latency leaves no room.

    Its stage runs on known placements alone. Users choose the order by the order of the placements.
    """
    latency_s = profile.latency_s
    if isinstance(latency_s, Absence) or latency_s > PROBE_ROOM * state.spec.sla.latency_s:
        return None
    profiles = {own.name: own for own in profile.stages}
    for stage in state.spec.stages:
        own = profiles[stage.name]
        if unknown(stage, own, state) or all(state.desired(stage.name, each.pool) == 0 for each in own.placements):
            continue
        for placement, measured in zip(stage.placements, own.placements, strict=True):
            key = (stage.name, placement.pool)
            if not placement.declared.service and not measured.measured and at_most.get(key, 1) > 0:
                return key
    return None


def _refuses(stage: StageSpec, profile: StageProfile, state: PipelineState, learned: Learned) -> bool:
    """Return whether replicas refuse sessions of which it is not known how many they hold."""
    for placement, own in zip(stage.placements, profile.placements, strict=True):
        refused_rps = own.readings.get(Quantity.SESSION_REFUSALS)
        if (
            not placement.declared.memory
            and (stage.name, placement.pool) not in learned.session_slots
            and state.desired(stage.name, placement.pool) > 0
            and isinstance(refused_rps, float | int)
            and refused_rps > 0
        ):
            return True
    return False


def _queues(profile: StageProfile, sla_s: float) -> bool:
    busy, waiting, arrivals_rps, completions_rps = (
        _number(profile, quantity)
        for quantity in (
            Quantity.UTILIZATION,
            Quantity.QUEUE_DEPTH,
            Quantity.ARRIVAL_RATE,
            Quantity.COMPLETION_RATE,
        )
    )
    if completions_rps is None:
        return False
    if arrivals_rps is not None and arrivals_rps > BEHIND * completions_rps:
        return True
    if waiting is not None and waiting > WAITING_SHARE * sla_s * completions_rps:
        return True
    # A server with batches is busy nearly all the time from well below its limit on.
    batched = (_number(profile, Quantity.BATCH_SIZE) or 1.0) > 1
    return busy is not None and busy > BUSY and not batched


def _number(profile: StageProfile, quantity: Quantity) -> float | None:
    reading = profile.readings.get(quantity)
    return None if reading is None or isinstance(reading, Absence) else reading
