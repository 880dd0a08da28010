"""NVIDIA Dynamo's SLA planner: predicted load divided by one engine's capacity within the SLA, and a reactive loop.

Modelled on components/src/dynamo/planner/core/{throughput_scaling,load_scaling,budget,load/predictors}.py and
config/defaults.py of ai-dynamo/dynamo.

Mapping to speech: each stage's first placement is an engine type, an item a request, the latency target the stage's
part of the end-to-end SLA. Load is counted at the ingress, the original's frontend; the load of a stage follows by the
declared pass ratios. The original's profiling sweep, which finds the rate at which one engine's mean latency reaches
the target, is done on this project's latency model of one replica, bounded by its session slots as the original's is
by its KV cache. The GPU budget is the pool's instances. The predictors are those that need no model library: the
original's default, ARIMA, is replaced by its Kalman filter. The reactive loop is off by default, as in the original.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from controller.core.state.policy import Policy
from controller.core.state.snapshot import PoolState
from controller.core.state.spec import PipelineSpec
from optimizer.latency.stage import StageLoad, capacity_rps, predict
from optimizer.model import PlacementId
from simulations.policies.autoscaler import (
    AutoscalerDecision,
    DetailedSnapshot,
    OneWorkloadSettings,
    decision_of,
)
from simulations.policies.deployments import (
    Deployment,
    ceil,
    first_placements,
    latency_targets,
    offered_rates,
    slots_rate_rps,
)

_SEARCH_STEPS = 40
_MEDIAN = 50.0  # the model needs a percentile, though only its mean is used


class Predictor(Enum):
    """The way in which the load of the next interval is predicted."""

    CONSTANT = "constant"
    """The same load as in the last interval."""
    KALMAN = "kalman"
    """Level plus trend, by a Kalman filter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoSettings(OneWorkloadSettings):
    """The settings of Dynamo's SLA planner, with the defaults of its `SLAPlannerDefaults` except for `predictor`.

    `sla_share` is the share of the SLA's latency that is planned for. Every `throughput_interval_s` the throughput loop
    sets replicas for the predicted load. With `load_scaling` the reactive loop corrects them every `load_interval_s`.
    """

    sla_share: float = 1.0
    predictor: Predictor = Predictor.KALMAN
    throughput_interval_s: float = 180.0
    load_scaling: bool = False
    load_interval_s: float = 5.0
    scale_down_sensitivity: float = 0.8
    min_endpoint: int = 1
    kalman_q_level: float = 1.0
    kalman_q_trend: float = 0.1
    kalman_r: float = 10.0
    load_min_observations: int = 5
    load_samples: int = 64


@dataclass(slots=True)
class Kalman:
    """A Kalman filter with a local linear trend, which predicts the next value of a series."""

    settings: DynamoSettings
    _state: tuple[float, float] | None = None
    _covariance: tuple[float, float, float] = (1000.0, 0.0, 1000.0)

    def observe(self, value: float) -> None:
        """Add the value of the interval that ended."""
        if self._state is None:
            self._state = (value, 0.0)
            return
        (level, trend), (p00, p01, p11) = self._state, self._covariance
        level += trend
        p00, p01, p11 = (
            p00 + 2 * p01 + p11 + self.settings.kalman_q_level,
            p01 + p11,
            p11 + self.settings.kalman_q_trend,
        )
        gain = p00 + self.settings.kalman_r
        surprise = value - level
        self._state = (level + p00 / gain * surprise, trend + p01 / gain * surprise)
        self._covariance = (p00 - p00 * p00 / gain, p01 - p00 * p01 / gain, p11 - p01 * p01 / gain)

    def predict(self) -> float:
        """Return the prediction of the next value, at least 0; 0 before the first observation."""
        return 0.0 if self._state is None else max(0.0, self._state[0] + self._state[1])


