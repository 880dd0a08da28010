"""The study of a day: what shifting saves, what has no place, and what a lost region costs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from region_files import EAST, WEST, write_regions

from simulations.regions.scenario import load_regions
from simulations.regions.study import Study, still_open, study

OPPOSITE = {"east": EAST, "west": WEST}


def studied(folder: Path, loads: Mapping[str, Sequence[float]], **changes: Any) -> Study:
    return study(load_regions(write_regions(folder, loads, **changes)), points=8)


def offered(found: Study, users: str, hour: int) -> float:
    flows = found.shifted.flows
    return sum(loads[hour] for (own, _), loads in flows.items() if own == users) + found.shifted.unserved[users][hour]


def test_opposite_peaks_are_smoothed_and_the_bound_holds(tmp_path: Path) -> None:
    found = studied(tmp_path, OPPOSITE)
    peaks = {name: max(found.shifted.served(name, hour) for hour in range(4)) for name in OPPOSITE}
    assert sum(peaks.values()) < 80
    assert found.saving is not None
    assert found.saving > 0
    assert found.bound <= found.shifted.cost <= found.alone.cost
    for region in found.regions:
        assert [offered(found, region.name, hour) for hour in range(4)] == pytest.approx(region.loads, abs=0.01)
    assert not found.alone.leaves_load


def test_equal_days_at_equal_prices_save_nothing_worth_a_way(tmp_path: Path) -> None:
    found = studied(tmp_path, {"east": EAST, "west": EAST}, paid="ByHour")
    assert found.alone.cost >= found.shifted.cost >= found.bound


def test_streams_go_where_they_cost_less_up_to_the_share_that_may(tmp_path: Path) -> None:
    found = studied(tmp_path, OPPOSITE, prices={"east": "3.00"}, more={"east": 'shiftable: "0.5"'})
    away = found.shifted.flows["east", "west"]
    assert 10 < away[0] <= 20 + 0.01
    assert all(sent <= load / 2 + 0.01 for sent, load in zip(away, EAST, strict=True))


def test_data_residency_keeps_streams_and_leaves_them_without_a_place_in_a_loss(tmp_path: Path) -> None:
    found = studied(tmp_path, OPPOSITE, prices={"east": "3.00"}, more={"east": "servedBy: []"})
    assert ("east", "west") not in found.shifted.flows
    lost = found.losses["east"].assignment
    assert lost.unserved["east"] == pytest.approx(EAST, abs=0.01)
    assert lost.leaves_load
    for room, gone, own in zip(found.losses["east"].at_once, found.losses["east"].displaced, EAST, strict=True):
        assert room <= gone - own + 0.01  # only streams of others have another place
    assert not found.losses["west"].assignment.leaves_load


def test_a_lost_region_costs_room_at_once_and_money_afterwards(tmp_path: Path) -> None:
    found = studied(tmp_path, OPPOSITE, paid="ByHour")
    loss = found.losses["west"]
    assert loss.displaced[2] > 0
    for hour, (gone, room) in enumerate(zip(loss.displaced, loss.at_once, strict=True)):
        assert gone == pytest.approx(found.shifted.served("west", hour))
        assert 0 <= room <= gone + 0.01
        _, running = found.shifted.steps["east"][hour]
        replicas = running.cost_per_hour  # at $1 each: 50 items a second, of which a stream has 3.125
        assert found.shifted.served("east", hour) + room <= 16 * replicas
    assert loss.at_once[2] < loss.displaced[2]
    assert loss.startup_s == 50
    assert "west" not in loss.assignment.costs
    assert loss.assignment.served("east", 2) == pytest.approx(44, abs=0.01)


def test_replicas_that_run_anyway_take_streams_at_once(tmp_path: Path) -> None:
    """One replica serves 2 streams or 20; the least of both regions has room for all of the other's."""
    found = studied(tmp_path, {"east": (2, 2, 2, 2), "west": (2, 2, 2, 2)}, more={"east": "servedBy: []"})
    loss = found.losses["west"]
    assert loss.at_once == pytest.approx(loss.displaced, abs=0.01)
    assert loss.startup_s == 0


def test_what_is_reserved_for_the_day_is_paid_in_a_loss_too(tmp_path: Path) -> None:
    """Otherwise, without the east, all load would go to the north, and the west would cost its least replicas."""
    loads = {"east": (16, 20, 8, 32), "west": (16, 4, 33, 33), "north": (8, 8, 16, 32)}
    found = studied(tmp_path, loads, prices=dict.fromkeys(loads, "3.00"))
    for name, loss in found.losses.items():
        assert loss.reserved == pytest.approx(sum(found.shifted.costs[name]))
        assert loss.cost == pytest.approx(loss.assignment.cost + loss.reserved)
        assert loss.cost >= found.shifted.cost
        assert not loss.assignment.leaves_load
        for other, costs in loss.assignment.costs.items():
            assert sum(costs) >= sum(found.shifted.costs[other])

    by_hour = studied(tmp_path, loads, paid="ByHour")
    assert [loss.reserved for loss in by_hour.losses.values()] == [0, 0, 0]


