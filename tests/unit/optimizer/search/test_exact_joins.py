"""The exact search over joins, against all choices of tiny instances."""

import itertools
import random

import numpy as np
import pytest

from optimizer.latency.composition import Shape, compose, join_law, shape_of
from optimizer.model import StageName
from optimizer.search.exact_joins import Limits, OutOfWork, Part, cheapest_in

DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
NESTED = {"a": (), "b": ("a",), "c": ("a",), "d": ("a",), "e": ("b", "c"), "f": ("d", "e")}
OPEN_END = {"a": (), "b": ("a",), "c": ("a",)}
LAW = join_law(95.0)
MUCH_WORK = 10**9


def a_shape(after: dict[str, tuple[str, ...]]) -> Shape:
    return shape_of([(StageName(name), [StageName(other) for other in others]) for name, others in after.items()])


def random_parts(rng: random.Random, stages: int) -> list[Part]:
    """Return rows that cost more the faster they are, most of them with another use of two pools."""
    parts = []
    for _ in range(stages):
        count = rng.randint(2, 4)
        price = np.sort([rng.uniform(0.5, 5.0) for _ in range(count)])
        mean = np.array([rng.uniform(0.02, 0.06) / p for p in price])
        parts.append(
            Part(
                price=price,
                reduced=np.zeros(count),
                mean_s=mean,
                excess_s=mean * np.array([rng.uniform(0.0, 1.5) for _ in range(count)]),
                use=np.array([[rng.randint(0, 3), rng.randint(0, 3)] for _ in range(count)], dtype=np.int64),
            )
        )
    return parts


def cheapest_of_all(shape: Shape, parts: list[Part], limits: Limits, *, squares: bool) -> float:
    """Return the least price of the choices within `limits`, by looking at all of them."""
    best = np.inf
    for rows in itertools.product(*(range(len(part.price)) for part in parts)):
        mean = np.array([part.mean_s[row] for part, row in zip(parts, rows, strict=True)])
        excess = np.array([part.excess_s[row] for part, row in zip(parts, rows, strict=True)])
        use = np.sum([part.use[row] for part, row in zip(parts, rows, strict=True)], axis=0)
        price = sum(float(part.price[row]) for part, row in zip(parts, rows, strict=True))
        _, latency_s = compose(shape.program, mean, excess, squares, LAW)
        if latency_s <= limits.latency_s and np.all(use <= limits.capacity) and price <= limits.price:
            best = min(best, price)
    return best


@pytest.mark.parametrize("squares", [True, False])
@pytest.mark.parametrize("after", [DIAMOND, NESTED, OPEN_END])
def test_the_cheapest_of_all_choices_is_found(after: dict[str, tuple[str, ...]], *, squares: bool) -> None:
    shape, feasible = a_shape(after), 0
    assert shape.tree is not None
    for seed in range(12):
        rng = random.Random(f"joins {len(after)} {seed}")
        parts = random_parts(rng, len(after))
        limits = Limits(
            price=np.inf,
            reduced=np.inf,
            latency_s=rng.uniform(0.03, 0.15),
            capacity=np.array([rng.randint(3, 9), rng.randint(3, 9)], dtype=np.int64),
        )
        expected = cheapest_of_all(shape, parts, limits, squares=squares)
        rows, left = cheapest_in(shape.tree, parts, limits, squares=squares, law=LAW, work=MUCH_WORK)
        found = np.inf if rows is None else sum(float(p.price[row]) for p, row in zip(parts, rows, strict=True))
        assert found == pytest.approx(expected)
        assert left < MUCH_WORK
        feasible += rows is not None
    assert feasible >= 3


def test_no_choice_above_the_price_is_returned() -> None:
    shape = a_shape(DIAMOND)
    assert shape.tree is not None
    parts = random_parts(random.Random(3), 4)
    least = sum(float(part.price[0]) for part in parts)
    loose = Limits(price=np.inf, reduced=np.inf, latency_s=10.0, capacity=np.array([99, 99], dtype=np.int64))
    rows, _ = cheapest_in(shape.tree, parts, loose, squares=True, law=LAW, work=MUCH_WORK)
    assert rows == (0, 0, 0, 0)
    below = loose._replace(price=least * 0.999)
    assert cheapest_in(shape.tree, parts, below, squares=True, law=LAW, work=MUCH_WORK)[0] is None


def test_too_little_work_is_an_error_and_no_answer() -> None:
    shape = a_shape(NESTED)
    assert shape.tree is not None
    parts = random_parts(random.Random(4), 6)
    limits = Limits(price=np.inf, reduced=np.inf, latency_s=10.0, capacity=np.array([99, 99], dtype=np.int64))
    with pytest.raises(OutOfWork):
        cheapest_in(shape.tree, parts, limits, squares=True, law=LAW, work=3)
