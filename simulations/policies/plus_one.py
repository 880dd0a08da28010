"""The baseline `plus-one`, the simplest rule: one more replica for the slowest stage.

The rule is this project's own. While the end-to-end p95 is above the SLA, the first placement of the stage whose
own p95 is the highest gets one replica more per decision. When the end-to-end p95 has been below half of the SLA for a
cooldown, the least utilised stage gets one replica fewer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.core.state.policy import Policy
from optimizer.model import PipelineKey, PlacementId
from simulations.policies.autoscaler import (
    AutoscalerDecision,
    DetailedSnapshot,
    OneWorkloadSettings,
    decision_of,
)
from simulations.policies.deployments import Deployment, first_placements


@dataclass(frozen=True, slots=True, kw_only=True)
class PlusOneSettings(OneWorkloadSettings):
    """The settings of `plus-one`: replicas are added above `up_share` × SLA, and removed below `down_share` × SLA."""

    up_share: float = 1.0
    down_share: float = 0.5
    cooldown_s: float = 60.0
    interval_s: float = 15.0
    metrics_window_s: float = 15.0


def slowest(stages: Sequence[Deployment]) -> Deployment | None:
    """Return the stage whose replica has the highest p95 latency; None when no replica has served an item."""
    known = [(_p95_s(work), work) for work in stages]
    seen = [(p95_s, work) for p95_s, work in known if p95_s is not None]
    return max(seen, key=lambda pair: pair[0])[1] if seen else None


def idlest(stages: Sequence[Deployment]) -> Deployment | None:
    """Return the stage with the lowest utilisation among those above their minimum; None if there is none."""
    able = [work for work in stages if work.replicas and work.target.desired > work.least]
    if not able:
        return None
    return min(able, key=lambda work: sum(own.utilization for own in work.replicas) / len(work.replicas))


class PlusOne:
    """Applies the rule of this module to every pipeline."""

    def __init__(self, settings: PlusOneSettings) -> None:
        self._settings = settings
        self.interval_s, self.metrics_window_s = settings.interval_s, settings.metrics_window_s
        self._calm_since_s: dict[PipelineKey, float] = {}

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> AutoscalerDecision:
        """Return the decision: at most one replica more or fewer for each pipeline."""
        stages: dict[PipelineKey, list[Deployment]] = {}
        for work in first_placements(snapshot):
            stages.setdefault(work.pipeline, []).append(work)
        desired: dict[PlacementId, int] = {}
        for state in snapshot.pipelines:
            works = stages.get(state.spec.key, [])
            desired |= {work.name: work.within(work.target.desired) for work in works}
            reading = snapshot.ingress.get(state.spec.key)
            p95_s = None if reading is None else reading.latency_p95_s
            if p95_s is not None:
                desired |= self._step(state.spec.key, works, p95_s / state.spec.sla.latency_s, snapshot.now_s)
        return decision_of(snapshot, desired, "one replica for the slowest stage", policy)

    def _step(
        self, pipeline: PipelineKey, works: Sequence[Deployment], of_sla: float, now_s: float
    ) -> dict[PlacementId, int]:
        settings = self._settings
        if of_sla > settings.up_share:
            self._calm_since_s.pop(pipeline, None)
            chosen, step = slowest(works), 1
        elif of_sla < settings.down_share:
            since_s = self._calm_since_s.setdefault(pipeline, now_s)
            if now_s < since_s + settings.cooldown_s:
                return {}
            self._calm_since_s[pipeline] = now_s
            chosen, step = idlest(works), -1
        else:
            self._calm_since_s.pop(pipeline, None)
            return {}
        return {} if chosen is None else {chosen.name: chosen.within(chosen.target.desired + step)}


def _p95_s(work: Deployment) -> float | None:
    known = [own.latency_p95_s for own in work.replicas if own.latency_p95_s is not None]
    return max(known, default=None)
