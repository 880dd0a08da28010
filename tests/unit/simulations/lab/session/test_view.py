"""The live table and the lines of a run."""

from collections.abc import Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from io import StringIO

import pytest
from builders import a_placement, a_spec, a_stage
from http_upstream import serving
from live_runs import CAPTIONS, a_run, an_observation, pipeline, replicas
from rich.console import Console

from controller import telemetry
from controller.core.state.spec import BacklogSpec, DemandUnit, PipelineSpec
from optimizer.model import PlacementId, PoolName, StageName
from simulations.lab.host.processes import free_ports
from simulations.lab.session.report import lab_windows
from simulations.lab.session.view import LineView, LiveView, Moment, OperatorMetrics, draw, window_line
from simulations.results.spending import Replicas

SPEECH = a_spec(
    a_stage("vad", a_placement("cpu")),
    a_stage("encoder", a_placement("inferentia"), a_placement("gpu")),
    budget=12.0,
    sla_s=0.4,
)
WORDS = "encoder 2→3 on inferentia (demand): demand 80 → 120 streams; p95 310 ms of 400 ms; $7.53/h of $12.00/h"


def at(stage: str, pool: str) -> PlacementId:
    return (CAPTIONS, StageName(stage), PoolName(pool))


STARTING = Replicas(desired=3, existing=3, terminating=0, ready=2, scheduled=3)
LEAVING = Replicas(desired=1, existing=2, terminating=1, ready=1, scheduled=2)


def a_moment(
    *, spend: float = 7.53, latency_s: float | None = 0.31, decisions: Mapping[str, str] | None = None
) -> Moment:
    def stage(name: str, **numbers: float) -> dict[tuple[str, str, str], float]:
        return {(CAPTIONS, name, f"sluice_stage_{metric}"): value for metric, value in numbers.items()}

    totals: dict[tuple[str, str], float] = {
        (CAPTIONS, "sluice_pipeline_demand"): 121.0,
        (CAPTIONS, "sluice_pipeline_observed_demand"): 80.4,
    }
    if latency_s is not None:
        totals[CAPTIONS, "sluice_pipeline_latency_seconds"] = latency_s
    return Moment(
        seen=an_observation(
            83.2,
            {at("vad", "cpu"): LEAVING, at("encoder", "inferentia"): STARTING, at("encoder", "gpu"): replicas(0)},
            spend=spend,
            budget=12.0,
        ),
        duration_s=240.0,
        stages={
            **stage("vad", arrivals_per_second=77.3, utilization_ratio=0.22, queue_depth=0.4, pressure=0.2),
            **stage(
                "encoder",
                arrivals_per_second=34.6,
                latency_seconds=0.1234,
                utilization_ratio=0.91,
                queue_depth=17.0,
                pressure=0.8,
            ),
        },
        totals=totals,
        decisions={CAPTIONS: WORDS} if decisions is None else decisions,
    )


def rendered(spec: PipelineSpec, moment: Moment, *, width: int = 120, color: bool = False) -> str:
    console = Console(file=StringIO(), force_terminal=True, width=width, record=True)
    console.print(draw(spec, moment))
    return console.export_text(styles=color)


def row(text: str, stage: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(stage))


def test_the_head_says_how_far_load_latency_and_money_are() -> None:
    text = rendered(SPEECH, a_moment())
    head = next(line for line in text.splitlines() if line.startswith(CAPTIONS))

    assert " ".join(head.split()) == (
        "speech/captions 83 of 240 s 80 requests/s, planned for 121 p95 310 ms of 400 ms $7.53/h of $12.00/h"
    )


def test_each_stage_has_its_load_latency_utilisation_queue_pressure_and_replicas() -> None:
    text = rendered(SPEECH, a_moment())

    assert row(text, "vad").split() == ["vad", "77", "-", "22%", "0.4", "0.20", "cpu", "1/1", "-1"]
    assert row(text, "encoder").split() == (
        ["encoder", "◀", "bottleneck", "35", "123", "ms", "91%", "17", "0.80", "inferentia", "2/3"]
    )
    assert "gpu" not in text, "a pool on which nothing runs or is to run"


def test_the_last_decision_is_below_in_words() -> None:
    assert rendered(SPEECH, a_moment()).rstrip().endswith(WORDS)


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off(width: int) -> None:
    words = rendered(SPEECH, a_moment(), width=width).split()
    for expected in (*WORDS.split(), "encoder", "bottleneck", "2/3", "1/1", "$12.00/h", "0.80", "17", "91%"):
        assert expected in words
    assert "…" not in "".join(words)


def test_a_broken_sla_and_a_broken_budget_are_red() -> None:
    red = "\x1b[31m"
    assert red not in rendered(SPEECH, a_moment(), color=True)
    assert f"{red}p95 410 ms" in rendered(SPEECH, a_moment(latency_s=0.41), color=True)
    assert f"{red}$12.01/h" in rendered(SPEECH, a_moment(spend=12.01), color=True)


