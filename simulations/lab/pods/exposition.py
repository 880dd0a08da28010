"""The metrics of a stage worker, with the names, units and semantics of a real model server.

There is one class per preset; it renders the metrics of that server in the Prometheus text format 0.0.4. Counters never
decrease. `generic` counts a refused item as an arrival, `triton` as a failed request, and `vllm` does not count it.
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from simulations.results.histogram import (
    MEAN_TOKENS,
    TRITON_SUMMARY_S,
    VLLM_FIRST_TOKEN_S,
    VLLM_REQUEST_S,
    VLLM_TOKENS,
    WORKER_LATENCY_S,
)

Preset = Literal["generic", "triton", "vllm"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_STAGE_BATCH = (1, 2, 4, 8, 16, 32, 64, 128)

_VLLM_ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # vllm/v1/metrics/loggers.py

_TRITON_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_TRITON_SUMMARY_SAMPLES = 2000  # limits the sorting of one scrape


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The state of a worker at the time of a scrape.

    `queued` and `in_service` are numbers of items. `batch_slots` is the number of batches that can be in service at
    once, `batch_max` the largest number of items in one. `sessions` is the number of session slots in use,
    `session_slots` their limit; None for a stage without session slots.
    """

    queued: int
    queue_limit: int
    in_service: int
    batch_slots: int
    batch_max: int
    sessions: int
    session_slots: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServer:
    """What the metrics of a worker show: the kind of its server (`preset`), and its models.

    `model` is the model that serves the stage, None for one with the name of the stage. Every item passes
    `other_models` too, as the steps of an ensemble, and all models report alike. The first token of an answer leaves
    after `first_token_share` of the service time (1: with the last); the answer itself is sent as a whole, at the end.
    """

    preset: Preset = "generic"
    model: str | None = None
    other_models: tuple[str, ...] = ()
    first_token_share: float = 1.0

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ValueError: a field is outside its range, or the metrics of the preset do not show it.
        """
        if self.preset not in EXPOSITIONS:
            raise ValueError(f"preset: {self.preset!r}, must be one of {', '.join(EXPOSITIONS)}")
        if not 0 < self.first_token_share <= 1:
            raise ValueError(f"first_token_share: {self.first_token_share!r}, must be above 0 and at most 1")
        if self.first_token_share < 1 and self.preset != "vllm":
            raise ValueError(f"first_token_share: {self.first_token_share!r}, must be 1 with preset {self.preset}")
        if self.other_models and self.preset == "generic":
            raise ValueError(f"other_models: {self.other_models!r}, must be empty with preset generic")


class Histogram:
    """A cumulative Prometheus histogram with fixed upper bounds; `sum` is the sum of the observed values."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value; a value equal to a bound counts in the bucket with this upper bound."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Return the number of observed values."""
        return sum(self._counts)

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """Yield the lines of this histogram in the text format, without the line for its type."""
        cumulative = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            cumulative += count
            yield f'{name}_bucket{{{labels},le="{_number(bound)}"}} {cumulative}'
        yield f"{name}_sum{{{labels}}} {_number(self.sum)}"
        yield f"{name}_count{{{labels}}} {cumulative}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A batch that finished at `now_s`: the wait of each item and the service time of the batch, in seconds.

    With continuous batching it is one item, which ran among `together` items on average: it counts as that part of a
    batch, so that the busy time is that in which any item runs. `first_s` is the time to the first part of its answer,
    in seconds; None where the worker's share of the service time says it. `work` is that of each item, of mean 1.
    """

    now_s: float
    waits_s: Sequence[float]
    service_s: float
    together: float
    first_s: float | None
    work: float


class Exposition(ABC):
    """Counts the events of one worker, and renders its metrics."""

    def __init__(self, pipeline: str, stage: str, server: ModelServer) -> None:
        self._stage_labels = _labels(pipeline=pipeline, stage=stage)
        self._first_token_share = server.first_token_share
        self._models = (server.model or stage, *server.other_models)
        self._refused_sessions = 0

    @abstractmethod
    def arrived(self, *, refused: bool) -> None:
        """Count one offered item; `refused` says whether the worker refused it."""

    def refused_session(self) -> None:
        """Count a session, or an item that needs a slot, that was refused because no slot was free."""
        self._refused_sessions += 1

    def served(
        self,
        now_s: float,
        waits_s: Sequence[float],
        service_s: float,
        *,
        together: float = 1.0,
        first_s: float | None = None,
        work: float = 1.0,
    ) -> None:
        """Record a batch that finished at `now_s`, with the wait of each item, in s; the rest is as in `Served`."""
        self._record(
            Served(
                now_s=now_s,
                waits_s=waits_s,
                service_s=service_s,
                together=together,
                first_s=first_s,
                work=work,
            )
        )

    @abstractmethod
    def _record(self, batch: Served) -> None:
        """Count a batch that finished."""

    @abstractmethod
    def render(self, now_s: float, gauges: Gauges) -> str:
        """Return the metrics at `now_s` (seconds, monotonic clock) as the text of one scrape."""

    def _sessions(self, gauges: Gauges) -> list[str]:
        labels = [self._stage_labels]
        lines = _gauge("speech_stage_sessions", labels, gauges.sessions)
        lines += _counter("speech_stage_sessions_refused_total", labels, self._refused_sessions)
        if gauges.session_slots is not None:
            lines += _gauge("speech_stage_session_slots", labels, gauges.session_slots)
        return lines


