"""Kubernetes' HorizontalPodAutoscaler (autoscaling/v2).

Modelled on pkg/controller/podautoscaler/{replica_calculator,horizontal}.go and the defaults of pkg/apis/autoscaling/v2.

Mapping to speech: each stage's first placement has an HPA on a Resource metric. A replica's busy share is taken as its
CPU utilisation; the target is the 50 % of the documentation's walkthrough. A pod that became ready less than a metrics
window ago has no sample of a whole window yet and counts as not ready, as for CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from optimizer.model import PlacementId
from simulations.policies.autoscaler import OneWorkloadSettings
from simulations.policies.deployments import Deployment, PerDeployment, ceil

TOLERANCE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class HpaBehavior:
    """`spec.behavior` of an HPA, with its defaults: how fast desired replicas follow the recommendations.

    Scaling up is limited to the larger of `up_pods` and `up_share` of the replicas per `period_s`; scaling down is not
    limited. To scale up, the lowest recommendation of the last `up_window_s` counts; to scale down, the highest one of
    the last `down_window_s`.
    """

    up_window_s: float = 0.0
    down_window_s: float = 300.0
    up_pods: int = 4
    up_share: float = 1.0
    period_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HpaSettings(OneWorkloadSettings):
    """The settings of the baseline `hpa`.

    The defaults are those of kube-controller-manager (sync 15 s, tolerance 10 %) and metrics-server (15 s), and the
    target of the documentation's walkthrough (50 %). With a `target_queued` above 0 the HPA has a second metric, the
    items that wait at a replica, and follows the higher of both recommendations.
    """

    target_utilization: float = 0.5
    target_queued: float = 0.0
    tolerance: float = TOLERANCE
    interval_s: float = 15.0
    metrics_window_s: float = 15.0
    down_window_s: float = 300.0


def resource_replicas(
    values: Sequence[float], *, target: float, current: int, missing: int, unready: int, tolerance: float = TOLERANCE
) -> int | None:
    """Return the replicas that bring the mean utilisation of ready pods, `values`, to `target`; None without values.

    `missing` pods are ready but have no sample. They count as fully used when scaling down, as idle when scaling up.
    `unready` pods count as idle when scaling up, and not at all when scaling down. The result is `current` if the
    change is within the tolerance, or if the values assumed for these pods reverse its direction.
    """
    if not values:
        return None
    ratio = sum(values) / len(values) / target
    filled = list(values)
    if ratio < 1:
        filled += [max(1.0, target)] * missing
    elif ratio > 1:
        filled += [0.0] * (missing + unready)
    again = sum(filled) / len(filled) / target
    if _within(again, tolerance) or (ratio - 1) * (again - 1) < 0:
        return current
    wanted = ceil(again * len(filled))
    turned = (again < 1 and wanted > current) or (again > 1 and wanted < current)
    return current if turned and len(filled) > len(values) else wanted


def average_value_replicas(total: float, *, target: float, current: int, tolerance: float = TOLERANCE) -> int:
    """Return the replicas for an External metric whose value is `total`, with a target average of `target` per replica.

    The result is `current` if the change is within the tolerance.
    """
    if current > 0 and _within(total / (target * current), tolerance):
        return current
    return ceil(total / target)


def _within(ratio: float, tolerance: float) -> bool:
    return abs(1 - ratio) <= tolerance


@dataclass(slots=True)
class HpaControl:
    """The state of one HPA; `replicas` turns its recommendations into replicas."""

    behavior: HpaBehavior
    _recommendations: list[tuple[float, int]] = field(default_factory=list)
    _added: list[tuple[float, int]] = field(default_factory=list)

    def replicas(self, now_s: float, recommended: int, *, current: int, least: int, most: int) -> int:
        """Return the desired replicas: `recommended`, stabilised, limited in speed and to `least` … `most`."""
        behavior = self.behavior
        up = recommended >= current
        window_s = behavior.up_window_s if up else behavior.down_window_s
        recent = [count for at_s, count in self._recommendations if at_s > now_s - window_s]
        stabilized = (min if up else max)([recommended, *recent])
        longest_s = max(behavior.up_window_s, behavior.down_window_s)
        self._recommendations = [(at_s, count) for at_s, count in self._recommendations if at_s > now_s - longest_s]
        self._recommendations.append((now_s, recommended))
        self._added = [(at_s, count) for at_s, count in self._added if at_s > now_s - behavior.period_s]
        if stabilized > current:
            began = current - sum(count for _, count in self._added)
            limit = max(began + behavior.up_pods, ceil(began * (1 + behavior.up_share)))
            stabilized = min(stabilized, max(limit, current))
        after = min(max(stabilized, least), most)
        if after > current:
            self._added.append((now_s, after - current))
        return after


class HpaControls:
    """The HPAs of several workloads, all with the same behavior."""

    def __init__(self, behavior: HpaBehavior) -> None:
        self._behavior = behavior
        self._controls: dict[PlacementId, HpaControl] = {}

    def replicas(self, work: Deployment, now_s: float, recommended: int | None) -> int:
        """Return the desired replicas of a workload's HPA; the current ones if `recommended` is None."""
        current = work.target.desired
        if recommended is None:
            return work.within(current)
        control = self._controls.setdefault(work.name, HpaControl(self._behavior))
        return control.replicas(now_s, recommended, current=current, least=work.least, most=work.most)


class Hpa(PerDeployment):
    """One HPA per stage."""

    def __init__(self, settings: HpaSettings) -> None:
        super().__init__(
            interval_s=settings.interval_s,
            metrics_window_s=settings.metrics_window_s,
            reason=f"utilisation to {settings.target_utilization:.0%}",
        )
        self._settings = settings
        self._controls = HpaControls(HpaBehavior(down_window_s=settings.down_window_s))

    @override
    def _replicas(self, work: Deployment, now_s: float) -> int:
        settings, target = self._settings, work.target
        fresh_s = now_s - settings.metrics_window_s
        settled = [replica.utilization for replica in work.replicas if replica.ready_since_s <= fresh_s]
        fresh = len(work.replicas) - len(settled)
        missing = max(0, target.ready - len(work.replicas))
        unready = max(0, target.existing - target.ready) + fresh
        recommended = [
            found
            for values, goal in (
                (settled, settings.target_utilization),
                ([replica.queued for replica in work.replicas], settings.target_queued),
            )
            if goal > 0
            and (
                found := resource_replicas(
                    values,
                    target=goal,
                    current=target.desired,
                    missing=missing,
                    unready=unready,
                    tolerance=settings.tolerance,
                )
            )
            is not None
        ]
        return self._controls.replicas(work, now_s, max(recommended, default=None))
