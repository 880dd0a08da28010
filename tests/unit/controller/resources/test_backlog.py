"""`spec.demand.backlog`: what it becomes, and what is refused beside it."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from controller.core.state.spec import BacklogSpec, DemandUnit, PipelineSpec
from controller.resources.parsing import InvalidResource, parse
from controller.resources.pipeline import SpeechPipeline
from controller.resources.translate import pipeline_spec

ARCHIVE = """
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: archive, namespace: speech}
spec:
  priority: 1000000000
  demand:
    unit: Items
    backlog: {query: items_left, within: 48h, itemsPerReplica: {gpu: "1800"}}
  budget: {perHour: "12"}
  stages:
    - name: asr
      placements:
        - pool: gpu
          target: {apiVersion: apps/v1, kind: Deployment, name: asr-gpu}
          replicas: {min: 0, max: 20}
        - pool: spot
          target: {apiVersion: apps/v1, kind: Deployment, name: asr-spot}
          replicas: {min: 0, max: 20}
          serviceTime: {fixed: 1s}
"""


def archive(
    backlog: Mapping[str, object] | None = None, demand: Mapping[str, object] | None = None, **spec: object
) -> PipelineSpec:
    document: dict[str, Any] = yaml.safe_load(ARCHIVE)
    document["spec"] |= spec
    document["spec"]["demand"] |= demand or {}
    if backlog is not None:
        document["spec"]["demand"]["backlog"] |= backlog
    return pipeline_spec(parse(SpeechPipeline, document))


def test_items_are_the_unit_and_the_query_has_the_items_left() -> None:
    spec = archive()
    assert (spec.unit, spec.queries.demand) == (DemandUnit.ITEMS, "items_left")
    assert spec.backlog == BacklogSpec(within_s=48 * 3600.0)


def test_the_deadline_may_be_an_instant() -> None:
    found = archive({"within": None, "deadline": "2026-12-01T06:00:00Z", "sharesFragile": "Allowed"}).backlog
    assert found == BacklogSpec(deadline_s=1_796_104_800.0, shares_fragile=True)


def test_its_highest_priority_is_below_the_lowest_of_a_live_pipeline() -> None:
    assert archive().priority < 0
    assert archive(priority=0).priority < archive().priority


def test_items_per_replica_are_the_service_time_of_placements_that_state_none() -> None:
    gpu, spot = archive().stages[0].placements
    assert gpu.prior.law_rps(1) == pytest.approx(0.5)
    assert spot.prior.law_rps(1) == pytest.approx(1.0)
    assert gpu.declared.service


def test_an_empty_backlog_goes_to_zero_at_once_unless_the_user_says_otherwise() -> None:
    assert archive().scaling.idle_after_s == 0
    assert archive(scaling={"idleAfter": "10m"}).scaling.idle_after_s == 600


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backlog": {"within": None}}, "backlog.deadline: set either deadline or within"),
        ({"backlog": {"deadline": "2026-12-01T06:00:00Z"}}, "backlog.deadline: set either deadline or within"),
        ({"backlog": {"within": "721h"}}, "within: .*from 1m to 720h"),
        ({"backlog": {"itemsPerReplica": {"gpu": "0"}}}, "itemsPerReplica.*above 0"),
        ({"backlog": {"itemsPerReplica": {"tpu": "5"}}}, r"itemsPerReplica.*must name the pool of a placement"),
        ({"demand": {"query": "rate"}}, "query: .*not allowed beside it"),
        ({"demand": {"unit": "Requests"}}, "backlog: .*not allowed with another unit"),
        ({"demand": {"chunk": "1s"}}, "backlog: must have no chunk"),
        ({"demand": {"history": {}}}, "backlog: must have no chunk"),
        ({"sla": {"latency": "1s"}}, "sla: .*not allowed with"),
    ],
)
def test_what_contradicts_a_deadline_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidResource, match=message):
        archive(**change)


def test_without_a_backlog_the_sla_and_the_query_are_required() -> None:
    document = yaml.safe_load(ARCHIVE)
    document["spec"]["demand"] = {"unit": "Requests"}
    with pytest.raises(InvalidResource) as refused:
        parse(SpeechPipeline, document)
    assert "sla: " in str(refused.value)
    assert "demand.query: " in str(refused.value)
