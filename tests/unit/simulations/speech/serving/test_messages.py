import numpy as np
import pytest

from simulations.speech.recognition.encoder import LABELS
from simulations.speech.serving.messages import Audio, Transcript, Utterance

TEXT = Transcript(variant="tiny", words=("call", "anna"), confidence=0.75, final=True)


def test_audio_comes_back_as_it_was() -> None:
    samples = np.arange(-640, 640, dtype=np.int16)
    for ends in (False, True):
        found = Audio.decode(Audio(samples, ends).encode())
        assert np.array_equal(found.samples, samples)
        assert found.ends is ends


def test_an_utterance_comes_back_with_its_scores_to_half_precision() -> None:
    scores = np.random.default_rng(1).normal(0, 5, (30, LABELS)).astype(np.float32)
    found = Utterance.decode(Utterance(TEXT, scores).encode())
    assert found.transcript == TEXT
    assert found.scores == pytest.approx(scores, rel=1e-3)
    assert found.scores.dtype == np.float32


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x00" + bytes(100), b"\x02" + bytes(1280), bytes(1280)])
def test_bytes_that_are_no_chunk_are_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match=f"chunk: {len(payload)} bytes, must be one flag"):
        Audio.decode(payload)


@pytest.mark.parametrize("payload", [b"", b"{}", b"[1]", b"\xff", b'{"words": [], "more": 1}'])
def test_bytes_that_are_no_transcript_are_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="transcript: "):
        Transcript.decode(payload)


def test_bytes_that_are_no_utterance_are_refused() -> None:
    whole = Utterance(TEXT, np.zeros((2, LABELS), dtype=np.float32)).encode()
    for cut in (b"", whole[:3], whole[:20], whole[:-1]):
        with pytest.raises(ValueError, match="utterance: "):
            Utterance.decode(cut)
