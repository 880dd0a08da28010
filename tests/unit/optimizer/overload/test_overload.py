import math
from typing import Any

import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.fleet.fleet import Fleet
from optimizer.model import Pipeline, Placement, Problem
from optimizer.overload.overload import FINE, RESOLUTION, Share, share_out
from optimizer.overload.what_if import WhatIf
from optimizer.search.tables import supply_of


def shared(problem: Problem, *, guess: float = 0.0) -> dict[str, Share]:
    fleet = Fleet(problem, supply_of(problem), shares_before={p.key: guess for p in problem.pipelines})
    budget = math.inf if problem.budget_per_hour is None else problem.budget_per_hour
    return {str(key): share for key, share in share_out(fleet, fleet.supply.limits, budget).items()}


def one(
    placement: Placement,
    *,
    key: str = "x/a",
    rate_rps: float = 400.0,
    budget: float | None = None,
    priority: int = 0,
    sla_s: float = 1.0,
) -> Pipeline:
    return a_pipeline(
        a_stage("a", placement), key=key, rate_rps=rate_rps, budget=budget, priority=priority, sla_s=sla_s
    )


SERVES_45 = on("cpu", service=(0.02, 0.0), bounds=(1, 50))
"""At the highest utilisation, a replica serves 45/s; it costs 0.5."""


def test_the_largest_share_that_the_budget_pays_is_served() -> None:
    share = shared(a_problem(one(SERVES_45, budget=2.0)))["x/a"]  # 4 replicas: 180/s
    assert share.served == pytest.approx(180 / 400, abs=1 / RESOLUTION)
    assert str(share.limit) == "Budget"


def test_of_two_demands_too_large_the_same_load_is_served() -> None:
    # A share is a step of a grid of loads, not of the demand: what was asked about before is known.
    loads = [shared(a_problem(one(SERVES_45, rate_rps=rate, budget=2.0)))["x/a"].served * rate for rate in (400, 437.3)]
    assert loads[0] == pytest.approx(loads[1], rel=1e-9)


@pytest.mark.parametrize("overload", [2.0, 21.0, 200.0])
def test_what_few_replicas_carry_is_served_whatever_the_overload(overload: float) -> None:
    few = on("cpu", service=(0.02, 0.0), bounds=(1, 5))
    share = shared(a_problem(one(few, rate_rps=225 * overload)))["x/a"]
    assert share.served * 225 * overload == pytest.approx(225, rel=0.02)


def two_stages() -> Problem:
    return a_problem(
        a_pipeline(
            a_stage("a", on("cpu", service=(0.02, 0.0), bounds=(1, 80))),
            a_stage("b", on("cpu", service=(0.01, 0.002), batches=(1, 4, 8), bounds=(1, 80)), after=("a",)),
            key="x/a",
            rate_rps=1000.0,
            sla_s=0.2,
            budget=8.0,
        )
    )


@pytest.mark.parametrize("guess", [0.0, 0.001, 0.3, 0.5, 0.52, 0.54, 0.9, 1.0])
def test_what_is_served_does_not_depend_on_the_guess_where_to_look(guess: float) -> None:
    problem = two_stages()
    alone = shared(problem)["x/a"]
    told = shared(problem, guess=guess)["x/a"]
    assert 0.2 < alone.served < 0.95
    assert (told.served, told.limit) == (alone.served, alone.limit)
    assert alone.answer is not None
    assert told.answer is not None
    assert told.answer.choice == alone.answer.choice


def test_a_good_guess_saves_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    answer = WhatIf._answer

    def counted(question: WhatIf, what: Any, *more: Any, **named: Any) -> Any:
        asked.append(what.share)
        return answer(question, what, *more, **named)

    monkeypatch.setattr(WhatIf, "_answer", counted)
    served = shared(two_stages())["x/a"].served
    alone = len(asked)
    shared(two_stages(), guess=served)
    assert len(asked) - alone < 0.75 * alone


def test_a_pool_that_is_full_is_named() -> None:
    share = shared(a_problem(one(SERVES_45), where=pools(cpu=(0.5, 4))))["x/a"]
    assert share.served == pytest.approx(180 / 400, abs=1 / RESOLUTION)
    assert str(share.limit) == "Pool/cpu"


def test_a_bound_is_named_with_its_stage() -> None:
    share = shared(a_problem(one(on("cpu", service=(0.02, 0.0), bounds=(1, 4)))))["x/a"]
    assert share.served == pytest.approx(180 / 400, abs=1 / RESOLUTION)
    assert str(share.limit) == "Bounds/a"


def test_an_sla_that_nothing_reaches_serves_nothing_and_buys_nothing() -> None:
    share = shared(a_problem(one(SERVES_45, sla_s=0.01)))["x/a"]
    assert share.served == 0
    assert str(share.limit) == "Sla"
    assert share.answer is not None
    assert share.answer.cost_per_hour == pytest.approx(0.5)


