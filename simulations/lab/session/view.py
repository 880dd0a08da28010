"""Shows a lab run in progress: as a live table in a terminal, otherwise as one line per window."""

import http.client
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from controller.core.state.spec import DemandUnit, PipelineSpec
from simulations.lab.session.report import LabWindow
from simulations.results.spending import Observation

_METRICS_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a view shows of a run: the observed cluster, the operator's metrics, and the reasons of its decisions.

    `seen` is the last observation; `duration_s` is the length of the run. `stages` maps (pipeline key, stage name,
    metric) to a value, and `totals` maps (pipeline key, metric); metrics that the operator does not export are missing.
    `decisions` has for each pipeline that was scaled the reason of the latest change. `windows` has one line for each
    window that has ended since the last moment. `news` are lines about the content of the load.
    """

    seen: Observation
    duration_s: float
    stages: Mapping[tuple[str, str, str], float]
    totals: Mapping[tuple[str, str], float]
    decisions: Mapping[str, str] = field(default_factory=dict)
    windows: tuple[str, ...] = ()
    news: tuple[str, ...] = ()


class RunView(Protocol):
    """Shows a run: `say` prints a line of progress or a fault, `show` shows the present moment."""

    def say(self, text: str) -> None: ...  # noqa: D102

    def show(self, moment: Moment) -> None: ...  # noqa: D102


@dataclass(slots=True)
class OperatorMetrics:
    """The values of the operator's /metrics at the last `refresh`; empty while the operator does not respond.

    `stages` maps (pipeline key, stage name, metric) to a value, `totals` maps (pipeline key, metric).
    """

    url: str
    stages: dict[tuple[str, str, str], float] = field(default_factory=dict)
    totals: dict[tuple[str, str], float] = field(default_factory=dict)

    def refresh(self) -> None:
        """Replace the values by those of a new scrape."""
        self.stages.clear()
        self.totals.clear()
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=_METRICS_TIMEOUT_S) as answer:  # noqa: S310
                text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if "pipeline" not in sample.labels:
                    continue
                key = f"{sample.labels['namespace']}/{sample.labels['pipeline']}"
                if "stage" in sample.labels and "pool" not in sample.labels:
                    self.stages[key, sample.labels["stage"], sample.name] = sample.value
                elif "stage" not in sample.labels:
                    self.totals[key, sample.name] = sample.value


class LineView:
    """Prints a line per window and per change of replicas, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: Mapping[str, str] = {}

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, moment: Moment) -> None:
        """Print a line for each new decision, and for each window that has ended, with the news of that moment."""
        new = [f"{key}: {words}" for key, words in moment.decisions.items() if self._shown.get(key) != words]
        self._shown = moment.decisions
        for line in (*new, *moment.windows, *(moment.news if moment.windows else ())):
            self.say(f"{moment.seen.t_s:5.0f}s  {line}")


class LiveView:
    """Shows a table per pipeline in the terminal, and redraws it during the run."""

    def __init__(self, console: Console, pipelines: tuple[PipelineSpec, ...]) -> None:
        self._console = console
        self._pipelines = pipelines
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the tables."""
        self._console.print(text, markup=False, highlight=False)

    def show(self, moment: Moment) -> None:
        """Redraw the tables."""
        if not self._live.is_started:
            self._live.start()
        tables = (draw(pipeline, moment) for pipeline in self._pipelines)
        self._live.update(Group(*tables, *map(Text, moment.news)), refresh=True)


def draw(pipeline: PipelineSpec, moment: Moment) -> Group:
    """Return a pipeline's table of stages, with its totals above and the reason of its latest change below."""
    key = str(pipeline.key)

    def total(name: str) -> float | None:
        return moment.totals.get((key, f"sluice_pipeline_{name}"))

    spend = moment.seen.spend_per_hour.get(pipeline.key, 0.0)
    budget = moment.seen.budget_per_hour.get(pipeline.key, pipeline.budget_per_hour)
    head = Text.assemble(
        (key, "bold"),
        f"   {min(moment.seen.t_s, moment.duration_s):4.0f} of {moment.duration_s:.0f} s   ",
        *_load(pipeline, total),
        (f"${spend:.2f}/h", "red" if spend > budget else "green"),
        f" of ${budget:.2f}/h",
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("stage", "items/s", "p95", "busy", "queue", "pressure", "replicas ready/desired"):
        table.add_column(title, justify="left" if title in {"stage", "replicas ready/desired"} else "right")
    pressures = {
        str(stage.name): moment.stages.get((key, str(stage.name), "sluice_stage_pressure"), 0.0)
        for stage in pipeline.stages
    }
    worst = max(pressures, key=lambda name: pressures[name])
    for stage in pipeline.stages:
        name = str(stage.name)

        def of(metric: str, name: str = name) -> float | None:
            return moment.stages.get((key, name, f"sluice_stage_{metric}"))

        busy = of("utilization_ratio")
        is_bottleneck = name == worst and pressures[name] > 0
        table.add_row(
            Text(f"{name} ◀ bottleneck" if is_bottleneck else name, style="yellow" if is_bottleneck else ""),
            _number(of("arrivals_per_second")),
            _ms(of("latency_seconds")),
            "-" if busy is None else f"{busy:.0%}",
            _number(of("queue_depth")),
            "-" if of("pressure") is None else f"{of('pressure'):.2f}",
            _replicas(pipeline, name, moment.seen),
        )
    return Group(Text(), head, table, Text(moment.decisions.get(key, ""), style="cyan"))


def _load(pipeline: PipelineSpec, total: Callable[[str], float | None]) -> tuple[str | tuple[str, str], ...]:
    """Return the load of a pipeline and its latency, from its totals; a backlog has no latency."""
    planned = _number(total("demand"))
    if pipeline.backlog is not None:
        return (f"a backlog, planned for {planned} items/s   ",)
    unit = "streams" if pipeline.unit is DemandUnit.STREAMS else "requests/s"
    latency_s = total("latency_seconds")
    judged = "" if latency_s is None else "red" if latency_s > pipeline.sla.latency_s else "green"
    return (
        f"{_number(total('observed_demand'))} {unit}, planned for {planned}   ",
        (f"p{pipeline.sla.percentile:g} {_ms(latency_s)}", judged),
        f" of {_ms(pipeline.sla.latency_s)}   ",
    )


def window_line(window: LabWindow, budget_per_hour: float) -> str:
    """Return a window as one line of text; `budget_per_hour` (USD) is the sum of all pipelines' budgets."""
    stages = "  ".join(
        f"{stage} " + "+".join(f"{count['ready']}/{count['desired']} {pool}" for pool, count in pools.items())
        for stage, pools in (
            (stage, {pool: count for pool, count in pools.items() if count["ready"] or count["desired"]})
            for stage, pools in window.replicas.items()
        )
    )
    return (
        f"{window.offered_rps:6.1f} items/s  p95 {_ms(window.p95_s):>7}  "
        f"${window.spend_per_hour:.2f}/h of ${budget_per_hour:.2f}/h  {stages}"
    )


def _replicas(pipeline: PipelineSpec, stage: str, seen: Observation) -> Text:
    text = Text()
    for (key, name, pool), replicas in seen.placements.items():
        if key == pipeline.key and str(name) == stage and (replicas.desired or replicas.existing):
            moving = replicas.ready != replicas.desired or replicas.terminating
            leaving = f" -{replicas.terminating}" if replicas.terminating else ""
            text.append(f"{pool} {replicas.ready}/{replicas.desired}{leaving}  ", style="yellow" if moving else "")
    return text


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.0f} ms"
