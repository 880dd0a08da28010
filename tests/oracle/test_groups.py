"""Replicas that take several instances: plans against brute force over the whole instances of shared pools."""

import itertools
import random
from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest
from problems import a_pipeline, a_stage, on

from optimizer.allocate import allocate
from optimizer.latency.predict import predicted_latency_s
from optimizer.model import Basis, Composition, PlacementKey, Pool, PoolName, Problem, whole_instances

PRICE = 4.0
GPU = PoolName("gpu")


def a_problem(seed: int, basis: Basis) -> Problem:
    """A stage of groups on two or four instances, and one whose replicas share instances or take one each."""
    random_ = random.Random(seed)
    instances = random_.choice([2, 4])
    one = replace(
        on("gpu", service=(random_.uniform(0.1, 0.4), 0.0), cv=0.3, bounds=(0, 4)), per_instance=Fraction(1, instances)
    )
    other = replace(
        on("gpu", service=(random_.uniform(0.02, 0.1), 0.0), cv=0.3, bounds=(0, 6)),
        per_instance=random_.choice([1, 2, 3]),
    )
    stages = (a_stage("prefill", one), a_stage("decode", other, after=["prefill"]))
    pipeline = a_pipeline(*stages, rate_rps=random_.uniform(1, 14), sla_s=random_.uniform(0.8, 2.0))
    pool = Pool(name=GPU, price_per_hour=PRICE, instances=random_.choice([4, 7, 12, 20]))
    return Problem(
        pipelines=(replace(pipeline, basis=basis, budget_per_hour=random_.choice([None, 40.0])),),
        pools={GPU: pool},
        composition=Composition.SUM,
    )


def cheapest(problem: Problem) -> float | None:
    (pipeline,) = problem.pipelines
    own = [stage.placements[0] for stage in pipeline.stages]
    best = None
    for counts in itertools.product(*(range(1, each.max_replicas + 1) for each in own)):
        parts = [Fraction(count, each.per_instance) for each, count in zip(own, counts, strict=True)]
        if ceil(sum(parts)) > problem.pools[GPU].instances:
            continue
        taken = sum(parts) if pipeline.basis is Basis.REPLICAS else ceil(sum(parts))
        cost = float(taken) * PRICE
        if pipeline.budget_per_hour is not None and cost > pipeline.budget_per_hour + 1e-9:
            continue
        replicas: dict[PlacementKey, int] = {
            (stage.name, GPU): count for stage, count in zip(pipeline.stages, counts, strict=True)
        }
        latency_s = predicted_latency_s(pipeline, replicas, {}, composition=Composition.SUM)
        if latency_s is not None and latency_s <= pipeline.sla.latency_s and (best is None or cost < best):
            best = cost
    return best


@pytest.mark.parametrize("basis", list(Basis))
@pytest.mark.parametrize("seed", range(60))
def test_a_group_is_priced_packed_and_counted_as_the_instances_that_it_takes(seed: int, basis: Basis) -> None:
    problem = a_problem(seed, basis)
    (answer,) = allocate(problem).pipelines
    best = cheapest(problem)
    assert answer.feasible == (best is not None)
    if best is None:
        return
    assert answer.cost_per_hour == pytest.approx(best)
    replicas = answer.replicas()
    taken = [
        (own.per_instance, replicas[stage.name, own.name])
        for stage in problem.pipelines[0].stages
        for own in stage.placements
    ]
    assert whole_instances(taken) <= problem.pools[GPU].instances


def test_groups_leave_nothing_of_their_instances_to_share() -> None:
    """Groups on two and three instances beside replicas of which two share one."""
    assert whole_instances([(Fraction(1, 2), 3), (Fraction(1, 3), 1), (2, 3)]) == 6 + 3 + 2
    assert whole_instances([(Fraction(1, 4), 1), (2, 1), (4, 2)]) == 4 + 1
