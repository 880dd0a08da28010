"""Tables and a chart that compare policies by users served and by cost, and a table that compares what-ifs."""

from collections.abc import Callable, Sequence

from controller.html import Markup, element
from simulations.report import formats
from simulations.report.chart import swatch
from simulations.report.conclusions import label, users_of_all
from simulations.report.scatter import Point, cost_against_sla
from simulations.report.table import table
from simulations.results.results import Run, dominated_by
from simulations.results.users import promise_kept


def anchor(run: Run) -> str:
    """Return the HTML id of the section about a run."""
    name = "-".join(filter(None, [run.policy, run.tuning.value, run.what_if]))
    return "run-" + "".join(char if char.isalnum() else "-" for char in name)


def policies(runs: Sequence[Run], own: Run | None) -> Markup:
    """Return a chart and two tables of the runs of one what-if, with a verdict on each run against the others.

    `own` is the run whose saving against each other run is stated; None: no saving is.
    """
    ordered = sorted(runs, key=lambda run: (run.mean("cost") or 0.0, run.policy, run.tuning))
    return Markup.of(
        _scatter(runs),
        table(
            (
                "#policy",
                "settings",
                "verdict",
                ">users as promised",
                ">refused",
                ">cut",
                ">late",
                ">lost",
                ">per hour",
                ">per month",
                f">{label(own) if own else 'saving'} saves per month",
                ">× bound",
            ),
            (_row(run, _verdict(run, runs), own) for run in ordered),
            label="Policies compared",
        ),
        element(
            "details",
            element("summary", "Windows, latencies and replica changes"),
            table(
                (
                    "#policy",
                    "settings",
                    ">windows within the SLA",
                    ">away from faults",
                    ">p50",
                    ">p95",
                    ">p99",
                    ">replica changes",
                    ">above the cap",
                ),
                (_further_row(run) for run in ordered),
                label="Policies compared: windows and latencies",
            ),
        ),
    )


def what_ifs(runs: Sequence[Run], words: Callable[[str | None], str]) -> Markup:
    """Return a table of one policy's runs by what-if; `words` returns the changes of a what-if (None: the scenario)."""
    top = max((high for run in runs if (costs := run.range("cost")) for high in [costs[1]]), default=0.0)
    baseline = next((run for run in runs if run.what_if is None), None)
    return table(
        (
            "#what if",
            Markup.of("cost ", element("small", "(whisker: seeds; mark: bound)")),
            ">against the scenario",
            ">× bound",
            ">users as promised",
            ">refused",
            ">late",
            ">lost",
            ">p95",
            ">above the cap",
        ),
        (_what_if_row(run, baseline, words(run.what_if), top) for run in runs),
        label="What-ifs compared",
    )


def _scatter(runs: Sequence[Run]) -> Markup:
    points = []
    for run in runs:
        cost, met = run.mean("cost"), run.served_as_promised
        costs, mets = run.range("cost"), run.served_range
        if cost is None or met is None or costs is None or mets is None:
            continue
        points.append(
            Point(
                name=run.policy,
                cost=cost,
                costs=costs,
                met=met,
                mets=mets,
                style=_style(run, runs),
                trained=run.tuning.value == "trained",
                words=f"{label(run)}: {formats.money(cost)}, {formats.share(met)} of the users",
            )
        )
    if len(points) < 2:
        return Markup()
    points.sort(key=lambda point: (_IMPORTANCE.index(point.style), point.cost, point.name, point.trained))
    promised = max(users.promised_share for users in runs[0].users)
    keys = [
        ("best", "on the frontier: no other policy is as cheap and as good"),
        ("dominated", "dominated: another policy is as cheap and as good, and better in one of these"),
        ("broke", "spent above the cap: not compared"),
    ]
    return element(
        "figure",
        element(
            "figcaption",
            element("strong", "Cost against users served as promised"),
            " ",
            element("span", "up and to the left is better", class_="unit"),
        ),
        cost_against_sla(points, runs[0].bound, promised),
        element(
            "ul",
            [element("li", _key(style), words) for style, words in keys if any(p.style == style for p in points)],
            any(point.trained for point in points)
            and [
                element("li", _key("best"), "default settings"),
                element("li", _key("best", _DIAMOND), "trained settings"),
            ],
            element("li", swatch("line sla"), f"{formats.share(promised)} of the users, as the SLA asks"),
            runs[0].bound is not None
            and element(
                "li", swatch("line bound"), "bound: the least cost that meets the SLA in 99.5 % of the windows"
            ),
            element("li", "bars through a point: lowest to highest over the seeds"),
            class_="legend",
        ),
        class_="chart",
    )


_DIAMOND = "M10 1l7 7l-7 7l-7 -7Z"
_IMPORTANCE = ("best", "dominated", "broke")


