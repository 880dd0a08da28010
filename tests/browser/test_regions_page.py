"""The page of a study of regions in a real browser: light and dark, on a wide screen and on a phone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Page, a_browser, a_page
from region_files import EAST, WEST, write_regions

from simulations.regions.page import render
from simulations.regions.scenario import load_regions
from simulations.regions.study import study

CLIPPED = """[...document.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth + 1).length"""
WIDER = "document.documentElement.scrollWidth > innerWidth"
HEADS = "[...document.querySelectorAll('h2')].map((head) => head.textContent)"
TITLES = "[...document.querySelectorAll('figure figcaption strong')].map((title) => title.textContent)"
TICKS = "[...document.querySelector('figure .x').children].map((tick) => tick.textContent)"
READ = """(() => { const plot = document.querySelector("figure .plot"); plot.focus();
  plot.dispatchEvent(new KeyboardEvent("keydown", { key: "Home" }));
  return document.querySelector("figure .read-out").textContent; })()"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study in which streams of the east are cheaper in the west, and may not leave the north."""
    folder = tmp_path_factory.mktemp("regions")
    loads = {"east": EAST, "west": WEST, "north": (9, 9, 9, 9)}
    loaded = load_regions(
        write_regions(folder, loads, prices={"east": "3.00"}, paid="ByHour", more={"north": "servedBy: []"})
    )
    path = folder / "report.html"
    path.write_text(render(study(loaded, points=6), loaded))
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[str]:
    with a_browser() as url:
        yield url


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_regions_fits_and_its_charts_are_read(
    browser: str, written: Path, width: int, *, dark: bool
) -> None:
    async def look(page: Page) -> list[Any]:
        assert await page.evaluate(CLIPPED) == 0
        assert not await page.evaluate(WIDER)
        return [await page.evaluate(each) for each in (HEADS, TITLES, TICKS, READ, "document.body.textContent")]

    async def visit() -> list[Any]:
        async with a_page(browser) as page:
            await page.open(written.as_uri(), width=width, dark=dark)
            found = await look(page)
            assert page.complaints == []
            assert page.requests == [written.as_uri()]
            return found

    heads, titles, ticks, read, text = asyncio.run(visit())
    assert heads == ["Verdict", "Where streams go", "Cost of a day", "If a region is lost", "Accuracy"]
    assert titles == ["east", "west", "north"]
    assert ticks[:2] == ["00:00", "04:00"]
    assert read.startswith("00:00: load of its users 40 · served there ")
    assert "Serving streams across regions saves $" in text
    assert "east → west" in text
    assert "proven" in text
