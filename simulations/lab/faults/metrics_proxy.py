"""The fault proxy between the operator and Prometheus: it forwards every query and loses what a scenario says is lost.

It stands in front of the real server and never makes an answer up: it forwards, it takes series away, or it returns
what the real server has found in the way that servers in trouble do.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simulations.lab.faults.disturbances import Disturbance
from simulations.lab.faults.fault_proxy import Asked, Fault, FaultProxy, Rewrite

_VECTORS = ("vector", "matrix")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loss:
    """What to lose: what belongs to one pipeline, known by its Deployments and by the queries of its own."""

    namespace: str
    deployments: tuple[str, ...]
    queries: frozenset[str] = frozenset()

    def takes(self, query: str, labels: Mapping[str, str]) -> bool:
        """Whether the series with `labels` that answers `query` is lost."""
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
    """Lose everything."""

    def takes(self, query: str, labels: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Return that the series is lost."""
        return True


class MetricsProxy(FaultProxy):
    """A fault proxy in front of Prometheus; `losses` and `disturbances` may be replaced at any time.

    Both are compared by identity: two alike may overlap, and each ends by itself.
    """

    def __init__(self, upstream: str, port: int) -> None:
        super().__init__(upstream, port)
        self._losses: tuple[Loss | TotalLoss, ...] = ()
        self._disturbances: tuple[Disturbance, ...] = ()
        self._own: Fault | None = None

    @property
    def losses(self) -> tuple[Loss | TotalLoss, ...]:
        """Return what is lost."""
        return self._losses

    @losses.setter
    def losses(self, losses: tuple[Loss | TotalLoss, ...]) -> None:
        self._losses = losses
        self._changed_own()

    @property
    def disturbances(self) -> tuple[Disturbance, ...]:
        """Return what else happens to answers, in this order."""
        return self._disturbances

    @disturbances.setter
    def disturbances(self, disturbances: tuple[Disturbance, ...]) -> None:
        self._disturbances = disturbances
        self._changed_own()

    def _changed_own(self) -> None:
        others = tuple(fault for fault in self.faults if fault is not self._own)
        self._own = None
        if self._losses or self._disturbances:
            self._own = Fault(effect=Rewrite(document=self._disturbed, asks=self._asks if self._disturbances else None))
            others = (*others, self._own)
        self.faults = others

    def _asks(self, asked: Asked) -> Mapping[str, str]:
        query = dict(asked.query)
        for disturbance in self._disturbances:
            text, at_s = disturbance.asked(query.get("query", ""))
            query |= {"query": text} if at_s is None else {"query": text, "time": f"{at_s:.3f}"}
        return query

    def _disturbed(self, asked: Asked, document: Any) -> Any:
        """Take from an answer what is lost, and do to the rest what is to be done."""
        query, data, losses = asked.query.get("query", ""), document.get("data"), self._losses
        match data:
            case {"resultType": "vector" | "matrix", "result": list() as result}:
                left = [series for series in result if not any(loss.takes(query, series["metric"]) for loss in losses)]
                for disturbance in self._disturbances if data["resultType"] == "vector" else ():
                    left = disturbance.answered(query, left)
                data["result"] = left
            case {"resultType": "scalar", "result": [at_s, _]} if any(loss.takes(query, {}) for loss in losses):
                data["result"] = [at_s, "NaN"]  # what Prometheus makes of a scalar() over nothing
        return document


def partial() -> Rewrite:
    """Return the fault of a server that sees every second pod of each workload, in the order of their names."""

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
    """Return the fault of a server for which every value is NaN, as after a division by nothing."""

    def replace(_: Asked, document: Any) -> Any:
        return _with_samples(document, lambda at_s, _: [at_s, "NaN"])

    return Rewrite(document=replace)


def duplicated() -> Rewrite:
    """Return the fault of a pair of servers whose answers nobody merges: every series comes twice."""

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


def clock_ahead(seconds: float) -> Rewrite:
    """Return the fault of a server whose clock is ahead: it dates what it answers in the future."""

    def date(_: Asked, document: Any) -> Any:
        return _with_samples(document, lambda at_s, value: [at_s + seconds, value])

    return Rewrite(document=date)


def stale(seconds: float) -> Rewrite:
    """Return the fault of a server that has had no sample for `seconds`, and still answers with the last ones.

    It is asked what it knew then, while its clock (`time()` in a query) is that of now.
    """

    def then(asked: Asked) -> Mapping[str, str]:
        query = re.sub(r"\btime\(\)", f"(time() + {seconds:g})", asked.query.get("query", ""))
        return {**asked.query, "query": query, "time": f"{time.time() - seconds:.3f}"}

    def now(_: Asked, document: Any) -> Any:
        return _with_samples(document, lambda at_s, value: [at_s + seconds, value])

    return Rewrite(asks=then, document=now)


def _with_samples(document: Any, change: Callable[[float, str], list[Any]]) -> Any:
    """Change every sample of an answer, which is a time and a value."""
    match document.get("data"):
        case {"resultType": "vector", "result": list() as result}:
            for series in result:
                series["value"] = change(*series["value"])
        case {"resultType": "scalar", "result": [at_s, value]}:
            document["data"]["result"] = change(at_s, value)
    return document
