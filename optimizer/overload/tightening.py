"""Budgets for searches by shares of instances, so that what is paid for whole instances keeps the real budgets.

A search counts shares of instances (`optimizer.fleet.whole_instances`). Where the plan exceeds a budget because of the
empty rest of instances, it is made again with a smaller budget, as often as needed. Then the budget is raised again in
a few halvings while demand is left out, so that the plan serves about as much as the real budget allows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from optimizer.fleet.fleet import own_budget
from optimizer.model import GroupBudget, Pipeline, PipelineKey, Problem
from optimizer.plan import Limit, LimitKind

TRIES = 8
"""The most plans made with different budgets before pipelines above their budget get nothing."""

TOLERANCE = 1e-9

Payer = PipelineKey | GroupBudget | None
"""A pipeline with its own budget, a group of them with a common one, or None for the budget of all together."""


@dataclass(slots=True, kw_only=True)
class Tightening:
    """The budgets to search with, in USD per hour, at first those of `problem`.

    `low` and `high` are the highest budget with which the real one was kept, and the lowest with which it was not.
    `withdrawn` are pipelines that get no replicas, because no smaller budget kept the real one, with this budget.
    """

    problem: Problem
    budgets: dict[Payer, float] = field(default_factory=dict)
    low: dict[Payer, float] = field(default_factory=dict)
    high: dict[Payer, float] = field(default_factory=dict)
    withdrawn: dict[PipelineKey, Limit] = field(default_factory=dict)

    def tightened(self) -> Problem:
        """Return the problem with the budgets to search with."""
        if not self.budgets:
            return self.problem
        return replace(
            self.problem,
            budget_per_hour=self.budgets.get(None, self.problem.budget_per_hour),
            budgets=tuple(
                replace(each, per_hour=self.budgets.get(each, each.per_hour)) for each in self.problem.budgets
            ),
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
        paid |= {budget: (_paid(budget, costs_per_hour), budget.per_hour) for budget in self.problem.budgets}
        if self.problem.budget_per_hour is not None:
            paid[None] = _paid(None, costs_per_hour), self.problem.budget_per_hour
        return {payer: cap / cost for payer, (cost, cap) in paid.items() if cost > cap + TOLERANCE}

    def lower(self, excesses: Mapping[Payer, float], shares_per_hour: Mapping[PipelineKey, float]) -> None:
        """Lower the budgets of payers with `excesses`; `shares_per_hour` is what their plans cost by shares."""
        for payer, part in excesses.items():
            cost = _paid(payer, shares_per_hour)
            self.high[payer] = min(cost, self.budgets.get(payer, cost))
            kept = self.low.get(payer)
            self.budgets[payer] = part * self.high[payer] if kept is None else (kept + self.high[payer]) / 2

    def raise_for(self, short: frozenset[PipelineKey]) -> bool:
        """Raise the budgets that were lowered and keep one of `short` from being served; return whether any was."""
        raised = False
        for payer, budget in self.budgets.items():
            if payer is None or (payer in short if isinstance(payer, str) else payer.pipelines & short):
                self.low[payer] = budget
                if short and self.high[payer] - budget > 0.01 * self.high[payer]:
                    self.budgets[payer] = (budget + self.high[payer]) / 2
                    raised = True
        return raised

    def withdraw(self, excesses: Mapping[Payer, float], costs_per_hour: Mapping[PipelineKey, float]) -> None:
        """Give nothing to the pipelines with `excesses`; without any, to the least important that pay.

        These are one of each group with an excess, or, where no group has one, one of all.
        """
        groups = [payer for payer in excesses if isinstance(payer, GroupBudget)]
        own = [payer for payer in excesses if payer is not None and not isinstance(payer, GroupBudget)]
        self.withdrawn.update(dict.fromkeys(own, Limit(kind=LimitKind.BUDGET)))
        shared: Sequence[GroupBudget | None] = groups or [None]
        for group in () if own else shared:
            paying = [
                pipeline
                for pipeline in self.problem.pipelines
                if costs_per_hour[pipeline.key] > 0 and (group is None or pipeline.key in group.pipelines)
            ]
            least = min(paying, key=lambda pipeline: (pipeline.priority, pipeline.key))
            name = None if group is None else group.name
            self.withdrawn.setdefault(least.key, Limit(kind=LimitKind.BUDGET, name=name))


def _paid(payer: Payer, costs_per_hour: Mapping[PipelineKey, float]) -> float:
    """Return what `payer` pays where pipelines cost `costs_per_hour`, in USD per hour."""
    if isinstance(payer, str):
        return costs_per_hour[payer]
    return sum(cost for key, cost in costs_per_hour.items() if payer is None or key in payer.pipelines)
