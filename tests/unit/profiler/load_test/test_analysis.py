"""From the answers to closed loops of clients alone, or with the server's counters, its law and its limit are found."""

import random
from collections.abc import Callable

import pytest
from closed_loops import batches, beside_each_other

from optimizer.model import Batching, ServiceLaw
from profiler.load_test.analysis import Level, analysed, of_levels
from profiler.load_test.observed import Answer, Window

LINE = ServiceLaw(fixed_s=0.014, per_item_s=0.003, cv=0.1)
ROOFLINE = ServiceLaw(fixed_s=0.002, per_item_s=0.0023, floor_s=0.014, cv=0.1)
ENCODER = ServiceLaw(points=((1, 0.012), (2, 0.016), (4, 0.031), (8, 0.062), (16, 0.121)), cv=0.05)
DECODE = ServiceLaw(fixed_s=0.2, per_item_s=0.01, cv=0.3)
LEVELS = (1, 2, 4, 8, 16, 32)

Loop = Callable[[int, random.Random], Window]


def loops(play: Loop, levels: tuple[int, ...] = LEVELS, rounds: int = 4) -> list[Window]:
    rng = random.Random(1)
    return [play(level, rng) for _ in range(rounds) for level in levels]


@pytest.mark.parametrize("counters", [None, 1.0])
@pytest.mark.parametrize(("law", "limit"), [(LINE, 8), (ROOFLINE, 16), (ENCODER, 16)])
def test_a_server_of_batches_is_told_with_its_limit_and_its_capacity(
    law: ServiceLaw, limit: int, counters: float | None
) -> None:
    found = analysed(loops(lambda level, rng: batches(law, limit, clients=level, rng=rng, counters=counters)))
    assert (found.batching, found.limit, found.concurrency) == (Batching.DYNAMIC, limit, 1)
    assert found.capacity_rps == pytest.approx(law.rate_rps(limit), rel=0.06)
    assert found.law.mean_s(1) == pytest.approx(law.mean_s(1), rel=0.12)
    assert found.counters_used is (counters is not None)
    assert found.law.cv == pytest.approx(law.cv, abs=0.04)


def test_counters_that_lie_are_not_used_and_that_is_said() -> None:
    found = analysed(loops(lambda level, rng: batches(LINE, 8, clients=level, rng=rng, counters=0.5)))
    assert not found.counters_used
    assert "contradict the throughput" in found.notes[0]
    assert found.capacity_rps == pytest.approx(LINE.rate_rps(8), rel=0.06)


def test_counters_show_how_many_batches_run_at_once() -> None:
    found = analysed(loops(lambda level, rng: batches(LINE, 4, clients=level, rng=rng, servers=2, counters=1.0)))
    assert (found.limit, found.concurrency) == (4, 2)
    assert found.capacity_rps == pytest.approx(2 * LINE.rate_rps(4), rel=0.06)


def test_a_server_of_one_item_at_a_time_has_its_time_from_its_throughput() -> None:
    law = ServiceLaw(fixed_s=0.02, cv=0.2)
    found = analysed(loops(lambda level, rng: batches(law, 1, clients=level, rng=rng), levels=(1, 2, 4)))
    assert (found.batching, found.limit, found.measured, found.concurrency) == (Batching.DYNAMIC, 1, 1, 1)
    assert found.law.fixed_s == pytest.approx(0.02, rel=0.05)
    assert found.law.cv == pytest.approx(0.2, abs=0.03)


def test_items_beside_each_other_that_do_not_slow_down_are_so_many_servers() -> None:
    law = ServiceLaw(fixed_s=0.02, cv=0.1)
    found = analysed(loops(lambda level, rng: batches(law, 1, clients=level, rng=rng, servers=4)))
    assert (found.batching, found.concurrency, found.measured) == (Batching.DYNAMIC, 4, 1)
    assert found.capacity_rps == pytest.approx(200, rel=0.06)


@pytest.mark.parametrize("limit", [8, 16])
def test_a_server_that_batches_continuously_is_told_with_its_places(limit: int) -> None:
    found = analysed(loops(lambda level, rng: beside_each_other(DECODE, limit, clients=level, rng=rng)))
    assert found.batching is Batching.CONTINUOUS
    assert found.limit == pytest.approx(limit, rel=0.15)
    assert found.capacity_rps == pytest.approx(DECODE.rate_rps(limit), rel=0.08)
    assert found.law.cv == pytest.approx(0.3, abs=0.08)


