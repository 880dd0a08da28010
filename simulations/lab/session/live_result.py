"""A live run as an experiment of one run, so that lab and simulator have the same report in HTML."""

from collections.abc import Mapping, Sequence
from typing import Any

from simulations.experiment.provenance import provenance
from simulations.lab.session.report import LiveRun, item_scores
from simulations.report.page import render
from simulations.report.trust import Live
from simulations.results.results import DecisionEntry, Experiment, PlacementChange, Provenance, RunResult, Tuning
from simulations.results.run_series import run_series
from simulations.results.scoring import ItemScore
from simulations.scenario.scenario import Scenario

_COUNTS = ("windows", "offered", "served", "filtered", "shed", "lost", "in_flight")
_TOTALS = ("sla_windows_met", "sla_windows_met_calm", "sessions_cut", "cost", "replica_changes", "cap_violations")


def live_page(
    run: LiveRun,
    report: Mapping[str, Any],
    scenario: Scenario,
    *,
    seed: int,
    policy: str,
    command: Sequence[str],
    max_lag_s: float,
) -> str:
    """Return the report of a live run as an HTML page.

    Args:
        run: what it left behind.
        report: what `build_report` made of it.
        scenario: what was run.
        seed: of the load.
        policy: who decided.
        command: what to call to run it again.
        max_lag_s: the lag of the load generator (p99) beyond which a run is invalid.
    """
    return render(
        live_experiment(run, report, seed=seed, policy=policy, provenance=provenance(scenario, command)),
        scenario,
        error_bar=None,
        live=Live(
            kubernetes=run.kubernetes,
            static_peak_cost=report["summary"]["static_peak_cost"],
            generator_lag_p99_s=run.generator_lag_p99_s,
            max_lag_s=max_lag_s,
        ),
    )


def live_experiment(
    run: LiveRun, report: Mapping[str, Any], *, seed: int, policy: str, provenance: Provenance
) -> Experiment:
    """Return `run` as an experiment; `report` is what `build_report` made of it. `policy` is who decided.

    Percentiles and the share of items within the SLA are those of the worst pipeline. There is no bound.
    """
    scores = item_scores(run)
    found = list(scores.values())
    summary = report["summary"]
    result = RunResult(
        policy=policy,
        tuning=Tuning.DEFAULT,
        what_if=None,
        seed=seed,
        **{name: summary[name] for name in (*_TOTALS, *_COUNTS)},
        within_sla_share=min((s.within_sla_share for s in found if s.within_sla_share is not None), default=None),
        p50_s=_worst(found, "p50_s"),
        p95_s=_worst(found, "p95_s"),
        p99_s=_worst(found, "p99_s"),
        simulated_s=run.clock.duration_s,
        wall_s=run.clock.duration_s,
        series=run_series(run.pipelines, scores, run.observations),
        decisions=tuple(
            DecisionEntry(
                t_s=decision["t_s"],
                pipeline=decision["pipeline"],
                changes=tuple(
                    PlacementChange(stage=c["stage"], pool=c["pool"], before=c["replicas"][0], after=c["replicas"][1])
                    for c in decision["changes"]
                ),
                reason=decision["reason"],
            )
            for decision in report["decisions"]
        ),
    )
    return Experiment(
        scenario=run.scenario, seeds=(seed,), results=(result,), bounds=(), self_checks=(), provenance=provenance
    )


def _worst(scores: list[ItemScore], percentile: str) -> float | None:
    """Return the largest; None when one of those with items has none."""
    values = [getattr(score, percentile) for score in scores if score.offered]
    return max(values) if values and None not in values else None
