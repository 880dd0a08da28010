"""The probes of a container, asked over HTTP at the address of its pod."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

Json = Mapping[str, Any]
_DEFAULT_FAILURES = 3


class Probes:
    """The probes of one container; a missing one succeeds."""

    def __init__(self, container: Json, address: str) -> None:
        """Read the probes of `container`, whose ports are reached at `address`."""
        self._container = container
        self._address = address

    async def started(self) -> bool:
        """Return True when the startup probe has succeeded, False when it has failed too often."""
        probe = self._container.get("startupProbe")
        if probe is None:
            return True
        for _ in range(probe.get("failureThreshold", _DEFAULT_FAILURES)):
            if await self._succeeds(probe):
                return True
            await asyncio.sleep(probe.get("periodSeconds", 10))
        return False

    async def dead(self) -> None:
        """Return when the liveness probe has failed too often in a row."""
        probe = self._container.get("livenessProbe")
        failures = 0
        if probe is None:
            await asyncio.get_running_loop().create_future()  # never done
            return
        while failures < probe.get("failureThreshold", _DEFAULT_FAILURES):
            failures = 0 if await self._succeeds(probe) else failures + 1
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def readiness(self) -> AsyncIterator[bool]:
        """Yield True for each success of the readiness probe, False when it has failed too often in a row."""
        probe = self._container.get("readinessProbe")
        if probe is None:
            yield True
            return
        failures = 0
        while True:
            failures = 0 if await self._succeeds(probe) else failures + 1
            if failures in {0, probe.get("failureThreshold", _DEFAULT_FAILURES)}:
                yield failures == 0
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def _succeeds(self, probe: Json) -> bool:
        ask = probe["httpGet"]
        ports = {port.get("name"): port["containerPort"] for port in self._container.get("ports", ())}
        url = f"http://{self._address}:{ports.get(ask['port'], ask['port'])}{ask.get('path', '/')}"
        limit = aiohttp.ClientTimeout(total=probe.get("timeoutSeconds", 1))
        try:
            async with aiohttp.ClientSession(timeout=limit) as session, session.get(url) as answer:
                return answer.ok
        except (aiohttp.ClientError, TimeoutError):
            return False
