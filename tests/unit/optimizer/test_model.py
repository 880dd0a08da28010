"""Whole instances: sizes that divide each other share them, others do not."""

import pytest

from optimizer.model import whole_instances


@pytest.mark.parametrize(
    ("placements", "instances"),
    [
        ([], 0),
        ([(4, 0)], 0),
        ([(4, 1)], 1),
        ([(4, 5)], 2),
        ([(4, 2), (2, 1)], 1),
        ([(4, 2), (4, 2)], 1),
        ([(3, 1), (2, 1)], 2),
        ([(3, 1), (2, 1), (3, 1)], 3),
        ([(3, 1), (2, 0)], 1),
    ],
)
def test_replicas_take_whole_instances(placements: list[tuple[int, int]], instances: int) -> None:
    assert whole_instances(placements) == instances