def test_a_loss_starts_no_replicas_because_they_are_paid_anyway(tmp_path: Path) -> None:
    """At 00:00, the east has replicas for 40 streams; at other hours one, which serves five."""
    loads = {"east": (40, 4, 4, 4), "west": (1, 1, 1, 1)}
    found = studied(tmp_path, loads, more={"east": "servedBy: []"})
    assert found.losses["west"].startup_s == 0
    assert not found.losses["west"].assignment.leaves_load


def test_a_saving_compares_equal_loads_only(tmp_path: Path) -> None:
    too_much = {"east": (400, 20, 4, 20), "west": WEST}
    found = studied(tmp_path, too_much, instances=10)
    assert found.saving is None
    assert found.gained == pytest.approx(found.alone.left - found.shifted.left)
    stays = studied(tmp_path, too_much, instances=10, more={"east": "servedBy: []"})
    assert stays.alone.leaves_load
    assert stays.gained == 0
    assert stays.saving == pytest.approx(stays.alone.cost - stays.shifted.cost)


def test_load_beyond_the_pools_has_no_place_and_says_so(tmp_path: Path) -> None:
    found = studied(tmp_path, {"east": (400, 20, 4, 20), "west": WEST}, instances=10)
    assert found.alone.leaves_load
    assert 0 < found.shifted.unserved["east"][0] < found.alone.unserved["east"][0]
    assert sum(found.shifted.unserved["west"]) == pytest.approx(0, abs=0.01)


def test_a_way_that_takes_the_whole_sla_is_not_used(tmp_path: Path) -> None:
    found = studied(tmp_path, OPPOSITE, prices={"east": "3.00"}, round_trip="400ms")
    assert set(found.too_far) == {("east", "west"), ("west", "east")}
    assert set(found.shifted.flows) == {("east", "east"), ("west", "west")}
    assert found.way_s("west") == 0


def test_the_sla_of_a_region_that_serves_from_afar_is_shorter_by_the_way(tmp_path: Path) -> None:
    found = studied(tmp_path, OPPOSITE, prices={"east": "9.00"})
    assert found.way_s("west") == pytest.approx(0.1)


@pytest.mark.parametrize(("session_s", "share"), [(3600, 0.632), (480, 0.1333), (360_000, 0.995), (1, 1 / 3600)])
def test_streams_of_an_hour_that_are_open_in_the_next(session_s: float, share: float) -> None:
    """Of those that are open at its end: for an hour and sessions of an hour, the mean of exp(−t) from 0 to 1."""
    assert still_open(session_s, 3600) == pytest.approx(share, abs=5e-4)


@pytest.mark.parametrize(("session", "follow_slowly"), [("24h", True), ("10m", False)])
def test_only_new_streams_are_shifted(tmp_path: Path, session: str, follow_slowly: bool) -> None:
    path = write_regions(tmp_path, OPPOSITE)
    path.write_text(path.read_text().replace("session: 10m", f"session: {session}"))
    found = study(load_regions(path), points=8)
    kept = 4 * (1 - math.exp(-6 / 24))
    stay = [
        sent[hour] >= min(kept, loads[hour] / loads[hour - 1]) * sent[hour - 1] - 0.01
        for (users, _), sent in found.shifted.flows.items()
        for loads in (OPPOSITE[users],)
        for hour in range(4)
    ]
    assert all(stay) is follow_slowly


def test_no_load_at_all_costs_the_least_replicas(tmp_path: Path) -> None:
    nothing = {"east": (0, 0, 0, 0), "west": (0, 0, 0, 0)}
    found = studied(tmp_path, nothing, paid="ByHour")
    assert found.shifted.cost == found.alone.cost == 2 * 24
    assert not found.shifted.leaves_load


def test_a_region_without_a_link_serves_its_own_users_alone(tmp_path: Path) -> None:
    path = write_regions(tmp_path, {**OPPOSITE, "north": EAST}, prices={"north": "9.00"})
    lines = [line for line in path.read_text().splitlines() if "north" not in line or "between" not in line]
    path.write_text("\n".join(lines) + "\n")
    found = study(load_regions(path), points=8)
    assert [pair for pair in found.shifted.flows if "north" in pair] == [("north", "north")]
    assert found.losses["north"].assignment.unserved["north"] == pytest.approx(EAST, abs=0.01)
