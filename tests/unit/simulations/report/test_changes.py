"""What to change, from plan and runs."""

from dataclasses import replace
from importlib import resources
from pathlib import Path

from experiments import a_result, a_scenario, a_series, an_experiment

from simulations.report.changes import changes, peak_of, sensitivity_of
from simulations.results.results import Run, RunResult
from simulations.scenario.scenario import load_scenario


def run_of(result: RunResult) -> Run:
    (run,) = an_experiment(result).runs()
    return run


def test_a_backlog_has_no_peak_to_plan_for() -> None:
    scenario = load_scenario(Path(str(resources.files("simulations.scenarios"))) / "backlog" / "scenario.yaml")
    (captions,) = a_series(load_rps=20.0).pipelines
    archive = replace(captions, pipeline="speech/archive", offered_rps=(1e6,) * len(captions.offered_rps))
    series = replace(a_series(), pipelines=(replace(captions, pipeline="speech/captions"), archive))
    assert peak_of(scenario, run_of(replace(a_result(), series=series))).plan.feasible


def test_the_plan_for_the_peak_says_what_a_budget_and_another_service_time_are_worth() -> None:
    run = run_of(replace(a_result(), series=a_series(load_rps=1200.0)))
    peak = peak_of(a_scenario(), run)
    assert peak.plan.feasible
    lines = sensitivity_of(peak)
    assert lines[0].startswith("if the service time of a stage is not as given (the plan costs $")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["vad", "encoder", "decoder", "lm"]

    over = peak_of(a_scenario(), run_of(replace(a_result(), series=a_series(load_rps=9000.0))))
    assert not over.plan.feasible
    assert sensitivity_of(over) == []
    found = [change for change in changes(run, [run], today=None, peak=over, words=str) if "peak" in change.source]
    assert found
    assert found[-1].users.endswith("→ 100 % of the peak")
