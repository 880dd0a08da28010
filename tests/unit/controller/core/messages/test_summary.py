"""The columns of `kubectl get`."""

from builders import (
    VAD,
    a_placement,
    a_spec,
    a_stage,
    a_state,
    seen,
)
from explained import decision_of, growing
from planning import Planner

from controller.core.messages.summary import summary


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
