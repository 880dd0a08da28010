"""The flat form of a subproblem says the same as its tables; walks are sequences of single changes."""

import itertools
import random
from dataclasses import replace
from itertools import pairwise

import instances
import numpy as np
import pytest

from optimizer.model import Composition
from optimizer.search.subproblem import Choice, Subproblem, Walk


def random_choices(subproblem: Subproblem, count: int = 20) -> list[Choice]:
    rng = random.Random(1)
    return [tuple(rng.randrange(len(table)) for table in subproblem.tables) for _ in range(count)]


@pytest.mark.parametrize("composition", Composition)
@pytest.mark.parametrize("seed", range(4))
def test_the_flat_form_has_the_price_latency_and_use_of_each_choice(seed: int, composition: Composition) -> None:
    subproblem = instances.a_subproblem("queueing", seed, limits=True, composition=composition)
    flat = subproblem.flat
    for choice in random_choices(subproblem):
        at = flat.position(choice)
        assert flat.choice(at) == choice
        assert flat.price[at].sum() == pytest.approx(subproblem.price(choice))
        latency_s = flat.mean_s[at].sum() + np.sqrt((flat.excess_s[at] ** 2).sum())
        assert latency_s == pytest.approx(subproblem.latency(choice))
        assert flat.use[at].sum(axis=0).tolist() == subproblem.use(choice).tolist()


def test_the_flat_form_is_by_stage_name_and_price() -> None:
    subproblem = instances.a_subproblem("queueing", 1, limits=True)
    shuffled = [np.roll(table.cost_per_hour, 3) for table in subproblem.tables]
    flat = subproblem.priced(shuffled).flat
    names = [subproblem.tables[stage].stage.name for stage in flat.stages.tolist()]
    assert names == sorted(names)
    for first, last in pairwise(flat.offsets.tolist()):
        assert np.all(np.diff(flat.price[first:last]) >= 0)


def test_other_limits_keep_tables_and_flat_form() -> None:
    subproblem = instances.a_subproblem("queueing", 2, limits=True)
    flat = subproblem.flat
    tighter = subproblem.within(subproblem.capacity // 2).for_latency(subproblem.latency_s / 2)
    assert tighter.flat is flat
    assert tighter.latency_s == subproblem.latency_s / 2
    (choice,) = random_choices(subproblem, 1)
    full = subproblem.within(subproblem.use(choice))
    assert full.fits(choice)
    assert not full.within(full.capacity - 1).fits(choice)


def test_single_changes_have_the_latency_and_the_fit_of_the_choice_they_lead_to() -> None:
    subproblem = instances.a_subproblem("queueing", 3, limits=True)
    (choice,) = random_choices(subproblem, 1)
    for stage in range(len(subproblem.tables)):
        latencies, fitting = subproblem.latencies(choice, stage), subproblem.fitting(choice, stage)
        for row in range(len(subproblem.tables[stage])):
            changed = (*choice[:stage], row, *choice[stage + 1 :])
            assert latencies[row] == pytest.approx(subproblem.latency(changed))
            assert fitting[row] == subproblem.fits(changed)


def test_a_walk_changes_one_stage_at_a_time() -> None:
    walk = Walk(visited=((0, 0, 0),)).to((2, 0, 5))
    assert walk.answer == (2, 0, 5)
    assert all(sum(a != b for a, b in zip(old, new, strict=True)) == 1 for old, new in pairwise(walk.visited))


def test_a_direct_walk_leaves_out_detours_and_ends_at_the_same_choice() -> None:
    subproblem = instances.a_subproblem("queueing", 1, limits=True)
    prices = [np.arange(len(table), dtype=np.float64) for table in subproblem.tables]
    subproblem = replace(subproblem, prices=tuple(prices))
    start = (0,) * len(subproblem.tables)
    up, back = (3, *start[1:]), (1, *start[1:])
    walk = Walk(visited=(start, up, back))
    assert walk.direct(subproblem).visited == (start, back)
    for seed in range(5):
        rng = random.Random(seed)
        visited = [start]
        for _ in range(8):
            stage = rng.randrange(len(start))
            row = rng.randrange(len(prices[stage]))
            visited.append((*visited[-1][:stage], row, *visited[-1][stage + 1 :]))
        walk = Walk(visited=tuple(choice for choice, _ in itertools.groupby(visited)))
        direct = walk.direct(subproblem)
        assert (direct.visited[0], direct.answer) == (start, walk.answer)
        paid = [subproblem.price(choice) for choice in direct.visited]
        assert len(direct.visited) <= len(walk.visited)
        assert len(set(paid)) == len(paid)
