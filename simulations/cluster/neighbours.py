"""How busy neighbours on an instance slow a replica in the simulator (`interference` of a scenario).

The engines of pipelines run one after the other, so that a replica cannot follow each batch of its neighbours: it is
slowed by their share of busy time over the last seconds, which is what they do on average.
"""

from collections.abc import Iterator, Mapping

from optimizer.model import PipelineKey
from simulations.cluster.pods import Pod, Workloads
from simulations.cluster.serving import Serving
from simulations.scenario.interference import NamedStage, beside

LOOK_S = 0.1
"""The time between two looks at who is busy."""
MEMORY_S = 1.0
"""Time constant of the shares of busy time."""


class Neighbours:
    """The replicas that share instances, and how busy they have been."""

    def __init__(
        self,
        interference: Mapping[str, float],
        workloads: Workloads,
        serving: Mapping[PipelineKey, Serving],
    ) -> None:
        names: list[NamedStage] = [(pipeline, str(stage)) for pipeline, (stage, _) in workloads.workloads]
        self._factors = {(one, other): beside(interference, one, other) for one in names for other in names}
        self._workloads = workloads
        self._serving = serving
        self._busy: dict[tuple[PipelineKey, int], float] = {}
        """The share of busy time (0–1) of each replica."""

    def look(self) -> None:
        """Slow each replica by what its neighbours have been busy."""
        of_nodes: dict[int, list[Pod]] = {}
        busy: dict[tuple[PipelineKey, int], float] = {}
        for pod in self._serving_pods():
            key, number = _name(pod)
            now = float(self._serving[key].engine.busy(number))
            before = self._busy.get((key, number), 0.0)
            busy[key, number] = before + LOOK_S / MEMORY_S * (now - before)
            of_nodes.setdefault(id(pod.nodes[0]), []).append(pod)
        self._busy = busy
        for pods in of_nodes.values():
            for pod in pods:
                key, number = _name(pod)
                factor = 1 + sum(self._addition(pod, other) for other in pods if other is not pod)
                self._serving[key].engine.crowd(number, factor)

    def _serving_pods(self) -> Iterator[Pod]:
        for workload in self._workloads.workloads.values():
            yield from (pod for pod in workload.pods if pod.number is not None and pod.nodes)

    def _addition(self, pod: Pod, other: Pod) -> float:
        return (self._factors[_stage(pod), _stage(other)] - 1) * self._busy[_name(other)]


def _stage(pod: Pod) -> NamedStage:
    return pod.workload.pipeline.key, str(pod.workload.key[0])


def _name(pod: Pod) -> tuple[PipelineKey, int]:
    assert pod.number is not None
    return pod.workload.pipeline.key, pod.number
