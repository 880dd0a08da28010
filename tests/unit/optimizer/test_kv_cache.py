from dataclasses import replace

import numpy as np
import pytest

from optimizer.kv_cache import KvCacheShape, SessionGrowth, SwapSpace
from optimizer.model import InvalidProblem


def a_shape(**changes: float) -> KvCacheShape:
    """An 8B model in fp16 with 8 KV heads, 8 000 tokens a session, on a card of 80 GB."""
    values: dict[str, float] = {
        "layers": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "bytes_per_element": 2,
        "tokens_per_session": 8_000,
        "device_bytes": 80e9,
        "weight_bytes": 16e9,
        **changes,
    }
    return KvCacheShape(**values)  # type: ignore[arg-type]


def test_a_token_takes_a_key_and_a_value_per_layer_and_head() -> None:
    assert a_shape().bytes_per_token == 128 * 1024
    assert a_shape(kv_heads=32).session_bytes == 4_194_304_000


@pytest.mark.parametrize(
    ("changes", "slots"),
    [
        ({"device_bytes": 24e9}, 3),
        ({"device_bytes": 24e9, "weight_bytes": 8e9}, 11),
        ({"device_bytes": 24e9, "weight_bytes": 8e9, "kv_heads": 32}, 2),
        ({"device_bytes": 141e9, "kv_heads": 32}, 26),
        ({}, 51),
        ({"device_bytes": 141e9}, 104),
        ({"device_bytes": 24e9, "kv_heads": 32}, 0),
        ({"kv_heads": 32}, 12),
    ],
)
def test_sessions_fill_what_weights_and_activations_leave(changes: dict[str, float], slots: int) -> None:
    assert a_shape(**changes).session_slots == slots


def test_a_device_smaller_than_its_weights_holds_nothing() -> None:
    assert a_shape(device_bytes=8e9).session_slots == 0


def test_sessions_are_rounded_up_to_whole_blocks() -> None:
    assert a_shape(tokens_per_session=1).session_bytes == a_shape(tokens_per_session=16).session_bytes
    assert a_shape(tokens_per_session=17).session_bytes == a_shape(tokens_per_session=32).session_bytes


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(InvalidProblem, match="layers: 0: must be ≥ 1"):
        a_shape(layers=0)


def test_fewer_kv_heads_and_smaller_elements_take_less() -> None:
    assert a_shape().session_bytes * 4 == a_shape(kv_heads=32).session_bytes
    assert a_shape(bytes_per_element=1).session_bytes * 2 == a_shape().session_bytes
    assert a_shape(layers=80).bytes_per_token == 320 * 1024


@pytest.mark.parametrize(("device_bytes", "streams"), [(16e9, 30), (24e9, 53)])
def test_cross_attention_caps_the_streams_of_a_speech_model(device_bytes: float, streams: int) -> None:
    """A large encoder-decoder: 32 × 20 × 64, 1500 frames, 448 tokens."""
    shape = a_shape(
        kv_heads=20,
        head_dim=64,
        tokens_per_session=448,
        cross_frames=1500,
        device_bytes=device_bytes,
        weight_bytes=3.1e9,
    )
    assert shape.cross_bytes == 245_760_000
    assert shape.session_bytes == pytest.approx(319e6, rel=0.001)
    assert shape.session_slots == streams


def test_a_negative_length_of_the_encoder_output_is_refused() -> None:
    with pytest.raises(InvalidProblem, match="cross_frames"):
        a_shape(cross_frames=-1)


def growing(**changes: float) -> SessionGrowth:
    """Conversations of 6 minutes on average, with a few of an hour, which gain 900 tokens a minute."""
    values: dict[str, float] = {"tokens_per_s": 15.0, "length_s": 360.0, "length_cv": 1.3, **changes}
    return SessionGrowth(**values)  # type: ignore[arg-type]


def simulated(growth: SessionGrowth, slots: int, *, seed: int = 1, moments: int = 40_000) -> np.ndarray:
    """Tokens of `slots` sessions at random moments: a session that ends is followed by another in its slot."""
    rng = np.random.default_rng(seed)
    deviation = np.sqrt(np.log1p(growth.length_cv**2))
    lengths = rng.lognormal(np.log(growth.length_s) - deviation**2 / 2, deviation, (slots, 6_000))
    ends = np.cumsum(lengths, axis=1)
    # Far from the beginning, where all sessions are new, and before the first slot runs out of sessions.
    times = rng.uniform(0.3, 0.9, moments) * ends[:, -1].min()
    total = np.zeros(moments)
    for own, length in zip(ends, lengths, strict=True):
        shifted = times + rng.uniform(0, growth.length_s)  # sessions begin independently of one another
        index = np.searchsorted(own, shifted)
        tokens = growth.start_tokens + (shifted - own[index] + length[index]) * growth.tokens_per_s
        if growth.most_tokens is not None:
            tokens = np.minimum(tokens, growth.most_tokens)
        total += tokens
    return total


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"length_cv": 0.3},
        {"length_cv": 0.1},
        {"start_tokens": 2_000},
        {"most_tokens": 8_192},
        {"percentile": 90.0},
        {"length_cv": 2.0, "most_tokens": 32_768},
    ],
)
def test_as_many_growing_sessions_fit_as_a_simulation_finds(changes: dict[str, float]) -> None:
    growth = growing(**changes)
    mean, variance = growth.tokens()
    many = simulated(growth, 60)
    assert 60 * mean == pytest.approx(many.mean(), rel=0.03)
    assert (60 * variance) ** 0.5 == pytest.approx(many.std(), rel=0.15)
    cache = 60 * mean
    slots = growth.sessions_in(cache)
    assert np.mean(simulated(growth, slots) <= cache) >= growth.percentile / 100 - 0.01
    assert np.mean(simulated(growth, round(1.15 * slots)) <= cache) < growth.percentile / 100


