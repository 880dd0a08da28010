"""The output of `sluice plan` for one load: tables for people, documents for programs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from controller.commands.plan_request import PlanRequest
from controller.commands.sensitivity_output import (
    declared_line,
    sensitivity_documents,
    sensitivity_lines,
)
from controller.commands.terminal import Page
from controller.core.messages.measured import cascade_words
from controller.core.messages.phrases import (
    count_of,
    demand_words,
    duration,
    latency_words,
    limit_words,
    mixing_words,
    money,
    money_needed,
    next_step_words,
    number,
    share_words,
    step_words,
)
from controller.core.state.cloud import PriceQuote
from controller.core.state.schedule import DemandFloor, declared_as
from controller.core.state.shared import users_of
from controller.core.state.spec import DemandUnit, PipelineSpec
from optimizer.model import Basis, Composition, Mixing, PlacementId, PlacementKey, placement_fields
from optimizer.plan import Limit, LimitKind, Packing, PipelinePlan, PlacementPlan, Plan, StagePlan, Step
from optimizer.reports.sensitivity import StageSensitivity

_DIGITS = 9
_COMPOSED = {
    Composition.SUM: "with the stages' percentiles summed",
    Composition.RSS: "with the stages' tails composed as independent (RSS)",
}


def document(
    plan: Plan, request: PlanRequest, sensitivity: Sequence[StageSensitivity] = (), *, solve_s: float
) -> dict[str, Any]:
    """Return the document that `-o json` and `-o yaml` print for `plan`; an absent value is null.

    `sensitivity` has what the plan would be with other service times, stage by stage. `solve_s` is the time in seconds
    that the plan took to compute.
    """
    return {
        "feasible": plan.feasible,
        "cost_per_hour": rounded(plan.cost_per_hour),
        "billed_per_hour": rounded(plan.billed_per_hour),
        "lower_bound_per_hour": rounded(plan.lower_bound_per_hour),
        "gap": rounded(plan.gap),
        "proven_optimal": plan.proven_optimal,
        "composition": request.problem.composition.value,
        "solve_s": rounded(solve_s),
        "pipelines": [
            _pipeline(answer, request.specs[answer.key], request.demands[answer.key]) for answer in plan.pipelines
        ],
        "pools": [
            {
                "name": pool.name,
                "price_per_hour": request.problem.pools[pool.name].price_per_hour,
                **_price_source(request.quotes.get(pool.name)),
                "instances": pool.instances,
                "limit": pool.limit,
                "shadow_price_per_hour": rounded(pool.shadow_price_per_hour),
            }
            for pool in plan.pools
        ],
        "packing": None if plan.packing is None else _packing(plan.packing),
        "sensitivity": sensitivity_documents(sensitivity),
    }


def _price_source(quote: PriceQuote | None) -> dict[str, Any]:
    """Return where the price of a pool comes from, nothing for one that is not looked up."""
    if quote is None:
        return {}
    as_of = None if quote.as_of_s is None else datetime.fromtimestamp(quote.as_of_s, UTC).date().isoformat()
    return {"price_source": quote.origin.value, "price_as_of": as_of}


def _price_words(quote: PriceQuote) -> str:
    if quote.as_of_s is None:
        return "price.perHour"
    as_of = datetime.fromtimestamp(quote.as_of_s, UTC).date()
    return f"bundled table of on-demand prices as of {as_of.isoformat()} ({quote.at})"


def stage_documents(stages: Iterable[StagePlan]) -> list[dict[str, Any]]:
    """Return the stages of a plan in the form that documents have."""
    return [
        {
            "name": stage.name,
            "rate_rps": rounded(stage.rate_rps),
            "utilization": rounded(stage.utilization),
            "latency_s": rounded(stage.latency_s),
            "latency_error": rounded(stage.latency_error),
            "mean_s": rounded(stage.mean_s),
            "mixing_saves_per_hour": rounded(stage.mixing_saves_per_hour),
            "placements": placements_json(stage.placements),
        }
        for stage in stages
    ]


def print_plan(plan: Plan, request: PlanRequest, sensitivity: Sequence[StageSensitivity] = ()) -> None:
    """Print `plan` as text and tables; `plan` must have been made with shadow prices and advice.

    `sensitivity` has what the plan would be with other service times, stage by stage.
    """
    page = Page()
    for answer in plan.pipelines:
        spec, demand = request.specs[answer.key], request.demands[answer.key]
        _print_pipeline(page, answer, spec, demand, request)
        page.say()
    page.table(
        ("pool", ">instances", ">limit", ">price"),
        (
            (pool.name, str(pool.instances), str(pool.limit), money(request.problem.pools[pool.name].price_per_hour))
            for pool in plan.pools
        ),
    )
    for name, quote in sorted(request.quotes.items()):
        page.say(f"price of {name}: {_price_words(quote)}; AWS is not asked for a plan")
    for line in _money_words(plan, request):
        page.say(line)
    for line in sensitivity_lines(sensitivity, plan.cost_per_hour):
        page.say(line.lstrip(), indent=int(line.startswith(" ")))


def rounded(value: float | None) -> float | None:
    """Return `value` rounded to the number of decimals in documents; None stays None."""
    return None if value is None else round(value, _DIGITS)


def replica_words(stages: Iterable[tuple[str, Iterable[PlacementPlan]]]) -> str:
    """Return the replicas of stages in one line, such as `vad 1 cpu, asr 3 gpu + 1 spot`.

    `stages` are pairs of a stage's name and its placements. A stage without replicas has `none`.
    """
    return ", ".join(
        f"{name} {' + '.join(f'{p.replicas} {p.name}' for p in placements if p.replicas) or 'none'}"
        for name, placements in stages
    )


def _pipeline(answer: PipelinePlan, spec: PipelineSpec, demand: float) -> dict[str, Any]:
    return {
        "namespace": spec.namespace,
        "name": spec.name,
        "unit": spec.unit.value,
        "demand": demand,
        "at_least": [{"name": floor.name, "demand": floor.demand} for floor in _floors_above(spec, demand)],
        "entry_rate_rps": rounded(demand * spec.items_per_unit_s),
        "served_fraction": answer.served_fraction,
        "admissible": rounded(demand * answer.served_fraction),
        "feasible": answer.feasible,
        "limited_by": None if answer.limited_by is None else str(answer.limited_by),
        "sla_s": spec.sla.latency_s,
        "percentile": spec.sla.percentile,
        "latency_s": rounded(answer.latency_s),
        "latency_error": rounded(answer.latency_error),
        "replayed_latency_s": rounded(answer.replay.latency_s),
        "composed_latency_s": rounded(answer.replay.composed_s),
        "target_latency_s": rounded(answer.replay.target_latency_s),
        "best_latency_s": rounded(answer.advice.best_latency_s),
        "cost_per_hour": rounded(answer.cost_per_hour),
        "basis": spec.basis.value,
        "budget_per_hour": spec.budget_per_hour,
        "required_budget_per_hour": rounded(answer.advice.required_budget_per_hour),
        "moved_replicas": answer.moved_replicas,
        "switching_cost_per_hour": rounded(answer.switching_cost_per_hour),
        "bottleneck": answer.bottleneck,
        "stages": _stages(answer, spec),
        "steps": [_step(step) for step in answer.steps],
        "next_step": None if answer.next_step is None else _step(answer.next_step),
    }


def _stages(answer: PipelinePlan, spec: PipelineSpec) -> list[dict[str, Any]]:
    cascades = {stage.name: stage.cascade for stage in spec.stages if stage.cascade is not None}
    documents = stage_documents(answer.stages)
    for document in documents:
        if (cascade := cascades.get(document["name"])) is not None:
            document["cascade"] = {**placement_fields(cascade.to), "share": cascade.share}
    return documents


def _step(step: Step) -> dict[str, Any]:
    return {
        "stage": step.stage,
        "changes": [{"pool": c.name, "replicas": [c.before, c.after], "batch": c.batch} for c in step.changes],
        "latency_saved_s": rounded(step.latency_saved_s),
        "cost_added_per_hour": rounded(step.cost_added_per_hour),
    }


def placements_json(placements: Iterable[PlacementPlan]) -> list[dict[str, Any]]:
    """Return planned placements as JSON."""
    return [
        {
            **placement_fields(each.name),
            "replicas": each.replicas,
            "batch": each.batch,
            **({} if each.wait_s is None else {"wait_s": rounded(each.wait_s)}),
        }
        for each in placements
    ]


def _packing(packing: Packing) -> dict[str, Any]:
    return {
        "cost_per_hour": rounded(packing.cost_per_hour),
        "billed_per_hour": rounded(packing.billed_per_hour),
        "replicas": [
            {"pipeline": key, "stage": stage, **placement_fields(placement), "replicas": count}
            for (key, stage, placement), count in sorted(packing.replicas.items())
        ],
    }


def _print_pipeline(page: Page, answer: PipelinePlan, spec: PipelineSpec, demand: float, request: PlanRequest) -> None:
    budgets = {group.name: group.per_hour for group in request.problem.budgets if answer.key in group.pipelines}
    shared = any(answer.key == key for users in users_of(request.specs.values()).values() for key, _ in users)
    if answer.feasible:
        page.say(f"{answer.key}: the SLA is met", style="bold green")
    else:
        unlimited = not shared and _exceeds_any_budget(answer)
        page.say(f"{answer.key}: {_refusal(answer, spec, budgets, unlimited_budget=unlimited)}", style="bold red")
    for line in _promise(answer, spec, demand, budgets, advised=not shared):
        page.say(line, indent=1)
    for floor in _floors_above(spec, demand):
        page.say(
            f"{declared_as(floor)} is not in this plan: at least {demand_words(spec, floor.demand)} while it is "
            f"active; --demand {answer.key}={floor.demand:.12g} plans them",
            indent=1,
        )
    page.table(
        ("stage", ">items/s", f">p{spec.sla.percentile:g}", ">utilization", "replicas"),
        (
            (
                stage.name,
                number(stage.rate_rps),
                latency_words(stage.latency_s, stage.latency_error),
                "-" if stage.utilization is None else f"{stage.utilization:.0%}",
                _replicas(stage),
            )
            for stage in answer.stages
        ),
    )
    for stage in spec.stages:
        if stage.cascade is not None:
            page.say(cascade_words(stage))
    for words in mixing_words(answer):
        page.say(words)
    if answer.steps:
        page.say("steps from the cheapest allocation with capacity for the load:")
        for count, step in enumerate(answer.steps, start=1):
            page.say(f"{count}. {step_words(step)}", indent=1)
    if answer.next_step is not None and answer.feasible:
        page.say(next_step_words(answer.next_step))
    if request.current:
        page.say(_move_words(answer, request.current.get(answer.key, {})))


def _floors_above(spec: PipelineSpec, demand: float) -> list[DemandFloor]:
    """Return the demand known in advance that is above the planned load: the operator follows it at its times."""
    return [floor for floor in spec.at_least if floor.demand > demand]


def _replicas(stage: StagePlan) -> str:
    running = [p for p in stage.placements if p.replicas]
    return ", ".join(f"{p.name} × {p.replicas}{_batches(p)}" for p in running) or "none"


def _batches(placement: PlacementPlan) -> str:
    wait = "" if placement.wait_s is None else f", wait {duration(placement.wait_s)}"
    return f" (batch {placement.batch}{wait})" if placement.batch > 1 else ""


def _exceeds_any_budget(answer: PipelinePlan) -> bool:
    """Return whether a higher budget would serve more of the load, but no budget all of it; needs advice."""
    limit = answer.limited_by
    return limit is not None and limit.kind is LimitKind.BUDGET and answer.advice.required_budget_per_hour is None


def _refusal(answer: PipelinePlan, spec: PipelineSpec, budgets: Mapping[str, float], *, unlimited_budget: bool) -> str:
    limit = answer.limited_by
    if unlimited_budget:
        return "the SLA cannot be met for the whole load, whatever the budget"
    if limit is not None and limit.kind is LimitKind.SLA:
        return f"the SLA cannot be met: no allocation within the replica bounds reaches {duration(spec.sla.latency_s)}"
    return f"the SLA cannot be met for the whole load, limited by {limit_words(limit, spec.budget_per_hour, budgets)}"


def _promise(
    answer: PipelinePlan, spec: PipelineSpec, demand: float, budgets: Mapping[str, float], *, advised: bool
) -> Iterator[str]:
    """Yield what the plan promises; not `advised`: there is no advice, as for pipelines that share stages.

    `budgets` has the amounts of the pipeline's ComputeBudgets by name.
    """
    load = demand_words(spec, demand)
    if spec.unit is DemandUnit.STREAMS:
        load += f" ({number(demand * spec.items_per_unit_s)} items/s)"
    sla = duration(spec.sla.latency_s)
    latency = f"p{spec.sla.percentile:g} {latency_words(answer.latency_s, answer.latency_error)} of {sla}"
    if answer.replay.latency_s is not None:
        latency += f" (replayed; composed of the stages: {duration(answer.replay.composed_s)})"
    cost = f"{money(answer.cost_per_hour)} of {money(spec.budget_per_hour)}"
    if answer.feasible:
        if demand == 0:
            yield "no load: the plan has the lowest replicas that the bounds allow"
        yield f"{load}, {latency}, {cost}"
        target_s = answer.replay.target_latency_s
        if target_s is not None and target_s <= spec.sla.latency_s:
            yield f"planned for {_target_words(answer, spec)}: in a replay, a cheaper plan exceeded {sla}"
        if (declared := declared_line(answer, spec)) is not None:
            yield declared
        return
    if answer.served_fraction > 0:
        served = f"{number(demand * answer.served_fraction)} of {load}, {share_words(answer.served_fraction)}"
        yield f"{served}, can be served within {sla}: {latency}, {cost}"
    else:
        yield f"none of {load} can be served within {sla}; the lowest replicas that the bounds allow cost {cost}"
    if not advised:
        yield f"({_considered([spec])})"
        return
    binding = limit_words(answer.limited_by, None, budgets) if _is_group(answer.limited_by) else ""
    within = f"{binding or money(spec.budget_per_hour)}, pools and replica bounds"
    if answer.advice.required_budget_per_hour is None:
        yield "no budget is enough: the limit is a pool, the replica bounds or the SLA itself"
    else:
        needed = money_needed(answer.advice.required_budget_per_hour)
        yield f"the whole load needs a budget of {needed}" + (f", and as much left of {binding}" if binding else "")
    if answer.advice.best_latency_s is None:
        yield f"the whole load exceeds the capacity within {within}, at any latency"
    else:
        best = f"{duration(answer.advice.best_latency_s)} (composed, not replayed)"
        yield f"best latency of the whole load within {within}: {best}"
    yield f"({_considered([spec])})"


def _considered(specs: Iterable[PipelineSpec]) -> str:
    """Return which plans a proof is about, for pipelines with `specs`."""
    free = {spec.scaling.mixing is Mixing.FREE for spec in specs}
    if free == {True}:
        return "plans considered: a stage uses any two of its pools together, more only as overflow"
    if free == {False}:
        return "plans considered: a stage uses its further pools only as overflow"
    return (
        "plans considered: a stage uses its further pools only as overflow; with scaling.mixing: Free, any two together"
    )


def _is_group(limit: Limit | None) -> bool:
    """Whether `limit` is a ComputeBudget."""
    return limit is not None and limit.kind is LimitKind.BUDGET and limit.name is not None


def _target_words(answer: PipelinePlan, spec: PipelineSpec) -> str:
    """Return, as text, the latency target that replaced the SLA in the search."""
    target_s = answer.replay.target_latency_s
    assert target_s is not None
    if target_s == spec.sla.latency_s:
        return f"{duration(target_s)}, with the stages' percentiles summed"
    return f"{duration(target_s)}, composed of the stages" if target_s > spec.sla.latency_s else duration(target_s)


def _move_words(answer: PipelinePlan, current: Mapping[PlacementKey, int]) -> str:
    after = answer.replicas()
    changes = [
        f"{stage} {current.get((stage, pool), 0)}→{count} on {pool}"
        for (stage, pool), count in after.items()
        if count != current.get((stage, pool), 0)
    ]
    if not changes:
        return "compared with the current replicas: nothing changes"
    moved = sum(abs(count - current.get(place, 0)) for place, count in after.items())
    switching = answer.switching_cost_per_hour
    weight = f", weighed as {money(switching)} in the search" if switching > 0 else ""
    return f"compared with the current replicas: {', '.join(changes)} ({count_of(moved, 'replica')}{weight})"


def _money_words(plan: Plan, request: PlanRequest) -> Iterator[str]:
    saving = [pool for pool in plan.pools if pool.shadow_price_per_hour is not None and pool.shadow_price_per_hour > 0]
    for pool in saving:
        assert pool.shadow_price_per_hour is not None
        yield f"one more {pool.name} instance saves {money(pool.shadow_price_per_hour)}"
    if not saving and all(pool.shadow_price_per_hour is not None for pool in plan.pools):
        yield "one more instance of any pool saves nothing"
    if all(spec.basis is Basis.INSTANCES for spec in request.specs.values()):
        yield f"{money(plan.cost_per_hour)} for whole instances"
    else:
        counted = "replicas' shares of instances" if not request.problem.counts_instances else "each pipeline's basis"
        yield (
            f"{money(plan.cost_per_hour)} for the {counted}, "
            f"{money(plan.billed_per_hour)} billed for the whole instances that they occupy"
        )
    if plan.packing is not None:
        yield _packing_words(plan, plan.packing)
    yield from _proof(plan, request)


def _packing_words(plan: Plan, packing: Packing) -> str:
    now: dict[PlacementId, int] = {
        (answer.key, *place): count for answer in plan.pipelines for place, count in answer.replicas().items()
    }
    changes = (
        f"{stage if len(plan.pipelines) == 1 else f'{key} {stage}'} {now.get((key, stage, pool), 0)}→{count} on {pool}"
        for (key, stage, pool), count in packing.replicas.items()
        if count != now.get((key, stage, pool), 0)
    )
    return (
        f"billed {money(plan.billed_per_hour)}; with these replicas {money(packing.billed_per_hour)} would be billed, "
        f"and the shares would cost {money(packing.cost_per_hour)}: {', '.join(changes)}"
    )


def _proof(plan: Plan, request: PlanRequest) -> Iterator[str]:
    """Yield lines that say how near the cost is to the lowest possible one, and under which assumptions.

    Nothing for a plan that does not meet the SLA.
    """
    if not plan.feasible:
        return
    bound = plan.lower_bound_per_hour
    if bound is None:
        yield "not proven optimal: the gap to the cheapest plan is unknown"
        return
    specs = [request.specs[answer.key] for answer in plan.pipelines]
    targets = [answer for answer in plan.pipelines if answer.replay.target_latency_s is not None]
    if len(specs) > 1:
        promise = f"the SLAs of all {len(specs)} pipelines" + (
            f" (of {len(targets)} of them the other targets that were planned for)" if targets else ""
        )
    else:
        promise = _target_words(targets[0], specs[0]) if targets else duration(specs[0].sla.latency_s)
    unused = [
        answer
        for answer, spec in zip(plan.pipelines, specs, strict=True)
        if answer.replay.refused_target_s is not None and answer.replay.leaves_unused(spec.sla.latency_s)
    ]
    if plan.proven_optimal:
        optimal = "optimal by the latency model" if unused else "optimal"
        yield f"{optimal}: no plan under {money(plan.cost_per_hour)} meets {promise}"
    else:
        far = "" if plan.gap is None else f"at most {share_words(plan.gap)} above the cheapest; "
        yield f"not proven optimal: {far}no plan under {money(bound)} meets {promise}"
        if request.problem.search_effort is not None:
            yield "a larger --search-effort may find a cheaper plan or prove this one"
        if request.problem.counts_instances:
            yield "the bound counts shares of instances, so that the difference includes the empty rest of instances"
    for answer in unused:
        yield (
            f"{f'{answer.key}: ' if len(specs) > 1 else ''}the replay leaves a part of the SLA unused, but a plan for "
            f"{duration(answer.replay.refused_target_s)}, composed of the stages, exceeded the SLA in its replay"
        )
    composed = _COMPOSED[request.problem.composition]
    yield f"(by the latency model, {composed}; {_considered(specs)})"
