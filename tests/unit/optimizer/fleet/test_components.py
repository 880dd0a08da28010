from dataclasses import replace

import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.allocate import allocate
from optimizer.fleet.components import components_of
from optimizer.model import Pipeline, Problem


def asr(name: str, *on_pools: str, rate_rps: float = 100.0) -> Pipeline:
    placements = [on(pool, service=(0.02, 0.0), bounds=(0, 20), per_instance=2) for pool in on_pools]
    return a_pipeline(a_stage("decoder", *placements), key=name, sla_s=0.1, rate_rps=rate_rps)


def of(*pipelines: Pipeline, budget: float | None = None) -> Problem:
    return a_problem(*pipelines, where=pools(cpu=(0.5, 20), inferentia=(0.76, 20), gpu=(1.01, 20)), budget=budget)


def keys(problem: Problem) -> list[list[str]]:
    return sorted(sorted(pipeline.key for pipeline in part.pipelines) for part in components_of(problem))


def test_those_that_share_a_pool_are_one_part_through_others_too() -> None:
    a, b, c = asr("a", "cpu"), asr("b", "gpu"), asr("c", "cpu", "gpu")
    assert keys(of(a, b)) == [[a.key], [b.key]]
    assert keys(of(a, b, c)) == [sorted([a.key, b.key, c.key])]


def test_a_budget_for_all_makes_one_part_of_all() -> None:
    assert len(components_of(of(asr("a", "cpu"), asr("b", "gpu"), budget=1.0))) == 1


def test_every_pool_is_in_one_part() -> None:
    parts = components_of(of(asr("a", "gpu"), asr("b", "cpu")))
    assert sorted(name for part in parts for name in part.pools) == ["cpu", "gpu", "inferentia"]


def test_a_plan_of_parts_is_that_of_each_alone() -> None:
    a, short = asr("a", "cpu"), asr("b", "gpu", rate_rps=9_000.0)
    together = allocate(of(a, short))
    assert together.of(a.key) == allocate(of(a)).of(a.key)
    assert together.of(short.key) == allocate(of(short)).of(short.key)
    assert not together.feasible
    assert [pool.name for pool in together.pools] == ["cpu", "gpu", "inferentia"]
    assert together.cost_per_hour == pytest.approx(sum(one.cost_per_hour for one in together.pipelines))


def test_the_order_of_pipelines_makes_no_difference() -> None:
    pipelines = [asr(name, pool) for name, pool in (("a", "gpu"), ("b", "cpu"), ("c", "inferentia"))]
    one, other = allocate(of(*pipelines)), allocate(of(*reversed(pipelines)))
    assert replace(other, pipelines=one.pipelines) == one
    assert {answer.key: answer for answer in other.pipelines} == {answer.key: answer for answer in one.pipelines}
