"""`sluice simulate`: run a scenario in the simulator under Sluice and baseline policies."""

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from controller.commands.findings import refused
from controller.commands.help_page import examples

if TYPE_CHECKING:
    from simulations.experiment.experiment import Executor, RunRequest
    from simulations.experiment.hindsight import BoundRequest
    from simulations.experiment.parts import Split
    from simulations.results.results import BoundResult, Experiment, RunResult
    from simulations.scenario.scenario import Scenario

if find_spec("scipy") is None:  # solves the bound; the operator's image lacks it, and `sluice` then reports that
    raise ModuleNotFoundError("scipy", name="scipy")

REPORT, RESULTS = "report.html", "results.json"


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


def _session(_: click.Context, option: click.Parameter, text: str | None) -> str | None:
    from controller.resources.fields import DURATION_PATTERN, duration_s

    if text is not None and not (re.fullmatch(DURATION_PATTERN, text) and duration_s(text) > 0):
        raise click.BadParameter(f"{text!r}: must be a time above 0, such as 8m.", param=option)
    return text


@click.command(
    short_help="Simulate a scenario, or manifests with recorded load",
    epilog=examples(
        "sluice simulate scenario.yaml --policy sluice --policy hpa --out report",
        "sluice simulate pools.yaml captions.yaml --trace grafana.csv",
    ),
)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="SCENARIO | MANIFEST...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="[NAMESPACE/NAME=]FILE",
    help="Recorded load of a pipeline in MANIFESTs: a CSV export of Grafana, or the answer of a range query. Repeat it "
    "for every pipeline; the name is optional where there is one.",
)
@click.option(
    "--series",
    multiple=True,
    metavar="[NAMESPACE/NAME=]NAME",
    help="Series of --trace, if the file has several: a column, or the value of a label.",
)
@click.option(
    "--demand",
    "demands",
    multiple=True,
    metavar="[NAMESPACE/NAME=]N",
    help="Constant load of a pipeline in MANIFESTs; instead of --trace, in its own unit: streams, or requests/s.",
)
@click.option(
    "--session",
    callback=_session,
    metavar="TIME",
    help="Mean length of a stream, such as 8m. Default: 5m where streams stay on a replica.",
)
@click.option(
    "--scenario",
    "scenario",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write the scenario of MANIFESTs to. Default: scenario.yaml.",
)
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
    "--breakdown",
    is_flag=True,
    help="What the cost of Sluice was spent on; the parts add up to it. Its runs take about twice as long.",
)
@click.option(
    "--instances",
    "limits",
    multiple=True,
    metavar="POOL=N",
    help="Number of instances of a pool, instead of its spec.capacity.instances.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help=f"Folder for {REPORT}, a single file, and {RESULTS}.",
)
@click.option(
    "--jobs", type=click.IntRange(1), metavar="N", help="Processes to run in parallel. Default: one per processor."
)
@click.option(
    "--executor",
    "where",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where to run: in processes of this machine, or on the Ray cluster of $RAY_ADDRESS (default: that of this "
    "machine). ray needs the extra `ray`.",
)
@click.option(
    "--parts",
    type=click.IntRange(1),
    metavar="N",
    help="Split the runs into this many parts, for several machines; make only one of them, a file in --out.",
)
@click.option(
    "--part",
    type=click.IntRange(0),
    metavar="N",
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
    files: tuple[Path, ...],
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
    **others: Any,
) -> None:
    """Simulate SCENARIO: what Sluice and baseline policies would cost, and how often they would meet the SLA.

    MANIFESTs with --trace or --demand need no SCENARIO: one is written, to run and to edit. With several
    pipelines, say whose each value is: NAMESPACE/NAME=VALUE.

    Exit status: 0 done; 1 the scenario is invalid or cannot be simulated; 2 wrong usage.
    """
    from simulations.experiment.experiment import SLUICE
    from simulations.policies.catalogue import POLICIES

    executor, breakdown = _executor(others.pop("where"), jobs), others.pop("breakdown")
    if out is not None:
        check_writable(out)
    limits: tuple[str, ...] = others["limits"]
    path, about = _scenario_file(files, **others)
    loaded = _loaded(path, limits)
    _check_names(policies, POLICIES, "policy", "'--policy'")
    _check_names(what_ifs, [what_if.name for what_if in loaded.file.what_if], "what-if", "'--what-if'")
    for note in (*about, *loaded.notes):
        click.echo(f"note: {note}", err=True)
    runs, bounds = _planned(
        loaded,
        policies=tuple(dict.fromkeys(policies)) or None,
        what_ifs=tuple(dict.fromkeys(what_ifs)) or None,
        seeds=seeds,
    )
    runs = tuple(replace(run, breakdown=breakdown and run.policy == SLUICE) for run in runs)
    processes = jobs or len(os.sched_getaffinity(0))
    command = _of_one_process(("sluice", *sys.argv[1:]))
    if parts is None and not join:
        results, found = _made(loaded, runs, bounds, jobs=processes, executor=executor)
    else:
        split, folder = _split(loaded, runs, bounds, parts=parts, out=out, options=limits)
        if not join:
            chosen = _chosen(part, split.parts)
            path = split.write(folder, chosen, *_made(loaded, *split.part(chosen), jobs=processes, executor=executor))
            click.echo(f"part: {path}", err=output == "json")
            return
        results, found = _joined(split, folder)
    experiment = experiment_of(loaded, results, found, command=command, seeds=tuple(seeds or loaded.file.seeds))
    _print(experiment, loaded, output)
    if out is not None:
        page = write_report(experiment, loaded, out)
        click.echo(f"report: {page}", err=output == "json")


def _scenario_file(
    files: Sequence[Path], *, scenario: Path | None, limits: tuple[str, ...], **of_manifests: Any
) -> tuple[Path, list[str]]:
    """Return the scenario file among `files`, or the one that is written for manifests, and notes on what it has."""
    from controller.resources.manifests import ManifestError, load_documents
    from simulations.commands.simulate_manifests import Wanted, write_scenario

    given = [
        f"--{name.removesuffix('s') if name != 'series' else name}" for name, value in of_manifests.items() if value
    ]
    try:
        of_kinds = {document.data.get("kind") is not None for file in files for document in load_documents(file)}
    except ManifestError:  # reported where the file is read
        of_kinds = {len(files) > 1 or bool(given)}
    if of_kinds == {True}:
        if not of_manifests["traces"] and not of_manifests["demands"]:
            raise click.UsageError(
                f"{files[0]}: has resources and no load; give --trace FILE with recorded load, or --demand N"
            )
        path = scenario or Path("scenario.yaml")
        return path, write_scenario(files, Wanted(limits=limits, **of_manifests), path)
    if len(files) > 1:
        raise click.UsageError("name one SCENARIO, or MANIFESTs with --trace or --demand, and not both")
    if scenario is not None:
        given.append("--scenario")
    if given:
        raise click.UsageError(f"{given[0]}: is for MANIFESTs; {files[0]} is a scenario, which has it in its fields")
    return files[0], []


def _loaded(path: Path, limits: Sequence[str]) -> "Scenario":
    """Return the scenario in `path` as the simulated cluster runs it, with the pools' sizes in `limits`."""
    from controller.commands.plan_request import instances_of
    from controller.resources.translate import pipeline_spec, pool_spec
    from simulations.cluster.replacements import replaced
    from simulations.policies.catalogue import POLICIES
    from simulations.scenario.load import load_notes
    from simulations.scenario.scenario import InvalidScenario, load_scenario, with_instances

    try:
        loaded = load_scenario(path, policies=POLICIES, own_servers=True)
    except InvalidScenario as error:
        raise refused(error.findings) from None
    specs = {spec.key: spec for spec in map(pipeline_spec, loaded.pipelines)}
    pools = {spec.name: spec for spec in map(pool_spec, loaded.pools)}
    instances = {str(name): count for name, count in instances_of(specs, pools, limits).items()}
    found = replaced(with_instances(loaded, instances))
    return replace(found, notes=(*load_notes(found), *found.notes))


def _check_names(names: Sequence[str], known: Iterable[str], what: str, option: str) -> None:
    from controller.resources.parsing import nearest_name

    candidates = list(known)
    for name in names:
        if name not in candidates:
            nearest = nearest_name(name, candidates)
            hint = f"did you mean {nearest}?" if nearest else f"there are {', '.join(candidates) or 'none'}."
            raise click.BadParameter(f"{name!r}: no such {what}; {hint}", param_hint=option)


def check_writable(folder: Path, *, option: str = "--out") -> None:
    """Raise an error before the run if the files cannot be written at its end."""
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise click.BadParameter(
            f"{folder}: cannot be written: {existing} must be a folder with write permission.",
            param_hint=f"'{option}'",
        )
    try:  # the permissions do not say everything, such as a disk that is full
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b" ")
    except OSError as error:
        raise click.BadParameter(f"{folder}: cannot be written: {error.strerror}.", param_hint=f"'{option}'") from None


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
    if any(pipeline.spec.demand.backlog is not None for pipeline in scenario.pipelines):
        others = sorted({run.policy for run in runs} - {"sluice"})
        if others:
            raise click.UsageError(f"{', '.join(others)}: not for a scenario with spec.demand.backlog; only sluice is")
        bounds = {}  # the bound serves every item within a latency
    try:
        check_simulated(
            scenario,
            what_ifs={run.what_if for run in runs if run.what_if is not None},
            seeds=dict.fromkeys(run.seed for run in runs),
        )
    except InvalidScenario as error:
        raise refused(error.findings) from None
    return runs, tuple(BoundRequest(what_if=what_if, seed=seed) for what_if, seed in bounds)


