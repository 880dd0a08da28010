"""llm-inferno's optimizer: a queueing model sizes every server, a greedy algorithm divides limited accelerators.

Modelled on pkg/analyzer/queueanalyzer.go, pkg/core/allocation.go and pkg/solver/greedy.go of llm-inferno/optimizer.

Mapping to speech: a stage is a server, a pool an accelerator type, an item a request of one step. A replica that
serves c batches of at most b items holds N = c·b items at once and completes them at rate n / (fixed + n/c · perItem).
The time to first token is the mean of waiting plus service. Its target is the stage's part of `sla_share` × the
end-to-end SLA, less the time that a batch waits to fill, which the model leaves out. Where a stage holds session slots
they bound a replica's rate, as memory bounds the batch of the original. The arrival rate follows from the rate offered
at the ingress and the declared pass ratios. As in the original, a stage runs on one pool at a time, targets are means,
and budgets are ignored. A stage that changes pools keeps the old replicas until the new ones are ready, as a rolling
update does. The original's tuner of the service law is left out, because the simulation uses the declared law, except
in faults.
"""

import math
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from controller.core.state.policy import Policy
from controller.core.state.snapshot import PipelineState
from controller.core.state.spec import PipelineSpec, StageSpec
from optimizer.model import Placement, PlacementId, placement_name
from simulations.policies.autoscaler import AutoscalerDecision, DetailedSnapshot, decision_of
from simulations.policies.deployments import (
    Deployment,
    carried_out,
    ceil,
    latency_targets,
    offered_rates,
    placements,
    slots_rate_rps,
)

_DELTA = 0.001  # how far from idle and from saturation the search for the largest rate stays
_QUEUE_TO_BATCH = 10
_TRANSITION_PENALTY = 0.1
_SEARCH_STEPS = 100
_SEARCH_TOLERANCE = 1e-6

Array = NDArray[np.float64]


class Saturation(Enum):
    """The allocation of a server whose needs exceed the free accelerators (`saturationPolicy`)."""

    NONE = "None"
    """No allocation: its replicas are not changed."""
    PRIORITY_EXHAUSTIVE = "PriorityExhaustive"
    """As many replicas as fit on the first accelerator with free capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfernoSettings:
    """The settings of `inferno`, with the defaults of pkg/config/defaults.go; the control loop's period is 60 s.

    `sla_share` is the share of the SLA's latency that is planned for.
    """

    sla_share: float = 1.0
    saturation: Saturation = Saturation.NONE
    interval_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The steady state of a queue: mean number of items in service, mean seconds of service and of waiting."""

    in_service: float
    service_s: float
    waiting_s: float


def steady_state(service_rps: Array, arrival_rps: float) -> QueueState:
    """Return the steady state of an M/M/1 queue with state-dependent service rate and room for 10 · N items to wait.

    `service_rps[n - 1]` is the rate at which n items complete, shape (N,), items per second.
    """
    most = len(service_rps)
    places = np.arange(1, most * (1 + _QUEUE_TO_BATCH) + 1)
    rates = service_rps[np.minimum(places, most) - 1]
    weights = np.concatenate([[0.0], np.cumsum(np.log(arrival_rps / rates))])
    shares = np.exp(weights - weights.max())
    shares /= shares.sum()
    numbers = np.arange(len(shares))
    completed = arrival_rps * (1 - shares[-1])
    in_service = float(np.minimum(numbers, most) @ shares)
    service_s = in_service / completed
    waiting_s = max(0.0, float(numbers @ shares) / completed - service_s)
    return QueueState(in_service=in_service, service_s=service_s, waiting_s=waiting_s)


def largest_rate(service_rps: Array, target: float, measure: Callable[[QueueState], float]) -> float | None:
    """Return the largest arrival rate (items/s) at which `measure` is within `target`; None if there is none."""

    def value(rate: float) -> float:
        return measure(steady_state(service_rps, rate))

    low, high = float(service_rps[0]) * _DELTA, float(service_rps[-1]) * (1 - _DELTA)
    if value(low) > target:
        return None
    if value(high) <= target:
        return high
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        reached = value(middle)
        if abs(reached - target) <= _SEARCH_TOLERANCE * target:
            return middle
        low, high = (low, middle) if reached > target else (middle, high)
    return (low + high) / 2


