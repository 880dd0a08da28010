"""Timers of the lab: never early, in order, cancellable."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from simulations.lab.net.timers import Timers


def with_timers(use: Callable[[Timers], Awaitable[None]]) -> None:
    async def run() -> None:
        timers = Timers()
        try:
            async with asyncio.timeout(5):
                await use(timers)
        finally:
            timers.close()

    asyncio.run(run())


def test_sleeping_never_ends_early() -> None:
    early: list[float] = []

    async def use(timers: Timers) -> None:
        async def one(delay_s: float) -> None:
            until_s = time.monotonic() + delay_s
            await timers.sleep_until(until_s)
            early.append(min(0.0, time.monotonic() - until_s))

        await asyncio.gather(*(one(0.0003 * step) for step in range(100)))

    with_timers(use)
    assert early == [0.0] * 100


def test_calls_happen_in_the_order_of_their_instants_whatever_the_order_of_scheduling() -> None:
    seen: list[int] = []

    async def use(timers: Timers) -> None:
        start_s = time.monotonic() + 0.01
        for place in (3, 0, 2, 1):
            timers.call_at(start_s + place * 1e-3, lambda place=place: seen.append(place))  # type: ignore[misc]
        await timers.sleep_until(start_s + 5e-3)

    with_timers(use)
    assert seen == [0, 1, 2, 3]


def test_an_instant_in_the_past_fires_and_sleeping_until_it_returns() -> None:
    async def use(timers: Timers) -> None:
        fired = asyncio.Event()
        timers.call_at(-1.0, fired.set)
        async with asyncio.timeout(10):
            await fired.wait()
            await timers.sleep_until(0.0)
            await timers.sleep(0.0)
        assert fired.is_set()

    with_timers(use)


def test_a_cancelled_timer_does_not_fire_and_later_ones_do() -> None:
    seen: list[str] = []

    async def use(timers: Timers) -> None:
        now_s = time.monotonic()
        timers.call_at(now_s + 1e-3, lambda: seen.append("cancelled")).cancel()
        timers.call_at(now_s + 2e-3, lambda: seen.append("kept"))
        sleeper = asyncio.create_task(timers.sleep(1e-3))
        await asyncio.sleep(0)
        sleeper.cancel()
        await timers.sleep_until(now_s + 4e-3)

    with_timers(use)
    assert seen == ["kept"]


def test_a_failing_call_does_not_stop_the_other_timers() -> None:
    failures: list[object] = []

    async def use(timers: Timers) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
        now_s = time.monotonic()
        timers.call_at(now_s + 1e-3, lambda: 1 // 0)
        await timers.sleep_until(now_s + 2e-3)

    with_timers(use)
    assert [type(failure) for failure in failures] == [ZeroDivisionError]


def test_other_systems_are_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        with pytest.raises(RuntimeError, match=r"platform: 'darwin'.*need Linux"):
            Timers()

    asyncio.run(run())