def _executor(where: str, jobs: int | None) -> "Executor | None":
    """Return the executor of --executor; None: processes of this machine."""
    if where == "local":
        return None
    if jobs is not None:
        raise click.UsageError("--jobs: is for --executor local; Ray runs as many at once as it has processors")
    from simulations.experiment.ray_cluster import RayFailed, ray_cluster

    try:
        return ray_cluster()
    except RayFailed as error:
        raise click.UsageError(f"--executor: {error}") from None


def _made(
    scenario: "Scenario",
    runs: "Sequence[RunRequest]",
    bounds: "Sequence[BoundRequest]",
    *,
    jobs: int,
    executor: "Executor | None",
) -> "tuple[tuple[RunResult, ...], tuple[BoundResult, ...]]":
    from simulations.experiment.experiment import run_and_bound
    from simulations.experiment.ray_cluster import RayFailed

    try:
        with progress_bar(len(runs) + len(bounds)) as step:
            return run_and_bound(scenario, runs, bounds, jobs=jobs, progress=step, executor=executor)
    except RayFailed as error:
        raise click.ClickException(str(error)) from None


def _split(
    scenario: "Scenario",
    runs: "tuple[RunRequest, ...]",
    bounds: "tuple[BoundRequest, ...]",
    *,
    parts: int | None,
    out: Path | None,
    options: tuple[str, ...],
) -> "tuple[Split, Path]":
    """Return the experiment as it is split, and the folder of its parts."""
    from simulations.experiment.parts import Split
    from simulations.experiment.provenance import provenance

    if parts is None:
        raise click.UsageError("--join: needs --parts, the number of parts to join.")
    if out is None:
        raise click.UsageError("--parts: needs --out, the folder of the parts.")
    inputs = provenance(scenario, (), runs)
    return Split(runs=runs, bounds=bounds, parts=parts, inputs=inputs, options=options), out


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
    """Return `command` without the options that say where it ran: what repeats the result in one process."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word in {"--parts", "--part", "--executor"}:
            next(words, None)
        elif word != "--join" and not word.startswith(("--parts=", "--part=", "--executor=")):
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
        notes=scenario.notes,
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
