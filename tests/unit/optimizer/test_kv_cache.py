import pytest

from optimizer.kv_cache import KvCacheShape
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
