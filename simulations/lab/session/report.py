"""The report of a lab run: what was offered, served and paid, window by window, from records of the ingress and from
what the observer saw of the cluster. Pure: times are seconds since the run began, money is USD."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.core.state.spec import PipelineSpec
from optimizer.model import PipelineKey, PoolName
from simulations.lab.session.decisions import LoggedDecision
from simulations.results import spending
from simulations.results.scoring import Clock, Interval, Items, ItemScore, SlaChanges, Window, score_items
from simulations.results.spending import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """All that a run left behind.

    `began_s` is when it began, in seconds since the epoch; `interval_s` is the time between the operator's cycles.
    `sla_changes` are the SLAs that the scenario's faults set meanwhile. `retries` counts items that were sent again,
    because the pod that had them left or vanished. `peak_instances` are those of each pool that would serve the peak of
    the same load, None when none can.
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


def build_report(run: LiveRun) -> dict[str, Any]:
    """Return the report as JSON, with the fields that `sluice lab run --report` promises."""
    scores = list(item_scores(run).values())
    windows = [window for score in scores for window in score.windows]
    return {
        "scenario": run.scenario,
        "kubernetes": run.kubernetes,
        "windows": _windows(run, scores),
        "decisions": [
            {
                "t_s": round(decision.now_s - run.began_s, 3),
                "pipeline": decision.pipeline,
                "changes": [
                    {"stage": c.stage, "pool": c.pool, "replicas": [c.before, c.after]} for c in decision.changes
                ],
                "reason": decision.reason,
            }
            for decision in run.decisions
        ],
        "summary": {
            "sla_windows_met": _share_met(windows),
            "sla_windows_met_calm": _share_met([window for window in windows if window.calm]),
            "windows": sum(score.scored_windows for score in scores),
            **{
                name: sum(getattr(score, name) for score in scores)
                for name in ("offered", "served", "filtered", "shed", "lost", "in_flight")
            },
            "sessions_cut": run.sessions_cut,
            "retries": run.retries,
            "cost": spending.cost(run.observations, run.clock),
            "static_peak_cost": None
            if run.peak_instances is None
            else spending.cost_of_instances(run.observations, run.peak_instances, run.clock),
            "replica_changes": spending.replica_changes(run.observations, run.clock),
            "cap_violations": sum(
                spending.cap_violations(
                    run.observations, pipeline, interval_s=run.interval_s, duration_s=run.clock.duration_s
                )
                for pipeline in run.pipelines
            ),
            "generator_lag_p99_s": run.generator_lag_p99_s,
        },
    }


def report_windows(run: LiveRun) -> list[dict[str, Any]]:
    """Return the report's windows alone, also while the run goes on."""
    return _windows(run, list(item_scores(run).values()))


def item_scores(run: LiveRun) -> dict[PipelineKey, ItemScore]:
    """Return the score of every pipeline's items."""
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


def _windows(run: LiveRun, scores: Sequence[ItemScore]) -> list[dict[str, Any]]:
    return [_window(run, windows) for windows in zip(*(score.windows for score in scores), strict=True)]


def _window(run: LiveRun, windows: Sequence[Window]) -> dict[str, Any]:
    first = windows[0]
    seen = spending.at(run.observations, first.t_s + first.length_s)
    return {
        "t_s": first.t_s,
        "offered_rps": sum(window.offered for window in windows) / first.length_s,
        "served_rps": sum(window.served for window in windows) / first.length_s,
        "p95_s": _worst_p95_s(windows),
        "spend_per_hour": 0.0 if seen is None else sum(seen.spend_per_hour.values()),
        "replicas": {} if seen is None else _replicas(run.pipelines, seen),
    }


def _worst_p95_s(windows: Sequence[Window]) -> float | None:
    """Return the largest of the pipelines' percentiles; None when one of those with items has none."""
    with_items = [window.p95_s for window in windows if window.offered]
    return max((p95 for p95 in with_items if p95 is not None), default=None) if None not in with_items else None


def _replicas(pipelines: Sequence[PipelineSpec], seen: Observation) -> dict[str, dict[str, dict[str, int]]]:
    """Return replicas by stage and pool; with several pipelines, a stage is named namespace/name/stage."""
    named: dict[str, dict[str, dict[str, int]]] = {}
    for (key, stage, pool), replicas in seen.placements.items():
        name = str(stage) if len(pipelines) == 1 else f"{key}/{stage}"
        named.setdefault(name, {})[str(pool)] = {"desired": replicas.desired, "ready": replicas.ready}
    return named


def _share_met(windows: Sequence[Window]) -> float | None:
    scored = [window.met for window in windows if window.met is not None]
    return sum(scored) / len(scored) if scored else None
