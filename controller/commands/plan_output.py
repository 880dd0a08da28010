"""A plan for people and for programs."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from controller.core.phrases import demand_words, duration, money, number, step_words
from controller.core.spec import DemandUnit, PipelineSpec
from optimizer.model import PipelineKey
from optimizer.plan import PipelinePlan, Plan, StagePlan, Step

_PLAIN_WIDTH = 160
_DIGITS = 9


def document(
    plan: Plan, pipelines: Mapping[PipelineKey, PipelineSpec], demands: Mapping[PipelineKey, float], *, solve_s: float
) -> dict[str, Any]:
    """Return the plan as `-o json` and `-o yaml` print it; what does not exist is null."""
    return {
        "feasible": plan.feasible,
        "cost_per_hour": _number(plan.cost_per_hour),
        "billed_per_hour": _number(plan.billed_per_hour),
        "lower_bound_per_hour": _number(plan.lower_bound_per_hour),
        "gap": _number(plan.gap),
        "proven_optimal": plan.proven_optimal,
        "solve_s": _number(solve_s),
        "pipelines": [_pipeline(answer, pipelines[answer.key], demands[answer.key]) for answer in plan.pipelines],
        "pools": [
            {
                "name": pool.name,
                "instances": pool.instances,
                "limit": pool.limit,
                "shadow_price_per_hour": _number(pool.shadow_price_per_hour),
            }
            for pool in plan.pools
        ],
    }


def tables(plan: Plan, pipelines: Mapping[PipelineKey, PipelineSpec], demands: Mapping[PipelineKey, float]) -> None:
    """Print the plan for a person: with lines and colours on a terminal, plain elsewhere."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PLAIN_WIDTH, no_color=True)
    for answer in plan.pipelines:
        spec = pipelines[answer.key]
        console.print(f"[bold]{answer.key}[/bold]  {_verdict(answer, spec, demands[answer.key])}", soft_wrap=True)
        console.print(_stages(answer, spec.sla.percentile, console))
        for line in _why(answer):
            console.print(line, soft_wrap=True)
        console.print()
    console.print(_pools(plan, console))
    console.print(_proof(plan), soft_wrap=True)


def _pipeline(answer: PipelinePlan, spec: PipelineSpec, demand: float) -> dict[str, Any]:
    return {
        "namespace": spec.namespace,
        "name": spec.name,
        "demand": demand,
        "entry_rate_rps": _number(demand * spec.items_per_unit_s),
        "served_fraction": answer.served_fraction,
        "feasible": answer.feasible,
        "limited_by": None if answer.limited_by is None else str(answer.limited_by),
        "sla_s": spec.sla.latency_s,
        "percentile": spec.sla.percentile,
        "latency_s": _number(answer.latency_s),
        "cost_per_hour": _number(answer.cost_per_hour),
        "budget_per_hour": spec.budget_per_hour,
        "bottleneck": answer.bottleneck,
        "stages": [_stage(stage) for stage in answer.stages],
        "steps": [_step(step) for step in answer.steps],
        "next_step": None if answer.next_step is None else _step(answer.next_step),
    }


def _stage(stage: StagePlan) -> dict[str, Any]:
    return {
        "name": stage.name,
        "rate_rps": _number(stage.rate_rps),
        "utilization": _number(stage.utilization),
        "latency_s": _number(stage.latency_s),
        "mean_s": _number(stage.mean_s),
        "placements": [{"pool": p.pool, "replicas": p.replicas, "batch": p.batch} for p in stage.placements],
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "stage": step.stage,
        "changes": [{"pool": c.pool, "replicas": [c.before, c.after], "batch": c.batch} for c in step.changes],
        "latency_saved_s": _number(step.latency_saved_s),
        "cost_added_per_hour": _number(step.cost_added_per_hour),
    }


def _verdict(answer: PipelinePlan, spec: PipelineSpec, demand: float) -> str:
    load = demand_words(spec, demand)
    if spec.unit is DemandUnit.STREAMS:
        load += f" ({number(demand * spec.items_per_unit_s)} items/s)"
    promise = f"p{spec.sla.percentile:g} {duration(answer.latency_s)} of {duration(spec.sla.latency_s)}"
    cost = f"{money(answer.cost_per_hour)} of {money(spec.budget_per_hour)}"
    if answer.feasible:
        return f"[green]feasible[/green]: {load}, {promise}, {cost}"
    served = f"{number(demand * answer.served_fraction)} of {load} can be served within the SLA"
    return f"[red]infeasible[/red], limited by {answer.limited_by}: {served}, {promise}, {cost}"


def _stages(answer: PipelinePlan, percentile: float, console: Console) -> Table:
    table = _table(console, "stage", ">items/s", f">p{percentile:g}", ">utilization", "runs on")
    for stage in answer.stages:
        running = [p for p in stage.placements if p.replicas]
        table.add_row(
            stage.name,
            number(stage.rate_rps),
            duration(stage.latency_s),
            "-" if stage.utilization is None else f"{stage.utilization:.0%}",
            ", ".join(f"{p.pool} × {p.replicas}" + (f" (batch {p.batch})" if p.batch > 1 else "") for p in running)
            or "nothing",
        )
    return table


def _why(answer: PipelinePlan) -> Iterator[str]:
    if answer.steps:
        yield "from the cheapest allocation that carries the load:"
        for number, step in enumerate(answer.steps, start=1):
            yield f"  {number}. {step_words(step)}"
    if answer.next_step is not None:
        yield f"the next dollar would go to: {step_words(answer.next_step)}"


def _pools(plan: Plan, console: Console) -> Table:
    table = _table(console, "pool", ">instances", ">limit", ">one more would save")
    for pool in plan.pools:
        price = pool.shadow_price_per_hour
        table.add_row(
            pool.name,
            str(pool.instances),
            str(pool.limit),
            "unknown" if price is None else money(price) if price > 0 else "nothing",
        )
    return table


def _proof(plan: Plan) -> str:
    cost = f"{money(plan.cost_per_hour)} for the replicas, {money(plan.billed_per_hour)} for whole instances"
    if plan.proven_optimal:
        return f"{cost}; proven: nothing cheaper meets the SLA (pools mixed only as overflow)"
    if plan.gap is not None:
        return f"{cost}; proven: at most {plan.gap:.1%} above the cheapest plan"
    return cost


def _table(console: Console, *columns: str) -> Table:
    """Return an empty table; a column that begins with > is aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left")
    return table


def _number(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
