import pytest

from simulations.results.cost_breakdown import MEANINGS, CostBreakdown, CostPart, mean_breakdown


def a_breakdown(**usd: float) -> CostBreakdown:
    return CostBreakdown(parts={part: usd.get(part.value, 0.0) for part in CostPart})


def test_every_part_has_a_meaning() -> None:
    assert set(MEANINGS) == set(CostPart)


def test_the_whole_is_the_sum_also_of_negative_parts() -> None:
    found = a_breakdown(work=3.0, queues=1.0, held=-0.5)
    assert found.total == pytest.approx(3.5)
    assert found.share(CostPart.HELD) == pytest.approx(-0.5 / 3.5)
    assert a_breakdown().share(CostPart.WORK) is None


def test_the_mean_of_runs_needs_all_of_them() -> None:
    one, other = a_breakdown(work=1.0), a_breakdown(work=3.0, window=1.0)
    mean = mean_breakdown([one, other])
    assert mean is not None
    assert (mean.parts[CostPart.WORK], mean.parts[CostPart.WINDOW]) == (2.0, 0.5)
    assert mean_breakdown([one, None]) is None
    assert mean_breakdown([]) is None
