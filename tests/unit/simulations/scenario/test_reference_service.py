"""The reference service in scenario files."""

from pathlib import Path

import pytest

from simulations.scenario.scenario import InvalidScenario, load_scenario

SPEECH = Path(__file__).parents[4] / "simulations" / "scenarios" / "speech"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in SPEECH.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def mistakes(folder: Path, old: str, new: str) -> list[str]:
    """Return what is wrong with the scenario once `old` is `new` in it."""
    path = folder / "scenario.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidScenario) as caught:
        load_scenario(path, live=True)
    return [str(finding).removeprefix(f"{path}:").split(": ", 1)[1] for finding in caught.value.findings]


def test_manifests_need_no_service_time_on_the_lab() -> None:
    scenario = load_scenario(SPEECH / "scenario.yaml", live=True)
    assert scenario.file.speech is not None
    assert scenario.file.speech.snr_db == [(0.0, 30.0), (115.0, 8.0), (160.0, 30.0)]
    manifest = (SPEECH / "captions.yaml").read_text()
    assert not any(field in manifest for field in ("serviceTime:", "startup:", "memory:", "passRatio:"))


def test_it_is_not_simulated() -> None:
    with pytest.raises(InvalidScenario, match=r"speech: .*only on the lab"):
        load_scenario(SPEECH / "scenario.yaml")


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("{stage: vad, program: vad", "{stage: vad2, program: vad", 'speech.stages[0].stage: "vad2": no such stage'),
        ("program: vad, detector: webrtc", "program: vda, detector: webrtc", "speech.stages[0].program"),
        ('program: asr, share: "0.1"', 'program: asr, detector: silero, share: "0.1"', "only vad has a detector"),
        ('program: rescore, share: "0.2"', "program: rescore, variant: tiny", "only asr has variants"),
        ("program: vad, detector: webrtc", "program: vad, keepsPast: true", "only sessions of asr can grow"),
        ('program: asr, share: "0.1"', 'program: asr, share: "0"', "must be above 0 and at most 1"),
        ("at: 115s", "at: 0s", "must be later than that of the entry before"),
        ("- {at: 0s,", "- {at: 1s,", "must be 0s"),
        ('snr: "8"', "snr: 8.5", "must be a whole number or a decimal in quotes"),
        ('snr: "8"', 'snr: "200"', "from -100 to 100"),
        ("handsOver: true", 'handsOver: true\nspeedSpread: "0.2"', 'speedSpread: "0.2": must be absent beside speech'),
        (
            "  - at: 165s",
            '  - {at: 5s, slowStage: {stage: asr, factor: "2"}}\n  - at: 165s',
            "must be absent beside speech",
        ),
    ],
)
def test_a_mistake_is_named_with_its_rule(folder: Path, old: str, new: str, mistake: str) -> None:
    assert any(mistake in found for found in mistakes(folder, old, new)), mistakes(folder, new, new)


def test_every_stage_has_a_program(folder: Path) -> None:
    old = '    - {stage: rescore, program: rescore, share: "0.2"}\n'
    assert any("must have rescore, a stage of the manifests" in found for found in mistakes(folder, old, ""))


def test_noise_may_be_louder_than_speech(folder: Path) -> None:
    path = folder / "scenario.yaml"
    path.write_text(path.read_text().replace('snr: "8"', 'snr: "-3.5"'))
    speech = load_scenario(path, live=True).file.speech
    assert speech is not None
    assert speech.snr_db[1] == (115.0, -3.5)
