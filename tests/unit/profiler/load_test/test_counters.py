"""The counters of the known kinds of servers are read from their metrics, and a window is a difference."""

import pytest

from profiler.load_test.counters import Reading, Server, counted, reading
from profiler.sources.exposition import InvalidExposition

GENERIC = """# TYPE speech_stage_batches_total counter
speech_stage_batches_total{stage="asr"} 10
speech_stage_items_total{stage="asr"} 40
speech_stage_busy_seconds_total{stage="asr"} 0.5
process_resident_memory_bytes 1048576
"""
TRITON = """nv_inference_exec_count{model="asr"} 10
nv_inference_count{model="asr"} 40
nv_inference_compute_input_duration_us{model="asr"} 40000
nv_inference_compute_infer_duration_us{model="asr"} 1920000
nv_inference_compute_output_duration_us{model="asr"} 40000
"""
VLLM = """vllm:request_success_total{finished_reason="stop"} 30
vllm:request_success_total{finished_reason="length"} 10
vllm:request_inference_time_seconds_sum 8
"""


def test_each_kind_of_server_is_known_by_its_counters() -> None:
    assert reading(GENERIC) == Reading(server=Server.GENERIC, batches=10, items=40, time_s=0.5, memory_bytes=1048576)
    assert reading(TRITON).server is Server.TRITON
    assert reading(VLLM) == Reading(server=Server.VLLM, batches=40, items=40, time_s=8)
    assert reading("other_total 3\n") == Reading(server=None)


def test_triton_adds_the_time_of_a_batch_for_each_of_its_items() -> None:
    found = counted(Reading(server=Server.TRITON), reading(TRITON))
    assert found is not None
    assert (found.batches, found.items) == (10, 40)
    assert found.time_s == pytest.approx(0.5)


def test_a_restart_or_another_kind_of_server_between_two_readings_counts_nothing() -> None:
    assert counted(reading(GENERIC), Reading(server=Server.GENERIC, batches=1, items=4, time_s=0.1)) is None
    assert counted(reading(GENERIC), reading(VLLM)) is None
    assert counted(None, reading(VLLM)) is None
    assert counted(reading(VLLM), reading(VLLM)) is None, "nothing was served"


def test_metrics_that_are_cut_off_are_refused() -> None:
    with pytest.raises(InvalidExposition):
        reading("speech_stage_items_total 1")
