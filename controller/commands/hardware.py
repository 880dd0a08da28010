"""`sluice hardware`: which device each stage should run on, and the cheapest mix of pools at each load."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from controller.commands.findings import refused
from controller.commands.help_page import examples

if TYPE_CHECKING:
    from controller.core.state.spec import PoolSpec
    from controller.hardware.priors import Prior
    from optimizer.model import PlacementName, PoolName, Problem

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_POINTS = 12
_LOWEST, _HIGHEST = 0.05, 2.0
"""The loads that are compared, as shares of the one asked for."""


@click.command(
    short_help="Compare the devices that stages can run on",
    epilog=examples(
        "sluice hardware pools.yaml speech.yaml --demand speech/captions=400",
        "sluice hardware pools.yaml speech.yaml --demand 400 --plot mix.svg",
    ),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=_FILE)
@click.option(
    "--demand",
    "demands",
    multiple=True,
    metavar="[NAMESPACE/NAME=]N",
    help="Load of the pipeline in its own unit: streams, or requests/s. Loads up to twice as much are compared too.",
)
@click.option("--stage", "only", metavar="STAGE", help="Compare the devices of this stage only.")
@click.option(
    "--priors",
    multiple=True,
    metavar="STAGE=MODEL",
    help="Add to a stage the devices for which there are published numbers of a model, with source and confidence.",
)
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="DEVICE=USD",
    help="Price per hour of a device of the published numbers, where none is listed.",
)
@click.option(
    "--interruptions",
    multiple=True,
    metavar="POOL=SHARE",
    help="Share of the spot instances of a pool that are interrupted in a month. Default: 0.2 for pools whose price is "
    "that of spot instances.",
)
@click.option(
    "--learned",
    "learned_files",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="Measured numbers for placements that do not declare them: the output of `sluice explain -o json`.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write the cheapest mix over the load to this file, as SVG.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Format of the output.",
)
def hardware(
    files: tuple[Path, ...],
    demands: tuple[str, ...],
    only: str | None,
    priors: tuple[str, ...],
    prices: tuple[str, ...],
    interruptions: tuple[str, ...],
    learned_files: tuple[Path, ...],
    plot: Path | None,
    output: str,
) -> None:
    """Compare the devices that the stages of the pipeline in FILEs can run on, at a given load.

    Budget, capacity of pools and replica bounds do not apply: the hardware is still to be chosen. Exit status: 0 the
    SLA can be met, 1 it cannot, or the manifests are invalid or lack numbers, 2 wrong usage.
    """
    from controller.commands.hardware_output import document, plot_of, print_comparison
    from controller.commands.plan_request import ask, missing_numbers, read_learned_files, specs_of, unknown_name
    from controller.core.state.learned import with_learned
    from controller.core.state.shared import resolved
    from controller.hardware.comparison import compared
    from controller.hardware.plot import svg
    from controller.resources.validation import validate_files
    from optimizer.reports.devices import Devices

    checked = validate_files(files)
    if checked.findings:
        raise refused(checked.findings)
    specs, pools = specs_of(checked)
    if len(specs) > 1:
        raise click.UsageError("FILE...: must have one SpeechPipeline: hardware is compared for one at a time")
    learned = read_learned_files(learned_files, specs)
    if missing := missing_numbers(checked, specs, learned):
        raise refused(missing)
    completed, _ = resolved(with_learned(spec, learned.get(key, {})) for key, spec in specs.items())
    open_ended = [f"{name}=1" for name, pool in pools.items() if pool.instances is None]
    request = ask(completed, pools, demands=demands, limits=open_ended)
    ((key, spec),) = request.specs.items()
    if request.sweep is not None:
        raise click.UsageError(f"--demand: {key} must have one load; loads up to twice as much are compared")
    if spec.borrowed:
        raise click.UsageError(f"FILE...: {key} shares a stage with another pipeline; compare the one that owns it")
    names = [stage.name for stage in spec.stages]
    if only is not None and only not in names:
        raise unknown_name("--stage", only, names)
    load = request.demands[key]
    if load <= 0:
        raise click.UsageError(f"--demand: {key}={load:g}: must be above 0")
    problem, added, notes = _with_priors(request.problem, priors, prices, names)
    comparison = compared(
        Devices(problem, key),
        spec,
        load,
        limits={name: pool.instances for name, pool in pools.items()},
        priors=added,
        interruptions=_interruptions(interruptions, pools),
        only=only,
        loads=[load * (_LOWEST + (_HIGHEST - _LOWEST) * k / (_POINTS - 1)) for k in range(_POINTS)],
        notes=notes,
    )
    if plot is not None:
        plot.write_text(svg(plot_of(comparison)) + "\n", encoding="utf-8")
    if output == "json":
        click.echo(json.dumps(document(comparison), indent=2))
    else:
        print_comparison(comparison)
        if plot is not None:
            click.echo(f"plot: {plot.absolute()}")
    if not comparison.feasible:
        raise click.exceptions.Exit(1)


def _with_priors(
    problem: "Problem", asked: Sequence[str], prices: Sequence[str], stages: Sequence[str]
) -> tuple["Problem", "Mapping[PlacementName, Prior]", list[str]]:
    """Return the problem with the devices of published numbers, what they are, and notes for people."""
    from controller.commands.plan_request import assignments
    from controller.hardware.priors import known_priors, models, with_priors
    from optimizer.model import Batching, StageName

    known, (pipeline,) = known_priors(), problem.pipelines
    devices = sorted({prior.device for prior in known})
    listed = {name: _usd(name, text) for name, text in assignments("--price", prices, devices).items()}
    added: dict[PlacementName, Prior] = {}
    pools, notes = dict(problem.pools), list[str]()
    for stage, model in assignments("--priors", asked, stages, rule="must be STAGE=MODEL").items():
        own = [prior for prior in known if prior.model == model]
        if not own:
            raise click.UsageError(
                f"--priors: '{stage}={model}': there are no published numbers of this model; there are some of "
                f"{', '.join(models(known))}"
            )
        (to,) = (each for each in pipeline.stages if each.name == stage)
        if to.placements[0].batching is not Batching.DYNAMIC:
            raise click.UsageError(
                f"--priors: {stage!r}: batches continuously, and the published numbers are of batches"
            )
        pipeline, further, named = with_priors(pipeline, StageName(stage), own, listed)
        pools |= further
        added |= named
        notes += [f"{prior.pool}: an item is {prior.item}; may be off by {prior.error:.0%}" for prior in named.values()]
        for device in sorted({prior.device for prior in own if prior.pool not in further}):
            notes.append(f"{device}: left out, because no price is known; give it with --price {device}=USD")
    return replace(problem, pipelines=(pipeline,), pools=pools), added, list(dict.fromkeys(notes))


def _interruptions(asked: Sequence[str], pools: "Mapping[PoolName, PoolSpec]") -> "dict[PoolName, float]":
    """Return the share of instances that are interrupted in a month, of the pools of spot instances."""
    from controller.commands.plan_request import assignments
    from controller.core.state.cloud import Purchase
    from controller.hardware.spot import DEFAULT_INTERRUPTIONS
    from optimizer.model import PoolName

    shares = {
        name: DEFAULT_INTERRUPTIONS
        for name, pool in pools.items()
        if pool.looked_up is not None and pool.looked_up.purchase is Purchase.SPOT
    }
    for name, text in assignments("--interruptions", asked, pools, rule="must be POOL=SHARE").items():
        share = _number(text)
        if share is None or not 0 <= share < 1:
            raise click.UsageError(
                f"--interruptions: '{name}={text}': must be POOL=SHARE with a share from 0 to below 1"
            )
        shares[PoolName(name)] = share
    return shares


def _usd(name: str, text: str) -> float:
    price = _number(text)
    if price is None or price <= 0:
        raise click.UsageError(f"--price: '{name}={text}': must be DEVICE=USD with a number above 0")
    return price


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
