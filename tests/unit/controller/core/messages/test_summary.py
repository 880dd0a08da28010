"""The columns of `kubectl get`."""

from dataclasses import replace

import pytest
from builders import (
    ENCODER,
    ENCODER_GPU,
    NOW_S,
    VAD,
    a_placement,
    a_scaling,
    a_spec,
    a_stage,
    a_state,
    a_target,
    seen,
)
from explained import MISSING, blind_for, by_type, decision_of, growing
from planning import Planner

from controller.core.messages.explain import explain_pipeline
from controller.core.messages.summary import health, ready, summary
from controller.core.state.carry_over import DemandSample, FailureCause, PipelineMemory, PlacementFailure, PoolMemory
from controller.core.state.decision import PipelineDecision
from controller.core.state.snapshot import PipelineState
from profiler.samples import TOO_NEW


def test_the_columns_tell_health_demand_latency_limit_and_cost(planner: Planner) -> None:
    columns = summary(decision_of(growing(planner)).pipelines[0])
    assert columns["health"] == "Scaling"
    assert columns["demand"].endswith(" streams")
    assert columns["latency"] == "268 ms / 500 ms"
    assert columns["limitedBy"] == "-"
    assert columns["cost"] == "$2.50/h / $20.00/h"
    assert columns["replicas"] == "vad:4 encoder:2→4"


def test_a_composed_latency_is_labelled(planner: Planner) -> None:
    spec = a_spec(a_stage("vad", a_placement("cpu")))
    decision = decision_of(a_state(spec, replicas={VAD: 1}, samples={VAD: seen(latency_p95=0.04)})).pipelines[0]
    assert summary(decision)["latency"] == "40 ms (composed) / 500 ms"


@pytest.mark.parametrize(
    ("cause", "name"),
    [
        (FailureCause.FRAGMENTED, "Fragmented"),
        (FailureCause.CANNOT_START, "CannotStart"),
        (FailureCause.NOT_CREATED, "NotCreated"),
    ],
)
def test_the_health_is_not_ok_while_a_placement_cannot_deliver(
    planner: Planner, cause: FailureCause, name: str
) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    outage = PoolMemory(unavailable_until_s=NOW_S + 100, backoff_s=300.0, reason="pod-0: why")
    memory = PipelineMemory(failures={ENCODER: PlacementFailure(cause=cause, outage=outage)})
    decision = decision_of(a_state(replicas={VAD: 4, ENCODER: 4}, memory=memory)).pipelines[0]
    assert not decision.changes
    assert (health(decision).value, ready(decision)) == (name, True)


def test_the_health_is_not_ok_while_replicas_are_not_ready(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    waiting = a_target(4, ready=3, pending_since_s=[NOW_S - 20])
    decision = decision_of(a_state(replicas={VAD: 4, ENCODER: waiting})).pipelines[0]
    assert not decision.changes
    assert summary(decision)["health"] == "Scaling"


def new_replicas(state: PipelineState) -> PipelineState:
    """All replicas of the encoder became ready a moment ago."""
    encoder = seen(arrival_rate=TOO_NEW, completion_rate=TOO_NEW, latency_p95=TOO_NEW)
    return replace(state, samples={**state.samples, ENCODER: encoder})


def test_a_new_replica_has_no_samples_and_that_is_no_missing_metric(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 2}, runs_well=True)
    decision = decision_of(new_replicas(a_state(replicas={VAD: 4, ENCODER: 4}))).pipelines[0]
    found = by_type(decision)
    assert (found["MetricsAvailable"].status, found["MetricsAvailable"].reason) == ("True", "Prometheus")
    assert (found["Ready"].status, summary(decision)["health"]) == ("True", "OK")
    assert not decision.changes, "without data nothing is removed"
    assert "encoder: ready replicas are too new to have samples" in "\n".join(explain_pipeline(decision, NOW_S))


def test_a_pod_that_is_silent_beside_new_ones_is_a_missing_metric(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4})
    state = new_replicas(a_state(replicas={VAD: 4, ENCODER: 4, ENCODER_GPU: 1}))
    silent = {**state.samples, ENCODER_GPU: seen(arrival_rate=MISSING, completion_rate=MISSING)}
    decision = decision_of(replace(state, samples=silent)).pipelines[0]
    found = by_type(decision)["MetricsAvailable"]
    assert (found.status, found.reason) == ("False", "MetricsMissing")
    assert "arrivalRate on gpu" in found.message


def demand_line(decision: PipelineDecision) -> str:
    lines = explain_pipeline(decision, NOW_S)
    return next(line.strip() for line in lines if line.startswith("  demand "))


def with_samples(*samples: tuple[float, float], demand: float, observed: float = 34.0) -> PipelineState:
    """A pipeline that sees 34 requests/s; `samples` are pairs of age and forecast, and `demand` was planned before."""
    kept = tuple(DemandSample(t_s=NOW_S - age_s, observed=load, forecast=load) for age_s, load in samples)
    return a_state(demand=observed, replicas={VAD: 4, ENCODER: 4}, memory=PipelineMemory(samples=kept, demand=demand))


def test_a_demand_that_is_held_says_by_which_window_and_until_when(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4}, runs_well=True)
    line = demand_line(decision_of(with_samples((100.0, 53.0), (15.0, 34.0), demand=53.0)).pipelines[0])
    assert line == (
        "demand 53 requests/s (observed 34, forecast 34; held: the forecast was higher within "
        "scaling.scaleDown.stabilization of 300 s; it may fall at 1970-01-01T02:50:00Z)"
    )


def test_a_demand_that_follows_the_load_says_how_far_ahead_it_looks(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4}, runs_well=True)
    stages = (a_stage("vad", a_placement("cpu", startup_s=60.0)),)
    rising = tuple((300.0 - 15.0 * index, 20.0 + index) for index in range(20))
    state = replace(with_samples(*rising, observed=40.0, demand=39.0), spec=a_spec(*stages))
    decision = decision_of(replace(state, targets={VAD: a_target(4)})).pipelines[0]
    assert decision.demand.forecast is not None
    assert decision.demand.forecast > 40.0
    assert demand_line(decision).endswith("; what the load may reach until a new replica is ready, 75 s ahead)")


def test_a_demand_that_rises_later_and_one_without_metrics_say_so(planner: Planner) -> None:
    planner.wants({VAD: 4, ENCODER: 4}, runs_well=True)
    state = with_samples((60.0, 20.0), (15.0, 20.0), demand=20.0)
    slow = replace(state, spec=a_spec(scaling=a_scaling(up_s=120.0)))
    assert "scale-up waits: lowest forecast within scaling.scaleUp.stabilization of 120 s)" in demand_line(
        decision_of(slow).pipelines[0]
    )
    assert "; last known demand plus 2% safety margin while metrics are missing)" in demand_line(
        decision_of(blind_for(120.0)).pipelines[0]
    )
    as_observed = decision_of(with_samples(demand=34.0)).pipelines[0]
    assert demand_line(as_observed) == "demand 34 requests/s (observed 34, forecast 34)"
