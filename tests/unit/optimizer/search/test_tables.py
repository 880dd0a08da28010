from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from problems import a_pipeline, a_problem, a_stage, on, pools

from optimizer.latency.stage import StageLoad, predict_all
from optimizer.model import Mixing, Pool, PoolName, Stage
from optimizer.search import tables
from optimizer.search.tables import StageOptions, stage_options, supply_of, with_unlisted


def options(
    stage: Stage,
    rate_rps: float = 100.0,
    *,
    sessions: float | None = None,
    max_wer: float | None = None,
    switching: float = 0.0,
    mixing: Mixing = Mixing.OVERFLOW,
    where: Mapping[PoolName, Pool] | None = None,
) -> StageOptions:
    problem = a_problem(a_pipeline(stage), where=where)
    return stage_options(
        stage,
        StageLoad(rate_rps=rate_rps, sessions=sessions),
        supply_of(problem),
        percentile=95,
        max_wer=max_wer,
        switching_cost_per_hour=switching,
        mixing=mixing,
    )


def rows(table: StageOptions) -> list[tuple[int, ...]]:
    return [tuple(int(count) for count in row) for row in table.replicas]


def test_one_pool_offers_every_count_that_carries_the_load() -> None:
    table = options(a_stage("a", on("cpu", service=(0.02, 0.0), bounds=(0, 6))))
    assert rows(table) == [(3,), (4,), (5,), (6,)]
    assert list(table.cost_per_hour) == [1.5, 2.0, 2.5, 3.0]
    assert np.all(np.diff(table.percentile_s) < 0)


def test_replicas_that_share_an_instance_cost_a_share() -> None:
    table = options(a_stage("a", on("cpu", service=(0.02, 0.0), per_instance=4)), where=pools(cpu=(1.0, 2)))
    assert rows(table)[-1] == (8,)
    assert table.cost_per_hour[-1] == pytest.approx(2.0)


def test_a_pool_starts_to_help_when_the_one_before_is_full() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0), bounds=(0, 3)), on("gpu", service=(0.01, 0.0), bounds=(0, 3)))
    mixed = {row for row in rows(options(stage, 200.0)) if min(row) > 0}
    assert mixed
    assert all(row[0] == 3 or row[1] == 3 for row in mixed)


def test_a_pools_limit_counts_like_a_bound() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0)), on("gpu", service=(0.01, 0.0)))
    table = options(stage, 200.0, where=pools(cpu=(0.5, 2), gpu=(2.0, 9)))
    assert {row[0] for row in rows(table)} <= {0, 1, 2}
    assert (2, 2) in rows(table)


def test_any_mix_can_be_asked_for() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0), bounds=(0, 5)), on("gpu", service=(0.01, 0.0), bounds=(0, 5)))
    assert (2, 1) in rows(options(stage, 100.0, mixing=Mixing.ANY))
    assert (2, 1) not in rows(options(stage, 100.0))


def test_minimums_run_wherever_the_work_goes() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0), bounds=(1, 5)), on("gpu", service=(0.01, 0.0), bounds=(0, 5)))
    assert all(row[0] >= 1 for row in rows(options(stage)))


def test_a_stage_keeps_its_floor_over_all_placements() -> None:
    stage = a_stage("a", on("cpu", bounds=(0, 3)), on("gpu", bounds=(0, 3)), floor=5)
    assert all(sum(row) >= 5 for row in rows(options(stage, 1.0)))
    beyond = a_stage("a", on("cpu", bounds=(0, 3)), floor=9)
    assert rows(options(beyond, 1.0)) == [(3,)]


def test_a_model_that_errs_too_much_is_not_used_even_at_its_minimum() -> None:
    stage = a_stage("a", on("cpu", bounds=(1, 5), wer=0.12), on("gpu", wer=0.08))
    assert all(row[0] == 0 for row in rows(options(stage, max_wer=0.09)))
    assert len(options(a_stage("a", on("cpu", wer=0.12)), max_wer=0.09)) == 0


def test_the_best_batch_is_chosen_per_count() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.002), cv=0.0, batches=(1, 8), wait_s=0.02))
    table = options(stage, 30.0)
    # Waiting for a batch to fill costs latency when there are replicas to spare, and saves replicas when not.
    assert table.batches[np.argmax(table.replicas)][0] == 1
    busy = options(stage, 400.0)
    assert busy.batches[0][0] == 8


