"""Partial, noisy and stale answers of Prometheus."""

import math
from statistics import fmean, stdev
from typing import Any

import pytest

from simulations.lab.faults.metric_faults import NoisyMetrics, PartialMetrics, StaleMetrics

RATES = "sum by (namespace, pod) (rate(requests_total[10s]))"


def everything(*_: object) -> bool:
    return True


def series(pod: str, value: str = "2", **labels: str) -> dict[str, Any]:
    return {"metric": {"namespace": "speech", "pod": pod, **labels}, "value": [1.0, value]}


def pods(count: int, workload: str = "asr") -> list[dict[str, Any]]:
    return [series(f"{workload}-5d9f7c6b8-{number:05d}") for number in range(count)]


def names(found: list[dict[str, Any]]) -> list[str]:
    return [one["metric"].get("pod", "") for one in found]


def test_about_the_share_of_the_pods_says_nothing_always_the_same_and_the_ingress_speaks() -> None:
    partial = PartialMetrics(chosen=everything, share=0.25, seed="1/0")
    ingress = {"metric": {}, "value": [1.0, "7"]}
    first = names(partial.changed_series(RATES, [*pods(400), ingress]))
    assert 401 - 130 < len(first) < 401 - 70
    assert "" in first
    assert names(partial.changed_series("another", [*pods(400), ingress])) == first
    assert names(PartialMetrics(chosen=everything, share=0.25, seed="1/1").changed_series(RATES, pods(400))) != first


def test_pods_that_are_not_meant_are_left_alone() -> None:
    partial = PartialMetrics(chosen=lambda _, labels: labels["pod"].startswith("asr"), share=1.0, seed="1")
    assert partial.changed_series(RATES, [*pods(2), *pods(2, "vad")]) == pods(2, "vad")


def test_noise_has_mean_one_and_the_variation_asked_for_and_is_one_factor_per_workload_and_query() -> None:
    noise = NoisyMetrics(chosen=everything, cv=0.3, seed="1/0")
    factors = []
    for number in range(2000):
        values = [float(one["value"][1]) for one in noise.changed_series(f"{RATES}#{number}", pods(2))]
        assert values[0] == values[1]
        factors.append(values[0] / 2)
    assert fmean(factors) == pytest.approx(1, abs=0.03)
    assert stdev(factors) == pytest.approx(0.3, rel=0.1)


def test_noise_moves_the_bounds_of_a_histogram_and_not_its_counts() -> None:
    noise = NoisyMetrics(chosen=everything, cv=0.3, seed="1/0")
    found = noise.changed_series(RATES, [series("asr-1-2", "5", le="0.1"), series("asr-1-2", "9", le="+Inf")])
    assert [one["value"][1] for one in found] == ["5", "9"]
    low, high = (float(one["metric"]["le"]) for one in found)
    assert low not in {0.1, math.inf}
    assert high == math.inf


def test_noise_makes_nothing_older() -> None:
    ages = "time() - max by (namespace, pod) (timestamp(up))"
    assert NoisyMetrics(chosen=everything, cv=0.3, seed="1").changed_series(ages, pods(1)) == pods(1)


def test_what_stands_still_is_asked_as_of_then_while_the_clock_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.lab.faults.metric_faults.time.time", lambda: 112.5)
    asked, at_s = StaleMetrics(since_s=100.0).changed_query("time() - max(timestamp(up))")
    assert (asked, at_s) == ("(time() + 12.500) - max(timestamp(up))", 100.0)
