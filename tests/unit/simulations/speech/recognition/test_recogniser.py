import numpy as np
import numpy.typing as npt
import pytest

from simulations.speech.recognition.encoder import VARIANTS, Model, Shape, weight_shapes
from simulations.speech.recognition.features import FRAME
from simulations.speech.recognition.recogniser import Recogniser
from simulations.speech.recognition.state_cache import StateCache

FRAMES = 48


def untrained(shape: Shape) -> Model:
    """Return a model with random weights of the usual sizes: equality must not depend on what was learned."""
    chance = np.random.default_rng(1)
    weights = {
        name: (np.ones(size) if name.endswith("norm") else chance.normal(0, size[0] ** -0.5, size)).astype(np.float32)
        for name, size in weight_shapes(shape).items()
    }
    return Model(shape, weights)


def recogniser(model: Model, slots: int = 4) -> Recogniser:
    return Recogniser(model, StateCache(model.shape, slots, idle_s=60.0, clock=lambda: 0.0))


def noise(sessions: int, frames: int = FRAMES, seed: int = 1) -> npt.NDArray[np.int16]:
    return np.random.default_rng(seed).normal(0, 2000, (sessions, frames * FRAME)).astype(np.int16)


@pytest.mark.parametrize("variant", VARIANTS)
def test_chunks_of_all_sizes_give_the_scores_of_the_whole_also_in_slots_used_before(variant: str) -> None:
    model, audio = untrained(VARIANTS[variant]), noise(3)
    whole = recogniser(model)
    for session in "abc":
        whole.cache.open(session)
    expected = whole.scores("abc", audio)
    chunked = recogniser(model)
    for frames in (1, 2, 4, 8, 16):
        for session in "abc":
            chunked.cache.open(session)
        step = frames * FRAME
        found = np.concatenate(
            [chunked.scores("abc", audio[:, begin : begin + step]) for begin in range(0, audio.shape[1], step)], axis=1
        )
        assert np.abs(found - expected).max() < 1e-4
        assert np.array_equal(found.argmax(axis=2), expected.argmax(axis=2))
        for session in "abc":
            chunked.cache.close(session)


def test_sessions_that_begin_and_end_at_different_times_do_not_disturb_each_other() -> None:
    model, audio = untrained(VARIANTS["small"]), noise(2)
    alone = recogniser(model)
    alone.cache.open("a")
    expected = alone.scores("a", audio[:1])
    shared, step, found = recogniser(model, slots=2), 4 * FRAME, []
    shared.cache.open("a")
    for number, begin in enumerate(range(0, audio.shape[1], step)):
        chunks = audio[:, begin : begin + step]
        if number % 3 == 1:
            shared.cache.open(f"b{number}")
        if number % 3:
            found.append(shared.scores(["a", f"b{number - number % 3 + 1}"], chunks)[:1])
        else:
            found.append(shared.scores(["a"], chunks[:1]))
        if number % 3 == 2:
            shared.cache.close(f"b{number - 1}")
    assert np.abs(np.concatenate(found, axis=1) - expected).max() < 1e-4


def test_a_session_goes_on_at_another_replica_as_if_it_had_stayed() -> None:
    model, audio = untrained(VARIANTS["tiny"]), noise(1)
    stayed, here, there = recogniser(model), recogniser(model), recogniser(model)
    for each in (stayed, here):
        each.cache.open("a")
    expected = stayed.scores("a", audio)
    half = FRAMES // 2 * FRAME
    first = here.scores("a", audio[:, :half])
    there.cache.restore("a", here.cache.export("a"))
    second = there.scores("a", audio[:, half:])
    assert np.abs(np.concatenate((first, second), axis=1) - expected).max() < 1e-4


def test_a_batch_has_one_chunk_of_a_session() -> None:
    found = recogniser(untrained(VARIANTS["tiny"]))
    found.cache.open("a")
    with pytest.raises(ValueError, match="sessions: one comes twice in a batch"):
        found.recognise(["a", "a"], noise(2))


@pytest.mark.parametrize("samples", [0, 100, FRAME + 1])
def test_chunks_are_whole_frames(samples: int) -> None:
    found = recogniser(untrained(VARIANTS["tiny"]))
    found.cache.open("a")
    with pytest.raises(ValueError, match=f"chunks: {samples} samples, must be a multiple of 640"):
        found.recognise(["a"], np.zeros((1, samples), dtype=np.int16))


def test_a_session_without_a_slot_is_named() -> None:
    with pytest.raises(KeyError, match="gone"):
        recogniser(untrained(VARIANTS["tiny"])).recognise(["gone"], noise(1))


def test_a_variant_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="variant: 'huge', must be one of tiny, small, large"):
        Model.load("huge")
