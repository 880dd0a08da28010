"""What pipelines pay on the basis of their budgets: shares of instances, or whole instances with their empty rest.

With `Basis.INSTANCES` the price of the instances that the replicas on a pool take is split by the shares (1 / replicas
per instance) that each pipeline has on them. So the empty rest of the instances is split in proportion, and what all
pipelines pay adds up to the bill. In a plan no replica has a node yet, so all instances of a pool are split together.
What is paid for running replicas is split node by node (`controller.core.plan.nodes`).

Replicas of a pipeline with `Basis.REPLICAS` take part in the split, but are charged their share without the empty rest.
Pods of no pipeline take no part: the pipelines on the node pay for all of it. No pipeline pays for a node without
replicas of pipelines.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from optimizer.model import (
    Basis,
    Pipeline,
    PipelineKey,
    PlacementKey,
    Pool,
    PoolName,
    Problem,
    Size,
    share_instances,
    whole_instances,
)
from optimizer.plan import PipelinePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """The replicas on one pool: whether different placements share instances, and how many are taken.

    `units` is the sum of the `weight` of all placements: in instances, exact where placements share instances.
    """

    shared: bool
    instances: int
    units: Fraction

    def weight(self, per_instance: Size, replicas: int) -> Fraction:
        """Return the instances for which a placement with `replicas` pays: parts of them, or whole ones of its own."""
        share = Fraction(replicas, per_instance)
        return share if self.shared else Fraction(ceil(share))

    def unit_price_per_hour(self, pool: Pool) -> float:
        """Return what one of `units` pays for the whole instances, in USD per hour; without replicas the pool's price.

        It is the price of an instance divided by the part of the instances that replicas take.
        """
        return pool.bill_per_hour(self.instances) / float(self.units) if self.units else pool.price_per_hour


def occupancy(placements: Iterable[tuple[Size, int]]) -> Occupancy:
    """Return the occupancy of a pool by `placements`: pairs (replicas per instance, replicas)."""
    taken = [(size, count) for size, count in placements if count]
    shared, instances = share_instances(size for size, _ in taken), whole_instances(taken)
    units = sum((Fraction(count, size) for size, count in taken), Fraction(0)) if shared else Fraction(instances)
    return Occupancy(shared=shared, instances=instances, units=units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The replicas of one placement, and the share (0–1) of their cost that `pipeline` pays.

    `borrowed` replicas belong to another pipeline, and take instances there.
    """

    pipeline: PipelineKey
    basis: Basis
    pool: PoolName
    per_instance: Size
    replicas: int
    cost_share: float = 1.0
    borrowed: bool = False


def costs_per_hour(charges: Iterable[Charge], pools: Mapping[PoolName, Pool]) -> Mapping[PipelineKey, float]:
    """Return the cost of each pipeline that has `charges`, on its own basis, in USD per hour."""
    charges = tuple(charges)
    taken: dict[PoolName, list[tuple[Size, int]]] = {name: list(pool.held) for name, pool in pools.items()}
    for charge in charges:
        if not charge.borrowed:
            taken[charge.pool].append((charge.per_instance, charge.replicas))
    occupancies = {name: occupancy(placements) for name, placements in taken.items()}
    costs: dict[PipelineKey, float] = {}
    for charge in charges:
        pool, there = pools[charge.pool], occupancies[charge.pool]
        if charge.basis is Basis.REPLICAS:
            cost = pool.price_per_hour / charge.per_instance * charge.replicas
        else:
            weight = there.weight(charge.per_instance, charge.replicas)
            cost = there.unit_price_per_hour(pool) * float(weight)
        costs[charge.pipeline] = costs.get(charge.pipeline, 0.0) + charge.cost_share * cost
    return costs


def plan_charges(pipeline: Pipeline, replicas: Mapping[PlacementKey, int]) -> Iterable[Charge]:
    """Yield the charges of `pipeline` with `replicas` of its placements, by stage and pool."""
    for stage in pipeline.stages:
        for placement in stage.placements:
            yield Charge(
                pipeline=pipeline.key,
                basis=pipeline.basis,
                pool=placement.pool,
                per_instance=placement.per_instance,
                replicas=replicas.get((stage.name, placement.name), 0),
                cost_share=stage.cost_share,
                borrowed=stage.borrowed,
            )


def planned_costs_per_hour(problem: Problem, plans: Iterable[PipelinePlan]) -> Mapping[PipelineKey, float]:
    """Return the cost of every pipeline of `problem` with its plan, on its own basis, in USD per hour."""
    replicas = {plan.key: plan.replicas() for plan in plans}
    return costs_per_hour(
        (charge for pipeline in problem.pipelines for charge in plan_charges(pipeline, replicas[pipeline.key])),
        problem.pools,
    )
