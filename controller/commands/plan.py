"""`sluice plan`: what a load would need and cost, from the manifests alone."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from controller.commands.findings import refused

if TYPE_CHECKING:
    from controller.commands.plan_request import LoadRange, PlanRequest

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...", type=_FILE)
@click.option(
    "--demand",
    "demands",
    multiple=True,
    metavar="NAMESPACE/NAME=N",
    help="Load of a pipeline in its own unit: streams, or requests/s. Once per pipeline. LOW:HIGH[:STEPS] in place "
    "of N, for one of them, plans every load of that range (STEPS loads, both ends included; default 10).",
)
@click.option(
    "--instances",
    "limits",
    multiple=True,
    metavar="POOL=N",
    help="Instances of a pool to plan with, instead of its spec.capacity.instances.",
)
@click.option(
    "--frontier",
    is_flag=False,
    flag_value="",
    metavar="[NAMESPACE/NAME]",
    help="The whole curve of cost over latency of one pipeline, and the plan at each corner. The name may be left out "
    "where the files have one pipeline.",
)
@click.option(
    "--composition",
    type=click.Choice(["sum", "rss"]),
    help="How stages make up the latency of the pipeline: rss is nearly unbiased and verified by replay, sum the "
    "careful mode. Default: as the operator does.",
)
@click.option(
    "--search-effort",
    type=click.IntRange(min=0),
    metavar="UNITS",
    help="Search no longer than this many partial choices, and tell how far from the best the plan may be.",
)
@click.option(
    "--current",
    type=_FILE,
    metavar="PLAN",
    help="What runs now, as an earlier `sluice plan -o json` printed it: changes must pay for themselves.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def plan(
    files: tuple[Path, ...],
    demands: tuple[str, ...],
    limits: tuple[str, ...],
    frontier: str | None,
    composition: str | None,
    search_effort: int | None,
    current: Path | None,
    output: str,
) -> None:
    """Plan the pipelines in manifest FILEs for a given load: replicas, latency and cost, with the steps that led there.

    Exit status: 0 the SLA can be met (with a range: at some load of it; with --frontier: the load can be carried),
    1 it cannot (the plan is printed all the same) or the manifests are invalid, 2 wrong usage.
    """
    from controller.commands.plan_request import ask, specs_of
    from controller.resources.validation import validate_files
    from optimizer.model import Composition

    if frontier and "=" not in frontier and Path(frontier).is_file():  # `--frontier FILE`: the name was left out
        files, frontier = (Path(frontier), *files), ""
    if not files:
        raise click.UsageError("Missing argument 'FILE...'.")
    checked = validate_files(files)
    if checked.findings:
        raise refused(checked.findings)
    specs, pools = specs_of(checked)
    request = ask(
        specs,
        pools,
        demands=demands,
        limits=limits,
        composition=None if composition is None else Composition[composition.upper()],
        search_effort=search_effort,
        current=current,
    )
    if frontier is not None:
        ok = _frontier(request, frontier, output)
    elif request.sweep is not None:
        ok = _sweep(request, request.sweep, output)
    else:
        ok = _plan(request, output)
    if not ok:
        raise click.exceptions.Exit(1)


def _plan(request: "PlanRequest", output: str) -> bool:
    from controller.commands.plan_output import document, print_plan
    from optimizer.reports.certificate import certified_plan

    started = time.perf_counter()
    answer = certified_plan(request.problem, packing=True, shadow_prices=True, advice=True)
    solve_s = time.perf_counter() - started
    if output == "table":
        print_plan(answer, request)
    else:
        _print_document(document(answer, request, solve_s=solve_s), output)
    return answer.feasible


def _sweep(request: "PlanRequest", sweep: "LoadRange", output: str) -> bool:
    from controller.commands.sweep_output import Load, document, print_sweep
    from controller.core.assess.problem import pipeline_problem
    from optimizer.reports.curve import load_sweep

    spec = request.specs[sweep.key]
    started = time.perf_counter()
    points = load_sweep(request.problem, sweep.key, [pipeline_problem(spec, load).demand for load in sweep.loads])
    solve_s = time.perf_counter() - started
    loads = [Load(demand=load, point=point) for load, point in zip(sweep.loads, points, strict=True)]
    if output == "table":
        print_sweep(loads, spec, request)
    else:
        _print_document(document(loads, spec, request, solve_s=solve_s), output)
    return any(load.point.plan.feasible for load in loads)


def _frontier(request: "PlanRequest", name: str, output: str) -> bool:
    from controller.commands.frontier_output import document, print_frontier
    from optimizer.reports.curve import frontier

    key = request.curve_of(name)
    started = time.perf_counter()
    curve = frontier(request.problem, key)
    solve_s = time.perf_counter() - started
    if output == "table":
        print_frontier(curve, request, key)
    else:
        _print_document(document(curve, request, key, solve_s=solve_s), output)
    return bool(curve.corners)


def _print_document(data: dict[str, Any], output: str) -> None:
    text = json.dumps(data, indent=2) if output == "json" else yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    click.echo(text.rstrip("\n"))
