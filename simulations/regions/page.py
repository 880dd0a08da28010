"""The page of a study: what smoothing saves, where streams go over the day, and what a lost region costs."""

from collections.abc import Iterator

from controller.html import Markup, element, page
from simulations.regions import tables
from simulations.regions.scenario import Regions
from simulations.regions.study import Study
from simulations.report import formats, scale
from simulations.report.chart import Chart, Line, TimeAxis, figure, read_out_axis
from simulations.report.page import asset
from simulations.report.table import table

LIMITS = (
    "Streams move as new ones begin; their lengths are taken as exponential. Requests move at once.",
    (
        "A way takes its round trip, the same for all items and hours. One latency holds for the day: that of the "
        "furthest users that a region serves."
    ),
    "A lost region is lost for a day. Nodes that have to be launched take longer than the start-up of a replica.",
    "Loads are means of a step; peaks within it, and days that differ, are for the operator in each cluster.",
)
"""What the study does not know, as in `docs/regions.md`."""


def render(study: Study, regions: Regions) -> str:
    """Return the page, in one file that loads nothing; the same arguments give the same bytes."""
    sections = [
        ("found", "Verdict", _verdict(study, regions)),
        ("day", "Where streams go", _day(study, regions)),
        ("cost", "Cost of a day", _costs(study, regions)),
        ("lost", "If a region is lost", _lost(study, regions)),
        ("trust", "Accuracy", _trust(study, regions)),
    ]
    names = formats.listed([region.name for region in study.regions])
    return page(
        f"{regions.file.name} · Sluice regions",
        element("a", "Skip to the verdict", href="#found", class_="skip"),
        element(
            "header",
            element("p", "Sluice · compute for speech pipelines", class_="brand"),
            element("h1", regions.file.name),
            element(
                "p",
                f"One product in {formats.plural(len(study.regions), 'region')}: {names}. A day in steps of "
                f"{formats.span(regions.step_s)}, planned with the optimizer that runs in each cluster.",
                class_="lead",
            ),
            element(
                "nav",
                element("ul", [element("li", element("a", name, href=f"#{key}")) for key, name, _ in sections]),
                aria_label="Sections",
            ),
        ),
        element(
            "main",
            [
                element(
                    "section", element("h2", name, id=f"{key}-title"), content, id=key, aria_labelledby=f"{key}-title"
                )
                for key, name, content in sections
            ],
        ),
        style=asset("style.css"),
        script=asset("script.js"),
    )


def _verdict(study: Study, regions: Regions) -> Markup:
    sentence = tables.headline(study, regions)
    leaves = study.shifted.leaves_load
    return Markup.of(
        element("p", sentence.replace(" %", "\N{NO-BREAK SPACE}%"), class_=f"first {'bad' if leaves else 'good'}"),
        element(
            "dl",
            [
                element("div", element("dt", name), element("dd", words), element("dd", note, class_="note"))
                for name, words, note in _figures(study)
            ],
            class_="cards",
        ),
        element("ul", [element("li", sentence) for sentence in tables.findings(study, regions)], class_="findings"),
    )


def _figures(study: Study) -> Iterator[tuple[str, str, str]]:
    """Yield key figures: name, value and a note."""
    yield "alone", _dollars(study.alone.cost), "for the day, each region with its own users"
    yield "shifted", _dollars(study.shifted.cost), "for the day, transfer included"
    over = tables.above(study)
    yield "above the least possible", formats.MISSING if over is None else formats.share(over), "at most, proven"
    own, served = tables.peaks(study)
    change = formats.change(served / own - 1) if own > 0 else formats.MISSING
    yield "peaks of the regions", change, f"{own:,.0f} {tables.unit(study)} together alone, {served:,.0f} shifted"
    worst = max(study.losses.items(), key=lambda item: sum(tables.no_room_at_once(item[1])), default=None)
    if worst is not None:
        name, loss = worst
        left = tables.share_of(tables.no_room_at_once(loss), loss)
        yield f"if {name} is lost", left, "of its load has no room at once, over the day"


def _day(study: Study, regions: Regions) -> Markup:
    steps = len(study.regions[0].loads)
    axis = TimeAxis(
        t_s=[hour * regions.step_s for hour in range(steps)], end_s=steps * regions.step_s, words=tables.clock
    )
    return Markup.of(
        element(
            "p",
            "Times are UTC. Point at a chart, or focus it and use the arrow keys, to read its values. The charts have "
            "the same scale.",
        ),
        element(
            "div",
            element("div", [figure(chart) for chart in _charts(study, axis)], class_="charts small"),
            class_="timeline",
            **read_out_axis(axis),
        ),
        element("h3", "By time of day"),
        table(
            ("#from", *tables.hour_columns(study)[1:]),
            tables.hours(study, regions),
            label="Streams by time of day",
        ),
    )


def _charts(study: Study, axis: TimeAxis) -> Iterator[Chart]:
    """Yield the load of the users of each region against the load that it serves."""
    hours = range(len(axis.t_s))
    served = {region.name: [study.shifted.served(region.name, hour) for hour in hours] for region in study.regions}
    values = scale.from_zero(
        load for region in study.regions for loads in (region.loads, served[region.name]) for load in loads
    )
    for region in study.regions:
        lines = [
            Line(name="load of its users", values=region.loads, style="offered", area=True),
            Line(name="served there", values=served[region.name], style="served"),
        ]
        if max(unserved := study.shifted.unserved[region.name]) >= tables.least_shown(study):
            lines.append(Line(name="without a place", values=unserved, style="lost"))
        yield Chart(
            title=region.name,
            unit=tables.unit(study),
            lines=tuple(lines),
            axis=axis,
            values=values,
            words=lambda load: f"{load:,.0f}" if load >= 10 else f"{load:.3g}",
        )


def _costs(study: Study, regions: Regions) -> Markup:
    return Markup.of(
        element("p", _sentence(tables.verdict(study, regions))),
        table((f"#{tables.COSTS[0]}", *tables.COSTS[1:]), tables.costs(study, regions), label="Cost of a day"),
        element(
            "p",
            "Left is the part of the SLA that the replicas of a region have: the way of the furthest users that it "
            "serves takes the rest.",
        ),
    )


def _lost(study: Study, regions: Regions) -> Markup:
    return table(
        (f"#{tables.LOSSES[0]}", *tables.LOSSES[1:]), tables.losses(study, regions), label="What a lost region costs"
    )


def _trust(study: Study, regions: Regions) -> Markup:
    over = tables.above(study)
    bound = (
        []
        if over is None
        else [f"The cost is at most {formats.share(over)} above that of any assignment by plans of this optimizer."]
    )
    sentences = (*bound, *tables.trust(study), *(f"{note}." for note in regions.notes), *LIMITS)
    return element("ul", [element("li", words) for words in sentences])


def _dollars(usd: float) -> str:
    """Return an amount that fits a card: without cents from $1,000 on."""
    return f"${usd:,.0f}" if usd >= 1000 else formats.money(usd)


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."