def _style(run: Run, runs: Sequence[Run]) -> str:
    if run.breaks_caps:
        return "broke"
    return "dominated" if dominated_by(run, runs) else "best"


def _verdict(run: Run, runs: Sequence[Run]) -> Markup:
    style = _style(run, runs)
    if style == "broke":
        return element("span", "✕ spent above the cap", class_="verdict bad")
    if style == "best":
        if not promise_kept(run.users):
            return element("span", "● on the frontier, but serves fewer users than promised", class_="verdict bad")
        return element("span", "● on the frontier", class_="verdict good")
    names = [label(other) for other in dominated_by(run, runs)]
    shown = names if len(names) <= 2 else [names[0], f"{len(names) - 1} more"]
    return element("span", f"○ dominated by {formats.listed(shown)}", class_="verdict", title=formats.listed(names))


def _row(run: Run, verdict: Markup, own: Run | None) -> tuple[object, ...]:
    per_hour = run.cost_per_hour
    ours = None if own is None else own.cost_per_hour
    saved = None if own is None or run == own or per_hour is None or ours is None else per_hour - ours
    return (
        element("a", run.policy, href=f"#{anchor(run)}"),
        run.tuning.value,
        verdict,
        _served(run),
        users_of_all(run, "refused"),
        formats.count(run.mean("sessions_cut")),
        users_of_all(run, "late"),
        users_of_all(run, "lost"),
        formats.money(per_hour),
        formats.money_month(per_hour),
        formats.money_month(saved),
        Markup.of(formats.ratio(run.cost_over_bound), _seeds(run.cost_over_bound_range, formats.ratio)),
    )


def _further_row(run: Run) -> tuple[object, ...]:
    return (
        element("a", run.policy, href=f"#{anchor(run)}"),
        run.tuning.value,
        _cell(run, "sla_windows_met", formats.share),
        _cell(run, "sla_windows_met_calm", formats.share),
        *(_latency(run, name) for name in ("p50_s", "p95_s", "p99_s")),
        *(formats.count(run.mean(name)) for name in ("replica_changes", "cap_violations")),
    )


def _served(run: Run) -> Markup:
    kept = promise_kept(run.users)
    tone = None if kept is None else "good" if kept else "bad"
    share = element("span", formats.share(run.served_as_promised), class_=tone)
    return Markup.of(share, _seeds(run.served_range, formats.share))


def _what_if_row(run: Run, baseline: Run | None, words: str, top: float) -> tuple[object, ...]:
    cost, costs = run.mean("cost"), run.range("cost")
    before = None if baseline is None or baseline is run else baseline.mean("cost")
    change = formats.MISSING if before is None or not before or cost is None else formats.change(cost / before - 1)
    return (
        Markup.of(element("a", run.what_if or "no change", href=f"#{anchor(run)}"), element("small", words)),
        Markup.of(_cell(run, "cost", formats.money), _bar(cost, costs, run.bound, top)),
        change,
        formats.ratio(run.cost_over_bound),
        _served(run),
        *(users_of_all(run, fate) for fate in ("refused", "late", "lost")),
        _latency(run, "p95_s"),
        formats.count(run.mean("cap_violations")),
    )


def _bar(cost: float | None, costs: tuple[float, float] | None, bound: float | None, top: float) -> Markup:
    if cost is None or costs is None or top <= 0:
        return Markup()

    def percent(usd: float) -> str:
        return f"{usd / top * 100:.1f}%"

    return element(
        "span",
        element("span", class_="fill", style=f"width:{percent(cost)}"),
        element("span", class_="whisker", style=f"left:{percent(costs[0])};width:{percent(costs[1] - costs[0])}"),
        bound is not None and element("span", class_="bound-mark", style=f"left:{percent(min(bound, top))}"),
        class_="bar",
        aria_hidden="true",
    )


def _cell(run: Run, measure: str, words: formats.Words) -> Markup:
    """Return the mean of a measure with its range over the seeds."""
    value = run.mean(measure)
    text = formats.MISSING if value is None else words(value)
    return Markup.of(text, _seeds(run.range(measure), words))


def _latency(run: Run, measure: str) -> str:
    value = run.mean(measure)
    return formats.MISSING if value is None and not run.mean("lost") else formats.latency(value)


def _seeds(low_high: tuple[float, float] | None, words: formats.Words) -> Markup | None:
    text = formats.spread(low_high, words)
    return element("small", text, class_="seeds") if text else None


def _key(style: str, shape: str = "M5 8a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z") -> Markup:
    return element(
        "svg",
        element("path", class_=f"point {style}", d=shape),
        class_="swatch",
        viewBox="0 0 20 16",
        aria_hidden="true",
    )
