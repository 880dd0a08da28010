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
class PlacementProfile:
    """A stage on one pool: readings, and the service law after correction.

    `service_factor` is measured over prior mean service time, smoothed and bounded; `service` is the prior times it.
    """

    pool: PoolName
    readings: Mapping[Quantity, Reading]
    prior: ServiceLaw
    service: ServiceLaw
    service_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProfile:
    """A stage over all its placements.

    `pass_ratio` is the smoothed, measured ratio (the prior until there is one). `pressure` is
    0.40 · latency + 0.30 · utilisation + 0.30 · queue, each 0–1.
    """

    name: StageName
    readings: Mapping[Quantity, Reading]
    pass_ratio: float
    pass_ratio_measured: Reading
    pressure: Reading
    placements: tuple[PlacementProfile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProfile:
    """A pipeline now: its stages, the one under most pressure, and the end-to-end latency at the SLA's percentile."""

    stages: tuple[StageProfile, ...]
    bottleneck: StageName | None
    latency_s: Reading
    latency_source: LatencySource
