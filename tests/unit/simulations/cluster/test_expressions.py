"""The presets' expressions over simulated pods: none missing, and each with the number that its PromQL has."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from profiler.samples import Quantity
from profiler.sources.combine import histogram_variation
from profiler.sources.presets import Combine, load_presets
from simulations.cluster.expressions import EXPRESSIONS, FIRST_TOKEN, Counter, Level, PodSamples
from simulations.cluster.scrapes import ScrapeHistory
from simulations.engine.state import LATENCY_BOUNDS_S
from simulations.results.histogram import VLLM_FIRST_TOKEN_S, WORKER_LATENCY_S

PRESETS = load_presets()
BOUNDS_S = np.array([0.05, 0.1, 0.2])


def pods() -> PodSamples:
    """One pod, 60 s: 20 items/s in batches of 4 that take 0.1 s each; 2 wait, 4 run, 50 sessions; 1 item/s and
    0.5 sessions/s refused."""
    made = ScrapeHistory(keep_s=100.0, counters=len(Counter) + 4, levels=len(Level))
    for t_s in range(91):
        counters = {
            Counter.ARRIVED: 21 * t_s,
            Counter.REFUSED: t_s,
            Counter.COMPLETED: 20 * t_s,
            Counter.BATCHES: 5 * t_s,
            Counter.BUSY_S: 0.5 * t_s,
            Counter.SERVICE_S: 2.0 * t_s,
            Counter.LATENCY_S: 3.0 * t_s,
            Counter.REFUSED_SESSIONS: 0.5 * t_s,
        }
        buckets = [0.0, 10.0 * t_s, 10.0 * t_s, 0.0]
        levels = {Level.QUEUED: 2.0, Level.IN_SERVICE: 4.0, Level.SESSIONS: 50.0}
        made.record(
            t_s,
            np.array([[*(counters[column] for column in Counter), *buckets]], dtype=np.float64),
            np.array([[levels[column] for column in Level]]),
            lambda number: True,
        )
    window = made.view().window([0], 90.0, 60.0)
    return PodSamples(
        window=window,
        summary=window,
        bounds_s=BOUNDS_S,
        concurrency=2,
        queue_limit=10,
    )


def value(preset: str, quantity: Quantity) -> float:
    expression = EXPRESSIONS[preset][quantity]
    over = 1.0 if expression.over is None else expression.over(pods())[0]
    return float(expression.value(pods())[0] / over)


@pytest.mark.parametrize("preset", sorted(PRESETS.keys() - {"ray-serve"}))  # its replicas are no pods
def test_every_expression_of_a_preset_is_there_and_no_other(preset: str) -> None:
    assert EXPRESSIONS[preset].keys() == PRESETS[preset].formulas.keys()
    assert FIRST_TOKEN.get(preset, {}).keys() == PRESETS[preset].first.keys()
    for quantity, formula in PRESETS[preset].formulas.items():
        assert (EXPRESSIONS[preset][quantity].over is not None) is (formula.combine is Combine.RATIO), quantity


WORKED = [
    ("generic", Quantity.ARRIVAL_RATE, 21.0),
    ("generic", Quantity.COMPLETION_RATE, 20.0),
    ("generic", Quantity.LATENCY_MEAN, 0.15),
    ("generic", Quantity.SERVICE_TIME, 0.1),
    ("generic", Quantity.BATCH_SIZE, 4.0),
    ("generic", Quantity.UTILIZATION, 0.25),
    ("generic", Quantity.QUEUE_DEPTH, 2.0),
    ("generic", Quantity.SESSIONS, 50.0),
    ("generic", Quantity.SESSION_REFUSALS, 0.5),
    ("triton", Quantity.SESSION_REFUSALS, 0.5),
    ("vllm", Quantity.SESSION_REFUSALS, 0.5),
    ("generic", Quantity.RX_QUEUE_PRESSURE, 0.2),
    ("triton", Quantity.ARRIVAL_RATE, 21.0),
    ("triton", Quantity.SERVICE_TIME, 0.1),
    ("triton", Quantity.SERVED_BATCH, 4.0 + 1 - 1 / 4),
    ("triton", Quantity.UTILIZATION, 0.5),
    ("triton", Quantity.LATENCY_P95, 0.19),
    ("vllm", Quantity.ARRIVAL_RATE, 20.0),
    ("vllm", Quantity.SERVICE_TIME, 0.1),
    ("vllm", Quantity.PREFILL_TIME, 0.1),
    ("vllm", Quantity.BATCH_SIZE, 4.0),
    ("vllm", Quantity.PRESENT_BATCH, 4.0),
    ("vllm", Quantity.UTILIZATION, 4.0),
]


@pytest.mark.parametrize(("preset", "quantity", "expected"), WORKED, ids=[f"{p} {q.value}" for p, q, _ in WORKED])
def test_an_expression_has_the_number_that_its_promql_has(preset: str, quantity: Quantity, expected: float) -> None:
    assert value(preset, quantity) == pytest.approx(expected, rel=1e-6)


def test_the_histograms_have_the_bounds_of_the_preset() -> None:
    for histogram, bound_s, below in (
        (EXPRESSIONS["generic"][Quantity.LATENCY_P95], 0.1, 10.0),
        (EXPRESSIONS["vllm"][Quantity.LATENCY_P95], 0.3, 20.0),
        (FIRST_TOKEN["vllm"][Quantity.LATENCY_P95], 0.1, 10.0),
    ):
        buckets = histogram.value(pods())[0]
        assert len(histogram.upper_bounds) + 1 == len(buckets)
        assert buckets[-1] == pytest.approx(20.0)
        assert buckets[histogram.upper_bounds.index(bound_s)] == pytest.approx(below)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0])
def test_the_lengths_of_answers_vary_as_the_work_of_the_servers(cv: float) -> None:
    lengths = EXPRESSIONS["vllm"][Quantity.WORK_VARIATION]
    buckets = lengths.value(replace(pods(), work_cv=cv))[0]
    assert buckets[-1] == pytest.approx(20.0)
    found = histogram_variation(dict(zip((*lengths.upper_bounds, math.inf), buckets, strict=True)))
    assert found == pytest.approx(cv, abs=0.1)


def test_a_first_token_is_earlier_by_the_rest_of_its_answer() -> None:
    """Ten items per second end within 0.1 s, ten within 0.2 s; after the first token each takes 0.05 s more."""
    early = replace(pods(), first_token_share=0.5)
    histogram, mean = FIRST_TOKEN["vllm"][Quantity.LATENCY_P95], FIRST_TOKEN["vllm"][Quantity.LATENCY_MEAN]
    cumulative = dict(zip(histogram.upper_bounds, histogram.value(early)[0], strict=False))
    assert cumulative[0.01] == pytest.approx(2.0)  # 0.06 s to the end: a fifth of the items between 0.05 and 0.1 s
    assert cumulative[0.1] == pytest.approx(15.0)
    assert mean.over is not None
    assert mean.value(early)[0] / mean.over(early)[0] == pytest.approx(0.1)


def test_every_histogram_can_be_read_off_the_latencies_that_replicas_count() -> None:
    for bounds_s in (WORKER_LATENCY_S, VLLM_FIRST_TOKEN_S):
        assert {bound_s for bound_s in bounds_s if bound_s <= 10} <= set(LATENCY_BOUNDS_S)
    assert max(high_s / low_s for low_s, high_s in pairwise(LATENCY_BOUNDS_S)) <= 1.1


def test_what_a_server_does_not_export_is_not_there() -> None:
    assert np.isnan(EXPRESSIONS["triton"][Quantity.RX_QUEUE_PRESSURE].value(pods())[0])