def test_a_latency_is_green_only_where_something_was_answered_in_time() -> None:
    green = "\x1b[32m"
    assert f"{green}p95 310 ms" in rendered(SPEECH, a_moment(), color=True)
    unanswered = rendered(SPEECH, a_moment(latency_s=None), color=True)
    assert "   p95 -" in unanswered, "without a colour before it"
    assert f"{green}$7.53/h" in unanswered


def test_what_the_operator_does_not_know_is_a_dash_and_no_stage_a_bottleneck() -> None:
    moment = replace(a_moment(latency_s=None, decisions={}), stages={}, totals={})
    text = rendered(replace(SPEECH, unit=DemandUnit.STREAMS, chunk_s=0.96), moment)

    assert "- streams, planned for -" in text
    assert "p95 - of 400 ms" in text
    assert row(text, "vad").split()[:6] == ["vad", "-", "-", "-", "-", "-"]
    assert "bottleneck" not in text


def test_a_backlog_has_the_pace_that_is_planned_for_and_no_latency() -> None:
    spec = replace(SPEECH, unit=DemandUnit.ITEMS, backlog=BacklogSpec(within_s=60.0))
    head = next(line for line in rendered(spec, a_moment()).splitlines() if line.startswith(CAPTIONS))

    assert " ".join(head.split()) == (
        "speech/captions 83 of 240 s a backlog, planned for 121 items/s $7.53/h of $12.00/h"
    )


def lines(*moments: Moment) -> list[str]:
    output = StringIO()
    view = LineView(Console(file=output, width=80))
    view.say("[bold]not markup[/bold], and longer than a terminal is wide, which a log has no use for; it is one line")
    for moment in moments:
        view.show(moment)
    return output.getvalue().splitlines()


def test_without_a_terminal_there_is_a_line_per_window_and_per_decision() -> None:
    moment = a_moment()
    told = lines(
        moment, moment, replace(moment, windows=("first", "second")), replace(moment, decisions={CAPTIONS: "back"})
    )

    assert told == [
        "[bold]not markup[/bold], and longer than a terminal is wide, which a log has no use for; it is one line",
        f"   83s  speech/captions: {WORDS}",
        "   83s  first",
        "   83s  second",
        "   83s  speech/captions: back",
    ]


def test_a_window_is_told_with_load_latency_money_and_replicas() -> None:
    window = lab_windows(a_run(pipeline()))[0]

    assert window_line(window, 10.0) == "  10.0 items/s  p95  100 ms  $5.00/h of $10.00/h  asr 2/2 cpu"
    assert "p95       -" in window_line(replace(window, p95_s=None), 10.0)


def test_the_live_view_draws_each_moment_anew_and_leaves_the_last_one() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=120, record=True)
    with LiveView(console, (SPEECH,)) as view:
        view.say("starting [Kubernetes]")
        view.show(a_moment(spend=1.0))
        view.show(a_moment(spend=2.0))
    text = console.export_text()

    assert "starting [Kubernetes]" in text
    assert "$2.00/h of $12.00/h" in text
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().endswith("\x1b[?25h"), "the cursor is back"


METRICS = """\
# HELP sluice_stage_pressure x
# TYPE sluice_stage_pressure gauge
sluice_stage_pressure{namespace="speech",pipeline="captions",stage="vad"} 0.5
# TYPE sluice_stage_replicas_ready gauge
sluice_stage_replicas_ready{namespace="speech",pipeline="captions",stage="vad",pool="cpu"} 2.0
# TYPE sluice_pipeline_demand gauge
sluice_pipeline_demand{namespace="speech",pipeline="captions"} 80.0
# TYPE sluice_pool_limit gauge
sluice_pool_limit{pool="cpu"} 4.0
"""


class Operator(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert self.path == "/metrics"
        body = METRICS.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        pass


def test_the_operator_s_metrics_are_read_by_pipeline_and_stage_and_forgotten_when_it_goes() -> None:
    with serving(Operator) as url:
        metrics = OperatorMetrics(url)
        metrics.refresh()
        assert metrics.stages == {("speech/captions", "vad", "sluice_stage_pressure"): 0.5}
        assert metrics.totals == {("speech/captions", "sluice_pipeline_demand"): 80.0}
    metrics.refresh()
    assert (metrics.stages, metrics.totals) == ({}, {})


def test_an_operator_that_is_not_there_yet_says_nothing() -> None:
    metrics = OperatorMetrics(f"http://127.0.0.1:{free_ports(1)[0]}")
    metrics.refresh()
    assert metrics.totals == {}


def test_the_table_reads_only_metrics_that_the_operator_exports() -> None:
    exported = {f"sluice_{name}" for name, *_ in telemetry.FAMILIES}
    moment = a_moment()
    read = {metric for *_, metric in moment.stages} | {metric for _, metric in moment.totals}
    assert read <= exported
