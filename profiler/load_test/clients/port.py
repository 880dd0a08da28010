"""The ports of a load test: a target that opens clients, and a client that sends one request at a time."""

from typing import Protocol


class RequestFailed(Exception):
    """A request has no valid answer; the message says why, in words that are the same for the same cause."""


class TargetInvalid(Exception):
    """The target cannot be used at all; the message says what to change."""


class Client(Protocol):
    """One client: a connection, or a session of a server that keeps some."""

    async def request(self) -> float | None:
        """Send a request and wait for the end of its answer; return when its first part came.

        The time is that of the event loop, in seconds. None: the answer is not streamed.

        Raises:
            RequestFailed: there is no answer, or one that says that the request was not served.
        """
        ...

    async def close(self) -> None:
        """Close the connection; nothing is left at the server."""
        ...


class Target(Protocol):
    """What is put under load.

    `continuous` says how it batches, where the protocol tells, else None; `sessions` that each client is a session.
    """

    name: str
    continuous: bool | None
    sessions: bool

    async def client(self) -> Client:
        """Return a new client.

        Raises:
            RequestFailed: the server accepts no connection.
            TargetInvalid: the server speaks another protocol, or misses what the requests need.
        """
        ...

    async def metrics(self) -> str | None:
        """Return the text of the server's metrics, None where it has none."""
        ...

    async def close(self) -> None:
        """Close all that the clients share."""
        ...
