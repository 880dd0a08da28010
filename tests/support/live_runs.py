"""Small live runs for tests of reports: one pipeline or several, observed once a second."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from builders import a_placement, a_spec, a_stage

from controller.core.state.spec import BacklogSpec, DemandUnit, PipelineSpec
from optimizer.model import PipelineKey, PlacementId, PoolName, StageName
from simulations.lab.session.decisions import LoggedDecision
from simulations.lab.session.report import LiveRun, lab_result
from simulations.results.diagnoses import NamedCause
from simulations.results.results import PlacementChange
from simulations.results.scoring import Clock, Items, Outcome
from simulations.results.spending import Observation, Replicas

CAPTIONS = PipelineKey("speech/captions")
CPU, GPU = PoolName("cpu"), PoolName("gpu")
ASR_CPU: PlacementId = (CAPTIONS, StageName("asr"), CPU)
ASR_GPU: PlacementId = (CAPTIONS, StageName("asr"), GPU)
CLOCK = Clock(duration_s=40.0, warmup_s=10.0, window_s=10.0)
WITH_THE_BEGIN = replace(CLOCK, warmup_s=0.0)
"""Scores the items of a backlog, which arrive at the begin, as well."""


def pipeline(name: str = "captions", *, drain_s: float = 4.0) -> PipelineSpec:
    spec = a_spec(a_stage("asr", a_placement("cpu"), a_placement("gpu")), name=name, budget=10.0)
    return replace(spec, scaling=replace(spec.scaling, drain_s=drain_s))


def items(outcome: Outcome = Outcome.SERVED, *, latency_s: float = 0.1, count: int = 400) -> Items:
    """Return `count` items that arrive evenly over the run, all with the same outcome."""
    return Items(
        arrival_s=np.linspace(0.0, CLOCK.duration_s, count, endpoint=False),
        latency_s=np.full(count, latency_s),
        outcome=np.full(count, outcome, dtype=np.uint8),
    )


def replicas(desired: int, *, ready: int | None = None) -> Replicas:
    ready = desired if ready is None else ready
    return Replicas(desired=desired, existing=desired, terminating=0, ready=ready, scheduled=desired)


def an_observation(
    t_s: float,
    placements: Mapping[PlacementId, Replicas] | None = None,
    *,
    spend: float = 5.0,
    budget: float = 10.0,
    prices: Mapping[PoolName, float] | None = None,
) -> Observation:
    placements = {ASR_CPU: replicas(2), ASR_GPU: replicas(0)} if placements is None else placements
    keys = {key for key, _, _ in placements}
    return Observation(
        t_s=t_s,
        placements=placements,
        spend_per_hour=dict.fromkeys(keys, spend),
        cost_per_hour=spend * len(keys),
        budget_per_hour=dict.fromkeys(keys, budget),
        price_per_hour=prices or {CPU: 1.0, GPU: 2.0},
    )


def observed(seen: Callable[[float], Observation] = an_observation) -> tuple[Observation, ...]:
    """Return an observation for every second of the run, beginning one second before it."""
    return tuple(seen(t_s) for t_s in np.arange(-1.0, CLOCK.duration_s + 1).tolist())


def a_decision(*, now_s: float, reason: str = "more demand", causes: tuple[NamedCause, ...] = ()) -> LoggedDecision:
    return LoggedDecision(
        now_s=now_s,
        pipeline=CAPTIONS,
        changes=(PlacementChange(stage="asr", placement="cpu", before=1, after=2),),
        reason=reason,
        causes=causes,
    )


def a_cause(*, confidence: float = 0.8, because: str | None = "Limit", stage: str | None = "asr") -> NamedCause:
    return NamedCause(
        cause="Queueing",
        because=because,
        stage=stage,
        confidence=confidence,
        evidence=("20 items wait before asr",),
        remedy="a higher limit",
        cost_per_hour=1.5,
    )


def a_run(
    *pipelines: PipelineSpec,
    items_of: Mapping[PipelineKey, Items] | None = None,
    observations: Sequence[Observation] | None = None,
    decisions: Sequence[LoggedDecision] = (),
    peak_instances: Mapping[PoolName, float] | None = None,
) -> LiveRun:
    pipelines = pipelines or (pipeline(),)
    return LiveRun(
        scenario="test",
        kubernetes="v1.36.3",
        clock=CLOCK,
        began_s=1_000_000.0,
        interval_s=2.0,
        pipelines=pipelines,
        items=items_of or {spec.key: items() for spec in pipelines},
        faults=(),
        sla_changes={},
        observations=observed() if observations is None else observations,
        decisions=decisions,
        sessions_cut=3,
        retries=5,
        peak_instances=peak_instances,
        generator_lag_p99_s=0.001,
    )


def a_run_with_a_backlog() -> LiveRun:
    """Return a run of captions, and of an archive with one replica: forty items at the begin, four done every 3 s."""
    spec = pipeline("archive")
    archive = replace(spec, unit=DemandUnit.ITEMS, backlog=BacklogSpec(within_s=35.0))
    on_cpu, on_gpu = ((archive.key, StageName("asr"), pool) for pool in (CPU, GPU))
    placements = {ASR_CPU: replicas(2), ASR_GPU: replicas(0), on_cpu: replicas(1), on_gpu: replicas(0)}
    done = Items(
        arrival_s=np.zeros(40),
        latency_s=np.repeat(3.0 * np.arange(1, 11), 4),
        outcome=np.full(40, Outcome.SERVED, dtype=np.uint8),
    )
    run = a_run(
        pipeline(),
        archive,
        items_of={CAPTIONS: items(), archive.key: done},
        observations=observed(lambda t_s: an_observation(t_s, placements)),
    )
    return replace(run, clock=WITH_THE_BEGIN)


def report_of(run: LiveRun) -> dict[str, Any]:
    """Return the report of a run in JSON."""
    return lab_result(run).to_json()
