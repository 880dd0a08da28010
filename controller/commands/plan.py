"""`sluice plan`: the replicas, latency and cost for a load, computed from manifests alone."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from controller.commands.findings import refused
from controller.commands.help_page import examples

if TYPE_CHECKING:
    from controller.commands.plan_request import LoadRange, PlanRequest

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    short_help="Plan replicas, latency and cost for a given load",
    epilog=examples(
        "sluice plan pools.yaml speech.yaml --demand speech/captions=400",
        "sluice plan pools.yaml speech.yaml --demand speech/captions=200:1200:5",
    ),
)
@click.argument("files", nargs=-1, metavar="FILE...", type=_FILE)
@click.option(
    "--demand",
    "demands",
    multiple=True,
    metavar="[NAMESPACE/NAME=]N",
    help="Load of a pipeline in its own unit: streams, or requests/s. Repeat it for every pipeline; the name is "
    "optional where the files have one pipeline. For one pipeline, LOW:HIGH[:STEPS] instead of N plans STEPS loads of "
    "that range, both ends included (default 10).",
)
@click.option(
    "--instances",
    "limits",
    multiple=True,
    metavar="POOL=N",
    help="Number of instances of a pool, instead of its spec.capacity.instances.",
)
@click.option(
    "--frontier",
    is_flag=False,
    flag_value="",
    metavar="[NAMESPACE/NAME]",
    help="Print the curve of cost over latency of one pipeline, with the plan at each corner.",
)
@click.option(
    "--composition",
    type=click.Choice(["sum", "rss"]),
    help="How the latency of a pipeline is composed of its stages' latencies: rss treats them as independent and "
    "verifies the plan by replay; sum adds their percentiles, which overestimates.",
)
@click.option(
    "--search-effort",
    type=click.IntRange(min=0),
    metavar="UNITS",
    help="Maximum number of partial choices that the search examines.",
)
@click.option(
    "--current",
    type=_FILE,
    metavar="PLAN",
    help="Current replicas: the output of an earlier `sluice plan -o json`. A change is planned only if it saves more "
    "than it is weighed as.",
)
@click.option(
    "--learned",
    "learned_files",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="Measured numbers for placements that do not declare them: the output of `sluice explain -o json`. Repeat it "
    "for every pipeline.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Format of the output.",
)
def plan(
    files: tuple[Path, ...],
    demands: tuple[str, ...],
    limits: tuple[str, ...],
    frontier: str | None,
    composition: str | None,
    search_effort: int | None,
    current: Path | None,
    learned_files: tuple[Path, ...],
    output: str,
) -> None:
    """Plan the pipelines in manifest FILEs for a given load: replicas, latency, cost, and the steps to them.

    Exit status: 0 the SLA can be met (with a range: for at least one load; with --frontier: there is capacity for the
    load), 1 it cannot be met (a plan is printed), the manifests are invalid or lack numbers, 2 wrong usage.
    """
    from controller.commands.plan_request import ask, budgets_of, missing_numbers, read_learned_files, specs_of
    from controller.core.state.learned import with_learned
    from controller.core.state.shared import resolved
    from controller.resources.validation import validate_files
    from optimizer.model import Composition

    if frontier and "=" not in frontier and Path(frontier).is_file():  # `--frontier FILE`, without a name
        files, frontier = (Path(frontier), *files), ""
    if not files:
        raise click.UsageError("Missing argument 'FILE...'.")
    checked = validate_files(files)
    if checked.findings:
        raise refused(checked.findings)
    specs, pools = specs_of(checked)
    learned = read_learned_files(learned_files, specs)
    if missing := missing_numbers(checked, specs, learned):
        raise refused(missing)
    completed, _ = resolved(with_learned(spec, learned.get(key, {})) for key, spec in specs.items())
    budgets = budgets_of(checked, completed.values())
    for budget in budgets:
        if not budget.pipelines:
            click.echo(f"ComputeBudget {budget.name} selects none of the pipelines in these files", err=True)
    request = ask(
        completed,
        pools,
        demands=demands,
        limits=limits,
        composition=None if composition is None else Composition[composition.upper()],
        search_effort=search_effort,
        current=current,
        budgets=budgets,
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
    from controller.commands.sensitivity_output import MOST_STAGES
    from optimizer.reports.certificate import certified_plan
    from optimizer.reports.sensitivity import service_time_sensitivity

    started = time.perf_counter()
    answer = certified_plan(request.problem, packing=True, shadow_prices=True, advice=True)
    solve_s = time.perf_counter() - started
    stages = sum(len(pipeline.stages) for pipeline in request.problem.pipelines)
    few = answer.feasible and stages <= MOST_STAGES
    sensitivity = tuple(service_time_sensitivity(request.problem)) if few else ()
    if output == "table":
        print_plan(answer, request, sensitivity)
    else:
        _print_document(document(answer, request, sensitivity, solve_s=solve_s), output)
    return answer.feasible


def _sweep(request: "PlanRequest", sweep: "LoadRange", output: str) -> bool:
    from controller.commands.sweep_output import Load, document, print_sweep
    from controller.core.assess.optimizer_input import optimizer_pipeline
    from optimizer.reports.curve import load_sweep

    spec = request.specs[sweep.key]
    started = time.perf_counter()
    points = load_sweep(request.problem, sweep.key, [optimizer_pipeline(spec, load).demand for load in sweep.loads])
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
