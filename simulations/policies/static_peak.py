"""A static peak: the allocation that this project's own optimizer finds for the highest load, all the time.

It knows the whole load beforehand, and, as it cannot give way later, the highest prices and the lowest budgets that the
scenario will set: its plan is within them. Where none serves the peak within the SLA it is the one that serves most of
it.
"""

from dataclasses import dataclass, replace

from controller.core.state.policy import Policy
from controller.core.state.spec import PoolSpec
from simulations.policies.base import AutoscalerDecision, Briefing, DetailedSnapshot, PlacementName, decision_of
from simulations.policies.peak_load import peak_plan

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

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> AutoscalerDecision:
        """Return the allocation for the peak."""
        return decision_of(snapshot, self._desired, "the plan for the peak", policy)


def _peak_replicas(settings: StaticPeakSettings, briefing: Briefing) -> dict[PlacementName, int]:
    pools = {pool.name: pool for pool in briefing.pools}
    pipelines = {pipeline.key: pipeline for pipeline in briefing.pipelines}
    for change in briefing.changes:
        if isinstance(change, PoolSpec):
            own = pools[change.name]
            pools[own.name] = replace(own, price_per_hour=max(own.price_per_hour, change.price_per_hour))
        else:
            least = min(pipelines[change.key].budget_per_hour, change.budget_per_hour)
            pipelines[change.key] = replace(pipelines[change.key], budget_per_hour=least)
    plan = peak_plan(
        tuple(pipelines.values()),
        tuple(pools.values()),
        briefing.loads,
        briefing.duration_s,
        latency_headroom=settings.latency_headroom,
        within_budget=True,
    )
    return {
        (pipeline.key, *key): plan.of(pipeline.key).replicas().get(key, 0)
        for pipeline in briefing.pipelines
        for key in pipeline.placement_keys()
    }
