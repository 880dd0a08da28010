"""Smaller budgets for searches that do not see the empty rest of instances."""

import pytest
from problems import a_pipeline, a_stage, on, pools

from optimizer.model import PipelineKey, Problem
from optimizer.overload.tightening import Tightening

A, B = PipelineKey("speech/a"), PipelineKey("speech/b")


def tightening(*, fleet: float | None = None) -> Tightening:
    stage = a_stage("s", on("cpu"))
    pipelines = a_pipeline(stage, key=A, budget=10.0), a_pipeline(stage, key=B, priority=1)
    return Tightening(problem=Problem(pipelines=pipelines, pools=pools(cpu=(1.0, 5)), budget_per_hour=fleet))


def test_at_first_the_budgets_are_the_real_ones() -> None:
    state = tightening()
    assert state.tightened() is state.problem
    assert state.excesses({A: 10.0, B: 99.0}) == {}


def test_a_budget_is_lowered_by_what_the_whole_instances_cost_more() -> None:
    state = tightening()
    excesses = state.excesses({A: 12.5, B: 99.0})
    assert excesses == {A: pytest.approx(0.8)}
    state.lower(excesses, {A: 9.0, B: 50.0})
    assert [own.budget_per_hour for own in state.tightened().pipelines] == [pytest.approx(7.2), None]


def test_a_budget_that_leaves_demand_out_is_raised_towards_the_one_that_was_too_high() -> None:
    state = tightening()
    state.lower({A: 0.5}, {A: 10.0, B: 0.0})
    assert not state.raise_for(frozenset({B})), "b has no budget that was lowered"
    assert state.raise_for(frozenset({A}))
    assert state.tightened().pipelines[0].budget_per_hour == pytest.approx(7.5)
    state.lower({A: 0.9}, {A: 7.4, B: 0.0})
    assert state.tightened().pipelines[0].budget_per_hour == pytest.approx((5.0 + 7.4) / 2)


def most_replicas(state: Tightening) -> list[int]:
    return [own.stages[0].placements[0].max_replicas for own in state.tightened().pipelines]


def test_the_budget_of_all_is_withdrawn_from_the_least_important_that_costs() -> None:
    state = tightening(fleet=20.0)
    excesses = state.excesses({A: 10.0, B: 15.0})
    assert excesses == {None: pytest.approx(0.8)}
    state.lower(excesses, {A: 8.0, B: 15.0})
    state.withdraw(excesses, {A: 10.0, B: 15.0})
    assert most_replicas(state) == [0, 10]
    state = tightening(fleet=20.0)
    state.lower({None: 0.5}, {A: 0.0, B: 15.0})
    state.withdraw({None: 0.5}, {A: 0.0, B: 15.0})
    assert most_replicas(state) == [10, 0]
