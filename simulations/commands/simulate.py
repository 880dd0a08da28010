"""`sluice simulate`: run a scenario in the simulator under Sluice and baseline policies."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from controller.commands.findings import refused

if TYPE_CHECKING:
    from simulations.experiment.experiment import RunRequest
    from simulations.experiment.hindsight import BoundRequest
    from simulations.experiment.parts import Split
    from simulations.results.results import BoundResult, Experiment, RunResult
    from simulations.scenario.scenario import Scenario

if find_spec("scipy") is None:  # solves the bound; the operator's image lacks it, and `sluice` then reports that
    raise ModuleNotFoundError("scipy", name="scipy")

REPORT, RESULTS = "report.html", "results.json"

_INTERRUPTED = 128 + signal.SIGINT


def _seeds(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise click.BadParameter(f"{text!r}: must be whole numbers of at least 0, such as 1,2,3.")
    seeds = tuple(int(part) for part in parts)
    if len(set(seeds)) < len(seeds):
        raise click.BadParameter(f"{text!r}: must name each seed once.")
    return seeds


@click.command()
@click.argument("scenario", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="Run only this policy, also in the what-ifs; may be repeated. Default: the scenario's policies, and Sluice "
    "in the what-ifs.",
)
@click.option(
    "--what-if",
    "what_ifs",
    multiple=True,
    metavar="NAME",
    help="Run only this what-if; may be repeated. Default: all what-ifs.",
)
@click.option(
    "--seeds", metavar="N,N,…", callback=_seeds, help="Seeds of the random loads to run. Default: the scenario's."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Folder for {REPORT}, a single file, and {RESULTS}.",
)
@click.option("--jobs", type=click.IntRange(1), help="Processes to run in parallel. Default: one per processor.")
@click.option(
    "--parts",
    type=click.IntRange(1),
    help="Split the runs into this many parts, for several machines; make only one of them, a file in --out.",
)
@click.option(
    "--part",
    type=click.IntRange(0),
    envvar="JOB_COMPLETION_INDEX",
    help="The part to make, counted from 0. Default: $JOB_COMPLETION_INDEX, which an Indexed Job of Kubernetes sets.",
)
@click.option("--join", is_flag=True, help="Run nothing: join the parts in --out to the results of one process.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Format of the output.",
)
def simulate(
    scenario: Path,
    *,
    policies: tuple[str, ...],
    what_ifs: tuple[str, ...],
    seeds: tuple[int, ...] | None,
    out: Path | None,
    jobs: int | None,
    parts: int | None,
    part: int | None,
    join: bool,
    output: str,
) -> None:
    """Simulate SCENARIO: what Sluice and baseline policies would cost, and how often they would meet the SLA.

    Exit status: 0 done; 1 the scenario is invalid or cannot be simulated; 2 wrong usage.
    """
    from simulations.policies.catalogue import POLICIES
    from simulations.scenario.scenario import InvalidScenario, load_scenario

    try:
        loaded = load_scenario(scenario, policies=POLICIES)
    except InvalidScenario as error:
        raise refused(error.findings) from None
    _check_names(policies, POLICIES, "policy", "'--policy'")
    _check_names(what_ifs, [what_if.name for what_if in loaded.file.what_if], "what-if", "'--what-if'")
    if out is not None:
        check_writable(out)
    runs, bounds = _planned(
        loaded,
        policies=tuple(dict.fromkeys(policies)) or None,
        what_ifs=tuple(dict.fromkeys(what_ifs)) or None,
        seeds=seeds,
    )
    processes = jobs or len(os.sched_getaffinity(0))
    command = ("sluice", *sys.argv[1:])
    if parts is None and not join:
        results, found = _made(loaded, runs, bounds, jobs=processes)
    else:
        split, folder = _split(loaded, runs, bounds, parts=parts, out=out)
        if not join:
            chosen = _chosen(part, split.parts)
            path = split.write(folder, chosen, *_made(loaded, *split.part(chosen), jobs=processes))
            click.echo(f"part: {path}", err=output == "json")
            return
        results, found = _joined(split, folder)
        command = _of_one_process(command)
    experiment = experiment_of(loaded, results, found, command=command, seeds=tuple(seeds or loaded.file.seeds))
    _print(experiment, loaded, output)
    if out is not None:
        page = write_report(experiment, loaded, out)
        click.echo(f"report: {page}", err=output == "json")


def _check_names(names: Sequence[str], known: Iterable[str], what: str, option: str) -> None:
    from controller.resources.parsing import nearest_name

    candidates = list(known)
    for name in names:
        if name not in candidates:
            nearest = nearest_name(name, candidates)
            hint = f"did you mean {nearest}?" if nearest else f"there are {', '.join(candidates) or 'none'}."
            raise click.BadParameter(f"{name!r}: no such {what}; {hint}", param_hint=option)


def check_writable(folder: Path) -> None:
    """Raise an error before the run if the files cannot be written at its end."""
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise click.BadParameter(
            f"{folder}: cannot be written: {existing} must be a folder with write permission.", param_hint="'--out'"
        )


def _planned(
    scenario: "Scenario",
    *,
    policies: Sequence[str] | None,
    what_ifs: Sequence[str] | None,
    seeds: Sequence[int] | None,
) -> "tuple[tuple[RunRequest, ...], tuple[BoundRequest, ...]]":
    from simulations.cluster.refusals import check_simulated
    from simulations.experiment.experiment import planned_runs
    from simulations.experiment.hindsight import BoundRequest
    from simulations.scenario.scenario import InvalidScenario

    runs = planned_runs(scenario, policies=policies, what_ifs=what_ifs, seeds=seeds)
    bounds = dict.fromkeys((run.what_if, run.seed) for run in runs)
    try:
        check_simulated(
            scenario,
            what_ifs={run.what_if for run in runs if run.what_if is not None},
            seeds=dict.fromkeys(run.seed for run in runs),
        )
    except InvalidScenario as error:
        raise refused(error.findings) from None
    return runs, tuple(BoundRequest(what_if=what_if, seed=seed) for what_if, seed in bounds)


def _made(
    scenario: "Scenario", runs: "Sequence[RunRequest]", bounds: "Sequence[BoundRequest]", *, jobs: int
) -> "tuple[tuple[RunResult, ...], tuple[BoundResult, ...]]":
    from simulations.experiment.experiment import run_and_bound

    try:
        with progress_bar(len(runs) + len(bounds)) as step:
            return run_and_bound(scenario, runs, bounds, jobs=jobs, progress=step)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        raise click.exceptions.Exit(_INTERRUPTED) from None


def _split(
    scenario: "Scenario",
    runs: "tuple[RunRequest, ...]",
    bounds: "tuple[BoundRequest, ...]",
    *,
    parts: int | None,
    out: Path | None,
) -> "tuple[Split, Path]":
    """Return the experiment as it is split, and the folder of its parts."""
    from simulations.experiment.parts import Split
    from simulations.experiment.provenance import provenance

    if parts is None:
        raise click.UsageError("--join: needs --parts, the number of parts to join.")
    if out is None:
        raise click.UsageError("--parts: needs --out, the folder of the parts.")
    return Split(runs=runs, bounds=bounds, parts=parts, inputs=provenance(scenario, (), runs)), out


def _chosen(part: int | None, parts: int) -> int:
    if part is None:
        raise click.UsageError(
            "--parts: needs --part, the part to make; in an Indexed Job $JOB_COMPLETION_INDEX names it."
        )
    if part >= parts:
        raise click.UsageError(f"--part: {part}: must be below --parts, {parts}; parts are counted from 0.")
    return part


def _joined(split: "Split", folder: Path) -> "tuple[tuple[RunResult, ...], tuple[BoundResult, ...]]":
    from simulations.experiment.parts import InvalidPart

    try:
        return split.join(folder)
    except InvalidPart as error:
        raise click.ClickException(str(error)) from None


def _of_one_process(command: Sequence[str]) -> tuple[str, ...]:
    """Return `command` without the options that split it: what repeats the joined result."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word in {"--parts", "--part"}:
            next(words, None)
        elif word != "--join" and not word.startswith(("--parts=", "--part=")):
            kept.append(word)
    return tuple(kept)


