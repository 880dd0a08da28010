"""Who speaks when, and what is made of all streams."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from simulations.lab.traffic.generator import GeneratorConfig, PipelineLoad
from simulations.scenario.schedule import Schedule
from simulations.speech.audio.spoken import SAMPLE_RATE, Conversation
from simulations.speech.live.load import SpeechConfig, heard, read_heard, report_of, snr_of, speeches
from simulations.speech.serving.client import StreamResult

TALK = Conversation(
    samples=np.zeros(10 * SAMPLE_RATE, dtype=np.int16), words=(), active=((1.0, 2.0), (5.0, 7.0)), snr_db=80.0
)
LOAD = PipelineLoad(port=1, schedule=Path("schedule.npz"), chunk_s=0.32, seed=3)


def test_streams_begin_before_an_utterance_and_not_all_at_once() -> None:
    schedule = Schedule(start_s=np.array([0.0] * 40), end_s=np.array([30.0, 200.0] * 20))
    found = speeches(schedule, LOAD, [TALK], first=7, duration_s=100.0)
    assert [own.number for own in found] == list(range(7, 47))
    assert {own.end_s for own in found} == {30.0, 100.0}
    assert all(0 <= own.start_s < 0.32 for own in found)
    assert len({own.start_s for own in found}) == 40
    assert {own.begin_s for own in found} == {0.7, 4.7}
    assert found == speeches(schedule, LOAD, [TALK], first=7, duration_s=100.0), "the same in every run"


def test_the_noise_of_a_time_is_that_of_the_last_step() -> None:
    snr_db = snr_of([(0.0, 30.0), (10.0, 8.0)])
    assert [snr_db(at_s) for at_s in (-1.0, 0.0, 9.9, 10.0, 99.0)] == [30.0, 30.0, 30.0, 8.0, 8.0]


def test_the_report_sums_over_streams(tmp_path: Path) -> None:
    one = StreamResult(
        number=0,
        outcomes=Counter(served=2, filtered=8),
        answered=Counter({0: 4, 1: 6}),
        passed=Counter({0: 2, 1: 6}),
        latencies=[(1.0, 0.1), (2.0, 0.3)],
        lags_s=[0.0, 0.001],
        said=[("call", "30 dB"), ("anna", "30 dB"), ("now", "8 dB")],
        heard=[("call", "large"), ("hanna", "large"), ("now", "tiny")],
        attempts=1,
    )
    lost = StreamResult(number=1, outcomes=Counter(unanswered=3), lost=1, attempts=2)
    refused = StreamResult(number=2, outcomes=Counter(refused=5), attempts=3)
    report = report_of([one, lost, refused], heard([one, lost, refused], 7200.0), 5.0)
    assert (report["sent"], report["lag_max_s"]) == (2, 0.001)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    found = read_heard(path)
    assert (found.streams, found.streams_lost, found.streams_refused, found.stream_hours) == (3, 1, 1, 2.0)
    assert found.outcomes == {"served": 2, "filtered": 8, "unanswered": 3, "refused": 5}
    assert {(own.snr, own.variant): own.errors.rate for own in found.errors} == {
        ("30 dB", "large"): 0.5,
        ("8 dB", "tiny"): 0.0,
    }
    assert found.total.rate == pytest.approx(1 / 3)
    assert [(own.second, own.answered, own.passed) for own in found.passed] == [(0, 4, 2), (1, 6, 6)]
    assert found.p95_s == pytest.approx(0.29)


def test_a_configuration_is_read_as_it_was_written_and_a_mistake_is_named() -> None:
    streams = GeneratorConfig(duration_s=10.0, drain_s=2.0, report=Path("r.json"), loads=(LOAD,))
    config = SpeechConfig(streams=streams, corpus=Path("corpus"), snr_db=((0.0, 30.0),))
    assert SpeechConfig.from_json(config.to_json()) == config
    with pytest.raises(ValueError, match="speech configuration"):
        SpeechConfig.from_json(config.to_json().replace('"corpus":', '"copus":'))
