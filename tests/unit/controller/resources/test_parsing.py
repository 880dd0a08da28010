import re
from typing import Any

import pytest
from corpus import PIPELINE, POOL, REMOVED, changed

from controller.resources.parsing import InvalidResource, inspect_strictly, parse
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pool import ComputePool


def paths(data: dict[str, Any]) -> list[tuple[str | int, ...]]:
    return [breach.path for breach in inspect_strictly(SpeechPipeline, data)[1]]


def test_a_stored_object_of_a_newer_version_is_read() -> None:
    stored = changed(POOL, {"spec.colour": "red", "spec.price.perMinute": "1", "metadata.uid": "u", "metadata.new": 1})
    assert parse(ComputePool, stored).spec.price.per_hour == "0.34"


def test_a_stored_object_that_breaks_rules_says_all_of_them() -> None:
    stored = changed(PIPELINE, {"spec.sla.percentile": 5, "spec.stages[2].passRatio": "0.5"})
    with pytest.raises(InvalidResource) as caught:
        parse(SpeechPipeline, stored)
    assert "spec.sla.percentile: must be at least 50" in str(caught.value)
    assert "spec.stages[2].passRatio: must be 1 inside a branch that joins" in str(caught.value)


def test_a_status_of_another_version_does_not_make_the_spec_invalid() -> None:
    stored = changed(POOL, {"status": {"limit": "many"}})
    assert parse(ComputePool, stored).status is None


def test_a_status_survives_reading() -> None:
    status = {"observedGeneration": 2, "memory": {"version": 1, "samples": [[1.5, 2.5]]}}
    read = parse(SpeechPipeline, {**PIPELINE, "status": status}).status
    assert read is not None
    assert read.model_dump(by_alias=True, exclude_unset=True) == status


def test_mistakes_below_a_misspelt_field_are_found_where_they_are_written() -> None:
    placement = "spec.stages[2].placements[0]"
    data = changed(PIPELINE, {f"{placement}.replicas": REMOVED, f"{placement}.replica": {"min": 3, "max": 2, "mix": 1}})
    where = ("spec", "stages", 2, "placements", 0, "replica")
    assert sorted(paths(data)) == [where, (*where, "max"), (*where, "mix")]


def test_a_mistake_hides_only_the_rules_that_need_the_value() -> None:
    data = changed(PIPELINE, {"spec.stages[0].name": 5, "spec.stages[2].placements[0].serviceTime": {}})
    assert paths(data) == [
        ("spec", "stages", 0, "name"),
        ("spec", "stages", 2, "placements", 0, "serviceTime"),
    ]


def test_a_status_in_a_manifest_is_not_judged() -> None:
    assert paths({**PIPELINE, "status": {"nonsense": 1}}) == []


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        ({"family": "G"}, "spec.capacity.quota: is not the one of inf2.xlarge (price.aws), which is of family Inf"),
        ({"code": "L-DB2E81BA"}, "which is of family Inf"),
        ({"family": "Inf"}, None),
        ({"code": "L-0123ABCD"}, None),
    ],
)
def test_a_quota_is_the_one_of_the_instances(quota: dict[str, str], words: str | None) -> None:
    where = {"region": "us-east-1"}
    stored = changed(
        POOL,
        {
            "spec.price": {"aws": {"instanceType": "inf2.xlarge", **where}},
            "spec.capacity.quota": {**quota, **where},
        },
    )
    if words is None:
        assert parse(ComputePool, stored).spec.capacity.quota is not None
    else:
        with pytest.raises(InvalidResource, match=re.escape(words)):
            parse(ComputePool, stored)
