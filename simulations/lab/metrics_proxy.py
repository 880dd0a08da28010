"""The fault proxy between the operator and Prometheus: it forwards every query and loses what a scenario says is lost.

It stands in front of the real server and never makes an answer up: it forwards, or it takes series away.
"""

import asyncio
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What to lose: everything, or what belongs to one pipeline, known by its namespace, name and workloads."""

    namespace: str | None = None
    pipeline: str | None = None
    workloads: tuple[str, ...] = ()

    def takes(self, query: str, labels: Mapping[str, str]) -> bool:
        """Whether the series with `labels` that answers `query` is lost."""
        if self.pipeline is None:
            return True
        if "pod" in labels:
            of_ours = any(labels["pod"].startswith(f"{workload}-") for workload in self.workloads)
            return labels.get("namespace") == self.namespace and of_ours
        # An aggregate without labels is known by what was asked.
        return f'pipeline="{self.pipeline}"' in query and f'namespace="{self.namespace}"' in query


class MetricsProxy:
    """A reverse proxy on a loopback port of its own thread; `losses` may be replaced at any time."""

    def __init__(self, upstream: str, port: int) -> None:
        self.url = f"http://{LOOPBACK}:{port}"
        self.losses: tuple[Loss, ...] = ()
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
                query = request.query.get("query", "") or (await request.post()).get("query", "")
                result = document.get("data", {}).get("result") if isinstance(document.get("data"), dict) else None
                if isinstance(result, list):
                    document["data"]["result"] = [
                        series
                        for series in result
                        if not any(loss.takes(str(query), series.get("metric", {})) for loss in losses)
                    ]
                return web.json_response(document, status=answer.status)
        except aiohttp.ClientError as error:
            return web.Response(status=502, text=f"Prometheus did not answer: {error}")
