"""An asyncio client of the Kubernetes API, with the few calls that the lab's processes need.

The official client blocks. It would need a thread, which would disturb the timing of the queues in the same process.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import aiohttp
import yaml

EventType = Literal["ADDED", "MODIFIED", "DELETED"]

_FORBIDDEN = frozenset({401, 403})
_RETRIED = frozenset({429, 500, 502, 503, 504})
_ATTEMPTS = 8
_FIRST_PAUSE_S = 0.05
_REQUEST_S = 5.0
_LONGEST_LINE = 1 << 22  # an event is one line, and etcd stores objects up to 1.5 MiB


class KubeApiError(RuntimeError):
    """The API server refused a request, or could not be reached; `status` is the HTTP status, 0 without an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ObjectEvent(NamedTuple):
    """A change of one object; `object` is the whole object after the change, or before its deletion."""

    type: EventType
    object: dict[str, Any]


class KubeApi:
    """Sends JSON requests and watches with the token of a kubeconfig's user; use it with `async with`.

    A request that fails for a transient reason is sent again, up to `_ATTEMPTS` times in all.
    """

    def __init__(self, kubeconfig: Path) -> None:
        """Read `kubeconfig`; needs a running event loop.

        Raises:
            ValueError: the user has no token, or the cluster no certificate-authority.
        """
        try:
            config = yaml.safe_load(kubeconfig.read_text())
            context = _named(config["contexts"], config["current-context"])["context"]
            cluster = _named(config["clusters"], context["cluster"])["cluster"]
            token = _named(config["users"], context["user"])["user"]["token"]
            trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
        except KeyError as missing:
            raise ValueError(f"{kubeconfig}: {missing}: is missing; use a kubeconfig of the lab") from None
        self._session = aiohttp.ClientSession(
            cluster["server"],
            connector=aiohttp.TCPConnector(ssl=trust),
            headers={"Authorization": f"Bearer {token}"},
            read_bufsize=_LONGEST_LINE,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the object or the list at `path`; `params` are query parameters.

        Raises:
            KubeApiError: the server refused, or did not answer in several attempts (status 0).
        """
        return await self._request("GET", path, params=params)

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create the object `body` in the collection, or as the subresource, at `path`, and return the server's answer.

        Raises:
            KubeApiError: the server refused, or did not answer in several attempts (status 0). An attempt without an
                answer may have created the object; then the next one is refused with status 409.
        """
        return await self._request("POST", path, body=body)

    async def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Apply `body` as a strategic merge patch to the object at `path`, and return the patched object.

        Raises:
            KubeApiError: the server refused, or did not answer in several attempts (status 0).
        """
        return await self._request("PATCH", path, body=body, media_type="application/strategic-merge-patch+json")

    async def delete(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Delete the object at `path`, with `body` as its DeleteOptions, and return the server's answer.

        Raises:
            KubeApiError: the server refused, or did not answer in several attempts (status 0).
        """
        return await self._request("DELETE", path, body=body, media_type="application/json")

    async def watch(self, path: str, params: Mapping[str, str] | None = None) -> AsyncGenerator[ObjectEvent, None]:
        """Yield the objects of the collection at `path` as ADDED, then their changes, without end.

        After an interruption (the watch was closed or has expired) the collection is listed again. Objects that exist
        are then yielded as ADDED once more. Objects deleted in between are yielded as DELETED, in their last known
        state.

        Raises:
            KubeApiError: the server refused the list or the watch, or did not answer in several attempts (status 0).
        """
        known: dict[str, dict[str, Any]] = {}
        while True:
            listing = await self.get(path, params)
            present = {item["metadata"]["uid"]: item for item in listing["items"]}
            for uid in known.keys() - present.keys():
                yield ObjectEvent("DELETED", known[uid])
            known = present
            for item in present.values():
                yield ObjectEvent("ADDED", item)
            async with aclosing(self._changes(path, params, listing["metadata"]["resourceVersion"])) as changes:
                async for event in changes:
                    uid = event.object["metadata"]["uid"]
                    if event.type == "DELETED":
                        known.pop(uid, None)
                    else:
                        known[uid] = event.object
                    yield event
            await asyncio.sleep(_FIRST_PAUSE_S)

    async def _changes(
        self, path: str, params: Mapping[str, str] | None, version: str
    ) -> AsyncGenerator[ObjectEvent, None]:
        """Yield the events after the resource version `version`, until the watch ends for any reason.

        Raises:
            KubeApiError: the server refused the watch with status 401 or 403.
        """
        query = {**(params or {}), "watch": "true", "resourceVersion": version}
        forever = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_S)
        try:
            async with self._session.get(path, params=query, timeout=forever) as answer:
                if answer.status in _FORBIDDEN:
                    raise KubeApiError(answer.status, f"watch {path}: {answer.reason}")
                if not answer.ok:
                    return
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    yield ObjectEvent(event["type"], event["object"])
        except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError):
            return

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        media_type: str = "application/json",
    ) -> dict[str, Any]:
        """Return the answer to a request; send the request again after a transient failure."""
        data = None if body is None else json.dumps(body)
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)
            try:
                async with self._session.request(
                    method,
                    path,
                    params=params,
                    data=data,
                    headers={"Content-Type": media_type},
                    timeout=aiohttp.ClientTimeout(total=_REQUEST_S),
                ) as answer:
                    content: dict[str, Any] = await answer.json()
                    if answer.ok:
                        return content
                    error = KubeApiError(answer.status, f"{method} {path}: {content.get('message', answer.status)}")
            except (aiohttp.ClientError, TimeoutError) as failure:
                error = KubeApiError(0, f"{method} {path}: {failure!r}")
            if error.status not in _RETRIED and error.status != 0:
                break
        raise error


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for entry in entries:
        if entry["name"] == name:
            return entry
    raise KeyError(name)
