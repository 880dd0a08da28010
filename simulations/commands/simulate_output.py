"""The table and the sentences that `sluice simulate` prints."""

from collections.abc import Iterator

from controller.commands.terminal import Page
from controller.core.state.spec import DemandUnit
from simulations.report import fidelity, formats
from simulations.report.changes import Peak, sensitivity_of
from simulations.report.conclusions import label, sentences, subject, users_of_all
from simulations.report.fidelity import Fidelity
from simulations.results.results import Experiment, Run, dominated_by
from simulations.results.users import promise_kept


def print_experiment(experiment: Experiment, error_bar: Fidelity | None, peak: Peak | None = None) -> None:
    """Print how many users were served as promised, a table of runs for each what-if, and the results in sentences.

    The first what-if is the scenario itself. `peak` is the plan for the highest load, which says how much hangs on the
    service times.
    """
    page = Page()
    first, *rest = sentences(experiment)
    kept = promise_kept(subject(experiment).users)
    page.say(first, style={True: "bold green", False: "bold red", None: "bold"}[kept])
    page.say()
    for what_if in experiment.what_ifs:
        runs = [run for run in experiment.runs() if run.what_if == what_if]
        bound = experiment.bound_cost(what_if)
        page.say(_title(experiment, what_if, bound, runs), style="bold")
        page.table(
            (
                "policy",
                ">cost",
                ">seeds",
                ">x bound",
                *USER_COLUMNS,
                ">windows in SLA",
                ">calm",
                ">p95",
                ">changes",
                ">over cap",
                "dominated by",
            ),
            (_row(run, runs) for run in runs),
        )
        page.say()
    for sentence in (*rest, *_trust(experiment, error_bar)):
        page.say(sentence)
    for line in sensitivity_of(peak):
        page.say(line.strip() if line.startswith(" ") else f"At the peak, {line}", indent=int(line.startswith(" ")))


USER_COLUMNS = (">users as promised", ">refused", ">cut", ">late", ">lost")
"""The columns of `user_cells`."""


def user_cells(run: Run) -> tuple[str, ...]:
    """Return what became of the users of a run, under `USER_COLUMNS`."""
    return (
        formats.share(run.served_as_promised),
        users_of_all(run, "refused"),
        formats.count(run.mean("sessions_cut")),
        users_of_all(run, "late"),
        users_of_all(run, "lost"),
    )


def _title(experiment: Experiment, what_if: str | None, bound: float | None, runs: list[Run]) -> str:
    seeds = formats.plural(len(experiment.seeds), "seed")
    if any(users.unit is DemandUnit.ITEMS for run in runs for users in run.users):
        least = "no bound: there is none with demand.backlog"
    elif bound is None:
        least = "no bound: no schedule meets the SLA in 99.5 % of the windows"
    else:
        least = f"bound {formats.money(bound)}"
    return f"{experiment.scenario}{'' if what_if is None else f', what if {what_if}'} ({seeds}; {least})"


def _row(run: Run, runs: list[Run]) -> tuple[str, ...]:
    better = [label(other) for other in dominated_by(run, runs)]
    p95 = run.mean("p95_s")
    return (
        label(run),
        formats.money(run.mean("cost")),
        formats.spread(run.range("cost"), formats.money) or formats.MISSING,
        formats.MISSING if run.cost_over_bound is None else f"{run.cost_over_bound:.2f}",
        *user_cells(run),
        formats.share(run.mean("sla_windows_met")),
        formats.share(run.mean("sla_windows_met_calm")),
        formats.MISSING if p95 is None and not run.mean("lost") else formats.latency(p95),
        formats.count(run.mean("replica_changes")),
        formats.count(run.mean("cap_violations")),
        _verdict(run, better),
    )


def _verdict(run: Run, better: list[str]) -> str:
    if run.breaks_caps:
        return "over the cap"
    return better[0] + (f" +{len(better) - 1}" if len(better) > 1 else "") if better else formats.MISSING


def _trust(experiment: Experiment, error_bar: Fidelity | None) -> Iterator[str]:
    failed = [check.name for check in experiment.self_checks if not check.ok]
    if failed:
        yield f"FAILED self-checks against theory, do not rely on these numbers: {formats.listed(failed)}."
    else:
        yield f"{formats.plural(len(experiment.self_checks), 'self-check')} against theory passed."
    yield fidelity.words(error_bar)
