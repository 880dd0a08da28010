"""The objects of HPA and KEDA: the settings of a simulated policy, as each of them writes it."""

from dataclasses import replace

import pytest
from builders import a_placement, a_spec, a_stage

from controller.core.state.spec import PipelineSpec, PlacementSpec
from simulations.lab.cluster.deployments import UnsupportedManifest
from simulations.lab.rivals.objects import QUEUED, UTILIZATION, adapter_queries, hpa, scaled, scaled_object
from simulations.policies.hpa import HpaSettings
from simulations.policies.keda import KedaSettings


def bounded(pool: str, *, least: int, most: int) -> PlacementSpec:
    own = a_placement(pool)
    return replace(own, prior=replace(own.prior, min_replicas=least, max_replicas=most))


def pipeline(preset: str = "generic", *, least: int = 0) -> PipelineSpec:
    stage = a_stage("encoder", bounded("gpu", least=0, most=6), bounded("cpu", least=least, most=4))
    return a_spec(replace(stage, preset=preset))


def test_the_first_placement_is_scaled_and_keeps_a_replica_where_no_placement_has_a_minimum() -> None:
    (work,) = scaled(pipeline())
    assert (work.name, work.least, work.most) == (pipeline().stages[0].placements[0].target.name, 1, 6)
    (work,) = scaled(pipeline(least=2))
    assert work.least == 0


def test_a_stage_without_the_metrics_is_refused() -> None:
    with pytest.raises(UnsupportedManifest, match=r"stage encoder: metrics\.preset: 'triton': must be generic"):
        scaled(pipeline("triton"))


def test_an_hpa_has_a_target_for_each_metric_and_nothing_that_is_a_default() -> None:
    (work,) = scaled(pipeline())
    spec = hpa(work, HpaSettings(target_utilization=0.7))["spec"]
    (metric,) = spec["metrics"]
    assert metric["pods"]["metric"]["name"] == UTILIZATION
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "700m"}
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 6)
    assert "behavior" not in spec


def test_an_hpa_has_the_queue_as_its_second_metric_and_the_behavior_that_differs() -> None:
    (work,) = scaled(pipeline())
    spec = hpa(work, HpaSettings(target_queued=2.5, down_window_s=20.0, tolerance=0.05))["spec"]
    assert [each["pods"]["metric"]["name"] for each in spec["metrics"]] == [UTILIZATION, QUEUED]
    assert spec["metrics"][1]["pods"]["target"]["averageValue"] == "2500m"
    assert spec["behavior"] == {
        "scaleUp": {"tolerance": "0.05"},
        "scaleDown": {"stabilizationWindowSeconds": 20, "tolerance": "0.05"},
    }


def test_the_adapter_asks_for_the_window_of_the_settings() -> None:
    queries = adapter_queries(HpaSettings(metrics_window_s=5.0))
    assert queries.keys() == {UTILIZATION, QUEUED}
    assert all("[5s]" in query and "<<.LabelMatchers>>" in query for query in queries.values())


def test_a_scaled_object_asks_for_the_items_of_its_own_deployment() -> None:
    (work,) = scaled(pipeline())
    body = scaled_object(work, KedaSettings(target_ongoing=1.5, down_window_s=60.0), "http://127.0.0.1:9090")
    (trigger,) = body["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "1.5"
    assert f'app="{work.name}"' in trigger["metadata"]["query"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert (body["spec"]["minReplicaCount"], body["spec"]["maxReplicaCount"]) == (1, 6)
    behavior = body["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == {"scaleDown": {"stabilizationWindowSeconds": 60}}
