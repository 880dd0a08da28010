"""Results of other load tests become a law, and what they lack is said."""

from typing import Any

import pytest

from optimizer.model import Batching
from profiler.load_test.imports import NotImported, analysed_imports


def time_s(running: float) -> float:
    """The truth: a request takes 0.2 s and 10 ms for each that runs."""
    return 0.2 + 0.01 * running


def guidellm(running: int) -> dict[str, Any]:
    return {
        "metrics": {
            "requests_per_second": {"successful": {"mean": running / (time_s(running) + 0.02 * running)}},
            "request_concurrency": {"successful": {"mean": float(running)}},
            "request_latency": {
                "successful": {"mean": time_s(running), "std_dev": 0.3 * time_s(running), "count": 400}
            },
            "time_to_first_token_ms": {"successful": {"median": 20.0}},
        }
    }


def vllm(running: int, **changes: Any) -> dict[str, Any]:
    rate = running / time_s(running)
    return {"max_concurrency": running, "request_throughput": rate, "completed": 400, "median_ttft_ms": 0.0, **changes}


def genai_perf(running: int) -> dict[str, Any]:
    return {
        "request_throughput": {"unit": "requests/sec", "avg": running / time_s(running)},
        "request_latency": {"unit": "ms", "avg": time_s(running) * 1e3, "std": 100.0},
        "input_config": {"perf_analyzer": {"stimulus": {"concurrency": running}}},
    }


@pytest.mark.parametrize(
    "documents",
    [
        [{"benchmarks": [guidellm(running) for running in (1, 4, 16)]}],
        [vllm(running) for running in (1, 4, 16)],
        [genai_perf(running) for running in (1, 4, 16)],
    ],
    ids=["guidellm", "vllm", "genai-perf"],
)
def test_the_results_of_each_tool_show_the_law(documents: list[Any]) -> None:
    found = analysed_imports(documents, limit=16)
    assert (found.batching, found.limit) == (Batching.CONTINUOUS, 16)
    assert found.law.mean_s(16) == pytest.approx(time_s(16), rel=0.03)
    assert found.law.mean_s(1) == pytest.approx(time_s(1), rel=0.03)


def test_first_tokens_are_the_prefill() -> None:
    found = analysed_imports([{"benchmarks": [guidellm(running) for running in (1, 4, 16)]}])
    assert found.law.prefill_s == pytest.approx(0.02)
    assert found.law.cv == pytest.approx(0.3)


def test_without_a_number_of_clients_it_follows_from_the_latency() -> None:
    documents = [vllm(n, max_concurrency=None, mean_e2el_ms=time_s(n) * 1e3, std_e2el_ms=80.0) for n in (1, 16)]
    assert analysed_imports(documents).measured == 16


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([{"benchmarks": [guidellm(4)]}], "only one load"),
        ([vllm(1, max_concurrency=None)], "--max-concurrency"),
        ([vllm(1, request_throughput=0.0)], "requests per second: 0.0, must be above 0"),
        ([{"benchmarks": [{"metrics": {}}]}], "lacks 'request_latency'"),
        ([[1, 2]], "neither of guidellm, genai-perf nor"),
        ([{"a": 1}], "neither of guidellm, genai-perf nor"),
    ],
)
def test_what_a_file_lacks_is_said(documents: list[Any], said: str) -> None:
    with pytest.raises(NotImported, match=said):
        analysed_imports(documents)
