"""Results of other load tests as levels of a closed loop: guidellm, genai-perf and vLLM's benchmark. Pure.

Sources: guidellm's `benchmarks.json`, genai-perf's `profile_export_genai_perf.json`, the file of `vllm bench serve
--save-result`. Each says the requests per second. The requests inside are the clients, else they follow from the mean
latency.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profiler.load_test.analysis import Analysis, Level, of_levels

Json = Mapping[str, Any]


class NotImported(ValueError):
    """A file has no results that can be used; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One run of another tool; time to the first token (s) and cv are None where it does not say."""

    inside: float
    answers: int
    rate_rps: float
    first_s: float | None
    cv: float | None


def analysed_imports(documents: Sequence[Any], *, limit: int | None = None) -> Analysis:
    """Return the law of the server in `documents`, the contents of result files; `limit` is the most that run there.

    Raises:
        NotImported: a document has no result, or all together have only one load.
    """
    runs = [run for document in documents for run in _runs(document)]
    levels: dict[int, Level] = {}
    for run in runs:
        size = max(1, round(run.inside))
        before = levels.get(size, Level(answers=0, rate_rps=run.rate_rps))
        answers = before.answers + run.answers
        rate = (before.rate_rps * before.answers + run.rate_rps * run.answers) / answers
        levels[size] = Level(answers=answers, rate_rps=rate)
    if len(levels) < 2:
        raise NotImported("only one load: runs with at least two numbers of concurrent requests show a law")
    smallest = min(runs, key=lambda run: run.inside)
    cvs = [run.cv for run in runs if run.cv is not None]
    cv = round(float(np.median(cvs)), 3) if cvs else 0.0
    return of_levels(levels, prefill_s=smallest.first_s or 0.0, cv=cv, limit=limit)


def _runs(document: Any) -> Iterator[Imported]:
    try:
        if isinstance(document, Mapping) and "benchmarks" in document:
            for run in document["benchmarks"]:
                yield _guidellm(run["metrics"])
        elif isinstance(document, Mapping) and "input_config" in document:
            yield _genai_perf(document)
        elif isinstance(document, Mapping) and "request_throughput" in document:
            yield _vllm(document)
        else:
            raise NotImported("neither of guidellm, genai-perf nor `vllm bench serve --save-result`")
    except (KeyError, TypeError, AttributeError) as error:
        raise NotImported(f"the result lacks {error}") from None


def _guidellm(metrics: Json) -> Imported:
    latency = metrics["request_latency"]["successful"]
    rate, inside = metrics["requests_per_second"]["successful"]["mean"], None
    if "request_concurrency" in metrics:
        inside = metrics["request_concurrency"]["successful"]["mean"]
    return _imported(
        inside=inside,
        answers=latency["count"],
        rate_rps=rate,
        mean_s=latency["mean"],
        first_s=metrics["time_to_first_token_ms"]["successful"]["median"] / 1e3,
        deviation_s=latency["std_dev"],
    )


def _genai_perf(document: Json) -> Imported:
    latency = document["request_latency"]
    unit = {"ms": 1e-3, "s": 1.0, "us": 1e-6, "ns": 1e-9}[latency["unit"]]
    first = document.get("time_to_first_token")
    stimulus = document["input_config"].get("perf_analyzer", {}).get("stimulus", {})
    rate = document["request_throughput"]["avg"]
    return _imported(
        inside=stimulus.get("concurrency"),
        answers=(document.get("request_count") or {}).get("avg", 100),
        rate_rps=rate,
        mean_s=latency["avg"] * unit,
        first_s=None if first is None else first["p50"] * unit,
        deviation_s=latency["std"] * unit,
    )


def _vllm(document: Json) -> Imported:
    mean_ms, deviation_ms = document.get("mean_e2el_ms"), document.get("std_e2el_ms")
    return _imported(
        inside=document.get("max_concurrency"),
        answers=document["completed"],
        rate_rps=document["request_throughput"],
        mean_s=None if mean_ms is None else mean_ms / 1e3,
        first_s=document["median_ttft_ms"] / 1e3,
        deviation_s=None if deviation_ms is None else deviation_ms / 1e3,
    )


def _imported(
    *,
    inside: float | None,
    answers: float,
    rate_rps: float,
    mean_s: float | None,
    first_s: float | None,
    deviation_s: float | None,
) -> Imported:
    """Return a run; Little's law gives the requests inside where only the mean latency is known.

    Raises:
        NotImported: neither is known, or a number is not positive.
    """
    if inside is None:
        if mean_s is None:
            raise NotImported("neither max_concurrency nor mean_e2el_ms: run it with --max-concurrency")
        inside = rate_rps * mean_s
    for name, value in (("concurrent requests", inside), ("answers", answers), ("requests per second", rate_rps)):
        if not 0 < value < float("inf"):
            raise NotImported(f"{name}: {value!r}, must be above 0")
    cv = None if deviation_s is None or not mean_s else deviation_s / mean_s
    return Imported(inside=float(inside), answers=int(answers), rate_rps=float(rate_rps), first_s=first_s, cv=cv)
