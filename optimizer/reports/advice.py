"""Advice for pipelines that are not served in full: the required budget, and the best latency within the limits."""

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from optimizer.allocate import Component, fleet_budget, without_budgets
from optimizer.billing import costs_per_hour, plan_charges
from optimizer.fleet.fleet import Answer, Fleet, own_budget
from optimizer.model import Basis, Pipeline, PipelineKey
from optimizer.overload.what_if import WhatIf
from optimizer.plan import Advice, PipelinePlan

Counts = NDArray[np.int64]

PRECISION = 1e-6
"""Relative precision of the least latency."""

_HALVINGS = 50
"""The most steps of the bisection, for latencies so small that the relative precision would need more."""


def advice_for(component: Component) -> Mapping[PipelineKey, Advice]:
    """Return the advice for each pipeline that is not served in full, within what the other pipelines' plans leave.

    A pipeline whose account is exhausted gets none.
    """
    fleet, shares = component.fleet, component.shares
    left = fleet.supply.limits - np.sum([s.answer.use for s in shares.values() if s.answer], axis=0, initial=0)
    money = fleet_budget(fleet.problem) - component.plan.cost_per_hour
    groups = fleet.budgets.left({plan.key: plan.cost_per_hour for plan in component.plan.pipelines})
    advice = {}
    for pipeline, plan in zip(fleet.problem.pipelines, component.plan.pipelines, strict=True):
        if not plan.feasible and not fleet.exhausted(pipeline):
            own = shares[pipeline.key].answer
            capacity = left if own is None else left + own.use
            beside = [other for other in component.plan.pipelines if other.key != pipeline.key]
            at_most = min(money, fleet.budgets.most(pipeline.key, groups)) + plan.cost_per_hour
            advice[pipeline.key] = advise(fleet, pipeline, capacity, at_most, beside=beside)
    return advice


def advise(
    fleet: Fleet,
    pipeline: Pipeline,
    capacity: Counts,
    budget_per_hour: float = inf,
    *,
    beside: Sequence[PipelinePlan] = (),
) -> Advice:
    """Return the advice for `pipeline` within `capacity` and `budget_per_hour`.

    `capacity` is in units of `fleet.supply`. The required budget is computed without `budget_per_hour`; the best
    latency is within it and the pipeline's own budget. Where whole instances count, the required budget is what the
    pipeline pays for the plan that is cheapest by shares, while the other pipelines have their plans, `beside`.
    """
    what_if = WhatIf(fleet, pipeline)
    cheapest = without_budgets(fleet, pipeline, capacity)
    quickest = fastest(what_if, capacity, min(budget_per_hour, own_budget(pipeline)))
    return Advice(
        required_budget_per_hour=None if cheapest is None else _paid_per_hour(fleet, pipeline, cheapest, beside),
        best_latency_s=None if quickest is None else quickest.subproblem.latency(quickest.choice),
    )


def _paid_per_hour(fleet: Fleet, pipeline: Pipeline, answer: Answer, beside: Sequence[PipelinePlan]) -> float:
    """Return what `pipeline` pays for `answer` on its basis, in USD per hour."""
    if pipeline.basis is Basis.REPLICAS:
        return answer.cost_per_hour
    others = {plan.key: plan.replicas() for plan in beside}
    own = {
        (table.stage.name, placement.name): count
        for table, row in zip(answer.subproblem.tables, answer.choice, strict=True)
        for placement, count, _ in table.placed(row)
    }
    charges = [*plan_charges(pipeline, own)]
    for other in fleet.problem.pipelines:
        if other.key in others:
            charges.extend(plan_charges(other, others[other.key]))
    return costs_per_hour(charges, fleet.problem.pools)[pipeline.key]


def fastest(what_if: WhatIf, capacity: Counts, budget_per_hour: float = inf) -> Answer | None:
    """Return the answer with the least end-to-end latency that serves the whole demand within the limits.

    The limits are `capacity` (units of the supply) and `budget_per_hour` (USD). None if the whole demand cannot be
    served within them at any latency. A bisection to a relative `PRECISION`: mostly 20 to 30 searches, never more than
    `_HALVINGS` + 1.
    """
    free = np.zeros(len(capacity))
    best = what_if.answer(1.0, capacity, budget_per_hour, latency_s=inf, pool_prices=free)
    if best is None:
        return None
    low, high = 0.0, best.subproblem.latency(best.choice)
    for _ in range(_HALVINGS):
        if high - low <= PRECISION * high:
            break
        middle = (low + high) / 2
        answer = what_if.answer(1.0, capacity, budget_per_hour, latency_s=middle, pool_prices=free)
        if answer is None:
            low = middle
        else:
            # Where latencies are as small as rounding errors, an answer may be slower than `middle`.
            best, high = answer, min(middle, answer.subproblem.latency(answer.choice))
    return best
