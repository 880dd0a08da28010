"""A planner with a plan that the test chooses, for tests of what follows from a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.core.assess.assessment import Assessment
from optimizer.model import Composition, Pipeline, PipelineKey, PlacementKey, Problem
from optimizer.plan import Limit, PipelinePlan, PlacementPlan, Plan, PoolPlan, StagePlan


@dataclass
class Planner:
    """Replaces `allocate`, `predicted_latency_s` and `in_time`.

    `wanted` is the plan of each pipeline, by name (default: the minimums); `latency_s` is the predicted latency of the
    current replicas (None: too few to carry the load). `problems` keeps the problems that were planned.
    """

    wanted: dict[str, Mapping[PlacementKey, int]] = field(default_factory=dict)
    latency_s: float | None = 0.1
    served: float = 1.0
    limited_by: Limit | None = None
    problems: list[Problem] = field(default_factory=list)

    def wants(self, replicas: Mapping[PlacementKey, int], *, name: str = "captions", runs_well: bool = False) -> None:
        self.wanted[name] = replicas
        self.latency_s = 0.1 if runs_well else None

    def asked(self, name: str = "captions") -> Pipeline:
        return next(asked for asked in self.problems[-1].pipelines if asked.key == PipelineKey(f"speech/{name}"))

    def allocate(self, problem: Problem, **_: object) -> Plan:
        self.problems.append(problem)
        return Plan(
            pipelines=tuple(self._plan(pipeline, problem) for pipeline in problem.pipelines),
            pools=tuple(
                PoolPlan(name=name, instances=0, limit=pool.instances, shadow_price_per_hour=None)
                for name, pool in problem.pools.items()
            ),
            cost_per_hour=0.0,
            billed_per_hour=0.0,
            lower_bound_per_hour=None,
        )

    def predicted_latency_s(self, *_: object, composition: Composition) -> float | None:
        return self.latency_s

    def in_time(self, assessment: Assessment, *_: object) -> bool:
        return self.latency_s is not None and self.latency_s <= assessment.spec.sla.latency_s

    def _plan(self, pipeline: Pipeline, problem: Problem) -> PipelinePlan:
        wanted = self.wanted.get(pipeline.key.removeprefix("speech/"), {})
        stages = tuple(
            StagePlan(
                name=stage.name,
                rate_rps=pipeline.demand.entry_rate_rps,
                utilization=0.5,
                latency_s=0.05,
                mean_s=0.02,
                placements=tuple(
                    PlacementPlan(
                        name=placement.name,
                        replicas=max(
                            placement.min_replicas,
                            min(placement.max_replicas, wanted.get((stage.name, placement.name), 0)),
                        ),
                        batch=placement.batch_sizes[-1],
                    )
                    for placement in stage.placements
                ),
            )
            for stage in pipeline.stages
        )
        return PipelinePlan(
            key=pipeline.key,
            served_fraction=self.served,
            feasible=self.served >= 1,
            limited_by=self.limited_by,
            latency_s=0.1,
            cost_per_hour=sum(
                problem.pools[placement.pool].price_per_hour * placement.replicas
                for stage in stages
                for placement in stage.placements
            ),
            bottleneck=pipeline.stages[-1].name,
            stages=stages,
            steps=(),
            next_step=None,
        )