class GenericExposition(Exposition):
    """Sluice's own metrics, for stages that can be instrumented. They tell neither models nor first tokens apart."""

    def __init__(self, pipeline: str, stage: str, server: ModelServer) -> None:
        super().__init__(pipeline, stage, server)
        self._arrivals = self._items = 0
        self._batches = self._busy_s = 0.0
        self._latency = Histogram(WORKER_LATENCY_S)
        self._queue_wait = Histogram(WORKER_LATENCY_S)
        self._batch_size = Histogram(_STAGE_BATCH)

    @override
    def arrived(self, *, refused: bool) -> None:
        self._arrivals += 1

    @override
    def _record(self, batch: Served) -> None:
        self._items += len(batch.waits_s)
        self._batches += 1 / batch.together
        self._busy_s += batch.service_s / batch.together
        self._batch_size.observe(len(batch.waits_s) * batch.together)
        for wait_s in batch.waits_s:
            self._queue_wait.observe(wait_s)
            self._latency.observe(wait_s + batch.service_s)

    @override
    def render(self, now_s: float, gauges: Gauges) -> str:
        labels = [self._stage_labels]
        return _text(
            _counter("speech_stage_arrivals_total", labels, self._arrivals),
            _counter("speech_stage_items_total", labels, self._items),
            _counter("speech_stage_batches_total", labels, self._batches),
            _counter("speech_stage_busy_seconds_total", labels, self._busy_s),
            _gauge("speech_stage_queue_depth", labels, gauges.queued),
            _gauge("speech_stage_inflight", labels, gauges.in_service),
            _gauge("speech_stage_capacity", labels, gauges.batch_slots),
            # A substitute for what `sluice nic-exporter` exports: a worker's own queue takes the place of the kernel's.
            _gauge("speech_nic_rx_queue_pressure", labels, min(1.0, gauges.queued / gauges.queue_limit)),
            _histogram("speech_stage_latency_seconds", labels, self._latency),
            _histogram("speech_stage_queue_wait_seconds", labels, self._queue_wait),
            _histogram("speech_stage_batch_size", labels, self._batch_size),
            self._sessions(gauges),
        )


class TritonExposition(Exposition):
    """The metrics of Triton Inference Server.

    Its durations are in µs, summed over requests: a batch of n requests adds its compute time n times.
    """

    def __init__(self, pipeline: str, stage: str, server: ModelServer) -> None:
        super().__init__(pipeline, stage, server)
        self._success = self._failure = 0
        self._executions = 0.0
        self._queue_s = self._compute_s = 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=_TRITON_SUMMARY_SAMPLES)

    @override
    def arrived(self, *, refused: bool) -> None:
        self._failure += refused

    @override
    def _record(self, batch: Served) -> None:
        self._success += len(batch.waits_s)
        self._executions += 1 / batch.together
        self._queue_s += sum(batch.waits_s)
        self._compute_s += batch.service_s * len(batch.waits_s)
        self._recent.extend((batch.now_s, wait_s + batch.service_s) for wait_s in batch.waits_s)

    @override
    def render(self, now_s: float, gauges: Gauges) -> str:
        models = [_labels(model=model, version="1") for model in self._models]
        rejected = [f'{labels},reason="REJECTED"' for labels in models]
        return _text(
            _counter("nv_inference_request_success", models, self._success),
            _counter("nv_inference_request_failure", rejected, self._failure),
            _counter("nv_inference_count", models, self._success),
            _counter("nv_inference_exec_count", models, self._executions),
            _counter("nv_inference_request_duration_us", models, round((self._queue_s + self._compute_s) * 1e6)),
            _counter("nv_inference_queue_duration_us", models, round(self._queue_s * 1e6)),
            _counter("nv_inference_compute_input_duration_us", models, 0),
            _counter("nv_inference_compute_infer_duration_us", models, round(self._compute_s * 1e6)),
            _counter("nv_inference_compute_output_duration_us", models, 0),
            _gauge("nv_inference_pending_request_count", models, gauges.queued),
            self._summary(models, now_s),
            self._sessions(gauges),
        )

    def _summary(self, models: Iterable[str], now_s: float) -> list[str]:
        """Return the lines of the latency summary, as in Triton.

        The quantiles are those of a sliding window of `TRITON_SUMMARY_S`, NaN while it is empty. Sum and count are
        those of all requests so far.
        """
        while self._recent and self._recent[0][0] < now_s - TRITON_SUMMARY_S:
            self._recent.popleft()
        latencies_s = sorted(latency_s for _, latency_s in self._recent)
        name = "nv_inference_request_summary_us"
        lines = [f"# TYPE {name} summary"]
        total_us = (self._queue_s + self._compute_s) * 1e6
        for labels in models:
            for quantile in _TRITON_QUANTILES:
                rank = math.ceil(quantile * len(latencies_s)) - 1
                value = latencies_s[rank] * 1e6 if latencies_s else math.nan
                lines.append(f'{name}{{{labels},quantile="{quantile}"}} {_number(value)}')
            lines += [f"{name}_sum{{{labels}}} {_number(total_us)}", f"{name}_count{{{labels}}} {self._success}"]
        return lines


