"""The profiler's value types: the observed pipeline, what was learned of it, and its profile."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from optimizer.model import (
    Cascade,
    Demand,
    Placement,
    PlacementKey,
    PlacementName,
    Routing,
    ServiceLaw,
    Sla,
    StageName,
)
from profiler.batch_times import BatchTimes
from profiler.neighbours import UNCROWDED, Crowding, Interference, Neighbour
from profiler.samples import NO_DEVICE, DeviceQuantity, PlacementSamples, Quantity, Reading

GRAIN = 0.01
"""Relative resolution of measured values in planning. No measurement is more precise. Without rounding, noise alone
would cause a new plan in every cycle."""


def to_grain(value: float) -> float:
    """Return `value` rounded to the nearest power of e^GRAIN, which changes it by 0.5 % at most. 0 stays 0."""
    return value if value <= 0 else math.exp(round(math.log(value) / GRAIN) * GRAIN)


def rounded_up(demand: float) -> float:
    """Return the demand to plan for: `demand` rounded up to a power of e^GRAIN, by about 1 % at most."""
    if demand <= 0:
        return demand
    return max(demand, math.exp(math.ceil(math.log(demand) / GRAIN - 1e-9) * GRAIN))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementInput:
    """An observed placement: `replicas` are ready and take batches of up to `batch` items; `prior` is as declared.

    `law_declared`, `cv_declared` and `memory_declared` say whether service law, variation and session slots of `prior`
    are more than placeholders.
    `startup_s` is the start-up time of the ready replicas, None where it is not known. `warming` is the share (0–1) of
    them whose first minutes are within the window of the samples. `neighbours` are on the same instances.
    """

    prior: Placement
    replicas: int
    batch: int
    samples: PlacementSamples
    law_declared: bool = True
    cv_declared: bool = True
    memory_declared: bool = True
    startup_s: float | None = None
    warming: float = 0.0
    neighbours: tuple[Neighbour, ...] = ()

    @property
    def name(self) -> PlacementName:
        """Return the name of the placement within its stage."""
        return self.prior.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedInput:
    """That a stage serves several pipelines, so that its samples are of the items of all.

    `other_sessions` are the streams of the others, None while the demand of one of them is missing.
    """

    other_sessions: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInput:
    """An observed stage. `pass_ratio` is as declared. The samples of its placements are averages over `window_s`.

    `first_answer` says that latencies end with the first part of an answer (`Stage.first_answer`). `settled` says that
    no replica of it started or stopped within the window of the samples. `shared` is set for a
    stage that serves other pipelines too.
    """

    name: StageName
    after: tuple[StageName, ...]
    pass_ratio: float
    routing: Routing
    window_s: float
    placements: tuple[PlacementInput, ...]
    first_answer: bool = False
    settled: bool = True
    shared: SharedInput | None = None
    cascade: Cascade | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInput:
    """An observed pipeline, with its stages in topological order.

    `latency_s` is the result of the user's `sla.query`, None without a query. `demand` is the observed demand, None
    while it is missing.
    """

    stages: tuple[StageInput, ...]
    sla: Sla
    latency_s: Reading | None
    demand: Demand | None


class LatencySource(Enum):
    """Where an end-to-end latency comes from."""

    MEASURED = "Measured"
    """The user's `sla.query`."""
    COMPOSED = "Composed"
    """Composed of the percentiles of the stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A factor by which the model is corrected: the ratio of measured to modelled values, within bounds.

    `smoothed` follows the measurements. Plans use `factor`, which may follow more slowly. `learned_at_s` is the time of
    the last measurement.
    """

    factor: float
    smoothed: float
    learned_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveLimit:
    """The packets of a replica (`profiler.receive`): the most per second that it was seen to take, and those per item.

    It is a limit only once packets were lost: `lost_at_s` is the last time, None: never.
    """

    packets_per_s: float
    packets_per_item: float
    lost_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Measured shares (0–1), smoothed: of the items of a stage that go on to the last placement of its `cascade`, and
    of the tokens of prompts that the `prefix` cache of a placement has.
    """

    cascade: Mapping[StageName, float] = field(default_factory=dict)
    prefix: Mapping[PlacementKey, float] = field(default_factory=dict)

    def without(self, stages: Collection[StageName]) -> "Shares":
        """Return this without what is about `stages`."""
        return Shares(
            cascade={name: share for name, share in self.cascade.items() if name not in stages},
            prefix={key: share for key, share in self.prefix.items() if key[0] not in stages},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What measurements have shown about a pipeline. Every profile starts from it and returns it updated.

    `pass_ratios` and `service_factors` (measured over prior service time) are smoothed; a placement that was never
    measured has no factor. `latency_corrections` and `throughput_corrections` correct the model; a stage or placement
    that was never compared with the model has none. `overhead_s` is the time of an item that no stage accounts for.
    `batch_times` are the measurements of placements without a declared service law, `cvs` the coefficients of variation
    of those without a declared one, `startups_s` the start-up times, and `sessions_held` the most sessions per
    replica of placements without declared memory, and `session_slots` their limit, of those that have refused sessions.
    `prefills_s` are the prefill times of those that batch continuously, without a declared service law.
    `receive_limits` has the packets of replicas, where an exporter reads them, and `engines` the engines in a replica.
    `interference` is how neighbours on the same instances slow replicas.
    """

    pass_ratios: Mapping[StageName, float] = field(default_factory=dict)
    service_factors: Mapping[PlacementKey, float] = field(default_factory=dict)
    latency_corrections: Mapping[StageName, Correction] = field(default_factory=dict)
    throughput_corrections: Mapping[PlacementKey, Correction] = field(default_factory=dict)
    overhead_s: float | None = None
    batch_times: Mapping[PlacementKey, BatchTimes] = field(default_factory=dict)
    cvs: Mapping[PlacementKey, float] = field(default_factory=dict)
    prefills_s: Mapping[PlacementKey, float] = field(default_factory=dict)
    startups_s: Mapping[PlacementKey, float] = field(default_factory=dict)
    session_slots: Mapping[PlacementKey, int] = field(default_factory=dict)
    sessions_held: Mapping[PlacementKey, int] = field(default_factory=dict)
    receive_limits: Mapping[PlacementKey, ReceiveLimit] = field(default_factory=dict)
    engines: Mapping[PlacementKey, int] = field(default_factory=dict)
    interference: Mapping[PlacementKey, Interference] = field(default_factory=dict)
    shares: Shares = field(default_factory=Shares)

    def without(self, stages: Collection[StageName]) -> "Learned":
        """Return this without what is about `stages`."""

        def own(key: StageName | PlacementKey) -> StageName:
            return key[0] if isinstance(key, tuple) else key

        kept: dict[str, Any] = {
            part.name: {key: each for key, each in value.items() if own(key) not in stages}
            for part in fields(self)
            if isinstance(value := getattr(self, part.name), Mapping)
        }
        return replace(self, **kept, shares=self.shares.without(stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProfile:
    """A stage on one pool: readings, and the corrected service law.

    `prior` is the declared service law, and `service` is `prior` times `service_factor`: the measured over the declared
    mean service time, smoothed. `measured` is False while no service time was ever measured here; the factor is then
    that of the stage's other placements. Without a declared law, `service` is fitted to `batch_times`, with
    `relative_error`, up to batches of `measured_batch`; `known` is False while the error is large or nothing was
    measured, and `enough` while not enough was measured to plan with fewer replicas. `learned_cv` is the coefficient of
    variation of `service` where it is not declared but measured, or fitted to the latency, smoothed. `measured_factor`
    is the newest measured ratio, None without enough traffic. `saturation_rps` is the throughput of one replica under
    overload, in items per second, None where it is what `service` implies. `throughput_correction` is the observed over
    the implied throughput, None where no lower one was observed. `service` is that of now, beside neighbours that are
    as busy as they are.
    """

    name: PlacementName
    readings: Mapping[Quantity, Reading]
    prior: ServiceLaw
    service: ServiceLaw
    service_factor: float
    measured: bool = True
    known: bool = True
    enough: bool = True
    relative_error: float | None = None
    measured_batch: float | None = None
    batch_times: BatchTimes | None = None
    learned_cv: float | None = None
    measured_factor: float | None = None
    throughput_correction: Correction | None = None
    saturation_rps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProfile:
    """A stage over all its placements.

    `pass_ratio` is the measured ratio, smoothed (the declared one until there is a measurement), and
    `pass_ratio_measured` the newest measurement; `pass_ratio_known` says that there was one. `pressure` is
    0.40 · latency + 0.30 · utilization + 0.30 · queue, each 0–1. `latency_factor` is the measured over the modelled
    95th percentile, as plans use it; `latency_correction` is the stored state of this factor, None before the first
    comparison. `modelled_p95_s` is the model's percentile for the present load and replicas, None where it could not be
    compared with a measurement. `devices` has the readings of the devices of its pods, over the placements whose pools
    have some. `crowdings` has what neighbours on its instances add to the service times of a placement; one that is
    missing has none. `cascade_share` is the share of the items that go on to the last placement of its cascade,
    smoothed; None where it was never measured.
    """

    name: StageName
    readings: Mapping[Quantity, Reading]
    pass_ratio: float
    pass_ratio_measured: Reading
    pressure: Reading
    placements: tuple[PlacementProfile, ...]
    pass_ratio_known: bool = True
    latency_factor: float = 1.0
    latency_correction: Correction | None = None
    modelled_p95_s: float | None = None
    devices: Mapping[DeviceQuantity, Reading] = field(default_factory=dict)
    crowdings: Mapping[PlacementName, Crowding] = field(default_factory=dict)
    cascade_share: float | None = None

    def crowding(self, placement: PlacementName) -> Crowding:
        """Return what neighbours add to the service times of `placement`."""
        return self.crowdings.get(placement, UNCROWDED)

    def of_devices(self, quantity: DeviceQuantity) -> Reading:
        """Return the reading of `quantity`; it is `Unsupported` if no exporter has it for a pool of the stage."""
        return self.devices.get(quantity, NO_DEVICE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProfile:
    """The profile of a pipeline: its stages and its end-to-end latency in seconds, at the percentile of the SLA.

    `bottleneck` is the stage with the highest pressure, None where no pressure is known. `overhead_s` is the time at
    the percentile that no stage accounts for, smoothed; None until it was measured.
    """

    stages: tuple[StageProfile, ...]
    bottleneck: StageName | None
    latency_s: Reading
    latency_source: LatencySource
    overhead_s: float | None = None
