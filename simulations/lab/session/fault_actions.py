"""What the faults of a scenario do to the lab at their beginning, and undo at their end."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes import client

from controller.core.state.spec import PipelineSpec
from controller.resources.base import Breach
from controller.resources.fields import duration_s
from optimizer.model import PoolName
from simulations.cluster.node_pool import reclaimed_nodes
from simulations.lab.cluster.cluster import Cluster
from simulations.lab.faults.disturbances import Chooser, Disturbance, Noise, Partial, Standstill
from simulations.lab.faults.metrics_proxy import Loss, TotalLoss
from simulations.scenario.patches import undo
from simulations.scenario.scenario import EVERYTHING, Fault, ScenarioFile

_PLURALS = {"ComputePool": "computepools", "SpeechPipeline": "speechpipelines"}
_TIMEOUT_S = (3, 10)

Change = Callable[[bool], None]
"""Begins a fault (True), or ends it."""


class FaultRefused(RuntimeError):
    """The API server refuses the patch of a `set`; the message has its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to do `at_s` seconds into the run; `words` say what."""

    at_s: float
    words: str
    do: Callable[[], None]


def unsupported(scenario: ScenarioFile) -> Iterator[Breach]:
    """Yield the faults of a scenario that the lab cannot cause."""
    pipelines = {load.pipeline for load in scenario.load}
    for index, fault in enumerate(scenario.faults):
        if fault.metrics_stale is not None and fault.metrics_stale != EVERYTHING and len(pipelines) > 1:
            rule = (
                'must be "*" in the lab: one query asks for the metrics of all pipelines, and stands still as a whole'
            )
            yield Breach(path=("faults", index, "metricsStale"), rule=rule)


def actions(
    scenario: ScenarioFile, cluster: Cluster, pipelines: tuple[PipelineSpec, ...], *, seed: int
) -> list[Action]:
    """Return what the faults do, in order of time. Spikes are part of the load's schedule, not of this list."""
    found = [
        action
        for index, fault in enumerate(scenario.faults)
        for action in _of_fault(index, fault, cluster, pipelines, seed)
    ]
    return sorted(found, key=lambda action: action.at_s)


def _of_fault(
    index: int, fault: Fault, cluster: Cluster, pipelines: tuple[PipelineSpec, ...], seed: int
) -> Iterator[Action]:
    match fault.kind:
        case "set":
            yield from _sets(fault, cluster)
        case "spotReclaim":
            yield from _reclaims(index, fault, cluster, seed)
        case "spike":
            return
        case "poolUnavailable" | "poolLost":
            yield from _begins_and_ends(fault, *_pool_fault(fault, cluster))
        case "slowStart" | "slowStage":
            yield from _begins_and_ends(fault, *_slowness(fault, cluster, pipelines))
        case _:
            yield from _begins_and_ends(fault, *_metrics_fault(index, fault, cluster, pipelines, seed))


def _begins_and_ends(fault: Fault, change: Change, begins: str, ends: str) -> Iterator[Action]:
    span = fault.interval
    yield Action(at_s=span.from_s, words=begins, do=lambda: change(True))
    if math.isfinite(span.until_s):
        yield Action(at_s=span.until_s, words=ends, do=lambda: change(False))


def _pool_fault(fault: Fault, cluster: Cluster) -> tuple[Change, str, str]:
    name = PoolName(fault.pool or "")

    def change_outages(begins: bool) -> None:
        cluster.pools[name].outages += 1 if begins else -1
        cluster.settle_nodes(name)

    def change_absences(begins: bool) -> None:
        cluster.pools[name].absences += 1 if begins else -1
        cluster.settle_nodes(name)

    if fault.pool_lost is not None:
        return change_absences, f"the nodes of {name} vanish with what runs on them", f"the nodes of {name} are back"
    return change_outages, f"no new replica gets a node of {name}", f"new replicas get nodes of {name} again"


def _slowness(fault: Fault, cluster: Cluster, pipelines: tuple[PipelineSpec, ...]) -> tuple[Change, str, str]:
    if fault.slow_start is not None:
        factor, what = fault.slow_start.factor, f"replicas on {fault.slow_start.pool} take"
        paths = [f"start-factors/{fault.slow_start.pool}"]
        words = (f"{what} {factor:g} times as long to start", f"{what} their usual time to start")
    else:
        assert fault.slow_stage is not None
        name, factor = fault.slow_stage.stage, fault.slow_stage.factor
        words = (f"batches of {name} take {factor:g} times as long", f"batches of {name} take their usual time")
        paths = [
            f"slow-factors/{pipeline.namespace}/{pipeline.name}/{stage.name}"
            for pipeline in pipelines
            for stage in pipeline.stages
            if name in {stage.name, f"{pipeline.key}/{stage.name}"}
        ]

    def change(begins: bool) -> None:
        for path in paths:
            cluster.slow_down(path, factor if begins else 1 / factor)

    return change, *words


