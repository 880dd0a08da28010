"""Faults of Prometheus that change its answers, for the fault proxy."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from fault_proxy import Asked, Rewrite

from simulations.lab.faults.metrics_proxy import TotalLoss, changed

_VECTORS = ("vector", "matrix")
_OF_A_POD = re.compile(
    r"(?:\w+_over_time|rate|deriv|timestamp)\(speech_\w+\{[^{}]*\}(?:\[\w+\])?\)"
    r"|(?<=\()speech_\w+\{[^{}]*\}(?=\))"
)
"""A function of the series of a metric of pods, or these series inside an aggregation."""


def empty() -> Rewrite:
    """Return the fault of a server without any series."""
    losses = (TotalLoss(),)
    return Rewrite(document=lambda asked, document: changed(document, asked.query.get("query", ""), losses))


def partial() -> Rewrite:
    """Return the fault of a server without every second pod of each workload, in the order of their names."""

    def halve(_: Asked, document: Any) -> Any:
        data = document.get("data")
        if isinstance(data, dict) and data.get("resultType") in _VECTORS:
            workloads: dict[tuple[str, str], list[str]] = {}
            for metric in (series["metric"] for series in data["result"] if "pod" in series["metric"]):
                pods = workloads.setdefault((metric.get("namespace", ""), metric["pod"].rsplit("-", 2)[0]), [])
                pods.append(metric["pod"])
            lost = {(namespace, pod) for (namespace, _), pods in workloads.items() for pod in sorted(set(pods))[::2]}
            data["result"] = [
                series
                for series in data["result"]
                if (series["metric"].get("namespace", ""), series["metric"].get("pod")) not in lost
            ]
        return document

    return Rewrite(document=halve)


def not_a_number() -> Rewrite:
    """Return the fault of a server whose values are all NaN, as after a division by zero."""

    def replace(_: Asked, document: Any) -> Any:
        return _with_samples(document, lambda at_s, _: [at_s, "NaN"])

    return Rewrite(document=replace)


def duplicated() -> Rewrite:
    """Return the fault of a pair of servers without deduplication: every series comes twice."""

    def double(_: Asked, document: Any) -> Any:
        data = document.get("data")
        if isinstance(data, dict) and data.get("resultType") in _VECTORS:
            data["result"] = [
                {**series, "metric": {**series["metric"], "prometheus_replica": replica}}
                for replica in ("a", "b")
                for series in data["result"]
            ]
        return document

    return Rewrite(document=double)


def scraped_twice() -> Rewrite:
    """Return the fault of a pair of servers without deduplication whose copies are aggregated by the queries.

    Every series of a pod, and every rate over one, comes twice before it is added up.
    """

    def twice(asked: Asked) -> Mapping[str, str]:
        return {**asked.query, "query": doubled(asked.query.get("query", ""))}

    return Rewrite(asks=twice)


def doubled(query: str) -> str:
    """Return `query` with each series of a pod, and each function of one, in two copies with a `prometheus_replica`."""
    return _OF_A_POD.sub(lambda found: f"({' or '.join(map(_copy(found[0]), 'ab'))})", query)


def _copy(expression: str) -> Callable[[str], str]:
    return lambda replica: f'label_replace({expression}, "prometheus_replica", "{replica}", "", "")'


def without_pods() -> Rewrite:
    """Return the fault of a scrape job that sets no label `pod`, as far as queries show it."""

    def unlabelled(asked: Asked) -> Mapping[str, str]:
        return {**asked.query, "query": re.sub(r"\bpod\b", "no_pod", asked.query.get("query", ""))}

    return Rewrite(asks=unlabelled)


def clock_ahead(seconds: float) -> Rewrite:
    """Return the fault of a server whose clock is ahead: its samples have times in the future."""

    def date(_: Asked, document: Any) -> Any:
        return _with_samples(document, lambda at_s, value: [at_s + seconds, value])

    return Rewrite(document=date)


def stale(seconds: float) -> Rewrite:
    """Return the fault of a server without a new sample for `seconds`, which still answers with the last ones.

    The query is evaluated at that earlier time, while `time()` in it is the present time.
    """

    def then(asked: Asked) -> Mapping[str, str]:
        query = re.sub(r"\btime\(\)", f"(time() + {seconds:g})", asked.query.get("query", ""))
        return {**asked.query, "query": query, "time": f"{time.time() - seconds:.3f}"}

    def now(_: Asked, document: Any) -> Any:
        return _with_samples(document, lambda at_s, value: [at_s + seconds, value])

    return Rewrite(asks=then, document=now)


def _with_samples(document: Any, change: Callable[[float, str], list[Any]]) -> Any:
    """Return the answer with every sample, a time and a value, changed."""
    match document.get("data"):
        case {"resultType": "vector", "result": list() as result}:
            for series in result:
                series["value"] = change(*series["value"])
        case {"resultType": "scalar", "result": [at_s, value]}:
            document["data"]["result"] = change(at_s, value)
    return document
