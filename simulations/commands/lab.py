"""`sluice lab`: runs a real Kubernetes control plane, Prometheus and stage workers on this machine."""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from controller.commands.findings import refused
from controller.commands.help_page import examples
from controller.resources.fields import duration_s
from controller.resources.translate import pipeline_spec, pool_spec
from controller.resources.validation import validate_files
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.cluster.deployments import UnsupportedManifest, deployments, pool_nodes, stage_workers
from simulations.lab.cluster.standing import Occupied, StandingLab, is_occupied, occupy
from simulations.lab.host.binaries import (
    BuildError,
    cache_folder,
    ensure,
    ensure_helm,
    ensure_keda,
    ensure_prometheus_adapter,
)
from simulations.lab.host.processes import LOOPBACK, ProcessError
from simulations.lab.session.fault_actions import FaultRefused
from simulations.lab.session.live_result import live_page
from simulations.lab.session.report import LabResult, LiveRun, lab_result
from simulations.lab.session.run import LAB_INTERVAL_S, Options, check, max_lag_s, run
from simulations.lab.session.view import LineView, LiveView, Moment, RunView
from simulations.lab.session.workload import Workload
from simulations.policies.catalogue import POLICIES
from simulations.results.backlogs import backlog_words
from simulations.results.scoring import Clock
from simulations.scenario.reference_service import ReferenceService
from simulations.scenario.scenario import InvalidScenario, Scenario, load_scenario

if TYPE_CHECKING:  # the packages are those of an extra
    from simulations.speech.live.result import Predictions, SpeechResult

NEEDS_SPEECH = "the reference service needs the extra: pip install 'sluice-operator[speech]'"
NEEDS_ESPEAK = "the conversations need it: pip install espeakng-loader"

_UP_S = 1200.0
_DOWN_S = 30.0
_POLL_S = 0.1
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished run on the lab: result, HTML page, and the path of the operator's log, which may not exist.

    `speech` is what a run of the reference service came to.
    """

    result: LabResult
    page: str
    operator_log: Path
    speech: "SpeechResult | None" = None


def prepare_environment() -> None:
    """Make HTTP clients of this process and its children connect to this machine without a proxy (`NO_PROXY`)."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), LOOPBACK]))


def finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Return `value`, the value of an option; refuse nan and infinity, which `click.FloatRange` accepts.

    Raises:
        click.BadParameter: `value` is not finite.
    """
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.")
    return value


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with the options that every command with a run has."""
    options = (
        click.option(
            "--seed", type=click.IntRange(0), metavar="N", help="Seed of the load. Default: the scenario's first."
        ),
        click.option(
            "--interval",
            type=click.FloatRange(0.5),
            metavar="SECONDS",
            callback=finite,
            help="Seconds between cycles of the operator. Default: the scenario's, or 2.",
        ),
        click.option(
            "--operator/--no-operator",
            default=True,
            help="Without the operator, nothing scales.",
        ),
        click.option(
            "--report",
            type=click.Path(dir_okay=False, path_type=Path),
            help="File for the report. Default: reports/NAME-SEED.json.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def report_path(asked: Path | None, run: str) -> Path:
    """Return the path for the report of `run`: `asked`, or `reports/<run>.json` if that is None.

    Raises:
        click.BadParameter: the path cannot be written; the program exits with status 2.
    """
    path = asked or Path("reports") / f"{run}.json"
    there = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not os.access(there, os.W_OK) or (there != path.absolute() and not there.is_dir()):
        raise click.BadParameter(f"{path}: cannot be written: {there} is no writable folder.", param_hint="'--report'")
    return path


def cycle_interval_s(asked: float | None, scenario: Scenario) -> float:
    """Return the time between the operator's cycles: `asked`, or else the scenario's, or else that of the lab."""
    if asked is not None:
        return asked
    own = scenario.file.interval
    return LAB_INTERVAL_S if own is None else duration_s(own)


def options_of(
    scenario: Scenario, *, seed: int | None, operator: bool, interval: float | None, scale: float = 1.0
) -> Options:
    """Return the options of a run, from those of the command line and, where these are None, from the scenario."""
    return Options(
        seed=scenario.file.seeds[0] if seed is None else seed,
        scale=scale,
        operator=operator,
        interval_s=cycle_interval_s(interval, scenario),
    )


def read_scenario(path: Path) -> Scenario:
    """Return the scenario in `path`; if it is invalid, print one line per error and exit with status 1."""
    try:
        return load_scenario(path, policies=POLICIES, live=True)
    except InvalidScenario as error:
        raise refused(error.findings) from None


@contextlib.contextmanager
def executed(scenario: Scenario, options: Options) -> Iterator[tuple[Finished, LabCluster]]:
    """Run `scenario` with its progress on the terminal, then yield the finished run and its lab.

    The lab stops at the end of the block. The program exits with status 1 and a reason if the run fails.
    """
    prepare_environment()
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="sluice-lab-") as folder, ExitStack() as lab:
            speech = speech_of(scenario, Path(folder) / "corpus")
            workload = None if speech is None else speech.workload
            check(scenario, seed=options.seed, workload=workload)
            if speech is not None:
                speech.synthesise(options.seed, LineView(console))
            with ExitStack() as shown:
                view: RunView = LineView(console)
                if console.is_terminal:
                    specs = tuple(pipeline_spec(resource) for resource in scenario.pipelines)
                    view = shown.enter_context(LiveView(console, specs))
                if speech is not None:
                    view = Followed(view, speech.predictions.follow)
                binaries = ensure(view.say)
                live, cluster = lab.enter_context(run(scenario, options, Path(folder), binaries, view, workload))
            yield _finished(live, scenario, options, cluster, speech), cluster
    except InvalidScenario as error:
        raise refused(error.findings) from None
    except (BuildError, ProcessError, UnsupportedManifest, FaultRefused) as error:
        raise click.ClickException(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """What a run of the reference service needs: its workload, and the predictions of its plans."""

    service: ReferenceService
    corpus: Path
    workload: Workload
    predictions: "Predictions"

    def synthesise(self, seed: int, view: RunView) -> None:
        """Write what is said to the folder `corpus`.

        Raises:
            ProcessError: the package with eSpeak NG is not installed.
        """
        from simulations.speech.live.workload import synthesise

        view.say(f"synthesising {self.service.conversations} conversations")
        try:
            synthesise(self.service, seed, self.corpus)
        except ModuleNotFoundError as error:
            raise ProcessError(f"speech: {error}; {NEEDS_ESPEAK}") from None

    def result(self, folder: Path, found: LabResult, clock: Clock) -> "SpeechResult":
        """Return what the run with the times of `clock` came to; `folder` is that of its cluster."""
        from simulations.speech.live.result import speech_result

        return speech_result(folder, found, clock, self.service, self.predictions.found)


def speech_of(scenario: Scenario, corpus: Path) -> Speech | None:
    """Return what a run of the reference service needs, None for one of stage workers.

    What is said goes to the folder `corpus`, with `Speech.synthesise`.

    Raises:
        ProcessError: a package that the reference service needs is not installed.
    """
    service = scenario.file.speech
    if service is None:
        return None
    try:  # the packages are those of an extra
        from simulations.speech.live.result import Predictions
        from simulations.speech.live.workload import SpeechWorkload
    except ModuleNotFoundError as error:
        raise ProcessError(f"speech: {error}; {NEEDS_SPEECH}") from None
    detection = next((own.stage for own in service.stages if own.program == "vad"), "")
    predictions = Predictions(pipeline_spec(scenario.pipelines[0]).key, detection.rpartition("/")[2])
    workload = SpeechWorkload(service, corpus)
    return Speech(service=service, corpus=corpus, workload=workload, predictions=predictions)


class Followed:
    """A view of a run that also passes on what it shows."""

    def __init__(self, view: RunView, follow: Callable[[Moment], None]) -> None:
        self._view = view
        self._follow = follow

    def say(self, text: str) -> None:
        """Print a line."""
        self._view.say(text)

    def show(self, moment: Moment) -> None:
        """Show the present moment."""
        self._follow(moment)
        self._view.show(moment)


def _finished(
    live: LiveRun, scenario: Scenario, options: Options, cluster: LabCluster, speech: Speech | None
) -> Finished:
    result = lab_result(live)
    heard = None if speech is None else speech.result(cluster.folder, result, scenario.file.clock)
    page = live_page(
        live,
        result,
        scenario,
        seed=options.seed,
        policy="sluice" if options.operator else "none",
        command=["sluice", *sys.argv[1:]],
        max_lag_s=max_lag_s(scenario),
        facts=None if heard is None else heard.facts(),
    )
    return Finished(result=result, page=page, operator_log=cluster.operator_log, speech=heard)


def write_report(finished: Finished, path: Path) -> None:
    """Write the report to `path`, and the HTML page and the operator's log, if any, next to it; print their paths.

    Print what became of backlogs before. The path of the report is the last line of standard output.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    document = finished.result.to_json()
    if finished.speech is not None:
        document["summary"]["wer"] = finished.speech.wer
        document["speech"] = finished.speech.document()
    path.write_text(json.dumps(document, indent=1) + "\n")
    for backlog in finished.result.backlogs:
        click.echo(backlog_words(backlog))
    path.with_suffix(".html").write_text(finished.page, encoding="utf-8")
    click.echo(f"page: {path.with_suffix('.html').resolve()}")
    if finished.operator_log.exists():
        kept = path.with_suffix(".operator.jsonl")
        shutil.copyfile(finished.operator_log, kept)
        click.echo(f"operator log: {kept.resolve()}")
    click.echo(f"report: {path.resolve()}")


@click.group(
    short_help="Run Sluice on a real control plane on this machine",
    epilog=examples("sluice lab build", "sluice lab up pools.yaml captions.yaml", "sluice lab run scenario.yaml"),
)
def lab() -> None:
    """Run Sluice on a real Kubernetes control plane on this machine, without root or a container engine."""


@lab.command(short_help="Build the lab's programs into the user's cache", epilog=examples("sluice lab build"))
@click.option("--helm", is_flag=True, help="Build Helm too, which tests of the chart need.")
@click.option(
    "--rivals", is_flag=True, help="Build KEDA and prometheus-adapter too, which `sluice race` needs (20 minutes)."
)
def build(*, helm: bool, rivals: bool) -> None:
    """Build the lab's programs into the user's cache (once; about seven minutes on two cores)."""

    def show(line: str) -> None:
        click.echo(line, err=True)

    try:
        programs = ensure(show)
        folders = [programs.kube_apiserver.parent, programs.prometheus.parent]
        if helm:
            folders.append(ensure_helm(show).parent)
        if rivals:
            folders += [ensure_prometheus_adapter(show).parent, ensure_keda(show).operator.parent]
    except BuildError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"the lab's programs are in {', '.join(map(str, folders))}")


@lab.command("run", epilog=examples("sluice lab run scenario.yaml --scale 0.5"))
@click.argument("scenario", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    default=1.0,
    callback=finite,
    help="Share of the sessions to keep.",
)
@run_options
def run_(
    scenario: Path, *, scale: float, seed: int | None, interval: float | None, operator: bool, report: Path | None
) -> None:
    """Run SCENARIO live and write a JSON report.

    Exit status: 0 done; 1 the scenario is invalid, the lab cannot run it, or its load was late.
    """
    loaded = read_scenario(scenario)
    options = options_of(loaded, seed=seed, scale=scale, operator=operator, interval=interval)
    place = report_path(report, f"{loaded.file.name}-{options.seed}")
    with executed(loaded, options) as (finished, _):
        write_report(finished, place)
    lag_s, most_s = finished.result.summary.generator_lag_p99_s, max_lag_s(loaded)
    if lag_s > most_s:
        click.echo(
            f"invalid: the load generator was late by {lag_s * 1000:.1f} ms (p99), more than {most_s * 1000:g} ms: "
            "this machine is too slow for the load; reduce it with --scale",
            err=True,
        )
        raise click.exceptions.Exit(1)


@lab.command(epilog=examples("sluice lab up pools.yaml speech.yaml"))
@click.argument("manifests", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def up(manifests: tuple[Path, ...]) -> None:
    """Start a lab that stays up, apply MANIFESTS, and print its addresses."""
    resources = validate_files(manifests)
    if resources.findings:
        raise refused(resources.findings)
    try:
        nodes = pool_nodes(map(pool_spec, resources.pools))
        deployments(map(pipeline_spec, resources.pipelines), nodes, stage_workers(seed=0))
        ensure(lambda line: click.echo(line, err=True))
    except (UnsupportedManifest, BuildError) as error:
        raise click.ClickException(str(error)) from None
    prepare_environment()
    folder = _standing_folder()
    try:
        lock = occupy(folder)
    except Occupied as error:
        raise click.ClickException(str(error)) from None
    log = folder / "lab.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "simulations.lab.cluster.standing", str(folder), *map(str, manifests)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],
        )
    os.close(lock)  # the lab's process holds it now
    with contextlib.ExitStack() as unless_up:
        unless_up.callback(process.wait)
        unless_up.callback(process.terminate)
        deadline = time.monotonic() + _UP_S
        while (state := StandingLab.read(folder)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
                raise click.ClickException(f"the lab did not come up; last lines of {log}:\n  {tail}")
            time.sleep(_POLL_S)
        unless_up.pop_all()
    click.echo(f"kubectl:    {state.kubectl} --kubeconfig {state.kubeconfig}")
    click.echo(f"kubeconfig: {state.kubeconfig}")
    click.echo(f"prometheus: {state.prometheus_url}")
    click.echo(f"operator:   {state.operator_url}/metrics")


@lab.command(epilog=examples("sluice lab down"))
def down() -> None:
    """Stop the lab that `sluice lab up` started."""
    folder = _standing_folder()
    state = StandingLab.read(folder)
    if state is None:
        if is_occupied(folder):
            raise click.ClickException("the lab is starting or stopping; try again in a moment")
        click.echo("no lab is up")
        return
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_S
    while is_occupied(folder):
        if time.monotonic() > deadline:
            raise click.ClickException(f"process {state.pid} did not end within {_DOWN_S:g} s")
        time.sleep(_POLL_S)
    click.echo("the lab is down")


def _standing_folder() -> Path:
    return cache_folder() / "standing"
