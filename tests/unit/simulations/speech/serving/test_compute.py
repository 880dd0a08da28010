import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.speech.serving.compute import PERIOD_S, Share, Stretched, Throttled


def ends(share: Share, works_s: list[float], *, gap_s: float = 0.0) -> list[tuple[float, float]]:
    """Return begin and end of each work, which follow each other with gaps."""
    now_s, found = 0.0, []
    for cpu_s in works_s:
        end_s = share.end_s(now_s, cpu_s)
        found.append((now_s, end_s))
        now_s = end_s + gap_s
    return found


def test_a_stretched_replica_is_evenly_slower() -> None:
    assert [end_s for _, end_s in ends(Stretched(0.25), [0.01, 0.02])] == pytest.approx([0.04, 0.12])


def test_a_throttled_replica_runs_at_full_speed_and_then_stands_still() -> None:
    found = ends(Throttled(0.25), [0.01, 0.01, 0.01, 0.01])
    # 25 ms of each 100 ms: two and a half works, the rest of the third in the next period.
    assert [end_s for _, end_s in found] == pytest.approx([0.01, 0.02, 0.105, 0.115])


def test_work_longer_than_a_quota_takes_several_periods() -> None:
    assert Throttled(0.25).end_s(0.0, 0.06) == pytest.approx(0.21)


def test_what_was_not_used_of_a_period_is_lost() -> None:
    share = Throttled(0.1)
    share.end_s(0.0, 0.001)
    assert share.end_s(0.35, 0.012) == pytest.approx(0.402)


@given(
    st.lists(st.floats(0.0001, 0.05), min_size=1, max_size=40),
    st.floats(0.05, 1.0),
    st.sampled_from((0.0, 0.003, 0.07)),
)
def test_no_period_has_more_than_its_quota_and_the_long_run_is_the_same(
    works_s: list[float], share: float, gap_s: float
) -> None:
    found = ends(Throttled(share), works_s, gap_s=gap_s)
    assert all(end_s - begin_s >= cpu_s - 1e-9 for (begin_s, end_s), cpu_s in zip(found, works_s, strict=True))
    assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(found))
    if not gap_s:
        total_s = sum(works_s)
        stretched_s = ends(Stretched(share), works_s)[-1][1]
        assert stretched_s - PERIOD_S <= found[-1][1] <= stretched_s + 1e-6 or share == 1
        assert found[-1][1] >= total_s - 1e-9


@pytest.mark.parametrize("kind", [Stretched, Throttled])
@pytest.mark.parametrize("share", [0.0, 1.1, float("nan")])
def test_a_share_is_a_part_of_a_core(kind: type[Stretched] | type[Throttled], share: float) -> None:
    with pytest.raises(ValueError, match=r"share: .*must be above 0 and at most 1"):
        kind(share)


def test_a_quota_counts_its_periods_as_the_kernel_does() -> None:
    quota = Throttled(0.2)
    quota.end_s(0.0, 0.01)  # half of the quota of one period
    assert (quota.periods, quota.throttled) == (1, 0)
    quota.end_s(0.05, 0.05)  # the other half, two whole ones that are stopped too
    assert (quota.periods, quota.throttled) == (3, 2)
    quota.end_s(0.29, 0.01)  # nothing is left of the third period: it is stopped
    assert (quota.periods, quota.throttled) == (4, 3)
    quota.end_s(0.5, 0.001)
    assert (quota.periods, quota.throttled) == (5, 3), "a period without work does not count"


def test_a_whole_core_is_never_throttled() -> None:
    quota = Throttled(1.0)
    quota.end_s(0.03, 0.5)
    assert (quota.periods, quota.throttled) == (6, 0)
