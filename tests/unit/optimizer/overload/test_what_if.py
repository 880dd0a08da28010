import math

import numpy as np
import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.fleet.fleet import Fleet
from optimizer.model import Problem
from optimizer.overload.overload import BUDGET
from optimizer.overload.what_if import SLA, WhatIf
from optimizer.plan import Limit, LimitKind
from optimizer.search.tables import supply_of

SERVES_45 = on("cpu", service=(0.02, 0.0), bounds=(1, 4))
"""At the highest utilisation, a replica serves 45/s; it costs 0.5."""


def two_stages(*, rate_rps: float = 100.0, sla_s: float = 1.0, cpus: int = 20) -> Problem:
    return a_problem(
        a_pipeline(
            a_stage("a", SERVES_45), a_stage("b", SERVES_45, after=["a"]), key="x/a", rate_rps=rate_rps, sla_s=sla_s
        ),
        where=pools(cpu=(0.5, cpus)),
    )


def what_if(problem: Problem) -> WhatIf:
    return WhatIf(Fleet(problem, supply_of(problem)), problem.pipelines[0])


def capacity(problem: Problem) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([pool.instances for pool in problem.pools.values()], dtype=np.int64)


def test_an_answer_is_the_cheapest_within_the_budget() -> None:
    problem = two_stages()
    answer = what_if(problem).answer(1.0, capacity(problem))
    assert answer is not None
    assert answer.cost_per_hour == pytest.approx(3.0)  # 3 replicas of each stage
    assert what_if(problem).answer(1.0, capacity(problem), 3.0) is not None
    assert what_if(problem).answer(1.0, capacity(problem), 2.9) is None


def test_a_smaller_share_takes_less() -> None:
    problem = two_stages()
    answer = what_if(problem).answer(0.4, capacity(problem))
    assert answer is not None
    assert answer.cost_per_hour == pytest.approx(1.0)


def test_a_latency_takes_the_place_of_the_sla() -> None:
    problem = two_stages(sla_s=0.001)
    free = what_if(problem)
    assert free.answer(1.0, capacity(problem)) is None
    assert free.answer(1.0, capacity(problem), latency_s=1.0) is not None


def test_a_lifted_limit_does_not_apply() -> None:
    problem = two_stages(rate_rps=400.0, sla_s=0.001, cpus=12)
    bounds = [Limit(kind=LimitKind.BOUNDS, name=name) for name in ("a", "b")]
    pool = Limit(kind=LimitKind.POOL, name="cpu")
    free = what_if(problem)
    assert free.answer(1.0, capacity(problem), lifted=[SLA, *bounds]) is None
    assert free.answer(1.0, capacity(problem), lifted=[SLA, pool]) is None
    assert free.answer(1.0, capacity(problem), lifted=[pool, *bounds]) is None
    assert free.answer(1.0, capacity(problem), lifted=[SLA, pool, *bounds]) is not None
    assert str(BUDGET) == "Budget"


def test_prices_of_pools_choose_another_pool() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0)), on("gpu", service=(0.02, 0.0)))
    problem = a_problem(a_pipeline(stage, sla_s=1.0), where=pools(cpu=(0.5, 9), gpu=(2.0, 9)))
    free = what_if(problem)
    plain = free.answer(1.0, capacity(problem))
    priced = free.answer(1.0, capacity(problem), pool_prices=np.array([10.0, 0.0]))
    assert plain is not None
    assert priced is not None
    assert (plain.use[1], priced.use[0]) == (0, 0)


def test_a_larger_request_than_an_infeasible_one_is_not_searched() -> None:
    problem = two_stages(rate_rps=400.0)
    free = what_if(problem)
    assert free.answer(0.6, capacity(problem)) is None
    searches = free.searches
    assert free.answer(0.7, capacity(problem)) is None
    assert free.answer(0.6, capacity(problem) - 1, 5.0) is None
    assert free.searches == searches
    assert free.answer(0.4, capacity(problem)) is not None


def test_the_minimum_has_no_load() -> None:
    problem = two_stages(rate_rps=1e6, sla_s=0.001)
    subproblem = what_if(problem).minimum(capacity(problem))
    assert [table.replicas[:, 0].tolist() for table in subproblem.tables] == [[1], [1]]
    assert math.isinf(subproblem.latency_s)


def test_the_stage_that_carries_least_comes_first_of_those_short_alone() -> None:
    weak = on("cpu", service=(0.04, 0.0), bounds=(1, 4))
    problem = a_problem(
        a_pipeline(
            a_stage("a", SERVES_45),
            a_stage("b", weak, after=["a"]),
            a_stage("c", on("cpu", service=(0.001, 0.0)), after=["b"]),
            rate_rps=400.0,
            sla_s=1.0,
        )
    )
    assert what_if(problem).short_alone(1.0, capacity(problem), math.inf) == [1, 0]
    assert what_if(problem).short_alone(0.1, capacity(problem), math.inf) == []
