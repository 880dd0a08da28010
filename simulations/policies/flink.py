"""The Flink Kubernetes Operator's autoscaler (DS2): true processing rates, and target rates along the topology.

Modelled on flink-autoscaler/src/main/java/org/apache/flink/autoscaler/{ScalingMetricEvaluator,JobVertexScaler,
ScalingExecutor,DelayedScaleDown}.java and AutoScalerOptions.java of apache/flink-kubernetes-operator.

Mapping to speech: a pipeline is a job, the first placement of each stage a vertex, a replica a subtask. The input rate
of a vertex is the rate at which its replicas complete items. A stage without predecessor is a source, and its waiting
items are the lag. The target rate of a source is the rate offered at the ingress, shed items included; Flink adds the
growth of the lag to the input rate instead. A join gets an item once, after all branches, so its target rate is that of
the branch with the highest one; Flink adds up the inputs. A new replica needs no restart, so the restart time is 0; for
a Flink job it is 5 minutes. Items are lost after seconds here, so the original's rules for a backlog of minutes never
apply.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.core.state.policy import Policy
from optimizer.model import PipelineKey, PlacementId
from simulations.policies.autoscaler import (
    AutoscalerDecision,
    DetailedSnapshot,
    OneWorkloadSettings,
    decision_of,
)
from simulations.policies.deployments import Deployment, ceil, first_placements


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkSettings(OneWorkloadSettings):
    """The settings of Flink's autoscaler, with the defaults of AutoScalerOptions except `restart_s`.

    Metrics are collected every 15 s, the reconcile period of a job.
    """

    target_utilization: float = 0.7
    utilization_boundary: float = 0.3
    metrics_window_s: float = 900.0
    stabilization_s: float = 300.0
    scale_down_delay_s: float = 3600.0
    max_scale_down_factor: float = 0.6
    max_scale_up_factor: float = 100_000.0
    catch_up_s: float = 1800.0
    restart_s: float = 0.0
    interval_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexRates:
    """One vertex over the metrics window; rates are in items/s.

    `busy` is the share of time (0–1) that the busiest subtask works. `target_rps` is the rate to process, and
    `catch_up_rps` the rate to add to work off the lag.
    """

    parallelism: int
    input_rps: float
    busy: float
    target_rps: float
    catch_up_rps: float

    @property
    def true_rps(self) -> float:
        """Return the true processing rate (items/s): the rate if the vertex were busy all the time."""
        return self.input_rps / self.busy if self.busy > 0 and self.input_rps > 0 else math.inf

    def required_rps(self, utilization: float, settings: FlinkSettings, *, with_restart: bool) -> float:
        """Return the capacity (items/s) that serves the target rate at `utilization` and works off the lag in time."""
        if utilization <= 0:
            return math.inf
        catch_up_rps = self.catch_up_rps
        if with_restart and settings.catch_up_s > 0:
            catch_up_rps += settings.restart_s / settings.catch_up_s * self.target_rps
        return round(catch_up_rps + self.target_rps / utilization)


def target_parallelism(vertex: VertexRates, settings: FlinkSettings) -> int:
    """Return the parallelism at which the vertex runs at the target utilisation, within the scale factors."""
    needed = vertex.required_rps(settings.target_utilization, settings, with_restart=True)
    factor = needed / vertex.true_rps
    factor = min(max(factor, 1 - settings.max_scale_down_factor), 1 + settings.max_scale_up_factor)
    return max(1, ceil(factor * vertex.parallelism))


def outside_bounds(vertex: VertexRates, settings: FlinkSettings) -> bool:
    """Return whether the vertex runs above or below the utilisation band."""
    low = settings.target_utilization - settings.utilization_boundary
    high = settings.target_utilization + settings.utilization_boundary
    return vertex.true_rps < vertex.required_rps(high, settings, with_restart=False) or (
        vertex.true_rps > vertex.required_rps(low, settings, with_restart=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One vertex at one collection: items/s processed and offered, waiting items, busy share of the busiest subtask."""

    input_rps: float
    offered_rps: float
    lag: float
    busy: float


Collection = tuple[float, Mapping[PlacementId, Sample]]
"""One collection of metrics: its time in seconds, and the sample of every vertex of the job."""


