"""Budgets of groups of pipelines (`Problem.budgets`): what is left of each, and what that leaves a pipeline."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from optimizer.model import Pipeline, PipelineKey, Problem

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Budgets:
    """The G budgets of a problem; arrays have one element for each, in the order of `Problem.budgets`."""

    def __init__(self, problem: Problem) -> None:
        self.names = tuple(budget.name for budget in problem.budgets)
        self.per_hour = np.array([budget.per_hour for budget in problem.budgets], dtype=np.float64)
        self._members = {
            pipeline.key: np.array([pipeline.key in budget.pipelines for budget in problem.budgets], dtype=np.bool_)
            for pipeline in problem.pipelines
        }

    def members(self, pipelines: Sequence[Pipeline]) -> Mask:
        """Return which pipeline is in which group, shape (pipelines, G)."""
        rows = [self._members[pipeline.key] for pipeline in pipelines]
        return np.array(rows, dtype=np.bool_).reshape(len(rows), len(self.names))

    def of(self, key: PipelineKey) -> Mask:
        """Return which groups the pipeline is in."""
        return self._members[key]

    def left(self, costs: Mapping[PipelineKey, float]) -> Array:
        """Return what is left of each budget, in USD per hour, where pipelines cost `costs`."""
        left = self.per_hour.copy()
        for key, cost in costs.items():
            left[self._members[key]] -= cost
        return left

    def most(self, key: PipelineKey, left: Array) -> float:
        """Return the most that the pipeline may cost where `left` is left of the budgets; infinite outside groups."""
        return float(left[self._members[key]].min(initial=np.inf))
