import re

import pytest

from profiler.sources.metric_names import completion_counters, renamed_series


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("vllm:num_requests_running", "vllm_num_requests_running"),
        ("vllm:num_requests_running", "vllm.num.requests.running"),
        ("vllm:num_requests_running", "otel_vllm_num_requests_running_ratio"),
        ("vllm:request_success_total", "vllm_request_success"),
        ("vllm:request_success_total", "vllm_request_success_total_total"),
        ("speech_stage_arrivals_total", "speech_stage_arrivals"),
    ],
)
def test_a_collector_may_rename_a_metric(name: str, other: str) -> None:
    selector = renamed_series(name)
    match = re.fullmatch(r'\{__name__=~"(.*)", __name__!="(.*)"\}', selector)
    assert match is not None
    assert re.fullmatch(match[1], other)
    assert match[2] == name, "under its own name it is not renamed"
    assert not re.fullmatch(match[1], "vllm_num_requests_waiting")
    assert not re.fullmatch(match[1], f"{other}_by_lora")


@pytest.mark.parametrize(
    "query",
    [
        "rate(vllm:request_success_total[1m])",
        "sum(increase(vllm_request_success_total[1m])) / 60",
        "sum(rate(vllm:e2e_request_latency_seconds_count[1m]))",
        "sum(rate(vllm:generation_tokens_total[1m])) / 100 or vector(0)",
        "sum(rate(nv_inference_request_success[1m])) + sum(rate(nv_inference_count[1m]))",
        "sum(rate(speech_stage_items_total[1m]))",
        "sum(rate(speech_stage_latency_seconds_count[1m] offset 1m))",
        "sum(rate(asr_requests_completed_total[1m]))",
    ],
)
def test_queries_of_what_was_completed_are_found(query: str) -> None:
    assert completion_counters(query)


@pytest.mark.parametrize(
    "query",
    [
        "sum(gateway_active_streams)",
        "sum(rate(nginx_ingress_controller_requests[1m]))",
        "sum(rate(speech_stage_arrivals_total[1m]))",
        "sum(vllm:num_requests_running) + sum(vllm:num_requests_waiting)",
        "sum(rate(vllm:request_success_total[1m])) + sum(deriv(vllm:num_requests_waiting[1m]))",
        "sum(successful_calls_active)",
        "vector(3)",
        "sum(",
    ],
)
def test_queries_of_the_offered_load_are_not(query: str) -> None:
    assert completion_counters(query) == ()
