"""`sluice readiness`: one page on each pipeline before its launch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from controller.commands.connections import Prometheus, account_option, cluster_options
from controller.commands.findings import refused
from controller.commands.help_page import examples
from optimizer.model import PlacementKey

if TYPE_CHECKING:
    from controller.adoption.check import Check
    from controller.commands.plan_request import PlanRequest
    from controller.core.state.learned import LearnedPlacement
    from controller.core.state.spec import PipelineSpec
    from controller.readiness.profiled import Profiled
    from controller.readiness.sections import Live, Peak
    from optimizer.model import PipelineKey, Placement

BLOCKED = 3
_PERCENTILES = (50.0, 95.0, 99.0)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_Learned = Mapping["PipelineKey", Mapping["PlacementKey", "LearnedPlacement"]]


@click.command(
    short_help="Write a page on what blocks a launch",
    epilog=examples("sluice readiness pools.yaml speech.yaml --demand speech/captions=400"),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=_FILE)
@click.option(
    "--demand",
    "demands",
    multiple=True,
    metavar="NAMESPACE/NAME=N",
    help="Highest load of a pipeline in its own unit: streams, or requests/s. Default: the highest demand.atLeast.",
)
@click.option(
    "--instances",
    "limits",
    multiple=True,
    metavar="POOL=N",
    help="Number of instances of a pool, instead of its spec.capacity.instances.",
)
@click.option(
    "--learned",
    "learned_files",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="Measured numbers: the output of `sluice explain -o json`. Repeat it for every pipeline.",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="NAMESPACE/NAME/STAGE/POOL=FILE",
    help="What `sluice profile -o json` measured of the server of a placement. Repeat it for each.",
)
@click.option(
    "--live", is_flag=True, help="Read the status of the pipelines from the cluster, and make the checks of doctor."
)
@account_option("The operator's ServiceAccount, whose rights --live checks.")
@cluster_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["markdown", "html"]),
    default="markdown",
    show_default=True,
    help="Format of the page.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File for the page. Default: standard output."
)
def readiness(
    files: tuple[Path, ...],
    *,
    demands: tuple[str, ...],
    limits: tuple[str, ...],
    live: bool,
    service_account: str,
    kubeconfig: Path | None,
    prometheus: Prometheus | None,
    form: str,
    out: Path | None,
    **measured: tuple[Any, ...],
) -> None:
    """Write a page on each pipeline in manifest FILEs: what holds at the peak, what was measured, what blocks a launch.

    Changes nothing. Exit status: 0 nothing blocks; 1 the manifests are invalid, or the cluster cannot be read; 2 wrong
    usage; 3 something blocks a launch.
    """
    from controller.commands.doctor import unfinished
    from controller.commands.plan_request import ask, budgets_of, read_learned_files, specs_of
    from controller.core.state.learned import with_learned
    from controller.core.state.shared import resolved
    from controller.readiness.rendering import html, markdown
    from controller.readiness.sections import Subject
    from controller.readiness.sections import readiness as page_of
    from controller.resources.validation import validate_files

    if out is not None:
        _check_writable(out)
    checked = validate_files(files)
    if checked.findings:
        raise refused(checked.findings)
    declared, pools = specs_of(checked)
    learned: _Learned = read_learned_files(measured["learned_files"], declared)
    profiled = _profiles(declared, measured["profiles"])
    seen = _live(declared, files, kubeconfig, prometheus, service_account) if live else {}
    learned = {**{key: own for key, (_, own) in seen.items() if own}, **learned}
    completed, _ = resolved(with_learned(spec, learned.get(key, {})) for key, spec in declared.items())
    missing = _missing(declared, learned)
    loads, sources = _loads(declared, demands)
    unplanned = _unplanned(missing, sources, declared)
    peaks: dict[PipelineKey, Peak] = {}
    if not unplanned:
        request = ask(completed, pools, demands=loads, limits=limits, budgets=budgets_of(checked, completed.values()))
        if request.sweep is not None:
            raise click.UsageError("--demand: must be one number, the highest load, not a range")
        peaks = _peaks(request, sources)
    todo = [check.message for file in files if (check := unfinished(file)) is not None]
    pages = [
        page_of(
            Subject(
                declared=declared[key] if not declared[key].borrowed else spec,
                spec=spec,
                learned=learned.get(key, {}),
                profiles=profiled.get(key, {}),
                missing=missing.get(key, ()),
                todo=tuple(todo),
                peak=peaks.get(key),
                unplanned=unplanned,
                live=seen[key][0] if key in seen else None,
            )
        )
        for key, spec in completed.items()
    ]
    text = markdown(pages) if form == "markdown" else html(pages)
    if out is None:
        click.echo(text, nl=False)
    else:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.BadParameter(f"{out}: cannot be written: {error.strerror}.", param_hint="'--out'") from None
        for one in pages:
            click.echo(f"{one.name}: {one.verdict}", err=True)
    if any(one.blocked for one in pages):
        raise click.exceptions.Exit(BLOCKED)


def _profiles(
    specs: Mapping["PipelineKey", "PipelineSpec"], texts: Sequence[str]
) -> dict["PipelineKey", dict["PlacementKey", "Profiled"]]:
    """Return the profiles in the files of --profile, by pipeline and placement.

    Raises:
        click.UsageError: a placement is not in the manifests, or a file is no profile.
    """
    from controller.commands.plan_request import unknown_name
    from controller.core.codec import InvalidRecord
    from controller.readiness.profiled import read_profile

    places = {f"{key}/{own[0]}/{own[1]}": (key, own) for key, spec in specs.items() for own in spec.placements()}
    found: dict[PipelineKey, dict[PlacementKey, Profiled]] = {}
    for text in texts:
        place, _, path = text.partition("=")
        if place not in places:
            raise unknown_name("--profile", place, places)
        key, placement = places[place]
        if placement in found.get(key, {}):
            raise click.UsageError(f"--profile: {place}: a second file about it")
        try:
            found.setdefault(key, {})[placement] = read_profile(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise click.UsageError(f"--profile: {path!r}: cannot be read: {error.strerror}") from None
        except InvalidRecord as error:
            raise click.UsageError(f"--profile: {path!r}: {error}") from None
        except (ValueError, OverflowError):
            rule = "must be JSON, as `sluice profile -o json` prints it"
            raise click.UsageError(f"--profile: {path!r}: {rule}") from None
    return found


def _check_writable(path: Path) -> None:
    """Raise an error before the work if the page cannot be written to `path` at its end."""
    existed = path.exists()
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise click.BadParameter(f"{path}: cannot be written: {error.strerror}.", param_hint="'--out'") from None
    if not existed:
        path.unlink()


def _missing(specs: Mapping["PipelineKey", "PipelineSpec"], learned: _Learned) -> dict["PipelineKey", tuple[str, ...]]:
    """Return the numbers without which no plan is possible, by pipeline, as text."""
    from controller.core.state.learned import placeholders
    from controller.resources.manifests import format_path

    return {
        key: tuple(f"{format_path(path)} is neither declared nor measured" for path in paths)
        for key, spec in specs.items()
        if (paths := list(placeholders(spec, learned.get(key, {}))))
    }


def _loads(
    specs: Mapping["PipelineKey", "PipelineSpec"], demands: Sequence[str]
) -> tuple[tuple[str, ...], dict["PipelineKey", str]]:
    """Return the values of --demand, completed by demand.atLeast, and who states the load of each pipeline."""
    from controller.commands.plan_request import unknown_name
    from controller.core.state.schedule import declared_as
    from optimizer.model import PipelineKey

    sources: dict[PipelineKey, str] = {}
    for text in demands:
        key = PipelineKey(text.partition("=")[0])
        if key not in specs:
            raise unknown_name("--demand", key, specs)
        sources[key] = "--demand"
    texts = list(demands)
    for key, spec in specs.items():
        if key not in sources and spec.at_least:
            highest = max(spec.at_least, key=lambda floor: floor.demand)
            texts.append(f"{key}={highest.demand!r}")
            sources[key] = declared_as(highest)
    return tuple(texts), sources


def _unplanned(
    missing: Mapping["PipelineKey", Sequence[str]],
    loads: Mapping["PipelineKey", str],
    specs: Mapping["PipelineKey", "PipelineSpec"],
) -> str:
    """Return why no plan can be made; empty if one can."""
    if missing:
        return "numbers are missing: " + "; ".join(f"{key}: {', '.join(fields)}" for key, fields in missing.items())
    if silent := [key for key in specs if key not in loads]:
        return f"the highest load is not stated: --demand {silent[0]}=N, or demand.atLeast in the manifest"
    return ""


def _peaks(request: "PlanRequest", sources: Mapping["PipelineKey", str]) -> dict["PipelineKey", "Peak"]:
    """Return the plan for the loads of `request`, and the one without each pool, for every pipeline."""
    from controller.readiness.sections import Peak
    from optimizer.allocate import allocate
    from optimizer.latency.predict import predicted_latency_s
    from optimizer.reports.certificate import certified_plan

    problem = request.problem
    answer = certified_plan(problem, advice=True, lower_bound=False)
    without = {}
    for name in problem.pools:

        def without_pool(_: object, placement: "Placement", pool: str = name) -> tuple[int, int]:
            return (0, 0) if placement.pool == pool else (placement.min_replicas, placement.max_replicas)

        pipelines = tuple(pipeline.bounded(without_pool) for pipeline in problem.pipelines)
        without[name] = allocate(replace(problem, pipelines=pipelines))
    found = {}
    for pipeline in problem.pipelines:
        plan = answer.of(pipeline.key)
        batches = {(stage.name, one.name): one.batch for stage in plan.stages for one in stage.placements}
        used = {placement.pool for stage in pipeline.stages for placement in stage.placements}
        found[pipeline.key] = Peak(
            demand=request.demands[pipeline.key],
            source=sources[pipeline.key],
            plan=plan,
            percentiles_s={
                percentile: predicted_latency_s(
                    replace(pipeline, sla=replace(pipeline.sla, percentile=percentile)),
                    plan.replicas(),
                    batches,
                    composition=problem.composition,
                )
                for percentile in sorted({*_PERCENTILES, pipeline.sla.percentile})
                if plan.feasible
            },
            without={name: lost.of(pipeline.key) for name, lost in without.items() if name in used},
        )
    return found


def _live(
    specs: Mapping["PipelineKey", "PipelineSpec"],
    files: Sequence[Path],
    kubeconfig: Path | None,
    prometheus: Prometheus | None,
    account: str,
) -> dict["PipelineKey", "tuple[Live, Mapping[PlacementKey, LearnedPlacement]]"]:
    """Return the status, its explanation, the checks of doctor and what was learned, for each pipeline."""
    from controller.commands.doctor import diagnosed
    from controller.commands.explain import document, rendered
    from controller.core.state.learned import read_learned
    from controller.kube.gateway import PIPELINES, ConfigurationError, Gateway, KubeError, NotFound
    from controller.kube.survey import Survey
    from controller.readiness.sections import Live

    found: dict[PipelineKey, tuple[Live, Mapping[PlacementKey, LearnedPlacement]]] = {}
    try:
        with Gateway(kubeconfig) as gateway:
            checks = tuple(diagnosed(Survey(gateway), files, prometheus, account))
            for key, spec in specs.items():
                own = _about(checks, spec, specs)
                try:
                    resource = gateway.get(PIPELINES, spec.namespace, spec.name)
                except NotFound:
                    found[key] = Live(status=None, checks=own), {}
                    continue
                lines = rendered(resource, datetime.now(UTC)) or []
                learned = read_learned(json.loads(json.dumps(document(resource, lines))))[1]
                found[key] = Live(status=resource.get("status") or {}, explanation=tuple(lines), checks=own), learned
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    except KubeError as error:
        raise click.ClickException(str(error)) from None
    return found


def _about(
    checks: Sequence["Check"], spec: "PipelineSpec", specs: Mapping["PipelineKey", "PipelineSpec"]
) -> tuple["Check", ...]:
    """Return the checks that are not about another pipeline than `spec`."""
    others = {key for key in specs if key != spec.key}
    return tuple(check for check in checks if check.subject.split(" ")[0] not in others)
