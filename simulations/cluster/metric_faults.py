"""The effect of scenario faults on metrics: lost, stale, partial, noisy."""

import math
import zlib
from dataclasses import dataclass, field

import numpy as np

from optimizer.model import PipelineKey
from profiler.samples import Absence, Reading
from simulations.scenario.scenario import Fault
from simulations.scenario.schedule import derived_seed
from simulations.scenario.values import EVERYTHING

_NOISE, _PARTIAL = 11, 12  # a random stream for each purpose


@dataclass(slots=True, eq=False, kw_only=True)
class MetricFaults:
    """The active faults of metrics: `on` has them by their index in the scenario."""

    seed: int
    on: dict[int, Fault] = field(default_factory=dict)

    def now(self) -> "MetricFaults":
        """Return a copy with the faults that are active now; later ones do not change it."""
        return MetricFaults(seed=self.seed, on=dict(self.on))

    def lost(self, key: PipelineKey) -> bool:
        """Return whether all metrics of a pipeline are lost."""
        return any(_is_about(fault.metrics_lost, key) for fault in self.on.values())

    def stale(self, key: PipelineKey) -> bool:
        """Return whether a pipeline gets no new samples; the samples it has stay."""
        return any(_is_about(fault.metrics_stale, key) for fault in self.on.values())

    def hides(self, key: PipelineKey, pod: str) -> bool:
        """Return whether the series of a pod are missing. They are missing for the whole fault, or not at all."""
        for index, fault in self.on.items():
            part = fault.metrics_partial
            if part is not None and _is_about(part.pipeline, key):
                chance = derived_seed(self.seed, _PARTIAL, index, zlib.crc32(pod.encode())) / 2**32
                if chance < part.share:
                    return True
        return False

    def noise(self, key: PipelineKey, what: str, now_s: float) -> "ReadingNoise | None":
        """Return the noise for a group of readings at `now_s`, None without noise; `what` identifies the group."""
        variance = sum(
            math.log1p(fault.metrics_noisy.cv**2)
            for fault in self.on.values()
            if fault.metrics_noisy is not None and _is_about(fault.metrics_noisy.pipeline, key)
        )
        if not variance:
            return None
        at_ms = round(1000 * now_s) % 2**32
        return ReadingNoise(variance, derived_seed(self.seed, _NOISE, at_ms, zlib.crc32(f"{key} {what}".encode())))


class ReadingNoise:
    """A sequence of log-normal factors of mean 1."""

    def __init__(self, variance: float, seed: int) -> None:
        self._variance = variance
        self._rng = np.random.default_rng(seed)

    def on(self, reading: Reading) -> Reading:
        """Return a reading times the next factor; an absent reading stays absent."""
        return reading if isinstance(reading, Absence) else reading * self.factor()

    def factor(self) -> float:
        """Return the next factor."""
        return float(self._rng.lognormal(-self._variance / 2, math.sqrt(self._variance)))


def _is_about(which: str | None, key: PipelineKey) -> bool:
    return which in {EVERYTHING, key}
