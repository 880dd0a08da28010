import pytest

from controller.resources.placement import Batching, KvCache


@pytest.mark.parametrize(
    ("data", "limits"), [({"max": 8}, (8,)), ({"sizes": [1, 4, 16]}, (1, 4, 16)), ({"max": 1, "wait": "5ms"}, (1,))]
)
def test_the_planner_chooses_among_sizes_or_takes_the_servers_maximum(
    data: dict[str, object], limits: tuple[int, ...]
) -> None:
    assert Batching.model_validate(data).limits() == limits


def test_a_kv_cache_is_passed_on_with_its_memory_in_bytes() -> None:
    data = {
        "layers": 32,
        "kvHeads": 8,
        "headDim": 128,
        "tokensPerSession": 2048,
        "deviceMemory": "24Gi",
        "weights": "16G",
    }
    shape = KvCache.model_validate(data).shape(swap=None)
    assert (shape.device_bytes, shape.weight_bytes) == (24 * 2**30, 16e9)
    per_session = 2 * 32 * 8 * 128 * 2 * 2048
    assert shape.session_slots == int((0.9 * 24 * 2**30 - 16e9 - 1.5e9) // per_session)
