"""The output of `sluice plan` for a range of loads: tables for people, documents for programs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controller.commands.plan_output import replica_words, rounded, stage_documents
from controller.commands.plan_request import PlanRequest
from controller.commands.terminal import Page
from controller.core.messages.phrases import (
    demand_words,
    duration,
    latency_words,
    limit_words,
    money,
    number,
    share_words,
)
from controller.core.state.spec import DemandUnit, PipelineSpec
from optimizer.plan import PipelinePlan
from optimizer.reports.curve import LoadPoint

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load of the range: `demand` in the pipeline's own unit, and `point` with the plan of all pipelines for it."""

    demand: float
    point: LoadPoint

    def answer(self, spec: PipelineSpec) -> PipelinePlan:
        """Return the plan of the pipeline with this `spec`."""
        return self.point.plan.of(spec.key)

    def unit_cost(self, spec: PipelineSpec) -> float | None:
        """Return the cost in USD per stream-hour or, with unit Requests, per 1,000 requests.

        None for a load of 0, or one that is not served completely.
        """
        if spec.unit is DemandUnit.STREAMS:
            return self.point.cost_per_session_hour
        per_rps_hour = self.point.cost_per_rps_hour
        return None if per_rps_hour is None else per_rps_hour / _SECONDS_PER_HOUR * 1000


def document(loads: Sequence[Load], spec: PipelineSpec, request: PlanRequest, *, solve_s: float) -> dict[str, Any]:
    """Return the document that `-o json` and `-o yaml` print for `loads`; an absent value is null.

    Costs are those of the pipeline `spec`, whose load varies. Billed cost, optimality gap and proof are those of all
    pipelines together. `solve_s` is the time in seconds that the plans took to compute.
    """
    return {
        "namespace": spec.namespace,
        "name": spec.name,
        "unit": spec.unit.value,
        "sla_s": spec.sla.latency_s,
        "percentile": spec.sla.percentile,
        "budget_per_hour": spec.budget_per_hour,
        "composition": request.problem.composition.value,
        "solve_s": rounded(solve_s),
        "loads": [_load(load, spec) for load in loads],
    }


def print_sweep(loads: Sequence[Load], spec: PipelineSpec, request: PlanRequest) -> None:
    """Print one line per load, then the load with the lowest cost per unit and the highest load that can be served."""
    page = Page()
    streams = spec.unit is DemandUnit.STREAMS
    unit, per = ("streams", "stream-hour") if streams else ("requests/s", "1,000 requests")
    page.say(
        f"{spec.key}: {number(loads[0].demand)} to {demand_words(spec, loads[-1].demand)} "
        f"within {duration(spec.sla.latency_s)} and a budget of {money(spec.budget_per_hour)}",
        style="bold",
    )
    for key, demand in request.demands.items():
        if key != spec.key:
            page.say(f"planned together with {key} at {demand_words(request.specs[key], demand)}", indent=1)
    page.table(
        (f">{unit}", ">cost", f">per {per}", f">p{spec.sla.percentile:g}", "replicas", "served"),
        (_row(load, spec) for load in loads),
    )
    whole = [load for load in loads if load.answer(spec).feasible]
    priced = [(cost, load) for load in whole if (cost := load.unit_cost(spec)) is not None]
    if priced:
        cost, load = min(priced, key=lambda pair: (pair[0], pair[1].demand))
        page.say(f"cheapest per {per}: {_price(cost)}, at {demand_words(spec, load.demand)}")
    if not whole:
        page.say("none of these loads can be served completely within the SLA")
    elif whole[-1] is not loads[-1]:
        most = max(load.demand for load in whole)
        page.say(f"highest of these loads that is served completely within the SLA: {demand_words(spec, most)}")


def _load(load: Load, spec: PipelineSpec) -> dict[str, Any]:
    answer, cost = load.answer(spec), rounded(load.unit_cost(spec))
    streams = spec.unit is DemandUnit.STREAMS
    return {
        "demand": load.demand,
        "entry_rate_rps": rounded(load.demand * spec.items_per_unit_s),
        "feasible": answer.feasible,
        "served_fraction": answer.served_fraction,
        "admissible": rounded(load.demand * answer.served_fraction),
        "limited_by": None if answer.limited_by is None else str(answer.limited_by),
        "latency_s": rounded(answer.latency_s),
        "latency_error": rounded(answer.latency_error),
        "replayed_latency_s": rounded(answer.replay.latency_s),
        "cost_per_hour": rounded(answer.cost_per_hour),
        "cost_per_stream_hour": cost if streams else None,
        "cost_per_1000_requests": None if streams else cost,
        "billed_per_hour": rounded(load.point.plan.billed_per_hour),
        "gap": rounded(load.point.plan.gap),
        "proven_optimal": load.point.plan.proven_optimal,
        "stages": stage_documents(answer.stages),
    }


def _row(load: Load, spec: PipelineSpec) -> tuple[str, ...]:
    answer = load.answer(spec)
    served = (
        "all" if answer.feasible else f"{share_words(answer.served_fraction)}: {limit_words(answer.limited_by, None)}"
    )
    return (
        number(load.demand),
        money(answer.cost_per_hour),
        _price(load.unit_cost(spec)),
        latency_words(answer.latency_s, answer.latency_error),
        replica_words((stage.name, stage.placements) for stage in answer.stages),
        served,
    )


def _price(amount: float | None) -> str:
    """Return an amount in USD as text, with enough digits for a small one, such as `$0.00420`; `-` for None."""
    if amount is None:
        return "-"
    digits = 2 if amount <= 0 else max(2, 2 - math.floor(math.log10(amount)))
    return f"${amount:.{digits}f}"
