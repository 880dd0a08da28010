import numpy as np
import pytest

from optimizer.composition import Latency, Shape, end_to_end, shape_of
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
