"""Dual prices on tiny instances, against all of their choices and against linear programming."""

import itertools
import random

import numpy as np
import pytest
from scipy.optimize import linprog

from optimizer.search.multipliers import latency_weights, maximised, single_multiplier

SEEDS = range(20)


def an_instance(seed: int, constraints: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return offsets, prices and weights of three stages; dearer rows weigh less."""
    rng = random.Random(f"multipliers {seed}")
    sizes = [rng.randint(2, 5) for _ in range(3)]
    offsets = np.array([0, *itertools.accumulate(sizes)], dtype=np.int64)
    price = np.concatenate([np.sort([rng.uniform(0.1, 3.0) for _ in range(size)]) for size in sizes])
    weights = np.array([[rng.uniform(0.2, 0.8) / p for _ in range(constraints)] for p in price])
    return offsets, price, np.ascontiguousarray(weights / 1.5)


def cheapest(offsets: np.ndarray, price: np.ndarray, weights: np.ndarray) -> float:
    """Return the price of the cheapest choice whose weights sum to at most 1 each, by looking at all."""
    stages = [range(first, last) for first, last in itertools.pairwise(offsets.tolist())]
    choices = (list(choice) for choice in itertools.product(*stages))
    return min((price[c].sum() for c in choices if np.all(weights[c].sum(axis=0) <= 1)), default=np.inf)


def relaxed(offsets: np.ndarray, price: np.ndarray, weights: np.ndarray) -> float:
    """Return the optimum of the linear relaxation, infinite where it is infeasible."""
    one_each = np.zeros((len(offsets) - 1, len(price)))
    for stage, (first, last) in enumerate(itertools.pairwise(offsets.tolist())):
        one_each[stage, first:last] = 1
    solved = linprog(price, weights.T, np.ones(weights.shape[1]), one_each, np.ones(len(one_each)), (0, None))
    return float(solved.fun) if solved.success else np.inf


@pytest.mark.parametrize("constraints", [1, 2])
def test_the_bound_comes_near_the_linear_relaxation_and_is_below_every_choice(constraints: int) -> None:
    reached = []
    for seed in SEEDS:
        offsets, price, weights = an_instance(seed, constraints)
        best, linear = cheapest(offsets, price, weights), relaxed(offsets, price, weights)
        if best == np.inf:
            continue
        reduced = np.empty(len(price))
        bound = maximised(offsets, price, weights, best, 500, np.zeros(constraints), reduced)
        assert bound <= linear + 1e-9 <= best + 2e-9
        reached.append(bound / linear)
    # Subgradient steps stop short of the optimum.
    assert len(reached) >= 10
    assert min(reached) >= 0.85
    assert np.mean(reached) >= 0.97


def test_no_row_of_a_cheaper_choice_is_eliminated() -> None:
    """A row whose excess lifts the bound above a price is in no choice for that price."""
    for seed in SEEDS:
        offsets, price, weights = an_instance(seed, 2)
        at_most = 1.2 * cheapest(offsets, price, weights)
        if at_most == np.inf:
            continue
        reduced = np.empty(len(price))
        bound = maximised(offsets, price, weights, at_most, 100, np.zeros(2), reduced)
        assert np.all(np.minimum.reduceat(reduced, offsets[:-1]) == 0)
        stages = [range(first, last) for first, last in itertools.pairwise(offsets.tolist())]
        for choice in itertools.product(*stages):
            rows = list(choice)
            if price[rows].sum() <= at_most and np.all(weights[rows].sum(axis=0) <= 1):
                assert np.all(reduced[rows] <= at_most - bound + 1e-9)


def test_one_constraint_alone_reaches_the_linear_relaxation() -> None:
    compared = 0
    for seed in SEEDS:
        offsets, price, weights = an_instance(seed, 1)
        linear = relaxed(offsets, price, weights)
        if linear == np.inf:
            continue
        multiplier = single_multiplier(offsets, price, np.ascontiguousarray(weights[:, 0]), 1e6, 50)
        bound = np.minimum.reduceat(price + multiplier * weights[:, 0], offsets[:-1]).sum() - multiplier
        assert bound == pytest.approx(linear, abs=1e-9)
        compared += 1
    assert compared >= 10


def test_weights_of_latency_have_length_one_and_never_overstate_the_root_of_squares() -> None:
    excess = np.array([3.0, 0.0, 4.0])
    weights = latency_weights(excess)
    assert weights @ excess == pytest.approx(5.0)
    other = np.array([1.0, 2.0, 2.0])
    assert weights @ other <= np.linalg.norm(other)
    assert np.linalg.norm(latency_weights(np.zeros(3))) == pytest.approx(1.0)
