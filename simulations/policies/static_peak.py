"""A static peak: the allocation that this project's own optimizer finds for the highest load, all the time.

It knows the whole load beforehand, and no budget. Where no plan serves the peak within the SLA it is the plan that
serves most of it.
"""

from dataclasses import dataclass

from controller.core.policy import Policy
from simulations.policies.base import Briefing, DetailedSnapshot, PlacementName, RivalDecision, decision_of
from simulations.static_peak import peak_plan

_OFTEN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticPeakSettings:
    """`latency_headroom` is the share of the SLA that the plan leaves free."""

    latency_headroom: float = Policy().latency_headroom


class StaticPeak:
    """Asks for the same replicas for ever."""

    interval_s = _OFTEN_S
    metrics_window_s = _OFTEN_S

    def __init__(self, settings: StaticPeakSettings, briefing: Briefing) -> None:
        self._desired = _peak_replicas(settings, briefing)

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> RivalDecision:
        """Return the allocation for the peak."""
        return decision_of(snapshot, self._desired, "the plan for the peak", policy)


def _peak_replicas(settings: StaticPeakSettings, briefing: Briefing) -> dict[PlacementName, int]:
    plan = peak_plan(
        briefing.pipelines,
        briefing.pools,
        briefing.loads,
        briefing.duration_s,
        latency_headroom=settings.latency_headroom,
    )
    return {
        (pipeline.key, *key): plan.of(pipeline.key).replicas().get(key, 0)
        for pipeline in briefing.pipelines
        for key in pipeline.placement_keys()
    }
