from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from controller.core.totals import Replicas
from optimizer.model import PoolName
from optimizer.occupancy import whole_instances

GPU, CPU = PoolName("gpu"), PoolName("cpu")


def _draining(leaving: int, asked: int) -> int:
    return max(asked, 3) + leaving


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 9)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=12),
)
def test_counted_change_by_change_is_counted_whole(
    placements: list[tuple[int, int]], changes: list[tuple[int, int]]
) -> None:
    where = {index: (GPU, size) for index, (size, _) in enumerate(placements)}
    replicas = Replicas(
        {index: count for index, (_, count) in enumerate(placements)},
        where,
        taken={index: partial(_draining, index) for index in where},
    )
    for index, count in changes:
        if index in replicas:
            replicas[index] = count
    asked = [(size, replicas[index]) for index, (size, _) in enumerate(placements)]
    taken = [(size, _draining(index, replicas[index])) for index, (size, _) in enumerate(placements)]
    assert replicas.totals.instances(GPU) == whole_instances(asked)
    assert replicas.taken.instances(GPU) == whole_instances(taken)
    assert replicas.totals.instances(CPU) == 0


def test_what_is_taken_out_is_not_counted() -> None:
    replicas = Replicas({"a": 4, "b": 2}, {"a": (GPU, 4), "b": (GPU, 1)}, taken=dict.fromkeys("ab", int))
    del replicas["b"]
    assert replicas.totals.instances(GPU) == replicas.taken.instances(GPU) == 1
    assert dict(replicas) == {"a": 4}
