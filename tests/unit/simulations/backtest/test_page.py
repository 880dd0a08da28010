"""The first page of a backtest's report: the same numbers and notes, and a link to each part."""

from dataclasses import replace

from compared import ONE

from optimizer.model import PipelineKey
from profiler.sources.prometheus_api import Period
from simulations.backtest.page import index
from simulations.backtest.pieces import Piece

PERIOD = Period(start_s=1_600_000_000, step_s=60, count=100)
PIECES = (Piece(first=0, scored=10, end=50), Piece(first=60, scored=70, end=100))


def test_the_page_has_the_comparison_the_notes_and_the_parts() -> None:
    page = index([ONE], ["no record from a to b"], PIECES, PERIOD)
    for text in ("Sluice would have cost $55.00", "98.0 % of 600", "no record from a to b", "1.167 h of 1.667 h"):
        assert text in page, text
    assert 'href="1/report.html">2020-09-13T12:36:40Z to 2020-09-13T13:16:40Z' in page
    assert 'href="2/report.html"' in page


def test_names_are_text() -> None:
    page = index([replace(ONE, key=PipelineKey("a/<img>"))], ["<b>"], PIECES, PERIOD)
    assert "<img>" not in page
    assert "&lt;b&gt;" in page