def test_slots_for_all_sessions_are_needed() -> None:
    table = options(a_stage("a", on("cpu", service=(0.001, 0.0), slots=100)), 10.0, sessions=450)
    assert rows(table)[0] == (5,)


def test_what_runs_already_is_preferred_when_switching_costs() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0), current=6))
    assert rows(options(stage))[0] == (3,)
    assert rows(options(stage, switching=1.0))[0] == (6,)
    assert options(stage, switching=1.0).cost_per_hour[0] == pytest.approx(3.0)


def test_equals_are_in_the_users_order_of_preference() -> None:
    stage = a_stage("a", on("inferentia"), on("cpu"))
    table = options(stage, 10.0, where=pools(cpu=(1.0, 9), inferentia=(1.0, 9)))
    assert rows(table)[:2] == [(1, 0), (0, 1)]


def test_sizes_that_divide_each_other_share_instances_and_others_do_not() -> None:
    def use(one: int, two: int) -> tuple[int, int]:
        problem = a_problem(
            a_pipeline(
                a_stage("a", on("cpu", per_instance=one)), a_stage("b", on("cpu", per_instance=two), after=["a"])
            )
        )
        supply = supply_of(problem)
        placements = [placement for _, _, placement in problem.placements()]
        three = np.array([3])
        return int(sum(supply.units(p, three)[0] for p in placements)), int(supply.units_per_instance[0])

    assert use(2, 4) == (6 + 3, 4)  # 1.5 + 0.75 instances
    assert use(2, 3) == (2 + 1, 1)  # rounded up each: 2 + 1


def test_mixes_of_many_replicas_are_thinned_but_keep_their_bounds() -> None:
    many = [on(pool, service=(0.02, 0.0), bounds=(0, 9000)) for pool in ("cpu", "gpu")]
    where = pools(cpu=(0.5, 9000), gpu=(2.0, 9000))
    table = options(a_stage("a", *many), 18_000 * 45.0 - 1, where=where, mixing=Mixing.ANY)
    assert (9000, 9000) in rows(table)
    assert len(options(a_stage("a", *many), 100.0, where=where, mixing=Mixing.ANY)) < 50_000


def test_each_of_mixed_placements_has_the_batch_that_suits_it() -> None:
    # The first needs large batches to carry its part; the second would wait for them to fill, and gains nothing.
    fast = on("gpu", service=(0.02, 0.0002), bounds=(0, 2), batches=(1, 16))
    slow = on("cpu", service=(0.0002, 0.02), bounds=(0, 8), batches=(1, 16), wait_s=0.5)
    table = options(a_stage("a", fast, slow), 1500.0)
    full = [row for row, counts in enumerate(rows(table)) if counts == (2, 8)]
    best = min(full, key=lambda row: table.percentile_s[row])
    assert table.batches[best].tolist() == [16, 1]


def test_replicas_beyond_those_that_help_are_left_out() -> None:
    table = options(a_stage("a", on("cpu", service=(0.02, 0.0), cv=0.0, bounds=(0, 60))), 50.0)
    assert table.replicas.max() < 20
    assert table.percentile_s.min() == pytest.approx(0.02, rel=0.01)


def test_of_many_replicas_those_the_load_needs_are_there_one_by_one() -> None:
    table = options(
        a_stage("a", on("cpu", service=(0.02, 0.0), cv=0.0, bounds=(0, 50_000))),
        100_000.0,
        where=pools(cpu=(1.0, 50_000)),
    )
    assert rows(table)[0] == (2223,)  # 100 000 · 0.02 / 0.9, rounded up


def test_what_runs_can_stay_though_it_is_no_overflow() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0), current=2), on("gpu", service=(0.01, 0.0), current=1))
    assert (2, 1) not in rows(options(stage, 100.0))
    staying = options(stage, 100.0, switching=10.0)
    assert rows(staying)[0] == (2, 1)
    assert staying.cost_per_hour[0] == pytest.approx(3.0) == staying.objective_per_hour[0]


