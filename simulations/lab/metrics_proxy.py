"""The fault proxy between the operator and Prometheus: it forwards every query and loses what a scenario says is lost.

It stands in front of the real server and never makes an answer up: it forwards, or it takes series away.
"""

import asyncio
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

from simulations.lab.processes import LOOPBACK

_START_S = 10.0
_PER_CONNECTION_HEADERS = {
    "content-length",
    "content-encoding",
    "transfer-encoding",
    "connection",
    "date",
    "server",
    "host",
}


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


class MetricsProxy:
    """A reverse proxy on a loopback port of its own thread; `losses` may be replaced at any time.

    Losses are compared by identity: two alike may overlap, and each ends by itself.
    """

    def __init__(self, upstream: str, port: int) -> None:
        self.url = f"http://{LOOPBACK}:{port}"
        self.losses: tuple[Loss | TotalLoss, ...] = ()
        self._upstream = upstream
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="metrics-proxy", daemon=True)
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._open()).result(_START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._close()).result(_START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    def _call(self, work: Any) -> "Future[None]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self) -> None:
        self._session = aiohttp.ClientSession()
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, self._port).start()

    async def _close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _forward(self, request: web.Request) -> web.Response:
        assert self._session is not None
        body = await request.read()
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in _PER_CONNECTION_HEADERS
        }
        try:
            async with self._session.request(
                request.method, f"{self._upstream}{request.rel_url}", data=body, headers=headers
            ) as answer:
                losses = self.losses
                if not losses or answer.content_type != "application/json":
                    return web.Response(
                        status=answer.status, body=await answer.read(), content_type=answer.content_type
                    )
                document = await answer.json()
                query = request.query.get("query") or (await request.post()).get("query", "")
                _lose(losses, str(query), document.get("data"))
                return web.json_response(document, status=answer.status)
        except aiohttp.ClientError as error:
            return web.Response(status=502, text=f"Prometheus did not answer: {error}")


def _lose(losses: tuple[Loss | TotalLoss, ...], query: str, data: Any) -> None:
    """Take from `data`, the answer to `query`, what is lost."""
    match data:
        case {"resultType": "vector" | "matrix", "result": list() as result}:
            data["result"] = [
                series for series in result if not any(loss.takes(query, series["metric"]) for loss in losses)
            ]
        case {"resultType": "scalar", "result": [at_s, _]} if any(loss.takes(query, {}) for loss in losses):
            data["result"] = [at_s, "NaN"]  # what Prometheus makes of a scalar() over nothing