def test_few_answers_that_come_together_by_chance_are_no_batches() -> None:
    law = ServiceLaw(fixed_s=0.1, per_item_s=0.005, cv=0.2)
    lengths_s = {1: 1.6, 2: 0.85, 4: 0.45, 8: 0.26, 16: 0.27}  # about fifteen answers each
    for seed in range(50):
        rng = random.Random(seed)
        windows = [
            beside_each_other(law, 8, clients=level, rng=rng, length_s=length_s)
            for level, length_s in lengths_s.items()
        ]
        assert analysed(windows).batching is Batching.CONTINUOUS, f"seed {seed}"


def test_many_short_items_beside_each_other_are_no_batches() -> None:
    law = ServiceLaw(fixed_s=0.004, per_item_s=0.0005, cv=0.2)
    found = analysed(loops(lambda level, rng: beside_each_other(law, 16, clients=level, rng=rng, length_s=3.0)))
    assert found.batching is Batching.CONTINUOUS


def test_prefills_are_told_from_the_first_tokens_and_their_stalls_are_not_counted_twice() -> None:
    law = ServiceLaw(fixed_s=0.2, per_item_s=0.01, prefill_s=0.02, cv=0.2)
    found = analysed(loops(lambda level, rng: beside_each_other(law, 8, clients=level, rng=rng, streamed=True)))
    assert found.batching is Batching.CONTINUOUS
    assert found.law.prefill_s == pytest.approx(0.02, rel=0.1)
    assert found.law.mean_s(8) == pytest.approx(law.mean_s(8), rel=0.1)
    assert found.capacity_rps == pytest.approx(law.rate_rps(8), rel=0.08)


def test_what_the_protocol_says_of_batching_is_believed() -> None:
    found = analysed(loops(lambda level, rng: batches(LINE, 8, clients=level, rng=rng)), continuous=True)
    assert found.batching is Batching.CONTINUOUS


def test_a_limit_that_the_load_did_not_reach_is_not_known() -> None:
    play: Loop = lambda level, rng: batches(LINE, 64, clients=level, rng=rng)  # noqa: E731
    found = analysed(loops(play, levels=(1, 2, 4, 8)))
    assert found.limit is None
    assert "did not fill the server" in found.notes[0]
    told = analysed(loops(play, levels=(1, 2, 4, 8)), limit=64)
    assert (told.limit, told.notes) == (64, ())


def test_the_error_falls_with_the_number_of_windows_and_holds_the_truth() -> None:
    law = ServiceLaw(fixed_s=0.014, per_item_s=0.003, cv=0.4)
    play: Loop = lambda level, rng: batches(law, 8, clients=level, rng=rng, length_s=1.0)  # noqa: E731
    few, many = (analysed(loops(play, rounds=rounds)) for rounds in (2, 12))
    assert many.relative_error < few.relative_error
    for found in (few, many):
        assert found.capacity_rps == pytest.approx(law.rate_rps(8), rel=2.5 * found.relative_error)


def test_without_an_answer_to_a_single_client_nothing_is_said() -> None:
    failed = Answer(due_s=0.0, done_s=1.0, failure="status 500")
    window = Window(concurrency=1, rate_rps=0.0, start_s=0.0, end_s=1.0, answers=(failed,))
    with pytest.raises(ValueError, match="no answer"):
        analysed([window])


def test_levels_of_another_tool_give_the_same_law() -> None:
    levels = {n: Level(answers=500, rate_rps=n / DECODE.mean_s(n)) for n in (1, 2, 4, 8, 16)}
    levels |= {n: Level(answers=500, rate_rps=levels[16].rate_rps) for n in (32, 64)}
    found = of_levels(levels, prefill_s=0.0, cv=0.3)
    assert found.limit == 16
    assert found.law.fixed_s == pytest.approx(0.2, rel=0.03)
    assert found.law.per_item_s == pytest.approx(0.01, rel=0.1)
