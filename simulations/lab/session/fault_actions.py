"""The actions that begin and end the faults of a scenario on the lab."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes import client

from controller.core.state.spec import PipelineSpec, StageSpec
from controller.resources.base import Breach
from controller.resources.fields import duration_s
from controller.resources.schema import CRDS
from optimizer.model import PoolName
from simulations.cluster.node_pool import reclaimed_nodes
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.faults.metric_faults import Chooser, MetricFault, NoisyMetrics, PartialMetrics, StaleMetrics
from simulations.lab.faults.metrics_proxy import Loss, TotalLoss
from simulations.scenario.declared import declared_patch
from simulations.scenario.patches import undo
from simulations.scenario.scenario import Fault, ScenarioFile
from simulations.scenario.values import EVERYTHING

_KINDS = {crd.kind: crd for crd in CRDS}
_ROLLED_OUT = "lab.sluice.dev/rolled-out"
_TIMEOUT_S = (3, 10)

FaultSwitch = Callable[[bool], None]
"""Begins a fault when called with True, ends it with False."""


class FaultRefused(RuntimeError):
    """The API server refused the patch of a `set` fault; the message has the server's reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultAction:
    """An action of a fault: `do` is due `at_s` seconds after the run began; `words` describe it."""

    at_s: float
    words: str
    do: Callable[[], None]


def unsupported(scenario: ScenarioFile) -> Iterator[Breach]:
    """Yield a breach for each fault of a scenario that the lab cannot inject, for a cold start, and for past load."""
    if scenario.cold_start:
        yield Breach(path=("coldStart",), rule="must be false in the lab, which waits for a replica of every stage")
    for index, load in enumerate(scenario.load):
        if load.history is not None:
            rule = "must be absent in the lab: its Prometheus has recorded nothing before the run"
            yield Breach(path=("load", index, "history"), rule=rule)
    pipelines = {load.pipeline for load in scenario.load}
    for index, fault in enumerate(scenario.faults):
        if fault.cold_caches is not None:
            rule = "must be absent in the lab: the caches of its replicas are always warm"
            yield Breach(path=("faults", index, "coldCaches"), rule=rule)
        if fault.metrics_stale is not None and fault.metrics_stale != EVERYTHING and len(pipelines) > 1:
            rule = 'must be "*" in the lab: one query returns the metrics of all pipelines, and is stale as a whole'
            yield Breach(path=("faults", index, "metricsStale"), rule=rule)


def actions(
    scenario: ScenarioFile, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...], *, seed: int
) -> list[FaultAction]:
    """Return the actions of all faults of a scenario, in order of time; `seed` is the seed of the run.

    Spikes have no actions: they are part of the schedule of the load.
    """
    found = [
        action
        for index, fault in enumerate(scenario.faults)
        for action in _of_fault(index, fault, scenario, cluster, pipelines, seed)
    ]
    return sorted(found, key=lambda action: action.at_s)


def _of_fault(
    index: int,
    fault: Fault,
    scenario: ScenarioFile,
    cluster: LabCluster,
    pipelines: tuple[PipelineSpec, ...],
    seed: int,
) -> Iterator[FaultAction]:
    match fault.kind:
        case "set":
            yield from _sets(fault, scenario, cluster)
        case "spotReclaim":
            yield from _reclaims(index, fault, cluster, seed, scenario.pace)
        case "spike":
            return
        case "poolUnavailable" | "poolLost":
            yield from _begins_and_ends(fault, *_pool_fault(fault, cluster))
        case "rollOut":
            yield _roll_out(fault, cluster, pipelines)
        case "cpuQuota":
            yield from _begins_and_ends(fault, *_cpu_quota(fault, cluster, pipelines))
        case "stuckReplica":
            yield from _begins_and_ends(fault, *_stuck(fault, cluster, pipelines))
        case "passRatio" | "slowTransit" | "retries":
            yield from _begins_and_ends(fault, *_on_the_way(fault, scenario, cluster, pipelines))
        case "slowStart" | "slowStage":
            yield from _begins_and_ends(fault, *_slowness(fault, cluster, pipelines))
        case _:
            yield from _begins_and_ends(fault, *_metrics_fault(index, fault, cluster, pipelines, seed))


