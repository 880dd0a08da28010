"""KEDA: an HPA that it generates, on an External metric with a target average per replica.

After kedacore/keda (ScaledObject, scalers) and the AverageValue rule of Kubernetes' replica calculator.

Mapping to speech: the trigger counts the items of a stage's first placement that wait or are in service, as the SQS
scaler counts messages waiting and in flight; the target is its default, 5 per replica. KEDA's own part, between no
replica and one, has nothing to do: a stage always keeps one.
"""

from dataclasses import dataclass

from controller.core.policy import Policy
from simulations.policies.base import DetailedSnapshot, OneWorkloadSettings, PlacementName, RivalDecision, decision_of
from simulations.policies.hpa import HpaBehavior, HpaControl, average_value_replicas
from simulations.policies.workloads import Workload, first_placements


@dataclass(frozen=True, slots=True, kw_only=True)
class KedaSettings(OneWorkloadSettings):
    """Defaults: `queueLength: 5` and `scaleOnInFlight: true` of the SQS scaler, the HPA's sync period and behaviour."""

    target_ongoing: float = 5.0
    interval_s: float = 15.0
    metrics_window_s: float = 15.0
    down_window_s: float = 300.0


class Keda:
    """One ScaledObject per stage."""

    def __init__(self, settings: KedaSettings) -> None:
        self._settings = settings
        self._behavior = HpaBehavior(down_window_s=settings.down_window_s)
        self._controls: dict[PlacementName, HpaControl] = {}

    @property
    def interval_s(self) -> float:
        """The HPA's sync period, seconds."""
        return self._settings.interval_s

    @property
    def metrics_window_s(self) -> float:
        """What the trigger's query averages over, seconds."""
        return self._settings.metrics_window_s

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> RivalDecision:
        """Return what the generated HPAs ask for."""
        desired = {work.name: self._replicas(work, snapshot.now_s) for work in first_placements(snapshot)}
        return decision_of(snapshot, desired, f"{self._settings.target_ongoing:g} ongoing items per replica", policy)

    def _replicas(self, work: Workload, now_s: float) -> int:
        current = work.target.desired
        if not work.replicas:
            return work.within(current)  # the trigger fails, and without a fallback the HPA holds
        recommended = average_value_replicas(work.ongoing, target=self._settings.target_ongoing, current=current)
        control = self._controls.setdefault(work.name, HpaControl(self._behavior))
        return control.replicas(now_s, recommended, current=current, least=work.least, most=work.most)
