"""Sluice itself: the very function that runs in the cluster, with the operator's settings."""

from dataclasses import dataclass, replace

from controller.core.cycle import decide
from controller.core.decision import Decision
from controller.core.policy import Policy
from simulations.policies.base import DetailedSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SluiceSettings:
    """What an operator can set of `controller.core.policy.Policy`, with its defaults."""

    interval_s: float = Policy().interval_s
    latency_headroom: float = Policy().latency_headroom
    switching_cost_per_hour: float = Policy().switching_cost_per_hour


class Sluice:
    """`decide`. Its memory is in the Snapshot, as it is in the cluster; this object holds none."""

    def __init__(self, settings: SluiceSettings) -> None:
        self._settings = settings
        self.interval_s = self.metrics_window_s = settings.interval_s  # its samples have the stages' own windows

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> Decision:
        """Return what `decide` makes of the Snapshot, under `policy` with these settings."""
        settings = self._settings
        return decide(
            snapshot,
            replace(
                policy,
                interval_s=settings.interval_s,
                latency_headroom=settings.latency_headroom,
                switching_cost_per_hour=settings.switching_cost_per_hour,
                advice=False,  # nobody is there to take it
            ),
        )
