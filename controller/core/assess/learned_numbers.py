"""What was learned of a pipeline takes the place of what is not declared; and when measurements are of its replicas."""

import math
from collections.abc import Mapping
from dataclasses import replace

from controller.core.state.shared import filled
from controller.core.state.snapshot import PipelineState, Snapshot, TargetMissing
from controller.core.state.spec import PlacementSpec, StageSpec
from optimizer.model import PlacementKey, Size, StageName
from profiler.stages import Learned, to_grain

WARM_UP_S = 120.0
"""For so long, but no longer than it took to start, a replica may serve more slowly than later: caches fill, code is
compiled for the shapes that arrive."""
PACKING, LEAST_PACKED = 2, 32
"""While the session slots of a replica are not known, a plan has at most this many times as many sessions on it as were
seen there, but at least `LEAST_PACKED`."""


def settled(stage: StageSpec, stages_moved_at_s: Mapping[StageName, float], now_s: float) -> bool:
    """Return whether no replica of the stage started or stopped within the window of its metrics."""
    return stages_moved_at_s.get(stage.name, -math.inf) < now_s - stage.metrics_window_s


def warming(state: PipelineState, stage: StageSpec, placement: PlacementSpec, now_s: float) -> float:
    """Return the share (0–1) of the ready replicas of which the window of the samples has their first time."""
    target = state.target(stage.name, placement.name)
    if isinstance(target, TargetMissing) or not target.ready:
        return 0.0
    warm_up_s = min(WARM_UP_S, placement.startup_s)
    return min(1.0, target.ready_after(now_s - stage.metrics_window_s - warm_up_s) / target.ready)


def with_learned_numbers(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with what was learned where nothing is declared: variation, start-up times, session slots.

    How many replicas fill an instance is taken from the nodes, where they show something else than declared. Learned
    service laws are in the profile, which has their error bars. What is learned of a shared stage is learned by
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
    learned, placements = state.memory.learned, state.spec.placements()
    sizes = {
        key: size
        for key, target in state.found()
        if (size := target.per_instance(placements[key].prior.per_instance)) != placements[key].prior.per_instance
    }
    numbers = (
        *(learned.startups_s, learned.session_slots, learned.sessions_held, learned.cvs, learned.engines),
        *(learned.shares.cascade, learned.shares.prefix),
    )
    if not (sizes or any(numbers)):
        return state
    stages = tuple(
        replace(
            _with_share(stage, learned),
            placements=tuple(
                _sized(
                    _learned(placement, (stage.name, placement.name), learned), sizes.get((stage.name, placement.name))
                )
                for placement in _with_share(stage, learned).placements
            ),
        )
        for stage in state.spec.stages
    )
    return replace(state, spec=replace(state.spec, stages=stages))


def _with_share(stage: StageSpec, learned: Learned) -> StageSpec:
    share = learned.shares.cascade.get(stage.name)
    return stage if share is None or stage.cascade is None else stage.with_share(min(1.0, to_grain(share)))


def _sized(placement: PlacementSpec, per_instance: Size | None) -> PlacementSpec:
    """Return the placement with `per_instance` replicas per instance, unchanged where this is None."""
    if per_instance is None:
        return placement
    prior = replace(placement.prior, per_instance=per_instance)
    return replace(placement, prior=prior, stated_per_instance=placement.prior.per_instance)


def _learned(placement: PlacementSpec, key: PlacementKey, learned: Learned) -> PlacementSpec:
    if placement.declared.service and (hits := learned.shares.prefix.get(key)) is not None:
        placement = placement.with_prefix_hits(1 - to_grain(1 - hits))
    declared, prior = placement.declared, placement.prior
    law, slots, startup_s = prior.service, prior.session_slots, placement.startup_s
    if declared.service and not declared.cv:
        law = replace(law, cv=to_grain(learned.cvs.get(key, law.cv)))
    if not declared.memory:
        slots = learned.session_slots.get(key, _packed(learned.sessions_held.get(key)))
    if not declared.startup:
        startup_s = learned.startups_s.get(key, startup_s)
    concurrency = max(prior.concurrency, learned.engines.get(key, 1))
    found = replace(prior, service=law, session_slots=slots, concurrency=concurrency)
    if (found, startup_s) == (prior, placement.startup_s):
        return placement
    return replace(placement, prior=found, startup_s=startup_s)


def _packed(held: int | None) -> int | None:
    """Return the most sessions to plan on a replica of which `held` were seen without a refusal; None: no limit.

    Where the limit is not known, fewer replicas find it by refusing streams: plans go there in steps.
    """
    return None if held is None else max(LEAST_PACKED, PACKING * held)