def service_rates(placement: Placement) -> Array:
    """Return the rates (items/s) at which one replica completes items when it holds 1, 2, …, N of them, shape (N,)."""
    items = np.arange(1, placement.concurrency * placement.batch_sizes[-1] + 1, dtype=np.float64)
    return np.asarray(items / [placement.service.mean_s(each) for each in items / placement.concurrency])


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A possible allocation of a server: `replicas` on one accelerator type, their cost (USD per hour) and value.

    `variant` is the variant of the model that they run, None where it has no other there.

    A lower value is better; see `transition_value`.
    """

    accelerator: str
    replicas: int
    units: Fraction
    """Units of the accelerator that one replica takes."""
    cost: float
    value: float
    variant: str | None = None


def transition_value(*, cost: float, current_cost: float, same_accelerator: bool) -> float:
    """Return the value of an allocation that costs `cost` to a server that costs `current_cost` now; less is better.

    Costs are in USD per hour. Another accelerator type than now has a penalty.
    """
    penalty = 0.0 if same_accelerator else _TRANSITION_PENALTY * (current_cost + cost)
    return penalty + cost - current_cost


@dataclass(slots=True)
class Server:
    """A stage in the queue of the greedy algorithm; the original calls it a server.

    `candidates` are its possible allocations, sorted by value, the best (lowest) first; the next one to try is at
    `index`. A lower `priority` number comes first. `order` is the sort key in the queue, which `rank` sets.
    """

    name: str
    priority: int
    candidates: Sequence[Allocation]
    index: int = 0
    order: tuple[int, float, float, str] = field(init=False)

    def __post_init__(self) -> None:
        self.candidates = sorted(self.candidates, key=lambda candidate: candidate.value)
        self.rank()

    def rank(self) -> None:
        """Set `order`: by priority, then the larger regret, then the larger value.

        The regret is the value of the next candidate less the value of the one at `index`.
        """
        following = self.index + 1
        value = self.candidates[self.index].value
        regret = self.candidates[following].value - value if following < len(self.candidates) else math.inf
        self.order = (self.priority, -regret, -value, self.name)


def divide(
    servers: Sequence[Server], capacity: Mapping[str, Fraction], saturation: Saturation
) -> dict[str, Allocation]:
    """Return the allocations of the servers by name, within `capacity` (units per accelerator type).

    Servers for which nothing fits are left out.
    """
    free = dict(capacity)
    queue = sorted((server for server in servers if server.candidates), key=lambda server: server.order)
    taken: dict[str, Allocation] = {}
    left: list[Server] = []
    while queue:
        server = queue.pop(0)
        candidate = server.candidates[server.index]
        needed = candidate.replicas * candidate.units
        if free.get(candidate.accelerator, Fraction(0)) >= needed:
            free[candidate.accelerator] -= needed
            taken[server.name] = candidate
            continue
        server.index += 1
        if server.index == len(server.candidates):
            left.append(server)
            continue
        server.rank()
        insort(queue, server, key=lambda other: other.order)
    if saturation is Saturation.PRIORITY_EXHAUSTIVE:
        taken |= _leftovers(left, free)
    return taken


def _leftovers(servers: Sequence[Server], free: dict[str, Fraction]) -> dict[str, Allocation]:
    taken: dict[str, Allocation] = {}
    for server in servers:
        for candidate in server.candidates:
            room = int(free.get(candidate.accelerator, Fraction(0)) / candidate.units)
            replicas = min(room, candidate.replicas)
            if replicas > 0:
                free[candidate.accelerator] -= replicas * candidate.units
                share = replicas / candidate.replicas
                taken[server.name] = Allocation(
                    accelerator=candidate.accelerator,
                    variant=candidate.variant,
                    replicas=replicas,
                    units=candidate.units,
                    cost=candidate.cost * share,
                    value=candidate.value * share,
                )
                break
    return taken


class Inferno:
    """The baseline `inferno`: every `interval_s` it sizes all stages anew, without step limits or delays.

    Only a change of pool takes longer: old replicas stay until the new ones are ready.
    """

    def __init__(self, settings: InfernoSettings) -> None:
        self._settings = settings
        self.interval_s = self.metrics_window_s = settings.interval_s
        self._rates: dict[tuple[Placement, float], float | None] = {}

    def __call__(self, snapshot: DetailedSnapshot, policy: Policy) -> AutoscalerDecision:
        """Return the decision with the allocations of the greedy algorithm."""
        servers: list[Server] = []
        stages: dict[str, tuple[PipelineState, StageSpec]] = {}
        for state in snapshot.pipelines:
            latencies = latency_targets(state.spec, state.spec.sla.latency_s * self._settings.sla_share)
            rates = offered_rates(snapshot, state.spec)
            if rates is None:
                continue
            for stage in state.spec.stages:
                works = placements(snapshot, state, stage)
                name = f"{state.spec.key}/{stage.name}"
                stages[name] = state, stage
                candidates = self._candidates(state.spec, works, rates[stage.name], latencies[stage.name], snapshot)
                if candidates:
                    servers.append(Server(name, -state.spec.priority, candidates))
        capacity = {str(name): Fraction(pool.limit) for name, pool in snapshot.pools.items()}
        taken = divide(servers, capacity, self._settings.saturation)
        desired: dict[PlacementId, int] = {}
        for name, allocation in taken.items():
            desired |= carried_out(
                *stages[name], placement_name(allocation.accelerator, allocation.variant), allocation.replicas
            )
        return decision_of(snapshot, desired, "the cheapest pool whose mean latency is within target", policy)

    def _candidates(
        self,
        spec: PipelineSpec,
        works: Sequence[Deployment],
        rate_rps: float,
        target_s: float,
        snapshot: DetailedSnapshot,
    ) -> Sequence[Allocation]:
        if not works:
            return []
        prices = {work.placement.name: _price_per_hour(work, snapshot) for work in works}
        running = max(works, key=lambda work: work.target.desired)
        now = running.target.desired * prices[running.placement.name]
        found = []
        for work in works:
            prior = work.placement.prior
            largest = self._largest_rate(prior, target_s - prior.batch_wait_s)
            if largest is None:
                continue
            largest = min(largest, slots_rate_rps(spec, work.stage.name, work.placement))
            replicas = max(1, work.placement.prior.min_replicas, ceil(rate_rps / largest))
            cost = replicas * prices[work.placement.name]
            same = work.placement.pool == running.placement.pool
            found.append(
                Allocation(
                    accelerator=work.placement.pool,
                    variant=work.placement.prior.variant,
                    replicas=replicas,
                    units=Fraction(1, work.placement.prior.per_instance),
                    cost=cost,
                    value=transition_value(cost=cost, current_cost=now, same_accelerator=same),
                )
            )
        return found

    def _largest_rate(self, placement: Placement, target_s: float) -> float | None:
        key = (placement, target_s)
        if key not in self._rates:
            self._rates[key] = largest_rate(
                service_rates(placement), target_s, lambda queue: queue.waiting_s + queue.service_s
            )
        return self._rates[key]


def _price_per_hour(work: Deployment, snapshot: DetailedSnapshot) -> float:
    return snapshot.pools[work.placement.pool].spec.replica_price_per_hour(work.placement.prior.per_instance)