class VllmExposition(Exposition):
    """The metrics of vLLM's V1 engine.

    An item is a request. The time to its first token is counted when it ends, together with its latency.
    """

    def __init__(self, pipeline: str, stage: str, server: ModelServer) -> None:
        super().__init__(pipeline, stage, server)
        self._success = 0
        self._latency = Histogram(VLLM_REQUEST_S)
        self._queue_wait = Histogram(VLLM_REQUEST_S)
        self._inference = Histogram(VLLM_REQUEST_S)
        self._first_token = Histogram(VLLM_FIRST_TOKEN_S)
        self._prefill = Histogram(VLLM_REQUEST_S)
        self._tokens = Histogram(VLLM_TOKENS)
        self._iteration_tokens = Histogram(_VLLM_ITERATION_TOKENS)

    @override
    def arrived(self, *, refused: bool) -> None:
        """Do nothing: vLLM counts a request at its end, and has no counter for refused requests."""

    @override
    def _record(self, batch: Served) -> None:
        self._success += len(batch.waits_s)
        self._iteration_tokens.observe(len(batch.waits_s))
        for wait_s in batch.waits_s:
            self._tokens.observe(max(1, round(MEAN_TOKENS * batch.work)))
            self._queue_wait.observe(wait_s)
            self._inference.observe(batch.service_s)
            self._latency.observe(wait_s + batch.service_s)
            share_s = self._first_token_share * batch.service_s
            first_token_s = wait_s + share_s if batch.first_s is None else batch.first_s
            self._first_token.observe(first_token_s)
            self._prefill.observe(first_token_s - wait_s)

    @override
    def render(self, now_s: float, gauges: Gauges) -> str:
        models = [_labels(model_name=model, engine="0") for model in self._models]
        if gauges.session_slots is None:
            cache_usage = gauges.in_service / (gauges.batch_slots * gauges.batch_max)
        else:
            cache_usage = gauges.sessions / gauges.session_slots
        return _text(
            _gauge("vllm:num_requests_running", models, gauges.in_service),
            _gauge("vllm:num_requests_waiting", models, gauges.queued),
            _gauge("vllm:kv_cache_usage_perc", models, min(1.0, cache_usage)),
            ["# TYPE vllm:request_success_total counter"],
            *(
                [
                    f'vllm:request_success_total{{{labels},finished_reason="stop"}} {self._success}',
                    f'vllm:request_success_total{{{labels},finished_reason="length"}} 0',
                    f'vllm:request_success_total{{{labels},finished_reason="abort"}} 0',
                ]
                for labels in models
            ),
            _histogram("vllm:iteration_tokens_total", models, self._iteration_tokens),
            _histogram("vllm:request_generation_tokens", models, self._tokens),
            _histogram("vllm:time_to_first_token_seconds", models, self._first_token),
            _histogram("vllm:e2e_request_latency_seconds", models, self._latency),
            _histogram("vllm:request_queue_time_seconds", models, self._queue_wait),
            _histogram("vllm:request_inference_time_seconds", models, self._inference),
            _histogram("vllm:request_prefill_time_seconds", models, self._prefill),
            self._sessions(gauges),
        )


EXPOSITIONS: dict[Preset, type[Exposition]] = {
    "generic": GenericExposition,
    "triton": TritonExposition,
    "vllm": VllmExposition,
}


def _labels(**values: str) -> str:
    escaped = {
        name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in values.items()
    }
    return ",".join(f'{name}="{value}"' for name, value in escaped.items())


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def _counter(name: str, each_labels: Iterable[str], value: float) -> list[str]:
    return [f"# TYPE {name} counter", *(f"{name}{{{labels}}} {_number(value)}" for labels in each_labels)]


def _gauge(name: str, each_labels: Iterable[str], value: float) -> list[str]:
    return [f"# TYPE {name} gauge", *(f"{name}{{{labels}}} {_number(value)}" for labels in each_labels)]


def _histogram(name: str, each_labels: Iterable[str], histogram: Histogram) -> list[str]:
    return [f"# TYPE {name} histogram", *(line for labels in each_labels for line in histogram.lines(name, labels))]


def _text(*families: list[str]) -> str:
    return "\n".join(line for family in families for line in family) + "\n"
