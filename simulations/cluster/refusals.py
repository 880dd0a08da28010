"""Features of valid scenarios that are not simulated; they are reported before the first run."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from controller.core.state.schedule import field_of
from controller.core.state.spec import PipelineSpec, PlacementSpec, StageSpec, Target
from controller.resources.base import Breach
from controller.resources.manifests import FieldPath, format_path
from controller.resources.pipeline import SpeechPipeline
from controller.resources.translate import pipeline_spec
from optimizer.model import PipelineKey, Routing
from simulations.cluster.expressions import EXPRESSIONS
from simulations.cluster.ingress_queries import UnansweredQuery, parse_query
from simulations.scenario.load import refused_loads
from simulations.scenario.scenario import Scenario, invalid, resource_changes, resource_name, with_what_if


class UnsupportedScenario(ValueError):
    """The scenario is valid, but has a feature that is not simulated; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A field of a resource that is not simulated; `fault` is the index of the fault that sets the field, else None."""

    resource: str
    path: FieldPath
    value: object
    rule: str
    fault: int | None = None

    def __str__(self) -> str:
        return f"{self.resource}: {format_path(self.path)}: {self.value!r}: {self.rule}"


def refusals(scenario: Scenario) -> Iterator[Refusal]:
    """Yield every field that is not simulated once; `scenario` must have the what-if applied."""
    seen = set()
    for refusal in _refusals(scenario):
        what = (refusal.resource, refusal.path, refusal.rule)
        if what not in seen:
            seen.add(what)
            yield refusal


def _refusals(scenario: Scenario) -> Iterator[Refusal]:
    for pool in scenario.pools:
        if pool.spec.capacity.instances is None:
            yield Refusal(
                resource=resource_name(pool),
                path=("spec", "capacity", "instances"),
                value=None,
                rule=f"a pool without spec.capacity.instances needs it (--instances {pool.metadata.name}=N)",
            )
    for budget in scenario.budgets:
        if budget.spec.periods and scenario.file.begins is None:
            rule = "must be absent where the scenario has no begins: the run has no date and no time of day"
            value = ", ".join(period.schedule for period in budget.spec.periods)
            yield Refusal(resource=resource_name(budget), path=("spec", "periods"), value=value, rule=rule)
    specs = {resource_name(resource): pipeline_spec(resource) for resource in scenario.pipelines}
    pools = {pool.metadata.name for pool in scenario.pools}
    keys = [spec.key for spec in specs.values()]
    yield from _shared_targets(specs)
    for name, spec in specs.items():
        yield from _placements(name, spec, pools)
        yield from _metrics(name, spec, keys, None)
        yield from _pushed(name, spec)
        if scenario.file.begins is None:
            yield from _floors(name, spec, None)
    for change in resource_changes(scenario):
        if isinstance(change.resource, SpeechPipeline):  # running pods stay, their queries change
            yield from _metrics(change.name, pipeline_spec(change.resource), keys, change.fault)
            if scenario.file.begins is None:
                yield from _floors(change.name, pipeline_spec(change.resource), change.fault)


def check_simulated(scenario: Scenario, *, what_ifs: Collection[str], seeds: Collection[int]) -> None:
    """Check that a scenario and its what-ifs named in `what_ifs` can be simulated, with the loads of `seeds`.

    Raises:
        InvalidScenario: a field is not simulated, or a load is too large; `findings` has every such field.
    """
    own = tuple(refusals(scenario))
    found = [_mistake(refusal) for refusal in own]
    breaches = [*refused_loads(scenario, seeds)]
    for index, what_if in enumerate(scenario.file.what_if):
        if what_if.name not in what_ifs:
            continue
        at, other = ("whatIf", index), with_what_if(scenario, what_if)
        breaches += [_breach(refusal, at) for refusal in refusals(other) if refusal not in own]
        if what_if.load is not None:
            breaches += [Breach(path=(*at, "load"), rule=breach.rule) for breach in refused_loads(other, seeds)]
    found += [(None, breach) for breach in breaches]
    if found:
        raise invalid(scenario, found)


def _mistake(refusal: Refusal) -> tuple[str | None, Breach]:
    """Return the name of the resource in whose manifest the breach is (None for the scenario file), and the breach."""
    if refusal.fault is None:
        return refusal.resource, Breach(path=refusal.path, rule=refusal.rule)
    return None, Breach(path=("faults", refusal.fault, "set", refusal.resource, *refusal.path), rule=refusal.rule)


def _breach(refusal: Refusal, what_if: FieldPath) -> Breach:
    """Return the breach at the what-if; it conflicts with a fault where the fault changes the resource further."""
    if refusal.fault is None:
        return Breach(path=(*what_if, "set", refusal.resource, *refusal.path), rule=refusal.rule)
    return Breach(path=what_if, rule=f"conflicts with faults[{refusal.fault}]: {refusal}")


def queries(pipeline: PipelineSpec) -> Iterator[tuple[FieldPath, str]]:
    """Yield the user's queries of a pipeline, each with its path in the resource."""
    found: list[tuple[FieldPath, str | None]] = [
        (("spec", "demand", "query"), pipeline.queries.demand),
        (("spec", "sla", "query"), pipeline.queries.latency),
    ]
    for number, stage in enumerate(pipeline.stages):
        at = ("spec", "stages", number, "rules")
        found += [((*at, index, "query"), rule.query) for index, rule in enumerate(stage.rules)]
    yield from ((path, query) for path, query in found if query is not None)


