"""Real speech on the lab: audio in, words out, with nothing declared of service times, start-up and memory."""

from pathlib import Path

import pytest
from lab_runs import LabRun, lab_run

from simulations.speech.live.result import CLOSED_DOMAIN

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def run(scenarios: Path, tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    return lab_run(scenarios / "speech.yaml", folder=tmp_path_factory.mktemp("speech"), must_be_punctual=False)


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
    assert 0.4 < float(stages["vad"]["passRatio"]) < 0.8
    assert float(stages["asr"]["passRatio"]) < 0.3
    for stage in stages.values():
        placement = stage["placements"][0]
        assert "priorSeconds" not in placement["serviceTime"]
        assert float(placement["serviceTime"]["fixedSeconds"]) > 0 or placement["serviceTime"].get("points")
        assert 0 <= float(placement["startupSeconds"]) < 20


def test_what_was_predicted_stands_beside_what_was_measured(run: LabRun) -> None:
    speech = run.report["speech"]
    assert len(speech["p95"]) >= 3
    assert all(own["predicted"] > 0 and own["measured"] > 0 for own in speech["p95"])
    (ratio,) = speech["pass_ratio"]
    assert ratio["measured"] == pytest.approx(0.62, abs=0.12)
    assert speech["cost_per_stream_hour"] > 0
