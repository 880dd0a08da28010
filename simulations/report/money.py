"""The report's section about money: cost by stage, pool and hour, and per stream-hour or thousand requests."""

import math
from collections.abc import Iterator

from controller.core.state.spec import DemandUnit
from controller.html import Markup, element
from simulations.report import formats
from simulations.report.table import table
from simulations.results.cost_breakdown import MEANINGS
from simulations.results.results import Run, RunResult

_HOUR_S = 3600.0
_SHORT_PART_S = 600.0
_SHORT_RUN_S = 3 * _HOUR_S
"""A run that is shorter is split into parts of ten minutes instead of hours."""


def money(run: Run) -> Markup | None:
    """Return the section about the cost of a run, as means over its seeds; None where nothing was scored."""
    if not run.scored_h or run.cost_per_hour is None:
        return None
    return Markup.of(
        element("ul", [element("li", words) for words in per_unit(run)], class_="findings"),
        element("h3", "By stage and pool"),
        table(
            ("#stage", "pool", ">per hour", ">per month", ">share of the cost"),
            ((stage, pool, *_amount(usd), _share(usd, run.cost_per_hour)) for (stage, pool), usd in by_placement(run)),
            label="Cost by stage and pool",
        ),
        *_by_cause(run),
        element("h3", "By hour" if _part_s(run.results[0]) == _HOUR_S else "By ten minutes"),
        table(
            ("#from", ">cost", ">per hour", ">items offered per second"),
            (
                (formats.clock(from_s), formats.money(usd), formats.money(usd_per_hour), f"{rate:,.0f}")
                for from_s, usd, usd_per_hour, rate in by_time(run)
            ),
            label="Cost over time",
            tall=True,
        ),
    )


def _by_cause(run: Run) -> Iterator[Markup]:
    """Yield the table of what the cost was spent on, where that was asked for."""
    found = run.breakdown
    if found is None:
        return
    yield element("h3", "By cause")
    yield table(
        ("#part", ">cost", ">share of the cost"),
        ((MEANINGS[part], formats.money(usd), _share(usd, found.total)) for part, usd in found.parts.items() if usd),
        label="Cost by cause",
    )


def per_unit(run: Run) -> Iterator[str]:
    """Yield what a stream-hour, or a thousand requests or items, cost of those served as promised, by pipeline."""
    several = len(run.users) > 1
    for users in run.users:
        cost = _mean_cost(run, users.pipeline)
        of = f" of {users.pipeline}" if several else ""
        if users.unit is DemandUnit.STREAMS:
            served, unit = users.as_promised * run.scored_h, f"stream-hour{of} served as promised"
        else:
            noun = "items" if users.unit is DemandUnit.ITEMS else "requests"
            served, unit = users.as_promised / 1000, f"thousand {noun}{of} served as promised"
        amount = "no cost can be stated, because none was" if not served else formats.money_precise(cost / served)
        yield f"Per {unit}: {amount}."


def by_placement(run: Run) -> list[tuple[tuple[str, str], float]]:
    """Return the mean cost in USD per hour of each placement, the highest first, where there is any."""
    several = len(run.users) > 1
    found: dict[tuple[str, str], float] = {}
    for result in run.results:
        for pipeline in result.series.pipelines:
            for placement in pipeline.placements:
                stage = f"{pipeline.pipeline} {placement.stage}" if several else placement.stage
                usd = _integral(placement.cost_per_hour, result) / len(run.results) / run.scored_h
                found[stage, placement.placement] = found.get((stage, placement.placement), 0.0) + usd
    return sorted(((place, usd) for place, usd in found.items() if usd), key=lambda entry: -entry[1])


def by_time(run: Run) -> Iterator[tuple[float, float, float, float]]:
    """Yield the parts of the scored time: begin in s, cost in USD, cost in USD per hour, items offered per second.

    They are means over the seeds. A part is an hour, or ten minutes of a run of less than three hours.
    """
    part_s = _part_s(run.results[0])
    parts: dict[float, list[float]] = {}
    for result in run.results:
        for index, (t_s, length_s) in enumerate(zip(result.series.t_s, result.series.length_s, strict=True)):
            sums = parts.setdefault(math.floor(t_s / part_s + 1e-9) * part_s, [0.0, 0.0, 0.0])
            pipelines = result.series.pipelines
            sums[0] += length_s
            sums[1] += sum(own.cost_per_hour[index] for own in pipelines) * length_s / _HOUR_S
            sums[2] += sum(own.offered_rps[index] for own in pipelines) * length_s
    for from_s, (length_s, usd, items) in sorted(parts.items()):
        yield from_s, usd / len(run.results), usd / length_s * _HOUR_S, items / length_s


def _part_s(result: RunResult) -> float:
    return _SHORT_PART_S if math.fsum(result.series.length_s) < _SHORT_RUN_S else _HOUR_S


def _mean_cost(run: Run, pipeline: str) -> float:
    """Return what a pipeline cost in USD over the scored time."""
    costs = [
        _integral(own.cost_per_hour, result)
        for result in run.results
        for own in result.series.pipelines
        if own.pipeline == pipeline
    ]
    return math.fsum(costs) / len(run.results)


def _integral(per_hour: tuple[float, ...], result: RunResult) -> float:
    """Return the sum in USD of a cost per hour over the windows."""
    return math.fsum(usd * s for usd, s in zip(per_hour, result.series.length_s, strict=True)) / _HOUR_S


def _amount(usd_per_hour: float) -> tuple[str, str]:
    return formats.money(usd_per_hour), formats.money_month(usd_per_hour)


def _share(usd: float, total: float) -> str:
    return formats.share(usd / total) if total else formats.MISSING
