"""The metrics that the pods of a large fleet would have.

An operator that is measured imports this module, so it imports little itself.
"""

import random
from collections.abc import Callable

from profiler.samples import MISSING, PlacementSamples, Quantity, Reading
from profiler.sources.base import ReadAnswer, ReadRequest

SERVICE_S = {"vad": 0.004, "asr": 0.05, "text": 0.012}
"""The seconds of one item in each stage of the pipelines of `large_fleets`."""


class SyntheticMetrics:
    """A `MetricSource` for a large fleet: demands are what the queries say, stages carry what is offered.

    With `noise`, every number moves by up to that share, anew in every read.
    """

    def __init__(self, noise: float | Callable[[], float] = 0.0, *, tails: bool = True) -> None:
        """Without `tails` the servers tell no latency, from which the operator would go on learning for long."""
        self._tails = tails
        self._noise = noise if callable(noise) else lambda: noise
        self._reads = 0

    def read(self, request: ReadRequest) -> ReadAnswer:
        self._reads += 1
        noise = self._noise()
        draw = random.Random(self._reads)

        def moved(value: float) -> float:
            return value * draw.uniform(1 - noise, 1 + noise) if noise else value

        scalars = {key: moved(float(query)) for key, query in request.scalars.items()}
        placements = {}
        pods: dict[tuple[str, str], int] = {}
        for target in request.placements:
            pods[target.pipeline, target.stage] = pods.get((target.pipeline, target.stage), 0) + len(target.pods)
        demands = {name[0]: float(query) for name, query in request.scalars.items() if isinstance(name, tuple)}
        for target in request.placements:
            # Every stage gets the items that are offered, however many replicas it has: none drops or multiplies any.
            offered = demands[target.pipeline]
            rate = moved(offered * len(target.pods) / max(1, pods[target.pipeline, target.stage]))
            busy = min(0.95, rate * SERVICE_S[target.stage] / max(1, len(target.pods)))
            readings: dict[Quantity, Reading] = {
                Quantity.ARRIVAL_RATE: rate,
                Quantity.COMPLETION_RATE: rate,
                Quantity.LATENCY_MEAN: moved(1.2 * SERVICE_S[target.stage]) if self._tails else MISSING,
                Quantity.LATENCY_P95: moved(1.9 * SERVICE_S[target.stage]) if self._tails else MISSING,
                Quantity.UTILIZATION: moved(busy),
                Quantity.QUEUE_DEPTH: 0.0,
                Quantity.SESSIONS: MISSING,
            }
            placements[target.pipeline, target.stage, target.placement] = PlacementSamples(
                readings=readings if target.pods else {}
            )
        return ReadAnswer(placements=placements, scalars=scalars, problems=())

    def close(self) -> None:
        """Nothing is open."""
