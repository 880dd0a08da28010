"""The resources of the simulated cluster, as `set` faults change them, and their memories."""

from dataclasses import replace

from controller.core.state.carry_over import PipelineMemory, PoolMemory, PriceMemory
from controller.core.state.decision import Decision
from controller.core.state.snapshot import BudgetState
from controller.core.state.spec import BudgetSpec, PipelineSpec, PoolSpec
from controller.resources.budget import NAME_LABEL, ComputeBudget
from controller.resources.fields import moment_s
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool
from controller.resources.translate import budget_spec, pipeline_spec, pool_spec
from optimizer.model import BatchSettings, PipelineKey, PlacementKey, PoolName
from simulations.cluster.memory import by_mean_tokens
from simulations.scenario.calendar import in_run_time, windows_in_run_time
from simulations.scenario.scenario import Scenario


class Resources:
    """The current resources and memories. `changes` counts the changes of resources since the run began."""

    def __init__(self, scenario: Scenario) -> None:
        """Begin with the resources of the manifests; uids, which an API server would give, are made from names."""
        self._ignores_growth = scenario.file.ignore_growth
        self._begins_s = None if scenario.file.begins is None else moment_s(scenario.file.begins)
        self.pipelines: dict[PipelineKey, PipelineSpec] = {}
        for pipeline in map(self._pipeline, scenario.pipelines):
            self.pipelines[pipeline.key] = replace(pipeline, uid=f"SpeechPipeline/{pipeline.key}")
        self.pools: dict[PoolName, PoolSpec] = {}
        for pool in map(pool_spec, scenario.pools):
            self.pools[pool.name] = replace(pool, uid=f"ComputePool/{pool.name}")
        self._namespace_labels = scenario.namespace_labels
        self._budgets: dict[str, BudgetSpec] = {}
        for budget in map(self._budget, scenario.budgets):
            self._budgets[budget.name] = replace(budget, uid=f"ComputeBudget/{budget.name}")
        self.pipeline_memories: dict[PipelineKey, PipelineMemory] = {}
        self.pool_memories: dict[PoolName, PoolMemory] = {}
        self.pool_prices: dict[PoolName, PriceMemory | None] = {}
        self.batching: dict[tuple[PipelineKey, PlacementKey], BatchSettings] = {}
        """What the ConfigMaps have: at first they are without data."""
        self.changes = 0

    def budgets(self) -> tuple[BudgetState, ...]:
        """Return the ComputeBudgets with the namespaces of pipelines that they select, in the order of their names.

        A namespace has the labels of its manifest, and the one that every namespace has: its name.
        """
        labels = {
            pipeline.namespace: {NAME_LABEL: pipeline.namespace, **self._namespace_labels.get(pipeline.namespace, {})}
            for pipeline in self.pipelines.values()
        }
        return tuple(
            BudgetState(
                spec=spec, namespaces=frozenset(name for name, own in labels.items() if spec.selector.matches(own))
            )
            for _, spec in sorted(self._budgets.items())
        )

    def set(self, resource: SpeechPipeline | ComputePool | ComputeBudget) -> None:
        """Replace the resource that has the same name as `resource`; its generation goes up by one."""
        if isinstance(resource, SpeechPipeline):
            pipeline = self._pipeline(resource)
            before = self.pipelines[pipeline.key]
            self.pipelines[pipeline.key] = replace(pipeline, uid=before.uid, generation=before.generation + 1)
        elif isinstance(resource, ComputeBudget):
            budget = self._budget(resource)
            old = self._budgets[budget.name]
            self._budgets[budget.name] = replace(budget, uid=old.uid, generation=old.generation + 1)
        else:
            pool = pool_spec(resource)
            earlier = self.pools[pool.name]
            self.pools[pool.name] = replace(pool, uid=earlier.uid, generation=earlier.generation + 1)
        self.changes += 1

    def _pipeline(self, resource: SpeechPipeline) -> PipelineSpec:
        pipeline = by_mean_tokens(pipeline_spec(resource)) if self._ignores_growth else pipeline_spec(resource)
        return pipeline if self._begins_s is None else in_run_time(pipeline, self._begins_s)

    def _budget(self, resource: ComputeBudget) -> BudgetSpec:
        budget = budget_spec(resource)
        if self._begins_s is None:
            return budget
        shifted = (
            replace(period, windows=windows_in_run_time(period.windows, self._begins_s)) for period in budget.periods
        )
        return replace(budget, periods=tuple(shifted))

    def remember(self, decision: Decision) -> None:
        """Keep the memories that a decision carries over to the next one."""
        self.pipeline_memories |= {pipeline.key: pipeline.memory for pipeline in decision.pipelines}
        self.pool_memories |= {pool.name: pool.memory for pool in decision.pools}
        self.pool_prices |= {pool.name: pool.price for pool in decision.pools}