def _reclaims(index: int, fault: Fault, cluster: Cluster, seed: int) -> Iterator[Action]:
    """As in the simulated cluster: announced, taken, and given back at the end of the fault or by a provisioner."""
    assert fault.spot_reclaim is not None
    name, span = PoolName(fault.spot_reclaim.pool), fault.interval
    pool = cluster.pools[name]
    chosen = reclaimed_nodes(fault.spot_reclaim.share, pool.nodes.instances, seed=seed, fault=index)
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
    yield Action(at_s=span.from_s, words=f"{what} are to go", do=lambda: count(pool.leaving, nodes, 1))
    if not ends or span.until_s > gone_s:
        yield Action(at_s=gone_s, words=f"{what} are taken back", do=lambda: count(pool.gone, nodes, 1))
    if ends:
        yield Action(at_s=span.until_s, words=f"{what} are back", do=lambda: give_back(nodes))
        return
    for node, after_s in chosen.items():
        words = f"a node of {name} is replaced"
        yield Action(at_s=gone_s + after_s, words=words, do=lambda node=node: give_back([node]))  # type: ignore[misc]


def _metrics_fault(
    index: int, fault: Fault, cluster: Cluster, pipelines: tuple[PipelineSpec, ...], seed: int
) -> tuple[Change, str, str]:
    which = fault.pipeline or EVERYTHING
    if fault.metrics_lost is not None:
        losses = _losses(which, pipelines)

        def lose(begins: bool) -> None:
            kept = tuple(loss for loss in cluster.metrics.losses if loss not in losses)
            cluster.metrics.losses = (*kept, *losses) if begins else kept

        return lose, f"metrics lost: {which}", f"metrics back: {which}"
    chosen, own_seed = _chooser(which, pipelines), f"{seed}/{index}"
    make: Callable[[], Disturbance]
    if fault.metrics_stale is not None:
        words, make = "metrics stand still", Standstill
    elif (partial := fault.metrics_partial) is not None:
        words = f"{partial.share:.0%} of the pods say nothing"
        make = lambda: Partial(chosen=chosen, share=partial.share, seed=own_seed)  # noqa: E731
    else:
        noisy = fault.metrics_noisy
        assert noisy is not None
        words = f"metrics are noisy (coefficient of variation {noisy.cv:g})"
        make = lambda: Noise(chosen=chosen, cv=noisy.cv, seed=own_seed)  # noqa: E731
    on: list[Disturbance] = []

    def disturb(begins: bool) -> None:
        if begins:
            on.append(make())
            cluster.metrics.disturbances = (*cluster.metrics.disturbances, *on)
        else:
            cluster.metrics.disturbances = tuple(one for one in cluster.metrics.disturbances if one not in on)

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
                    pipeline.demand_query,
                    pipeline.sla_query,
                    *(rule.query for stage in pipeline.stages for rule in stage.rules),
                )
                if query is not None
            ),
        )
        for pipeline in pipelines
        if pipeline.key == which
    )


def _chooser(which: str, pipelines: tuple[PipelineSpec, ...]) -> Chooser:
    """Return what tells the series of a pipeline, or of all: what a loss would take."""
    losses = _losses(which, pipelines)
    return lambda query, labels: any(loss.takes(query, labels) for loss in losses)


def _sets(fault: Fault, cluster: Cluster) -> Iterator[Action]:
    span = fault.interval
    for name, patch in (fault.set_ or {}).items():
        before: dict[str, Any] = {}

        def change(name: str = name, patch: Mapping[str, Any] = patch, before: dict[str, Any] = before) -> None:
            before.update(_patch(cluster, name, patch))

        def restore(name: str = name, before: dict[str, Any] = before) -> None:
            _patch(cluster, name, before)

        yield Action(at_s=span.from_s, words=f"set {name}: {json.dumps(patch)}", do=change)
        if span.until_s > span.from_s:
            yield Action(at_s=span.until_s, words=f"undo set {name}", do=restore)


def _patch(cluster: Cluster, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a merge patch and return the one that undoes it; FaultRefused when the API server does not take it."""
    kind, *namespace, resource = name.split("/")
    at: dict[str, str] = {"group": "sluice.dev", "version": "v1alpha1", "plural": _PLURALS[kind], "name": resource}
    body = {"body": dict(patch), "field_validation": "Strict"}
    with cluster.admin() as api:
        custom = client.CustomObjectsApi(api)
        try:
            if kind == "ComputePool":
                before = custom.get_cluster_custom_object(**at, _request_timeout=_TIMEOUT_S)
                custom.patch_cluster_custom_object(**at, **body, _request_timeout=_TIMEOUT_S)
            else:
                at["namespace"] = namespace[0] if namespace else "default"
                before = custom.get_namespaced_custom_object(**at, _request_timeout=_TIMEOUT_S)
                custom.patch_namespaced_custom_object(**at, **body, _request_timeout=_TIMEOUT_S)
        except client.ApiException as error:
            raise FaultRefused(f"set {name}: {json.loads(error.body)['message']}") from None
    return undo(patch, before)
