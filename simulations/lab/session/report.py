"""The result of a lab run, computed from the ingress's records of items and the observer's records of the cluster.

The report in JSON and the page in HTML both show a `LabResult`. Nothing here does I/O. Times are seconds since the run
began, money is in USD.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from controller.core.state.spec import PipelineSpec
from optimizer.model import PipelineKey, PoolName, named_placement, placement_fields
from simulations.lab.session.decisions import LoggedDecision
from simulations.results import spending
from simulations.results.backlogs import BacklogResult, backlog_result
from simulations.results.diagnoses import Episode, episodes
from simulations.results.results import DecisionEntry, user_document
from simulations.results.run_times import in_run_times
from simulations.results.scoring import (
    Clock,
    Interval,
    Items,
    ItemScore,
    SlaChanges,
    Window,
    score_items,
    totals,
)
from simulations.results.spending import Observation
from simulations.results.users import Users, users_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """The records of a run, from which its result is computed.

    `began_s` is the begin of the run in seconds since the epoch; `interval_s` is the time between the operator's
    cycles. `faults` are the intervals of the scenario's faults. `sla_changes` are the SLAs that faults set during the
    run. `retries` counts items that were sent again because their pod was leaving or had vanished. `peak_instances` is
    the static allocation for the peak of the same load, in instances of each pool; None when no allocation can serve
    the peak, no service time is declared, or a pipeline has a backlog. `generator_lag_p99_s` is the lag of the load
    generator. The SLA of a pipeline with a backlog is the time to its deadline, which is in the time of the run.
    """

    scenario: str
    kubernetes: str
    clock: Clock
    began_s: float
    interval_s: float
    pipelines: tuple[PipelineSpec, ...]
    items: Mapping[PipelineKey, Items]
    faults: tuple[Interval, ...]
    sla_changes: Mapping[PipelineKey, SlaChanges]
    observations: Sequence[Observation]
    decisions: Sequence[LoggedDecision]
    sessions_cut: int
    retries: int
    peak_instances: Mapping[PoolName, float] | None
    generator_lag_p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabWindow:
    """One window of a run, over all pipelines: rates in items/s; spend and replicas are those at its end.

    Rates and `p95_s` are without backlogs, whose items wait.
    `p95_s` is the largest of the pipelines' 95th percentiles. `replicas` maps the stage and then the pool to the counts
    `desired` and `ready`; with several pipelines, a stage is named namespace/name/stage.
    """

    t_s: float
    offered_rps: float
    served_rps: float
    p95_s: float | None
    spend_per_hour: float
    replicas: Mapping[str, Mapping[str, Mapping[str, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSummary:
    """The totals of a run over all pipelines: the field `summary` of the report.

    `windows` is the number of scored windows, `sla_windows_met` the share of them that met the SLA, and
    `sla_windows_met_calm` the same share of those without a fault in or shortly before them; None without such windows.
    `sla_windows_met_admitted` is the share with shed items left out. Windows are those of pipelines without a backlog,
    items and costs those of all. Items: `offered` = `served` + `filtered` + `shed` + `refused` + `lost` + `in_flight`;
    `late` counts served ones. `cost` is what the scheduled replicas cost in the scored time, `static_peak_cost` what
    the static allocation for the peak costs (None: no allocation serves it, or there is a backlog). `replica_changes`
    is Σ|Δ desired| over the placements.
    """

    sla_windows_met: float | None
    sla_windows_met_calm: float | None
    sla_windows_met_admitted: float | None
    windows: int
    offered: int
    served: int
    late: int
    filtered: int
    shed: int
    refused: int
    lost: int
    in_flight: int
    sessions_cut: int
    retries: int
    cost: float
    static_peak_cost: float | None
    replica_changes: int
    cap_violations: int
    generator_lag_p99_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LabResult:
    """The result of a run, which the report in JSON and the page in HTML show."""

    scenario: str
    kubernetes: str
    windows: tuple[LabWindow, ...]
    decisions: tuple[DecisionEntry, ...]
    users: tuple[Users, ...]
    summary: LabSummary
    diagnosis: tuple[Episode, ...] = ()
    backlogs: tuple[BacklogResult, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON document, with the fields that `sluice lab run --report` promises."""
        return {
            "scenario": self.scenario,
            "kubernetes": self.kubernetes,
            "windows": [asdict(window) for window in self.windows],
            "decisions": [
                {
                    "t_s": decision.t_s,
                    "pipeline": decision.pipeline,
                    "changes": [
                        {
                            "stage": c.stage,
                            **placement_fields(named_placement(c.placement)),
                            "replicas": [c.before, c.after],
                        }
                        for c in decision.changes
                    ],
                    "reason": decision.reason,
                }
                for decision in self.decisions
            ],
            "diagnosis": [episode.to_json() for episode in self.diagnosis],
            "users": [user_document(users) for users in self.users],
            "backlogs": [asdict(backlog) for backlog in self.backlogs],
            "summary": asdict(self.summary),
        }


