import socket
from urllib.request import ProxyHandler, build_opener

import pytest
from prometheus_client import CollectorRegistry
from set_clock import Clock

from profiler.instrument import StageMetrics

LABELS = {"pipeline": "captions", "stage": "asr"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def stage(registry: CollectorRegistry, clock: Clock) -> StageMetrics:
    return StageMetrics(capacity=2, bounds_s=(0.1, 0.5), sessions=True, labels=LABELS, registry=registry, clock=clock)


def test_a_batch_counts_its_items_its_time_and_the_latency_of_each(
    stage: StageMetrics, registry: CollectorRegistry, clock: Clock
) -> None:
    first = stage.arrived()
    clock.now_s += 0.3
    second = stage.arrived()
    assert registry.get_sample_value("speech_stage_queue_depth", LABELS) == 2
    with stage.batch([first, second]):
        assert registry.get_sample_value("speech_stage_queue_depth", LABELS) == 0
        clock.now_s += 0.05
    for name, value in {
        "arrivals_total": 2,
        "items_total": 2,
        "batches_total": 1,
        "busy_seconds_total": pytest.approx(0.05),
        "latency_seconds_sum": pytest.approx(0.35 + 0.05),
        "capacity": 2,
    }.items():
        assert registry.get_sample_value(f"speech_stage_{name}", LABELS) == value
    assert registry.get_sample_value("speech_stage_latency_seconds_bucket", {**LABELS, "le": "0.1"}) == 1


def test_all_is_exported_from_the_start(stage: StageMetrics, registry: CollectorRegistry) -> None:
    """A pod without the metric of the freshness is silent; a counter without a 0 hides its first increase."""
    for name in ("queue_depth", "arrivals_total", "items_total", "batches_total", "busy_seconds_total", "sessions"):
        assert registry.get_sample_value(f"speech_stage_{name}", LABELS) == 0
    assert registry.get_sample_value("speech_stage_sessions_refused_total", LABELS) == 0


def test_a_batch_that_fails_served_nothing_and_nothing_waits_any_more(
    stage: StageMetrics, registry: CollectorRegistry
) -> None:
    arrival = stage.arrived()
    with pytest.raises(RuntimeError), stage.batch([arrival]):
        raise RuntimeError("out of memory")
    assert registry.get_sample_value("speech_stage_items_total", LABELS) == 0
    assert registry.get_sample_value("speech_stage_batches_total", LABELS) == 0
    assert registry.get_sample_value("speech_stage_queue_depth", LABELS) == 0


def test_what_is_refused_or_goes_away_is_load_all_the_same(stage: StageMetrics, registry: CollectorRegistry) -> None:
    stage.refused()
    stage.gone(stage.arrived())
    assert registry.get_sample_value("speech_stage_arrivals_total", LABELS) == 2
    assert registry.get_sample_value("speech_stage_queue_depth", LABELS) == 0


def test_sessions_with_a_slot_and_without_are_counted(stage: StageMetrics, registry: CollectorRegistry) -> None:
    stage.set_sessions(2)
    stage.set_sessions(1)
    stage.session_refused()
    assert registry.get_sample_value("speech_stage_sessions", LABELS) == 1
    assert registry.get_sample_value("speech_stage_sessions_refused_total", LABELS) == 1


def test_a_stage_without_sessions_exports_none(registry: CollectorRegistry) -> None:
    stage = StageMetrics(registry=registry)
    assert registry.get_sample_value("speech_stage_sessions") is None
    with pytest.raises(AssertionError, match="sessions: False"):
        stage.set_sessions(1)


def test_metrics_are_served(stage: StageMetrics) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stop = stage.serve(port, "127.0.0.1")
    try:
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert b'speech_stage_capacity{pipeline="captions",stage="asr"} 2.0' in answer.read()
    finally:
        stop()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capacity": 0}, "capacity: 0, must be at least 1"),
        ({"bounds_s": ()}, "bounds_s: \\(\\), must be positive and ascending"),
        ({"bounds_s": (0.2, 0.1)}, "must be positive and ascending"),
        ({"bounds_s": (0.0, 0.1)}, "must be positive and ascending"),
    ],
)
def test_wrong_values_are_refused(registry: CollectorRegistry, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StageMetrics(registry=registry, **wrong)  # type: ignore[arg-type]
