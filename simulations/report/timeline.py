"""Charts of one run over time: load, latency, cost, and the replicas of every stage on every pool."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from controller.core.messages.measured import NOTABLE_RECEIVE_PRESSURE
from controller.core.messages.phrases import duration, number
from controller.html import Markup, element
from simulations.report import formats, scale
from simulations.report.chart import Band, Chart, Line, TimeAxis, figure, read_out_axis
from simulations.results.results import PipelineSeries, RunResult, RunSeries

_POOL_STYLES = 6


def charts(run: RunResult, bands: tuple[Band, ...], bound_per_hour: Sequence[float] | None) -> Markup:
    """Return the charts of a run; `bound_per_hour` is the cost of the bound's schedule in each window, USD per hour.

    It is shown only if there is one pipeline.
    """
    series = run.series
    if not series.t_s:
        return element("p", "The run has no window to show.")
    axis = TimeAxis(t_s=series.t_s, end_s=series.t_s[-1] + series.length_s[-1], bands=bands)
    pools = {pool: index for index, pool in enumerate(series.price_per_hour)}
    several = len(series.pipelines) > 1
    blocks = []
    for pipeline in series.pipelines:
        bound = None if several else bound_per_hour
        blocks += [
            several and element("h3", pipeline.pipeline),
            element("div", list(_pipeline(pipeline, axis, bound)), class_="charts"),
            element(
                "div",
                [
                    *_replicas(pipeline, axis, pools),
                    *_receive_pressure(series.receive_pressure.get(pipeline.pipeline, {}), axis),
                ],
                class_="charts small",
            ),
        ]
    blocks.append(element("div", list(_prices(series, axis, pools)), class_="charts small"))
    return element("div", blocks, class_="timeline", **read_out_axis(axis))


def _pipeline(pipeline: PipelineSeries, axis: TimeAxis, bound: Sequence[float] | None) -> Iterator[Markup]:
    missed = [met is False for met in pipeline.met]
    yield figure(_load(pipeline, axis))
    latencies = scale.of_latencies([*(value for value in pipeline.p95_s if value is not None), *pipeline.sla_s])
    yield figure(
        Chart(
            title="Latency against the SLA",
            unit="p95 of the items of each window" + (", logarithmic" if latencies.log else ""),
            lines=(
                Line(name="p95", values=pipeline.p95_s, style="latency"),
                Line(name=_sla(pipeline), values=pipeline.sla_s, style="sla"),
            ),
            axis=axis,
            values=latencies,
            words=duration,
            missed=missed,
            missed_name="missed the SLA",
            beyond=[
                value is None and offered > 0 and met is False
                for value, offered, met in zip(pipeline.p95_s, pipeline.offered_rps, pipeline.met, strict=True)
            ],
            beyond_name="more than 5 % not answered",
        )
    )
    lines = [
        Line(name="cost", values=pipeline.cost_per_hour, style="cost", area=True),
        Line(name="spend (counts against the budget)", values=pipeline.spend_per_hour, style="spend"),
    ]
    if any(value is not None for value in pipeline.budget_per_hour):
        lines.append(Line(name="budget", values=pipeline.budget_per_hour, style="budget"))
    if bound is not None:
        lines.append(Line(name="bound (least cost in hindsight)", values=bound, style="bound"))
    yield figure(
        Chart(
            title="Cost against budget and bound" if bound is not None else "Cost against budget",
            unit="USD per hour",
            lines=tuple(lines),
            axis=axis,
            values=scale.from_zero(value for line in lines for value in line.values if value is not None),
            words=formats.money,
        )
    )


def _load(pipeline: PipelineSeries, axis: TimeAxis) -> Chart:
    lines = [Line(name="offered", values=pipeline.offered_rps, style="offered", area=True)]
    if any(pipeline.filtered_rps):
        answered = [s + f for s, f in zip(pipeline.served_rps, pipeline.filtered_rps, strict=True)]
        lines.append(Line(name="answered or filtered as silence", values=answered, style="answered"))
    lines.append(Line(name="answered", values=pipeline.served_rps, style="served"))
    for name, values, style in (
        ("shed", pipeline.shed_rps, "shed"),
        ("refused", pipeline.refused_rps, "refused"),
        ("lost", pipeline.lost_rps, "lost"),
    ):
        if any(values):
            lines.append(Line(name=name, values=values, style=style))
    return Chart(
        title="Load",
        unit="items per second, by window of arrival",
        lines=tuple(lines),
        axis=axis,
        values=scale.from_zero(pipeline.offered_rps),
        words=number,
    )


def _replicas(pipeline: PipelineSeries, axis: TimeAxis, pools: dict[str, int]) -> Iterator[Markup]:
    by_stage: dict[str, list[Line]] = {}
    for placement in pipeline.placements:
        style = _pool_style(pools.setdefault(placement.placement, len(pools)))
        by_stage.setdefault(placement.stage, []).extend(
            (
                Line(name=f"{placement.placement}: ready", values=placement.ready, style=style, area=True),
                Line(name=f"{placement.placement}: desired", values=placement.desired, style=f"{style} wanted"),
            )
        )
    for stage, lines in by_stage.items():
        yield figure(
            Chart(
                title=f"Replicas of {stage}",
                unit="at the end of each window, by pool",
                lines=tuple(lines),
                axis=axis,
                values=scale.from_zero((value for line in lines for value in line.values if value), whole=True),
                words=number,
            )
        )


def _receive_pressure(by_stage: Mapping[str, Sequence[float | None]], axis: TimeAxis) -> Iterator[Markup]:
    """Yield a chart of the receive pressure if it is notable at any stage, with the stages where it is."""
    found = {
        stage: values
        for stage, values in by_stage.items()
        if any(value is not None and value >= NOTABLE_RECEIVE_PRESSURE for value in values)
    }
    if found:
        yield figure(
            Chart(
                title="Receive pressure",
                unit="of the worst pod, at most in each window; packets are lost at 1",
                lines=tuple(
                    Line(name=stage, values=values, style=_pool_style(index))
                    for index, (stage, values) in enumerate(found.items())
                ),
                axis=axis,
                values=scale.from_zero([1.0]),
                words=number,
            )
        )


def _prices(series: RunSeries, axis: TimeAxis, pools: dict[str, int]) -> Iterator[Markup]:
    """Yield a chart of the prices if the price of a pool changes."""
    if any(len(set(prices)) > 1 for prices in series.price_per_hour.values()):
        lines = tuple(
            Line(name=pool, values=prices, style=_pool_style(pools[pool]))
            for pool, prices in series.price_per_hour.items()
        )
        yield figure(
            Chart(
                title="Prices",
                unit="USD per instance and hour, by pool",
                lines=lines,
                axis=axis,
                values=scale.from_zero(value for line in lines for value in line.values if value is not None),
                words=formats.money,
            )
        )


def _sla(pipeline: PipelineSeries) -> str:
    slas = [key for key, _ in groupby(zip(pipeline.percentile, pipeline.sla_s, strict=True))]
    return "SLA: " + ", then ".join(f"p{percentile:g} within {duration(sla_s)}" for percentile, sla_s in slas)


def _pool_style(index: int) -> str:
    return f"pool{index % _POOL_STYLES}"
