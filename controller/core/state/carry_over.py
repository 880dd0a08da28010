"""The values that a cycle leaves for the next one. They are stored in the status of resources, to survive restarts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from controller.core.state.diagnosis import Baseline, DiagnosisMemory
from controller.core.state.spec import Target
from optimizer.model import LATENCY_FACTORS, MOST_PASSED, BatchSettings, PlacementKey, StageName, require
from profiler.correction import MOST_CV, THROUGHPUT_FACTORS
from profiler.estimate import FACTOR_BOUNDS
from profiler.profile import MOST_ENGINES
from profiler.receive import MOST_PACKETS_PER_ITEM, MOST_PACKETS_PER_S
from profiler.samples import ABSURD
from profiler.slots import MOST_SLOTS
from profiler.stages import Correction, Learned

FURTHEST_S = 5e10
"""No time is further than this from the epoch, so that every time can be written as a date. Virtual time may be
negative."""
LARGEST_BATCH = 1024
"""The largest batch that a resource may declare."""
MOST_SEEN = 4
"""The most batch settings of a placement that may be in force at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSample:
    """The demand that was observed at `t_s`, and the forecast made at that time, in the pipeline's unit.

    `observed` is None where the demand was missing; `forecast` is then the held demand. `peak` is the forecast plus
    headroom until a replica decided at that time was ready; None: equal to `forecast`.
    """

    t_s: float
    observed: float | None = None
    forecast: float
    peak: float | None = None

    @property
    def planned(self) -> float:
        """The load that was planned for: the peak, or the forecast where no peak is known."""
        return self.forecast if self.peak is None else self.peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Surprise:
    """From `since_s` to `until_s` the SLA was missed, because the load had risen beyond the plan."""

    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLoss:
    """The demand of a pipeline has been missing since `since_s`.

    `demand` is the last planned demand, None if none was ever observed. It is assumed to grow by `growth_per_minute`, a
    share of itself.
    """

    since_s: float
    demand: float | None = None
    growth_per_minute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMemory:
    """The state of a threshold rule between cycles.

    `floor` is the floor that the rule sets for its stage, None while it sets none. `fired` stays true until the
    cooldown is over. `holds_since_s` is when the rule last added replicas, or when its metric came back beyond the
    threshold after that; time without data moves it. `clear_since_s` is when the metric became clear of the threshold,
    None while it is not. `returns` counts how often the rule fired again soon after its floor had ended, at `ended_s`.
    """

    floor: int | None = None
    fired: bool = False
    clear_since_s: float | None = None
    holds_since_s: float | None = None
    returns: int = 0
    ended_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The last change of a placement's replicas by Sluice, at `at_s`.

    `added` says whether it added replicas. `lowest` and `highest` are the planned demands for which it and the changes
    before it went in that direction. `turns` is how often in a row changes undid those before, at the same load.
    """

    at_s: float
    added: bool
    lowest: float
    highest: float
    turns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Changes by another controller to replicas that Sluice wrote; the last one was from `written` to `found`."""

    changes: int
    changed_at_s: float
    written: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceMemory:
    """The price of the last cycle in USD per hour; it was `before_per_hour` until `changed_at_s`, None: always this.

    `counted_per_hour` is what counts against the caps for replicas that run, since the price rose at `risen_at_s`;
    None: the price.
    """

    per_hour: float
    before_per_hour: float | None = None
    changed_at_s: float | None = None
    counted_per_hour: float | None = None
    risen_at_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that no cycle writes, as `PoolMemory` does."""
        for name in ("per_hour", "before_per_hour", "counted_per_hour"):
            value = getattr(self, name)
            require(value is None or 0 <= value < math.inf, name, value, "must be a finite number of at least 0")
        _require_time(self.changed_at_s, "changed_at_s")
        _require_time(self.risen_at_s, "risen_at_s")

    @property
    def counted(self) -> float:
        """Return the price that counts against the caps for replicas that run, in USD per hour."""
        return self.per_hour if self.counted_per_hour is None else self.counted_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """The failures of a pool: plans leave it out until `unavailable_until_s`; its next backoff takes `backoff_s`.

    Both are None while the pool has not failed lately. `reason` is the text about the replica that showed the failure.
    `launch_s` is how long the last known nodes of an elastic pool took to be launched, in seconds, None before any.
    `instances` is how many nodes the limits of its NodePool last allowed, None where that was never known.
    """

    unavailable_until_s: float | None = None
    backoff_s: float | None = None
    reason: str = ""
    launch_s: float | None = None
    instances: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that no cycle writes: an edited status must not stop the cycle of all pipelines."""
        _require_time(self.unavailable_until_s, "unavailable_until_s")
        known = self.instances
        require(known is None or 0 <= known <= 1_000_000, "instances", known, "must be 0 to 1e6")
        for name, value in (("backoff_s", self.backoff_s), ("launch_s", self.launch_s)):
            require(value is None or 0 <= value <= FURTHEST_S, name, value, f"must be 0 to {FURTHEST_S:g}")


