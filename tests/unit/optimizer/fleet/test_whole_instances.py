"""Plans whose budgets count whole instances, as users meet them."""

from dataclasses import replace

import pytest
from problems import a_pipeline, a_stage, on, pools

from optimizer.allocate import allocate
from optimizer.model import Basis, Composition, Pipeline, PoolName, Problem
from optimizer.plan import LimitKind
from optimizer.reports.certificate import certified_plan

GPU, CPU = PoolName("gpu"), PoolName("cpu")


def whole(pipeline: Pipeline) -> Pipeline:
    return replace(pipeline, basis=Basis.INSTANCES)


def two_stages(*, budget: float | None = None) -> Pipeline:
    """A small stage that a quarter of a cheap node serves, or a replica on the expensive node that the other needs."""
    vad = a_stage(
        "vad", on("cpu", service=(0.005, 0.0), per_instance=4), on("gpu", service=(0.005, 0.0), per_instance=2)
    )
    encoder = a_stage("encoder", on("gpu", per_instance=2))
    return a_pipeline(vad, encoder, rate_rps=20.0, budget=budget)


def problem(pipeline: Pipeline, **limits: int) -> Problem:
    there = {"cpu": (1.0, 5), "gpu": (3.0, 5), **{name: (3.0, count) for name, count in limits.items()}}
    return Problem(pipelines=(pipeline,), pools=pools(**there), composition=Composition.SUM)


def test_a_replica_moves_into_an_instance_that_is_paid_for() -> None:
    shares = allocate(problem(two_stages()))
    assert shares.of(two_stages().key).replicas()[two_stages().stages[0].name, CPU] == 1
    assert shares.cost_per_hour == pytest.approx(0.25 + 1.5)
    plan = certified_plan(problem(whole(two_stages())))
    assert plan.of(two_stages().key).replicas()[two_stages().stages[0].name, CPU] == 0
    assert plan.cost_per_hour == plan.billed_per_hour == pytest.approx(3.0)
    assert plan.proven_optimal


def test_a_budget_below_the_price_of_a_whole_instance_serves_nothing() -> None:
    served = allocate(problem(whole(two_stages(budget=3.0))))
    assert served.feasible
    plan = allocate(problem(whole(two_stages(budget=2.9))))
    own = plan.pipelines[0]
    assert (own.served_fraction, plan.cost_per_hour) == (0.0, 0.0)
    assert own.limited_by is not None
    assert own.limited_by.kind is LimitKind.BUDGET


def test_a_budget_serves_what_its_whole_instances_carry() -> None:
    stage = a_stage("encoder", on("gpu", per_instance=4, bounds=(0, 40)))
    busy = whole(a_pipeline(stage, rate_rps=600.0, budget=10.0))
    plan = allocate(problem(busy))
    own = plan.pipelines[0]
    assert not own.feasible
    assert own.cost_per_hour == pytest.approx(9.0)
    assert own.replicas()[stage.name, GPU] >= 11, "three instances take twelve"


def test_the_required_budget_is_that_of_whole_instances() -> None:
    stage = a_stage("encoder", on("gpu", per_instance=4, bounds=(0, 40)))
    busy = whole(a_pipeline(stage, rate_rps=200.0, budget=2.0))
    advice = certified_plan(problem(busy), advice=True).pipelines[0].advice
    assert advice.required_budget_per_hour is not None
    assert advice.required_budget_per_hour % 3.0 == pytest.approx(0.0)
    enough = replace(busy, budget_per_hour=advice.required_budget_per_hour)
    assert allocate(problem(enough)).feasible


def test_running_nodes_are_planned_at_their_own_prices() -> None:
    question = problem(whole(two_stages()))
    cheap = replace(question.pools[GPU], node_prices_per_hour=(2.0,))
    plan = certified_plan(replace(question, pools={**question.pools, GPU: cheap}))
    assert plan.cost_per_hour == pytest.approx(2.0)
    assert plan.proven_optimal


def test_instances_that_others_use_are_shared_with_them() -> None:
    question = problem(whole(two_stages()))
    held = replace(question.pools[GPU], held=((2, 1),))  # half of an instance that runs anyway
    plan = allocate(replace(question, pools={**question.pools, GPU: held}))
    assert plan.cost_per_hour == pytest.approx(1.0 + 1.5), "a second gpu for the small stage would cost more"


def test_in_a_replayed_plan_rows_are_exchanged_too() -> None:
    question = replace(problem(whole(two_stages())), composition=Composition.RSS)
    assert allocate(question).cost_per_hour == pytest.approx(3.0)
