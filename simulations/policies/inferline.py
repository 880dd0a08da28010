"""InferLine: a planner for a sample of the load, and a tuner that follows traffic envelopes.

Modelled on D. Crankshaw et al., "InferLine: latency-aware provisioning and scaling for prediction serving pipelines",
SoCC '20, §4 (planner) and §5 (tuner).

Mapping to speech: a stage is a model, its placements are the hardware choices. As in the paper's evaluation, the
planner knows the first quarter of the load as its sample; it plans for the highest 20-second mean there. The paper
estimates latency by a discrete-event simulation of the sample; here this project's latency model does. Batch limits
belong to the servers, so the planner has no action that doubles a batch. The tuner runs once a second, on rates over
two seconds, the least for a rate with one scrape per second (the paper's shortest window is the service time). As in
the original, planner and tuner ignore capacity and budgets, and the tuner keeps the planned hardware.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from controller.core.assess.optimizer_input import optimizer_pipeline
from controller.core.state.policy import Policy
from controller.core.state.spec import DemandUnit, PipelineSpec
from optimizer.latency.predict import predicted_latency_s
from optimizer.latency.stage import capacity_rps
from optimizer.model import (
    Composition,
    Pipeline,
    PipelineKey,
    Placement,
    PlacementId,
    PlacementKey,
    PlacementName,
    PoolName,
    Stage,
    StageName,
)
from simulations.policies.autoscaler import AutoscalerDecision, Briefing, DetailedSnapshot, decision_of
from simulations.policies.deployments import carried_out, ceil
from simulations.scenario.load import peak_demand
from simulations.scenario.schedule import Schedule

LONGEST_WINDOW_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class InferlineSettings:
    """The settings of `inferline`, with the paper's values. `sla_share` is the share of the SLA that is planned for.

    `sample_share` is the part of the run, from its beginning, that the planner knows as its sample.
    """

    sla_share: float = 1.0
    sample_share: float = 0.25
    down_wait_s: float = 15.0
    down_window_s: int = 30
    down_bin_s: int = 5
    interval_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The plan for one model: the hardware, the replicas, and the rates that the tuner needs.

    `visits` is the paper's scale factor: items at the model per item at the entry. `replica_rps` is the capacity of one
    replica in items/s.
    """

    stage: StageName
    placement: PlacementName
    replicas: int
    visits: float
    replica_rps: float

    def provisioning(self, planned_rps: float) -> float:
        """Return the provisioning ratio: the planned rate as a share of the capacity, at most 1."""
        return min(1.0, planned_rps * self.visits / (self.replicas * self.replica_rps))


def replicas_for(rate_rps: float, model: Model, ratio: float) -> int:
    """Return the replicas of `model` for `rate_rps` items/s at the entry, with the provisioning ratio `ratio`."""
    return max(1, ceil(rate_rps * model.visits / (model.replica_rps * ratio)))


def envelope(rates_rps: Sequence[float] | NDArray[np.float64]) -> dict[int, float]:
    """Return, by window length in seconds (`windows_s`), the highest mean rate (items/s) over any such window.

    `rates_rps` has one value per second; windows that are longer than `rates_rps` are left out.
    """
    total = np.concatenate([[0.0], np.cumsum(rates_rps)])
    return {
        window: float((total[window:] - total[:-window]).max() / window)
        for window in windows_s()
        if window < len(total)
    }


def windows_s() -> list[int]:
    """Return the window lengths of an envelope in seconds: 1, 2, 4, …, and `LONGEST_WINDOW_S` last."""
    windows = [1]
    while windows[-1] * 2 < LONGEST_WINDOW_S:
        windows.append(windows[-1] * 2)
    return [*windows, LONGEST_WINDOW_S]


