"""`sluice speech`: which promises a run broke, and the files of the corpus."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from live_runs import a_run

from simulations.commands.speech import broken, speech, stated_wer
from simulations.lab.session.report import lab_result
from simulations.scenario.scenario import load_scenario
from simulations.speech.live.result import SpeechResult, Tier

GOOD = SpeechResult(
    wer=0.01,
    tiers=[
        Tier(variant="large", snr="8 dB", wer=0.02, words=100),
        Tier(variant="large", snr="30 dB", wer=0.0, words=100),
    ],
    p95=(),
    pass_ratio=(),
    cost_per_stream_hour=0.01,
    streams=4,
    streams_lost=0,
    moved_carried=0,
    moved_empty=0,
    sessions_cut=0,
)
CALM = replace(lab_result(a_run()).summary, replica_changes=3, cap_violations=0)


def test_a_good_run_broke_nothing() -> None:
    assert broken(CALM, GOOD, {"large": 0.015}) == []
    assert broken(CALM, GOOD, {}) == [], "nothing is stated"


def test_every_broken_promise_is_named() -> None:
    assert broken(replace(CALM, cap_violations=2), GOOD, {}) == ["spend was above the budget 2 times"]
    assert broken(replace(CALM, replica_changes=0), GOOD, {}) == ["the operator changed no replicas"]
    assert broken(CALM, replace(GOOD, streams_lost=1), {}) == ["1 streams were lost"]
    assert broken(CALM, replace(GOOD, sessions_cut=3), {}) == ["3 sessions were cut"]
    assert broken(CALM, replace(GOOD, wer=None, tiers=()), {"large": 0.1}) == ["no word was heard"]
    (words,) = broken(CALM, GOOD, {"large": 0.009})
    assert words == "large had a word error rate of 1.0%, above the 0.9% that its manifest states"


def test_the_limits_are_those_of_the_manifest() -> None:
    path = Path(__file__).parents[4] / "simulations" / "scenarios" / "speech" / "scenario.yaml"
    assert stated_wer(load_scenario(path, live=True).pipelines) == {"large": 0.02, "small": 0.025, "tiny": 0.08}


def test_the_corpus_is_written_and_described(tmp_path: Path) -> None:
    arguments = ["corpus", "--out", str(tmp_path / "c"), "--conversations", "1", "--seconds", "5"]
    result = CliRunner().invoke(speech, arguments)
    assert result.exit_code == 0, result.output
    assert "1 conversations of 5 s:" in result.output
    assert result.output.splitlines()[-1] == f"corpus: {tmp_path / 'c'}"
    assert (tmp_path / "c" / "conversation-000.wav").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["corpus"], "Missing option '--out'"),
        (["corpus", "--out", "x", "--seconds", "0"], "0.0 is not in the range"),
        (["corpus", "--out", "/proc/none", "--conversations", "1", "--seconds", "1"], "/proc/none"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(speech, arguments)
    assert result.exit_code != 0
    assert words in result.output