def _begins_and_ends(fault: Fault, change: FaultSwitch, begins: str, ends: str) -> Iterator[FaultAction]:
    span = fault.interval
    yield FaultAction(at_s=span.from_s, words=begins, do=lambda: change(True))
    if math.isfinite(span.until_s):
        yield FaultAction(at_s=span.until_s, words=ends, do=lambda: change(False))


def _pool_fault(fault: Fault, cluster: LabCluster) -> tuple[FaultSwitch, str, str]:
    name = PoolName(fault.pool or "")

    def change_outages(begins: bool) -> None:
        cluster.pools[name].outages += 1 if begins else -1
        cluster.settle_nodes(name)

    def change_absences(begins: bool) -> None:
        cluster.pools[name].absences += 1 if begins else -1
        cluster.settle_nodes(name)

    if fault.pool_lost is not None:
        return change_absences, f"all nodes and pods of {name} vanish", f"the nodes of {name} are back"
    return change_outages, f"no new replica gets a node of {name}", f"new replicas get nodes of {name} again"


def _slowness(fault: Fault, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...]) -> tuple[FaultSwitch, str, str]:
    if fault.slow_start is not None:
        factor, what = fault.slow_start.factor, f"replicas on {fault.slow_start.pool} take"
        paths = [f"start-factors/{fault.slow_start.pool}"]
        words = (f"{what} {factor:g} times as long to start", f"{what} their usual time to start")
    else:
        assert fault.slow_stage is not None
        name, factor = fault.slow_stage.stage, fault.slow_stage.factor
        words = (f"batches of {name} take {factor:g} times as long", f"batches of {name} take their usual time")
        paths = [f"slow-factors/{path}" for path in _paths(name, pipelines)]

    def change(begins: bool) -> None:
        for path in paths:
            cluster.slow_down(path, factor if begins else 1 / factor)

    return change, *words


def _paths(name: str, pipelines: tuple[PipelineSpec, ...]) -> list[str]:
    """Return NAMESPACE/PIPELINE/STAGE of the stages called `name`, NAME or PIPELINE/NAME."""
    return [f"{pipeline.namespace}/{pipeline.name}/{stage.name}" for pipeline, stage in _called(name, pipelines)]


def _called(name: str, pipelines: tuple[PipelineSpec, ...]) -> Iterator[tuple[PipelineSpec, StageSpec]]:
    """Yield the stages called `name`, NAME or PIPELINE/NAME, each with its pipeline."""
    for pipeline in pipelines:
        for stage in pipeline.stages:
            if name in {stage.name, f"{pipeline.key}/{stage.name}"}:
                yield pipeline, stage


def _cpu_quota(fault: Fault, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...]) -> tuple[FaultSwitch, str, str]:
    name = fault.cpu_quota or ""

    def change(begins: bool) -> None:
        for path in _paths(name, pipelines):
            cluster.limit_by_quota(path, on=begins)

    return change, f"replicas of {name} are limited by a quota of 100 ms", f"replicas of {name} are limited evenly"


def _stuck(fault: Fault, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...]) -> tuple[FaultSwitch, str, str]:
    name = fault.stuck_replica or ""

    def change(begins: bool) -> None:
        for path in _paths(name, pipelines):
            cluster.stick(path, on=begins)

    return change, f"a replica of {name} completes nothing", f"the replica of {name} completes items again"


