"""A queue before a shared stage is laid to the other pipeline where that one brings more: no run shares servers."""

from dataclasses import replace

from builders import applied, seen
from sharing import BORROWER, ENCODER, OWNER, of, the_world

from controller.core.cycle import decide
from controller.core.state.decision import PipelineDecision
from controller.core.state.diagnosis import Because
from controller.core.state.policy import Policy
from controller.core.state.snapshot import Snapshot
from optimizer.model import PlacementKey
from profiler.samples import PlacementSamples

POLICY = Policy(interval_s=15.0)
CALM, MISSES = 6, 3


def after(world: Snapshot, cycles: int) -> tuple[Snapshot, PipelineDecision]:
    """Return the world after some cycles in which its samples stay the same, and the owner's last decision."""
    for _ in range(cycles):
        decision = decide(world, POLICY)
        following = applied(world, decision, ready=False, after_s=POLICY.interval_s)
        found, world = of(decision, OWNER), following
    return world, found


def with_load(world: Snapshot, *, notes: float, latency_s: float, queue: float) -> Snapshot:
    """Return the world with another demand of `speech/notes`, and a queue before the encoder."""
    encoders = seen(queue_depth=queue, completion_rate=40.0, utilization=1.0)
    samples: dict[PlacementKey, PlacementSamples] = {ENCODER: encoders}
    return replace(
        world,
        pipelines=tuple(
            replace(state, demand=notes)
            if state.spec.key == BORROWER
            else replace(state, latency_s=latency_s, samples={**state.samples, **samples})
            for state in world.pipelines
        ),
    )


def forms(notes: float) -> list[tuple[str | None, Because | None]]:
    """Return what is named, by stage, once the encoder has a queue and `speech/notes` this demand."""
    world, _ = after(with_load(the_world(), notes=10.0, latency_s=0.2, queue=0.0), CALM)
    _, decision = after(with_load(world, notes=notes, latency_s=2.0, queue=60.0), MISSES)
    return [(finding.stage, finding.because) for finding in decision.diagnosis]


def test_the_other_pipeline_that_brings_more_is_named() -> None:
    assert ("encoder", Because.OTHER_TENANT) in forms(40.0)


def test_a_queue_without_more_of_the_other_pipeline_has_another_cause() -> None:
    assert ("encoder", Because.OTHER_TENANT) not in forms(10.0)
