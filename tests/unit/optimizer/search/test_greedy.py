import tracemalloc
from collections.abc import Mapping

import numpy as np
import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.fleet.fleet import Fleet
from optimizer.model import Mixing, Pipeline, Pool, PoolName
from optimizer.search.greedy import cheapest, search, steepest
from optimizer.search.subproblem import Subproblem, Walk
from optimizer.search.tables import supply_of


def a_subproblem(pipeline: Pipeline, where: Mapping[PoolName, Pool] | None = None) -> Subproblem:
    problem = a_problem(pipeline, where=where)
    return Fleet(problem, supply_of(problem)).subproblem(pipeline, 1.0)


def two_stages(sla_s: float, rate_rps: float = 100.0) -> Pipeline:
    return a_pipeline(
        a_stage("slow", on("cpu", service=(0.03, 0.0))),
        a_stage("fast", on("cpu", service=(0.01, 0.0)), after=["slow"]),
        sla_s=sla_s,
        rate_rps=rate_rps,
    )


def replicas(subproblem: Subproblem, choice: tuple[int, ...]) -> list[list[int]]:
    return [table.replicas[row].tolist() for table, row in zip(subproblem.tables, choice, strict=True)]


def test_nothing_is_bought_where_the_cheapest_suffices() -> None:
    subproblem = a_subproblem(two_stages(10.0))
    walk = search(subproblem)
    assert walk is not None
    assert walk.visited == (cheapest(subproblem),)


def test_money_goes_where_it_buys_most_latency() -> None:
    subproblem = a_subproblem(two_stages(0.09))
    start = cheapest(subproblem)
    assert start is not None
    step = steepest(subproblem, start)
    assert step is not None
    assert step[0] != start[0]
    assert step[1] == start[1]


def test_the_answer_keeps_the_latency_and_nothing_can_be_taken_back() -> None:
    subproblem = a_subproblem(two_stages(0.075))
    walk = search(subproblem)
    assert walk is not None
    assert subproblem.latency(walk.answer) <= 0.075
    for stage, row in enumerate(walk.answer):
        if row:
            less = (*walk.answer[:stage], row - 1, *walk.answer[stage + 1 :])
            assert subproblem.latency(less) > 0.075


def test_an_unreachable_latency_has_no_answer() -> None:
    assert search(a_subproblem(two_stages(0.03))) is None


def test_the_search_does_not_look_beyond_a_price() -> None:
    subproblem = a_subproblem(two_stages(0.075))
    walk = search(subproblem)
    assert walk is not None
    assert search(subproblem, at_most=subproblem.price(walk.answer) - 0.2) is None


def test_the_start_fits_the_pools_even_if_that_costs_more() -> None:
    pipeline = a_pipeline(
        a_stage("a", on("cpu", service=(0.02, 0.0)), on("gpu", service=(0.02, 0.0))),
        a_stage("b", on("cpu", service=(0.02, 0.0)), after=["a"]),
    )
    subproblem = a_subproblem(pipeline, pools(cpu=(0.5, 4), gpu=(2.0, 9)))
    start = cheapest(subproblem)
    assert start is not None
    assert subproblem.fits(start)
    assert replicas(subproblem, start)[1] == [3]


def test_detours_are_left_out_of_the_way() -> None:
    subproblem = a_subproblem(two_stages(10.0))
    walk = Walk(visited=((0, 0), (3, 0), (3, 1), (1, 1)))
    assert walk.direct(subproblem).visited == ((0, 0), (0, 1), (1, 1))


def test_stages_that_are_swapped_in_the_list_get_the_same() -> None:
    one = a_stage("one", on("cpu", service=(0.03, 0.0)))
    two = a_stage("two", on("cpu", service=(0.01, 0.0)))
    join = [a_stage("last", on("cpu", service=(0.01, 0.0)), after=["one", "two"])]
    answers = []
    for order in ((one, two), (two, one)):
        subproblem = a_subproblem(a_pipeline(*order, *join, sla_s=0.09))
        walk = search(subproblem)
        assert walk is not None
        answers.append(
            {t.stage.name: t.replicas[row].tolist() for t, row in zip(subproblem.tables, walk.answer, strict=True)}
        )
    assert answers[0] == answers[1]


def test_latencies_of_a_stage_are_those_of_its_rows() -> None:
    subproblem = a_subproblem(two_stages(0.1))
    many = subproblem.latencies((0, 0), 1)
    assert many == pytest.approx([subproblem.latency((0, row)) for row in range(len(subproblem.tables[1]))])
    assert np.all(np.diff(many) < 0)


def test_so_many_options_that_pairs_of_changes_would_take_gigabytes_are_searched_without() -> None:
    placements = [on(pool, service=(0.02, 0.0), bounds=(0, 300), per_instance=7) for pool in ("cpu", "gpu", "npu")]
    pipeline = a_pipeline(a_stage("a", *placements), a_stage("b", *placements, after=["a"]), rate_rps=9000.0)
    problem = a_problem(pipeline, where=pools(cpu=(0.5, 40), gpu=(0.7, 40), npu=(0.9, 40)))
    subproblem = Fleet(problem, supply_of(problem)).subproblem(pipeline, 1.0, Mixing.ANY)
    tracemalloc.start()
    try:
        assert search(subproblem) is not None
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()
