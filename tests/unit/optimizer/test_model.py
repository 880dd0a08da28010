"""Whole instances, and how often an item reaches a stage."""

import pytest
from problems import a_pipeline, a_stage, on

from optimizer.model import InvalidProblem, Stage, StageName, whole_instances


def stage(name: str, *after: str, pass_ratio: float = 1.0) -> Stage:
    return a_stage(name, on("cpu"), after=after, pass_ratio=pass_ratio)


def test_filters_and_fan_out_multiply_on_the_way() -> None:
    pipeline = a_pipeline(
        stage("vad", pass_ratio=0.5), stage("asr", "vad", pass_ratio=10.0), stage("lm", "asr"), stage("mood", "vad")
    )
    assert pipeline.visit_ratios == {"vad": 1.0, "asr": 0.5, "lm": 5.0, "mood": 0.5}


def test_a_stage_is_reached_once_only_where_no_stage_before_drops_or_multiplies() -> None:
    pipeline = a_pipeline(
        stage("vad"),
        stage("asr", "vad", pass_ratio=0.5),
        stage("rescore", "asr", pass_ratio=2.0),
        stage("lm", "rescore"),  # one visit per item on average, but none or two of each
        stage("mood", "vad", pass_ratio=3.0),
        stage("tags", "mood"),
    )
    assert pipeline.visit_ratios[StageName("lm")] == 1.0
    assert pipeline.once == {"vad", "asr", "mood"}


@pytest.mark.parametrize("ratio", [0.0, -1.0, 100.5])
def test_a_pass_ratio_is_above_0_and_at_most_100(ratio: float) -> None:
    with pytest.raises(InvalidProblem, match=r"stage a\.pass_ratio.*must be in \(0, 100\]"):
        stage("a", pass_ratio=ratio)
    assert stage("a", pass_ratio=100.0).pass_ratio == 100.0


@pytest.mark.parametrize(
    ("placements", "instances"),
    [
        ([], 0),
        ([(4, 0)], 0),
        ([(4, 1)], 1),
        ([(4, 5)], 2),
        ([(4, 2), (2, 1)], 1),
        ([(4, 2), (4, 2)], 1),
        ([(3, 1), (2, 1)], 2),
        ([(3, 1), (2, 1), (3, 1)], 3),
        ([(3, 1), (2, 0)], 1),
    ],
)
def test_replicas_take_whole_instances(placements: list[tuple[int, int]], instances: int) -> None:
    assert whole_instances(placements) == instances
