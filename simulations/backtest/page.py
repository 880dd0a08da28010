"""The first page of a backtest's report: the comparison, and links to the report of each part."""

from collections.abc import Sequence

from controller.core.messages.phrases import timestamp
from controller.html import Markup, element, page
from profiler.sources.prometheus_api import Period
from simulations.backtest.comparison import COLUMNS, Comparison, Served, head, rows, sentences
from simulations.backtest.pieces import Piece
from simulations.report.page import asset
from simulations.report.table import table
from simulations.results.users import promise_kept


def index(
    compared: Sequence[Comparison],
    served: Sequence[Served],
    notes: Sequence[str],
    pieces: Sequence[Piece],
    period: Period,
) -> str:
    """Return the page; `NUMBER/report.html` beside it is the report of each of `pieces`, counted from 1.

    Its first sentence is that of the reports: the users of `served`, Sluice's before those of what ran.
    """
    steps = sum(piece.end - piece.scored for piece in pieces)
    return page(
        "Sluice backtest",
        element(
            "header",
            element("p", "Sluice · compute for speech pipelines", class_="brand"),
            element("h1", "Backtest"),
            element(
                "p",
                "Recorded load, replayed in a simulator with Sluice's decisions and with the replicas that ran.",
                class_="lead",
            ),
        ),
        element(
            "main",
            served and element("section", element("h2", "Verdict"), [_sentence(one) for one in served]),
            [_pipeline(one, period, steps) for one in compared],
            element(
                "section",
                element("h2", "What was not recorded, and what is assumed"),
                element("ul", [element("li", note) for note in notes]),
            ),
            element(
                "section",
                element("h2", "Parts"),
                element("p", "Load, latency, cost and each decision over time."),
                element("ul", [_link(number, piece, period) for number, piece in enumerate(pieces, start=1)]),
            ),
        ),
        style=asset("style.css"),
        script=asset("script.js"),
    )


def _sentence(one: Served) -> Markup:
    tone = {True: " good", False: " bad", None: ""}[promise_kept(one.users)]
    return element("p", one.sentence().replace(" %", "\N{NO-BREAK SPACE}%"), class_=f"first{tone}")


def _pipeline(one: Comparison, period: Period, steps: int) -> Markup:
    return element(
        "section",
        element("h2", head(one, period, steps)),
        element("ul", [element("li", sentence) for sentence in sentences(one)], class_="findings"),
        table(("#", *COLUMNS[1:]), rows(one), label=f"Comparison of {one.key}"),
    )


def _link(number: int, piece: Piece, period: Period) -> Markup:
    begin, end = (timestamp(period.start_s + step * period.step_s) for step in (piece.scored, piece.end))
    return element("li", element("a", f"{begin} to {end}", href=f"{number}/report.html"))
