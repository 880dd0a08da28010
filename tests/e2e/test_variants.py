"""Variants of a model on real servers: each is a Deployment, and a switch between them costs no item."""

from pathlib import Path

import pytest
from lab_runs import LabRun, lab_run

pytestmark = [pytest.mark.lab, pytest.mark.extended]

LIMIT_S = 50.0
"""When maxWer is set to 8 %: fp16 makes 7.8 % word errors, int8 8.1 %."""


@pytest.fixture(scope="module")
def run(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    return lab_run(scenarios / "variants.yaml", folder=tmp_path_factory.mktemp("variants"), must_be_punctual=False)


def ready(run: LabRun, t_s: float) -> dict[str, int]:
    """Return the ready replicas of the variants at a time of the run."""
    window = max((own for own in run.report["windows"] if own["t_s"] <= t_s), key=lambda own: own["t_s"])
    return {name: own["ready"] for name, own in window["replicas"]["asr"].items()}


def reasons(run: LabRun, words: str) -> list[str]:
    return [own["reason"] for own in run.report["decisions"] if words in own["reason"]]


def test_the_cheaper_variant_takes_over_and_the_decision_says_at_which_price(run: LabRun) -> None:
    before = ready(run, LIMIT_S - 5)
    assert before["gpu:int8"] > 0
    assert before["gpu:fp16"] == 0
    (first, *_) = reasons(run, "asr goes from gpu:fp16 to gpu:int8")
    assert "word error rate 7.8%→8.1%, no maxWer" in first


def test_the_limit_on_errors_brings_the_better_variant_back(run: LabRun) -> None:
    after = ready(run, 100.0)
    assert after["gpu:fp16"] > 0
    assert after["gpu:int8"] == 0
    (first, *_) = reasons(run, "asr goes from gpu:int8 to gpu:fp16")
    assert "word error rate 8.1%→7.8%, maxWer 8.0%" in first


def test_the_replicas_of_before_serve_until_the_new_ones_are_ready(run: LabRun) -> None:
    windows = [own for own in run.report["windows"] if own["t_s"] >= LIMIT_S - 10]
    assert all(own["served_rps"] > 0 and own["p95_s"] < 0.5 for own in windows)
    statuses = [seen.status for seen in run.seen if seen.status.get("stages")]
    placements = statuses[-1]["stages"][1]["placements"]
    assert [(own["pool"], own.get("variant")) for own in placements] == [("gpu", "fp16"), ("gpu", "int8")]
