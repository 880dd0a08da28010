"""The first page of a backtest's report: the same numbers and notes, and a link to each part."""

import re
from dataclasses import replace

from compared import ONE, SERVED

from optimizer.model import PipelineKey
from profiler.sources.prometheus_api import Period
from simulations.backtest.page import index
from simulations.backtest.pieces import Piece

PERIOD = Period(start_s=1_600_000_000, step_s=60, count=100)
PIECES = (Piece(first=0, scored=10, end=50), Piece(first=60, scored=70, end=100))


def test_the_page_has_the_comparison_the_notes_and_the_parts() -> None:
    page = index([ONE], SERVED, ["no record from a to b"], PIECES, PERIOD)
    for text in ("Sluice would have cost $55.00", "98.0 % of 600", "no record from a to b", "1.167 h of 1.667 h"):
        assert text in page, text
    assert 'href="1/report.html">2020-09-13T12:36:40Z to 2020-09-13T13:16:40Z' in page
    assert 'href="2/report.html"' in page


def test_the_first_sentence_is_that_of_the_reports_sluice_before_what_ran() -> None:
    page = index([ONE], SERVED, [], PIECES, PERIOD)
    verdict = page[page.index("<main") :]
    first, second = re.findall(r'<p class="first (good|bad)">(.*?)</p>', verdict)
    assert first == (
        "good",
        (
            "Sluice served 96 of 100 open streams (mean) as promised (96.0\N{NO-BREAK SPACE}%; the SLA asks for "
            "95.0\N{NO-BREAK SPACE}%): 1 refused, 3 late, 0 lost; 7 sessions were cut."
        ),
    )
    assert second[0] == "bad"
    assert second[1].startswith("What ran (simulated) served 90 of 100 open streams (mean)")
    assert verdict.index(second[1]) < verdict.index("Sluice would have cost")


def test_the_table_can_be_sorted_and_fits_a_phone() -> None:
    page = index([ONE], SERVED, [], PIECES, PERIOD)
    assert '<div class="scroll stacked"' in page
    assert "<script" in page


def test_names_are_text() -> None:
    page = index([replace(ONE, key=PipelineKey("a/<img>"))], SERVED[1:], ["<b>"], PIECES, PERIOD)
    assert "<img>" not in page
    assert "&lt;b&gt;" in page