def _on_the_way(
    fault: Fault, scenario: ScenarioFile, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...]
) -> tuple[FaultSwitch, str, str]:
    if (transit := fault.slow_transit) is not None:
        overhead_s, added_s = duration_s(scenario.overhead), duration_s(transit.by)

        def delay(begins: bool) -> None:
            cluster.tell_ingress(f"overheads/{transit.pipeline}", overhead_s + (added_s if begins else 0.0))

        return delay, f"items of {transit.pipeline} take {transit.by} more", f"items of {transit.pipeline} are on time"
    if (retries := fault.retries) is not None:

        def repeat(begins: bool) -> None:
            cluster.tell_ingress(f"sends/{retries.pipeline}", retries.factor if begins else 1.0)

        what = f"clients of {retries.pipeline} send each item"
        return repeat, f"{what} {retries.factor:g} times on average", f"{what} once"
    passed = fault.pass_ratio
    assert passed is not None

    def change(begins: bool) -> None:
        for pipeline, stage in _called(passed.stage, pipelines):
            path = f"pass-ratios/{pipeline.namespace}/{pipeline.name}/{stage.name}"
            cluster.tell_ingress(path, float(passed.ratio) if begins else stage.pass_ratio)

    return change, f"{float(passed.ratio):.0%} of the items of {passed.stage} go on", f"{passed.stage} is as before"


def _roll_out(fault: Fault, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...]) -> FaultAction:
    targets = [
        (pipeline.namespace, placement.target.name)
        for pipeline, stage in _called(fault.roll_out or "", pipelines)
        for placement in stage.placements
    ]
    template = {"metadata": {"annotations": {_ROLLED_OUT: f"{fault.interval.from_s:g}"}}}
    surge = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}

    def begin() -> None:
        with cluster.admin() as api:
            for namespace, name in targets:
                client.AppsV1Api(api).patch_namespaced_deployment(
                    name, namespace, {"spec": {"strategy": surge, "template": template}}, _request_timeout=_TIMEOUT_S
                )

    return FaultAction(at_s=fault.interval.from_s, words=f"the pods of {fault.roll_out} are replaced", do=begin)


def _reclaims(index: int, fault: Fault, cluster: LabCluster, seed: int, pace: float) -> Iterator[FaultAction]:
    """Yield the notice, the reclaim and the return of nodes; nodes and times are those of the simulated cluster."""
    assert fault.spot_reclaim is not None
    name, span = PoolName(fault.spot_reclaim.pool), fault.interval
    pool = cluster.pools[name]
    chosen = reclaimed_nodes(fault.spot_reclaim.share, pool.nodes.instances, seed=seed, fault=index, pace=pace)
    gone_s = span.from_s + duration_s(fault.spot_reclaim.notice)
    ends = fault.for_ is not None

    def count(counter: dict[int, int], nodes: list[int], by: int) -> None:
        for node in nodes:
            counter[node] += by
        cluster.settle_nodes(name)

    def give_back(nodes: list[int]) -> None:
        if not ends or span.until_s > gone_s:
            count(pool.gone, nodes, -1)
        count(pool.leaving, nodes, -1)

    nodes = list(chosen)
    what = f"{len(nodes)} of the nodes of {name}"
    yield FaultAction(
        at_s=span.from_s, words=f"notice: {what} will be reclaimed", do=lambda: count(pool.leaving, nodes, 1)
    )
    if not ends or span.until_s > gone_s:
        yield FaultAction(at_s=gone_s, words=f"{what} are reclaimed", do=lambda: count(pool.gone, nodes, 1))
    if ends:
        yield FaultAction(at_s=span.until_s, words=f"{what} are back", do=lambda: give_back(nodes))
        return
    for node, after_s in chosen.items():
        words = f"a node of {name} is replaced"
        yield FaultAction(at_s=gone_s + after_s, words=words, do=lambda node=node: give_back([node]))  # type: ignore[misc]


