from typing import Any

import pytest
from corpus import PIPELINE, changed

from controller.resources.parsing import inspect
from controller.resources.pipeline import SpeechPipeline
from controller.resources.pipeline_rules import takes_from
from controller.resources.stage import Stage


def filters_blamed(*stages: tuple[str, list[str] | None, str]) -> list[str | int]:
    """Return the names of the stages, given as (name, after, passRatio), whose filter is inside a branch that joins."""
    template = PIPELINE["spec"]["stages"][2]
    made = []
    for name, after, ratio in stages:
        changes: dict[str, Any] = {"name": name, "after": after, "passRatio": ratio, "placements[0].target.name": name}
        made.append(changed(template, changes))
    _, found = inspect(SpeechPipeline, changed(PIPELINE, {"spec.stages": made}))
    return [stages[breach.path[2]][0] for breach in found if breach.path[3:] == ("passRatio",)]  # type: ignore[index]


def test_a_filter_in_a_chain_is_fine() -> None:
    assert filters_blamed(("a", None, "0.5"), ("b", None, "0.5"), ("c", None, "0.5")) == []


def test_a_filter_before_the_fork_or_behind_the_join_is_fine() -> None:
    stages = [("a", [], "0.5"), ("b", ["a"], "1"), ("c", ["a"], "1"), ("d", ["b", "c"], "0.5")]
    assert filters_blamed(*stages) == []


def test_a_filter_deep_in_a_branch_is_blamed() -> None:
    stages = [("a", [], "1"), ("b", ["a"], "1"), ("b2", ["b"], "0.5"), ("c", ["a"], "1"), ("d", ["b2", "c"], "1")]
    assert filters_blamed(*stages) == ["b2"]


def test_fan_out_is_blamed_like_a_filter() -> None:
    stages = [("a", [], "3"), ("b", ["a"], "1.5"), ("c", ["a"], "1"), ("d", ["b", "c"], "3")]
    assert filters_blamed(*stages) == ["b"]


def test_a_filter_behind_an_inner_join_is_in_a_branch_of_the_outer_one() -> None:
    stages = [
        ("a", [], "1"),
        ("b", ["a"], "1"),
        ("c", ["a"], "1"),
        ("inner", ["b", "c"], "0.5"),
        ("e", ["a"], "1"),
        ("outer", ["inner", "e"], "1"),
    ]
    assert filters_blamed(*stages) == ["inner"]


def test_a_filter_in_a_branch_that_never_joins_is_fine() -> None:
    assert filters_blamed(("a", [], "1"), ("b", ["a"], "0.5"), ("c", ["a"], "1")) == []


@pytest.mark.parametrize(("index", "names"), [(0, []), (1, ["a"]), (2, ["b"]), (3, ["a", "c"])])
def test_a_stage_takes_from_the_one_before_unless_it_says_otherwise(index: int, names: list[str]) -> None:
    template = PIPELINE["spec"]["stages"][2]
    after = {"a": None, "b": None, "c": None, "d": ["a", "c"]}
    stages = [Stage.model_validate(changed(template, {"name": name, "after": names})) for name, names in after.items()]
    assert takes_from(stages, index) == names
