"""Two pipelines that share an encoder: `speech/captions` declares it, and `speech/notes` uses it as its `asr`."""

from collections.abc import Mapping
from dataclasses import replace

from builders import a_placement, a_snapshot, a_spec, a_stage, a_state, a_target

from controller.core.state.decision import Decision, PipelineDecision
from controller.core.state.shared import filled
from controller.core.state.snapshot import PipelineState, PoolState, Snapshot, TargetState
from controller.core.state.spec import Mode, PipelineSpec
from optimizer.model import PipelineKey, PlacementKey, PoolName, StageName
from profiler.samples import PlacementSamples, Reading

OWNER, BORROWER = PipelineKey("speech/captions"), PipelineKey("speech/notes")
GPU, CPU = PoolName("gpu"), PoolName("cpu")
SHARED = (OWNER, StageName("encoder"))
ENCODER, DECODER = (StageName("encoder"), GPU), (StageName("decoder"), CPU)
ASR, SUMMARY = (StageName("asr"), GPU), (StageName("summary"), CPU)


def owning(*, mode: Mode = Mode.AUTO, sla_s: float = 0.5, budget: float = 100.0) -> PipelineSpec:
    """Return `speech/captions`: an encoder on gpu, 20 items/s per replica, and a decoder on cpu."""
    stages = (
        a_stage("encoder", a_placement("gpu", bounds=(1, 20))),
        a_stage("decoder", a_placement("cpu", bounds=(1, 20)), after=["encoder"]),
    )
    return a_spec(*stages, name="captions", mode=mode, sla_s=sla_s, budget=budget)


def unfilled(*, sla_s: float = 0.5, mode: Mode = Mode.AUTO, budget: float = 100.0, priority: int = 0) -> PipelineSpec:
    """Return `speech/notes` as declared: its `asr` is the encoder of `speech/captions`."""
    stages = (
        replace(a_stage("asr"), shared_from=SHARED),
        a_stage("summary", a_placement("cpu", bounds=(1, 20)), after=["asr"]),
    )
    return a_spec(*stages, name="notes", sla_s=sla_s, mode=mode, budget=budget, priority=priority)


def borrowing(
    owner: PipelineSpec | None = None, *, sla_s: float = 0.5, mode: Mode = Mode.AUTO, budget: float = 100.0
) -> PipelineSpec:
    """Return `speech/notes` with the servers of its shared stage."""
    owner = owner or owning()
    return filled(unfilled(sla_s=sla_s, mode=mode, budget=budget), {owner.key: owner})


def the_world(
    specs: tuple[PipelineSpec, PipelineSpec] | None = None,
    *,
    demands: tuple[Reading, Reading] = (10.0, 10.0),
    encoders: int | TargetState = 2,
    others: tuple[int, int] = (1, 1),
    samples: Mapping[PlacementKey, PlacementSamples] | None = None,
    fleet: Mapping[PoolName, PoolState] | None = None,
) -> Snapshot:
    """Return a snapshot of both pipelines; `others` are the replicas of the decoder and of the summary."""
    owner, borrower = specs or (owning(), borrowing())
    target = a_target(encoders) if isinstance(encoders, int) else encoders
    return a_snapshot(
        a_state(owner, demand=demands[0], replicas={ENCODER: target, DECODER: others[0]}, samples=samples),
        a_state(
            borrower,
            demand=demands[1],
            replicas={ASR: replace(target, owner=OWNER), SUMMARY: others[1]},
            samples=None if samples is None else {ASR: samples[ENCODER]} if ENCODER in samples else None,
        ),
        fleet=fleet,
    )


def of(decision: Decision, key: PipelineKey) -> PipelineDecision:
    """Return the decision for one pipeline."""
    (found,) = (own for own in decision.pipelines if own.key == key)
    return found


def moves(decision: PipelineDecision) -> Mapping[PlacementKey, tuple[int, int]]:
    """Return the changed placements with their replicas before and after."""
    return {(change.stage, change.placement): (change.before, change.after) for change in decision.changes}


def followed(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """Return the world after `decision`, with all replicas ready."""
    states: list[PipelineState] = []
    desired = {(own.key, key): count for own in decision.pipelines for key, count in own.desired.items()}
    for state, own in zip(snapshot.pipelines, decision.pipelines, strict=True):
        targets = {
            key: replace(
                a_target(desired[own.key, key]), owner=target.owner if isinstance(target, TargetState) else None
            )
            for key, target in state.targets.items()
        }
        states.append(replace(state, targets=targets, memory=own.memory))
    return replace(snapshot, now_s=snapshot.now_s + 15.0, pipelines=tuple(states))
