"""The replicas that ran, as a policy: a simulated Sluice is compared with them in the same simulator."""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.core.state.policy import Policy
from optimizer.model import PlacementId
from simulations.policies.autoscaler import AutoscalerDecision, DetailedSnapshot, decision_of

RECORDED = "recorded replicas"
"""The name of the policy in results."""
_MOST_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSettings:
    """The replicas of each placement: `counts[i]` are those from second i · `step_s` of the run on."""

    step_s: float
    counts: Mapping[PlacementId, tuple[int, ...]]


class RecordedReplicas:
    """Sets the recorded replicas at their times, and before the load begins those of its first second."""

    def __init__(self, settings: RecordedSettings) -> None:
        self._settings = settings
        self.interval_s = self.metrics_window_s = min(settings.step_s, _MOST_S)

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> AutoscalerDecision:
        """Return the decision that sets the recorded replicas, limited to each placement's declared bounds."""
        index = max(0, int(snapshot.now_s / self._settings.step_s))
        desired = {name: counts[min(index, len(counts) - 1)] for name, counts in self._settings.counts.items()}
        return decision_of(snapshot, desired, "the recorded replicas", policy)
