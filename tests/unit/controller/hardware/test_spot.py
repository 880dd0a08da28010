"""What stands in for spot instances that are reclaimed, against a count of all that may happen."""

from itertools import product
from math import prod

import pytest

from controller.hardware.spot import SURE, away_share, spares


def test_a_replica_that_is_reclaimed_once_in_five_months_for_an_hour_is_away_so_long() -> None:
    # −ln(0.8) = 0.223 interruptions in 730 hours.
    assert away_share(0.2, 3600) == pytest.approx(0.2231 / 730, rel=1e-3)
    assert away_share(0.0, 3600) == 0


@pytest.mark.parametrize("away", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("needed", [1, 2, 4])
def test_as_few_spare_replicas_as_keep_enough_ready(needed: int, away: float) -> None:
    def enough(count: int) -> float:
        worlds = product((True, False), repeat=count)
        return sum(prod(1 - away if up else away for up in world) for world in worlds if sum(world) >= needed)

    more = spares(needed, away)
    assert enough(needed + more) >= SURE
    assert more == 0 or enough(needed + more - 1) < SURE


def test_nothing_runs_without_replicas_and_nothing_is_lost_on_demand() -> None:
    assert spares(0, 0.5) == 0
    assert spares(7, 0.0) == 0
