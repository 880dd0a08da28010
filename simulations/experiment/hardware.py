"""Reorder placements for autoscalers that act on one Deployment per stage."""

from collections.abc import Mapping, Sequence
from typing import Any

from controller.core.state.spec import PlacementSpec, StageSpec
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.model import PoolName
from simulations.scenario.scenario import Scenario, resource_name, with_documents


def cheapest_first(scenario: Scenario) -> Scenario:
    """Return the scenario with every stage's placements sorted by USD per item, at full batches and initial prices.

    Ties stay in the order declared.
    """
    prices = {pool.name: pool.price_per_hour for pool in map(pool_spec, scenario.pools)}
    changed = {}
    for pipeline in scenario.pipelines:
        stages, name = pipeline_spec(pipeline).stages, resource_name(pipeline)
        costs = [
            [min(_per_item(own, prices[pool]) for own in s.placements if own.pool == pool) for pool in _pools(s)]
            for s in stages
        ]
        orders = [sorted(range(len(own)), key=own.__getitem__) for own in costs]
        changed[name] = _ordered(scenario.documents[name], orders)
    return with_documents(scenario, changed)


def _pools(stage: StageSpec) -> list[PoolName]:
    return list(dict.fromkeys(placement.pool for placement in stage.placements))


def _per_item(placement: PlacementSpec, price_per_hour: float) -> float:
    prior = placement.prior
    return price_per_hour / prior.per_instance / prior.law_rps(prior.batch_sizes[-1])


def _ordered(document: Mapping[str, Any], orders: Sequence[Sequence[int]]) -> dict[str, Any]:
    stages = [
        {**stage, "placements": [stage["placements"][index] for index in order]}
        for stage, order in zip(document["spec"]["stages"], orders, strict=True)
    ]
    return {**document, "spec": {**document["spec"], "stages": stages}}