def experiment_of(
    scenario: "Scenario",
    results: "tuple[RunResult, ...]",
    bounds: "tuple[BoundResult, ...]",
    *,
    command: Sequence[str],
    seeds: tuple[int, ...],
) -> "Experiment":
    """Return the experiment that `command` made of `scenario`, with self-checks; a failed one is named on stderr."""
    from simulations.engine.self_checks import self_checks
    from simulations.experiment.provenance import provenance
    from simulations.results.results import Experiment

    checks = self_checks(results[0].seed)
    for check in checks:
        if not check.ok:
            click.echo(f"self-check failed: {check.name}: do not rely on these numbers", err=True)
    return Experiment(
        scenario=scenario.file.name,
        seeds=seeds,
        results=results,
        bounds=bounds,
        self_checks=tuple(checks),
        provenance=provenance(scenario, command, results),
    )


@contextlib.contextmanager
def progress_bar(steps: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each step; it moves a progress bar on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=steps, label="simulating", file=sys.stderr, show_pos=True) as bar:
        yield lambda: bar.update(1)


def _print(experiment: "Experiment", scenario: "Scenario", output: str) -> None:
    from simulations.commands.simulate_output import print_experiment
    from simulations.report.changes import peak_of
    from simulations.report.conclusions import subject
    from simulations.report.fidelity import measured_fidelity
    from simulations.results.results import to_json

    if output == "json":
        click.echo(json.dumps(to_json(experiment), indent=2, allow_nan=False))
    else:
        print_experiment(experiment, measured_fidelity(), peak_of(scenario, subject(experiment)))


def write_report(experiment: "Experiment", scenario: "Scenario", folder: Path) -> Path:
    """Write report and results to `folder`, which is created if needed; return the path of the report."""
    from simulations.report.changes import peak_of
    from simulations.report.conclusions import subject
    from simulations.report.fidelity import measured_fidelity
    from simulations.report.page import render
    from simulations.results.results import to_json

    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULTS).write_text(json.dumps(to_json(experiment), indent=1, allow_nan=False) + "\n")
    page = (folder / REPORT).resolve()
    peak = peak_of(scenario, subject(experiment))
    page.write_text(render(experiment, scenario, error_bar=measured_fidelity(), peak=peak))
    return page
