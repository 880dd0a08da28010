"""`sluice demo`: the operator scales a live pipeline on the lab, under a recorded load."""

import contextlib
import signal
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

import click

from controller.commands.help_page import examples
from controller.core.messages.sentences import CHANGES
from controller.core.state.decision import ChangeReason
from optimizer.model import named_placement, pool_of
from simulations.commands.lab import (
    executed,
    options_of,
    read_scenario,
    report_path,
    run_options,
    write_report,
)
from simulations.experiment.experiment import run_one
from simulations.lab.session.report import LabResult, LabSummary
from simulations.lab.session.run import max_lag_s
from simulations.report import formats
from simulations.report.conclusions import served_sentence, users_words
from simulations.results.results import DecisionEntry, RunResult
from simulations.results.scoring import Clock, Interval
from simulations.results.users import by_unit
from simulations.scenario.load import pipeline_schedules
from simulations.scenario.scenario import Fault, Scenario


@click.command(
    short_help="Watch the operator scale a pipeline on this machine",
    epilog=examples("sluice demo", "sluice demo --keep"),
)
@run_options
@click.option("--keep", is_flag=True, help="Keep the lab running after the demo, until Ctrl-C.")
def demo(*, seed: int | None, interval: float | None, operator: bool, keep: bool, report: Path | None) -> None:
    """Watch the operator scale a four-stage speech pipeline on a real Kubernetes, for four minutes.

    The load rises and falls. While it rises, the pool of cheap accelerators has no capacity for new replicas for a
    while. Exit status 1 if the operator changed no replicas, did not use another pool meanwhile, lost a request or
    spent above the budget.
    """
    with as_file(files("simulations.scenarios") / "demo") as folder:
        scenario = read_scenario(folder / "scenario.yaml")
        options = options_of(scenario, seed=seed, operator=operator, interval=interval)
        place = report_path(report, f"demo-{options.seed}")
        with executed(scenario, options) as (finished, cluster):
            summary = finished.result.summary
            name = "Sluice" if operator else "The lab without the operator"
            fallbacks = fallback_lines(scenario.file.faults, finished.result.decisions)
            closing = closing_lines(
                finished.result,
                static_plan(scenario, options.seed),
                scored_h=scored_h(scenario.file.clock),
                sessions=sessions_of(scenario, options.seed),
            )
            words = verdict(finished.result, name, most_late_s=max_lag_s(scenario))
            for line in (*words, *filter(None, fallbacks.values()), *closing):
                click.echo(line)
            if keep:
                click.echo(f"the lab stays up until Ctrl-C: kubectl --kubeconfig {cluster.kubeconfig}", err=True)
            write_report(finished, place)
            if keep:
                before = signal.signal(signal.SIGINT, signal.default_int_handler)  # here Ctrl-C is the regular end
                with contextlib.suppress(KeyboardInterrupt):
                    signal.pause()
                signal.signal(signal.SIGINT, before)
    failures = broken_promises(summary) + [
        f"no other pool took over from {pool}, which had no capacity" for pool, line in fallbacks.items() if not line
    ]
    for failure in failures:
        click.echo(f"failed: {failure}", err=True)
    if failures:
        raise click.exceptions.Exit(1)


def verdict(result: LabResult, name: str, *, most_late_s: float) -> list[str]:
    """Return the result of the run in words, users first; `name` is what scaled.

    A line each follows for windows, items, cost and changes, and for a load that was later than `most_late_s`.
    """
    summary = result.summary
    met = summary.sla_windows_met
    lines = [
        served_sentence(name, result.users, summary.sessions_cut),
        f"within the SLA: {'-' if met is None else f'{met:.1%}'} of {summary.windows} windows",
        (
            f"items: {summary.offered} offered = {summary.served} served + {summary.filtered} filtered"
            f" + {summary.shed} shed + {summary.refused} refused + {summary.lost} lost + {summary.in_flight} in flight"
        ),
        f"cost: ${summary.cost:.4f}",
        (
            f"{summary.replica_changes} replica changes, {summary.sessions_cut} sessions cut,"
            f" {summary.cap_violations} cap violations"
        ),
    ]
    if summary.generator_lag_p99_s > most_late_s:
        lines.append(f"warning: the load generator was late by {summary.generator_lag_p99_s * 1000:.1f} ms (p99)")
    return lines


def static_plan(scenario: Scenario, seed: int) -> RunResult:
    """Return the simulated run of a static allocation for the peak: the same load, and the same failures."""
    return run_one(scenario, policy="static-peak", seed=seed)


