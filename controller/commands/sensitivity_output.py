"""What `sluice plan` and `sluice simulate` say about declared service times: error bars, and what a plan hangs on."""

from collections.abc import Iterator, Sequence
from typing import Any

from controller.core.messages.phrases import money, share_words
from controller.core.state.spec import PipelineSpec
from optimizer.model import PlacementName
from optimizer.plan import PipelinePlan, Plan, StagePlan
from optimizer.reports.sensitivity import StageSensitivity

DECLARED_ERROR = {"Low": 0.5, "Medium": 0.25, "High": 0.1}
"""The relative error that is assumed of a declared service time, by its `confidence`."""
MOST_STAGES = 20
"""With more stages no sensitivity is computed: it takes two plans for each stage."""


def declared_line(answer: PipelinePlan, spec: PipelineSpec) -> str | None:
    """Return a line that says how far declared service times of the planned replicas may err; None without any.

    A latency is at least proportional to the service times. The error bars of latencies are those of the model alone.
    """
    errors = {
        stage.name: max((_declared_error(stage, spec, p.name) for p in stage.placements if p.replicas), default=0.0)
        for stage in answer.stages
    }
    known = {name: error for name, error in errors.items() if error}
    if not known:
        return None
    words = ", ".join(f"{name} ± {error:.0%}" for name, error in known.items())
    return f"service times are declared, not measured, and as wrong as their confidence says: {words}"


def sensitivity_lines(found: Sequence[StageSensitivity], cost_per_hour: float) -> Iterator[str]:
    """Yield a line for each stage: what the plan would cost with a shorter and a longer service time.

    `cost_per_hour` is the cost of the plan with the service times as they are, in USD.
    """
    several = len({one.pipeline for one in found}) > 1
    if found:
        yield f"if the service time of a stage is not as given (the plan costs {money(cost_per_hour)}):"
    for one in found:
        name = f"{one.pipeline} {one.stage}" if several else str(one.stage)
        yield (
            f"  {name}: {one.share:.0%} shorter {_plan_words(one.shorter, cost_per_hour)}, "
            f"{one.share:.0%} longer {_plan_words(one.longer, cost_per_hour)}"
        )


def sensitivity_documents(found: Sequence[StageSensitivity]) -> list[dict[str, Any]]:
    """Return the sensitivities in the form that documents have."""
    return [
        {
            "pipeline": str(one.pipeline),
            "stage": str(one.stage),
            "share": one.share,
            "shorter": _plan_document(one.shorter),
            "longer": _plan_document(one.longer),
        }
        for one in found
    ]


def _plan_words(plan: Plan, cost_per_hour: float) -> str:
    if not plan.feasible:
        served = min(answer.served_fraction for answer in plan.pipelines)
        return f"only {share_words(served)} of the load is served within the SLA"
    if not cost_per_hour:
        return money(plan.cost_per_hour)
    change = f"{plan.cost_per_hour / cost_per_hour - 1:+.0%}".replace("-", "−")
    return f"{money(plan.cost_per_hour)} ({change})"


def _plan_document(plan: Plan) -> dict[str, Any]:
    return {
        "feasible": plan.feasible,
        "cost_per_hour": round(plan.cost_per_hour, 9),
        "served_fraction": min((answer.served_fraction for answer in plan.pipelines), default=1.0),
    }


def _declared_error(stage: StagePlan, spec: PipelineSpec, name: PlacementName) -> float:
    placement = spec.placements().get((stage.name, name))
    if placement is None or not placement.declared.service or placement.confidence is None:
        return 0.0
    return DECLARED_ERROR[placement.confidence]
