"""The output of `sluice plan --frontier`: the curve of cost over latency, for people and for programs."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from controller.commands.plan_output import placements_json, replica_words, rounded
from controller.commands.plan_request import PlanRequest
from controller.commands.terminal import Page
from controller.core.messages.phrases import demand_words, duration, money
from controller.core.state.spec import PipelineSpec
from optimizer.model import Composition, PipelineKey
from optimizer.plan import PlacementPlan
from optimizer.reports.curve import Corner, Frontier

_APART = 0.02
"""A corner, a plan that no other is both cheaper and faster than, is printed if its latency is lower than that in the
line above by at least this share."""


def document(curve: Frontier, request: PlanRequest, key: PipelineKey, *, solve_s: float) -> dict[str, Any]:
    """Return the document that `-o json` and `-o yaml` print for `curve`, the cheapest corner first.

    `solve_s` is the time in seconds that the curve took to compute.
    """
    spec = request.specs[key]
    return {
        "namespace": spec.namespace,
        "name": spec.name,
        "unit": spec.unit.value,
        "demand": request.demands[key],
        "entry_rate_rps": rounded(request.demands[key] * spec.items_per_unit_s),
        "sla_s": spec.sla.latency_s,
        "percentile": spec.sla.percentile,
        "budget_per_hour": spec.budget_per_hour,
        "composition": request.problem.composition.value,
        "solve_s": rounded(solve_s),
        "thinned": curve.thinned,
        "corners": [
            {
                "latency_s": rounded(corner.latency_s),
                "cost_per_hour": rounded(corner.cost_per_hour),
                "meets_sla": _meets_sla(corner, spec),
                "within_budget": _within_budget(corner, spec),
                "stages": [
                    {
                        "name": stage,
                        "placements": placements_json(placements),
                    }
                    for stage, placements in corner.placements
                ],
            }
            for corner in curve.corners
        ],
    }


def print_frontier(curve: Frontier, request: PlanRequest, key: PipelineKey) -> None:
    """Print one line per corner, the cheapest first: the latency saved and cost added since the line above.

    Corners that are hardly faster than the line above are left out. The cost of the SLA and the best latency within the
    budget follow.
    """
    spec = request.specs[key]
    page = Page()
    load = demand_words(spec, request.demands[key])
    if not curve.corners:
        page.say(f"{key}: no allocation within pools and replica bounds has capacity for {load}", style="bold red")
        return
    page.say(f"{key}: cost of latency at {load}, from the cheapest plan to the fastest", style="bold")
    if len(request.specs) > 1:
        page.say("planned alone: no other pipeline uses the pools", indent=1)
    shown = _shown(curve.corners, spec)
    page.table(
        (f">p{spec.sla.percentile:g}", ">cost", "step", "replicas", "note"),
        (
            (
                duration(corner.latency_s),
                money(corner.cost_per_hour),
                "" if before is None else _change_words(before, corner),
                replica_words(corner.placements if before is None else _changed(before, corner)),
                _remark(corner, spec),
            )
            for before, corner in pairwise((None, *shown))
            if corner is not None
        ),
    )
    if curve.thinned or len(shown) < len(curve.corners):
        page.say(f"corners less than {_APART:.0%} faster than the line above are left out; -o json prints more")
    if request.problem.composition is Composition.RSS:
        page.say(
            "latencies are composed (RSS), not replayed; a plan that fails its replay is planned for a tighter latency"
        )
    for line in _answers(curve, spec):
        page.say(line)


def _shown(corners: Sequence[Corner], spec: PipelineSpec) -> list[Corner]:
    """Return the corners to print: the first, the last, those at the SLA and the budget, and those clearly faster."""
    always = {corners[0], corners[-1], _first_within_sla(corners, spec), _last_within_budget(corners, spec)}
    shown: list[Corner] = []
    for corner in corners:
        if corner in always or corner.latency_s <= shown[-1].latency_s * (1 - _APART):
            shown.append(corner)
    return shown


def _answers(curve: Frontier, spec: PipelineSpec) -> tuple[str, ...]:
    sla, budget = duration(spec.sla.latency_s), money(spec.budget_per_hour)
    met, paid = _first_within_sla(curve.corners, spec), _last_within_budget(curve.corners, spec)
    about = "about " if curve.thinned else ""
    return (
        f"no budget reaches the SLA of {sla}"
        if met is None
        else f"the SLA of {sla} costs {about}{money(met.cost_per_hour)}",
        f"the budget of {budget} is too small for the load"
        if paid is None
        else f"best latency for {budget}: {about}{duration(paid.latency_s)}",
    )


def _change_words(before: Corner, corner: Corner) -> str:
    saved = duration(before.latency_s - corner.latency_s)
    return f"−{saved} for {money(corner.cost_per_hour - before.cost_per_hour)}"


def _changed(before: Corner, corner: Corner) -> tuple[tuple[str, tuple[PlacementPlan, ...]], ...]:
    """Return the stages of `corner` that differ from those of `before`."""
    return tuple(stage for old, stage in zip(before.placements, corner.placements, strict=True) if old != stage)


def _first_within_sla(corners: Sequence[Corner], spec: PipelineSpec) -> Corner | None:
    return next((corner for corner in corners if _meets_sla(corner, spec)), None)


def _last_within_budget(corners: Sequence[Corner], spec: PipelineSpec) -> Corner | None:
    return next((corner for corner in reversed(corners) if _within_budget(corner, spec)), None)


def _meets_sla(corner: Corner, spec: PipelineSpec) -> bool:
    return corner.latency_s <= spec.sla.latency_s


def _within_budget(corner: Corner, spec: PipelineSpec) -> bool:
    return corner.cost_per_hour <= spec.budget_per_hour


def _remark(corner: Corner, spec: PipelineSpec) -> str:
    if not _within_budget(corner, spec):
        return "over budget"
    return "SLA met" if _meets_sla(corner, spec) else ""