def _path(number: int, stage: StageSpec, placement: PlacementSpec) -> FieldPath:
    """Return where the workload of `placement` is written in the resource: at the placement, or at its variant."""
    pools = list(dict.fromkeys(own.pool for own in stage.placements))
    at = ("spec", "stages", number, "placements", pools.index(placement.pool))
    if placement.prior.variant is None:
        return at
    variants = [own.prior.variant for own in stage.placements if own.pool == placement.pool]
    return (*at, "variants", variants.index(placement.prior.variant))


def _shared_targets(pipelines: Mapping[str, PipelineSpec]) -> Iterator[Refusal]:
    owners: dict[tuple[str, Target], str] = {}
    for name, pipeline in pipelines.items():
        for number, stage in enumerate(pipeline.stages):
            for placement in stage.placements:
                owner = owners.setdefault((pipeline.namespace, placement.target), name)
                if owner != name:
                    path = (*_path(number, stage, placement), "target")
                    rule = f"must not be a target of {owner} too: shared workloads are not simulated"
                    yield Refusal(resource=name, path=path, value=str(placement.target), rule=rule)


def _placements(name: str, pipeline: PipelineSpec, pools: Collection[str]) -> Iterator[Refusal]:
    for number, stage in enumerate(pipeline.stages):
        for placement in stage.placements:
            at, target = _path(number, stage, placement), placement.target
            if (target.api_version, target.kind) != ("apps/v1", "Deployment") and not target.of_groups:
                rule = "must be a Deployment of apps/v1 or a LeaderWorkerSet: other targets are not simulated"
                yield Refusal(resource=name, path=(*at, "target"), value=f"{target.api_version} {target}", rule=rule)
            if placement.applied is not None and placement.prior.continuous:
                rule = "must be absent with continuous batching: its change while items run is not simulated"
                path = (*at, "batching", "apply")
                yield Refusal(resource=name, path=path, value=str(placement.applied.at), rule=rule)
            if placement.pool not in pools:
                rule = "must be in the manifests: its nodes are simulated"
                yield Refusal(resource=name, path=(*at[:5], "pool"), value=placement.pool, rule=rule)


def _floors(name: str, pipeline: PipelineSpec, fault: int | None) -> Iterator[Refusal]:
    named: dict[str, list[str]] = {}
    for floor in pipeline.at_least:
        named.setdefault(field_of(floor), []).append(floor.name)
    rule = "must be absent where the scenario has no begins: the run has no date and no time of day"
    for field, names in named.items():
        yield Refusal(resource=name, path=("spec", "demand", field), value=", ".join(names), rule=rule, fault=fault)
    if pipeline.backlog is not None and pipeline.backlog.deadline_s is not None:
        path = ("spec", "demand", "backlog", "deadline")
        yield Refusal(
            resource=name, path=path, value=pipeline.backlog.deadline_s, rule=f"{rule}; use within", fault=fault
        )


def _pushed(name: str, pipeline: PipelineSpec) -> Iterator[Refusal]:
    for number, stage in enumerate(pipeline.stages):
        if pipeline.backlog is not None and stage.routing is not Routing.PULL:
            rule = "must be Pull in the simulator: replicas take the items of a backlog when they are free"
            path = ("spec", "stages", number, "routing")
            yield Refusal(resource=name, path=path, value=stage.routing.value, rule=rule)


def _metrics(
    name: str, pipeline: PipelineSpec, pipelines: Collection[PipelineKey], fault: int | None
) -> Iterator[Refusal]:
    for number, stage in enumerate(pipeline.stages):
        at = ("spec", "stages", number)
        if stage.preset not in EXPRESSIONS:
            rule = f"must be one of {', '.join(EXPRESSIONS)}: other presets are not simulated"
            yield Refusal(resource=name, path=(*at, "metrics", "preset"), value=stage.preset, rule=rule, fault=fault)
        if stage.metric_overrides:
            value = ", ".join(quantity.value for quantity in stage.metric_overrides)
            rule = "must be absent: PromQL overrides are not simulated"
            yield Refusal(resource=name, path=(*at, "metrics", "overrides"), value=value, rule=rule, fault=fault)
    for path, query in queries(pipeline):
        try:
            parse_query(query, pipelines)
        except UnansweredQuery as error:
            yield Refusal(resource=name, path=path, value=query, rule=str(error), fault=fault)
