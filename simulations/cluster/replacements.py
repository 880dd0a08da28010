"""Parts of users' manifests that the simulated cluster has otherwise: each is replaced, and a note says by what. Pure.

What cannot be replaced without another result is refused (`refusals.py`).
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller.core.state.spec import DemandUnit, PipelineSpec, Target
from controller.resources.pipeline import SpeechPipeline
from controller.resources.translate import pipeline_spec
from optimizer.model import PipelineKey
from simulations.cluster.expressions import EXPRESSIONS
from simulations.cluster.ingress_queries import UnansweredQuery, demand_query, latency_query, parse_query
from simulations.scenario.scenario import Scenario, resource_name, with_documents
from simulations.scenario.variants import with_each

DEPLOYMENT = ("apps/v1", "Deployment")


def replaced(scenario: Scenario) -> Scenario:
    """Return the scenario with pipelines that the simulated cluster can run, and a note for each part replaced."""
    specs = {resource_name(resource): pipeline_spec(resource) for resource in scenario.pipelines}
    keys = [spec.key for spec in specs.values()]
    notes: list[str] = []
    documents: dict[str, Mapping[str, Any]] = {}
    for resource in scenario.pipelines:
        name = resource_name(resource)
        spec, document = specs[name], scenario.documents[name]
        found = [*_notes(resource, spec, keys)]
        if found:
            notes += [f"{spec.key}: {note}" for note in found]
            documents[name] = {**document, "spec": runnable(document["spec"], spec, keys)}
    return replace(with_documents(scenario, documents), notes=(*scenario.notes, *notes))


def runnable(written: Mapping[str, Any], spec: PipelineSpec, keys: Collection[PipelineKey]) -> dict[str, Any]:
    """Return the fields `written` of a pipeline as the simulated cluster can run it; `keys` are all pipelines."""
    changed = {**written, "mode": "Auto"}
    if not answered(spec.queries.demand, keys):
        demand = dict(written["demand"])
        if spec.backlog is not None:
            demand["backlog"] = {**demand["backlog"], "query": demand_query(spec)}
        else:
            demand["query"] = demand_query(spec)
        changed["demand"] = demand
    if spec.queries.latency is not None and not answered(spec.queries.latency, keys):
        changed["sla"] = {**written["sla"], "query": latency_query(spec)}
    changed["stages"] = [_stage(stage, keys) for stage in written["stages"]]
    return changed


def answered(query: str, keys: Collection[PipelineKey]) -> bool:
    """Return whether the simulated ingress answers `query`; `keys` are all pipelines of the run."""
    try:
        parse_query(query, keys)
    except UnansweredQuery:
        return False
    return True


def _stage(written: Mapping[str, Any], keys: Collection[PipelineKey]) -> dict[str, Any]:
    changed = dict(written)
    if metrics := written.get("metrics"):
        left_out = {"overrides"}
        if metrics.get("preset", "generic") not in EXPRESSIONS:
            left_out |= {"preset", "model", "answer"}
        changed["metrics"] = {name: value for name, value in metrics.items() if name not in left_out}
    if rules := written.get("rules"):
        changed["rules"] = [rule for rule in rules if not rule.get("query") or answered(rule["query"], keys)]
    if placements := written.get("placements"):
        changed["placements"] = [with_each(each, _on_deployment) for each in placements]
    return changed


def _on_deployment(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**workload, "target": deployment_of(workload["target"])} if workload.get("target") else workload


def deployment_of(target: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Deployment that stands for a `target` as written; one of another kind has its kind in its name."""
    if (target["apiVersion"], target["kind"]) == DEPLOYMENT:
        return dict(target)
    api_version, kind = DEPLOYMENT
    written = target.get("name") or f"{target['application']}-{target['deployment']}"
    name = re.sub(r"[^a-z0-9.-]", "-", written.lower())
    if target.get("deployment") and target.get("name"):  # a RayService has several
        name = re.sub(r"[^a-z0-9.-]", "-", f"{name}-{target['application']}-{target['deployment']}".lower())
    return {"apiVersion": api_version, "kind": kind, "name": f"{name}-{target['kind'].lower()}"}


def _notes(resource: SpeechPipeline, spec: PipelineSpec, keys: Sequence[PipelineKey]) -> Iterator[str]:
    """Yield what `runnable` replaces in a pipeline, one sentence each."""
    mode = resource.spec.mode
    if mode != "Auto":
        yield f"mode {mode} runs as Auto"
    if not answered(spec.queries.demand, keys):
        words = {DemandUnit.STREAMS: "number of streams", DemandUnit.ITEMS: "number of items left"}
        what, field = words.get(spec.unit, "rate of requests"), "backlog.query" if spec.backlog else "query"
        yield f"demand.{field} is replaced: the simulated ingress reports the {what} of the scenario's load"
    if spec.queries.latency is not None and not answered(spec.queries.latency, keys):
        yield f"sla.query is replaced: the simulated ingress reports the p{spec.sla.percentile:g} latency of the run"
    for stage in spec.stages:
        if stage.preset not in EXPRESSIONS:
            yield f"{stage.name}: metrics.preset {stage.preset} is replaced by generic: its metrics are not simulated"
        if stage.metric_overrides:
            yield f"{stage.name}: metrics.overrides are left out: the simulated pods export the preset's metrics"
        dropped = [rule.name for rule in stage.rules if rule.query is not None and not answered(rule.query, keys)]
        if dropped:
            yield f"{stage.name}: rules with a query are left out: {', '.join(dropped)}"
    others = dict.fromkeys(str(target) for target in _targets(spec) if (target.api_version, target.kind) != DEPLOYMENT)
    if others:
        yield f"{', '.join(others)} run as Deployments"


def _targets(spec: PipelineSpec) -> Iterator[Target]:
    return (placement.target for stage in spec.stages for placement in stage.placements)
