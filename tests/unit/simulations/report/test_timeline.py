"""One run over time: which charts there are, and what they show."""

import re
from dataclasses import replace

from experiments import a_result

from simulations.report.timeline import charts
from simulations.results.results import PipelineSeries, RunResult


def titles(run: RunResult, bound: tuple[float, ...] | None = None) -> list[str]:
    return re.findall(r"<figcaption><strong>(.*?)</strong>", charts(run, (), bound))


def with_pipelines(run: RunResult, *pipelines: PipelineSeries) -> RunResult:
    return replace(run, series=replace(run.series, pipelines=pipelines))


def test_load_latency_money_and_every_stage_have_a_chart() -> None:
    assert titles(a_result()) == [
        "Load",
        "Latency against the SLA",
        "Cost against budget",
        "Replicas of vad",
        "Replicas of encoder",
        "Replicas of decoder",
        "Replicas of lm",
        "Prices",
    ]


def test_the_sla_is_drawn_as_it_changes() -> None:
    run = a_result()
    (captions,) = run.series.pipelines
    assert "SLA: p95 within 250 ms" in charts(run, (), None)
    stricter = replace(captions, sla_s=(0.25,) * 3 + (0.1,) * 3)
    assert "SLA: p95 within 250 ms, then p95 within 100 ms" in charts(with_pipelines(run, stricter), (), None)


def test_the_bound_is_drawn_where_there_is_one() -> None:
    markup = charts(a_result(), (), (7.0,) * 6)
    assert "Cost against budget and bound" in markup
    assert 'class="line bound"' in markup
    assert 'class="line bound"' not in charts(a_result(), (), None)


def test_prices_have_a_chart_only_where_they_move() -> None:
    run = a_result()
    steady = replace(run, series=replace(run.series, price_per_hour={"cpu": (1.0,) * 6}))
    assert "Prices" in titles(run)
    assert "Prices" not in titles(steady)


def test_the_receive_pressure_has_a_chart_of_the_stages_where_it_was_notable() -> None:
    run = a_result()
    (captions,) = run.series.pipelines
    windows = len(run.series.t_s)
    calm, flooded = (None, *(0.2,) * (windows - 1)), (*(0.1,) * (windows - 1), 0.9)
    for pressures, drawn in (({}, []), ({"vad": calm}, []), ({"vad": flooded, "lm": calm}, ["vad"])):
        changed = replace(run, series=replace(run.series, receive_pressure={captions.pipeline: pressures}))
        assert titles(changed).count("Receive pressure") == len(drawn)
        _, _, chart = charts(changed, (), None).partition("Receive pressure")
        assert ("vad" in chart.partition("</figure>")[0]) == bool(drawn)
        assert "lm" not in chart.partition("</figure>")[0]


def test_a_pool_has_one_colour_in_all_stages() -> None:
    names = re.findall(r'class="line (pool\d)" d="[^"]*" data-name="gpu: ready"', charts(a_result(), (), None))
    assert len(names) == 3
    assert len(set(names)) == 1


def test_windows_in_which_nobody_was_answered_are_marked() -> None:
    run = a_result()
    (captions,) = run.series.pipelines
    lost = replace(captions, p95_s=(0.1, None, 0.1, 0.1, 0.1, 0.1), met=(True, False, True, True, True, True))
    markup = charts(with_pipelines(run, lost), (), None)
    assert 'class="mark beyond"' in markup
    assert 'class="mark missed"' in markup
    quiet = replace(lost, met=(True, None, True, True, True, True))
    assert 'class="mark beyond"' not in charts(with_pipelines(run, quiet), (), None)


def test_shed_and_lost_items_are_drawn_where_there_are_any() -> None:
    run = a_result()
    (captions,) = run.series.pipelines
    shed = charts(with_pipelines(run, replace(captions, shed_rps=(0.0, 4.0, 0.0, 0.0, 0.0, 0.0))), (), None)
    assert "shed</li>" in shed
    assert "shed</li>" not in charts(run, (), None)


def test_several_pipelines_have_their_own_charts() -> None:
    run = a_result()
    (captions,) = run.series.pipelines
    markup = charts(with_pipelines(run, captions, replace(captions, pipeline="speech/<notes>")), (), (7.0,) * 6)
    assert markup.count("<strong>Load</strong>") == 2
    assert "<h3>speech/&lt;notes&gt;</h3>" in markup
    assert "and bound" not in markup  # the bound is of all pipelines together


def test_a_run_without_windows_says_so() -> None:
    assert "no window to show" in charts(a_result(windows=0), (), None)
