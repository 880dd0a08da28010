"""The proxy between the operator and Prometheus, which applies the metrics faults of a scenario.

It never makes up an answer: it forwards each query to the real server, and removes or changes series of the answer.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from typing_extensions import override

from profiler.sources.joined_queries import query_of
from simulations.lab.faults.metric_faults import MetricFault
from simulations.lab.faults.reverse_proxy import ReverseProxy, end_to_end, parameters


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loss:
    """The loss of one pipeline's metrics.

    Lost are the series of the pods of `deployments` in `namespace`, and the answers to the pipeline's own `queries`.
    """

    namespace: str
    deployments: tuple[str, ...]
    queries: frozenset[str] = frozenset()

    def takes(self, query: str, labels: Mapping[str, str]) -> bool:
        """Whether the series with `labels` in the answer to `query` is lost."""
        if query in self.queries:
            return True
        deployment = "|".join(map(re.escape, self.deployments))
        if "pod" in labels:
            # <Deployment>-<template hash>-<random>: the pods of `asr-gpu` are not those of `asr`.
            of_ours = re.fullmatch(rf"({deployment})-[a-z0-9]+-[a-z0-9]+", labels["pod"])
            return labels.get("namespace") == self.namespace and of_ours is not None
        # An aggregate over pods that the query names, escaped as in a regular expression.
        named = rf'namespace=~"{re.escape(self.namespace)}", pod=~"([^"]*\|)?({deployment})-[a-z0-9]+-[a-z0-9]+[|"]'
        return re.search(named, query.replace("\\", "")) is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TotalLoss:
    """The loss of the metrics of all pipelines."""

    def takes(self, query: str, labels: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Whether the series is lost: always true."""
        return True


class MetricsProxy(ReverseProxy):
    """A proxy in front of Prometheus that removes lost series from answers and lets faults change the others.

    `losses` and `faults` may be replaced at any time, from any thread. Each element stands for itself even if it equals
    another: when two faults of a scenario overlap, the end of one does not end the other.
    """

    def __init__(self, upstream: str, port: int) -> None:
        super().__init__(upstream, port)
        self.losses: tuple[Loss | TotalLoss, ...] = ()
        self.faults: tuple[MetricFault, ...] = ()

    @override
    async def handle(self, request: web.Request) -> web.StreamResponse:
        losses, faults = self.losses, self.faults
        asked = await parameters(request)
        async with self._forwarded(request, _changed_query(asked, faults) if faults else None) as answer:
            content = await answer.read()
            if (losses or faults) and answer.content_type == "application/json":
                content = json.dumps(changed(json.loads(content), asked.get("query", ""), losses, faults)).encode()
            return web.Response(status=answer.status, body=content, headers=end_to_end(answer.headers))


def _changed_query(asked: Mapping[str, str], faults: tuple[MetricFault, ...]) -> Mapping[str, str]:
    query = dict(asked)
    for fault in faults:
        text, at_s = fault.changed_query(query.get("query", ""))
        query |= {"query": text} if at_s is None else {"query": text, "time": f"{at_s:.3f}"}
    return query


def changed(
    document: Any, query: str, losses: tuple[Loss | TotalLoss, ...], faults: tuple[MetricFault, ...] = ()
) -> Any:
    """Return the answer `document` to `query`, in JSON, without lost series and with the changes of the faults.

    `document` is changed in place. Faults change only instant vectors.
    """
    match document.get("data"):
        case {"resultType": "vector" | "matrix" as kind, "result": list() as result}:
            # A series of a joined query is affected as if its own query had been sent alone.
            left: dict[str, list[Any]] = {}
            for series in result:
                own = query_of(query, series["metric"])
                if not any(loss.takes(own, series["metric"]) for loss in losses):
                    left.setdefault(own, []).append(series)
            for fault in faults if kind == "vector" else ():
                left = {own: fault.changed_series(own, found) for own, found in left.items()}
            document["data"]["result"] = [series for found in left.values() for series in found]
        case {"resultType": "scalar", "result": [at_s, _]} if any(loss.takes(query, {}) for loss in losses):
            document["data"]["result"] = [at_s, "NaN"]  # what Prometheus returns for a scalar() of no series
    return document
