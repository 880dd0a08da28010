"""The port through which metrics come in. `profiler.sources.prometheus` is its first adapter."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from optimizer.model import PipelineKey, PoolName, StageName
from profiler.samples import Origin, PlacementSamples, PlacementTarget, Reading

PlacementId = tuple[PipelineKey, StageName, PoolName]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What one cycle wants to know.

    `placements` asks for every quantity of these pods; `scalars` are the users' own queries (demand, SLA, rules),
    by an identity of the caller's choice, and `asked_by` says whose each is. The whole read may take `deadline_s`
    seconds.
    """

    placements: tuple[PlacementTarget, ...]
    scalars: Mapping[Hashable, str]
    deadline_s: float
    asked_by: Mapping[Hashable, PipelineKey] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """An entry for every placement and every scalar of the request; `problems` are distinct, for a person.

    `origins` says where the numbers of a pipeline come from; one that is not in it has them from Prometheus.
    """

    placements: Mapping[PlacementId, PlacementSamples]
    scalars: Mapping[Hashable, Reading]
    problems: tuple[str, ...]
    origins: Mapping[PipelineKey, Origin] = field(default_factory=dict)


class MetricSource(Protocol):
    """A back end that knows what the pods measured.

    Its promises, which `tests/contract` holds every adapter to:

    * `read` answers everything it was asked, within the deadline and half a second, and raises nothing for a failure
      of the back end: what could not be read is an `Absence` that says why. One query's failure costs only the
      readings made of it.
    * No number is made up. A sum needs every pod of the placement; a mean, ratio, percentile or maximum needs at
      least half of them; fewer is `PARTIAL`, none `MISSING`, old samples `STALE`, NaN and infinities `NOT_A_NUMBER`,
      no items to take a ratio of `NO_TRAFFIC`, a quantity that the server never tells `UNSUPPORTED`.
    * A scalar is exactly one series; several are `NOT_A_NUMBER`, none is `MISSING`.
    * A process that restarts (its counters begin again at zero) yields no negative or huge rate.

    It may block and is called from a thread of its own.
    """

    def read(self, request: ReadRequest) -> ReadAnswer:
        """Return what the back end knows now."""
        ...
