"""What runs is the first sample of the scale-down window: without memory, no replica is removed to save."""

from collections.abc import Iterator, Mapping

from controller.core.assess.assessment import Assessment
from controller.core.bounds.idle import idle_stages
from controller.core.bounds.steps import ready_beyond
from controller.core.state.bound import Bound, Evidence, Level, Mechanism
from controller.core.state.decision import Hold, HoldReason
from optimizer.model import PlacementKey

FIRST_WINDOW = Mechanism(
    name="first scale-down window",
    level=Level.STEP,
    evidence=Evidence.PIPELINE,
    does="until the demand has been observed for a scale-down window, no ready replica is removed to save: a new or "
    "restored pipeline has no other sample than what runs",
    planned=False,
)


def bounds(assessment: Assessment, goal: Mapping[PlacementKey, int], now_s: float) -> Iterator[Bound]:
    """Yield the bounds of the placements that keep ready replicas beyond their `goal`."""
    if assessment.pace is not None:
        return  # what is known of a backlog is how much is left, not a sample of its load
    begun_s, window_s = assessment.demand.begun_s, assessment.spec.scaling.down.stabilization_s
    if begun_s is None or now_s >= begun_s + window_s or idle_stages(assessment):
        return
    for key, least in ready_beyond(assessment, goal):
        hold = Hold(reason=HoldReason.STABILIZING, stage=key[0], placement=key[1], until_s=begun_s + window_s)
        yield FIRST_WINDOW.on(key, least=least, hold=hold, since_s=begun_s, until_s=begun_s + window_s)
