"""The SpeechPipelines and ComputePools of the simulated cluster, as `set` faults change them, and their memories."""

from dataclasses import replace

from controller.core.state.carry_over import PipelineMemory, PoolMemory
from controller.core.state.decision import Decision
from controller.core.state.spec import PipelineSpec, PoolSpec
from controller.resources.fields import moment_s
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool
from controller.resources.translate import pipeline_spec, pool_spec
from optimizer.model import PipelineKey, PoolName
from simulations.scenario.calendar import in_run_time
from simulations.scenario.scenario import Scenario


class Resources:
    """The current resources and memories. `changes` counts the changes of resources since the run began."""

    def __init__(self, scenario: Scenario) -> None:
        """Begin with the resources of the manifests; uids, which an API server would give, are made from names."""
        self._begins_s = None if scenario.file.begins is None else moment_s(scenario.file.begins)
        self.pipelines: dict[PipelineKey, PipelineSpec] = {}
        for pipeline in map(self._pipeline, scenario.pipelines):
            self.pipelines[pipeline.key] = replace(pipeline, uid=f"SpeechPipeline/{pipeline.key}")
        self.pools: dict[PoolName, PoolSpec] = {}
        for pool in map(pool_spec, scenario.pools):
            self.pools[pool.name] = replace(pool, uid=f"ComputePool/{pool.name}")
        self.pipeline_memories: dict[PipelineKey, PipelineMemory] = {}
        self.pool_memories: dict[PoolName, PoolMemory] = {}
        self.changes = 0

    def set(self, resource: SpeechPipeline | ComputePool) -> None:
        """Replace the resource that has the same name as `resource`; its generation goes up by one."""
        if isinstance(resource, SpeechPipeline):
            pipeline = self._pipeline(resource)
            before = self.pipelines[pipeline.key]
            self.pipelines[pipeline.key] = replace(pipeline, uid=before.uid, generation=before.generation + 1)
        else:
            pool = pool_spec(resource)
            earlier = self.pools[pool.name]
            self.pools[pool.name] = replace(pool, uid=earlier.uid, generation=earlier.generation + 1)
        self.changes += 1

    def _pipeline(self, resource: SpeechPipeline) -> PipelineSpec:
        pipeline = pipeline_spec(resource)
        return pipeline if self._begins_s is None else in_run_time(pipeline, self._begins_s)

    def remember(self, decision: Decision) -> None:
        """Keep the memories that a decision carries over to the next one."""
        self.pipeline_memories |= {pipeline.key: pipeline.memory for pipeline in decision.pipelines}
        self.pool_memories |= {pool.name: pool.memory for pool in decision.pools}
