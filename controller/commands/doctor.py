"""`sluice doctor`: checks manifests against the cluster and Prometheus, before and after they are applied."""

import json
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from controller.commands.connections import DEADLINE_S, Prometheus, account_option, cluster_options
from controller.commands.help_page import examples

if TYPE_CHECKING:
    from controller.adoption.check import Check
    from controller.adoption.cluster_checks import FoundTarget
    from controller.adoption.inventory import Inventory
    from controller.adoption.metric_checks import Metrics
    from controller.core.state.spec import PipelineSpec, PoolSpec, Target
    from controller.kube.survey import Survey
    from optimizer.model import PoolName
    from profiler.samples import PlacementTarget
    from profiler.sources.presets import LoadedPresets, Preset

_GRACE_S = 60.0
"""How long a pod may be ready without metrics: four scrapes at the default interval, as in the operator."""
_WORDS = {True: "ok", False: "fix", None: "unknown"}
_STYLES = {True: "green", False: "bold red", None: "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subjects:
    """What is checked: the pipelines and the pools that they may use, and the checks of the manifests themselves."""

    specs: tuple["PipelineSpec", ...]
    pools: Mapping["PoolName", "PoolSpec"]
    checks: tuple["Check", ...]


@click.command(
    short_help="Check manifests against the cluster and Prometheus",
    epilog=examples("sluice doctor --cluster --prometheus-url http://localhost:9090"),
)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--cluster", is_flag=True, help="Check the SpeechPipelines and ComputePools in the cluster.")
@account_option("The operator's ServiceAccount, whose rights are checked. Its Lease has the same name.")
@cluster_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the output.",
)
def doctor(
    files: tuple[Path, ...],
    cluster: bool,
    service_account: str,
    kubeconfig: Path | None,
    prometheus: Prometheus | None,
    output: str,
) -> None:
    """Check manifest FILEs, or those in the cluster, against the cluster and Prometheus.

    Prints a line per check: ok, what to fix, or why it is unknown. Changes nothing. Exit status 1 if a check fails, or
    if nothing could be checked.
    """
    if bool(files) is cluster:
        raise click.UsageError("name FILEs to check, or use --cluster, and not both")
    from controller.kube.gateway import ConfigurationError, Gateway
    from controller.kube.survey import Survey

    try:
        gateway = Gateway(kubeconfig)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    with gateway:
        checks = diagnosed(Survey(gateway), files, prometheus, service_account)
    if output == "json":
        click.echo(json.dumps({"checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _print(checks)
    if any(check.ok is False for check in checks) or not any(check.ok for check in checks):
        raise click.exceptions.Exit(1)


def diagnosed(survey: "Survey", files: Sequence[Path], prometheus: Prometheus | None, account: str) -> list["Check"]:
    """Return all checks of the files, or without files of what the cluster has; those of the cluster first.

    `account` is the operator's ServiceAccount, NAMESPACE/NAME.
    """
    from controller.adoption.check import Check
    from controller.adoption.cluster_checks import check_crd, check_pipeline, check_pools
    from controller.adoption.metric_checks import check_metrics
    from controller.adoption.rights import check_rights, operator_rights
    from controller.kube.metrics_reader import user_queries
    from controller.resources.schema import CRDS
    from profiler.sources.presets import PresetFiles

    problem = survey.problem()
    subjects = _subjects(survey, files, reachable=not problem)
    if problem:
        return [
            *subjects.checks,
            Check(name="api-server", subject="cluster", ok=None, message=f"nothing was checked: {problem}"),
        ]
    manifests = [crd.manifest() for crd in CRDS]
    checks = [check_crd(own["metadata"]["name"], survey.crd(own["metadata"]["name"]), own) for own in manifests]
    rights = operator_rights(*account.split("/"))
    namespaces = sorted({spec.namespace for spec in subjects.specs})
    checks += [check_rights(survey.missing_rights(account, rights, namespaces)), *subjects.checks]
    inventory = _inventory(survey, subjects)
    targets = _targets(survey, subjects.specs, inventory)
    checks += check_pools(list(subjects.pools.values()), inventory)
    presets = PresetFiles(None if prometheus is None else prometheus.presets).load()
    known = tuple(spec for spec in subjects.specs if all(stage.preset in presets.usable for stage in spec.stages))
    measured = _measured_targets(known, targets)
    metrics = _metrics(prometheus, known, measured, presets.usable)
    for spec in subjects.specs:
        own_targets = [target for target in measured if target.pipeline == spec.key]
        checks += check_pipeline(spec, subjects.pools, inventory, targets)
        if spec in known:
            checks += check_metrics(spec, user_queries(spec), own_targets, metrics, presets.usable)
        else:
            checks += _unknown_presets(spec, presets)
    return checks


def _unknown_presets(spec: "PipelineSpec", presets: "LoadedPresets") -> list["Check"]:
    """Return a check for each stage whose preset there is not; it may be in another folder than the operator's."""
    from controller.adoption.check import Check

    return [
        Check(
            name="preset",
            subject=f"{spec.key} {stage.name}",
            ok=False,
            message=f"{presets.problem(stage.preset)} (--presets-directory)",
        )
        for stage in spec.stages
        if stage.preset not in presets.usable
    ]


def _subjects(survey: "Survey", files: Sequence[Path], *, reachable: bool) -> _Subjects:
    """Return what the files have, or without files what the cluster has; pools of the cluster are used either way."""
    from controller.adoption.check import Check
    from controller.resources.translate import pipeline_spec, pool_spec
    from controller.resources.validation import validate_files

    specs, pools, checks = _of_cluster(survey, with_pipelines=not files) if reachable else ([], {}, [])
    if files:
        found = validate_files(files)
        checks = [
            Check(
                name="manifest",
                subject=f"{finding.file}:{finding.line}",
                ok=False,
                message=": ".join(filter(None, (finding.field, finding.value, finding.rule))),
            )
            for finding in found.findings
        ]
        checks += filter(None, map(unfinished, files))
        specs = [pipeline_spec(resource) for resource in found.pipelines]
        own = {spec.name: spec for spec in map(pool_spec, found.pools)}
        used = {placement.pool for spec in specs for placement in spec.placements().values()}
        pools = {**{name: pool for name, pool in pools.items() if name in used}, **own}
    was_read = bool(files) or (reachable and not checks)
    if not specs and was_read and not any(check.ok is False for check in checks):
        checks.append(Check(name="pipelines", subject="manifests", ok=None, message="there is no SpeechPipeline"))
    return _Subjects(specs=tuple(specs), pools=pools, checks=tuple(checks))


def unfinished(file: Path) -> "Check | None":
    """Return a check that names the TODO comments left in a manifest of `sluice init`; None if there are none."""
    from controller.adoption.check import Check

    text = file.read_text(encoding="utf-8", errors="replace")
    lines = [str(number) for number, line in enumerate(text.splitlines(), start=1) if "# TODO" in line]
    if not lines:
        return None
    message = f"set the values marked TODO in line {', '.join(lines)}, and delete the comments"
    return Check(name="todo", subject=str(file), ok=None, message=message)


def _of_cluster(
    survey: "Survey", *, with_pipelines: bool
) -> tuple[list["PipelineSpec"], dict["PoolName", "PoolSpec"], list["Check"]]:
    from controller.adoption.check import Check
    from controller.adoption.inventory import Unread, known, name_of
    from controller.kube.gateway import BUDGETS, PIPELINES, POOLS
    from controller.resources.budget import ComputeBudget
    from controller.resources.parsing import InvalidResource, parse
    from controller.resources.pipeline import SpeechPipeline
    from controller.resources.pool import ComputePool
    from controller.resources.translate import pipeline_spec, pool_spec
    from optimizer.model import InvalidProblem

    listed = {kind: survey.all_of(kind) for kind in ((PIPELINES, POOLS, BUDGETS) if with_pipelines else (POOLS,))}
    checks = [
        Check(name="manifest", subject=kind.plural, ok=None, message=f"not read: {found.reason}")
        for kind, found in listed.items()
        if isinstance(found, Unread)
    ]
    specs, pools = [], {}
    for kind, found in listed.items():
        for each in known(found):
            try:
                if kind is PIPELINES:
                    specs.append(pipeline_spec(parse(SpeechPipeline, each)))
                elif kind is BUDGETS:
                    parse(ComputeBudget, each)
                else:
                    pool = pool_spec(parse(ComputePool, each))
                    pools[pool.name] = pool
            except (InvalidResource, InvalidProblem) as error:
                subject = f"{each['kind']} {name_of(each)}"
                checks.append(Check(name="manifest", subject=subject, ok=False, message=str(error)))
    return specs, pools, checks


def _inventory(survey: "Survey", subjects: _Subjects) -> "Inventory":
    """Return the namespaces of the pipelines, the nodes, and the pods of one node of each type in each pool."""
    from controller.adoption.cluster_checks import nodes_of
    from controller.adoption.inventory import Json, known, labels_of
    from controller.adoption.node_groups import INSTANCE_TYPE
    from controller.kube.survey import sampled_nodes
    from controller.kube.workloads import ready_nodes

    inventory = survey.inventory(sorted({spec.namespace for spec in subjects.specs}))
    groups: dict[tuple[str, str], list[Json]] = {}
    for pool in subjects.pools.values():
        for node in ready_nodes(nodes_of(pool, known(inventory.nodes)), {}):
            groups.setdefault((pool.name, labels_of(node).get(INSTANCE_TYPE, "")), []).append(node)
    return replace(inventory, pods_of_node=survey.pods_of_nodes(sampled_nodes(groups.values())))


def _targets(
    survey: "Survey", specs: Sequence["PipelineSpec"], inventory: "Inventory"
) -> dict[tuple[str, "Target"], "FoundTarget"]:
    """Return the targets of all placements; those that are neither Deployments nor StatefulSets are read one by one."""
    from controller.adoption.cluster_checks import FoundTarget, find_targets
    from controller.adoption.inventory import Unread

    found = find_targets(specs, inventory)
    for spec in specs:
        for placement in spec.placements().values():
            key = spec.namespace, placement.target
            if key not in found:
                selector = survey.target(*key)
                if isinstance(selector, Unread):
                    found[key] = FoundTarget(unread=selector.reason)
                    continue
                if not selector:
                    missing = "does not exist, or has no scale" if selector is None else "has no selector in its scale"
                    found[key] = FoundTarget(problem=f"{placement.target} {missing}: Sluice cannot scale it")
                    continue
                pods = survey.pods(spec.namespace, selector)
                found[key] = FoundTarget(unread=pods.reason) if isinstance(pods, Unread) else FoundTarget(pods=pods)
    return found


def _measured_targets(
    specs: Sequence["PipelineSpec"], targets: Mapping[tuple[str, "Target"], "FoundTarget"]
) -> list["PlacementTarget"]:
    from controller.kube.metrics_reader import metrics_target
    from controller.kube.workloads import metrics_endpoints, reporting_pods

    measured = []
    for spec in specs:
        for stage in spec.stages:
            for placement in stage.placements:
                pods = targets[spec.namespace, placement.target].pods
                reporting, endpoints = reporting_pods(pods, time.time() - _GRACE_S), metrics_endpoints(pods)
                measured.append(metrics_target(spec, stage, placement, pods=reporting, endpoints=endpoints))
    return measured


def _metrics(
    prometheus: Prometheus | None,
    specs: Sequence["PipelineSpec"],
    targets: Sequence["PlacementTarget"],
    presets: Mapping[str, "Preset"],
) -> "Metrics":
    """Return what `prometheus` answers about all pipelines."""
    from controller.adoption.metric_checks import Metrics, further_queries
    from controller.kube.metrics_reader import user_queries
    from profiler.sources.base import ReadRequest
    from profiler.sources.presets import PresetFiles
    from profiler.sources.prometheus import PrometheusSource
    from profiler.sources.prometheus_api import PrometheusApi

    if prometheus is None:
        return Metrics(problem="metrics were not checked: set --prometheus-url")
    queries: dict[Hashable, str] = {key: query for spec in specs for key, query in user_queries(spec).items()}
    request = ReadRequest(placements=tuple(targets), scalars=queries, deadline_s=DEADLINE_S)
    with ExitStack() as parts:
        files = PresetFiles(prometheus.presets)
        source = parts.enter_context(
            closing(PrometheusSource(prometheus.url, prometheus.access, presets=files, labels=prometheus.labels))
        )
        api = parts.enter_context(closing(PrometheusApi(prometheus.url, prometheus.access)))
        return Metrics(
            answer=source.read(request),
            results=api.ask(further_queries(specs, queries, targets, presets), DEADLINE_S),
        )


def _print(checks: Sequence["Check"]) -> None:
    from controller.commands.terminal import Page

    page = Page()
    for check in checks:
        line = f"{_WORDS[check.ok]:<8} {check.subject}: {check.name}: {check.message}"
        page.say(line, style=_STYLES[check.ok])
    counts = Counter(check.ok for check in checks)
    page.say(f"{counts[True]} ok, {counts[False]} to fix, {counts[None]} unknown", style="bold")
