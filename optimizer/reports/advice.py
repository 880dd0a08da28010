"""What a person asks next: how much money would do, and how quick it could be for the money there is."""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from optimizer.fleet.fleet import Answer, Fleet, own_budget
from optimizer.model import Pipeline
from optimizer.overload.what_if import WhatIf

Counts = NDArray[np.int64]

PRECISION = 1e-6
"""How close to the least latency the search for it comes, as a share of it."""

_HALVINGS = 50
"""Of the span, at most: what is quicker than the first answer by more than any number of them remains unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Both answers are for the whole demand, all else equal; None where there is none.

    `required_budget_per_hour` is the least that meets the SLA, were money no object; None when pools, bounds or the
    SLA forbid it at any price. `best_latency_s` is the least end-to-end latency at the SLA's percentile within the
    budgets; None when they do not carry the load at all.
    """

    required_budget_per_hour: float | None
    best_latency_s: float | None


def advise(fleet: Fleet, pipeline: Pipeline, capacity: Counts, budget_per_hour: float = inf) -> Advice:
    """Return what a person asks about `pipeline`, with the `capacity` (units of the supply) and money others leave
    it."""
    question = WhatIf(fleet, pipeline)
    cheapest = question.answer(1.0, capacity, pool_prices=np.zeros(len(capacity)))
    quickest = fastest(question, capacity, min(budget_per_hour, own_budget(pipeline)))
    return Advice(
        required_budget_per_hour=None if cheapest is None else cheapest.cost_per_hour,
        best_latency_s=None if quickest is None else quickest.subproblem.latency(quickest.choice),
    )


def fastest(question: WhatIf, capacity: Counts, budget_per_hour: float = inf) -> Answer | None:
    """Return the quickest way to serve the whole demand within `capacity` and `budget_per_hour`, to `PRECISION`; or
    None.

    It halves the span between a latency that is reached and one that is proven out of reach, so it takes some thirty
    answers at most.
    """
    free = np.zeros(len(capacity))
    best = question.answer(1.0, capacity, budget_per_hour, latency_s=inf, pool_prices=free)
    if best is None:
        return None
    low, high = 0.0, best.subproblem.latency(best.choice)
    for _ in range(_HALVINGS):
        if high - low <= PRECISION * high:
            break
        middle = (low + high) / 2
        answer = question.answer(1.0, capacity, budget_per_hour, latency_s=middle, pool_prices=free)
        if answer is None:
            low = middle
        else:
            # Where latencies are as small as rounding, an answer may be slower than asked for.
            best, high = answer, min(middle, answer.subproblem.latency(answer.choice))
    return best
