"""Assignments in cases that can be computed by hand; the oracle has the others."""

import pytest

from simulations.regions.assignment import assign, hours_apart, used_tiers
from simulations.regions.model import NotSolved, Region, Step, Tier, Way

STEPS = (Step(load=0.0, cost_per_hour=1.0), Step(load=10.0, cost_per_hour=2.0), Step(load=20.0, cost_per_hour=4.0))
WAYS = {("a", "b"): Way(time_s=0.1, price_per_hour=0.01), ("b", "a"): Way(time_s=0.1)}


def region(name: str, *loads: float, paid_for_day: bool = False, shiftable: float = 1.0, kept: float = 0.0) -> Region:
    tiers = (Tier(way_s=0.0, steps=STEPS), Tier(way_s=0.1, steps=STEPS))
    return Region(name=name, loads=loads, tiers=tiers, shiftable=shiftable, kept=kept, paid_for_day=paid_for_day)


def test_the_peak_of_a_paid_day_goes_where_there_is_room() -> None:
    days = [region("a", 20, 0, paid_for_day=True), region("b", 0, 20, paid_for_day=True)]
    found = assign(days, WAYS)
    assert found.cost == pytest.approx(2 * 2 * 2 + 10 * 0.01)
    assert found.flows["a", "b"] == pytest.approx((10, 0), abs=0.01)
    assert assign(days, {}).cost == 16


def test_running_replicas_follow_the_load_although_the_day_is_paid() -> None:
    found = assign([region("a", 20, 5, 0, paid_for_day=True)], {})
    assert [step.load for _, step in found.steps["a"]] == [20, 10, 0]
    assert found.costs["a"] == (4, 4, 4)


def test_load_that_cannot_be_carried_is_refused_or_left() -> None:
    with pytest.raises(NotSolved):
        assign([region("a", 25, 5)], {})
    found = assign([region("a", 25, 5)], {}, may_leave=True)
    assert found.unserved["a"] == pytest.approx((5, 0), abs=0.01)
    assert found.leaves_load


def test_no_load_is_left_to_save_money() -> None:
    """One stream more costs the day another step: 24 hours for a stream in one."""
    found = assign([region("a", 10.5, *[10.0] * 23, paid_for_day=True)], {}, may_leave=True)
    assert not found.leaves_load
    assert found.cost == 96


def test_a_lost_region_serves_nothing_and_its_users_may_all_go() -> None:
    found = assign([region("a", 5, shiftable=0.0), region("b", 5)], WAYS, lost="a")
    assert found.flows["a", "b"] == pytest.approx([5], abs=0.01)
    assert "a" not in found.costs
    assert found.cost == pytest.approx(2 + 5 * 0.01)


def test_in_a_loss_the_users_of_other_regions_may_not_go_elsewhere() -> None:
    """Two of the streams of b would save it a step in c, which has room for them."""
    days = [region("a", 2), region("b", 12, shiftable=0.0), region("c", 2, shiftable=0.0)]
    ways = {(users, to): Way(time_s=0.1) for users in "abc" for to in "abc" if users != to}
    found = assign(days, ways, lost="a")
    assert not found.leaves_load
    assert found.flows["b", "b"] == pytest.approx([12], abs=0.01)
    assert found.flows["c", "c"] == pytest.approx([2], abs=0.01)


def test_in_a_loss_streams_follow_as_slowly_as_otherwise() -> None:
    """b has room for all of a's streams in the first hour, and for four in the second; c the other way round."""
    days = [region("a", 10, 10, kept=0.5), region("b", 0, 16, shiftable=0.0), region("c", 16, 0, shiftable=0.0)]
    found = assign(days, {("a", "b"): Way(time_s=0.1), ("a", "c"): Way(time_s=0.1)}, lost="a")
    assert not found.leaves_load
    for loads in (found.flows["a", "b"], found.flows["a", "c"]):
        assert loads[1] >= loads[0] / 2 - 0.01
        assert loads[0] >= loads[1] / 2 - 0.01


def test_a_day_in_parts_takes_the_tier_that_the_hours_use() -> None:
    """Each hour alone fills steps of 10 that the hull does not see; one hour needs streams from afar."""
    steps = (Step(load=0.0, cost_per_hour=0.5), Step(load=10.0, cost_per_hour=4.0), Step(load=20.0, cost_per_hour=8.0))
    days = [
        Region(name="a", loads=(5.0, 5.0), tiers=(Tier(way_s=0.0, steps=steps), Tier(way_s=0.1, steps=steps))),
        Region(name="b", loads=(5.0, 12.0), tiers=(Tier(way_s=0.0, steps=steps), Tier(way_s=0.1, steps=steps))),
    ]
    parts = hours_apart(days, WAYS)
    assert sum(part.cost for part in parts) == pytest.approx(4.5 + 8 + 2 * 0.01, abs=0.1)
    tiers = used_tiers(days, WAYS, parts)
    found = assign(days, WAYS, few=0, tiers=tiers)
    assert found.cost == pytest.approx(assign(days, WAYS).cost, abs=0.01)
    assert found.bound <= found.cost
