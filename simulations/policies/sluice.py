"""Sluice itself: the very function that runs in the cluster, with the operator's settings."""

from dataclasses import dataclass, replace

from controller.core.assess.demand import horizon_s
from controller.core.cycle import decide
from controller.core.state.decision import Decision
from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState
from simulations.policies.autoscaler import Autoscaler, Briefing, DetailedSnapshot
from simulations.scenario.load import demand_by_second


@dataclass(frozen=True, slots=True, kw_only=True)
class SluiceSettings:
    """What an operator can set of `controller.core.state.policy.Policy`, with its defaults."""

    interval_s: float = Policy().interval_s
    latency_headroom: float = Policy().latency_headroom
    switching_cost_per_hour: float = Policy().switching_cost_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight(SluiceSettings):
    """What no operator has: the load is known, `beyond_s` farther than until what is decided now serves."""

    beyond_s: float


def sluice(settings: SluiceSettings, briefing: Briefing) -> Autoscaler:
    """Return Sluice, or with `Foresight` what it would be if it knew the load."""
    return ToldSluice(settings, briefing) if isinstance(settings, Foresight) else Sluice(settings)


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


class ToldSluice:
    """Sluice that is told the load: what that saves is what not knowing it costs.

    Demand is the highest to come, instead of what is measured and forecast. All else is as in the cluster: replicas
    start and drain, service times are measured.
    """

    def __init__(self, settings: Foresight, briefing: Briefing) -> None:
        self._decide = Sluice(settings)
        self.interval_s = self.metrics_window_s = self._decide.interval_s
        self._beyond_s = settings.beyond_s
        self._levels = {
            pipeline.key: demand_by_second(briefing.loads[pipeline.key], pipeline, briefing.duration_s)
            for pipeline in briefing.pipelines
        }

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> Decision:
        """Return what Sluice makes of the Snapshot with the load that it is told."""
        told = tuple(self._told(state, snapshot.now_s) for state in snapshot.pipelines)
        return self._decide(replace(snapshot, pipelines=told), policy)

    def _told(self, state: PipelineState, now_s: float) -> PipelineState:
        """Return a pipeline that is offered now the most that will be, and remembers nothing of what was."""
        until_s = now_s + horizon_s(state.spec, self.interval_s) + self._beyond_s
        coming = self._levels[state.spec.key][max(0, int(now_s)) : max(0, int(until_s))]
        memory = replace(state.memory, samples=(), demand=None)
        return replace(state, demand=float(coming.max(initial=0.0)), memory=memory)
