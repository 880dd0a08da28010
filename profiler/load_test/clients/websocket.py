"""Sessions over WebSocket: a client sends a chunk of audio and waits for the message that answers it."""

import asyncio
from collections.abc import Mapping

import aiohttp

from profiler.load_test.clients.http import beside, metrics_of
from profiler.load_test.clients.port import Client, RequestFailed


class WebSocketTarget:
    """A server that answers each binary message with one message, in a session per connection."""

    continuous: bool | None = None
    sessions = True

    def __init__(
        self,
        url: str,
        *,
        chunk: bytes,
        timeout_s: float,
        headers: Mapping[str, str],
        metrics_url: str | None = None,
    ) -> None:
        self.name, self._chunk, self._timeout_s, self._headers = url, chunk, timeout_s, headers
        self._metrics_url = metrics_url or beside(url, "/metrics")
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def client(self) -> Client:
        """Return a client with a connection of its own."""
        try:
            async with asyncio.timeout(self._timeout_s):
                socket = await self._http.ws_connect(self.name, headers=self._headers, compress=0)
        except aiohttp.WSServerHandshakeError as error:
            raise RequestFailed(f"no WebSocket: status {error.status}") from None
        except TimeoutError:
            raise RequestFailed("no connection within the time limit of a request") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise RequestFailed(f"no connection: {error}") from None
        return WebSocketClient(socket, self._chunk, self._timeout_s)

    async def metrics(self) -> str | None:
        """Return the text of the server's metrics, None where there are none."""
        return await metrics_of(self._http, self._metrics_url)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()


class WebSocketClient:
    """One session."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, chunk: bytes, timeout_s: float) -> None:
        self._socket, self._chunk, self._timeout_s = socket, chunk, timeout_s

    async def request(self) -> float | None:
        """Send a chunk and wait for the message that answers it."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._socket.send_bytes(self._chunk)
                message = await self._socket.receive()
        except TimeoutError:
            raise RequestFailed("no answer within the time limit of a request") from None
        except (aiohttp.ClientError, OSError) as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from None
        if message.type not in {aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY}:
            raise RequestFailed(f"the server closed the session (code {self._socket.close_code})")
        return None

    async def close(self) -> None:
        """Close the session."""
        await self._socket.close()
