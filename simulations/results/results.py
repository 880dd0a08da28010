"""The results of an experiment: runs seed by seed, means over seeds, and the JSON of `sluice simulate`.

A run is one policy in one tuning under one what-if and one seed. Reports show the mean over the seeds, with the lowest
and the highest. Times are seconds since a run began, rates are items/s, money is USD.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from simulations.results.cost_breakdown import CostBreakdown, mean_breakdown
from simulations.results.diagnoses import Episode, NamedCause
from simulations.results.users import Users, mean_users, share_as_promised


class Tuning(StrEnum):
    """The origin of a policy's settings."""

    DEFAULT = "default"
    TRAINED = "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSeries:
    """The replicas of one placement at the end of each window, and their mean cost over it in USD per hour."""

    stage: str
    placement: str
    desired: tuple[int, ...]
    ready: tuple[int, ...]
    cost_per_hour: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSeries:
    """One pipeline (`namespace/name`), window by window.

    The SLA is the one in force when a window begins; rates are of the items that arrive in the window. `p95_s` is None
    where it is infinite or there are no items, `met` where a window is not scored. `spend_per_hour` and
    `budget_per_hour` (None without a budget) are values at the end of the window, `cost_per_hour` is the mean over it.
    """

    pipeline: str
    sla_s: tuple[float, ...]
    percentile: tuple[float, ...]
    offered_rps: tuple[float, ...]
    served_rps: tuple[float, ...]
    filtered_rps: tuple[float, ...]
    shed_rps: tuple[float, ...]
    refused_rps: tuple[float, ...]
    lost_rps: tuple[float, ...]
    p95_s: tuple[float | None, ...]
    met: tuple[bool | None, ...]
    spend_per_hour: tuple[float, ...]
    cost_per_hour: tuple[float, ...]
    budget_per_hour: tuple[float | None, ...]
    placements: tuple[PlacementSeries, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeries:
    """The series of one run: one value per scored window. Window i is [t_s[i], t_s[i] + length_s[i]).

    `simulations.results.run_series` makes the series from scores and observations.
    """

    t_s: tuple[float, ...]
    length_s: tuple[float, ...]
    calm: tuple[bool, ...]
    pipelines: tuple[PipelineSeries, ...]
    price_per_hour: Mapping[str, tuple[float, ...]]
    """By pool: USD per hour of one whole instance."""
    receive_pressure: Mapping[str, Mapping[str, tuple[float | None, ...]]] = field(default_factory=dict)
    """By pipeline and stage: the highest reading in each window, None without one."""

    def __post_init__(self) -> None:
        for name, values in _named(self):
            if len(values) != len(self.t_s):
                raise ValueError(f"{name}: {len(values)} entries: must be one for each of the {len(self.t_s)} windows")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChange:
    """The replicas of one placement, before and after."""

    stage: str
    placement: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionEntry:
    """A decision that differs from the one before for the same pipeline (`namespace/name`), with its reason as text.

    `causes` are those of a missed SLA that it names. In a simulation each has the highest confidence of the cycles in
    which the decision stands; of a live run only the first of them is recorded.
    """

    t_s: float
    pipeline: str
    changes: tuple[PlacementChange, ...]
    reason: str
    causes: tuple[NamedCause, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of one policy, tuning, what-if and seed, over all pipelines.

    It has more than fifteen fields because it mirrors an entry of `runs` in the JSON. Shares are None without items or
    windows. Percentiles are nearest-rank; None where infinite, or without items. `seed` is the seed of the load.
    `windows` is the number of windows with enough items to be scored. `simulated_s` is the length of the run in
    simulated time, `wall_s` the time that the simulation took on this machine.
    `breakdown` has the parts of the cost, where they were asked for.
    """

    policy: str
    tuning: Tuning
    what_if: str | None
    seed: int
    cost: float
    windows: int
    sla_windows_met: float | None
    sla_windows_met_calm: float | None
    sla_windows_met_admitted: float | None
    within_sla_share: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    offered: int
    served: int
    late: int
    filtered: int
    shed: int
    refused: int
    lost: int
    in_flight: int
    sessions_cut: int
    out_of_memory: int
    replica_changes: int
    cap_violations: int
    simulated_s: float
    wall_s: float
    users: tuple[Users, ...]
    series: RunSeries
    decisions: tuple[DecisionEntry, ...]
    diagnosis: tuple[Episode, ...] = ()
    breakdown: CostBreakdown | None = None


MEASURES = tuple(
    measure.name
    for measure in fields(RunResult)
    if measure.name
    not in {"policy", "tuning", "what_if", "seed", "wall_s", "users", "series", "decisions", "diagnosis", "breakdown"}
)
"""The measures averaged over seeds, in the order of the JSON, but `wall_s`: it alone differs in a repeated run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundResult:
    """The clairvoyant bound of a what-if and seed: no schedule that meets the SLA in 99.5 % of the windows costs less.

    `cost` (USD) is None where no schedule meets the SLA in as many windows. `windows_share` is the share of the scored
    windows in which the bound's schedule meets it. `cost_per_hour` is the cost of that schedule in each window, None
    where `cost` is None.
    """

    what_if: str | None
    seed: int
    cost: float | None
    windows_share: float
    cost_per_hour: tuple[float, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck:
    """One check of the simulator: `simulated` ± `half_width` (99.9 %, from the means of batches) against `expected`.

    `expected` comes from a formula. `ok` says whether they agree.
    """

    name: str
    expected: float
    simulated: float
    half_width: float
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The runs of one policy, tuning and what-if over all seeds, in the order of the seeds."""

    results: tuple[RunResult, ...]
    bound: float | None
    """The mean of the bounds (USD) of the what-if over the seeds; None if a seed has no bound."""
    cost_over_bound_range: tuple[float, float] | None
    """The lowest and the highest ratio of a seed's cost to the same seed's bound; None if a seed has no bound."""

    @property
    def policy(self) -> str:
        """Return the policy's name, as in scenario files."""
        return self.results[0].policy

    @property
    def tuning(self) -> Tuning:
        """Return the origin of the policy's settings."""
        return self.results[0].tuning

    @property
    def what_if(self) -> str | None:
        """Return the name of the what-if; None for the scenario without changes."""
        return self.results[0].what_if

    @property
    def breakdown(self) -> CostBreakdown | None:
        """Return what the cost was spent on, as means over the seeds; None where that was not asked for."""
        return mean_breakdown(result.breakdown for result in self.results)

    @property
    def cost_over_bound(self) -> float | None:
        """Return the ratio of the mean cost to the mean bound; None without a bound, or where the bound is 0."""
        cost = self.mean("cost")
        return None if self.bound is None or not self.bound or cost is None else cost / self.bound

    @property
    def users(self) -> tuple[Users, ...]:
        """Return the users of each pipeline, as means over the seeds."""
        return mean_users([result.users for result in self.results])

    @property
    def served_as_promised(self) -> float | None:
        """Return the share (0–1) of the users that were served as promised; None without users."""
        return share_as_promised(self.users)

    @property
    def served_range(self) -> tuple[float, float] | None:
        """Return the lowest and the highest share of users served as promised of a seed; None if a seed has none."""
        shares = [share_as_promised(result.users) for result in self.results]
        known = [share for share in shares if share is not None]
        return (min(known), max(known)) if len(known) == len(shares) else None

    @property
    def scored_h(self) -> float:
        """Return the length of the scored time in hours, as the mean over the seeds."""
        return math.fsum(math.fsum(result.series.length_s) for result in self.results) / len(self.results) / 3600

    @property
    def cost_per_hour(self) -> float | None:
        """Return the mean cost in USD per hour of scored time; None where none was scored."""
        cost = self.mean("cost")
        return None if cost is None or not self.scored_h else cost / self.scored_h

    @property
    def breaks_caps(self) -> bool:
        """Return whether spend exceeded a cap without an excuse with any seed."""
        return any(result.cap_violations for result in self.results)

    def mean(self, measure: str) -> float | None:
        """Return the mean of one of MEASURES over the seeds; None if a seed has no value, or an infinite one."""
        return mean_or_none(self._values(measure))

    def range(self, measure: str) -> tuple[float, float] | None:
        """Return the lowest and the highest value of one of MEASURES over the seeds; None if a seed has no value."""
        values = self._values(measure)
        known = [value for value in values if value is not None]
        return (min(known), max(known)) if known and len(known) == len(values) else None

    def _values(self, measure: str) -> list[float | None]:
        return [getattr(result, measure) for result in self.results]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What is needed to repeat an experiment: the command, the versions, and the SHA-256 of every file read."""

    command: tuple[str, ...]
    versions: Mapping[str, str]
    sha256: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """All runs of a scenario, its bounds and the self-checks.

    `notes` say what was simulated otherwise than it is written, one sentence each.
    """

    scenario: str
    seeds: tuple[int, ...]
    results: tuple[RunResult, ...]
    bounds: tuple[BoundResult, ...]
    self_checks: tuple[SelfCheck, ...]
    provenance: Provenance
    notes: tuple[str, ...] = ()

    def runs(self) -> tuple[Run, ...]:
        """Return one `Run` for each policy, tuning and what-if, in the order of their first result."""
        order = {seed: index for index, seed in enumerate(self.seeds)}
        groups: dict[tuple[str, Tuning, str | None], list[RunResult]] = {}
        for result in self.results:
            groups.setdefault((result.policy, result.tuning, result.what_if), []).append(result)
        return tuple(
            self._run(tuple(sorted(group, key=lambda result: order[result.seed]))) for group in groups.values()
        )

    def bound_cost(self, what_if: str | None) -> float | None:
        """Return the mean bound (USD) of a what-if over the seeds; None if a seed has no bound."""
        return mean_or_none([bound.cost for bound in self.bounds if bound.what_if == what_if])

    @property
    def what_ifs(self) -> tuple[str | None, ...]:
        """Return the names of the what-ifs that were run; None is the scenario itself."""
        return tuple(dict.fromkeys(result.what_if for result in self.results))

    @property
    def trustworthy(self) -> bool:
        """Return whether the simulator agreed with theory in every self-check."""
        return all(check.ok for check in self.self_checks)

    def _run(self, results: tuple[RunResult, ...]) -> Run:
        what_if = results[0].what_if
        by_seed = {bound.seed: bound.cost for bound in self.bounds if bound.what_if == what_if}
        ratios = [result.cost / cost for result in results if (cost := by_seed.get(result.seed))]
        return Run(
            results=results,
            bound=self.bound_cost(what_if),
            cost_over_bound_range=(min(ratios), max(ratios)) if ratios and len(ratios) == len(results) else None,
        )


def dominates(one: Run, other: Run) -> bool:
    """Return whether `one` is nowhere worse than `other`, and better somewhere: in cost or in one of two SLA shares.

    The shares are those of the windows that meet the SLA and of the offered items that do, so shedding load is no
    advantage. False unless both have the same what-if and no cap violations.
    """
    if one.what_if != other.what_if or one.breaks_caps or other.breaks_caps:
        return False
    better = False
    for name, sign in (("cost", -1), ("sla_windows_met", 1), ("within_sla_share", 1)):
        own, others = one.mean(name), other.mean(name)
        if own is None or others is None or sign * own < sign * others:
            return False
        better |= own != others
    return better


def dominated_by(run: Run, runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return those of `runs` that dominate `run`."""
    return tuple(other for other in runs if dominates(other, run))


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if there are no values, or one of them is None or infinite."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known or len(known) < len(values):
        return None
    return math.fsum(known) / len(known)


def to_json(experiment: Experiment) -> dict[str, Any]:
    """Return the document that `sluice simulate -o json` prints.

    Each run has `spread`, the lowest and the highest value of each measure over the seeds, `dominated_by`, and
    `diagnosis`, the episodes of the causes of a missed SLA with every seed, and `breakdown`, the parts of its cost in
    USD, where they were asked for. Only `wall_s` differs when the same
    experiment is run again.
    """
    runs = experiment.runs()
    return {
        "scenario": experiment.scenario,
        "seeds": list(experiment.seeds),
        "bounds": [
            {
                "what_if": what_if,
                "cost": experiment.bound_cost(what_if),
                "windows_share": mean_or_none([b.windows_share for b in experiment.bounds if b.what_if == what_if]),
            }
            for what_if in dict.fromkeys(bound.what_if for bound in experiment.bounds)
        ],
        "runs": [_run_document(run, runs) for run in runs],
        "self_checks": [asdict(check) for check in experiment.self_checks],
        "notes": list(experiment.notes),
        "provenance": {
            "command": list(experiment.provenance.command),
            "versions": dict(experiment.provenance.versions),
            "sha256": dict(experiment.provenance.sha256),
        },
    }


def _run_document(run: Run, runs: Sequence[Run]) -> dict[str, Any]:
    document: dict[str, Any] = {"policy": run.policy, "tuning": run.tuning.value, "what_if": run.what_if}
    spread: dict[str, list[float] | None] = {}
    for measure in MEASURES:
        document[measure] = _whole(run.mean(measure))
        spread[measure] = _pair(run.range(measure))
        if measure == "cost":
            document["cost_over_bound"] = run.cost_over_bound
            spread["cost_over_bound"] = _pair(run.cost_over_bound_range)
    if (breakdown := run.breakdown) is not None:
        document["breakdown"] = {part.value: usd for part, usd in breakdown.parts.items()}
    document["users"] = [user_document(users) for users in run.users]
    document["diagnosis"] = [
        {"seed": result.seed, **episode.to_json()} for result in run.results for episode in result.diagnosis
    ]
    document["wall_s"] = mean_or_none([result.wall_s for result in run.results])
    document["spread"] = spread
    document["dominated_by"] = [
        {"policy": other.policy, "tuning": other.tuning.value} for other in dominated_by(run, runs)
    ]
    return document


def user_document(users: Users) -> dict[str, Any]:
    """Return the users of a pipeline as they are in JSON; `share` is that of the users served as promised."""
    return {**asdict(users), "unit": users.unit.value, "share": users.share, "kept": users.kept}


def _whole(value: float | None) -> float | int | None:
    """Return a whole number as an int, so that counts stay whole where all seeds agree."""
    return int(value) if value is not None and value.is_integer() else value


def _pair(values: tuple[float, float] | None) -> list[float] | None:
    return None if values is None else list(values)


def _named(series: RunSeries) -> Iterator[tuple[str, Sequence[object]]]:
    """Yield every sequence that must have an entry per window, with its name."""
    yield "length_s", series.length_s
    yield "calm", series.calm
    for pool, prices in series.price_per_hour.items():
        yield f"price_per_hour of {pool}", prices
    for pipeline in series.pipelines:
        for own in fields(pipeline):
            value = getattr(pipeline, own.name)
            if isinstance(value, tuple) and own.name != "placements":
                yield f"{own.name} of {pipeline.pipeline}", value
        for stage, pressures in series.receive_pressure.get(pipeline.pipeline, {}).items():
            yield f"receive_pressure of {pipeline.pipeline} {stage}", pressures
        for placement in pipeline.placements:
            place = f"{pipeline.pipeline} {placement.stage} on {placement.placement}"
            yield f"desired of {place}", placement.desired
            yield f"ready of {place}", placement.ready
            yield f"cost_per_hour of {place}", placement.cost_per_hour
