"""Budgets that count whole instances: no plan costs more, and plans cost what the nodes do that they fill."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from whole_instances import a_random_fleet, bills, counts_of

from optimizer.allocate import allocate
from optimizer.model import Basis
from optimizer.reports.certificate import certified_plan


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32))
def test_no_plan_costs_more_than_a_budget_and_its_cost_is_that_of_the_nodes(seed: int) -> None:
    problem = a_random_fleet(seed)
    plan = allocate(problem)
    paid = bills(problem, counts_of(plan))
    for pipeline in problem.pipelines:
        own = plan.of(pipeline.key)
        assert own.cost_per_hour == pytest.approx(paid[pipeline.key], abs=1e-6)
        assert pipeline.budget_per_hour is None or paid[pipeline.key] <= pipeline.budget_per_hour + 1e-6
        assert own.feasible == (own.served_fraction >= 1)
    assert problem.budget_per_hour is None or sum(paid.values()) <= problem.budget_per_hour + 1e-6
    for group in problem.budgets:
        assert sum(paid[key] for key in group.pipelines) <= group.per_hour + 1e-6
    assert plan.cost_per_hour == pytest.approx(sum(paid.values()), abs=1e-6)
    for pool in plan.pools:
        assert pool.instances <= pool.limit


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_what_pipelines_pay_for_whole_instances_adds_up_to_the_bill(seed: int) -> None:
    problem = a_random_fleet(seed, budgets=False, only_instances=True)
    plan = allocate(problem)
    if any(count for pool in problem.pools.values() for _, count in pool.held):
        assert plan.cost_per_hour >= 0
        return
    bill = sum(problem.pools[pool.name].bill_per_hour(pool.instances) for pool in plan.pools)
    assert plan.cost_per_hour == pytest.approx(bill, abs=1e-6)
    assert plan.billed_per_hour == pytest.approx(bill, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
@example(2148)  # 1, 2 and 3 replicas per instance: a plan without those of 3 shares instances
def test_the_lower_bound_is_below_the_cost(seed: int) -> None:
    problem = a_random_fleet(seed)
    plan = certified_plan(problem)
    if plan.lower_bound_per_hour is not None:
        assert plan.lower_bound_per_hour <= plan.cost_per_hour + 1e-6
    if not any(pipeline.basis is Basis.INSTANCES for pipeline in problem.pipelines):
        assert plan.cost_per_hour == pytest.approx(sum(own.cost_per_hour for own in plan.pipelines))
