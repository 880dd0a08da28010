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
    from simulations.results.results import Experiment
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
        _check_writable(out)
    experiment = _run(
        loaded,
        policies=tuple(dict.fromkeys(policies)) or None,
        what_ifs=tuple(dict.fromkeys(what_ifs)) or None,
        seeds=seeds,
        jobs=jobs or len(os.sched_getaffinity(0)),
    )
    _print(experiment, output)
    if out is not None:
        page = _write(experiment, loaded, out)
        click.echo(f"report: {page}", err=output == "json")


def _check_names(names: Sequence[str], known: Iterable[str], what: str, option: str) -> None:
    from controller.resources.parsing import nearest_name

    candidates = list(known)
    for name in names:
        if name not in candidates:
            nearest = nearest_name(name, candidates)
            hint = f"did you mean {nearest}?" if nearest else f"there are {', '.join(candidates) or 'none'}."
            raise click.BadParameter(f"{name!r}: no such {what}; {hint}", param_hint=option)


def _check_writable(folder: Path) -> None:
    """Raise an error before the run if the files cannot be written at its end."""
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise click.BadParameter(
            f"{folder}: cannot be written: {existing} must be a folder with write permission.", param_hint="'--out'"
        )


def _run(
    scenario: "Scenario",
    *,
    policies: Sequence[str] | None,
    what_ifs: Sequence[str] | None,
    seeds: Sequence[int] | None,
    jobs: int,
) -> "Experiment":
    from simulations.cluster.refusals import check_simulated
    from simulations.engine.self_checks import self_checks
    from simulations.experiment.experiment import planned_runs, run_and_bound
    from simulations.experiment.hindsight import BoundRequest
    from simulations.experiment.provenance import provenance
    from simulations.results.results import Experiment
    from simulations.scenario.scenario import InvalidScenario

    runs = planned_runs(scenario, policies=policies, what_ifs=what_ifs, seeds=seeds)
    bounds = [BoundRequest(what_if=w, seed=s) for w, s in dict.fromkeys((run.what_if, run.seed) for run in runs)]
    try:
        check_simulated(
            scenario,
            what_ifs={run.what_if for run in runs if run.what_if is not None},
            seeds=dict.fromkeys(run.seed for run in runs),
        )
        with _progress(len(runs) + len(bounds)) as step:
            checks = self_checks(runs[0].seed)
            results, found_bounds = run_and_bound(scenario, runs, bounds, jobs=jobs, progress=step)
    except InvalidScenario as error:
        raise refused(error.findings) from None
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        raise click.exceptions.Exit(_INTERRUPTED) from None
    for check in checks:
        if not check.ok:
            click.echo(f"self-check failed: {check.name}: do not rely on these numbers", err=True)
    return Experiment(
        scenario=scenario.file.name,
        seeds=tuple(seeds or scenario.file.seeds),
        results=results,
        bounds=found_bounds,
        self_checks=tuple(checks),
        provenance=provenance(scenario, ("sluice", *sys.argv[1:]), results),
    )


@contextlib.contextmanager
def _progress(steps: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each step; it moves a progress bar on standard error if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=steps, label="simulating", file=sys.stderr, show_pos=True) as bar:
        yield lambda: bar.update(1)


def _print(experiment: "Experiment", output: str) -> None:
    from simulations.commands.simulate_output import print_experiment
    from simulations.report.fidelity import measured_fidelity
    from simulations.results.results import to_json

    if output == "json":
        click.echo(json.dumps(to_json(experiment), indent=2, allow_nan=False))
    else:
        print_experiment(experiment, measured_fidelity())


def _write(experiment: "Experiment", scenario: "Scenario", folder: Path) -> Path:
    """Write report and results to `folder`, which is created if needed; return the path of the report."""
    from simulations.report.fidelity import measured_fidelity
    from simulations.report.page import render
    from simulations.results.results import to_json

    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULTS).write_text(json.dumps(to_json(experiment), indent=1, allow_nan=False) + "\n")
    page = (folder / REPORT).resolve()
    page.write_text(render(experiment, scenario, error_bar=measured_fidelity()))
    return page
