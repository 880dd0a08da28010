"""Devices are compared by whole plans, and a break-even load is one from which the other device is cheaper."""

from dataclasses import replace

import pytest
from problems import a_pipeline, a_stage, on

from optimizer.allocate import allocate
from optimizer.model import Demand, Pool, PoolName, Problem, StageName
from optimizer.reports.devices import Devices, replicas_by_work

CPU, GPU = PoolName("cpu"), PoolName("gpu")
ASR = StageName("asr")


def a_problem(rate_rps: float = 40.0) -> Problem:
    """A slow cheap device and a fast dear one; bounds, budget and pools are too small for anything."""
    stages = (
        a_stage("vad", on("cpu", service=(0.005, 0.0))),
        a_stage(
            "asr",
            on("cpu", service=(0.08, 0.0), bounds=(1, 1)),
            on("gpu", service=(0.012, 0.001), batches=(8,), bounds=(0, 1)),
            after=("vad",),
        ),
    )
    pipeline = replace(a_pipeline(*stages, rate_rps=rate_rps, sla_s=0.3), budget_per_hour=0.5)
    pools = {name: Pool(name=name, price_per_hour=price, instances=1) for name, price in ((CPU, 0.4), (GPU, 2.0))}
    return Problem(pipelines=(pipeline,), pools=pools, budget_per_hour=0.1)


def devices() -> Devices:
    problem = a_problem()
    return Devices(problem, problem.pipelines[0].key)


def test_bounds_budgets_and_pools_do_not_count_for_hardware_that_is_still_to_be_chosen() -> None:
    demand = Demand(entry_rate_rps=200.0)
    (refused,) = allocate(a_problem(200.0)).pipelines
    assert not refused.feasible
    for name in (CPU, GPU):
        plan = devices().plan(demand, ASR, name)
        assert plan.feasible
        assert {own.name for own in plan.stages[1].placements if own.replicas} == {name}


def test_the_cheapest_plan_is_no_dearer_than_any_device_alone() -> None:
    compared = devices()
    for rate_rps in (10.0, 60.0, 200.0):
        demand = Demand(entry_rate_rps=rate_rps)
        least = min(compared.cost_per_hour(demand, ASR, name) for name in (CPU, GPU))
        assert compared.plan(demand).cost_per_hour <= least + 1e-9


def test_from_a_break_even_load_on_the_other_device_is_cheaper_and_just_below_it_is_not() -> None:
    compared = devices()
    demands = [Demand(entry_rate_rps=10.0 * k) for k in range(1, 21)]
    (found,) = compared.break_evens(ASR, demands)
    assert (found.cheaper, found.other) == (GPU, CPU)
    for demand in [found.demand, *(each for each in demands if each.entry_rate_rps >= found.demand.entry_rate_rps)]:
        assert compared.cost_per_hour(demand, ASR, GPU) < compared.cost_per_hour(demand, ASR, CPU)
    below = found.demand.scaled(0.97)
    assert compared.cost_per_hour(below, ASR, GPU) >= compared.cost_per_hour(below, ASR, CPU)


def test_the_mix_adds_up_to_the_plan() -> None:
    for point in devices().mix([Demand(entry_rate_rps=rate) for rate in (10.0, 120.0)]):
        assert sum(point.cost_per_hour.values()) == pytest.approx(point.plan.cost_per_hour)
        assert all(count >= 1 for count in point.instances.values())


def test_plain_arithmetic_of_ten_thousand_streams() -> None:
    assert replicas_by_work(10_000, 0.35, 0.7) == 5_000
