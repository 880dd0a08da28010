"""Knative Serving's autoscaler (KPA): stable and panic windows over the concurrency of a revision.

Modelled on pkg/autoscaler/scaling/autoscaler.go and config/core/configmaps/autoscaler.yaml of knative/serving.

Mapping to speech: each stage's first placement is a revision. A replica's concurrency is its items that wait or are in
service, as the queue-proxy counts requests; `containerConcurrency` is its concurrency times its largest
batch. All ready replicas are assumed to have the mean of the scraped ones. A stage never goes to zero.
"""

from dataclasses import dataclass, field

from typing_extensions import override

from optimizer.model import PlacementId
from simulations.policies.autoscaler import OneWorkloadSettings
from simulations.policies.deployments import Deployment, PerDeployment, ceil


@dataclass(frozen=True, slots=True, kw_only=True)
class KpaSettings(OneWorkloadSettings):
    """The settings of `kpa`, with the defaults of config-autoscaler; its `tick-interval` is 2 s."""

    target_utilization: float = 0.7
    stable_window_s: float = 60.0
    panic_window_share: float = 0.1
    panic_threshold: float = 2.0
    max_scale_up_rate: float = 1000.0
    max_scale_down_rate: float = 2.0
    scale_down_delay_s: float = 0.0
    interval_s: float = 2.0


@dataclass(slots=True)
class KpaScaler:
    """The decider of one revision. `target` is the concurrency wanted per replica, in items.

    It is in panic mode if `panic_since_s` is set; `panic_most` is the most replicas that it wanted since. It starts in
    panic mode if more than one replica is ready, so that it does not scale down before it has data.
    """

    settings: KpaSettings
    target: float
    panic_since_s: float | None = None
    panic_most: int = 0
    _decided: list[tuple[float, int]] = field(default_factory=list)

    def scale(self, now_s: float, *, stable: float, panic: float, ready: int) -> int:
        """Return the desired replicas.

        `stable` and `panic` are the items at the revision, averaged over the stable and over the panic window. `ready`
        is the number of ready replicas.
        """
        settings = self.settings
        base = max(1, ready)
        highest = ceil(settings.max_scale_up_rate * base)
        lowest = int(base / settings.max_scale_down_rate)
        panic_wanted = ceil(panic / self.target)
        desired = min(max(ceil(stable / self.target), lowest), highest)
        if panic_wanted / base >= settings.panic_threshold:
            self.panic_since_s = now_s
        elif self.panic_since_s is not None and now_s > self.panic_since_s + settings.stable_window_s:
            self.panic_since_s, self.panic_most = None, 0
        if self.panic_since_s is not None:
            self.panic_most = max(self.panic_most, desired, min(max(panic_wanted, lowest), highest))
            desired = self.panic_most
        self._decided = [(at_s, count) for at_s, count in self._decided if at_s > now_s - settings.scale_down_delay_s]
        self._decided.append((now_s, desired))
        return max(count for _, count in self._decided)


class Kpa(PerDeployment):
    """One decider per stage."""

    def __init__(self, settings: KpaSettings) -> None:
        super().__init__(
            interval_s=settings.interval_s,
            metrics_window_s=settings.interval_s,  # the windows are made of ticks
            reason=f"{settings.target_utilization:.0%} of the concurrency",
        )
        self._settings = settings
        self._scalers: dict[PlacementId, KpaScaler] = {}
        self._seen: dict[PlacementId, list[tuple[float, float]]] = {}

    @override
    def _replicas(self, work: Deployment, now_s: float) -> int:
        if not work.replicas:
            return work.within(work.target.desired)
        settings, ready = self._settings, work.target.ready
        concurrency = work.ongoing / len(work.replicas) * max(ready, len(work.replicas))
        seen = self._seen.setdefault(work.name, [])
        seen.append((now_s, concurrency))
        self._seen[work.name] = seen = [at for at in seen if at[0] > now_s - settings.stable_window_s]
        panic_s = settings.stable_window_s * settings.panic_window_share
        lately = [value for at_s, value in seen if at_s > now_s - panic_s]
        scaler = self._scalers.get(work.name)
        if scaler is None:
            scaler = KpaScaler(
                settings,
                settings.target_utilization * work.slots,
                panic_since_s=now_s if ready > 1 else None,
                panic_most=ready,
            )
            self._scalers[work.name] = scaler
        stable = sum(value for _, value in seen) / len(seen)
        return work.within(scaler.scale(now_s, stable=stable, panic=sum(lately) / len(lately), ready=ready))