class FailureCause(Enum):
    """Why a placement gets no more replicas while its pool delivers to others. The values are condition reasons."""

    FRAGMENTED = "Fragmented"
    """No node can schedule this pod, and nothing independent of it shows that the pool cannot deliver."""
    CANNOT_START = "CannotStart"
    """The replicas have nodes and do not become ready."""
    NOT_CREATED = "NotCreated"
    """The workload's controller does not create the replicas, for example because of a quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementFailure:
    """A placement that plans leave out for a backoff time, although its pool delivers to others."""

    cause: FailureCause
    outage: PoolMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackFloor:
    """The least replicas of a stage: `replicas` at `demand`, for which the plan had `planned`.

    Both are counted by their capacity relative to the stage's largest.
    """

    replicas: float
    demand: float
    planned: float

    def __post_init__(self) -> None:
        """Refuse values that no cycle writes: an edited status must not stop the cycle of all pipelines."""
        for name in ("replicas", "demand", "planned"):
            value = getattr(self, name)
            require(1 / ABSURD <= value <= ABSURD, f"feedback floor {name}", value, f"must be 1e-24 to {ABSURD:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackStep:
    """A step of capacity, made at `at_s`: it must lower the latency, `before_s` at `demand`, or is taken back.

    `replicas` is how many replicas its stage is to have. `floor_before` is the floor of the stage before the step, None
    where it had none.
    """

    stage: StageName
    at_s: float
    before_s: float
    demand: float
    replicas: int
    floor_before: FeedbackFloor | None = None

    def __post_init__(self) -> None:
        """Refuse values that no cycle writes: an edited status must not stop the cycle of all pipelines."""
        _require_time(self.at_s, "feedback step at_s")
        _require_load(self.before_s, "feedback step before_s")
        _require_load(self.demand, "feedback step demand")
        require(0 < self.replicas <= 1_000_000_000, "feedback step replicas", self.replicas, "must be 1 to 1e9")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackMemory:
    """The capacity that a measured miss of the SLA has led to, whatever the plan (`controller.core.bounds.feedback`).

    `floors` has the least replicas of the stages that got a step. `misses` counts the last cycles in which the measured
    latency exceeded the SLA, as far as it matters. `step` is under observation, None: no step is. `kept` has the first
    step of each stage that was kept since the SLA was last met for long; its `before_s` falls with each further one,
    because together they must have lowered the latency. `useless_until_s` has the stages for which steps were taken
    back, and until when no other is made. `vain` counts the steps of each stage that were taken back since one was
    useful.

    `latency_s` is the measured latency, smoothed, and `lowest_s` the lowest since the SLA is missed; None before the
    first measurement. `met_since_s` is since when the SLA has been met, and `room_since_s` since when the latency has
    been so low that capacity may be given back.
    """

    floors: Mapping[StageName, FeedbackFloor] = field(default_factory=dict)
    misses: int = 0
    step: FeedbackStep | None = None
    kept: Mapping[StageName, FeedbackStep] = field(default_factory=dict)
    useless_until_s: Mapping[StageName, float] = field(default_factory=dict)
    latency_s: float | None = None
    lowest_s: float | None = None
    met_since_s: float | None = None
    room_since_s: float | None = None
    vain: Mapping[StageName, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values that no cycle writes: an edited status must not stop the cycle of all pipelines."""
        for stage, times in self.vain.items():
            require(0 < times <= 1_000_000_000, f"feedback vain {stage}", times, "must be 1 to 1e9")
        require(0 <= self.misses <= 1_000_000_000, "feedback misses", self.misses, "must be 0 to 1e9")
        for name in ("latency_s", "lowest_s"):
            _require_load(getattr(self, name), f"feedback {name}")
        _require_time(self.met_since_s, "feedback met_since_s")
        _require_time(self.room_since_s, "feedback room_since_s")
        for stage, until_s in self.useless_until_s.items():
            _require_time(until_s, f"feedback useless_until_s {stage}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainMemory:
    """What is known of the crowded replicas of a stage whose sessions may be cut (`controller.core.bounds.drains`).

    The sessions of the fullest have missed the SLA for `missed_s` seconds, seen last at `seen_s`. `pod`, with
    `pod_sessions`, was to be drained in the last cycle. `cut` sessions were cut since `hour_s`, the begin of the hour
    that bounds them.
    """

    seen_s: float
    missed_s: float = 0.0
    pod: str | None = None
    pod_sessions: float = 0.0
    cut: float = 0.0
    hour_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that no cycle writes."""
        _require_time(self.seen_s, "drains seen_s")
        _require_time(self.hour_s, "drains hour_s")
        for name in ("missed_s", "pod_sessions", "cut"):
            _require_load(getattr(self, name), f"drains {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMemory:
    """The batch settings that were `decided` for the servers of a placement, None: none yet.

    `seen` are those that the ConfigMap had lately, each with the last time (epoch seconds): servers may have any.
    """

    decided: BatchSettings | None = None
    seen: tuple[tuple[BatchSettings, float], ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that no cycle writes."""
        require(len(self.seen) <= MOST_SEEN, "batching seen", len(self.seen), f"must be at most {MOST_SEEN}")
        for settings, at_s in self.seen:
            require(settings.limit <= LARGEST_BATCH, "batching seen", settings.limit, f"must be 1 to {LARGEST_BATCH}")
            _require_time(at_s, "batching seen")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineMemory:
    """The state of a pipeline that a cycle leaves for the next one. Empty before the first decision.

    It mirrors the document in `status.memory`, one field for each of its parts.

    `demand`: the stabilized demand of the last cycle, without the floor.
    `floor`: the least demand that `spec.demand.atLeast` set in the last cycle, None: none.
    `samples`: observed demand and forecasts for the stabilization windows and the next forecast, oldest first.
    `surprises`: the misses of the SLA of the last minutes that a load beyond the plan has begun, oldest first.
    `learned`: what the profiler has learned.
    `rules`: the state of the threshold rules, by stage and name.
    `batches`: the batch limits of the last plan that was followed.
    `stages_moved_at_s`: when replicas of each stage last started or stopped.
    `excess_excused_until_s`: until then, spend above the cap is no violation, but it may not rise.
    `conflicts`: the changes by other controllers, by placement.
    `metrics_lost`: set while the demand is missing.
    `failures`: the placements that fail although their pool delivers.
    `admissible`: the demand that the last plan admits, None: no limit. The next search starts from it.
    `feedback`: the capacity beyond the plan that a measured miss of the SLA has led to.
    `idle_since_s`: since when the demand has been observed as 0, None while it is not, or without `scaling.idleAfter`.
    `uncreated_since_s`: since when replicas that are desired have not been created, by placement.
    `missed_since_s`: since when every known latency has exceeded the SLA, None where the last known one did not.
    `quiet_since_s`: since when nothing has arrived of a demand that is observed, None while something does.
    `begun_s`: when the demand was first observed, None before that, and where a release without this field saw it.
    `items_left`: the last known number of items of a backlog that are left.
    `left_alone_since_s`: since when the budget is exceeded only by the rest of nodes that others left.
    `kept_away_since_s`: since when a limit has kept replicas of the plan away, and nothing has changed.
    `turns`: the last change of each placement, and how often changes undid each other.
    `batching`: the batch settings of placements for which they are written.
    `drains`: the stages whose crowded replicas are drained, or will be.
    `closings`: since when each replica that is to go waits for its sessions to end, by pod.
    `diagnosis`: how the pipeline was while all was well, and what was found since the SLA is missed.
    `contradicted_since_s`: since when more arrives than the demand query says, None while it does not.
    `owned`: the workloads that this pipeline scales, and no other may. Empty unless its mode is Auto.
    """

    demand: float | None = None
    floor: float | None = None
    samples: tuple[DemandSample, ...] = ()
    surprises: tuple[Surprise, ...] = ()
    learned: Learned = field(default_factory=Learned)
    rules: Mapping[tuple[StageName, str], RuleMemory] = field(default_factory=dict)
    batches: Mapping[PlacementKey, int] = field(default_factory=dict)
    stages_moved_at_s: Mapping[StageName, float] = field(default_factory=dict)
    excess_excused_until_s: float | None = None
    conflicts: Mapping[PlacementKey, Conflict] = field(default_factory=dict)
    metrics_lost: MetricsLoss | None = None
    failures: Mapping[PlacementKey, PlacementFailure] = field(default_factory=dict)
    admissible: float | None = None
    feedback: FeedbackMemory = field(default_factory=FeedbackMemory)
    idle_since_s: float | None = None
    owned: frozenset[Target] = frozenset()
    uncreated_since_s: Mapping[PlacementKey, float] = field(default_factory=dict)
    missed_since_s: float | None = None
    quiet_since_s: float | None = None
    contradicted_since_s: float | None = None
    begun_s: float | None = None
    items_left: float | None = None
    left_alone_since_s: float | None = None
    kept_away_since_s: float | None = None
    turns: Mapping[PlacementKey, Turn] = field(default_factory=dict)
    drains: Mapping[StageName, DrainMemory] = field(default_factory=dict)
    closings: Mapping[str, float] = field(default_factory=dict)
    batching: Mapping[PlacementKey, BatchMemory] = field(default_factory=dict)
    diagnosis: DiagnosisMemory = field(default_factory=DiagnosisMemory)

    def __post_init__(self) -> None:
        """Refuse values that no cycle writes: an edited status must not stop the cycle of all pipelines."""
        _require_load(self.demand, "demand")
        _require_load(self.floor, "floor")
        _require_load(self.admissible, "admissible")
        for sample in self.samples:
            _require_time(sample.t_s, "samples t_s")
            _require_load(sample.observed, "samples observed")
            _require_load(sample.forecast, "samples forecast")
            _require_load(sample.peak, "samples peak")
        for surprise in self.surprises:
            _require_time(surprise.since_s, "surprises since_s")
            _require_time(surprise.until_s, "surprises until_s")
        if (loss := self.metrics_lost) is not None:
            _require_time(loss.since_s, "metrics_lost since_s")
            _require_load(loss.demand, "metrics_lost demand")
            _require_load(loss.growth_per_minute, "metrics_lost growth_per_minute")
        for stage, moved_at_s in self.stages_moved_at_s.items():
            _require_time(moved_at_s, f"stages_moved_at_s {stage}")
        _require_time(self.excess_excused_until_s, "excess_excused_until_s")
        _require_time(self.idle_since_s, "idle_since_s")
        _require_time(self.missed_since_s, "missed_since_s")
        _require_time(self.quiet_since_s, "quiet_since_s")
        _require_time(self.contradicted_since_s, "contradicted_since_s")
        _require_time(self.begun_s, "begun_s")
        _require_load(self.items_left, "items_left")
        _require_time(self.left_alone_since_s, "left_alone_since_s")
        _require_time(self.kept_away_since_s, "kept_away_since_s")
        _require_learned(self.learned)
        for name, batch in self.batches.items():
            require(1 <= batch <= LARGEST_BATCH, f"batches {name}", batch, f"must be 1 to {LARGEST_BATCH}")
        for rule in self.rules.values():
            _require_time(rule.clear_since_s, "rules clear_since_s")
            _require_time(rule.holds_since_s, "rules holds_since_s")
            _require_time(rule.ended_s, "rules ended_s")
            require(0 <= rule.returns <= 100, "rules returns", rule.returns, "must be 0 to 100")
        for key, since_s in self.uncreated_since_s.items():
            _require_time(since_s, f"uncreated_since_s {key}")
        for pod, since_s in self.closings.items():
            _require_time(since_s, f"closings {pod}")
        for key, turn in self.turns.items():
            _require_time(turn.at_s, f"turns {key}")
            _require_load(turn.lowest, f"turns {key}")
            _require_load(turn.highest, f"turns {key}")
            require(0 <= turn.turns <= 1000, f"turns {key}", turn.turns, "must be 0 to 1000")
        for conflict in self.conflicts.values():
            _require_time(conflict.changed_at_s, "conflicts changed_at_s")
        _require_diagnosis(self.diagnosis)

    @property
    def planned_demand(self) -> float | None:
        """Return the demand that the last cycle planned for, None if none was known."""
        return max((load for load in (self.demand, self.floor) if load is not None), default=None)


def _require_learned(learned: Learned) -> None:
    low, high = FACTOR_BOUNDS
    for name, factor in learned.service_factors.items():
        require(low <= factor <= high, f"service_factors {name}", factor, f"must be in {list(FACTOR_BOUNDS)}")
    for stage, ratio in learned.pass_ratios.items():
        require(0 < ratio <= MOST_PASSED, f"pass_ratios {stage}", ratio, f"must be in (0, {MOST_PASSED:g}]")
    for stage, share in learned.shares.cascade.items():
        require(0 <= share <= 1, f"shares.cascade {stage}", share, "must be in [0, 1]")
    for key, rate in learned.shares.prefix.items():
        require(0 <= rate <= 1, f"shares.prefix {key}", rate, "must be in [0, 1]")
    for stage, correction in learned.latency_corrections.items():
        _require_sane(correction, LATENCY_FACTORS, f"latency_corrections {stage}")
    for key, correction in learned.throughput_corrections.items():
        _require_sane(correction, THROUGHPUT_FACTORS, f"throughput_corrections {key}")
    _require_load(learned.overhead_s, "overhead_s")
    for placement, cv in learned.cvs.items():
        require(0 <= cv <= MOST_CV, f"cvs {placement}", cv, f"must be in [0, {MOST_CV:g}]")
    for key, prefill_s in learned.prefills_s.items():
        _require_load(prefill_s, f"prefills_s {key}")
    for key, startup_s in learned.startups_s.items():
        _require_load(startup_s, f"startups_s {key}")
    for what, sessions in (("session_slots", learned.session_slots), ("sessions_held", learned.sessions_held)):
        for key, count in sessions.items():
            require(1 <= count <= MOST_SLOTS, f"{what} {key}", count, f"must be 1 to {MOST_SLOTS:g}")
    for key, engines in learned.engines.items():
        require(1 <= engines <= MOST_ENGINES, f"engines {key}", engines, f"must be 1 to {MOST_ENGINES}")
    for key, limit in learned.receive_limits.items():
        _require_within(limit.packets_per_s, MOST_PACKETS_PER_S, f"receive_limits {key} packets_per_s")
        _require_within(limit.packets_per_item, MOST_PACKETS_PER_ITEM, f"receive_limits {key} packets_per_item")
        _require_time(limit.lost_at_s, f"receive_limits {key} lost_at_s")


def _require_diagnosis(memory: DiagnosisMemory) -> None:
    _require_time(memory.calm_since_s, "diagnosis calm_since_s")
    for which, baseline in (("baseline", memory.baseline), ("candidate", memory.candidate)):
        if baseline is not None:
            _require_baseline(baseline, f"diagnosis {which}")
    for switch in memory.switched:
        _require_time(switch.at_s, f"diagnosis switched {switch.stage}")
        for before, after in switch.wers.values():
            require(
                min(before, after) >= 0, f"diagnosis switched {switch.stage}", (before, after), "must be at least 0"
            )
        require(bool(switch.wers), f"diagnosis switched {switch.stage}", switch.wers, "must have a rate")
    for seen in memory.seen:
        _require_time(seen.seen_s, f"diagnosis seen {seen.finding.cause.value}")


def _require_baseline(baseline: Baseline, where: str) -> None:
    _require_time(baseline.at_s, f"{where} at_s")
    _require_load(baseline.overhead_s, f"{where} overhead_s")
    for stage, ratio in baseline.pass_ratios.items():
        require(0 < ratio <= MOST_PASSED, f"{where} pass_ratios {stage}", ratio, f"must be in (0, {MOST_PASSED:g}]")
    for stage, others in baseline.others.items():
        _require_load(others, f"{where} others {stage}")


def _require_within(value: float, most: float, where: str) -> None:
    require(0 < value <= most, where, value, f"must be above 0 and at most {most:g}")


def _require_load(load: float | None, where: str) -> None:
    require(load is None or 0 <= load <= ABSURD, where, load, f"must be 0 to {ABSURD:g}")


def _require_time(at_s: float | None, where: str) -> None:
    sane = at_s is None or -FURTHEST_S <= at_s <= FURTHEST_S
    require(sane, where, at_s, f"must be within {FURTHEST_S:g} s of the epoch")


def _require_sane(correction: Correction, bounds: tuple[float, float], where: str) -> None:
    low, high = bounds
    for value in (correction.factor, correction.smoothed):
        require(low <= value <= high, where, value, f"must be in {list(bounds)}")
    _require_time(correction.learned_at_s, f"{where} learned_at_s")
