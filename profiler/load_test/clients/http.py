"""Requests over HTTP: any body, KServe's inference protocol (Triton), completions and chats of OpenAI's API."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from profiler.load_test.clients.port import Client, RequestFailed, TargetInvalid

METRICS_S = 2.0
"""The longest time to wait for the metrics of a server."""
_BYTES = {
    "BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2,
    "UINT32": 4, "INT32": 4, "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8,
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Call:
    """One request of HTTP, the same each time. A `streamed` answer has server-sent events."""

    url: str
    method: str = "POST"
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    streamed: bool = False


class HttpTarget:
    """A server that answers `call`; `metrics_url` is where its metrics are, None for the same host at /metrics."""

    sessions = False

    def __init__(
        self,
        call: Call,
        *,
        name: str,
        timeout_s: float,
        metrics_url: str | None = None,
        continuous: bool | None = None,
    ) -> None:
        self.call, self.name, self.continuous = call, name, continuous
        self._metrics_url = metrics_url or beside(call.url, "/metrics")
        self.http = _session(timeout_s)

    async def client(self) -> Client:
        """Return a client; connections are opened when it sends."""
        return HttpClient(self.http, self.call)

    async def metrics(self) -> str | None:
        """Return the text of the server's metrics, None where there are none in Prometheus' format."""
        return await metrics_of(self.http, self._metrics_url)

    async def close(self) -> None:
        """Close all connections."""
        await self.http.close()


class HttpClient:
    """Sends one call again and again."""

    def __init__(self, http: aiohttp.ClientSession, call: Call) -> None:
        self._http, self._call = http, call

    async def request(self) -> float | None:
        """Send the call; any status of 300 and more is a failure."""
        call, first_s = self._call, None
        try:
            async with self._http.request(
                call.method, call.url, data=call.body or None, headers=call.headers, allow_redirects=False
            ) as answer:
                if answer.status >= 300:
                    said = (await answer.content.read(200)).decode(errors="replace").strip()
                    raise RequestFailed(f"status {answer.status}{f': {said}' if said else ''}")
                if not call.streamed:
                    await answer.read()
                    return None
                async for line in answer.content:
                    if line.startswith(b"data:") and b"[DONE]" not in line:
                        if b'"error"' in line[:40]:
                            raise RequestFailed(f"error in the stream: {line[5:200].decode(errors='replace').strip()}")
                        first_s = asyncio.get_running_loop().time() if first_s is None else first_s
        except TimeoutError:
            raise RequestFailed("no answer within the time limit of a request") from None
        except aiohttp.ClientConnectorError as error:
            raise RequestFailed(f"no connection: {error.os_error.strerror or error}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from None
        if first_s is None:
            raise RequestFailed("the streamed answer has no event")
        return first_s

    async def close(self) -> None:
        """Do nothing: the connections belong to the target."""


async def openai_target(
    base_url: str,
    *,
    chat: bool,
    model: str | None,
    prompt: str,
    max_tokens: int,
    timeout_s: float,
    headers: Mapping[str, str],
    metrics_url: str | None = None,
) -> HttpTarget:
    """Return a server of OpenAI's API with streamed answers. Without `model`, the only one that it lists is used.

    Raises:
        TargetInvalid: it lists no model, or several.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    if model is None:
        listed = await _asked(f"{root}/v1/models", timeout_s, headers)
        names = [own["id"] for own in listed.get("data", []) if isinstance(own, dict) and "id" in own]
        if len(names) != 1:
            raise TargetInvalid(f"{root}/v1/models lists {', '.join(names) or 'no model'}: choose one with --model")
        model = names[0]
    content: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "stream": True}
    content |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    call = Call(
        url=f"{root}/v1/{'chat/completions' if chat else 'completions'}",
        body=json.dumps(content).encode(),
        headers={"Content-Type": "application/json", **headers},
        streamed=True,
    )
    return HttpTarget(call, name=model, timeout_s=timeout_s, metrics_url=metrics_url, continuous=True)


