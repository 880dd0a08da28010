"""While the measured latency exceeds the SLA, no replica is removed, whatever the model says."""

from collections.abc import Iterator

from controller.core.assess.assessment import Assessment
from controller.core.bounds.idle import idle_stages
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.carry_over import FeedbackMemory
from controller.core.state.decision import Hold, HoldReason
from profiler.stages import LatencySource

KEEP = Mechanism(
    name="measured miss of the SLA",
    level=Level.SLA,
    evidence=Evidence.PIPELINE,
    does="while the measured latency exceeds the SLA, no replica is removed that budgets and pools have room for",
    planned=False,
)


def late(assessment: Assessment) -> bool:
    """Return whether the measured end-to-end latency exceeds the SLA.

    A latency that is composed of the latencies of the stages does not count: in most cases it is too high.
    """
    profile = assessment.profile
    return (
        profile.latency_source is LatencySource.MEASURED
        and isinstance(profile.latency_s, float)
        and profile.latency_s > assessment.spec.sla.latency_s
    )


def bounds(assessment: Assessment, feedback: FeedbackMemory) -> Iterator[Bound]:
    """Yield the bounds of the placements that keep their replicas, those of shared stages of other pipelines included.

    A step that did not lower the latency is taken back although the latency exceeds the SLA.
    """
    if not late(assessment) or idle_stages(assessment):
        return
    for key, count in assessment.current.items():
        if count and key[0] not in feedback.useless_until_s:
            yield KEEP.on(
                key,
                least=count,
                hold=Hold(reason=HoldReason.SLA_MISSED),
                since_s=assessment.state.memory.missed_since_s,
            )
