import numpy as np
import pytest
from scipy import stats

from optimizer.latency.quantiles import gamma_quantile, mixture_percentile


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("percentile", [50.0, 95.0, 99.0])
def test_a_gamma_quantile_is_that_of_scipy(cv: float, percentile: float) -> None:
    exact = stats.gamma(1 / cv**2, scale=cv**2).ppf(percentile / 100)
    assert gamma_quantile(np.ones(1), np.array([cv**2]), percentile)[0] == pytest.approx(exact, rel=0.02)


def test_a_constant_time_is_its_own_percentile() -> None:
    assert gamma_quantile(np.array([2.0]), np.zeros(1), 95)[0] == 2.0


def test_a_mixture_lies_between_its_parts_and_follows_the_shares() -> None:
    shares = np.array([[1.0, 0.9, 0.1, 0.0], [0.0, 0.1, 0.9, 1.0]])
    quantiles, means = np.array([[1.0] * 4, [3.0] * 4]), np.array([[0.5] * 4, [1.5] * 4])
    answer = mixture_percentile(shares, quantiles, means, 95)
    assert answer[0] == pytest.approx(1.0)
    assert answer[3] == pytest.approx(3.0)
    assert 1.0 < answer[1] < answer[2] < 3.0


def test_a_mixture_of_lognormals_is_exact() -> None:
    one, two = stats.lognorm(0.5, scale=1.0), stats.lognorm(0.8, scale=2.0)
    answer = mixture_percentile(
        np.array([[0.3], [0.7]]),
        np.array([[one.ppf(0.95)], [two.ppf(0.95)]]),
        np.array([[one.mean()], [two.mean()]]),
        95,
    )[0]
    assert 0.3 * one.cdf(answer) + 0.7 * two.cdf(answer) == pytest.approx(0.95, abs=1e-5)
