from itertools import pairwise

import numpy as np
import pytest

from optimizer.latency.batching import (
    LEAST_LOADED,
    PULL,
    ROUND_ROBIN,
    Servers,
    erlang_c,
    own_distribution,
    time_in_stage,
)

UTILIZATION = np.linspace(0, 0.9, 31)


def curve(
    servers: float = 1.0,
    *,
    sharing: int = PULL,
    limit: int = 8,
    share: float = 0.2,
    cv: float = 0.3,
    arrival_cv: float = 1.0,
    percentile: float = 95,
) -> tuple[np.ndarray, np.ndarray]:
    count = len(UTILIZATION)
    return time_in_stage(
        [Servers(sharing=sharing, limit=limit, per_item_share=share, cv=cv)],
        np.zeros(count, dtype=np.int64),
        np.full(count, float(servers)),
        UTILIZATION,
        np.full(count, arrival_cv),
        percentile=percentile,
    )


def test_an_idle_server_takes_the_service_time() -> None:
    mean, quantile = curve(cv=0.0)
    assert (mean[0], quantile[0]) == (1.0, 1.0)
    mean, quantile = curve(cv=1.0)
    assert mean[0] == pytest.approx(1, abs=1e-6)
    assert quantile[0] == pytest.approx(np.log(20), rel=0.01)


@pytest.mark.parametrize("sharing", [PULL, LEAST_LOADED, ROUND_ROBIN])
@pytest.mark.parametrize("cv", [0.0, 0.15, 0.6])
def test_latency_rises_with_load(sharing: int, cv: float) -> None:
    for servers in (1, 6, 40):
        mean, quantile = curve(servers, sharing=sharing, cv=cv)
        assert np.all(np.diff(mean) >= -0.01 * mean[1:])
        assert np.all(np.diff(quantile) >= -0.02 * quantile[1:])
        assert np.all(quantile >= 0.97 * mean)


def test_a_limit_of_one_is_m_d_1_and_m_m_1() -> None:
    rho = UTILIZATION[1:]
    assert curve(limit=1, cv=0.0)[0][1:] == pytest.approx(1 + rho / (2 * (1 - rho)), rel=0.05)
    mean, quantile = curve(limit=1, cv=1.0)
    assert mean[1:] == pytest.approx(1 / (1 - rho), rel=0.06)
    assert quantile[1:] == pytest.approx(np.log(20) / (1 - rho), rel=0.06)


def test_more_servers_than_the_table_has_wait_less() -> None:
    quantiles = [curve(servers, limit=1, cv=0.3, percentile=99)[1][-1] for servers in (32, 64, 128, 512)]
    assert quantiles == sorted(quantiles, reverse=True)


def test_a_higher_percentile_is_later() -> None:
    at = [curve(4, percentile=percentile)[1] for percentile in (50, 75, 90, 95, 99)]
    assert all(np.all(high > low) for low, high in pairwise(at))


def test_one_queue_is_better_than_looking_without_batches() -> None:
    assert curve(8, limit=1, sharing=PULL)[1][-1] < curve(8, limit=1, sharing=LEAST_LOADED)[1][-1]


@pytest.mark.parametrize("limit", [1, 8])
def test_turns_make_arrivals_at_a_server_regular(limit: int) -> None:
    # Every fourth of Poisson's items: a coefficient of variation of a half.
    split = curve(4, sharing=ROUND_ROBIN, limit=limit)
    alone = curve(1, limit=limit, arrival_cv=0.5)
    assert split[0] == pytest.approx(alone[0], rel=0.05)
    assert split[1] == pytest.approx(alone[1], rel=0.06)
    assert curve(64, sharing=ROUND_ROBIN, limit=limit)[0][-1] < 0.97 * split[0][-1]


def test_bursts_and_varying_service_wait_longer() -> None:
    assert np.all(curve(arrival_cv=1.7)[1][8:] > curve(arrival_cv=1.0)[1][8:])
    assert np.all(curve(cv=0.8)[1] > curve(cv=0.3)[1])


@pytest.mark.parametrize("slack", [0.01, 0.5, 1.0, 2.0])
def test_erlang_c_of_many_servers_continues_that_of_few(slack: float) -> None:
    servers = np.array([10_000.0, 10_001.0, 6.4e7])
    counted, limit, most = erlang_c(servers, servers - slack * np.sqrt(servers))
    assert limit == pytest.approx(counted, rel=0.03)
    assert most == pytest.approx(limit, rel=0.03)


def test_erlang_c_is_the_textbook() -> None:
    # M/M/2 at ρ = 0.5: P(wait) = 1/3; one server: ρ.
    assert erlang_c(np.array([1.0, 2.0]), np.array([0.7, 1.0])) == pytest.approx([0.7, 1 / 3])


@pytest.mark.parametrize("cv", [0.04, 0.33, 1.0])
def test_service_times_are_gamma_distributed(cv: float) -> None:
    low, step, below = own_distribution(cv)
    times = np.exp(low + step * np.arange(len(below)))
    mass = np.diff(below)
    middle = (times[1:] + times[:-1]) / 2
    assert mass.sum() == pytest.approx(1, abs=0.01)
    assert mass @ middle == pytest.approx(1, rel=0.01)
    assert np.sqrt(mass @ (middle - 1) ** 2) == pytest.approx(cv, rel=0.03)
