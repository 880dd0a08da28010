"""The profiler's answer: what every stage of a pipeline is doing now.

The types only; `profiler.estimate` fills them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from optimizer.model import PoolName, ServiceLaw, StageName
from profiler.samples import Quantity, Reading


class LatencySource(Enum):
    """Where an end-to-end latency comes from."""

    MEASURED = "Measured"
    """The user's `sla.query`."""
    COMPOSED = "Composed"
    """Put together from the stages' own percentiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Measured over modelled, bounded, as of `learned_at_s`, when a measurement last told.

    `smoothed` follows the measurements; `factor` is what is planned with, which may lag behind it.
    """

    factor: float
    smoothed: float
    learned_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProfile:
    """A stage on one pool: readings, and the service law after correction.

    `service_factor` is measured over prior mean service time, smoothed and bounded; `service` is the prior times it.
    `measured_factor` is the newest measurement of it, None without enough traffic. `saturation_rps` is what one
    replica was seen to carry when it had more to do than it could, None where that is what `service` says;
    `throughput_correction` is the same over what `service` says.
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
    95th percentile, as planned with; `latency_correction` is what was learned of it, None before the first time.
    `modelled_p95_s` is what the model says of the present load and replicas, None where nothing could be compared.
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
    """A pipeline now: its stages, the one under most pressure, and the end-to-end latency at the SLA's percentile."""

    stages: tuple[StageProfile, ...]
    bottleneck: StageName | None
    latency_s: Reading
    latency_source: LatencySource