def test_minimums_beyond_the_own_budget_leave_nothing() -> None:
    share = shared(a_problem(one(on("cpu", bounds=(5, 9)), budget=2.0)))["x/a"]
    assert (share.served, share.answer, str(share.limit)) == (0.0, None, "Budget")


def test_the_more_important_pipeline_is_served_first() -> None:
    problem = a_problem(
        one(SERVES_45, key="x/low", priority=1, rate_rps=90.0),
        one(SERVES_45, key="x/high", priority=9, rate_rps=90.0),
        budget=1.5,  # 3 replicas: two for the first, and the minimum of the other
    )
    shares = shared(problem)
    assert shares["x/high"].served == 1
    assert shares["x/high"].limit is None
    assert shares["x/low"].served == pytest.approx(0.5, abs=1 / RESOLUTION)


def test_minimums_come_before_anyones_sla() -> None:
    problem = a_problem(
        one(on("cpu", service=(0.02, 0.0), bounds=(2, 9)), key="x/low", priority=1, rate_rps=1.0),
        one(SERVES_45, key="x/high", priority=9, rate_rps=90.0),
        budget=1.5,
    )
    shares = shared(problem)
    assert shares["x/low"].answer is not None
    assert shares["x/high"].served == pytest.approx(0.5, abs=1 / RESOLUTION)


def test_the_least_important_goes_to_zero_first_when_minimums_do_not_fit() -> None:
    placement = on("cpu", service=(0.02, 0.0), bounds=(2, 9))
    problem = a_problem(
        one(placement, key="x/low", priority=1, rate_rps=10.0),
        one(placement, key="x/high", priority=9, rate_rps=10.0),
        budget=1.5,
    )
    shares = shared(problem)
    assert shares["x/low"].answer is None
    assert shares["x/high"].served == 1


def test_equals_get_equal_shares() -> None:
    problem = a_problem(
        one(SERVES_45, key="x/a", rate_rps=180.0), one(SERVES_45, key="x/b", rate_rps=180.0), budget=2.0
    )
    shares = shared(problem)
    assert shares["x/a"].served == shares["x/b"].served == pytest.approx(0.5, abs=1 / RESOLUTION)


def test_what_an_equal_cannot_use_goes_to_the_others() -> None:
    bounded = on("cpu", service=(0.02, 0.0), bounds=(1, 1))
    problem = a_problem(one(bounded, key="x/a", rate_rps=180.0), one(SERVES_45, key="x/b", rate_rps=180.0), budget=2.0)
    shares = shared(problem)
    assert shares["x/a"].served == pytest.approx(0.25, abs=1 / RESOLUTION)
    assert shares["x/b"].served == pytest.approx(0.75, abs=1 / RESOLUTION)


def test_a_stage_that_cannot_help_is_not_scaled() -> None:
    stages = (
        a_stage("narrow", on("cpu", service=(0.02, 0.0), bounds=(1, 2))),
        a_stage("wide", on("cpu", service=(0.02, 0.0), bounds=(1, 20)), after=["narrow"]),
    )
    share = shared(a_problem(a_pipeline(*stages, rate_rps=400.0, sla_s=1.0)))["speech/captions"]
    assert str(share.limit) == "Bounds/narrow"
    assert share.answer is not None
    replicas = [
        int(t.replicas[row][0]) for t, row in zip(share.answer.subproblem.tables, share.answer.choice, strict=True)
    ]
    assert replicas == [2, 2]


def test_a_pool_that_is_gone_is_named() -> None:
    share = shared(a_problem(one(SERVES_45), where=pools(cpu=(0.5, 0))))["x/a"]
    assert (share.served, share.answer, str(share.limit)) == (0.0, None, "Pool/cpu")


def test_stages_that_can_run_keep_their_minimum_when_another_cannot() -> None:
    stages = (
        a_stage("here", on("cpu", service=(0.02, 0.0), bounds=(2, 9))),
        a_stage("gone", on("gpu", service=(0.02, 0.0)), after=["here"]),
    )
    share = shared(a_problem(a_pipeline(*stages), where=pools(cpu=(0.5, 9), gpu=(2.0, 0))))["speech/captions"]
    assert (share.served, str(share.limit)) == (0.0, "Pool/gpu")
    assert share.answer is not None
    replicas = [
        int(t.replicas[row][0]) for t, row in zip(share.answer.subproblem.tables, share.answer.choice, strict=True)
    ]
    assert replicas == [2, 0]


