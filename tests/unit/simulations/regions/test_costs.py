"""The costs of a region: those of plans, with a curve below that no plan undercuts."""

import pytest
from region_files import EAST, WEST, write_regions

from controller.core.assess.optimizer_input import optimizer_pipeline
from controller.core.state.spec import PipelineSpec
from optimizer.allocate import allocate
from optimizer.model import Problem
from simulations.regions.costs import MOST_TIERS, Curve, carried, costs_of, paid_anyway, tier_ways
from simulations.regions.model import Step, Tier
from simulations.regions.scenario import load_regions
from simulations.regions.study import problem_of


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> tuple[Problem, PipelineSpec]:
    path = write_regions(tmp_path_factory.mktemp("costs"), {"east": EAST, "west": WEST}, instances=6)
    return problem_of(load_regions(path).clusters[0])


def cost_at(tier: Tier, load: float) -> float:
    return next(step.cost_per_hour for step in tier.steps if step.load >= load)


def test_plans_of_other_loads_are_between_the_two_curves(region: tuple[Problem, PipelineSpec]) -> None:
    problem, spec = region
    found = costs_of(problem, spec, 60.0, [0.0, 0.1], points=12)
    (pool,) = problem.pools.values()
    assert pool.instances == 6
    for load in range(1, 60, 7):
        demand = optimizer_pipeline(spec, float(load))
        plan = allocate(Problem(pipelines=(demand,), pools=problem.pools, composition=problem.composition))
        (mine,) = plan.pipelines
        assert mine.feasible
        assert cost_at(found.least[0], load) <= mine.cost_per_hour <= cost_at(found.tiers[0], load)


def test_curves_end_where_the_pool_ends(region: tuple[Problem, PipelineSpec]) -> None:
    problem, spec = region
    found = costs_of(problem, spec, 10_000.0, [0.0], points=8)
    most = found.tiers[0].steps[-1]
    assert most.cost_per_hour == 6
    assert 60 < most.load < 100  # six replicas of 50 items/s, at 3.1 items/s for each stream
    assert found.least[0].steps[-1].load == pytest.approx(most.load, rel=0.02)


def test_a_way_that_takes_the_sla_has_no_tier(region: tuple[Problem, PipelineSpec]) -> None:
    problem, spec = region
    found = costs_of(problem, spec, 20.0, [0.0, 0.1, 0.4, 0.6], points=4)
    assert [tier.way_s for tier in found.tiers] == [0.0, 0.1]


def test_further_users_leave_less_for_the_same_replicas(region: tuple[Problem, PipelineSpec]) -> None:
    problem, spec = region
    found = costs_of(problem, spec, 60.0, [0.0], points=6)
    step = found.tiers[0].steps[-1]
    plan = found.plan(found.tiers[0], step)
    loads = [
        carried(problem, spec, plan, planned_way_s=0.0, way_s=way_s, most=200.0) for way_s in (0.0, 0.2, 0.35, 0.39)
    ]
    assert loads == sorted(loads, reverse=True)
    assert loads[0] >= step.load * 0.9
    assert loads[-1] == pytest.approx(0.0, abs=0.01)  # an item takes 20 ms


def test_refined_costs_are_known_to_where_they_end(region: tuple[Problem, PipelineSpec]) -> None:
    problem, spec = region
    curve = Curve(problem, spec, 60.0, 0.0)
    curve.spread(3)
    apart = gap_at(curve, 2.0)
    curve.refine(2.0)
    assert gap_at(curve, 2.0) <= 1 < apart
    assert [step.cost_per_hour for step in curve.steps() if step.cost_per_hour <= 2][-1] == 2


def gap_at(curve: Curve, cost: float) -> float:
    """Return how far apart the loads are between which the plans for a cost end."""
    surely = max(step.load for step in curve.steps() if step.cost_per_hour <= cost)
    perhaps = max(step.load for step in curve.least() if step.cost_per_hour <= cost)
    return perhaps - surely


def test_ways_of_similar_length_share_a_tier_and_the_longest_stays(region: tuple[Problem, PipelineSpec]) -> None:
    assert tier_ways([0.0, 0.1]) == [0.0, 0.1]
    assert tier_ways([0.0, 0.1, 0.11, 0.2, 0.205]) == [0.0, 0.11, 0.205]
    problem, spec = region
    ways_s = [0.0, 0.1, 0.11, 0.2, 0.205]
    found = costs_of(problem, spec, 20.0, ways_s, points=3)
    assert len(found.tiers) == len(found.least) == MOST_TIERS
    for way_s in ways_s:  # a way has the costs of a longer one, and the bound those of a shorter one
        assert next(tier for tier in found.tiers if tier.way_s >= way_s).way_s >= way_s
    assert [tier.way_s for tier in found.least] == [0.1, 0.2, 0.205]


def test_the_least_cost_rises_with_the_way(region: tuple[Problem, PipelineSpec]) -> None:
    problem, spec = region
    found = costs_of(problem, spec, 60.0, [0.0, 0.3], points=12)
    far = Curve(problem, spec, 60.0, 0.3)
    far.spread(4)
    few = type(found)(curves=(found.curves[0], far), reach_s=(0.0, 0.3))
    for load in range(1, 40, 3):
        assert cost_at(few.least[1], load) >= cost_at(few.least[0], load)


def test_steps_below_what_is_paid_anyway_become_one() -> None:
    steps = (Step(load=5.0, cost_per_hour=1.0), Step(load=10.0, cost_per_hour=2.0), Step(load=20.0, cost_per_hour=4.0))
    (tier,) = paid_anyway([Tier(way_s=0.1, steps=steps)], 2.0)
    assert tier == Tier(way_s=0.1, steps=steps[1:])
    (tier,) = paid_anyway([Tier(way_s=0.1, steps=steps)], 9.0)
    assert tier.steps == (Step(load=20.0, cost_per_hour=9.0),)


def test_without_any_load_the_least_replicas_are_all(region: tuple[Problem, PipelineSpec]) -> None:
    problem, spec = region
    found = costs_of(problem, spec, 0.0, [0.0, 0.1])
    assert [len(tier.steps) for tier in (*found.tiers, *found.least)] == [1, 1, 1, 1]
