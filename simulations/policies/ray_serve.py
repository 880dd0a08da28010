"""Ray Serve's default autoscaling policy: ongoing requests per replica, with delays.

Modelled on python/ray/serve/autoscaling_policy.py and AutoscalingConfig of ray-project/ray.

Mapping to speech: each stage's first placement is a deployment; ongoing requests are its items that wait or are in
service. The original's control loop runs ten times a second. Here it runs once a second, with the same delays in
seconds.
"""

from dataclasses import dataclass

from typing_extensions import override

from optimizer.model import PlacementId
from simulations.policies.autoscaler import OneWorkloadSettings
from simulations.policies.deployments import Deployment, PerDeployment, ceil


@dataclass(frozen=True, slots=True, kw_only=True)
class RayServeSettings(OneWorkloadSettings):
    """The settings of Ray Serve's autoscaler, with the defaults of its AutoscalingConfig."""

    target_ongoing_requests: float = 2.0
    upscaling_factor: float = 1.0
    downscaling_factor: float = 1.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    look_back_period_s: float = 30.0
    interval_s: float = 1.0


@dataclass(slots=True)
class RayDeployment:
    """The autoscaler of one deployment.

    `_decisions` counts how often in a row it wanted more (positive) or fewer (negative) replicas.
    """

    settings: RayServeSettings
    _decisions: int = 0

    def replicas(self, ongoing: float, *, running: int, target: int, least: int, most: int) -> int:
        """Return the new desired replicas, for `ongoing` requests at `running` replicas; `target` is desired now."""
        settings = self.settings
        if running == 0:
            return max(ceil(settings.upscaling_factor), target) if ongoing > 0 else target
        wanted = ongoing / settings.target_ongoing_requests
        factor = settings.upscaling_factor if wanted > running else settings.downscaling_factor
        scaled = ceil(running + factor * (wanted - running))
        if ceil(wanted) < running and scaled == running:
            scaled -= 1
        return self._delayed(max(least, min(most, scaled)), target)

    def _delayed(self, wanted: int, target: int) -> int:
        settings = self.settings
        if wanted > target:
            self._decisions = max(self._decisions, 0) + 1
            if self._decisions > int(settings.upscale_delay_s / settings.interval_s):
                self._decisions = 0
                return wanted
        elif wanted < target:
            self._decisions = min(self._decisions, 0) - 1
            if target > 1:
                wanted = max(1, wanted)
            if self._decisions < -int(settings.downscale_delay_s / settings.interval_s):
                self._decisions = 0
                return wanted
        else:
            self._decisions = 0
        return target


class RayServe(PerDeployment):
    """One deployment per stage."""

    def __init__(self, settings: RayServeSettings) -> None:
        super().__init__(
            interval_s=settings.interval_s,
            metrics_window_s=settings.look_back_period_s,
            reason=f"{settings.target_ongoing_requests:g} ongoing requests per replica",
        )
        self._settings = settings
        self._deployments: dict[PlacementId, RayDeployment] = {}

    @override
    def _replicas(self, work: Deployment, now_s: float) -> int:
        if not work.replicas and work.target.ready:
            return work.within(work.target.desired)  # no replica reports, so ongoing requests are unknown
        deployment = self._deployments.setdefault(work.name, RayDeployment(self._settings))
        wanted = deployment.replicas(
            work.ongoing, running=work.target.ready, target=work.target.desired, least=work.least, most=work.most
        )
        return work.within(wanted)
