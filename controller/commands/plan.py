"""`sluice plan`: what a load would need and cost, from the manifests alone."""

import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
import yaml

from controller.core.spec import PipelineSpec, PoolSpec
from optimizer.model import PipelineKey, PoolName, Problem


@click.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--demand",
    "demands",
    multiple=True,
    metavar="NAMESPACE/NAME=N",
    help="Load of a pipeline in its own unit: streams, or requests/s. Once per pipeline.",
)
@click.option(
    "--instances",
    "limits",
    multiple=True,
    metavar="POOL=N",
    help="Instances of a pool to plan with, instead of its spec.capacity.instances.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def plan(files: tuple[Path, ...], demands: tuple[str, ...], limits: tuple[str, ...], output: str) -> None:
    """Plan the pipelines in manifest FILEs for a given load: replicas, latency and cost, with the steps that led there.

    Exit status: 0 the SLA can be met, 1 it cannot (the plan is printed all the same) or the manifests are invalid,
    2 wrong usage.
    """
    from controller.commands.plan_output import document, tables
    from controller.resources.translate import pipeline_spec, pool_spec
    from controller.resources.validation import validate_files
    from optimizer.allocate import allocate

    checked = validate_files(files)
    for finding in checked.findings:
        click.echo(str(finding), err=True)
    if checked.findings:
        raise click.exceptions.Exit(1)
    pipelines = {spec.key: spec for spec in map(pipeline_spec, checked.pipelines)}
    pools = {spec.name: spec for spec in map(pool_spec, checked.pools)}
    loads = {PipelineKey(key): load for key, load in _assignments("--demand", demands, pipelines).items()}
    problem = _problem(pipelines, pools, loads, _assignments("--instances", limits, pools))
    started = time.perf_counter()
    answer = allocate(problem, shadow_prices=True)
    solve_s = time.perf_counter() - started
    if output == "table":
        tables(answer, pipelines, loads)
    else:
        data = document(answer, pipelines, loads, solve_s=solve_s)
        click.echo(json.dumps(data, indent=2) if output == "json" else yaml.safe_dump(data, sort_keys=False), nl=False)
        if output == "json":
            click.echo()
    if not answer.feasible:
        raise click.exceptions.Exit(1)


def _problem(
    pipelines: Mapping[PipelineKey, PipelineSpec],
    pools: Mapping[PoolName, PoolSpec],
    loads: Mapping[PipelineKey, float],
    limits: Mapping[str, float],
) -> Problem:
    """Return the question; `UsageError` where the files and options leave something open."""
    from controller.core.problem import pipeline_problem, pool_problem

    if not pipelines:
        raise click.UsageError("FILE...: there is no SpeechPipeline in these files")
    unknown = sorted(pipelines.keys() - loads.keys())
    if unknown:
        raise click.UsageError(f"--demand: {', '.join(unknown)}: every pipeline needs one")
    used = {p.pool for spec in pipelines.values() for stage in spec.stages for p in stage.placements}
    missing = sorted(used - pools.keys())
    if missing:
        raise click.UsageError(f"FILE...: no ComputePool {', '.join(missing)} in these files")
    open_ended = sorted(n for n in used if pools[n].instances is None and n not in limits)
    if open_ended:
        raise click.UsageError(f"--instances: {', '.join(open_ended)}: a pool without spec.capacity.instances needs it")
    fractional = sorted(name for name, limit in limits.items() if limit != int(limit))
    if fractional:
        raise click.UsageError(f"--instances: {fractional[0]}={limits[fractional[0]]}: must be a whole number")
    return Problem(
        pipelines=tuple(pipeline_problem(spec, loads[key]) for key, spec in pipelines.items()),
        pools={
            name: pool_problem(spec, int(limits.get(name, spec.instances or 0)))
            for name, spec in pools.items()
            if name in used
        },
    )


def _assignments(option: str, texts: Iterable[str], known: Iterable[str]) -> dict[str, float]:
    """Return what NAME=N options say, or raise `UsageError`."""
    names, found = sorted(known), dict[str, float]()
    for text in texts:
        name, sign, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not sign or not (math.isfinite(value) and value >= 0):
            raise click.UsageError(f"{option}: {text!r}: must be NAME=N with a number N ≥ 0")
        if name not in names:
            raise click.UsageError(
                f"{option}: {name!r}: is not in these files, which have {', '.join(names) or 'none'}"
            )
        if name in found:
            raise click.UsageError(f"{option}: {name!r}: is given twice")
        found[name] = value
    return found