def plan(problem: Pipeline, prices: Mapping[PoolName, float]) -> dict[PlacementKey, int]:
    """Return replicas on one hardware type per stage that serve `problem` within its SLA, made cheaper greedily.

    `prices` are in USD per instance and hour. The plan begins with the fastest hardware; the stage with the least
    capacity gets another replica until the SLA is met. Then, as long as there is one, the step is taken that saves most
    and still meets the SLA: a replica fewer, or cheaper hardware for a stage. If no allocation meets the SLA, the
    result is the largest one tried.
    """
    chosen = {stage.name: (min(stage.placements, key=lambda own: own.service.mean_s(1)), 1) for stage in problem.stages}
    while not _feasible(problem, chosen):
        growing = [stage for stage in problem.stages if chosen[stage.name][1] < chosen[stage.name][0].max_replicas]
        if not growing:
            return _placed(chosen)
        shortest = min(growing, key=lambda stage: _capacity(chosen[stage.name]) / problem.visit_ratios[stage.name])
        placement, count = chosen[shortest.name]
        chosen[shortest.name] = (placement, count + 1)
    while True:
        steps = [step for stage in problem.stages for step in _cheaper(problem, chosen, stage, prices)]
        if not steps:
            return _placed(chosen)
        _, name, placement, count = max(steps, key=lambda step: step[0])
        chosen[name] = (placement, count)


_Chosen = dict[StageName, tuple[Placement, int]]


def _cheaper(
    problem: Pipeline, chosen: _Chosen, stage: Stage, prices: Mapping[PoolName, float]
) -> list[tuple[float, StageName, Placement, int]]:
    """Return the steps of one stage that keep the SLA, each with the USD per hour that it saves."""
    placement, count = chosen[stage.name]
    cost = count * _price(placement, prices)
    steps: list[tuple[float, StageName, Placement, int]] = []
    if count > 1 and _feasible(problem, {**chosen, stage.name: (placement, count - 1)}):
        steps.append((_price(placement, prices), stage.name, placement, count - 1))
    for other in stage.placements:
        price = _price(other, prices)
        if price >= _price(placement, prices):
            continue
        fewest = next(
            (n for n in range(1, other.max_replicas + 1) if _feasible(problem, {**chosen, stage.name: (other, n)})),
            None,
        )
        if fewest is not None and fewest * price < cost:
            steps.append((cost - fewest * price, stage.name, other, fewest))
    return steps


def _price(placement: Placement, prices: Mapping[PoolName, float]) -> float:
    return prices[placement.pool] / placement.per_instance


def _capacity(choice: tuple[Placement, int]) -> float:
    placement, count = choice
    return count * capacity_rps(placement, placement.batch_sizes[-1])


def _placed(chosen: _Chosen) -> dict[PlacementKey, int]:
    return {(name, placement.name): count for name, (placement, count) in chosen.items()}


def _feasible(problem: Pipeline, chosen: _Chosen) -> bool:
    latency_s = predicted_latency_s(problem, _placed(chosen), {}, composition=Composition.RSS)
    return latency_s is not None and latency_s <= problem.sla.latency_s


