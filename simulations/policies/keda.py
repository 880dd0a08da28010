"""KEDA: the HPA that it generates, on an External metric with a target average per replica.

Modelled on kedacore/keda (ScaledObject, scalers) and the AverageValue rule of Kubernetes' replica calculator.

Mapping to speech: the trigger counts the items of a stage's first placement that wait or are in service, as the SQS
scaler counts messages waiting and in flight; the target is its default, 5 per replica. KEDA's own part, scaling between
zero and one, is not needed: a stage always keeps one replica.
"""

from dataclasses import dataclass

from controller.core.state.policy import Policy
from simulations.policies.autoscaler import AutoscalerDecision, DetailedSnapshot, OneWorkloadSettings, decision_of
from simulations.policies.deployments import Deployment, first_placements
from simulations.policies.hpa import HpaBehavior, HpaControls, average_value_replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class KedaSettings(OneWorkloadSettings):
    """The settings of the baseline `keda`.

    The defaults are `queueLength: 5` and `scaleOnInFlight: true` of the SQS scaler, and the HPA's sync period and
    behaviour.
    """

    target_ongoing: float = 5.0
    interval_s: float = 15.0
    metrics_window_s: float = 15.0
    down_window_s: float = 300.0


class Keda:
    """The baseline `keda`: one ScaledObject per stage."""

    def __init__(self, settings: KedaSettings) -> None:
        self._settings = settings
        self.interval_s, self.metrics_window_s = settings.interval_s, settings.metrics_window_s
        self._controls = HpaControls(HpaBehavior(down_window_s=settings.down_window_s))

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> AutoscalerDecision:
        """Return the decision with the desired replicas of the generated HPAs."""
        desired = {
            work.name: self._controls.replicas(work, snapshot.now_s, self._recommended(work))
            for work in first_placements(snapshot)
        }
        return decision_of(snapshot, desired, f"{self._settings.target_ongoing:g} ongoing items per replica", policy)

    def _recommended(self, work: Deployment) -> int | None:
        if not work.replicas:
            return None  # the trigger fails, and without a fallback the HPA holds
        target = self._settings.target_ongoing
        return average_value_replicas(work.ongoing, target=target, current=work.target.desired)