@dataclass(slots=True)
class LatencyRegression:
    """A worker's latency (s) as a linear function of the items it holds, by least squares over the newest samples."""

    settings: DynamoSettings
    _samples: deque[tuple[float, float]] = field(default_factory=deque)

    def observe(self, items: float, latency_s: float) -> None:
        """Add the reading of one worker: the items that it holds, and their latency in seconds."""
        self._samples.append((items, latency_s))
        while len(self._samples) > self.settings.load_samples:
            self._samples.popleft()

    def line(self) -> Callable[[float], float] | None:
        """Return the latency (s) as a function of the items held; None if samples are too few, or do not differ."""
        count = len(self._samples)
        if count < self.settings.load_min_observations:
            return None
        mean_x = sum(x for x, _ in self._samples) / count
        mean_y = sum(y for _, y in self._samples) / count
        spread = sum((x - mean_x) ** 2 for x, _ in self._samples)
        if spread <= 0:
            return None
        slope = sum((x - mean_x) * (y - mean_y) for x, y in self._samples) / spread
        return lambda items: mean_y + slope * (items - mean_x)


def throughput_replicas(demand_rps: float, *, engine_rps: float, least_s: float, target_s: float, least: int) -> int:
    """Return the replicas for a predicted load, at least `least`; `engine_rps` is the capacity of one engine.

    If the latency of an idle engine, `least_s`, exceeds `target_s`, their ratio is a minimum of the replicas too.
    """
    floor = ceil(least_s / target_s) if least_s > target_s else 1
    return max(ceil(demand_rps / engine_rps), floor, least)


def load_replicas(
    loads: Sequence[float], regression: LatencyRegression, *, target_s: float, sensitivity: float
) -> int | None:
    """Return the desired replicas of the reactive loop; `loads` has the items at each worker. None without an estimate.

    One more when every worker's estimated latency is above the target. One fewer when, with the load of one worker
    spread over the others, each stays within the share `sensitivity` of the latency that the target leaves for the
    queue.
    """
    estimate = regression.line()
    if not loads or estimate is None:
        return None
    count = len(loads)
    if all(estimate(items) > target_s for items in loads):
        return count + 1
    own_s = estimate(0.0)
    room_s = sensitivity * (target_s - own_s)
    if count > 1 and room_s > 0:
        spread = count / (count - 1)
        if all(estimate(items * spread) - own_s < room_s for items in loads):
            return count - 1
    return count


def within_budget(wanted: Sequence[int], units: Sequence[float], least: Sequence[int], budget: float) -> list[int]:
    """Return the replicas of components that share `budget`; if `wanted` does not fit, all shrink in proportion.

    The last component takes the rest. `units[i]` is the budget that one replica of component i takes. All are 0 when
    not even the `least` replicas of all components fit.
    """
    total = sum(count * unit for count, unit in zip(wanted, units, strict=True))
    if total <= budget + 1e-9:
        return list(wanted)
    if sum(count * unit for count, unit in zip(least, units, strict=True)) > budget + 1e-9:
        return [0] * len(wanted)
    share = budget / total
    given: list[int] = []
    left = budget
    for index, (count, unit, minimum) in enumerate(zip(wanted, units, least, strict=True)):
        rest = sum(least[i] * units[i] for i in range(index + 1, len(wanted)))
        room = math.floor((left - rest) / unit + 1e-9)
        last = index == len(wanted) - 1
        given.append(max(minimum, min(room, count if last else math.floor(count * share + 1e-9))))
        left -= given[-1] * unit
    return given


@dataclass(slots=True)
class _Component:
    """One stage's planner: the capacity of one engine, its load so far, and the floor of the throughput loop."""

    engine_rps: float
    least_s: float
    target_s: float
    filter: Kalman
    regression: LatencyRegression
    offered: list[float] = field(default_factory=list)
    floor: int = 1


