"""Which replicas share instances with which, as the profiler needs it to learn how they slow each other."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from controller.core.state.snapshot import PipelineState, Snapshot, StandingPlacement
from optimizer.model import PipelineKey, Placement, PlacementKey, PoolName, pool_of
from profiler.neighbours import Neighbour
from profiler.samples import Absence, Quantity

PLANNED_BUSY = 0.8
"""The busy share that is planned with for neighbours that may lose replicas: plans leave replicas about as busy."""

Neighbours = Mapping[PlacementKey, tuple[Neighbour, ...]]
ALONE: Neighbours = MappingProxyType({})

PlacementOf = tuple[PipelineKey, PlacementKey]


def neighbours_of(snapshot: Snapshot) -> Mapping[PipelineKey, Neighbours]:
    """Return the neighbours of every placement of which several replicas fit on an instance, by pipeline.

    The replicas of the placement itself are among them. Of other placements, those count of which replicas are on the
    same instance now. Replicas whose node is not known have no neighbours.
    """
    nodes: dict[tuple[PoolName, str], Counter[PlacementOf]] = {}
    replicas: Counter[PlacementOf] = Counter()
    declared: dict[PlacementOf, Placement] = {}
    for state in snapshot.pipelines:
        for key, prior, node in _on_shared_nodes(state):
            own = (state.spec.key, key)
            nodes.setdefault((pool_of(key[1]), node), Counter())[own] += 1
            replicas[own] += 1
            declared[own] = prior
    assessed = frozenset(replicas)
    standing: dict[PlacementOf, StandingPlacement] = {}
    for each in snapshot.standing:
        for there in each.placements:
            own = (each.key, there.key)
            for node in there.nodes:
                if (on_node := nodes.get((pool_of(there.key[1]), node))) is not None:
                    on_node[own] += 1
                    standing[own] = there
            if own in standing:
                replicas[own] = len(there.nodes)
                declared[own] = there.prior
    beside: dict[PlacementOf, Counter[PlacementOf]] = {own: Counter({own: 0}) for own in assessed}
    for on_node in nodes.values():
        if on_node.total() > 1:
            for own, count in on_node.items():
                if own in assessed:
                    for other, beside_it in on_node.items():
                        beside[own][other] += count * (beside_it - (other == own))
    states = {state.spec.key: state for state in snapshot.pipelines}
    found: dict[PipelineKey, dict[PlacementKey, tuple[Neighbour, ...]]] = {}
    for own, others in beside.items():
        instances = math.fsum(replicas[other] / declared[other].per_instance for other in others)
        # What is left of an instance beside a replica, as a share of the instances of all.
        left = (1 - 1 / declared[own].per_instance) / instances
        found.setdefault(own[0], {})[own[1]] = tuple(
            _standing_neighbour(other, standing[other], pairs / replicas[own], left * replicas[other])
            if other in standing
            else _neighbour(
                states[other[0]],
                other[1],
                pairs / replicas[own],
                left * replicas[other],
                least=None if other == own else max(1, declared[other].min_replicas),
            )
            for other, pairs in sorted(others.items())
        )
    return found


def _on_shared_nodes(state: PipelineState) -> Iterator[tuple[PlacementKey, Placement, str]]:
    """Yield the placement, as declared, and the node of each ready replica that may share its instance."""
    placements = state.spec.placements()
    for key, target in state.found():
        prior = placements[key].prior
        if key[0] not in state.spec.borrowed and prior.per_instance > 1:
            yield from ((key, prior, replica.node) for replica in target.serving if replica.node)


def _neighbour(
    state: PipelineState, key: PlacementKey, count: float, expected: float, *, least: int | None
) -> Neighbour:
    """Return the neighbour `key` of a pipeline: `count` replicas beside each one now, `expected` on full instances.

    Plans may lower its replicas to `least`, None: it is the placement itself, whose replicas they choose.
    """
    busy, share = busy_shares(state, key, least=least)
    return Neighbour(name=_name((state.spec.key, key)), count=count, busy=busy, planned=expected * share)


def _standing_neighbour(own: PlacementOf, there: StandingPlacement, count: float, expected: float) -> Neighbour:
    return Neighbour(name=_name(own), count=count, busy=there.busy, planned=expected * there.planned_busy)


def _name(own: PlacementOf) -> str:
    return f"{own[0]}/{own[1][0]}"


def busy_shares(state: PipelineState, key: PlacementKey, *, least: int | None) -> tuple[float | None, float]:
    """Return the busy share (0–1) of the replicas of a placement, None: not known, and the one to plan with.

    Plans may lower its replicas to `least`, None: it is the placement itself, whose replicas they choose.
    """
    busy = state.samples_of(*key).of(Quantity.UTILIZATION)
    if isinstance(busy, Absence):
        return None, PLANNED_BUSY
    busy = min(1.0, max(0.0, busy))
    planned, observed = state.memory.planned_demand, state.demand
    growth = 1.0 if planned is None or isinstance(observed, Absence) or observed <= 0 else planned / observed
    if least is None or state.desired(*key) > least:
        return busy, PLANNED_BUSY
    return busy, min(PLANNED_BUSY, max(busy, busy * growth))