def sessions_of(scenario: Scenario, seed: int) -> int:
    """Return how many sessions are under way in the scored time of a run, over all pipelines."""
    clock = scenario.file.clock
    return sum(
        int(((load.end_s > clock.warmup_s) & (load.start_s < clock.duration_s)).sum())
        for load in pipeline_schedules(scenario, seed=seed).values()
    )


def scored_h(clock: Clock) -> float:
    """Return the scored time of a run in hours."""
    return (clock.duration_s - clock.warmup_s) / 3600


def closing_lines(result: LabResult, static: RunResult, *, scored_h: float, sessions: int) -> list[str]:
    """Return the last lines of the demo: a static plan under the same failure, then the result in USD per month.

    `scored_h` is the scored time in hours, `sessions` the number of sessions in it.
    """
    mine, fixed = result.summary.cost / scored_h, static.cost / scored_h
    name = "A static allocation for the peak (simulated, with the same load and failure)"
    lines = [f"{served_sentence(name, static.users, static.sessions_cut)} It costs {formats.per_month(fixed)}."]
    cut = result.summary.sessions_cut
    share = f" ({formats.share(cut / sessions)})" if sessions else ""
    saved = f"{formats.money_month(abs(fixed - mine))} ({formats.share(abs(fixed - mine) / fixed)})" if fixed else ""
    against = f", {saved} {'less' if mine <= fixed else 'more'} than the static allocation" if saved else ""
    served = "; ".join(
        f"{users_words(one)} served as promised ({formats.share(one.share)}), {formats.users(one.refused)} refused,"
        f" {formats.users(one.late)} late, {formats.users(one.lost)} lost"
        for one in by_unit(result.users)
    )
    lines.append(
        f"result: {formats.per_month(mine)}{against}; {served};"
        f" {formats.count(cut)} of {formats.count(sessions)} sessions cut{share}"
    )
    return lines


def fallback_lines(faults: Sequence[Fault], decisions: Sequence[DecisionEntry]) -> dict[str, str]:
    """Return the operator's reaction to each pool that had no capacity for new replicas, by name of the pool.

    The text is empty if no other pool took over.
    """
    return {
        fault.pool_unavailable: _fallback_line(fault.pool_unavailable, fault.interval, decisions)
        for fault in faults
        if fault.pool_unavailable is not None
    }


def _fallback_line(pool: str, span: Interval, decisions: Sequence[DecisionEntry]) -> str:
    def moves(decision: DecisionEntry, *, more: bool) -> list[str]:
        """Return the pools on which a decision adds, or removes, replicas."""
        moved = [change.placement for change in decision.changes if (change.after > change.before) is more]
        return [pool_of(named_placement(placement)) for placement in moved]

    during = [decision for decision in decisions if decision.t_s >= span.from_s]
    # Of a single replica that finds no node, the operator says that it cannot be placed, not that the pool is at fault.
    lost = (ChangeReason.POOL, ChangeReason.PLACEMENT)
    gone = next((one for one in during if _says(one, *lost) and set(moves(one, more=True)) - {pool}), None)
    if gone is None:
        return ""
    others = sorted(set(moves(gone, more=True)) - {pool})
    trials = [f"{one.t_s:.0f} s" for one in during if _says(one, ChangeReason.TRIAL) and pool in moves(one, more=True)]
    back = next((one for one in during if one.t_s >= span.until_s and set(moves(one, more=False)) & {*others}), None)
    words = f"no capacity for new replicas on {pool} from {span.from_s:.0f} s to {span.until_s:.0f} s"
    words += f": {', '.join(others)} took over at {gone.t_s:.0f} s"
    words += f"; one replica tried again at {', '.join(trials)}" if trials else ""
    return words + (f"; replicas moved back from {back.t_s:.0f} s on" if back is not None else "")


def _says(decision: DecisionEntry, *reasons: ChangeReason) -> bool:
    return any(f"({CHANGES[reason]})" in decision.reason for reason in reasons)


def broken_promises(summary: LabSummary) -> list[str]:
    """Return the promises of the demo that this run broke, one sentence each; none after a good run."""
    return [
        words
        for broken, words in (
            (summary.replica_changes == 0, "the operator changed no replicas"),
            (summary.lost > 0, f"{summary.lost} items were lost"),
            (summary.cap_violations > 0, f"spend was above the budget {summary.cap_violations} times"),
        )
        if broken
    ]
