"""KEDA: the HPA that it generates, on an External metric with a target average per replica.

Modelled on kedacore/keda (ScaledObject, scalers) and the AverageValue rule of Kubernetes' replica calculator.

Mapping to speech: the trigger counts the items of a stage's first placement that wait or are in service, as the SQS
scaler counts messages waiting and in flight; the target is its default, 5 per replica. KEDA's own part, scaling between
zero and one, is not needed: a stage always keeps one replica.
"""

from dataclasses import dataclass

from typing_extensions import override

from simulations.policies.autoscaler import OneWorkloadSettings
from simulations.policies.deployments import Deployment, PerDeployment
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


class Keda(PerDeployment):
    """One ScaledObject per stage."""

    def __init__(self, settings: KedaSettings) -> None:
        super().__init__(
            interval_s=settings.interval_s,
            metrics_window_s=settings.metrics_window_s,
            reason=f"{settings.target_ongoing:g} ongoing items per replica",
        )
        self._target = settings.target_ongoing
        self._controls = HpaControls(HpaBehavior(down_window_s=settings.down_window_s))

    @override
    def _replicas(self, work: Deployment, now_s: float) -> int:
        recommended = None  # without a report the trigger fails, and without a fallback the HPA holds
        if work.replicas:
            recommended = average_value_replicas(work.ongoing, target=self._target, current=work.target.desired)
        return self._controls.replicas(work, now_s, recommended)