def _metrics_fault(
    index: int, fault: Fault, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...], seed: int
) -> tuple[FaultSwitch, str, str]:
    which = fault.pipeline or EVERYTHING
    if fault.metrics_lost is not None:
        losses = _losses(which, pipelines)

        def lose(begins: bool) -> None:
            kept = tuple(loss for loss in cluster.metrics.losses if loss not in losses)
            cluster.metrics.losses = (*kept, *losses) if begins else kept

        return lose, f"metrics lost: {which}", f"metrics back: {which}"
    chosen, own_seed = _chooser(which, pipelines), f"{seed}/{index}"
    make: Callable[[], MetricFault]
    if fault.metrics_stale is not None:
        words, make = "metrics are stale", StaleMetrics
    elif (partial := fault.metrics_partial) is not None:
        words = f"{partial.share:.0%} of the pods report no metrics"
        make = lambda: PartialMetrics(chosen=chosen, share=partial.share, seed=own_seed)  # noqa: E731
    else:
        noisy = fault.metrics_noisy
        assert noisy is not None
        words = f"metrics are noisy (coefficient of variation {noisy.cv:g})"
        make = lambda: NoisyMetrics(chosen=chosen, cv=noisy.cv, seed=own_seed)  # noqa: E731
    on: list[MetricFault] = []

    def disturb(begins: bool) -> None:
        if begins:
            on.append(make())
            cluster.metrics.faults = (*cluster.metrics.faults, *on)
        else:
            cluster.metrics.faults = tuple(one for one in cluster.metrics.faults if one not in on)

    return disturb, f"{words}: {which}", f"metrics back: {which}"


def _losses(which: str, pipelines: tuple[PipelineSpec, ...]) -> tuple[Loss | TotalLoss, ...]:
    if which == EVERYTHING:
        return (TotalLoss(),)
    return tuple(
        Loss(
            namespace=pipeline.namespace,
            deployments=tuple(placement.target.name for stage in pipeline.stages for placement in stage.placements),
            queries=frozenset(
                query
                for query in (
                    pipeline.queries.demand,
                    pipeline.queries.latency,
                    *(rule.query for stage in pipeline.stages for rule in stage.rules),
                )
                if query is not None
            ),
        )
        for pipeline in pipelines
        if pipeline.key == which
    )


def _chooser(which: str, pipelines: tuple[PipelineSpec, ...]) -> Chooser:
    """Return a chooser of the series that a loss of the same pipelines' metrics would remove."""
    losses = _losses(which, pipelines)
    return lambda query, labels: any(loss.takes(query, labels) for loss in losses)


def _sets(fault: Fault, scenario: ScenarioFile, cluster: LabCluster) -> Iterator[FaultAction]:
    span = fault.interval
    for name, patch in (fault.set_ or {}).items():
        before: dict[str, Any] = {}

        def change(name: str = name, patch: Mapping[str, Any] = patch, before: dict[str, Any] = before) -> None:
            before.update(_patch(cluster, name, declared_patch(name, patch, scenario)))

        def restore(name: str = name, before: dict[str, Any] = before) -> None:
            _patch(cluster, name, before)

        yield FaultAction(at_s=span.from_s, words=f"set {name}: {json.dumps(patch)}", do=change)
        if span.until_s > span.from_s:
            yield FaultAction(at_s=span.until_s, words=f"undo set {name}", do=restore)


def _patch(cluster: LabCluster, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the merge patch `patch` to the resource `name`, and return the patch that undoes it.

    Raises:
        FaultRefused: the API server refused `patch`.
    """
    kind, *namespace, resource = name.split("/")
    at: dict[str, str] = {"group": "sluice.dev", "version": "v1alpha1", "plural": _KINDS[kind].plural, "name": resource}
    body = {"body": dict(patch), "field_validation": "Strict"}
    with cluster.admin() as api:
        custom = client.CustomObjectsApi(api)
        try:
            if not _KINDS[kind].namespaced:
                before = custom.get_cluster_custom_object(**at, _request_timeout=_TIMEOUT_S)
                custom.patch_cluster_custom_object(**at, **body, _request_timeout=_TIMEOUT_S)
            else:
                at["namespace"] = namespace[0] if namespace else "default"
                before = custom.get_namespaced_custom_object(**at, _request_timeout=_TIMEOUT_S)
                custom.patch_namespaced_custom_object(**at, **body, _request_timeout=_TIMEOUT_S)
        except client.ApiException as error:
            raise FaultRefused(f"set {name}: {json.loads(error.body)['message']}") from None
    return undo(patch, before)
