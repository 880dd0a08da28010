import itertools
import random

import numpy as np
import pytest

from optimizer.overload.knapsack import Columns, select


def columns(seed: int, owners: int = 8, things: int = 3) -> Columns:
    rng = random.Random(seed)
    owner, need = [], []
    for number in range(owners):
        for _ in range(rng.randint(1, 3)):
            owner.append(number)
            need.append([max(0.0, rng.gauss(1, 1)) for _ in range(things)])
    available = [rng.uniform(0.2, 0.7) * owners for _ in range(things)]
    return Columns(owner=np.array(owner), need=np.array(need), available=np.array(available))


def most(question: Columns) -> int:
    """Return how many can be content, by trying everything."""
    owners = sorted(set(question.owner.tolist()))
    ways = [[None, *np.nonzero(question.owner == owner)[0].tolist()] for owner in owners]
    best = 0
    for choice in itertools.product(*ways):
        rows = [row for row in choice if row is not None]
        if len(rows) > best and np.all(question.need[rows].sum(axis=0) <= question.available + 1e-9):
            best = len(rows)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_makes_more_content_and_the_bound_holds(seed: int) -> None:
    question = columns(seed, owners=6)
    selection = select(question)
    best = most(question)
    assert len(selection.columns) == best
    assert selection.at_most >= best - 1e-9


def test_the_chosen_fit_and_nobody_is_chosen_twice() -> None:
    for seed in range(30):
        question = columns(seed, owners=40, things=5)
        rows = list(select(question).columns)
        assert np.all(question.need[rows].sum(axis=0) <= question.available + 1e-6)
        assert len(set(question.owner[rows].tolist())) == len(rows)


def test_what_is_not_there_makes_only_those_content_who_need_none_of_it() -> None:
    question = Columns(
        owner=np.array([0, 1, 1]), need=np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 2.0]]), available=np.array([0.0, 2.0])
    )
    assert select(question).columns == (2,)


def test_nobody_is_content_with_nothing_to_choose_from() -> None:
    question = Columns(owner=np.array([0]), need=np.array([[3.0]]), available=np.array([2.0]))
    assert select(question).columns == ()


def test_one_large_gives_way_to_two_small() -> None:
    question = Columns(
        owner=np.array([0, 1, 2]),
        need=np.array([[0.9, 0.0], [0.5, 0.5], [0.5, 0.5]]),
        available=np.array([1.0, 1.0]),
    )
    assert select(question).columns == (1, 2)


def test_what_is_given_back_can_be_taken_by_others() -> None:
    question = Columns(owner=np.array([0, 1]), need=np.array([[-1.0, 0.5], [2.0, 0.5]]), available=np.array([1.0, 1.0]))
    assert select(question).columns == (0, 1)
