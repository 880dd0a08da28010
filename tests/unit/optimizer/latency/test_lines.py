"""Straight lines in place of a law that bends."""

import numpy as np
import pytest

from optimizer.latency.lines import lines_of
from optimizer.model import Routing, ServiceLaw

PULL = Routing.PULL
ROOFLINE = ServiceLaw(fixed_s=1.73e-3, per_item_s=2.28e-3, floor_s=13.7e-3, cv=0.1)


def test_a_straight_law_is_its_own_line() -> None:
    law = ServiceLaw(fixed_s=0.01, per_item_s=0.002)
    below, share = lines_of(law, 16, PULL).at(np.array([10.0, 300.0]))
    assert lines_of(law, 16, PULL).laws == (law,)
    assert (below.tolist(), share.tolist()) == ([0, 0], [0.0, 0.0])


def test_lines_follow_a_roofline_from_its_flat_part_to_its_slope() -> None:
    laws = lines_of(ROOFLINE, 16, Routing.LEAST_LOADED).laws
    assert laws[0].mean_s(1) == pytest.approx(13.7e-3, rel=0.05)
    assert laws[0].per_item_s < 0.1 * ROOFLINE.per_item_s
    assert laws[-1].mean_s(16) == pytest.approx(ROOFLINE.mean_s(16))
    assert laws[-1].per_item_s == pytest.approx(ROOFLINE.per_item_s, rel=0.05)
    slopes = [law.per_item_s for law in laws]
    assert slopes == sorted(slopes)


def test_the_typical_batch_is_the_smallest_that_keeps_up() -> None:
    lines = lines_of(ROOFLINE, 16, PULL)
    last = len(lines.laws) - 1
    for size in (1, 3, 7, 12, 16):
        below, share = lines.at(np.array([ROOFLINE.rate_rps(size)]))
        position = below[0] + share[0]
        assert np.interp(position, np.arange(last + 1), np.log(lines.typical)) == pytest.approx(np.log(size), abs=0.05)


def test_no_line_has_a_negative_term() -> None:
    steep = ServiceLaw(points=((1, 0.01), (4, 0.011), (8, 0.08), (16, 0.5)))
    for law in lines_of(steep, 16, PULL).laws:
        assert law.fixed_s >= 0
        assert law.per_item_s >= 0


def test_a_law_falls_where_larger_batches_serve_fewer_items() -> None:
    assert not lines_of(ROOFLINE, 16, PULL).falling
    falling = ServiceLaw(points=((1, 0.01), (4, 0.012), (16, 0.2)))
    assert lines_of(falling, 16, PULL).falling
    assert not lines_of(falling, 4, PULL).falling
