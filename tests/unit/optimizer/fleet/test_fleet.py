import math

import numpy as np
import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.fleet.fleet import Answers, Fleet, by_priority, serve
from optimizer.model import Mixing, Pipeline, Problem
from optimizer.search.tables import supply_of


def a_fleet(problem: Problem) -> Fleet:
    return Fleet(problem, supply_of(problem))


def together(problem: Problem, budget: float = math.inf) -> Answers | None:
    fleet = a_fleet(problem)
    return fleet.together({p.key: 1.0 for p in problem.pipelines}, fleet.supply.limits, budget)


def flexible(key: str, *, cpu_s: float = 0.02, gpu_s: float = 0.02, priority: int = 0, **more: float) -> Pipeline:
    """Return a pipeline that runs on cpu (cheap) or gpu (dear)."""
    stage = a_stage("a", on("cpu", service=(cpu_s, 0.0)), on("gpu", service=(gpu_s, 0.0)))
    return a_pipeline(stage, key=key, priority=priority, sla_s=1.0, budget=more.get("budget"))


def test_a_budget_below_the_cheapest_plan_leaves_none() -> None:
    fleet = a_fleet(a_problem(flexible("x/a")))
    subproblem = fleet.subproblem(fleet.problem.pipelines[0], 1.0)
    walk = serve(subproblem, math.inf)
    assert walk is not None
    cost = subproblem.cost_per_hour(walk.answer)
    assert serve(subproblem, cost) is not None
    assert serve(subproblem, cost - 0.01) is None


def test_saving_switches_does_not_break_the_budget() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0), current=8))
    problem = a_problem(a_pipeline(stage, sla_s=1.0, budget=2.0), switching=5.0)
    answers = together(problem)
    assert answers is not None
    assert sum(answer.cost_per_hour for answer in answers.values()) <= 2.0


def test_pipelines_that_fit_get_what_each_would_alone() -> None:
    both = together(a_problem(flexible("x/a"), flexible("x/b")))
    alone = together(a_problem(flexible("x/a")))
    assert both is not None
    assert alone is not None
    assert both[flexible("x/a").key].choice == alone[flexible("x/a").key].choice


def test_a_scarce_pool_goes_to_whom_it_saves_most() -> None:
    # Both fit on cpu only one at a time; on gpu, b needs three times as many.
    problem = a_problem(flexible("x/a"), flexible("x/b", gpu_s=0.06), where=pools(cpu=(0.5, 3), gpu=(2.0, 20)))
    answers = together(problem)
    assert answers is not None
    assert answers[problem.pipelines[1].key].use.tolist() == [3, 0]
    assert answers[problem.pipelines[0].key].use.tolist() == [0, 3]


def test_together_they_stay_within_the_fleets_budget() -> None:
    problem = a_problem(flexible("x/a"), flexible("x/b"))
    assert together(problem, budget=3.0) is not None
    assert together(problem, budget=2.9) is None


def test_stages_that_compete_for_a_pool_may_mix() -> None:
    # a needs 3 cpus, c a gpu; b is left with 2 cpus and a gpu, which fills neither pool by itself.
    cpu, gpu = on("cpu", service=(0.02, 0.0)), on("gpu", service=(0.02, 0.0))
    problem = a_problem(
        a_pipeline(
            a_stage("a", cpu), a_stage("b", cpu, gpu, after=["a"]), a_stage("c", on("gpu"), after=["b"]), sla_s=1.0
        ),
        where=pools(cpu=(0.5, 5), gpu=(2.0, 4)),
    )
    answers = together(problem)
    assert answers is not None
    (answer,) = answers.values()
    assert answer.mixing is Mixing.ANY
    assert np.all(answer.use <= [5, 4])


def test_the_bound_is_the_cost_where_nothing_is_contended() -> None:
    problem = a_problem(flexible("x/a"), flexible("x/b"))
    answers = together(problem)
    assert answers is not None
    bound = a_fleet(problem).lower_bound_per_hour(answers)
    assert bound == pytest.approx(sum(answer.cost_per_hour for answer in answers.values()))


def test_the_bound_of_a_contended_pool_is_above_that_of_plenty() -> None:
    problem = a_problem(flexible("x/a"), flexible("x/b"), where=pools(cpu=(0.5, 3), gpu=(2.0, 20)))
    answers = together(problem)
    assert answers is not None
    cost = sum(answer.cost_per_hour for answer in answers.values())
    bound = a_fleet(problem).lower_bound_per_hour(answers)
    assert bound is not None
    assert 3.0 < bound <= cost + 1e-9


def test_the_most_important_come_first_and_equals_by_name() -> None:
    named = [flexible("x/c"), flexible("x/a"), flexible("x/b", priority=5)]
    assert [pipeline.key for pipeline in by_priority(named)] == ["x/b", "x/a", "x/c"]
