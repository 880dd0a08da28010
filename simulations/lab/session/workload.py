"""What runs in the pods of a run, and the programs through which its load reaches them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from controller.core.state.spec import PipelineSpec, PlacementSpec, StageSpec
from simulations.lab.cluster.deployments import Pod, stage_workers
from simulations.lab.traffic.generator import GeneratorConfig
from simulations.lab.traffic.topology import PipelineTopology
from simulations.scenario.scenario import Scenario


class Workload(Protocol):
    """The pods of a run and its load: the lab's own workers, or a real service."""

    ingress: str
    """The module of the ingress, with the arguments of `simulations.lab.traffic.ingress`."""
    generator: str
    """The module that loads it, with the arguments of `simulations.lab.traffic.generator`; its report has what that
    program's has."""

    def pod(self, pipeline: PipelineSpec, stage: StageSpec, placement: PlacementSpec) -> Pod:
        """Return what the pods of a placement run.

        Raises:
            UnsupportedManifest: the lab cannot run it.
        """
        ...

    def topology(self, topology: PipelineTopology) -> PipelineTopology:
        """Return how the ingress serves a pipeline whose manifest says `topology`."""
        ...

    def generator_config(self, config: GeneratorConfig) -> str:
        """Return the configuration of the generator, the content of a file."""
        ...

    def news(self, folder: Path) -> Sequence[str]:
        """Return lines to show of the present moment; `folder` has the logs of ingress and generator."""
        ...


class StageWorkers:
    """Workers whose service times are drawn from the laws in the manifests, under a load of empty items."""

    ingress = "simulations.lab.traffic.ingress"
    generator = "simulations.lab.traffic.generator"

    def __init__(self, scenario: Scenario, seed: int) -> None:
        """Take the workers of `scenario`; `seed` is for their service times."""
        file = scenario.file
        self.pod = stage_workers(
            seed=seed,
            speed_spread=file.speed_spread,
            first_token=file.first_token or {},
            other_models=file.other_models or {},
        )

    def topology(self, topology: PipelineTopology) -> PipelineTopology:
        """Return `topology` as it is."""
        return topology

    def generator_config(self, config: GeneratorConfig) -> str:
        """Return `config` as JSON."""
        return config.to_json()

    def news(self, folder: Path) -> Sequence[str]:  # noqa: ARG002 - a service has some
        """Return nothing: these items have no content."""
        return ()
