"""`sluice readiness --format html` in the browser: it loads nothing, and fits a phone."""

import asyncio
from pathlib import Path

from browser import a_browser, a_page
from click.testing import CliRunner
from corpus import CONTRACT

from controller.commands.readiness import readiness


def test_the_page_fits_a_phone_and_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    arguments = [*map(str, CONTRACT), "--demand", "speech/live-captions=800", "--format", "html", "--out", str(path)]
    assert CliRunner().invoke(readiness, arguments).exit_code == 0

    async def visit() -> tuple[str, int]:
        with a_browser() as browser:
            async with a_page(browser) as page:
                await page.open(path.as_uri())
                await page.resize(360, 800)
                text = await page.evaluate("document.body.textContent")
                width = await page.evaluate("document.documentElement.scrollWidth")
                assert page.complaints == []
                assert page.requests == [path.as_uri()]
                return text, width

    text, width = asyncio.run(visit())
    assert "nothing blocks a launch" in text
    assert width <= 360
