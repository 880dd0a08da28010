"""Sluice as a policy: the `decide` that runs in a cluster, with the operator's settings."""

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
    """The settings of the operator that a simulation can vary, with the defaults of `Policy`."""

    interval_s: float = Policy().interval_s
    latency_headroom: float = Policy().latency_headroom
    switching_cost_per_hour: float = Policy().switching_cost_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight(SluiceSettings):
    """The settings of Sluice with a known load. The load is known for the planning horizon and `beyond_s` after it."""

    beyond_s: float


def sluice(settings: SluiceSettings, briefing: Briefing) -> Autoscaler:
    """Return Sluice as a policy; with `Foresight` settings, Sluice with a known load."""
    return ForesightSluice(settings, briefing) if isinstance(settings, Foresight) else Sluice(settings)


class Sluice:
    """Calls `decide`. Its memory is in the Snapshot, as in a cluster; this object has no state."""

    def __init__(self, settings: SluiceSettings) -> None:
        self._settings = settings
        self.interval_s = self.metrics_window_s = (
            settings.interval_s
        )  # samples are averaged over the stages' own windows

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> Decision:
        """Return the decision of `decide` for the Snapshot, under `policy` with these settings."""
        settings = self._settings
        return decide(
            snapshot,
            replace(
                policy,
                interval_s=settings.interval_s,
                latency_headroom=settings.latency_headroom,
                switching_cost_per_hour=settings.switching_cost_per_hour,
                advice=False,  # a simulation does not read it
            ),
        )


class ForesightSluice:
    """Sluice with a known load. The difference in cost to Sluice is the cost of not knowing the load.

    The demand is the highest level of the load up to the planning horizon and `beyond_s` after it, instead of a
    measurement and a forecast. The rest is as in a cluster: replicas start and drain, service times are measured.
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
        """Return Sluice's decision for the Snapshot, with the highest load until the horizon as its demand."""
        informed = tuple(self._informed(state, snapshot.now_s) for state in snapshot.pipelines)
        return self._decide(replace(snapshot, pipelines=informed), policy)

    def _informed(self, state: PipelineState, now_s: float) -> PipelineState:
        """Return the state with the highest coming load as its demand, without past demand and history."""
        until_s = now_s + horizon_s(state.spec, self.interval_s) + self._beyond_s
        coming = self._levels[state.spec.key][max(0, int(now_s)) : max(0, int(until_s))]
        return with_demand(state, float(coming.max(initial=0.0)))


def with_demand(state: PipelineState, demand: float) -> PipelineState:
    """Return the state with `demand` in the pipeline's unit, without past demand and history: the plan is for this."""
    return replace(state, demand=demand, memory=replace(state.memory, samples=(), demand=None), history=None)
