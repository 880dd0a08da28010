"""The scenario faults that the lab can cause: what they do at their beginning, and at their end."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes import client

from controller.core.spec import PipelineSpec
from simulations.lab.cluster import Cluster
from simulations.lab.metrics_proxy import Loss, TotalLoss
from simulations.patches import undo
from simulations.scenario import EVERYTHING, Fault, ScenarioFile

SUPPORTED = ("set", "spike", "metricsLost")

_PLURALS = {"ComputePool": "computepools", "SpeechPipeline": "speechpipelines"}
_TIMEOUT_S = (3, 10)


class UnsupportedFault(ValueError):
    """The lab cannot cause this fault; the message names it."""


class FaultRefused(RuntimeError):
    """The API server refuses the patch of a `set`; the message has its reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to do `at_s` seconds into the run; `words` say what."""

    at_s: float
    words: str
    do: Callable[[], None]


def check_supported(scenario: ScenarioFile) -> None:
    """Raise `UnsupportedFault` unless the lab can cause every fault of the scenario."""
    for index, fault in enumerate(scenario.faults):
        if fault.kind not in SUPPORTED:
            raise UnsupportedFault(
                f"faults[{index}].{fault.kind}: the lab does not support {fault.kind} yet; "
                f"it supports {', '.join(SUPPORTED)}"
            )


def actions(scenario: ScenarioFile, cluster: Cluster, pipelines: tuple[PipelineSpec, ...]) -> list[Action]:
    """Return what the faults do, in order of time. Spikes are part of the load's schedule, not of this list."""
    found = [action for fault in scenario.faults for action in _of_fault(fault, cluster, pipelines)]
    return sorted(found, key=lambda action: action.at_s)


def _of_fault(fault: Fault, cluster: Cluster, pipelines: tuple[PipelineSpec, ...]) -> Iterator[Action]:
    span = fault.interval
    if fault.metrics_lost is not None:
        losses = _losses(fault.metrics_lost, pipelines)

        def lose() -> None:
            cluster.metrics.losses += losses

        def find() -> None:
            cluster.metrics.losses = tuple(loss for loss in cluster.metrics.losses if loss not in losses)

        yield Action(at_s=span.from_s, words=f"metrics lost: {fault.metrics_lost}", do=lose)
        yield Action(at_s=span.until_s, words=f"metrics back: {fault.metrics_lost}", do=find)
    for name, patch in (fault.set_ or {}).items():
        before: dict[str, Any] = {}

        def change(name: str = name, patch: Mapping[str, Any] = patch, before: dict[str, Any] = before) -> None:
            before.update(_patch(cluster, name, patch))

        def restore(name: str = name, before: dict[str, Any] = before) -> None:
            _patch(cluster, name, before)

        yield Action(at_s=span.from_s, words=f"set {name}: {json.dumps(patch)}", do=change)
        if span.until_s > span.from_s:
            yield Action(at_s=span.until_s, words=f"undo set {name}", do=restore)


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
