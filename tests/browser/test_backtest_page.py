"""The first page of a backtest in a real browser: nothing is clipped, and its table is sorted by a click."""

import asyncio
from pathlib import Path

import pytest
from browser import a_browser, a_page
from compared import ONE, SERVED

from profiler.sources.prometheus_api import Period
from simulations.backtest.page import index
from simulations.backtest.pieces import Piece

CLIPPED = """[...document.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth + 1).length"""
WIDER = "document.documentElement.scrollWidth > innerWidth"
COSTS = "[...document.querySelectorAll('tbody tr')].map((row) => row.cells[1].textContent)"
BY_COST = "[...document.querySelectorAll('thead th')].find((head) => head.textContent === 'cost').click()"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 400])
def test_the_first_page_of_a_backtest_fits_and_can_be_sorted(tmp_path: Path, width: int, dark: bool) -> None:
    path = tmp_path / "report.html"
    period = Period(start_s=1_600_000_000, step_s=60, count=100)
    path.write_text(index([ONE], SERVED, ["no record"], [Piece(first=0, scored=10, end=50)], period))

    async def look(browser: str) -> tuple[list[str], list[str]]:
        async with a_page(browser) as page:
            await page.open(path.as_uri(), width=width, dark=dark)
            assert await page.evaluate(CLIPPED) == 0
            assert not await page.evaluate(WIDER)
            await page.evaluate(BY_COST)
            return await page.evaluate(COSTS), page.complaints

    with a_browser() as browser:
        costs, complaints = asyncio.run(look(browser))
    assert costs == ["$55.00", "$100.00", "$110.00"]
    assert complaints == []