def test_the_mean_of_a_session_is_no_measure_of_what_fits() -> None:
    """Length × growth: what a mean-based plan takes a session to hold. It runs out of memory most of the time."""
    growth = growing()
    naive = growth.tokens_per_s * growth.length_s
    cache = 40 * naive
    assert np.mean(simulated(growth, 40) > cache) > 0.5
    slots = growth.sessions_in(cache)
    assert slots < 40
    assert np.mean(simulated(growth, slots) > cache) < 0.015


def test_sessions_that_grow_take_the_place_of_a_fixed_number_of_tokens() -> None:
    fixed = a_shape(tokens_per_session=8_000).session_slots
    grown = replace(a_shape(), growth=growing(most_tokens=8_000)).session_slots
    assert grown > fixed, "most sessions are far from the most that they may have"
    assert replace(a_shape(device_bytes=17e9), growth=growing()).session_slots == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length_s": 0.0}, "length_s: 0.0: must be finite and > 0"),
        ({"start_tokens": 100, "most_tokens": 50}, "most_tokens: 50: must be ≥ start_tokens and 1"),
        ({"percentile": 100.0}, "percentile: 100.0: must be in"),
    ],
)
def test_growth_that_is_not_possible_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        growing(**changes)


def test_a_prefix_that_all_sessions_have_is_kept_once() -> None:
    """Of 8 000 tokens 4 000 are instructions: 0.52 GB for all, and as much for each session."""
    whole, shared = a_shape(), a_shape(shared_tokens=4_000)
    assert shared.session_bytes == 4_000 * whole.bytes_per_token
    free = 80e9 * 0.9 - 16e9 - 1.5e9
    assert shared.session_slots == (free - 4_000 * whole.bytes_per_token) // shared.session_bytes
    assert shared.session_slots > 2 * whole.session_slots - 2
    with pytest.raises(InvalidProblem, match="shared_tokens: 8001: must be at most 8000"):
        a_shape(shared_tokens=8_001)


def test_sessions_on_disk_are_beside_those_on_the_device() -> None:
    swap = SwapSpace(capacity_bytes=100e9, bytes_per_s=7e9, hit=0.9)
    shape = replace(a_shape(kv_heads=32), swap=swap)
    assert (shape.device_slots, shape.session_slots) == (12, 35)
    link = shape.swap_link
    assert link is not None
    assert link.item_s == pytest.approx(4_194_304_000 / 7e9)
    assert link.share == pytest.approx(0.1)
    assert replace(shape, swap=replace(swap, hit=1.0)).swap_link is None, "nothing comes back"
    assert a_shape().swap_link is None


def test_sessions_that_grow_come_back_with_the_tokens_of_a_random_moment() -> None:
    growth = SessionGrowth(tokens_per_s=10.0, length_s=600.0, length_cv=1.0, start_tokens=500)
    swap = SwapSpace(capacity_bytes=100e9, bytes_per_s=10e9, hit=0.5)
    alone = replace(a_shape(), growth=growth)
    both = replace(alone, swap=swap)
    assert both.session_slots > both.device_slots == alone.session_slots
    link = both.swap_link
    assert link is not None
    assert link.item_s == pytest.approx(growth.tokens()[0] * both.bytes_per_token / 10e9)


def test_where_all_sessions_held_the_mean_more_would_fit() -> None:
    growth = SessionGrowth(tokens_per_s=10.0, length_s=600.0, length_cv=1.0, start_tokens=500)
    shape = replace(a_shape(), growth=growth)
    assert shape.mean_slots == int(shape.most_tokens / growth.tokens()[0])
    assert shape.session_slots < shape.mean_slots
    assert a_shape().mean_slots == a_shape().session_slots, "without growth all hold the same"


@pytest.mark.parametrize(("field", "value"), [("capacity_bytes", 0.0), ("bytes_per_s", float("nan")), ("hit", 1.1)])
def test_a_swap_space_that_cannot_be_is_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidProblem, match=field):
        SwapSpace(**{"capacity_bytes": 1e9, "bytes_per_s": 1e9, "hit": 0.5, field: value})
