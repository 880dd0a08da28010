"""The report in a real browser: light and dark, narrow and wide, by keyboard, and with names that want to be markup."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
from browser import Page, a_browser, a_page
from experiments import a_check, a_result, a_scenario, a_whole_experiment, an_experiment

from simulations.report.page import render
from simulations.results.diagnoses import Episode, NamedCause
from simulations.results.results import DecisionEntry, Experiment, PlacementChange

T = TypeVar("T")
MIN_CONTRAST = 4.5
MIN_GRAPHICS_CONTRAST = 3.0
EPISODES = tuple(
    Episode(
        pipeline="speech/live-captions",
        from_s=from_s,
        until_s=from_s + 95.0,
        named=NamedCause(
            cause="Queueing",
            because="StuckReplica",
            stage="encoder",
            confidence=0.91,
            evidence=(
                "11 items wait before encoder, for 24.8 s each",
                "encoder-inferentia-7c9f8d6b54-x2k9q completes nothing, while 11 items wait there and others work",
            ),
            remedy="the end of these pods: kubectl -n speech delete pod encoder-inferentia-7c9f8d6b54-x2k9q",
            cost_per_hour=0.0,
        ),
    )
    for from_s in (300.0, 1200.0, 3600.0)
)
LOOKS = [(width, dark) for width in (1280, 380) for dark in (False, True)]

# Text that shows against what is behind it, as WCAG 2 has it; colours with alpha are blended with what is below them.
_COLOURS = """
const rgba = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
const behind = (element) => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
};
const luminance = (c) => {
  const [r, g, b] = c.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (one, other) => {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const colourOf = (e, property) => {
  const below = behind(e);
  return [over(rgba(getComputedStyle(e)[property]), below), below];
};
"""
TEXT_CONTRASTS = f"""(() => {{ {_COLOURS}
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {{
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.checkVisibility() || /script|style|title/i.test(e.tagName)) continue;
    const property = e.closest("svg") ? "fill" : "color";
    const [ink, below] = colourOf(e, property);
    const ratio = contrast(ink, below);
    const name = e.tagName + "." + (e.getAttribute("class") ?? "");
    if (!found.has(name) || ratio < found.get(name)) found.set(name, ratio);
  }}
  return Object.fromEntries(found);
}})()"""
LINE_CONTRASTS = f"""(() => {{ {_COLOURS}
  const found = {{}};
  for (const e of document.querySelectorAll("path.line, path.point, path.mark"))
    if (e.checkVisibility()) found[e.getAttribute("class")] = contrast(...colourOf(e, "stroke"));
  return found;
}})()"""
OVERFLOWING = """[...document.querySelectorAll("body *")]
  .filter((e) => !e.closest(".scroll, pre, .skip") && e.checkVisibility() && !e.closest("svg")
    && e.getBoundingClientRect().width > 0 && e.getBoundingClientRect().right > innerWidth + 0.5)
  .map((e) => e.tagName + "." + e.className + ": " + e.textContent.slice(0, 40))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[str]:
    with a_browser() as url:
        yield url


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    experiment = a_whole_experiment(seeds=2)
    results = (replace(each, diagnosis=EPISODES) if each.policy == "sluice" else each for each in experiment.results)
    path.write_text(render(replace(experiment, results=tuple(results)), a_scenario(), error_bar=None))
    return path


Look = Callable[[Page], Awaitable[T]]


def looked_at(browser: str, path: Path, look: Look[T], *, width: int = 1280, dark: bool = False) -> T:
    """Open a page, do something with it, and see that it did not complain and asked nobody for anything."""

    async def visit() -> T:
        async with a_page(browser) as page:
            await page.open(path.as_uri(), width=width, dark=dark)
            found = await look(page)
            assert page.complaints == []
            assert page.requests == [path.as_uri()]
            return found

    return asyncio.run(visit())


def evaluated(browser: str, path: Path, expression: str, *, width: int = 1280, dark: bool = False) -> Any:
    return looked_at(browser, path, lambda page: page.evaluate(expression), width=width, dark=dark)


def written(folder: Path, experiment: Experiment) -> Path:
    path = folder / "report.html"
    path.write_text(render(experiment, a_scenario(), error_bar=None))
    return path


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_nothing_is_wider_than_the_page(browser: str, whole: Path, width: int, dark: bool) -> None:
    async def look(page: Page) -> None:
        await page.evaluate("document.querySelectorAll('details').forEach((d, i) => { d.open = i < 4 })")
        assert await page.evaluate("document.documentElement.scrollWidth") == width
        assert await page.evaluate(OVERFLOWING) == []

    looked_at(browser, whole, look, width=width, dark=dark)


@pytest.mark.parametrize("width", [1280, 1000, 400])
def test_the_columns_of_the_diagnosis_are_wide_enough_to_read(browser: str, whole: Path, width: int) -> None:
    cells = evaluated(
        browser,
        whole,
        """[...document.querySelector("#why .causes tbody tr").cells].map((c) => {
          const box = c.getBoundingClientRect();
          return { width: box.width, height: box.height, inside: box.left >= 0 && box.right <= innerWidth }; })""",
        width=width,
    )
    assert len(cells) == 7
    assert all(cell["inside"] and cell["height"] < 200 for cell in cells)
    assert all(cell["width"] >= 240 for cell in cells[5:])


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_every_text_and_line_can_be_told_from_what_is_behind_it(
    browser: str, whole: Path, width: int, dark: bool
) -> None:
    texts = evaluated(browser, whole, TEXT_CONTRASTS, width=width, dark=dark)
    lines = evaluated(browser, whole, LINE_CONTRASTS, width=width, dark=dark)
    assert len(texts) > 20
    assert {name: ratio for name, ratio in texts.items() if ratio < MIN_CONTRAST} == {}
    assert {"line offered", "line pool1", "line bound"} <= lines.keys()
    assert {name: ratio for name, ratio in lines.items() if ratio < MIN_GRAPHICS_CONTRAST} == {}


def test_alarms_can_be_read_in_light_and_dark(browser: str, tmp_path: Path) -> None:
    path = written(tmp_path, an_experiment(checks=[a_check(ok=False)]))
    for dark in (False, True):
        texts = evaluated(browser, path, TEXT_CONTRASTS, dark=dark)
        assert texts["P.alarm"] >= MIN_CONTRAST
        assert {name: ratio for name, ratio in texts.items() if ratio < MIN_CONTRAST} == {}


def test_it_is_printed_dark_on_light_whatever_the_screen_has(browser: str, whole: Path) -> None:
    async def look(page: Page) -> dict[str, float]:
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await page.call("Emulation.setEmulatedMedia", media="print", features=dark)
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        found: dict[str, float] = await page.evaluate(TEXT_CONTRASTS)
        return found

    texts = looked_at(browser, whole, look)
    assert {name: ratio for name, ratio in texts.items() if ratio < MIN_CONTRAST} == {}


def test_dark_is_dark_and_light_is_light(browser: str, whole: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((sum, v) => sum + +v, 0) / 3"
    assert evaluated(browser, whole, background, dark=False) > 200
    assert evaluated(browser, whole, background, dark=True) < 60


@pytest.mark.parametrize("width", [1280, 380])
def test_every_chart_that_shows_has_marks_that_show(browser: str, whole: Path, width: int) -> None:
    charts = evaluated(
        browser,
        whole,
        """[...document.querySelectorAll("figure.chart")].filter((f) => f.checkVisibility()).map((figure) => ({
          title: figure.querySelector("figcaption").textContent,
          marks: [...figure.querySelectorAll("svg")].filter((svg) => svg.checkVisibility() && !svg.matches(".swatch"))
            .flatMap((svg) => [...svg.querySelectorAll("path.line, path.point")])
            .filter((p) => p.getBoundingClientRect().width > 5).length,
          legend: figure.querySelectorAll(".legend li").length,
          ticks: figure.querySelectorAll(".y span, .scatter text").length,
        }))""",
        width=width,
    )
    assert [chart["title"].split(" ")[0] for chart in charts[:3]] == ["Load", "Latency", "Cost"]
    assert len(charts) >= 3 + 4 + 1 + 1
    assert [chart for chart in charts if not (chart["marks"] and chart["legend"] and chart["ticks"])] == []


def test_axis_labels_do_not_cover_each_other(browser: str, whole: Path) -> None:
    for width in (1280, 380):
        covered = evaluated(
            browser,
            whole,
            """[...document.querySelectorAll(".x, .y")].filter((a) => a.checkVisibility()).flatMap((axis) => {
              const boxes = [...axis.children].filter((s) => s.checkVisibility()).map((s) => s.getBoundingClientRect());
              return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) =>
                a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
                .map(() => axis.textContent));
            })""",
            width=width,
        )
        assert covered == []


def test_a_chart_can_be_read_out_with_the_pointer(browser: str, whole: Path) -> None:
    async def look(page: Page) -> str:
        box = await page.evaluate(
            """(() => { const plot = document.querySelector(".plot"); plot.scrollIntoView({block: "center"});
            const box = plot.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()"""
        )
        left, top, width, height = box
        await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + width / 2, y=top + height / 2)
        told: str = await page.evaluate("document.querySelector('.read-out').textContent")
        return told

    told = looked_at(browser, whole, look)
    series = a_whole_experiment(seeds=2).results[0].series
    assert told.startswith("25:50: offered 4")  # the middle of 2:00 to 50:00, window by window
    assert f"answered {series.pipelines[0].served_rps[143]:.0f}" in told


def test_a_chart_can_be_read_out_by_keyboard(browser: str, whole: Path) -> None:
    async def look(page: Page) -> list[str]:
        await page.evaluate("document.querySelector('.plot').focus()")
        told = []
        for key in ("End", "ArrowLeft", "Home"):
            await page.press(key)
            told.append(await page.evaluate("document.querySelector('.read-out').textContent.split(': ')[0]"))
        return told

    assert looked_at(browser, whole, look) == ["49:50", "49:40", "2:00"]


def test_the_decision_log_can_be_searched(browser: str, whole: Path) -> None:
    shown = "[...document.querySelector('.log').querySelectorAll('tbody tr')].filter((r) => r.checkVisibility()).length"

    async def look(page: Page) -> list[int]:
        counts = [await page.evaluate(shown)]
        await page.evaluate("document.querySelector('.changes-only').click()")
        counts.append(await page.evaluate(shown))
        await page.evaluate(
            "const search = document.querySelector('.search');"
            "search.value = '3→4'; search.dispatchEvent(new Event('input'))"
        )
        counts.append(await page.evaluate(shown))
        return counts

    everything, changes, found = looked_at(browser, whole, look)
    assert (everything, changes) == (120, 80)
    assert 0 < found < changes


def test_a_table_is_sorted_by_the_column_that_is_clicked(browser: str, whole: Path) -> None:
    column = """[...document.querySelectorAll('#policies .stacked tbody tr')].slice(0, 22)
      .map((row) => row.cells[INDEX].firstChild.textContent)"""
    head = "[...document.querySelector('#policies thead').rows[0].cells].find((h) => h.textContent === NAME)"

    async def look(page: Page) -> tuple[list[str], list[str], list[str]]:
        per_month = head.replace("NAME", "'per month'")
        await page.evaluate(f"{per_month}.click()")
        cheapest_first = await page.evaluate(column.replace("INDEX", "9"))
        await page.evaluate(f"{per_month}.focus()")
        await page.press("Enter")
        dearest_first = await page.evaluate(column.replace("INDEX", "9"))
        assert await page.evaluate(f"{per_month}.ariaSort") == "descending"
        await page.evaluate(f"{head.replace('NAME', repr('policy'))}.click()")
        return cheapest_first, dearest_first, await page.evaluate(column.replace("INDEX", "0"))

    cheapest_first, dearest_first, names = looked_at(browser, whole, look)
    amounts = [float(text.strip("$").replace(",", "")) for text in cheapest_first]
    assert len(set(amounts)) > 10
    assert amounts == sorted(amounts)
    assert dearest_first[0] == cheapest_first[-1]
    assert names == sorted(names)


def test_no_table_is_clipped_on_a_desktop_or_a_phone(browser: str, whole: Path) -> None:
    clipped = """[...document.querySelectorAll(".scroll")]
      .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1).map((e) => e.ariaLabel)"""

    async def look(page: Page) -> list[str]:
        await page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
        found: list[str] = await page.evaluate(clipped)
        return found

    for width in (1400, 400):
        assert looked_at(browser, whole, look, width=width) == []


def test_a_link_opens_what_it_points_into(browser: str, whole: Path) -> None:
    async def look(page: Page) -> bool:
        assert not await page.evaluate("document.getElementById('run-hpa-default').open")
        await page.evaluate("document.querySelector('a[href=\"#run-hpa-default\"]').click()")
        await page.evaluate("new Promise((done) => setTimeout(done, 0))")
        opened: bool = await page.evaluate(
            "document.getElementById('run-hpa-default').open && "
            "document.querySelector('#run-hpa-default svg').checkVisibility()"
        )
        return opened

    assert looked_at(browser, whole, look)


def test_keyboards_and_screen_readers_find_their_way(browser: str, whole: Path) -> None:
    found = evaluated(
        browser,
        whole,
        """({
          headings: [...document.querySelectorAll("h1,h2,h3,h4")].map((h) => +h.tagName[1]),
          unnamed: [...document.querySelectorAll("section, nav, [role=region]")]
            .filter((e) => !e.ariaLabel && !document.getElementById(e.getAttribute("aria-labelledby") ?? "")).length,
          images: [...document.querySelectorAll("svg[role=img]")].filter((s) => !s.ariaLabel).length,
          inputs: [...document.querySelectorAll("input")].filter((i) => !i.labels.length).length,
          headers: [...document.querySelectorAll("th")].filter((t) => !t.scope).length,
          stuck: [...document.querySelectorAll(".scroll")].filter((e) => e.tabIndex < 0).length,
        })""",
    )
    levels = found.pop("headings")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert set(found.values()) == {0}


def test_hostile_names_are_shown_as_text(browser: str, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)></title></script><script>alert(2)</script>\"'&"
    result = a_result(hostile)
    series = replace(
        result.series,
        pipelines=tuple(
            replace(
                p,
                pipeline=hostile,
                placements=tuple(replace(q, stage=hostile, placement=hostile) for q in p.placements),
            )
            for p in result.series.pipelines
        ),
        price_per_hour={hostile: (1.0, 2.0, 1.0, 1.0, 1.0, 1.0)},
    )
    entry = DecisionEntry(
        t_s=1.0,
        pipeline=hostile,
        changes=(PlacementChange(stage=hostile, placement=hostile, before=1, after=2),),
        reason=hostile,
    )
    experiment = replace(
        an_experiment(replace(result, series=series, decisions=(entry,)), a_result("hpa")), scenario=hostile
    )
    path = written(tmp_path, experiment)

    async def look(page: Page) -> dict[str, Any]:
        await page.evaluate("document.querySelector('.plot').focus()")
        await page.press("End")
        found: dict[str, Any] = await page.evaluate(
            """({ heading: document.querySelector("h1").textContent, images: document.images.length,
            scripts: document.scripts.length, reason: document.querySelector(".log td:last-child").textContent })"""
        )
        return found

    reason = f"{hostile} 1→2 on {hostile}: {hostile}"
    assert looked_at(browser, path, look) == {"heading": hostile, "images": 0, "scripts": 1, "reason": reason}


def test_it_can_be_read_without_scripts(browser: str, whole: Path) -> None:
    async def visit() -> int:
        async with a_page(browser) as page:
            await page.open(whole.as_uri(), scripts=False)
            document = await page.call("DOM.getDocument")
            found = await page.call("DOM.querySelectorAll", nodeId=document["root"]["nodeId"], selector="path.line")
            return len(found["nodeIds"])

    assert asyncio.run(visit()) > 20
