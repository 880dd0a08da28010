"""An engine with continuous batching."""

import pytest

from simulations.lab.pods.engine import Engine


def an_engine(limit: int = 8, prefill_s: float = 0.0) -> Engine[str]:
    return Engine(limit, lambda running: 1.0 + 0.5 * (running - 1), lambda: prefill_s)


def test_an_item_alone_takes_the_time_of_one() -> None:
    engine = an_engine()
    engine.join("a", 2.0, 10.0)
    assert engine.next_end_s() == 12.0
    run, together = engine.end(12.0)
    assert (run.item, run.joined_s, together) == ("a", 10.0, 1.0)
    assert engine.next_end_s() is None


def test_items_that_run_together_slow_each_other_and_leave_when_their_own_work_is_done() -> None:
    engine = an_engine()
    engine.join("long", 2.0, 0.0)
    engine.join("short", 0.5, 1.0)  # half of the long one is done; two run at 1 / 1.5
    assert engine.next_end_s() == pytest.approx(1.75)
    run, together = engine.end(1.75)
    assert run.item == "short"
    assert together == pytest.approx(2.0)
    assert engine.next_end_s() == pytest.approx(1.75 + 0.5)
    run, together = engine.end(2.25)
    assert run.item == "long"
    assert together == pytest.approx((2.25 + 0.75) / 2.25)


def test_nobody_progresses_while_an_item_is_prefilled() -> None:
    engine = an_engine(prefill_s=0.25)
    engine.join("a", 1.0, 0.0)
    assert engine.next_end_s() == pytest.approx(1.25)
    engine.join("b", 1.0, 0.75)  # a has done half of its work
    assert engine.next_end_s() == pytest.approx(0.75 + 0.25 + 0.5 * 1.5)
    run, _ = engine.end(1.75)
    assert run.prefilled_s == pytest.approx(0.25)


def test_an_engine_is_full_at_its_limit() -> None:
    engine = an_engine(limit=2)
    full = []
    for _ in range(2):
        engine.join("a", 1.0, 0.0)
        full.append(engine.full)
    assert full == [False, True]
