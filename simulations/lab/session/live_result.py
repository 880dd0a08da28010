"""Turns a lab run into an experiment with one run, so that lab and simulator have the same report in HTML."""

from collections.abc import Sequence
from dataclasses import asdict

from simulations.experiment.provenance import provenance
from simulations.lab.session.report import LabResult, LiveRun, item_scores, live_scores
from simulations.report.changes import peak_of
from simulations.report.conclusions import subject
from simulations.report.facts import Facts
from simulations.report.page import render
from simulations.report.trust import Live
from simulations.results.results import MEASURES, Experiment, Provenance, RunResult, Tuning
from simulations.results.run_series import run_series
from simulations.results.scoring import ItemScore
from simulations.scenario.scenario import Scenario


def live_page(
    run: LiveRun,
    result: LabResult,
    scenario: Scenario,
    *,
    seed: int,
    policy: str,
    command: Sequence[str],
    max_lag_s: float,
    facts: Facts | None = None,
) -> str:
    """Return the report of a lab run as an HTML page.

    `policy` is the name of the policy that scaled, `command` the command line that repeats the run, `max_lag_s` the
    largest lag of the load generator (p99) of a valid run. `facts` are those about servers other than the lab's own.
    """
    experiment = live_experiment(run, result, seed=seed, policy=policy, provenance=provenance(scenario, command))
    return render(
        experiment,
        scenario,
        error_bar=None,
        peak=peak_of(scenario, subject(experiment)) if scenario.file.speech is None else None,
        live=Live(
            kubernetes=result.kubernetes,
            static_peak_cost=result.summary.static_peak_cost,
            generator_lag_p99_s=result.summary.generator_lag_p99_s,
            max_lag_s=max_lag_s,
            facts=facts,
        ),
    )


def live_experiment(
    run: LiveRun,
    result: LabResult,
    *,
    seed: int,
    policy: str,
    provenance: Provenance,
    tuning: Tuning = Tuning.DEFAULT,
) -> Experiment:
    """Return `run` and its `result` as an experiment; `policy` is the policy that scaled, with settings of `tuning`.

    With several pipelines, each percentile and the share of items within the SLA are the worst of all pipelines without
    a backlog. There is no bound on cost.
    """
    scores = item_scores(run)
    each = live_scores(run, scores)
    found = RunResult(
        policy=policy,
        tuning=tuning,
        what_if=None,
        seed=seed,
        within_sla_share=min((s.within_sla_share for s in each if s.within_sla_share is not None), default=None),
        p50_s=_worst(each, "p50_s"),
        p95_s=_worst(each, "p95_s"),
        p99_s=_worst(each, "p99_s"),
        simulated_s=run.clock.duration_s,
        wall_s=run.clock.duration_s,
        out_of_memory=0,  # no session outgrows the memory of the lab's workers
        users=result.users,
        series=run_series(run.pipelines, scores, run.observations),
        decisions=result.decisions,
        diagnosis=result.diagnosis,
        **{name: value for name, value in asdict(result.summary).items() if name in MEASURES},
    )
    return Experiment(
        scenario=run.scenario, seeds=(seed,), results=(found,), bounds=(), self_checks=(), provenance=provenance
    )


def _worst(scores: list[ItemScore], percentile: str) -> float | None:
    """Return the largest value of `percentile` of the pipelines with items; None where one of them has no value."""
    values = [getattr(score, percentile) for score in scores if score.offered]
    return max(values) if values and None not in values else None
