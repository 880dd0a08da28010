"""The batch settings that servers have or may have, where Sluice writes them to a ConfigMap that the servers read."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from controller.core.state.carry_over import MOST_SEEN, BatchMemory, FeedbackMemory
from controller.core.state.snapshot import BatchingState, PipelineState, Snapshot
from controller.core.state.spec import AppliedBatching, Mode, PlacementSpec, StageSpec
from optimizer.model import BatchSettings, Placement, PlacementKey, StageName

SYNC_S = 120.0
"""How long a change of a ConfigMap takes to reach the files of pods, at most: the kubelet looks once in its sync period
(1 min by default), and its own copy of the ConfigMap may be as old (`configMapAndSecretChangeDetectionStrategy`)."""


def with_batching(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the settings in force as those of the placements for which Sluice writes them.

    Servers may have each value that the key had within `SYNC_S`, and soon the one that was decided and is not there. A
    server that finds no value has `AppliedBatching.unset`.
    """
    if not any(state.batching for state in snapshot.pipelines):
        return snapshot
    return replace(
        snapshot,
        pipelines=tuple(_in_force(state, snapshot.now_s) if state.batching else state for state in snapshot.pipelines),
    )


def present(applied: AppliedBatching, state: BatchingState) -> BatchSettings:
    """Return what a server reads now."""
    return applied.unset if state.settings is None else state.settings


def writable(state: PipelineState, key: PlacementKey) -> bool:
    """Return whether Sluice may write the settings of a placement: the mode is Auto, and the ConfigMap was read."""
    return state.spec.mode is Mode.AUTO and not state.batching[key].problem


def with_settings(placement: Placement, in_force: tuple[BatchSettings, ...]) -> Placement:
    """Return `placement` planned so that the SLA is met with each of the settings `in_force`."""
    # Capacity is that of the least capable ones.
    least = min(in_force, key=lambda own: (placement.law_rps(own.limit), -own.wait_s, own.limit))
    return placement.with_settings(least, in_force if len(in_force) > 1 else ())


def _in_force(state: PipelineState, now_s: float) -> PipelineState:
    memories: dict[PlacementKey, BatchMemory] = {}
    found: dict[PlacementKey, PlacementSpec] = {}
    for key, placement in state.spec.placements().items():
        if (applied := placement.applied) is None or key not in state.batching:
            continue
        memories[key] = own = _noticed(state, key, applied, now_s)
        values = tuple(settings for settings, _ in own.seen)
        if own.decided is not None and not state.batching[key].refused and writable(state, key):
            values = tuple(dict.fromkeys((*values, own.decided)))
        found[key] = replace(placement, prior=with_settings(placement.prior, values))

    def filled(stage: StageSpec) -> StageSpec:
        return replace(stage, placements=tuple(found.get((stage.name, own.name), own) for own in stage.placements))

    limits = {key: placement.prior.batch_sizes[0] for key, placement in found.items()}
    before = state.memory.batching
    left = {key[0] for key, own in memories.items() if key in before and len(own.seen) < len(before[key].seen)}
    memory = replace(
        state.memory,
        batching=memories,
        batches={**state.memory.batches, **limits},
        feedback=_without(state.memory.feedback, left) if left else state.memory.feedback,
    )
    return replace(state, spec=replace(state.spec, stages=tuple(map(filled, state.spec.stages))), memory=memory)


def _without(feedback: FeedbackMemory, stages: Collection[StageName]) -> FeedbackMemory:
    """Return what is known without the floors of `stages`: they were needed with batch settings that no server has."""
    return replace(
        feedback,
        floors={name: floor for name, floor in feedback.floors.items() if name not in stages},
        kept={name: kept for name, kept in feedback.kept.items() if name not in stages},
    )


def _noticed(state: PipelineState, key: PlacementKey, applied: AppliedBatching, now_s: float) -> BatchMemory:
    """Return what is known of the settings of a placement now: the present ones come first.

    Without a right or a ConfigMap, the last ones that were seen stay. A pipeline that does not act decides nothing: it
    goes on with what it finds.
    """
    memory, found = state.memory.batching.get(key, BatchMemory()), state.batching[key]
    now = present(applied, found)
    if found.problem:
        return replace(memory, seen=memory.seen or ((now, now_s),))
    lately = [(own, min(now_s, at_s)) for own, at_s in memory.seen if own != now]
    seen = ((now, now_s), *((own, at_s) for own, at_s in lately if now_s - at_s < SYNC_S))[:MOST_SEEN]
    decided = memory.decided if writable(state, key) else None
    if decided is None or not applied.allows(decided):
        decided = found.settings if found.settings is not None and applied.allows(found.settings) else None
    return BatchMemory(decided=decided, seen=seen)


def settled(memories: Mapping[PlacementKey, BatchMemory]) -> bool:
    """Return whether the servers have the settings that were decided last, and no others."""
    return all(len(own.seen) == 1 and own.decided in (None, own.seen[0][0]) for own in memories.values())
