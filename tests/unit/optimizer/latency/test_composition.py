import numpy as np
import pytest

from optimizer.latency.composition import Latency, Parallel, Series, Shape, end_to_end, shape_of
from optimizer.model import Composition, StageName

A, B, C, D, E = (StageName(name) for name in "abcde")


def latency(mean_s: float, percentile_s: float) -> Latency:
    return Latency(mean_s=np.array(mean_s), percentile_s=np.array(percentile_s))


def whole(shape: Shape, stages: list[Latency], composition: Composition = Composition.SUM) -> float:
    return float(end_to_end(shape, stages, composition=composition, percentile=95).percentile_s)


def test_a_chain_adds_its_percentiles() -> None:
    shape = shape_of([(A, []), (B, [A]), (C, [B])])
    assert shape.serial
    assert whole(shape, [latency(1, 2), latency(2, 3), latency(1, 4)]) == 9


def test_rss_adds_excesses_like_deviations() -> None:
    shape = shape_of([(A, []), (B, [A])])
    assert whole(shape, [latency(1, 4), latency(1, 5)], Composition.RSS) == pytest.approx(2 + 5)


def test_a_join_waits_for_the_slower_branch_and_shares_its_past_once() -> None:
    shape = shape_of([(A, []), (B, [A]), (C, [A]), (D, [B, C])])
    assert not shape.serial
    answer = whole(shape, [latency(1, 1), latency(5, 6), latency(1, 1.1), latency(1, 1)])
    assert answer == pytest.approx(1 + 6 + 1, rel=0.01)


def test_equal_branches_are_later_together_than_each_alone() -> None:
    shape = shape_of([(A, []), (B, []), (C, [A, B])])
    assert whole(shape, [latency(1, 2), latency(1, 2), latency(0, 0)]) > 2


def test_several_last_stages_are_all_waited_for() -> None:
    shape = shape_of([(A, []), (B, [A]), (C, [A])])
    assert whole(shape, [latency(1, 1), latency(1, 3), latency(0.1, 0.2)]) == pytest.approx(4, rel=0.01)


def test_waiting_for_a_stage_and_its_predecessor_is_waiting_for_the_stage() -> None:
    shape = shape_of([(A, []), (B, [A]), (C, [A, B])])
    assert whole(shape, [latency(1, 2), latency(1, 2), latency(1, 2)]) == 6


def test_a_fork_inside_a_branch_is_closed_before_the_outer_one() -> None:
    stages = [(A, []), (B, [A]), (C, [A]), (D, [B, C]), (E, [A]), (StageName("f"), [D, E])]
    answer = whole(
        shape_of(stages),
        [latency(1, 1), latency(2, 2.5), latency(0.1, 0.1), latency(1, 1), latency(0.2, 0.3), latency(1, 1)],
    )
    assert answer == pytest.approx(1 + 2.5 + 1 + 1, rel=0.01)


def test_the_order_of_branches_does_not_matter() -> None:
    one = whole(
        shape_of([(A, []), (B, [A]), (C, [A]), (D, [B, C])]), [latency(1, 2)] * 2 + [latency(2, 3), latency(1, 2)]
    )
    other = whole(
        shape_of([(A, []), (C, [A]), (B, [A]), (D, [C, B])]),
        [latency(1, 2), latency(2, 3), latency(1, 2), latency(1, 2)],
    )
    assert one == other


def test_many_candidates_are_composed_at_once() -> None:
    shape = shape_of([(A, []), (B, [A])])
    many = Latency(mean_s=np.array([1.0, 2.0]), percentile_s=np.array([2.0, 3.0]))
    answer = end_to_end(shape, [many, latency(1, 2)], composition=Composition.SUM, percentile=95)
    assert list(answer.percentile_s) == [4.0, 5.0]


def test_a_percentile_below_the_mean_is_kept_for_one_stage_and_never_summed_too_low() -> None:
    one = end_to_end(shape_of([(A, [])]), [latency(1.0, 0.7)], composition=Composition.RSS, percentile=50)
    assert float(one.percentile_s) == pytest.approx(0.7)
    exponential = latency(1.0, np.log(2))
    four = end_to_end(
        shape_of([(A, []), (B, [A]), (C, [B]), (D, [C])]), [exponential] * 4, composition=Composition.SUM, percentile=50
    )
    assert 3.672 * 0.9 < float(four.percentile_s) < 3.672  # the median of Erlang-4; the medians' sum is 2.77


@pytest.mark.parametrize("after", [[A], []])
def test_an_overloaded_stage_makes_the_whole_endless(after: list[StageName]) -> None:
    shape = shape_of([(A, []), (B, after), (C, [A, B])])
    assert whole(shape, [latency(1, 2), latency(np.inf, np.inf), latency(1, 2)]) == np.inf


def test_branches_that_nest_are_a_tree() -> None:
    shape = shape_of([(A, []), (B, [A]), (C, [A]), (D, [B, C]), (E, [D])])
    assert shape.tree is not None
    assert shape.tree == Series(parts=(0, Parallel(branches=(1, 2)), 3, 4))
    entries = shape_of([(A, []), (B, []), (C, [A, B])])
    assert entries.tree == Series(parts=(Parallel(branches=(0, 1)), 2))
    ends = shape_of([(A, []), (B, [A]), (C, [A])])
    assert ends.tree == Series(parts=(0, Parallel(branches=(1, 2))))


def test_branches_that_share_a_stage_are_no_tree() -> None:
    shape = shape_of([(A, []), (B, []), (C, [A, B]), (D, [B]), (E, [C, D])])
    assert shape.tree is None
    assert shape.tree is None
