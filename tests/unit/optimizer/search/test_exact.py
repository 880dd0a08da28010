import itertools
import math
from dataclasses import replace

import instances
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.fleet.fleet import Fleet
from optimizer.model import Composition, Stage
from optimizer.search.exact import lower_bound, solve
from optimizer.search.subproblem import TOLERANCE, Choice, Subproblem
from optimizer.search.tables import supply_of


def a_subproblem(stages: list[Stage], sla_s: float, composition: Composition = Composition.SUM) -> Subproblem:
    pipeline = a_pipeline(*stages, sla_s=sla_s)
    problem = replace(a_problem(pipeline, where=pools(cpu=(0.5, 9), gpu=(2.0, 4))), composition=composition)
    return Fleet(problem, supply_of(problem)).subproblem(pipeline, 1.0)


def enumerated(subproblem: Subproblem) -> float:
    """Return the price of the cheapest choice by looking at all of them."""
    every = itertools.product(*(range(len(table)) for table in subproblem.tables))
    return min(
        (
            subproblem.price(choice)
            for choice in every
            if subproblem.fits(choice) and subproblem.latency(choice) <= subproblem.latency_s
        ),
        default=math.inf,
    )


@st.composite
def subproblems(draw: st.DrawFn, *, joins: bool = False) -> Subproblem:
    names = "abc"[: draw(st.integers(1, 3))]
    after = {"a": [], "b": ["a"], "c": ["a"] if joins else ["b"]}
    stages = [
        a_stage(
            name,
            *(
                on(
                    pool,
                    service=(draw(st.sampled_from((0.008, 0.015, 0.03))), 0.0),
                    bounds=(0, draw(st.integers(1, 5))),
                    per_instance=draw(st.sampled_from((1, 2))),
                )
                for pool in ("cpu", "gpu")
            ),
            after=after[name],
        )
        for name in names
    ]
    return a_subproblem(stages, draw(st.sampled_from((0.04, 0.08, 0.16))), draw(st.sampled_from(Composition)))


class Unproven(Exception):
    """The search was ended before its answer was proven."""


def cheapest_exact(subproblem: Subproblem, at_most: float = np.inf) -> Choice | None:
    """Return the choice that `solve` proves to be the cheapest, None when none costs `at_most` or less."""
    solution = solve(subproblem, at_most)
    if solution.walk is None:
        if solution.bound < np.inf:
            raise Unproven
        return None
    if subproblem.price(solution.walk.answer) > solution.bound + TOLERANCE:
        raise Unproven
    return solution.walk.answer


@settings(max_examples=40, deadline=None)
@given(subproblems())
def test_the_merge_finds_what_looking_at_everything_finds(subproblem: Subproblem) -> None:
    choice = cheapest_exact(subproblem)
    best = enumerated(subproblem)
    assert (math.inf if choice is None else subproblem.price(choice)) == pytest.approx(best)
    if choice is not None:
        assert subproblem.fits(choice)


@settings(max_examples=40, deadline=None)
@given(subproblems(joins=True), st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_no_choice_undercuts_the_bound(subproblem: Subproblem, pool_prices: list[float]) -> None:
    priced = subproblem.priced([table.cost_per_hour + table.use @ np.array(pool_prices) for table in subproblem.tables])
    best = enumerated(priced)
    assert lower_bound(priced, best) <= best * (1 + 1e-9) + 1e-9


def test_a_price_that_none_reaches_has_no_answer() -> None:
    subproblem = a_subproblem([a_stage("a", on("cpu", service=(0.02, 0.0)))], 0.1)
    choice = cheapest_exact(subproblem)
    assert choice is not None
    assert cheapest_exact(subproblem, subproblem.price(choice) - 0.1) is None


@settings(max_examples=40, deadline=None)
@given(subproblems(joins=True))
def test_joins_are_merged_exactly_too(subproblem: Subproblem) -> None:
    choice = cheapest_exact(subproblem)
    assert (math.inf if choice is None else subproblem.price(choice)) == pytest.approx(enumerated(subproblem))


def test_branches_that_share_stages_are_not_merged() -> None:
    def stage(name: str, *after: str) -> Stage:
        return a_stage(name, on("cpu", service=(0.01, 0.0)), on("gpu", service=(0.004, 0.0)), after=after)

    subproblem = a_subproblem(
        [stage("a"), stage("b", "a"), stage("c", "a"), stage("d", "b", "c"), stage("e", "c"), stage("f", "d", "e")],
        0.09,
    )
    assert lower_bound(subproblem) < np.inf
    with pytest.raises(Unproven):
        cheapest_exact(subproblem)


def test_too_many_partial_choices_are_admitted_with_a_bound() -> None:
    unproven = 0
    for seed in range(12):
        subproblem = instances.a_subproblem("stress", seed, limits=True)
        whole, hasty = solve(subproblem), solve(subproblem, search_effort=0)
        if whole.walk is not None and hasty.walk is not None:
            best = subproblem.price(whole.walk.answer)
            assert hasty.bound <= best + 1e-9 <= subproblem.price(hasty.walk.answer) + 2e-9
            unproven += hasty.bound < best - 1e-6
    assert unproven
