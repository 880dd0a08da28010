import numpy as np
import pytest

from optimizer.batching import Batching, erlang_c, gamma_points, latency_curve


def test_an_idle_server_takes_the_service_time() -> None:
    curve = latency_curve(Batching(per_item_share=0.2, cv=0.0, limit=8), 95)
    assert (curve.utilization[0], curve.mean[0], curve.percentile[0]) == (0.0, 1.0, 1.0)


def test_latency_rises_with_load() -> None:
    curve = latency_curve(Batching(per_item_share=0.2, cv=0.3, limit=8), 95)
    assert np.all(np.diff(curve.mean) >= 0)
    assert np.all(np.diff(curve.percentile) >= 0)
    assert np.all(curve.percentile >= curve.mean)


def test_a_limit_of_one_is_m_d_1() -> None:
    curve = latency_curve(Batching(per_item_share=0.5, cv=0.0, limit=1), 95)
    rho = curve.utilization[1:]
    assert curve.mean[1:] == pytest.approx(1 + rho / (2 * (1 - rho)), rel=0.03)


def test_a_higher_percentile_is_later() -> None:
    batching = Batching(per_item_share=0.2, cv=0.3, limit=8)
    assert np.all(latency_curve(batching, 99).percentile > latency_curve(batching, 95).percentile)


def test_sharing_helps_and_seeing_the_queues_helps_more() -> None:
    alone, blind, aware = (
        latency_curve(Batching(per_item_share=0.5, cv=0.5, limit=8, servers=servers, aware=aware), 95).percentile[-1]
        for servers, aware in ((1, False), (8, False), (8, True))
    )
    assert alone > blind > aware


def test_bursts_wait_longer() -> None:
    poisson, bursty = (
        latency_curve(Batching(per_item_share=0.2, cv=0.2, limit=8, arrival_cv2=ca2), 95).percentile[4]
        for ca2 in (1.0, 3.0)
    )
    assert bursty > poisson


def test_erlang_c_is_the_textbook() -> None:
    # M/M/2 at ρ = 0.5: P(wait) = 1/3; one server: ρ.
    assert erlang_c(np.array([1.0, 2.0]), np.array([0.7, 1.0])) == pytest.approx([0.7, 1 / 3])


def test_gamma_points_keep_mean_and_variance() -> None:
    nodes, weights = gamma_points(0.5, 3)
    assert weights.sum() == pytest.approx(1)
    assert nodes @ weights == pytest.approx(1)
    assert (nodes - 1) ** 2 @ weights == pytest.approx(0.25)