@dataclass(slots=True)
class Tuner:
    """Adapts the replicas of one pipeline's plan to its traffic.

    `planned_rps` is the rate that was planned for, and `planned` the envelope of the sample, in items/s at the entry.
    """

    settings: InferlineSettings
    models: Sequence[Model]
    planned_rps: float
    planned: Mapping[int, float]
    current: dict[PlacementKey, int]
    changed_s: float
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=LONGEST_WINDOW_S))

    def tune(self, now_s: float, offered_rps: float) -> Mapping[PlacementKey, int]:
        """Add the last second's offered load and return the desired replicas."""
        self._recent.append(offered_rps)
        rates = list(self._recent)
        now = {window: sum(rates[-window:]) / window for window in self.planned if window <= len(rates)}
        exceeding = [rate for window, rate in now.items() if rate > self.planned[window]]
        wanted = dict(self.current)
        if exceeding:
            for model in self.models:
                key = (model.stage, model.placement)
                needed = replicas_for(max(exceeding), model, model.provisioning(self.planned_rps))
                wanted[key] = max(wanted[key], needed)
        if wanted == self.current and now_s >= self.changed_s + self.settings.down_wait_s:
            wanted = self._reduced(rates)
        if wanted != self.current:
            self.current, self.changed_s = wanted, now_s
        return self.current

    def _reduced(self, rates: Sequence[float]) -> dict[PlacementKey, int]:
        """Return the replicas, with fewer where the highest rate of the bins in the down window needs fewer."""
        settings = self.settings
        if len(rates) < settings.down_window_s:
            return dict(self.current)
        last = rates[-settings.down_window_s :]
        bins = [last[i : i + settings.down_bin_s] for i in range(0, len(last), settings.down_bin_s)]
        highest = max(sum(part) / len(part) for part in bins)
        ratio = min(model.provisioning(self.planned_rps) for model in self.models)
        return {
            (model.stage, model.placement): min(
                self.current[(model.stage, model.placement)], replicas_for(highest, model, ratio)
            )
            for model in self.models
        }


class Inferline:
    """The baseline `inferline`: one plan and one tuner per pipeline."""

    def __init__(self, settings: InferlineSettings, briefing: Briefing) -> None:
        self._settings = settings
        self.interval_s = settings.interval_s
        self.metrics_window_s = 2 * settings.interval_s  # a rate needs two scrapes
        self._briefing = briefing
        self._tuners: dict[PipelineKey, Tuner] = {}

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> AutoscalerDecision:
        """Return the decision with the tuners' replicas. Other placements keep theirs until planned ones are ready."""
        desired: dict[PlacementId, int] = {}
        for state in snapshot.pipelines:
            tuner = self._tuners.get(state.spec.key) or self._planned(state.spec, snapshot.now_s)
            self._tuners[state.spec.key] = tuner
            reading = snapshot.ingress.get(state.spec.key)
            wanted = tuner.current if reading is None else tuner.tune(snapshot.now_s, reading.offered_rps)
            stages = {stage.name: stage for stage in state.spec.stages}
            for (stage, placement), replicas in wanted.items():
                desired |= carried_out(state, stages[stage], placement, replicas)
        return decision_of(snapshot, desired, "traffic envelope over the plan's", policy)

    def _planned(self, spec: PipelineSpec, now_s: float) -> Tuner:
        load = self._briefing.loads[spec.key]
        sample_s = self._briefing.duration_s * self._settings.sample_share
        demand = peak_demand(load, spec, sample_s)
        problem = optimizer_pipeline(spec, demand, latency_headroom=1 - self._settings.sla_share)
        prices = {pool.name: pool.price_per_hour for pool in self._briefing.pools}
        replicas = plan(replace(problem, budget_per_hour=None), prices)
        placed = {(stage.name, own.name): own for stage in problem.stages for own in stage.placements}
        models = [
            Model(
                stage=stage,
                placement=name,
                replicas=count,
                visits=problem.visit_ratios[stage],
                replica_rps=capacity_rps(placed[(stage, name)], placed[(stage, name)].batch_sizes[-1]),
            )
            for (stage, name), count in replicas.items()
        ]
        return Tuner(
            self._settings,
            models,
            planned_rps=problem.demand.entry_rate_rps,
            planned=envelope(entry_rates(load, spec, sample_s)),
            current=dict(replicas),
            changed_s=now_s,
        )


def entry_rates(load: Schedule, spec: PipelineSpec, until_s: float) -> NDArray[np.float64]:
    """Return the items/s that a load offers at the pipeline's entry, one value per second until `until_s`."""
    seconds = np.arange(int(until_s), dtype=np.float64)
    if spec.unit is DemandUnit.STREAMS:
        level = load.active(seconds + 0.5)
    else:
        level = np.diff(np.searchsorted(load.start_s, [*seconds, len(seconds)]))
    return np.asarray(level * spec.items_per_unit_s, dtype=np.float64)
