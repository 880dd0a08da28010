"""`sluice race`: the same load on the lab under Sluice, and under HPA and KEDA as they are released."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from controller.commands.findings import refused
from controller.commands.help_page import examples
from controller.commands.terminal import Page
from simulations.commands.lab import cycle_interval_s, prepare_environment, read_scenario
from simulations.commands.simulate import REPORT, RESULTS, check_writable
from simulations.commands.simulate_output import USER_COLUMNS, user_cells
from simulations.experiment.experiment import RunRequest, run_all, settings_of
from simulations.experiment.provenance import provenance
from simulations.lab.cluster.deployments import UnsupportedManifest
from simulations.lab.host.binaries import Binaries, BuildError, ensure
from simulations.lab.host.processes import ProcessError
from simulations.lab.race.comparison import Deviation, deviations
from simulations.lab.race.entrants import ENTRANTS, Entrant, Lap, lap, scaler
from simulations.lab.race.kept import FinishedLap, KeptLaps
from simulations.lab.session.fault_actions import FaultRefused
from simulations.lab.session.live_result import live_experiment
from simulations.lab.session.report import lab_result
from simulations.lab.session.run import Options, check, max_lag_s, run
from simulations.lab.session.view import LineView
from simulations.policies.catalogue import POLICIES
from simulations.report import formats
from simulations.report.conclusions import label
from simulations.report.page import render
from simulations.report.trust import SIMULATED, Live
from simulations.results.results import Experiment, Provenance, Run, RunResult, Tuning, dominated_by, to_json
from simulations.scenario.scenario import InvalidScenario, Scenario

_LAPS = "laps"
_COLUMNS = (
    "entrant",
    ">cost",
    ">seeds",
    *USER_COLUMNS,
    ">windows in SLA",
    ">p95",
    ">changes",
    "better",
)


@click.command(
    short_help="Race Sluice against HPA and KEDA on the lab",
    epilog=examples("sluice race scenario.yaml --seed 1", "sluice race scenario.yaml --entrant sluice --entrant hpa"),
)
@click.argument("scenario", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--entrant",
    "names",
    multiple=True,
    type=click.Choice(list(ENTRANTS)),
    help="Who takes part; may be repeated. `:trained` has settings that were found on training loads. Default: all.",
)
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    type=click.IntRange(0),
    metavar="N",
    help="Seed of the load; may be repeated. Default: the scenario's.",
)
@click.option(
    "--simulated/--not-simulated",
    default=True,
    help="Simulate every run too, and print how far the simulator is off.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help=f"Folder for {REPORT}, a single file, {RESULTS}, and the finished runs.",
)
def race(scenario: Path, *, names: tuple[str, ...], seeds: tuple[int, ...], simulated: bool, out: Path | None) -> None:
    """Play SCENARIO on the lab once for each entrant and seed, and print who cost and served what.

    HPA reads its metrics through prometheus-adapter, KEDA brings its own; both are built at the first time. KEDA
    listens on all addresses: `make race` runs it in a network of its own.

    A run takes the time of the load. Those that FOLDER has of the same files, settings and version are not run again,
    so a race that was interrupted goes on where it ended.

    Exit status: 0 done; 1 the scenario is invalid, the lab cannot run it, or the load of a run was late.
    """
    loaded = read_scenario(scenario)
    if out is not None:
        check_writable(out)
    chosen = tuple(dict.fromkeys(seeds or loaded.file.seeds))
    interval_s = cycle_interval_s(None, loaded)
    entrants = [ENTRANTS[name] for name in dict.fromkeys(names or ENTRANTS)]
    if any(pipeline.spec.demand.backlog is not None for pipeline in loaded.pipelines):
        others = sorted({entrant.name for entrant in entrants} - {"sluice"})
        if others:
            raise click.UsageError(f"{', '.join(others)}: not for a scenario with spec.demand.backlog; only sluice is")
    try:
        laps = [lap(each, loaded, seed=seed, interval_s=interval_s) for seed in chosen for each in entrants]
        for own in laps:
            check(own.scenario, seed=own.seed)
        live = list(_live(laps, loaded, None if out is None else KeptLaps(folder=out / _LAPS)))
    except InvalidScenario as error:
        raise refused(error.findings) from None
    except (BuildError, ProcessError, UnsupportedManifest, FaultRefused) as error:
        raise click.ClickException(str(error)) from None
    results = sorted((own.result for own in live), key=lambda found: _order(laps, found))
    experiment = Experiment(
        scenario=loaded.file.name,
        seeds=chosen,
        results=tuple(results),
        bounds=(),
        self_checks=(),
        provenance=provenance(loaded, ["sluice", *sys.argv[1:]], results),
    )
    beside = list(deviations(results, _simulated(loaded, results))) if simulated else []
    about = _about(live, beside)
    settings = {entrant.name: _settings(entrant, loaded) for entrant in entrants}
    _print(experiment, about, settings)
    if out is not None:
        beside_live = [asdict(own) for own in beside]
        document = {**to_json(experiment), "settings": settings, "simulated": beside_live}
        out.mkdir(parents=True, exist_ok=True)
        (out / RESULTS).write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
        page = (out / REPORT).resolve()
        page.write_text(render(experiment, loaded, error_bar=None, live=about), encoding="utf-8")
        click.echo(f"report: {page}")
    if late := [own for own in live if own.late]:
        click.echo(
            f"invalid: the load generator was late by {about.generator_lag_p99_s * 1000:.1f} ms (p99) in a run, more "
            f"than {about.max_lag_s * 1000:g} ms: this machine is too slow for the load, or had other work. "
            f"Runs to repeat: {', '.join(f'{_entrant(own)}, seed {own.result.seed}' for own in late)}",
            err=True,
        )
        raise click.exceptions.Exit(1)


def _order(laps: Sequence[Lap], found: RunResult) -> tuple[int, int]:
    """Return the place of a run in tables: the entrants in their order, each with its seeds."""
    places = list(dict.fromkeys((own.entrant.policy, own.entrant.tuning) for own in laps))
    return places.index((found.policy, found.tuning)), found.seed


def _live(laps: Sequence[Lap], scenario: Scenario, kept: KeptLaps | None) -> Iterator[FinishedLap]:
    """Yield each lap: as it was kept, or run now on a lab of its own. One with a late load is not kept."""
    view = LineView(Console(stderr=True))
    binaries: Binaries | None = None
    for number, own in enumerate(laps, 1):
        title = f"run {number} of {len(laps)}: {own.entrant.name}, seed {own.seed}"
        made, settings = provenance(own.scenario, ()), _settings(own.entrant, scenario)
        found = kept and kept.read(own, made, settings)
        if found:
            view.say(f"{title}: kept in {kept and kept.path(own)}")
        else:
            if binaries is None:
                prepare_environment()
                binaries = ensure(view.say)
            view.say(title)
            found = _run(own, made, settings, binaries, view)
            if kept and not found.late:
                kept.write(own, found)
        yield found


def _run(own: Lap, made: Provenance, settings: Mapping[str, Any], binaries: Binaries, view: LineView) -> FinishedLap:
    options = Options(seed=own.seed, interval_s=own.interval_s)
    with tempfile.TemporaryDirectory(prefix="sluice-race-") as name:
        folder = Path(name)
        by = scaler(own, folder, view.say)
        with run(own.scenario, options, folder, binaries, view, scaler=by) as (records, _):
            result = lab_result(records)
    (found,) = live_experiment(
        records, result, seed=own.seed, policy=by.policy, provenance=made, tuning=own.entrant.tuning
    ).results
    return FinishedLap(
        made=made,
        settings=settings,
        kubernetes=result.kubernetes,
        static_peak_cost=result.summary.static_peak_cost,
        generator_lag_p99_s=result.summary.generator_lag_p99_s,
        max_lag_s=max_lag_s(own.scenario),
        result=found,
    )


def _simulated(scenario: Scenario, live: Sequence[RunResult]) -> tuple[RunResult, ...]:
    wanted = [RunRequest(policy=own.policy, tuning=own.tuning, seed=own.seed) for own in live]
    return run_all(scenario, wanted, jobs=len(os.sched_getaffinity(0)))


def _about(live: Sequence[FinishedLap], beside: Sequence[Deviation]) -> Live:
    """Return the facts of the run whose load was the latest, with how far the simulator is off."""
    worst = max(live, key=lambda own: own.generator_lag_p99_s)
    return Live(
        kubernetes=worst.kubernetes,
        static_peak_cost=worst.static_peak_cost,
        generator_lag_p99_s=worst.generator_lag_p99_s,
        max_lag_s=worst.max_lag_s,
        simulated=tuple(map(_deviation, beside)),
    )


def _entrant(own: FinishedLap) -> str:
    return Entrant(policy=own.result.policy, tuning=own.result.tuning).name


def _settings(entrant: Entrant, scenario: Scenario) -> dict[str, Any]:
    """Return the settings of an entrant, at the pace of the scenario."""
    found = settings_of(scenario, entrant.policy, entrant.tuning)
    values: dict[str, Any] = POLICIES[entrant.policy].values_of(found)
    return values


def _print(experiment: Experiment, about: Live, settings: Mapping[str, Mapping[str, Any]]) -> None:
    page = Page()
    seeds = formats.plural(len(experiment.seeds), "seed")
    page.say(f"{experiment.scenario}, live ({seeds})", style="bold")
    runs = experiment.runs()
    page.table(_COLUMNS, (_row(own, runs) for own in runs))
    if about.simulated:
        page.say()
        page.say("The simulator on the same loads", style="bold")
        page.table(SIMULATED, about.simulated)
    page.say()
    page.say("Settings, with times at the pace of the load", style="bold")
    for name, values in settings.items():
        page.say(f"{name}: {', '.join(f'{field} {_value(value)}' for field, value in values.items())}")


def _value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _deviation(own: Deviation) -> tuple[str, ...]:
    """Return the row of an entrant under `SIMULATED`."""
    return (
        own.policy if own.tuning is Tuning.DEFAULT else f"{own.policy} ({own.tuning})",
        f"{own.cost - 1:+.1%}",
        formats.MISSING if own.users is None else f"{100 * own.users:+.1f} points",
        formats.MISSING if own.windows is None else f"{100 * own.windows:+.1f} points",
        f"{own.replicas:.1%}",
        f"{own.behind_s:+.0f} s",
    )


def _row(run: Run, runs: Sequence[Run]) -> tuple[str, ...]:
    better = [label(other) for other in dominated_by(run, list(runs))]
    return (
        label(run),
        formats.money(run.mean("cost")),
        formats.spread(run.range("cost"), formats.money) or formats.MISSING,
        *user_cells(run),
        formats.share(run.mean("sla_windows_met")),
        formats.latency(run.mean("p95_s")),
        formats.count(run.mean("replica_changes")),
        ", ".join(better) or formats.MISSING,
    )
