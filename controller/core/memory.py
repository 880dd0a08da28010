"""What one cycle leaves for the next. It lives in the status of the resources, so that a restart is routine."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from optimizer.model import LATENCY_FACTORS, PoolName, StageName, require
from profiler.correction import THROUGHPUT_FACTORS
from profiler.profile import Correction


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSample:
    """A forecast of demand in the pipeline's unit, made at `t_s`, beside the demand observed then.

    `observed` is None where it was missing; the forecast is then the demand that was held.
    """

    t_s: float
    observed: float | None = None
    forecast: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLoss:
    """The demand of a pipeline has not been seen since `since_s`.

    `demand` was planned for then (None: none was ever seen), and may have grown by `growth_per_minute`, a share of it.
    """

    since_s: float
    demand: float | None = None
    growth_per_minute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMemory:
    """A threshold rule between cycles.

    `floor` is the stage's floor while the rule holds (None: it does not). `fired` stays true until the rule has
    cleared, so that it fires once. `clear_since_s` is when its condition last became false while it held.
    """

    floor: int | None = None
    fired: bool = False
    clear_since_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Replicas that somebody else changed after they had been written: how often, when last, from what to what."""

    changes: int
    changed_at_s: float
    written: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """What a pool remembers of failures: planned without until `unavailable_until_s`, next backoff `backoff_s`."""

    unavailable_until_s: float | None = None
    backoff_s: float | None = None
    reason: str = ""


class FailureCause(Enum):
    """Why a placement gets no more replicas while its pool delivers to others. The values are condition reasons."""

    FRAGMENTED = "Fragmented"
    """The pool has room, but not in one piece, or not for this pod."""
    CANNOT_START = "CannotStart"
    """Its replicas have nodes and do not become ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementFailure:
    """A placement that is planned without for a while, as a pool is, though the fault is not the pool's."""

    cause: FailureCause
    outage: PoolMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineMemory:
    """What a pipeline remembers. Empty means: never decided before.

    `demand` is the stabilised demand D of the last cycle; `samples` are the forecasts within the longest
    stabilisation window, oldest first. `service_factors` and `pass_ratios` are the smoothed corrections,
    `latency_corrections` and `throughput_corrections` those of the model with the time they were last learned.
    `moved_at_s` is when replicas last came or went. `excess_excused_until_s` is the end of the time in which spend
    above the cap is excused but may not rise. `contests` has the placements whose replicas others change, `failures`
    those that fail by themselves; `metrics_lost` is there while the demand cannot be seen.
    """

    demand: float | None = None
    samples: tuple[DemandSample, ...] = ()
    service_factors: Mapping[tuple[StageName, PoolName], float] = field(default_factory=dict)
    pass_ratios: Mapping[StageName, float] = field(default_factory=dict)
    latency_corrections: Mapping[StageName, Correction] = field(default_factory=dict)
    throughput_corrections: Mapping[tuple[StageName, PoolName], Correction] = field(default_factory=dict)
    rules: Mapping[tuple[StageName, str], RuleMemory] = field(default_factory=dict)
    batches: Mapping[tuple[StageName, PoolName], int] = field(default_factory=dict)
    moved_at_s: float | None = None
    excess_excused_until_s: float | None = None
    contests: Mapping[tuple[StageName, PoolName], Contest] = field(default_factory=dict)
    metrics_lost: MetricsLoss | None = None
    failures: Mapping[tuple[StageName, PoolName], PlacementFailure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what no cycle leaves: a status can be edited, and must not stop the cycle of all pipelines."""
        loads = [self.demand or 0.0, *(sample.forecast for sample in self.samples)]
        loads += [sample.observed or 0.0 for sample in self.samples]
        require(all(math.isfinite(load) and load >= 0 for load in loads), "demand", loads, "must be finite and ≥ 0")
        if (loss := self.metrics_lost) is not None:
            sane = all(math.isfinite(rate) and rate >= 0 for rate in (loss.growth_per_minute, loss.demand or 0.0))
            # Virtual time may be below zero.
            require(sane and math.isfinite(loss.since_s), "metrics_lost", loss, "must be of finite numbers, loads ≥ 0")
        for name, factor in self.service_factors.items():
            require(math.isfinite(factor) and factor > 0, f"service_factors {name}", factor, "must be finite and > 0")
        for stage, ratio in self.pass_ratios.items():
            require(0 < ratio <= 1, f"pass_ratios {stage}", ratio, "must be in (0, 1]")
        for stage, correction in self.latency_corrections.items():
            _require_sane(correction, LATENCY_FACTORS, f"latency_corrections {stage}")
        for key, correction in self.throughput_corrections.items():
            _require_sane(correction, THROUGHPUT_FACTORS, f"throughput_corrections {key}")


def _require_sane(correction: Correction, bounds: tuple[float, float], where: str) -> None:
    low, high = bounds
    for value in (correction.factor, correction.smoothed):
        require(low <= value <= high, where, value, f"must be in {list(bounds)}")
    require(math.isfinite(correction.learned_at_s), where, correction.learned_at_s, "must be finite")
