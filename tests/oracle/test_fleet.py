"""Fleets that compete for pools against an exact solver (HiGHS): bounds hold, costs come close, none is missed."""

import itertools

import numpy as np
import pytest
from fleets import a_fleet, cut, solved

from optimizer.case import Case
from optimizer.composition import shape_of
from optimizer.model import Composition
from optimizer.prices import Shared, share_pools


def price(cases: list[Case], shared: Shared) -> float:
    assert shared.choices is not None
    return sum(case.price(choice) for case, choice in zip(cases, shared.choices, strict=True))


def check(cases: list[Case], room: np.ndarray, shared: Shared) -> float:
    """Return what the choice costs, which keeps every promise."""
    assert shared.choices is not None
    used = np.sum([case.use(choice) for case, choice in zip(cases, shared.choices, strict=True)], axis=0)
    assert np.all(used <= room)
    for case, choice in zip(cases, shared.choices, strict=True):
        assert case.latency(choice) <= case.latency_s * (1 + 1e-9)
    return price(cases, shared)


@pytest.mark.parametrize("stress", [False, True])
@pytest.mark.parametrize("share", [0.9, 0.7])
def test_small_fleets_are_optimal_and_mostly_proven_so(share: float, stress: bool) -> None:
    gaps, certificates = [], []
    for seed in range(5):
        cases = a_fleet(2 + seed, seed, rows=10, stress=stress)
        room = cut(cases, share)
        shared, best = share_pools(cases, room), solved(cases, room)
        if best.cost is None:
            assert best.infeasible
            assert shared.choices is None
            continue
        assert shared.choices is not None
        cost = check(cases, room, shared)
        assert cost >= best.cost - 1e-6 * best.cost
        assert shared.bound <= best.cost * (1 + 1e-6)
        gaps.append(cost / best.cost - 1)
        certificates.append(cost / shared.bound - 1)
    print(
        f"{len(gaps)} fleets: gap mean {np.mean(gaps):.3%}, largest {max(gaps):.2%}; "
        f"own certificate mean {np.mean(certificates):.3%}, proven {np.mean(np.array(certificates) < 1e-6):.0%}"
    )
    assert max(gaps) <= 1e-6
    assert np.mean(np.array(certificates) <= 1e-6) >= 0.8


def test_what_cannot_fit_is_proven_not_to() -> None:
    for seed in range(6):
        cases = a_fleet(3, seed, rows=8)
        least = np.sum([np.sum([table.use.min(axis=0) for table in case.tables], axis=0) for case in cases], axis=0)
        room = cut(cases, 0.02, pools=5)
        if np.all(least <= room):
            continue
        assert share_pools(cases, room).choices is None
        assert solved(cases, room).infeasible


def test_many_pipelines_come_within_a_hundredth_of_a_percent_of_the_bound() -> None:
    for seed in range(2):
        cases = a_fleet(60, seed)
        room = cut(cases, 0.7)
        shared = share_pools(cases, room)
        assert check(cases, room, shared) <= shared.bound * 1.0005


def test_every_choice_of_composed_pipelines_keeps_its_latency_and_the_bound_holds() -> None:
    for seed in range(6):
        cases = a_fleet(2, seed, rows=5, composition=Composition.RSS)
        cases = [_shortened(case) for case in cases]
        room = cut(cases, 0.8, pools=1)
        best = _everything(cases, room)
        shared = share_pools(cases, room)
        if best is None:
            assert shared.choices is None
            continue
        assert shared.bound <= best + 1e-6
        if shared.choices is not None:
            assert check(cases, room, shared) >= best - 1e-6


def test_a_work_limit_leaves_a_plan_and_a_bound() -> None:
    cases = a_fleet(20, 1)
    room = cut(cases, 0.7)
    whole = share_pools(cases, room)
    costs = []
    for limit in (0, 20_000, 10_000_000):
        shared = share_pools(cases, room, work_limit=limit)
        costs.append(check(cases, room, shared))
        assert shared.bound <= price(cases, whole) * (1 + 1e-6)
    assert costs[0] >= costs[-1] - 1e-9
    assert share_pools(cases, room, work_limit=0).work < whole.work


def test_prices_of_a_similar_fleet_save_work_and_cost_nothing() -> None:
    cases = a_fleet(40, 2)
    room = cut(cases, 0.7)
    first = share_pools(cases, room)
    changed = [*cases[:38], *a_fleet(2, 99)]
    again, anew = share_pools(changed, room, start=first.unit_prices), share_pools(changed, room)
    assert check(changed, room, again) <= check(changed, room, anew) * 1.0005


def _shortened(case: Case) -> Case:
    """Return the case with as few stages as can be enumerated."""
    tables = case.tables[:3]
    fast = sum(float(table.percentile_s.min()) for table in tables)
    slow = sum(float(table.percentile_s[0]) for table in tables)
    return Case(
        tables=tables,
        prices=case.prices[:3],
        shape=shape_of([(table.stage.name, table.stage.after) for table in tables]),
        composition=case.composition,
        percentile=case.percentile,
        latency_s=fast + 0.35 * (slow - fast),
        room=case.room,
    )


def _everything(cases: list[Case], room: np.ndarray) -> float | None:
    """Return the least price of all combinations of all rows of two cases, or None when none fits."""
    lists = []
    for case in cases:
        found = [
            (case.price(choice), tuple(case.use(choice).tolist()))
            for choice in itertools.product(*(range(len(table)) for table in case.tables))
            if case.latency(choice) <= case.latency_s
        ]
        lists.append(sorted(set(found)))
    prices = [np.array([row[0] for row in rows]) for rows in lists]
    uses = [np.array([row[1] for row in rows]) for rows in lists]
    if any(len(rows) == 0 for rows in lists):
        return None
    total = prices[0][:, None] + prices[1][None]
    fits = np.all(uses[0][:, None] + uses[1][None] <= room, axis=2)
    return float(total[fits].min()) if fits.any() else None
