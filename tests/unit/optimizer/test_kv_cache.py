from collections.abc import Callable

import pytest

from optimizer.kv_cache import (
    KvCacheShape,
    Prefill,
    decode_workers_per_prefill_worker,
    prefix_hit_share,
    swap_beats_recompute,
    transfer_s,
)
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


def a_prefill() -> Prefill:
    """An 8B model on a card of 312 TFLOP/s."""
    return Prefill(parameters=8e9, layers=32, width=4096, flops_per_s=312e12)


def test_a_long_prompt_takes_more_than_its_share() -> None:
    assert a_prefill().seconds(8000) == pytest.approx(0.928, rel=0.001)
    assert a_prefill().seconds(8000) > 16 * a_prefill().seconds(500)


def test_what_is_cached_need_not_be_read_but_is_looked_at() -> None:
    prefill = a_prefill()
    assert prefill.seconds(8000, cached_share=1.0) == 0
    tail = prefill.seconds(8000, cached_share=0.9)
    assert prefill.seconds(800) < tail < 0.2 * prefill.seconds(8000)
    assert prefill.seconds(8000, cached_share=0.9) == pytest.approx(prefill.seconds(8000) - prefill.seconds(7200))


@pytest.mark.parametrize(("prompt", "answer", "ratio"), [(500, 100, 0.69), (2000, 200, 0.46), (8000, 200, 0.21)])
def test_long_prompts_need_more_prefill_workers(prompt: int, answer: int, ratio: float) -> None:
    step = a_shape(tokens_per_session=prompt + answer // 2).decode_law(2.0e12)
    found = decode_workers_per_prefill_worker(
        prefill_s=a_prefill().seconds(prompt), output_tokens=answer, step_s=step.mean_s(32), batch=32
    )
    assert found == pytest.approx(ratio, abs=0.006)


def test_a_decoding_step_reads_the_weights_once_and_each_cache() -> None:
    law = a_shape().decode_law(1e12)
    assert law.mean_s(1) == pytest.approx((16e9 + 1.048576e9) / 0.7e12)
    assert law.mean_s(51) < 51 * law.mean_s(1) / 4


@pytest.mark.parametrize(
    ("kv_heads", "bandwidth", "seconds", "swap"),
    [
        (32, 7e9, 0.600, True),
        (32, 25e9, 0.169, True),
        (32, 1e9, 4.2, False),
        (8, 7e9, 0.151, True),
        (8, 25e9, 0.043, True),
        (8, 1e9, 1.05, False),
    ],
)
def test_a_local_disk_beats_computing_anew_and_a_network_disk_does_not(
    kv_heads: int, bandwidth: float, seconds: float, *, swap: bool
) -> None:
    size = a_shape(kv_heads=kv_heads).session_bytes
    assert transfer_s(size, bandwidth) == pytest.approx(seconds, rel=0.01)
    assert swap_beats_recompute(size, bandwidth, a_prefill().seconds(8000)) is swap


def test_prefixes_are_found_again_where_the_session_stays() -> None:
    assert prefix_hit_share(8, 0.6, sticky=True) == 0.6
    assert prefix_hit_share(8, 0.6, sticky=False) == pytest.approx(0.075)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: a_prefill().seconds(-1), "tokens"),
        (lambda: a_prefill().seconds(10, cached_share=1.5), "cached_share"),
        (lambda: a_shape().decode_law(0.0), "bandwidth_bytes_per_s"),
        (lambda: transfer_s(1.0, 0.0), "bandwidth_bytes_per_s"),
        (lambda: prefix_hit_share(0, 0.5, sticky=True), "workers"),
        (lambda: a_shape(cross_frames=-1), "cross_frames"),
    ],
)
def test_what_cannot_be_meant_is_refused(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        ask()