def test_moving_a_replica_counts_as_one_less_and_one_more() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0), current=3), on("gpu", service=(0.02, 0.0)))
    table = options(stage, 100.0, switching=1.0)
    objective = dict(zip(rows(table), table.objective_per_hour - table.cost_per_hour, strict=True))
    assert objective[3, 0] == 0
    assert objective[0, 3] == pytest.approx(6.0)


def test_the_same_question_has_the_same_answer_and_another_one_its_own() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0)))
    assert options(stage) is options(a_stage("a", on("cpu", service=(0.02, 0.0))))
    assert rows(options(stage, where=pools(cpu=(0.5, 4)))) == [(3,), (4,)]
    assert options(stage, where=pools(cpu=(0.7, 20))).cost_per_hour[0] == pytest.approx(2.1)
    assert options(stage, where=pools(cpu=(0.5, 20), arm=(0.1, 9))).use.shape[1] == 2
    assert rows(options(stage)) != rows(options(stage, 50.0))


def test_no_option_is_worse_in_all_than_another_on_the_same_pools() -> None:
    stage = a_stage(
        "a",
        on("cpu", service=(0.02, 0.002), batches=(1, 4, 16), bounds=(0, 12), per_instance=2),
        on("gpu", service=(0.004, 0.001), batches=(1, 4, 16), bounds=(1, 4)),
        on("inferentia", service=(0.01, 0.001), batches=(1, 4, 16), bounds=(0, 6)),
    )
    table = options(stage, 900.0)
    values = np.column_stack((table.cost_per_hour, table.mean_s, table.percentile_s, table.use))
    mixes = table.replicas > 0
    for row in range(len(table)):
        same = np.all(mixes == mixes[row], axis=1)
        same[row] = False
        assert not np.any(np.all(values[same] <= values[row], axis=1))


def test_of_pools_the_dearer_and_slower_is_kept_for_when_the_other_is_scarce() -> None:
    stage = a_stage("a", on("cpu", service=(0.02, 0.0)), on("gpu", service=(0.03, 0.0)))
    assert any(row[0] == 0 for row in rows(options(stage)))


@pytest.mark.parametrize("rate_rps", [10.0, 20.0, 25.0, 30.0, 40.0, 50.0])
def test_the_least_mix_that_some_batches_let_carry_the_load_is_offered(rate_rps: float) -> None:
    stage = a_stage(
        "a",
        on("inferentia", service=(0.3, 0.22), bounds=(1, 1), batches=(1, 2, 4, 8), wait_s=0.2),
        on("gpu", service=(0.18, 0.09), bounds=(0, 12), batches=(1, 4, 16), wait_s=0.2),
    )
    carrying = [
        gpus
        for gpus in range(1, 13)
        for batches in product((1, 2, 4, 8), (1, 4, 16))
        if np.isfinite(
            predict_all(
                StageLoad(rate_rps=rate_rps),
                stage.placements,
                np.array([[1, gpus]]),
                np.array(batches),
                routing=stage.routing,
                percentile=95,
            ).percentile_s[0]
        )
    ]
    assert min(row[1] for row in rows(options(stage, rate_rps))) == min(carrying)


def test_free_mixes_are_listed_where_they_cost_less_than_single_placements() -> None:
    stage = a_stage("a", on("gpu", service=(0.02, 0.0)), on("inferentia", service=(0.05, 0.0)))
    free = replace(stage, mixing=Mixing.FREE)
    assert (2, 1) not in rows(options(stage, 100.0))
    assert (2, 1) in rows(options(free, 100.0))
    assert set(rows(options(stage, 100.0))) <= set(rows(options(free, 100.0)))
    assert not len(options(free, 100.0).unlisted)


def test_rows_for_unlisted_mixes_take_no_pool_and_cost_what_the_cheapest_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_FREE_LIMIT", 2)
    stage = a_stage("a", on("gpu", service=(0.02, 0.0)), on("inferentia", service=(0.05, 0.0)))
    table = options(replace(stage, mixing=Mixing.FREE), 101.0)
    more = with_unlisted(table)
    assert len(more) == len(table) + len(table.unlisted) > len(table)
    assert not more.use[len(table) :].any()
    assert np.all(np.diff(more.cost_per_hour[len(table) :]) >= 0)
    assert with_unlisted(options(stage, 101.0)) is options(stage, 101.0)