def evaluate(
    history: Sequence[Collection], vertices: Sequence[Deployment], settings: FlinkSettings
) -> dict[PlacementId, VertexRates]:
    """Return the rates of every vertex over the collections of `history`; `vertices` are in topological order.

    A source has its offered rate as target rate, and catches up on its lag. The target and catch-up rate of any other
    vertex are its predecessor's, times the items offered to the vertex per input item of the predecessor; of several
    predecessors the highest result counts.
    """

    def mean(values: Iterable[float]) -> float:
        return sum(values) / len(history)

    named = {own.stage.name: own.name for own in vertices}
    inputs = {own.name: mean(seen[own.name].input_rps for _, seen in history) for own in vertices}
    found: dict[PlacementId, VertexRates] = {}
    for own in vertices:
        offered = mean(seen[own.name].offered_rps for _, seen in history)
        before = [named[name] for name in own.stage.after if name in named]
        if before:
            ratios = {name: offered / inputs[name] if inputs[name] > 0 else 0.0 for name in before}
            target = max(found[name].target_rps * ratio for name, ratio in ratios.items())
            catch_up = max(found[name].catch_up_rps * ratio for name, ratio in ratios.items())
        else:
            target = offered
            catch_up = history[-1][1][own.name].lag / settings.catch_up_s if settings.catch_up_s > 0 else 0.0
        found[own.name] = VertexRates(
            parallelism=own.target.desired,
            input_rps=inputs[own.name],
            busy=mean(seen[own.name].busy for _, seen in history),
            target_rps=target,
            catch_up_rps=catch_up,
        )
    return found


@dataclass(slots=True)
class Job:
    """The autoscaler of one pipeline. `settled_s` is the time of its last scaling, or of its start."""

    settings: FlinkSettings
    settled_s: float
    _history: list[Collection] = field(default_factory=list)
    _reductions: dict[PlacementId, list[tuple[float, int]]] = field(default_factory=dict)

    def parallelism(
        self, now_s: float, vertices: Sequence[Deployment], offered_rps: float | None
    ) -> dict[PlacementId, int]:
        """Return the desired replicas, which are the current ones unless a vertex is outside its band.

        `offered_rps` is the rate offered to the job's sources, None where it is unknown.
        """
        settings = self.settings
        kept = {own.name: own.within(own.target.desired) for own in vertices}
        reporting = all(own.replicas for own in vertices)
        if now_s < self.settled_s + settings.stabilization_s or offered_rps is None or not reporting:
            return kept
        self._history.append((now_s, {own.name: _sample(own, offered_rps) for own in vertices}))
        if now_s - self._history[0][0] < settings.metrics_window_s:
            return kept
        self._history = [seen for seen in self._history if seen[0] >= now_s - settings.metrics_window_s]
        rates = evaluate(self._history, vertices, settings)
        wanted = {own.name: self._delayed(now_s, own, rates[own.name]) for own in vertices}
        moved = {name for name, count in wanted.items() if count != kept[name]}
        if not any(outside_bounds(rates[name], settings) for name in moved):
            return kept
        self._history.clear()
        for name in moved:
            self._reductions.pop(name, None)
        self.settled_s = now_s
        return wanted

    def _delayed(self, now_s: float, own: Deployment, vertex: VertexRates) -> int:
        """Return the vertex's parallelism. A reduction is delayed, and is then the smallest one wanted meanwhile."""
        wanted = own.within(target_parallelism(vertex, self.settings))
        if wanted >= own.target.desired:
            self._reductions.pop(own.name, None)
            return wanted
        waiting = self._reductions.setdefault(own.name, [])
        waiting.append((now_s, wanted))
        if now_s - waiting[0][0] < self.settings.scale_down_delay_s:
            return own.target.desired
        return max(count for _, count in waiting)


def _sample(own: Deployment, entry_rps: float) -> Sample:
    return Sample(
        input_rps=sum(replica.completion_rate_rps for replica in own.replicas),
        offered_rps=own.arrival_rate_rps if own.stage.after else entry_rps,
        lag=sum(replica.queued for replica in own.replicas),
        busy=max(replica.utilization for replica in own.replicas),
    )


class Flink:
    """The baseline `flink`: one job per pipeline."""

    def __init__(self, settings: FlinkSettings) -> None:
        self._settings = settings
        self.interval_s = self.metrics_window_s = settings.interval_s  # the metrics window is made of collections
        self._jobs: dict[PipelineKey, Job] = {}

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> AutoscalerDecision:
        """Return the decision with the parallelism of every vertex as its replicas."""
        jobs: dict[PipelineKey, list[Deployment]] = {}
        for work in first_placements(snapshot):
            jobs.setdefault(work.pipeline, []).append(work)
        desired: dict[PlacementId, int] = {}
        for key, vertices in jobs.items():
            job = self._jobs.setdefault(key, Job(self._settings, settled_s=snapshot.now_s))
            reading = snapshot.ingress.get(key)
            desired |= job.parallelism(snapshot.now_s, vertices, None if reading is None else reading.offered_rps)
        return decision_of(snapshot, desired, f"busy {self._settings.target_utilization:.0%} of the time", policy)
