"""The /metrics of workers, checked with a parser of the format and with the formulas of users."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from simulations.lab.pods.exposition import EXPOSITIONS, Exposition, Gauges, ModelServer, Preset

GAUGES = Gauges(queued=3, queue_limit=12, in_service=4, batch_slots=2, batch_max=8, sessions=5, session_slots=20)

Sample = tuple[str, Mapping[str, str], float]


def exposition(preset: Preset) -> Exposition:
    """Seven arrivals, one of them refused; a batch of four and one of two, 10 and 40 ms of service."""
    shown = EXPOSITIONS[preset]("captions", "encoder", ModelServer(preset=preset))
    for item in range(7):
        shown.arrived(refused=item == 6)
    shown.served(100.0, [0.001, 0.002, 0.003, 0.004], 0.010)
    shown.served(101.0, [0.030, 0.020], 0.040)
    return shown


def samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # The parser appends a suffix to every counter, which Triton's counters do not have.
            name = sample.name.removesuffix("_total") if sample.name.startswith("nv_") else sample.name
            yield name, sample.labels, sample.value


def values(preset: Preset, gauges: Gauges = GAUGES, now_s: float = 101.0) -> dict[str, float]:
    """Return sample values by name; those with `le` or `quantile` by name and that label."""
    found = {}
    for name, labels, value in samples(exposition(preset).render(now_s, gauges)):
        mark = labels.get("le") or labels.get("quantile") or labels.get("finished_reason")
        found[f"{name}/{mark}" if mark else name] = value
    return found


def test_the_generic_contract_gives_rates_utilisation_batches_and_latency() -> None:
    seen = values("generic")
    assert seen["speech_stage_arrivals_total"] == 7
    assert seen["speech_stage_items_total"] == 6
    assert seen["speech_stage_batches_total"] == 2
    assert seen["speech_stage_busy_seconds_total"] == pytest.approx(0.050)
    assert (seen["speech_stage_queue_depth"], seen["speech_stage_inflight"], seen["speech_stage_capacity"]) == (3, 4, 2)
    assert seen["speech_nic_rx_queue_pressure"] == 0.25
    assert (seen["speech_stage_sessions"], seen["speech_stage_session_slots"]) == (5, 20)
    assert seen["speech_stage_latency_seconds_count"] == 6
    assert seen["speech_stage_latency_seconds_sum"] == pytest.approx(0.050 + 0.130)
    assert seen["speech_stage_latency_seconds_bucket/0.02"] == 4
    assert seen["speech_stage_latency_seconds_bucket/0.08"] == 6
    assert seen["speech_stage_queue_wait_seconds_bucket/0.002"] == 2
    assert seen["speech_stage_batch_size_bucket/2"] == 1
    assert seen["speech_stage_batch_size_bucket/4"] == 2


def test_tritons_durations_are_microseconds_summed_per_request() -> None:
    seen = values("triton")
    assert (seen["nv_inference_request_success"], seen["nv_inference_request_failure"]) == (6, 1)
    assert seen["nv_inference_count"] / seen["nv_inference_exec_count"] == 3
    compute_us = sum(seen[f"nv_inference_compute_{part}_duration_us"] for part in ("input", "infer", "output"))
    assert compute_us == 4 * 10_000 + 2 * 40_000
    assert seen["nv_inference_queue_duration_us"] == 60_000
    assert seen["nv_inference_request_duration_us"] == 180_000
    assert seen["nv_inference_pending_request_count"] == 3
    assert seen["speech_stage_sessions"] == 5


def test_tritons_summary_slides_and_is_not_a_number_without_recent_requests() -> None:
    seen = values("triton")
    assert seen["nv_inference_request_summary_us/0.5"] == pytest.approx(13_000)
    assert seen["nv_inference_request_summary_us/0.95"] == pytest.approx(70_000)
    later = values("triton", now_s=160.5)
    assert later["nv_inference_request_summary_us/0.5"] == pytest.approx(60_000)
    much_later = values("triton", now_s=1000.0)
    assert math.isnan(much_later["nv_inference_request_summary_us/0.95"])
    assert much_later["nv_inference_request_summary_us_count"] == 6


def test_vllm_shows_requests_steps_and_the_share_of_its_cache() -> None:
    seen = values("vllm")
    assert seen["vllm:request_success_total/stop"] == 6
    assert (seen["vllm:num_requests_running"], seen["vllm:num_requests_waiting"]) == (4, 3)
    assert seen["vllm:kv_cache_usage_perc"] == 0.25
    assert seen["vllm:iteration_tokens_total_sum"] / seen["vllm:iteration_tokens_total_count"] == 3
    assert seen["vllm:request_queue_time_seconds_sum"] == pytest.approx(0.060)
    assert seen["vllm:request_inference_time_seconds_sum"] == pytest.approx(0.120)
    assert seen["vllm:e2e_request_latency_seconds_bucket/0.3"] == 6
    assert seen["vllm:time_to_first_token_seconds_bucket/0.02"] == 4
    assert seen["speech_stage_sessions"] == 5


@pytest.mark.parametrize("preset", EXPOSITIONS)
def test_a_stage_without_slots_shows_no_limit_and_its_batches_as_cache(preset: Preset) -> None:
    gauges = Gauges(queued=0, queue_limit=12, in_service=4, batch_slots=2, batch_max=8, sessions=0, session_slots=None)
    seen = values(preset, gauges)
    assert "speech_stage_session_slots" not in seen
    assert seen["speech_stage_sessions_refused_total"] == 0
    assert seen.get("vllm:kv_cache_usage_perc", 0.25) == 0.25


@pytest.mark.parametrize("preset", EXPOSITIONS)
def test_every_sample_carries_the_labels_of_its_server_and_counters_only_grow(preset: Preset) -> None:
    expected = {
        "generic": {"pipeline": 'a"b\\', "stage": "s"},
        "triton": {"model": "s", "version": "1"},
        "vllm": {"model_name": "s", "engine": "0"},
    }
    shown = EXPOSITIONS[preset]('a"b\\', "s", ModelServer(preset=preset))
    before = list(samples(shown.render(0.0, GAUGES)))
    shown.arrived(refused=True)
    shown.served(1.0, [0.001], 0.002)
    after = list(samples(shown.render(1.0, GAUGES)))
    for name, labels, _ in after:
        wanted = expected["generic"] if name.startswith("speech_") else expected[preset]
        assert wanted.items() <= labels.items()
    assert [sample[:2] for sample in before] == [sample[:2] for sample in after]
    assert all(new[2] >= old[2] for old, new in zip(before, after, strict=True) if not math.isnan(old[2]))


def test_the_first_token_leaves_before_the_end_of_its_answer() -> None:
    shown = EXPOSITIONS["vllm"]("captions", "lm", ModelServer(preset="vllm", first_token_share=0.2))
    shown.served(100.0, [0.001, 0.002], 0.100)
    seen = {name: value for name, _, value in samples(shown.render(100.0, GAUGES)) if name.endswith("_sum")}
    assert seen["vllm:time_to_first_token_seconds_sum"] == pytest.approx(0.003 + 2 * 0.020)
    assert seen["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(0.003 + 2 * 0.100)
    assert seen["vllm:request_inference_time_seconds_sum"] == pytest.approx(2 * 0.100)


def test_an_answer_has_as_many_tokens_as_its_request_is_work() -> None:
    shown = EXPOSITIONS["vllm"]("captions", "lm", ModelServer(preset="vllm"))
    for work in (0.0, 0.1, 1.0, 3.0):
        shown.served(100.0, [0.001], 0.100, work=work)
    seen = {(name, labels.get("le")): value for name, labels, value in samples(shown.render(100.0, GAUGES))}
    assert seen["vllm:request_generation_tokens_sum", None] == 1 + 15 + 150 + 450
    assert seen["vllm:request_generation_tokens_bucket", "20"] == 2


@pytest.mark.parametrize(("preset", "label"), [("triton", "model"), ("vllm", "model_name")])
def test_every_model_of_a_server_has_its_own_series(preset: Preset, label: str) -> None:
    server = ModelServer(preset=preset, model="asr", other_models=("preprocess",))
    shown = EXPOSITIONS[preset]("captions", "encoder", server)
    shown.served(100.0, [0.001], 0.010)
    found: dict[str, list[str]] = {}
    for name, labels, _ in samples(shown.render(100.0, GAUGES)):
        if not name.startswith("speech_"):
            found.setdefault(labels[label], []).append(name)
    assert found.keys() == {"asr", "preprocess"}
    assert found["asr"] == found["preprocess"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preset": "torch"}, "preset: 'torch', must be one of generic, triton, vllm"),
        ({"preset": "vllm", "first_token_share": 0.0}, "first_token_share: 0.0, must be above 0 and at most 1"),
        ({"preset": "triton", "first_token_share": 0.2}, "first_token_share: 0.2, must be 1 with preset triton"),
        ({"other_models": ("b",)}, "other_models: .*, must be empty with preset generic"),
    ],
)
def test_a_server_that_cannot_be_shown_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelServer(**values)
