import math

import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.fleet.fleet import Fleet
from optimizer.model import Problem
from optimizer.plan import Advice
from optimizer.reports.advice import advise
from optimizer.search.tables import supply_of

SERVES_45 = on("cpu", service=(0.02, 0.0), bounds=(1, 50))
"""At the highest utilisation, a replica serves 45/s; it costs 0.5."""


def advice(problem: Problem, budget: float = math.inf) -> Advice:
    fleet = Fleet(problem, supply_of(problem))
    return advise(fleet, problem.pipelines[0], fleet.supply.limits, budget)


def test_a_budget_too_small_is_told_what_would_do() -> None:
    problem = a_problem(a_pipeline(a_stage("a", SERVES_45), rate_rps=180.0, sla_s=1.0, budget=1.0))
    assert advice(problem) == Advice(required_budget_per_hour=2.0, best_latency_s=None)


def test_no_money_helps_against_a_full_pool() -> None:
    problem = a_problem(a_pipeline(a_stage("a", SERVES_45), rate_rps=180.0, sla_s=1.0), where=pools(cpu=(0.5, 3)))
    assert advice(problem).required_budget_per_hour is None


def test_an_sla_out_of_reach_has_a_best_latency_and_no_budget() -> None:
    answer = advice(a_problem(a_pipeline(a_stage("a", SERVES_45), rate_rps=10.0, sla_s=0.001)))
    assert answer.required_budget_per_hour is None
    assert answer.best_latency_s is not None
    assert 0.02 <= answer.best_latency_s < 0.04


def test_what_switching_costs_is_no_money_of_the_budget() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0), bounds=(1, 50), current=20))
    problem = a_problem(a_pipeline(stage, rate_rps=180.0, sla_s=1.0), switching=5.0)
    assert advice(problem).required_budget_per_hour == pytest.approx(2.0)


def test_the_best_latency_is_that_of_the_smaller_budget() -> None:
    problem = a_problem(a_pipeline(a_stage("a", SERVES_45), rate_rps=100.0, sla_s=1.0, budget=9.0))
    latencies = [advice(problem, budget).best_latency_s for budget in (1.5, 2.5, 9.0, 90.0)]
    assert all(latency is not None for latency in latencies)
    assert latencies[0] > latencies[1] > latencies[2] * 0.999  # type: ignore[operator]
    assert latencies[2] == latencies[3]


def test_without_load_there_is_a_best_latency_too() -> None:
    answer = advice(a_problem(a_pipeline(a_stage("a", SERVES_45), rate_rps=0.0, sla_s=0.001)))
    assert answer.best_latency_s is not None
    assert 0.02 <= answer.best_latency_s < 0.04
