"""Budgets for searches by shares of instances, so that what is paid for whole instances keeps the real budgets.

A search counts shares of instances (`optimizer.fleet.whole_instances`). Where the plan exceeds a budget because of the
empty rest of instances, it is made again with a smaller budget, as often as needed. Then the budget is raised again in
a few halvings while demand is left out, so that the plan serves about as much as the real budget allows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from optimizer.fleet.fleet import own_budget
from optimizer.model import Pipeline, PipelineKey, Problem

TRIES = 8
"""The most plans made with different budgets before pipelines above their budget get nothing."""

TOLERANCE = 1e-9

Payer = PipelineKey | None
"""A pipeline with its own budget, or None for the budget of all pipelines together."""


@dataclass(slots=True, kw_only=True)
class Tightening:
    """The budgets to search with, in USD per hour, at first those of `problem`.

    `low` and `high` are the highest budget with which the real one was kept, and the lowest with which it was not.
    `withdrawn` are pipelines that get no replicas: no smaller budget kept the real one.
    """

    problem: Problem
    budgets: dict[Payer, float] = field(default_factory=dict)
    low: dict[Payer, float] = field(default_factory=dict)
    high: dict[Payer, float] = field(default_factory=dict)
    withdrawn: set[PipelineKey] = field(default_factory=set)

    def tightened(self) -> Problem:
        """Return the problem with the budgets to search with."""
        if not self.budgets:
            return self.problem
        return replace(
            self.problem,
            budget_per_hour=self.budgets.get(None, self.problem.budget_per_hour),
            pipelines=tuple(map(self._tightened, self.problem.pipelines)),
        )

    def _tightened(self, pipeline: Pipeline) -> Pipeline:
        if pipeline.key in self.withdrawn:  # also where replicas cost nothing by shares
            stages = (
                replace(stage, placements=tuple(replace(p, min_replicas=0, max_replicas=0) for p in stage.placements))
                for stage in pipeline.stages
            )
            return replace(pipeline, stages=tuple(stages))
        if pipeline.key in self.budgets:
            return replace(pipeline, budget_per_hour=self.budgets[pipeline.key])
        return pipeline

    def excesses(self, costs_per_hour: Mapping[PipelineKey, float]) -> Mapping[Payer, float]:
        """Return the part (0–1) of its cost that each payer above its budget can pay."""
        paid: dict[Payer, tuple[float, float]] = {
            pipeline.key: (costs_per_hour[pipeline.key], own_budget(pipeline)) for pipeline in self.problem.pipelines
        }
        if self.problem.budget_per_hour is not None:
            paid[None] = sum(costs_per_hour.values()), self.problem.budget_per_hour
        return {payer: cap / cost for payer, (cost, cap) in paid.items() if cost > cap + TOLERANCE}

    def lower(self, excesses: Mapping[Payer, float], shares_per_hour: Mapping[PipelineKey, float]) -> None:
        """Lower the budgets of payers with `excesses`; `shares_per_hour` is what their plans cost by shares."""
        for payer, part in excesses.items():
            cost = sum(shares_per_hour.values()) if payer is None else shares_per_hour[payer]
            self.high[payer] = min(cost, self.budgets.get(payer, cost))
            kept = self.low.get(payer)
            self.budgets[payer] = part * self.high[payer] if kept is None else (kept + self.high[payer]) / 2

    def raise_for(self, short: frozenset[PipelineKey]) -> bool:
        """Raise the budgets that were lowered and keep one of `short` from being served; return whether any was."""
        raised = False
        for payer, budget in self.budgets.items():
            if payer is None or payer in short:
                self.low[payer] = budget
                if short and self.high[payer] - budget > 0.01 * self.high[payer]:
                    self.budgets[payer] = (budget + self.high[payer]) / 2
                    raised = True
        return raised

    def withdraw(self, excesses: Mapping[Payer, float], costs_per_hour: Mapping[PipelineKey, float]) -> None:
        """Give nothing to the payers with `excesses`; for the budget of all, to the least important with a cost."""
        self.withdrawn.update(payer for payer in excesses if payer is not None)
        if None in excesses and len(excesses) == 1:
            paying = [pipeline for pipeline in self.problem.pipelines if costs_per_hour[pipeline.key] > 0]
            least = min(paying, key=lambda pipeline: (pipeline.priority, pipeline.key))
            self.withdrawn.add(least.key)
