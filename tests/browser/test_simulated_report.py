"""`sluice simulate` from a scenario to a page in the browser, with the real simulator, twice."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from browser import a_browser, a_page
from click.testing import CliRunner
from corpus import ROOT

from simulations.commands.simulate import simulate

ARGUMENTS = [
    str(ROOT / "simulations" / "scenarios" / "demo" / "scenario.yaml"),
    "--policy",
    "sluice",
    "--policy",
    "hpa",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same experiment twice: in one process, and in two."""
    found = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["sluice", "simulate", "scenario.yaml"])
        for jobs in ("1", "2"):
            folder = tmp_path_factory.mktemp(f"jobs-{jobs}")
            arguments = [*ARGUMENTS, "--seeds", "1,2", "--jobs", jobs, "--out", str(folder)]
            result = CliRunner().invoke(simulate, arguments, catch_exceptions=False)
            assert result.exit_code == 0, result.output
            assert result.stdout.splitlines()[-1] == f"report: {folder / 'report.html'}"
            found.append(folder)
    return found


def results(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return document


def test_the_same_seeds_give_the_same_bytes(folders: list[Path]) -> None:
    one, two = folders
    assert (one / "report.html").read_bytes() == (two / "report.html").read_bytes()
    once, again = results(one), results(two)
    for document in (once, again):
        for run in document["runs"]:
            assert run.pop("wall_s") > 0
    assert once == again


def test_items_are_accounted_for_and_nothing_is_cheaper_than_the_bound(folders: list[Path]) -> None:
    document = results(folders[0])
    assert [run["policy"] for run in document["runs"] if run["tuning"] == "default"] == ["sluice", "hpa"]
    for run in document["runs"]:
        parts = [run[name] for name in ("served", "filtered", "shed", "refused", "lost", "in_flight")]
        assert sum(parts) == pytest.approx(run["offered"])
        assert run["offered"] > 10_000
        assert run["sla_windows_met"] < 0.995 or run["cost_over_bound"] >= 1
    assert all(check["ok"] for check in document["self_checks"])
    assert document["self_checks"]


def test_the_page_shows_what_the_json_says(folders: list[Path]) -> None:
    path = folders[0] / "report.html"
    cost = next(run["cost"] for run in results(folders[0])["runs"] if run["policy"] == "sluice")

    async def visit() -> tuple[str, int]:
        with a_browser() as browser:
            async with a_page(browser) as page:
                await page.open(path.as_uri())
                found = await page.evaluate("document.querySelector('#found').textContent")
                charts = await page.evaluate("document.querySelectorAll('#time figure').length")
                assert page.complaints == []
                assert page.requests == [path.as_uri()]
                return found, charts

    found, charts = asyncio.run(visit())
    assert f"${cost:.3f}" in found
    assert charts >= 7 * 3  # of Sluice with both seeds, and of HPA