class Dynamo:
    """The baseline `dynamo`: one component per stage; the components of a pool share its instances as their budget."""

    def __init__(self, settings: DynamoSettings) -> None:
        self._settings = settings
        self.interval_s = self.metrics_window_s = (
            settings.load_interval_s
        )  # the throughput loop averages these readings
        self._components: dict[PlacementId, _Component] = {}
        self._planned_s: float | None = None

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> AutoscalerDecision:
        """Return the decision with the planner's desired replicas."""
        works = list(first_placements(snapshot))
        specs = {state.spec.key: state.spec for state in snapshot.pipelines}
        rates = {key: offered_rates(snapshot, spec) for key, spec in specs.items()}
        for work in works:
            offered = rates[work.pipeline]
            self._observe(work, specs[work.pipeline], None if offered is None else offered[work.stage.name])
        if self._planned_s is None:
            self._planned_s = snapshot.now_s
        plan = snapshot.now_s >= self._planned_s + self._settings.throughput_interval_s
        if plan:
            self._planned_s = snapshot.now_s
        wanted = {work.name: self._wanted(work, plan=plan) for work in works}
        desired: dict[PlacementId, int] = {}
        for name, pool in snapshot.pools.items():
            desired |= _budgeted([work for work in works if work.placement.pool == name], wanted, pool)
        return decision_of(
            snapshot, desired, "predicted load divided by an engine's capacity within its target", policy
        )

    def _observe(self, work: Deployment, spec: PipelineSpec, offered_rps: float | None) -> None:
        component = self._components.get(work.name)
        if component is None:
            target_s = latency_targets(spec, spec.sla.latency_s * self._settings.sla_share)
            engine_rps, least_s = profiled(work, target_s[work.stage.name])
            component = _Component(
                engine_rps=min(engine_rps, slots_rate_rps(spec, work.stage.name, work.placement)),
                least_s=least_s,
                target_s=target_s[work.stage.name],
                filter=Kalman(self._settings),
                regression=LatencyRegression(self._settings),
                floor=self._settings.min_endpoint,
            )
            self._components[work.name] = component
        if offered_rps is not None:
            component.offered.append(offered_rps)
        for replica in work.replicas if self._settings.load_scaling else ():
            if replica.completion_rate_rps > 0:
                items = replica.queued + replica.in_service
                component.regression.observe(items, items / replica.completion_rate_rps)  # Little's law

    def _wanted(self, work: Deployment, *, plan: bool) -> int:
        component, settings = self._components[work.name], self._settings
        current = work.within(work.target.desired)
        if plan:
            planned = self._planned(component)
            if planned is not None and not settings.load_scaling:
                return work.within(planned)
            component.floor = component.floor if planned is None else planned
        settled = work.target.desired == work.target.ready == len(work.replicas)
        if not settings.load_scaling or not settled:
            return current
        loads = [replica.queued + replica.in_service for replica in work.replicas]
        wanted = load_replicas(
            loads, component.regression, target_s=component.target_s, sensitivity=settings.scale_down_sensitivity
        )
        slots = work.placement.prior.session_slots
        if wanted is not None and wanted < len(loads) and slots is not None:
            held = sum(replica.sessions for replica in work.replicas)
            wanted = wanted if held < slots * wanted else len(loads)
        return work.within(max(current if wanted is None else wanted, component.floor))

    def _planned(self, component: _Component) -> int | None:
        """Return the desired replicas of the throughput loop; None if there was no traffic since its last plan."""
        offered = component.offered
        component.offered = []
        if not offered or not any(offered):
            return None
        mean_rps = sum(offered) / len(offered)
        interval_s = self._settings.throughput_interval_s
        component.filter.observe(mean_rps * interval_s)
        kalman = self._settings.predictor is Predictor.KALMAN
        demand_rps = component.filter.predict() / interval_s if kalman else mean_rps
        return throughput_replicas(
            demand_rps,
            engine_rps=component.engine_rps,
            least_s=component.least_s,
            target_s=component.target_s,
            least=self._settings.min_endpoint,
        )


def profiled(work: Deployment, target_s: float) -> tuple[float, float]:
    """Return the largest rate (items/s) at which one replica's mean latency meets `target_s`, and its idle latency (s).

    If even an idle replica is slower than the target, the rate is the replica's capacity.
    """
    placement = work.placement.prior
    batch = placement.batch_sizes[-1]

    def mean_s(rate_rps: float) -> float:
        load = StageLoad(rate_rps=rate_rps, sessions=None, arrival_cv2=1.0, periodic=False, latency_factor=1.0)
        answer = predict(load, placement, 1, batch=batch, routing=work.stage.routing, percentile=_MEDIAN)
        return math.inf if answer is None else answer.mean_s

    most = capacity_rps(placement, batch)
    low, high = 0.0, most
    least_s = mean_s(most / 1000)
    if least_s > target_s:
        return most, least_s
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_s(middle) <= target_s else (low, middle)
    return low, least_s


def _budgeted(works: Sequence[Deployment], wanted: dict[PlacementId, int], pool: PoolState) -> dict[PlacementId, int]:
    counts = within_budget(
        [wanted[work.name] for work in works],
        [float(1 / work.placement.prior.per_instance) for work in works],
        [work.least for work in works],
        float(pool.limit),
    )
    return {work.name: count for work, count in zip(works, counts, strict=True)}
