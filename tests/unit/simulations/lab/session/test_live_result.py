"""A live run as an experiment of one run."""

from typing import Any

from experiments import a_scenario
from live_runs import (
    ASR_CPU,
    ASR_GPU,
    CAPTIONS,
    CPU,
    GPU,
    a_cause,
    a_decision,
    a_run,
    a_run_with_a_backlog,
    an_observation,
    items,
    observed,
    pipeline,
    replicas,
)

from controller.core.state.spec import PipelineSpec
from optimizer.model import StageName
from simulations.lab.session.live_result import live_experiment, live_page
from simulations.lab.session.report import lab_result
from simulations.results.results import Experiment, PlacementChange, Provenance
from simulations.results.scoring import Outcome
from simulations.results.spending import Observation

PROVENANCE = Provenance(command=("sluice", "lab", "run", "x.yaml"), versions={}, sha256={})


def experiment(*pipelines: PipelineSpec, **kwargs: Any) -> Experiment:
    run = a_run(*pipelines, **kwargs)
    return live_experiment(run, lab_result(run), seed=7, policy="sluice", provenance=PROVENANCE)


def test_it_has_the_numbers_of_the_lab_report() -> None:
    run = a_run(decisions=[a_decision(now_s=1_000_003.0, reason="more demand")])
    report = lab_result(run)
    found = live_experiment(run, report, seed=7, policy="sluice", provenance=PROVENANCE)
    (result,) = found.results
    assert found.seeds == (7,)
    assert result.cost == report.summary.cost > 0
    assert result.offered == report.summary.offered > 0
    assert [window.offered_rps for window in report.windows] == list(result.series.pipelines[0].offered_rps)
    assert (result.p50_s, result.p95_s, result.within_sla_share) == (0.1, 0.1, 1.0)
    (decision,) = result.decisions
    assert decision.changes == (PlacementChange(stage="asr", placement="cpu", before=1, after=2),)
    assert decision.reason == "more demand"
    assert found.bounds == ()
    assert found.runs()[0].cost_over_bound is None


def test_of_several_pipelines_the_worst_counts() -> None:
    other = pipeline("notes")
    notes = (other.key, StageName("asr"), CPU), (other.key, StageName("asr"), GPU)

    def seen(t_s: float) -> Observation:
        return an_observation(t_s, dict.fromkeys((ASR_CPU, ASR_GPU, *notes), replicas(1)))

    found = experiment(
        pipeline(),
        other,
        items_of={CAPTIONS: items(latency_s=0.1), other.key: items(latency_s=0.15)},
        observations=observed(seen),
    )
    (result,) = found.results
    assert result.p95_s == 0.15
    assert [series.pipeline for series in result.series.pipelines] == ["speech/captions", "speech/notes"]
    assert [series.p95_s[0] for series in result.series.pipelines] == [0.1, 0.15]


def test_the_latency_of_a_backlog_is_not_that_of_the_run() -> None:
    run = a_run_with_a_backlog()
    (result,) = live_experiment(run, lab_result(run), seed=7, policy="sluice", provenance=PROVENANCE).results
    assert (result.p50_s, result.p95_s, result.p99_s) == (0.1, 0.1, 0.1)


def test_it_has_a_page_of_its_own() -> None:
    run = a_run(decisions=[a_decision(now_s=1_000_003.0, reason="more demand")], peak_instances={CPU: 3600.0})
    page = live_page(
        run,
        lab_result(run),
        a_scenario(),
        seed=7,
        policy="sluice",
        command=("sluice", "lab", "run", "scenario.yaml"),
        max_lag_s=0.0005,
    )
    assert "on Kubernetes v1.36.3" in page
    assert "Replicas of asr" in page
    assert "more demand" in page
    assert "A static allocation for the peak costs $3,600.00/h" in page
    assert "late by 1 ms (p99). At most 0.5 ms is allowed: the run is invalid" in page
    assert "sluice lab run scenario.yaml" in page


def test_a_live_run_tells_when_each_cause_of_a_missed_sla_was_named() -> None:
    named = [a_decision(now_s=1_000_003.0, causes=(a_cause(),)), a_decision(now_s=1_000_020.0, causes=())]
    run = a_run(decisions=named, peak_instances={CPU: 1.0})
    assert [(each["from_s"], each["until_s"], each["cause"]) for each in lab_result(run).to_json()["diagnosis"]] == [
        (3.0, 20.0, "Queueing")
    ]
    page = live_page(
        run, lab_result(run), a_scenario(), seed=7, policy="sluice", command=("sluice", "lab", "run"), max_lag_s=0.005
    )
    assert "20 items wait before asr" in page
    assert "a higher limit; costs $1.50/h more" in page
    assert 'id="why"' in page


def test_lost_items_make_percentiles_infinite() -> None:
    (result,) = experiment(items_of={CAPTIONS: items(Outcome.LOST)}).results
    assert result.p95_s is None
    assert result.within_sla_share == 0.0
