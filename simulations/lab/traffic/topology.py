"""The configuration of the ingress: pipelines, their stages, and the replicas and routing of each stage."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from controller.core.state.spec import DemandUnit, PipelineSpec, StageSpec
from optimizer.model import Routing
from simulations.lab.traffic.configuration import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementTopology:
    """The replicas of a stage on one pool: the pods with the labels in `selector`.

    `weight` is the capacity of one replica in items/s, `limit` the number of items that it serves at once.
    """

    pool: str
    selector: Mapping[str, str]
    weight: float
    limit: int

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod with `labels` is a replica of this placement."""
        return self.selector.items() <= labels.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTopology:
    """A stage; `after` names the stages before it, none for an entry stage.

    `pass_ratio` is the share of items that the stage does not filter. A stage with `memory` holds a slot for every
    active stream from its start to its end, whether or not items of the stream reach the stage.
    """

    name: str
    after: tuple[str, ...]
    pass_ratio: float
    routing: Routing
    memory: bool
    placements: tuple[PlacementTopology, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTopology:
    """A pipeline, whose load arrives on `port` of the loopback address.

    `sla_s` is the latency of its SLA. `seed` decides which items stages filter. The ingress delays every answer by
    `overhead_s`, and sends each item `sends` times on average. If it `hands_over`, it moves streams between pods
    without a cut. If it `carries_state`, they take along what a stage with memory has of them.
    """

    namespace: str
    name: str
    unit: DemandUnit
    sla_s: float
    port: int
    seed: int
    stages: tuple[StageTopology, ...]
    overhead_s: float = 0.0
    sends: float = 1.0
    hands_over: bool = False
    carries_state: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressConfig(Configuration):
    """The configuration of the ingress.

    It writes a record per item to the file `records`, with the index of the pipeline in `pipelines`. At the end it
    writes the totals to the file `summary`, in JSON. It serves its metrics on `metrics_port`. If `sheds` is False, it
    ignores `status.admissible`.
    """

    NAME: ClassVar[str] = "ingress configuration"

    metrics_port: int
    records: Path
    summary: Path
    pipelines: tuple[PipelineTopology, ...]
    sheds: bool = True


def pipeline_topology(
    pipeline: PipelineSpec, *, port: int, seed: int, overhead_s: float = 0.0, hands_over: bool = False
) -> PipelineTopology:
    """Return the topology of a pipeline for the ingress; the other arguments are as in `PipelineTopology`.

    The pods of a placement have the name of its target in the label `app`.
    """
    return PipelineTopology(
        namespace=pipeline.namespace,
        name=pipeline.name,
        unit=pipeline.unit,
        sla_s=pipeline.sla.latency_s,
        port=port,
        seed=seed,
        stages=tuple(_stage_topology(stage) for stage in pipeline.stages),
        overhead_s=overhead_s,
        hands_over=hands_over,
    )


def _stage_topology(stage: StageSpec) -> StageTopology:
    placements = []
    for placement in stage.placements:
        prior = placement.prior
        batch = prior.batch_sizes[-1]
        placements.append(
            PlacementTopology(
                pool=str(placement.pool),
                selector={"app": placement.target.name},
                weight=prior.law_rps(batch),
                limit=prior.concurrency * batch,
            )
        )
    return StageTopology(
        name=str(stage.name),
        after=tuple(map(str, stage.after)),
        pass_ratio=stage.pass_ratio,
        routing=stage.routing,
        memory=any(placement.prior.session_slots is not None for placement in stage.placements),
        placements=tuple(placements),
    )
