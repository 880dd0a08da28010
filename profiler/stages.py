"""The profiler's values: a pipeline's stages as they run, what was learned of them, and the profile. No logic."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from optimizer.model import Demand, Placement, PoolName, Routing, ServiceLaw, Sla, StageName
from profiler.samples import PlacementSamples, Quantity, Reading

PlacementKey = tuple[StageName, PoolName]

GRAIN = 0.01
"""Relative resolution of measured values in planning. No measurement is more precise, and a pipeline that changed by
noise alone would be planned anew in every cycle."""


def to_grain(value: float) -> float:
    """Return `value` rounded to the nearest multiple of the grain on a logarithmic scale."""
    return value if value <= 0 else math.exp(round(math.log(value) / GRAIN) * GRAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementInput:
    """A placement as it runs: `replicas` are ready and take batches of up to `batch`; `prior` is as declared."""

    prior: Placement
    replicas: int
    batch: int
    samples: PlacementSamples

    @property
    def pool(self) -> PoolName:
        """Return the pool of the placement."""
        return self.prior.pool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInput:
    """A stage as it runs; `pass_ratio` is as declared. The samples are averages over `window_s`."""

    name: StageName
    after: tuple[StageName, ...]
    pass_ratio: float
    routing: Routing
    window_s: float
    placements: tuple[PlacementInput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInput:
    """A pipeline as it runs, with its stages in topological order.

    `latency_s` is the result of the user's `sla.query`, None without one. `demand` is the observed demand, None while
    it is missing. `settled` says that no replica started or stopped within the samples' window.
    """

    stages: tuple[StageInput, ...]
    sla: Sla
    latency_s: Reading | None
    demand: Demand | None
    settled: bool


class LatencySource(Enum):
    """Where an end-to-end latency comes from."""

    MEASURED = "Measured"
    """The user's `sla.query`."""
    COMPOSED = "Composed"
    """Composed of the stages' own percentiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Ratio of measured to modelled, within bounds, last measured at `learned_at_s`.

    `smoothed` follows the measurements; plans use `factor`, which may lag behind it.
    """

    factor: float
    smoothed: float
    learned_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What measurements have taught about a pipeline: input and output of every profile.

    `pass_ratios` and `service_factors` (measured over prior service time) are smoothed. `latency_corrections` and
    `throughput_corrections` correct the model; a stage or placement that was never compared with it has none.
    """

    pass_ratios: Mapping[StageName, float] = field(default_factory=dict)
    service_factors: Mapping[PlacementKey, float] = field(default_factory=dict)
    latency_corrections: Mapping[StageName, Correction] = field(default_factory=dict)
    throughput_corrections: Mapping[PlacementKey, Correction] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProfile:
    """A stage on one pool: readings, and the corrected service law.

    `service_factor` is measured over prior mean service time, smoothed and bounded; `service` is the prior times it.
    `measured_factor` is the newest measurement of it, None without enough traffic. `saturation_rps` is the throughput
    of one replica that was observed under overload, None where it is the one implied by `service`;
    `throughput_correction` is its ratio to the implied one.
    """

    pool: PoolName
    readings: Mapping[Quantity, Reading]
    prior: ServiceLaw
    service: ServiceLaw
    service_factor: float
    measured_factor: float | None = None
    throughput_correction: Correction | None = None
    saturation_rps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProfile:
    """A stage over all its placements.

    `pass_ratio` is the smoothed, measured ratio (the prior until there is one). `pressure` is
    0.40 · latency + 0.30 · utilisation + 0.30 · queue, each 0–1. `latency_factor` is the measured over the modelled
    95th percentile, as planned with; `latency_correction` is what was learned of it, None before the first comparison.
    `modelled_p95_s` is the prediction for the present load and replicas, None where nothing could be compared.
    """

    name: StageName
    readings: Mapping[Quantity, Reading]
    pass_ratio: float
    pass_ratio_measured: Reading
    pressure: Reading
    placements: tuple[PlacementProfile, ...]
    latency_factor: float = 1.0
    latency_correction: Correction | None = None
    modelled_p95_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProfile:
    """A pipeline: its stages, the one with the highest pressure, and the end-to-end latency at the SLA's percentile."""

    stages: tuple[StageProfile, ...]
    bottleneck: StageName | None
    latency_s: Reading
    latency_source: LatencySource
