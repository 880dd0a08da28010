"""What the search relies on: no part of a pipeline can become later and the whole become earlier."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from optimizer.latency.composition import Latency, Shape, compose, end_to_end, join, join_law, mean_and_excess, shape_of
from optimizer.model import Composition, StageName

PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0)
TOLERANCE = 1e-9

times = st.one_of(st.floats(0.0, 5.0), st.sampled_from((0.0, 0.01, 1.0, 1e3)))


def named(*stages: tuple[str, str]) -> Shape:
    return shape_of([(StageName(name), [StageName(source) for source in after]) for name, after in stages])


CHAIN = named(("a", ""), ("b", "a"), ("c", "b"))
FORK = named(("a", ""), ("b", "a"), ("c", "a"), ("d", "bc"))
THREE = named(("a", ""), ("b", ""), ("c", ""), ("d", "abc"))
NESTED = named(("a", ""), ("b", "a"), ("c", "a"), ("d", "bc"), ("e", "a"), ("f", "de"))
TANGLED = named(("a", ""), ("b", ""), ("c", "ab"), ("d", "b"), ("e", "cd"))
SHAPES = {"chain": CHAIN, "fork": FORK, "three": THREE, "nested": NESTED, "tangled": TANGLED}


def whole(shape: Shape, means: list[float], excesses: list[float], rss: bool, percentile: float) -> float:
    return compose(shape.program, np.array(means), np.array(excesses), rss, join_law(percentile))[1]


@settings(max_examples=400, deadline=None)
@given(
    shape=st.sampled_from(sorted(SHAPES)),
    data=st.lists(st.tuples(times, times), min_size=6, max_size=6),
    which=st.integers(0, 5),
    more=st.tuples(times, times),
    rss=st.booleans(),
    percentile=st.sampled_from(PERCENTILES),
)
@example(  # the inner join's spread shrinks as the sure branch comes to decide it: the outer join must not see less
    shape="nested",
    data=[(0.0, 0.0), (0.0, 5.0), (0.0, 0.0), (0.0, 0.0), (0.0, 5.0), (0.0, 0.0)],
    which=2,
    more=(5.0, 0.0),
    rss=True,
    percentile=75.0,
)
def test_a_pipeline_never_gets_earlier_when_mean_or_excess_of_a_stage_grow(
    shape: str,
    data: list[tuple[float, float]],
    which: int,
    more: tuple[float, float],
    rss: bool,
    percentile: float,
) -> None:
    of = SHAPES[shape]
    stages = len(of.gates)
    means, excesses = [m for m, _ in data[:stages]], [e for _, e in data[:stages]]
    before = whole(of, means, excesses, rss, percentile)
    means[which % stages] += more[0]
    excesses[which % stages] += more[1]
    assert whole(of, means, excesses, rss, percentile) >= before * (1 - TOLERANCE) - TOLERANCE


@settings(max_examples=200, deadline=None)
@given(
    first=st.tuples(times, times, times),
    other=st.tuples(times, times, times),
    grown=st.tuples(times, times, times),
    percentile=st.sampled_from(PERCENTILES),
)
def test_a_join_never_falls_in_mean_percentile_or_spread_when_a_branch_grows(
    first: tuple[float, float, float],
    other: tuple[float, float, float],
    grown: tuple[float, float, float],
    percentile: float,
) -> None:
    law = join_law(percentile)
    # Grown in the order of (mean, mean + excess, spread): the excess itself may fall.
    mean = first[0] + min(grown[0], first[1])
    later = (mean, first[0] + first[1] + grown[1] - mean, first[2] + grown[2])
    before, after = join(*first, *other, law), join(*later, *other, law)
    slack = TOLERANCE * (1 + sum(before) + sum(grown))
    assert after[0] >= before[0] - slack
    assert after[0] + after[1] >= before[0] + before[1] - slack
    assert after[2] >= before[2]
    mirrored = join(*other, *first, law)
    assert mirrored == pytest.approx(before, abs=slack)


@settings(max_examples=200, deadline=None)
@given(
    data=st.lists(st.tuples(times, times), min_size=3, max_size=3),
    which=st.integers(0, 2),
    more=st.tuples(times, times),
    composition=st.sampled_from(Composition),
)
def test_outside_joins_a_larger_mean_or_percentile_is_never_earlier(
    data: list[tuple[float, float]], which: int, more: tuple[float, float], composition: Composition
) -> None:
    def chain(pairs: list[tuple[float, float]]) -> float:
        parts = [Latency(mean_s=np.array(mean), percentile_s=np.array(percentile)) for mean, percentile in pairs]
        return float(end_to_end(CHAIN, parts, composition=composition, percentile=95).percentile_s)

    larger = list(data)
    larger[which] = (data[which][0] + more[0], data[which][1] + more[1])
    assert chain(larger) >= chain(data) * (1 - TOLERANCE)


@pytest.mark.parametrize("percentile", PERCENTILES)
def test_a_join_is_later_than_each_branch_and_at_most_their_sum(percentile: float) -> None:
    law = join_law(percentile)
    for m1, e1, m2, e2 in itertools.product((0.0, 0.5, 3.0), (0.0, 0.1, 2.0), (0.0, 1.0), (0.0, 0.4, 1.0)):
        mean, excess, _ = join(m1, e1, e1, m2, e2, e2, law)
        assert max(m1, m2) - TOLERANCE <= mean <= m1 + m2 + e1 + e2 + TOLERANCE
        assert max(m1 + e1, m2 + e2) - TOLERANCE <= mean + excess <= m1 + m2 + 2 * (e1 + e2) + TOLERANCE


@settings(max_examples=100, deadline=None)
@given(
    shape=st.sampled_from(sorted(SHAPES)),
    data=st.lists(st.tuples(times, times), min_size=6, max_size=6),
    composition=st.sampled_from(Composition),
    percentile=st.sampled_from(PERCENTILES),
)
def test_one_choice_in_compiled_code_is_what_many_at_once_say(
    shape: str, data: list[tuple[float, float]], composition: Composition, percentile: float
) -> None:
    of = SHAPES[shape]
    means, percentiles = (np.array(side) for side in zip(*data[: len(of.gates)], strict=True))
    parts = [
        Latency(mean_s=np.array([m, 1.0]), percentile_s=np.array(q)) for m, q in zip(means, percentiles, strict=True)
    ]
    many = end_to_end(of, parts, composition=composition, percentile=percentile)
    m, e = mean_and_excess(means, percentiles, len(means))
    one = compose(of.program, m, e, composition is Composition.RSS, join_law(percentile))
    assert one == pytest.approx((many.mean_s[0], many.percentile_s[0]))