def lab_result(run: LiveRun) -> LabResult:
    """Return the result of a finished `run`."""
    by_key = item_scores(run)
    decisions = tuple(
        DecisionEntry(
            t_s=round(decision.now_s - run.began_s, 3),
            pipeline=decision.pipeline,
            changes=decision.changes,
            reason=in_run_times(decision.reason, run.began_s),
            causes=decision.causes,
        )
        for decision in run.decisions
    )
    return LabResult(
        scenario=run.scenario,
        kubernetes=run.kubernetes,
        windows=_windows(run, live_scores(run, by_key)),
        decisions=decisions,
        users=tuple(users_of(pipeline, by_key[pipeline.key], run.clock) for pipeline in run.pipelines),
        summary=_summary(run, by_key),
        diagnosis=episodes(
            ((entry.t_s, entry.pipeline, entry.causes) for entry in decisions),
            interval_s=run.interval_s,
            end_s=run.clock.duration_s,
        ),
        backlogs=tuple(
            backlog_result(pipeline, run.items[pipeline.key], run.observations, run.clock)
            for pipeline in run.pipelines
            if pipeline.backlog is not None
        ),
    )


def lab_windows(run: LiveRun) -> tuple[LabWindow, ...]:
    """Return only the windows of the result; `run` may still be in progress."""
    return _windows(run, live_scores(run, item_scores(run)))


def live_scores(run: LiveRun, scores: Mapping[PipelineKey, ItemScore]) -> list[ItemScore]:
    """Return those of `scores` that are of pipelines without a backlog."""
    return [scores[pipeline.key] for pipeline in run.pipelines if pipeline.backlog is None]


def item_scores(run: LiveRun) -> dict[PipelineKey, ItemScore]:
    """Return the score of the items of each pipeline."""
    return {
        pipeline.key: score_items(
            run.items[pipeline.key],
            pipeline.sla,
            run.clock,
            run.faults,
            changes=run.sla_changes.get(pipeline.key, ()),
        )
        for pipeline in run.pipelines
    }


def _summary(run: LiveRun, scores: Mapping[PipelineKey, ItemScore]) -> LabSummary:
    peak = run.peak_instances
    live = totals(live_scores(run, scores))
    of_live = {name: live[name] for name in ("windows", *(name for name in live if name.startswith("sla_")))}
    return LabSummary(
        **totals(list(scores.values())) | of_live,
        sessions_cut=run.sessions_cut,
        retries=run.retries,
        cost=spending.cost(run.observations, run.clock),
        static_peak_cost=None if peak is None else spending.cost_of_instances(run.observations, peak, run.clock),
        replica_changes=spending.replica_changes(run.observations, run.clock),
        cap_violations=sum(
            spending.cap_violations(
                run.observations, pipeline, interval_s=run.interval_s, duration_s=run.clock.duration_s
            )
            for pipeline in run.pipelines
        ),
        generator_lag_p99_s=run.generator_lag_p99_s,
    )


def _windows(run: LiveRun, scores: Sequence[ItemScore]) -> tuple[LabWindow, ...]:
    return tuple(_window(run, windows) for windows in zip(*(score.windows for score in scores), strict=True))


def _window(run: LiveRun, windows: Sequence[Window]) -> LabWindow:
    first = windows[0]
    seen = spending.at(run.observations, first.t_s + first.length_s)
    return LabWindow(
        t_s=first.t_s,
        offered_rps=sum(window.offered for window in windows) / first.length_s,
        served_rps=sum(window.served for window in windows) / first.length_s,
        p95_s=_worst_p95_s(windows),
        spend_per_hour=0.0 if seen is None else sum(seen.spend_per_hour.values()),
        replicas={} if seen is None else _replicas(run.pipelines, seen),
    )


def _worst_p95_s(windows: Sequence[Window]) -> float | None:
    """Return the largest 95th percentile of the windows with items; None where one of them has none."""
    with_items = [window.p95_s for window in windows if window.offered]
    return max((p95 for p95 in with_items if p95 is not None), default=None) if None not in with_items else None


def _replicas(pipelines: Sequence[PipelineSpec], seen: Observation) -> dict[str, dict[str, dict[str, int]]]:
    named: dict[str, dict[str, dict[str, int]]] = {}
    for (key, stage, pool), replicas in seen.placements.items():
        name = str(stage) if len(pipelines) == 1 else f"{key}/{stage}"
        named.setdefault(name, {})[str(pool)] = {"desired": replicas.desired, "ready": replicas.ready}
    return named
