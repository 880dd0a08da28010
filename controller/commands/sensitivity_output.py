"""What `sluice plan` and `sluice simulate` say about declared service times: error bars, and what a plan hangs on."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from controller.core.messages.phrases import money, share_words
from controller.core.state.spec import PipelineSpec
from optimizer.model import PoolName
from optimizer.plan import PipelinePlan, Plan, StagePlan
from optimizer.reports.sensitivity import StageSensitivity

DECLARED_ERROR = {"Low": 0.5, "Medium": 0.25, "High": 0.1}
"""The relative error that is assumed of a declared service time, by its `confidence`."""
MOST_STAGES = 20
"""With more stages no sensitivity is computed: it takes two plans for each stage."""


def stage_error(stage: StagePlan, spec: PipelineSpec) -> float | None:
    """Return the error bar of a stage's latency as a share: that of the model, widened by declared service times.

    A latency is at least proportional to the service time. Both errors are taken as independent. None: both are
    unknown.
    """
    declared = [_declared_error(stage, spec, p.pool) for p in stage.placements if p.replicas]
    known = [error for error in (stage.latency_error, max(declared, default=0.0)) if error]
    return math.hypot(*known) if known else stage.latency_error


def pipeline_error(answer: PipelinePlan, spec: PipelineSpec) -> float | None:
    """Return the error bar of a pipeline's latency as a share, widened as those of its stages.

    The stages' declared errors are weighted by their latencies: they may all be wrong in one direction.
    """
    latencies = [(stage, stage.latency_s) for stage in answer.stages if stage.latency_s is not None]
    total = sum(latency_s for _, latency_s in latencies)
    if not total:
        return answer.latency_error
    declared = (
        sum(
            latency_s * max((_declared_error(stage, spec, p.pool) for p in stage.placements if p.replicas), default=0.0)
            for stage, latency_s in latencies
        )
        / total
    )
    return math.hypot(answer.latency_error or 0.0, declared) or answer.latency_error


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


def _declared_error(stage: StagePlan, spec: PipelineSpec, pool: PoolName) -> float:
    placement = spec.placements().get((stage.name, pool))
    if placement is None or not placement.declared.service or placement.confidence is None:
        return 0.0
    return DECLARED_ERROR[placement.confidence]