def test_minimums_share_the_pools_too() -> None:
    placement = on("cpu", service=(0.02, 0.0), bounds=(2, 9))
    problem = a_problem(
        one(placement, key="x/low", priority=1, rate_rps=10.0),
        one(placement, key="x/high", priority=9, rate_rps=10.0),
        where=pools(cpu=(0.5, 3)),
    )
    shares = shared(problem)
    assert shares["x/high"].served == 1
    assert (shares["x/low"].answer, str(shares["x/low"].limit)) == (None, "Pool/cpu")


@pytest.mark.parametrize("rate_rps", [1e6, 1e9, 1.8e19, 1e300])
def test_an_absurd_demand_is_served_as_far_as_it_goes(rate_rps: float) -> None:
    share = shared(a_problem(one(SERVES_45, rate_rps=rate_rps), where=pools(cpu=(0.5, 4))))["x/a"]
    assert share.served * rate_rps == pytest.approx(180, rel=0.1)
    assert str(share.limit) == "Pool/cpu"


@pytest.mark.parametrize("rate_rps", [400.0, 1.8e19])
def test_an_absurd_demand_on_a_pool_without_instances_blames_the_pool(rate_rps: float) -> None:
    share = shared(a_problem(one(SERVES_45, rate_rps=rate_rps), where=pools(cpu=(0.5, 0))))["x/a"]
    assert share.served == 0
    assert str(share.limit) == "Pool/cpu"


def test_within_a_priority_as_many_as_can_be_are_whole() -> None:
    # 6 replicas: equal shares would serve nobody whole; two of three fit beside the minimum of the third.
    problem = a_problem(
        *(one(SERVES_45, key=f"x/{name}", rate_rps=rate) for name, rate in (("a", 180.0), ("b", 90.0), ("c", 90.0))),
        budget=3.0,
    )
    shares = shared(problem)
    assert [shares[f"x/{name}"].served >= 1 for name in "abc"] == [False, True, True]
    assert shares["x/a"].served == pytest.approx(0.5, abs=1 / RESOLUTION)
    assert str(shares["x/a"].limit) == "Budget"


def test_two_that_take_another_pool_make_room_for_a_third() -> None:
    flexible = [on("cpu", service=(0.02, 0.0), bounds=(0, 9)), on("gpu", service=(0.02, 0.0), bounds=(0, 9))]
    problem = a_problem(
        *(a_pipeline(a_stage("a", *flexible), key=f"x/{n}", rate_rps=90.0, sla_s=1.0, budget=4.0) for n in "ab"),
        one(SERVES_45, key="x/c", rate_rps=180.0),
        where=pools(cpu=(0.5, 4), gpu=(2.0, 4)),
        budget=100.0,
    )
    assert [share.served for share in shared(problem).values()] == [1, 1, 1]


def test_minimums_that_waste_the_budget_and_the_pool_are_named_as_the_stages_bounds() -> None:
    stages = (
        a_stage("greedy", on("cpu", service=(0.001, 0.0), bounds=(4, 4))),
        a_stage("needy", on("cpu", service=(0.02, 0.0), bounds=(1, 9)), after=["greedy"]),
    )
    problem = a_problem(a_pipeline(*stages, rate_rps=90.0, sla_s=1.0, budget=2.5), where=pools(cpu=(0.5, 5)))
    share = shared(problem)["speech/captions"]
    assert share.served == pytest.approx(0.5, abs=1 / RESOLUTION)
    assert str(share.limit) == "Bounds/greedy"


def test_where_only_several_together_would_help_the_first_of_them_is_named() -> None:
    narrow = on("cpu", service=(0.02, 0.0), bounds=(1, 2))
    stages = (a_stage("b", narrow), a_stage("a", narrow, after=["b"]))
    share = shared(a_problem(a_pipeline(*stages, rate_rps=400.0, sla_s=5.0)))["speech/captions"]
    assert str(share.limit) == "Bounds/a"


def test_one_instance_short_of_thousands_costs_a_share_as_small() -> None:
    placement = on("cpu", service=(0.02, 0.0), bounds=(1, 6000))
    share = shared(a_problem(one(placement, rate_rps=5000 * 45.0), where=pools(cpu=(0.5, 4999))))["x/a"]
    assert 1 - 2 / (RESOLUTION * FINE) <= share.served < 1
    assert str(share.limit) == "Pool/cpu"


def test_the_sla_is_named_where_it_helps_alone_and_bounds_only_together() -> None:
    ways = [on("cpu", service=(0.04, 0.0), bounds=(0, 9)), on("gpu", service=(0.01, 0.0), bounds=(0, 0))]
    stages = (a_stage("a", *ways), a_stage("b", *ways, after=["a"]))
    share = shared(a_problem(a_pipeline(*stages, rate_rps=10.0, sla_s=0.045)))["speech/captions"]
    assert (share.served, str(share.limit)) == (0.0, "Sla")
