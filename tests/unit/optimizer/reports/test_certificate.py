from dataclasses import replace

import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.allocate import allocate
from optimizer.model import Pipeline, Problem
from optimizer.reports.certificate import certified_plan


def asr(name: str, *on_pools: str, rate_rps: float = 100.0) -> Pipeline:
    placements = [on(pool, service=(0.02, 0.0), bounds=(0, 20), per_instance=2) for pool in on_pools]
    return a_pipeline(a_stage("decoder", *placements), key=name, sla_s=0.1, rate_rps=rate_rps)


def of(*pipelines: Pipeline, budget: float | None = None) -> Problem:
    return a_problem(*pipelines, where=pools(cpu=(0.5, 20), inferentia=(0.76, 20), gpu=(1.01, 20)), budget=budget)


def test_the_certificate_changes_no_decision() -> None:
    problem = of(asr("a", "cpu"), asr("b", "gpu"))
    certified = certified_plan(problem, packing=True, shadow_prices=True, advice=True)
    without = replace(
        certified,
        pools=tuple(replace(pool, shadow_price_per_hour=None) for pool in certified.pools),
        lower_bound_per_hour=None,
        packing=None,
    )
    assert without == allocate(problem)


def test_a_plan_of_the_bound_is_proven_optimal() -> None:
    plan = certified_plan(of(asr("a", "cpu")))
    assert plan.gap == pytest.approx(0)
    assert plan.proven_optimal


def test_a_plan_of_parts_is_proven_if_those_of_all_are() -> None:
    plan = certified_plan(of(asr("a", "cpu"), asr("b", "gpu")))
    assert plan.proven_optimal
    assert plan.lower_bound_per_hour == pytest.approx(plan.cost_per_hour)
    assert certified_plan(of(asr("a", "cpu"), asr("b", "gpu", rate_rps=9_000.0))).lower_bound_per_hour is None


def test_a_plan_for_very_many_possible_replicas_is_proven() -> None:
    pipeline = a_pipeline(
        a_stage("asr", on("cpu", service=(0.04, 0.005), cv=0.1, bounds=(0, 1_000_000), batches=(8,))),
        rate_rps=4_000.0,
        sla_s=0.06,
    )
    assert certified_plan(a_problem(pipeline, where=pools(cpu=(1.0, 1_000_000)))).proven_optimal


def test_the_bound_leaves_out_what_switching_costs() -> None:
    pipeline = a_pipeline(a_stage("a", on("cpu", service=(0.02, 0.0), current=5)), sla_s=1.0)
    plan = certified_plan(a_problem(pipeline, switching=1.0))
    assert plan.cost_per_hour == pytest.approx(2.5)
    assert plan.lower_bound_per_hour == pytest.approx(1.5)


def test_a_shortage_has_no_bound_and_no_shadow_price() -> None:
    plan = certified_plan(of(asr("a", "cpu", rate_rps=9_000.0)), shadow_prices=True)
    assert (plan.lower_bound_per_hour, plan.gap) == (None, None)
    assert {pool.shadow_price_per_hour for pool in plan.pools} == {None}


def test_one_more_instance_of_a_scarce_pool_has_a_price() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0)), on("gpu", service=(0.02, 0.0)))
    problem = a_problem(a_pipeline(stage, sla_s=1.0), where=pools(cpu=(0.5, 2), gpu=(2.0, 9)))
    prices = {pool.name: pool.shadow_price_per_hour for pool in certified_plan(problem, shadow_prices=True).pools}
    assert prices == {"cpu": pytest.approx(1.5), "gpu": 0.0}
    assert {pool.shadow_price_per_hour for pool in certified_plan(problem).pools} == {None}


def test_advice_is_given_to_the_pipelines_that_are_short() -> None:
    served, poor = asr("a", "cpu"), replace(asr("b", "gpu"), budget_per_hour=0.5)
    plan = certified_plan(of(served, poor), advice=True)
    needed = plan.of(poor.key).advice.required_budget_per_hour
    assert needed is not None
    assert needed > 0.5
    assert (plan.of(served.key).advice.required_budget_per_hour, plan.of(served.key).advice.best_latency_s) == (
        None,
        None,
    )
    enough = replace(poor, budget_per_hour=needed)
    assert certified_plan(of(served, enough)).feasible


def test_a_packing_of_one_part_stands_beside_the_plan_of_another() -> None:
    wasteful = asr("a", "cpu", rate_rps=10.0)
    crowded = a_pipeline(
        a_stage("vad", on("gpu", service=(0.001, 0.0), bounds=(1, 9), per_instance=8)),
        a_stage(
            "asr",
            on("gpu", service=(0.002, 0.0), per_instance=8),
            on("inferentia", service=(0.001, 0.0)),
            after=["vad"],
        ),
        key="b",
        sla_s=1.0,
        rate_rps=10.0,
    )
    plan = certified_plan(of(wasteful, crowded), packing=True)
    alone = certified_plan(of(crowded), packing=True)
    if alone.packing is None:
        assert plan.packing is None
    else:
        assert plan.packing is not None
        assert set(plan.packing.replicas) == {(one.key, *key) for one in plan.pipelines for key in one.replicas()}
