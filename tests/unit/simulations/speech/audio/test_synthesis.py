import numpy as np
import pytest

from simulations.speech.audio.spoken import SAMPLE_RATE
from simulations.speech.audio.synthesis import Request, conversations
from simulations.speech.audio.texts import WORDS


def test_a_conversation_is_the_same_bytes_whatever_was_spoken_before() -> None:
    requests = [Request(seed=seed, duration_s=8.0) for seed in (1, 2, 3)]
    forwards = list(conversations(requests))
    backwards = list(conversations(reversed(requests), processes=1))[::-1]
    for one, other in zip(forwards, backwards, strict=True):
        assert one.samples.tobytes() == other.samples.tobytes()
        assert (one.words, one.active) == (other.words, other.active)
    assert len({each.samples.tobytes() for each in forwards}) == 3


def test_the_words_are_known_with_their_times() -> None:
    (spoken,) = conversations([Request(seed=4, duration_s=20.0)])
    assert spoken.duration_s == 20.0
    assert len(spoken.words) > 5
    assert all(word.text in WORDS for word in spoken.words)
    times = [time_s for word in spoken.words for time_s in (word.start_s, word.end_s)]
    assert times == sorted(times)
    for word in spoken.words:
        assert any(begin_s - 1e-6 <= word.start_s < word.end_s <= end_s + 1e-6 for begin_s, end_s in spoken.active)


def test_speech_is_where_it_is_said_to_be_and_noise_as_loud_as_asked() -> None:
    clean, noisy = conversations(Request(seed=5, snr_db=snr_db) for snr_db in (90.0, 10.0))
    assert clean.words == noisy.words
    active = np.zeros(len(clean.samples), dtype=bool)
    for begin_s, end_s in clean.active:
        active[round(begin_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)] = True
    speech = clean.samples.astype(float)
    noise = noisy.samples.astype(float) - speech
    assert np.abs(speech[~active]).max() < 10  # of 32,768
    snr_db = 10 * np.log10(np.mean(speech[active] ** 2) / np.mean(noise**2))
    assert snr_db == pytest.approx(10.0, abs=0.2)
    assert clean.activity == pytest.approx(np.mean(active), abs=1e-3)


def test_about_as_much_is_said_as_asked() -> None:
    shares = [each.activity for each in conversations(Request(seed=seed) for seed in range(12))]
    assert np.mean(shares) == pytest.approx(0.45, abs=0.08)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"duration_s": 0.0}, "duration_s: 0.0, must be above 0"),
        ({"activity": 1.0}, "activity: 1.0, must be above 0 and below 1"),
        ({"snr_db": float("nan")}, "snr_db: nan, must be finite"),
    ],
)
def test_a_request_out_of_range_is_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Request(seed=1, **wrong)
