from dataclasses import replace

import numpy as np
from fleets import PLENTY, PRICES, a_fleet, cut

from optimizer.fleet.lagrangian import Shared, share_pools
from optimizer.latency.composition import shape_of
from optimizer.model import Composition, StageName
from optimizer.search.subproblem import Subproblem


def price(subproblems: list[Subproblem], shared: Shared) -> float:
    assert shared.choices is not None
    return sum(subproblem.price(choice) for subproblem, choice in zip(subproblems, shared.choices, strict=True))


def forked(subproblem: Subproblem) -> Subproblem:
    """Return three stages of the case, the last two side by side after the first, which then join in a fourth."""
    first = subproblem.tables[0].stage
    after = [(), (first.name,), (first.name,), (subproblem.tables[1].stage.name, subproblem.tables[2].stage.name)]
    tables = tuple(
        replace(table, stage=replace(table.stage, after=names))
        for table, names in zip(subproblem.tables[:4], after, strict=True)
    )
    slow, fast = (sum(float(pick(table.percentile_s)) for table in tables) for pick in (np.max, np.min))
    return Subproblem(
        tables=tables,
        prices=subproblem.prices[:4],
        shape=shape_of([(table.stage.name, table.stage.after) for table in tables]),
        composition=subproblem.composition,
        percentile=subproblem.percentile,
        latency_s=fast + 0.2 * (slow - fast),
        capacity=subproblem.capacity,
    )


def test_without_scarcity_everyone_gets_its_own_best_and_prices_are_nothing() -> None:
    subproblems = a_fleet(6, 0, rows=10)
    shared = share_pools(subproblems, np.full(len(PRICES), PLENTY))
    alone = [share_pools([subproblem], subproblem.capacity) for subproblem in subproblems]
    assert np.isclose(
        price(subproblems, shared),
        sum(price([subproblem], one) for subproblem, one in zip(subproblems, alone, strict=True)),
    )
    assert np.isclose(shared.bound, price(subproblems, shared))
    assert not shared.unit_prices.any()


def test_scarce_pools_have_a_price_and_are_not_overdrawn() -> None:
    subproblems = a_fleet(12, 0, rows=12)
    capacity = cut(subproblems, 0.7)
    shared = share_pools(subproblems, capacity)
    assert shared.choices is not None
    used = np.sum(
        [subproblem.use(choice) for subproblem, choice in zip(subproblems, shared.choices, strict=True)], axis=0
    )
    assert np.all(used <= capacity)
    assert (shared.unit_prices[capacity < PLENTY] > 0).all()
    assert not shared.unit_prices[capacity == PLENTY].any()


def test_four_scarce_pools_are_shared_as_well() -> None:
    subproblems = a_fleet(15, 1, rows=12)
    capacity = cut(subproblems, 0.85, pools=4)
    shared = share_pools(subproblems, capacity)
    assert shared.choices is not None
    used = np.sum(
        [subproblem.use(choice) for subproblem, choice in zip(subproblems, shared.choices, strict=True)], axis=0
    )
    assert np.all(used <= capacity)
    assert price(subproblems, shared) <= shared.bound * 1.01


def test_a_pipelines_own_budget_holds_while_others_pay_for_scarcity() -> None:
    subproblems = a_fleet(8, 3, rows=12)
    capacity = cut(subproblems, 0.7)
    free = share_pools(subproblems, capacity)
    assert free.choices is not None
    paid = [subproblem.cost_per_hour(choice) for subproblem, choice in zip(subproblems, free.choices, strict=True)]
    alone = [price([subproblem], share_pools([subproblem], subproblem.capacity)) for subproblem in subproblems]
    who = int(np.argmax(np.array(paid) - np.array(alone)))
    assert paid[who] > alone[who]
    budgets = [np.inf] * len(subproblems)
    budgets[who] = alone[who]
    shared = share_pools(subproblems, capacity, own_budgets=budgets)
    assert shared.choices is not None
    assert subproblems[who].cost_per_hour(shared.choices[who]) <= alone[who] + 1e-9
    assert price(subproblems, shared) >= price(subproblems, free) - 1e-9
    budgets[who] = alone[who] - 0.01
    assert share_pools(subproblems, capacity, own_budgets=budgets).choices is None


def test_money_of_the_whole_fleet_is_kept_where_the_search_has_other_prices() -> None:
    plain = a_fleet(6, 4, rows=10)
    # Switching makes the cheapest rows dear: the search would rather spend money.
    subproblems = [
        subproblem.priced([table.cost_per_hour + 3.0 * (np.arange(len(table)) < 3) for table in subproblem.tables])
        for subproblem in plain
    ]
    capacity = np.full(len(PRICES), PLENTY)
    least = price(plain, share_pools(plain, capacity))
    free = share_pools(subproblems, capacity)
    assert free.choices is not None
    spent = sum(subproblem.cost_per_hour(choice) for subproblem, choice in zip(subproblems, free.choices, strict=True))
    budget = (least + spent) / 2
    assert least < budget < spent
    kept = share_pools(subproblems, capacity, budget_per_hour=budget)
    assert kept.choices is not None
    assert (
        sum(subproblem.cost_per_hour(choice) for subproblem, choice in zip(subproblems, kept.choices, strict=True))
        <= budget + 1e-6
    )
    assert kept.bound <= price(subproblems, kept) + 1e-9


def test_branches_that_join_keep_their_latency() -> None:
    for composition in Composition:
        subproblems = [forked(subproblem) for subproblem in a_fleet(5, 5, rows=8, composition=composition)]
        assert not any(subproblem.shape.serial for subproblem in subproblems)
        free = share_pools(subproblems, np.full(len(PRICES), PLENTY))
        assert free.choices is not None
        used = np.sum(
            [subproblem.use(choice) for subproblem, choice in zip(subproblems, free.choices, strict=True)], axis=0
        )
        capacity = np.where(used == used.max(), (0.8 * used).astype(np.int64), PLENTY)
        shared = share_pools(subproblems, capacity)
        assert shared.choices is not None
        for subproblem, choice in zip(subproblems, shared.choices, strict=True):
            assert subproblem.latency(choice) <= subproblem.latency_s
        assert shared.bound <= price(subproblems, shared) + 1e-9


def test_of_equals_the_row_listed_first_is_taken() -> None:
    (subproblem,) = a_fleet(1, 6, rows=6)
    table = subproblem.tables[0]
    twice = replace(
        table,
        replicas=np.repeat(table.replicas, 2, axis=0),
        batches=np.repeat(table.batches, 2, axis=0),
        cost_per_hour=np.repeat(table.cost_per_hour, 2),
        objective_per_hour=np.repeat(table.objective_per_hour, 2),
        mean_s=np.repeat(table.mean_s, 2),
        percentile_s=np.repeat(table.percentile_s, 2),
        utilization=np.repeat(table.utilization, 2),
        latency_error=None,
        use=np.repeat(table.use, 2, axis=0),
    )
    doubled = replace(
        subproblem, tables=(twice, *subproblem.tables[1:]), prices=(twice.cost_per_hour, *subproblem.prices[1:])
    )
    shared = share_pools([doubled], subproblem.capacity)
    assert shared.choices is not None
    assert shared.choices[0][0] % 2 == 0
    assert table.stage.name == StageName("s0")
