"""What a run of the reference service came to."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from live_runs import CAPTIONS, CLOCK, a_run, an_observation

from simulations.lab.session.report import lab_result
from simulations.lab.session.run import GENERATOR_REPORT, INGRESS_SUMMARY
from simulations.lab.session.view import Moment
from simulations.scenario.reference_service import ReferenceService
from simulations.speech.live.load import Errors, Heard, Passed
from simulations.speech.live.result import CLOSED_DOMAIN, Prediction, Predictions, SpeechResult, speech_result
from simulations.speech.recognition.errors import WordErrors

SERVICE = ReferenceService.model_validate(
    {
        "stages": [{"stage": "asr", "program": "asr"}],
        "noise": [{"at": "0s", "snr": "30"}, {"at": "20s", "snr": "8"}],
    }
)
HEARD = Heard(
    streams=5,
    streams_lost=0,
    streams_refused=0,
    stream_hours=0.1,
    outcomes={"served": 10},
    errors=(
        Errors(snr="8 dB", variant="tiny", errors=WordErrors(substitutions=4, words=40)),
        Errors(snr="30 dB", variant="tiny", errors=WordErrors(deletions=1, words=60)),
        Errors(snr="30 dB", variant="large", errors=WordErrors(words=100)),
    ),
    passed=tuple(Passed(second=second, answered=10, passed=6 if second < 20 else 10) for second in range(40)),
    p50_s=0.05,
    p95_s=0.1,
    p99_s=0.2,
)


@pytest.fixture
def found(tmp_path: Path) -> SpeechResult:
    (tmp_path / GENERATOR_REPORT).write_text(json.dumps({"heard": asdict(HEARD)}))
    totals = [{"moved_carried": 7, "moved_empty": 2}]
    (tmp_path / INGRESS_SUMMARY).write_text(json.dumps(totals))
    predictions = [Prediction(t_s=float(t), p95_s=0.2, pass_ratio=0.5 if t < 36 else 0.9) for t in range(-2, 40)]
    clock = replace(CLOCK, warmup_s=0.0)
    return speech_result(tmp_path, lab_result(replace(a_run(), clock=clock)), clock, SERVICE, predictions)


def test_word_errors_are_by_variant_and_noise_and_say_what_they_are(found: SpeechResult) -> None:
    assert found.wer == pytest.approx(5 / 200)
    assert [(own.variant, own.snr, own.wer) for own in found.tiers] == [
        ("large", "30 dB", 0.0),
        ("tiny", "30 dB", pytest.approx(1 / 60)),
        ("tiny", "8 dB", 0.1),
    ]
    assert found.wer_by_variant() == {"large": 0.0, "tiny": pytest.approx(0.05)}
    assert found.document()["note"] == CLOSED_DOMAIN
    assert CLOSED_DOMAIN in list(found.lines())
    assert CLOSED_DOMAIN in found.facts().sentences[0]
    json.dumps(found.document(), allow_nan=False)


def test_what_plans_predicted_stands_beside_what_was_measured(found: SpeechResult) -> None:
    assert len(found.p95) == 4
    for own in found.p95:
        assert (own.predicted, own.measured) == pytest.approx((0.2, 0.1))
    first, second = found.pass_ratio
    assert (first.what, second.what) == ("30 dB, 15 s to 20 s", "8 dB, 35 s to 40 s")
    assert (first.predicted, first.measured) == pytest.approx((0.5, 0.6))
    assert (second.predicted, second.measured) == pytest.approx((0.82, 1.0))
    text = "\n".join(found.lines())
    assert "p95, mean of windows: predicted 200 ms, measured 100 ms" in text
    assert "pass ratio in 8 dB, 35 s to 40 s: predicted 0.82, measured 1.00" in text
    assert "7 moves of streams between replicas with their state, 2 without, 3 cut; 0 streams lost." in text


def test_predictions_are_those_of_the_operator_and_missing_ones_are_none() -> None:
    predictions = Predictions(CAPTIONS, "vad")
    key = str(CAPTIONS)
    learned = {(key, "vad", "sluice_stage_pass_ratio"): 0.6, (key, "asr", "sluice_stage_pass_ratio"): 0.1}
    planned = {(key, "sluice_pipeline_planned_latency_seconds"): 0.3}
    predictions.follow(Moment(seen=an_observation(3.0), duration_s=40.0, stages=learned, totals=planned))
    predictions.follow(Moment(seen=an_observation(4.0), duration_s=40.0, stages={}, totals={}))
    assert predictions.found == [
        Prediction(t_s=3.0, p95_s=0.3, pass_ratio=0.6),
        Prediction(t_s=4.0, p95_s=None, pass_ratio=None),
    ]
