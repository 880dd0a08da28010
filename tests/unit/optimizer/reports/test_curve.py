import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.model import Demand
from optimizer.reports.curve import frontier, load_sweep

STAGES = (
    a_stage("a", on("cpu", service=(0.02, 0.0), bounds=(1, 30)), on("gpu", service=(0.005, 0.0), bounds=(0, 30))),
    a_stage("b", on("cpu", service=(0.02, 0.0), bounds=(1, 30)), on("gpu", service=(0.005, 0.0)), after=["a"]),
)


def test_the_curve_goes_from_the_cheapest_to_the_fastest_and_says_what_to_run() -> None:
    curve = frontier(a_problem(a_pipeline(*STAGES, budget=0.1, sla_s=0.001)), a_pipeline(*STAGES).key)
    costs = [corner.cost_per_hour for corner in curve.corners]
    assert len(costs) > 3
    assert costs == sorted(set(costs))
    assert [c.latency_s for c in curve.corners] == sorted({c.latency_s for c in curve.corners}, reverse=True)
    for corner in curve.corners:
        prices = {"cpu": 0.5, "gpu": 2.0}
        assert sum(prices[p.pool] * p.replicas for _, plans in corner.placements for p in plans) == pytest.approx(
            corner.cost_per_hour
        )
        assert [name for name, _ in corner.placements] == ["a", "b"]


def test_a_short_curve_keeps_both_ends() -> None:
    problem = a_problem(a_pipeline(*STAGES))
    whole = frontier(problem, problem.pipelines[0].key)
    short = frontier(problem, problem.pipelines[0].key, most_corners=6)
    assert not whole.thinned
    assert short.thinned
    assert len(short.corners) <= 6 < len(whole.corners)
    assert short.corners[0] == whole.corners[0]
    assert short.corners[-1].latency_s == pytest.approx(whole.corners[-1].latency_s, rel=1e-5)


def test_a_load_that_no_pool_carries_has_no_curve() -> None:
    problem = a_problem(a_pipeline(*STAGES, rate_rps=1e6), where=pools(cpu=(0.5, 1), gpu=(2.0, 1)))
    assert frontier(problem, problem.pipelines[0].key).corners == ()


def test_a_sweep_plans_at_every_load_and_prices_a_unit_where_all_is_served() -> None:
    problem = a_problem(a_pipeline(*STAGES, sla_s=1.0), where=pools(cpu=(0.5, 8), gpu=(2.0, 0)))
    demands = [Demand(entry_rate_rps=rate) for rate in (0.0, 90.0, 1e5)]
    nothing, some, too_much = load_sweep(problem, problem.pipelines[0].key, demands)
    assert nothing.cost_per_rps_hour is None
    assert some.cost_per_rps_hour == pytest.approx(some.plan.cost_per_hour / 90.0)
    assert some.cost_per_session_hour is None
    assert too_much.cost_per_rps_hour is None
    assert not too_much.plan.feasible
