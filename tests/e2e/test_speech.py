"""Real speech on the lab: audio in, words out, with nothing declared of service times, start-up and memory."""

import json
from pathlib import Path

import pytest
from lab_runs import LabRun, lab_run

from simulations.speech.live.result import CLOSED_DOMAIN

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def run(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    return lab_run(scenarios / "speech.yaml", folder=tmp_path_factory.mktemp("speech"), must_be_punctual=False)


def planned_ratios(run: LabRun) -> dict[str, list[float]]:
    """Return the pass ratios of the recorded decisions, by stage."""
    found: dict[str, list[float]] = {}
    for line in run.operator_log.read_text().splitlines():
        record = json.loads(line).get("record")
        if record is None:
            continue
        for decision in record["decision"]["pipelines"].values():
            for stage in decision["profile"]["stages"]:
                found.setdefault(stage["name"], []).append(stage["pass_ratio"])
    return found


def test_words_are_heard_with_few_errors(run: LabRun) -> None:
    assert 0 <= run.summary["wer"] < 0.06
    speech = run.report["speech"]
    assert speech["note"] == CLOSED_DOMAIN
    assert sum(own["words"] for own in speech["tiers"]) > 300
    assert any("one stream, by large:" in line for _, line in run.lines)


def test_no_stream_is_lost_or_cut_when_all_move_and_they_take_their_state_along(run: LabRun) -> None:
    speech = run.report["speech"]
    assert (speech["streams_lost"], run.summary["sessions_cut"], run.summary["lost"]) == (0, 0, 0)
    assert speech["moved_carried"] >= 6, "the roll-out has replaced every replica"
    assert run.summary["cap_violations"] == 0


def test_the_operator_learns_what_nothing_declares(run: LabRun) -> None:
    stages = {stage["name"]: stage for stage in run.seen[-1].status["stages"]}
    # Of each stage, the lowest pass ratio that a plan used: the ratios come down from 1 as they are measured.
    lowest = {name: min(ratios) for name, ratios in planned_ratios(run).items()}
    assert 0.4 < lowest["vad"] < 0.97
    assert lowest["asr"] < 0.4
    placements = [stage["placements"][0] for stage in stages.values()]
    times = [placement.get("serviceTime", {}) for placement in placements]
    assert not any("priorSeconds" in time for time in times), "nothing is declared"
    # The status is as of the last write: by then the load of few streams may have told the law of one stage only.
    assert any(time.get("points") or float(time.get("fixedSeconds", 0)) > 0 for time in times)
    assert all(0 <= float(placement.get("startupSeconds", 0)) < 20 for placement in placements)


def test_what_was_predicted_stands_beside_what_was_measured(run: LabRun) -> None:
    speech = run.report["speech"]
    assert len(speech["p95"]) >= 3
    assert all(own["predicted"] > 0 and own["measured"] > 0 for own in speech["p95"])
    (ratio,) = speech["pass_ratio"]
    assert ratio["measured"] == pytest.approx(0.62, abs=0.12)
    assert speech["cost_per_stream_hour"] > 0