async def kserve_target(
    base_url: str,
    *,
    model: str | None,
    shapes: Mapping[str, Sequence[int]],
    timeout_s: float,
    headers: Mapping[str, str],
    metrics_url: str | None = None,
) -> HttpTarget:
    """Return a server of KServe's inference protocol v2 whose inputs are zeros of the shapes that it declares.

    Source: KServe, Open Inference Protocol v2, with the extension for binary data (Triton). Sizes that a model leaves
    open (-1) are 1, or those in `shapes`.

    Raises:
        TargetInvalid: no model is named, or the server does not know it or the type of an input.
    """
    if model is None:
        raise TargetInvalid("KServe's protocol has no list of models: choose one with --model")
    described = await _asked(f"{base_url.rstrip('/')}/v2/models/{model}", timeout_s, headers)
    header, data = kserve_request(described.get("inputs", []), shapes)
    head = json.dumps(header).encode()
    call = Call(
        url=f"{base_url.rstrip('/')}/v2/models/{model}/infer",
        body=head + data,
        headers={
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(head)),
            **headers,
        },
    )
    return HttpTarget(call, name=model, timeout_s=timeout_s, metrics_url=metrics_url)


def kserve_request(
    inputs: Sequence[Mapping[str, Any]], shapes: Mapping[str, Sequence[int]]
) -> tuple[dict[str, Any], bytes]:
    """Return the header of a request with these inputs, and their data: zeros, and for strings empty ones.

    Raises:
        TargetInvalid: an input has a type that is not known, or `shapes` names an input that the model does not have.
    """
    names = {str(own.get("name")) for own in inputs}
    if unknown := shapes.keys() - names:
        raise TargetInvalid(f"--shape {min(unknown)}: the model has the inputs {', '.join(sorted(names))}")
    described, data = [], b""
    for own in inputs:
        name, kind = str(own.get("name")), str(own.get("datatype"))
        shape = list(shapes.get(name, [max(1, int(size)) for size in own.get("shape", [])]))
        count = 1
        for size in shape:
            count *= size
        if kind == "BYTES":
            content = b"\0\0\0\0" * count  # each string has its length in front
        elif kind in _BYTES:
            content = bytes(_BYTES[kind] * count)
        else:
            raise TargetInvalid(f"input {name}: type {kind!r} is not known")
        described.append(
            {"name": name, "datatype": kind, "shape": shape, "parameters": {"binary_data_size": len(content)}}
        )
        data += content
    return {"inputs": described}, data


def beside(url: str, path: str) -> str:
    """Return the URL of `path` on the host of `url`."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    return urlunsplit((scheme, parts.netloc, path, "", ""))


async def metrics_of(http: aiohttp.ClientSession, url: str) -> str | None:
    """Return the text of metrics at `url`, None where there is none."""
    try:
        async with http.get(url, timeout=aiohttp.ClientTimeout(total=METRICS_S), allow_redirects=False) as answer:
            return await answer.text() if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


def _session(timeout_s: float) -> aiohttp.ClientSession:
    # A client is one place of the load: what waits for a connection would be measured as the server's.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=timeout_s)
    )


async def _asked(url: str, timeout_s: float, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object at `url`.

    Raises:
        TargetInvalid: there is none.
    """
    async with _session(timeout_s) as http:
        try:
            async with http.get(url, headers=headers, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise TargetInvalid(f"{url}: status {answer.status}")
                found = await answer.json(content_type=None)
        except TimeoutError:
            raise TargetInvalid(f"{url}: no answer within {timeout_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise TargetInvalid(f"{url}: no connection: {error.os_error.strerror or error}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TargetInvalid(f"{url}: {type(error).__name__}: {error}") from None
    if not isinstance(found, dict):
        raise TargetInvalid(f"{url}: the answer is no JSON object")
    return found
