"""Requests to the dashboard of a Ray cluster, each with a time limit."""

import json
from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote

import urllib3

from controller.ray.applications import Applications, ServeFailure, ServeRefusal, read_applications

_TIMEOUT = urllib3.Timeout(connect=1.0, read=2.0, total=2.5)
_MOST_BYTES = 16_000_000
"""A larger answer is refused: an application has thousands of replicas at most, each with half a kilobyte."""
_MOST_CHARACTERS = 500


class ServeApi(Protocol):
    """Ray Serve's REST API; `address` is the URL of the dashboard, without a path."""

    def read(self, address: str) -> Applications:
        """Return the applications of the cluster.

        Raises:
            ServeFailure: it does not answer, or with an error.
        """
        ...

    def scale(self, address: str, application: str, deployment: str, replicas: int) -> None:
        """Set the replicas that a deployment is to have, which Ray then starts or stops.

        Raises:
            ServeRefusal: Ray refuses it: status 404 without such a deployment, 412 where the application does not have
                `external_scaler_enabled: true`.
            ServeFailure: there is no answer, or an error.
        """
        ...


class ServeClient:
    """Calls the API by HTTP. Redirects are not followed: an answer must not lead anywhere else."""

    def __init__(self, permit: Callable[[], None] = lambda: None) -> None:
        """`permit` is called right before each request that changes something; if it raises, nothing is sent."""
        self._permit = permit
        self._pool = urllib3.PoolManager(maxsize=8, timeout=_TIMEOUT, retries=False)

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def read(self, address: str) -> Applications:
        """Return the applications of the cluster."""
        return read_applications(self._asked("GET", f"{address}/api/serve/applications/"))

    def scale(self, address: str, application: str, deployment: str, replicas: int) -> None:
        """Set the replicas that a deployment is to have."""
        path = f"/api/v1/applications/{quote(application, safe='')}/deployments/{quote(deployment, safe='')}/scale"
        self._permit()
        self._asked("POST", f"{address}{path}", {"target_num_replicas": replicas})

    def _asked(self, method: str, url: str, body: object = None) -> bytes:
        headers = {"Accept": "application/json"} | ({} if body is None else {"Content-Type": "application/json"})
        try:
            answer = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                preload_content=False,
                redirect=False,
            )
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise ServeFailure(f"{method} {url}: no answer: {_words(error)}") from error
        try:
            text: bytes = answer.read(_MOST_BYTES + 1)
        except urllib3.exceptions.HTTPError as error:
            raise ServeFailure(f"{method} {url}: the answer broke off: {_words(error)}") from error
        finally:
            answer.close()
        if answer.status != 200:
            raise ServeRefusal(f"{method} {url}: {answer.status} {_problem(text)}", answer.status)
        if len(text) > _MOST_BYTES:
            raise ServeFailure(f"{method} {url}: the answer has more than {_MOST_BYTES:,} bytes")
        return text


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(reason).rpartition(": ")[2] or type(error).__name__


def _problem(text: bytes) -> str:
    """Return the error that an answer has, else the beginning of its text."""
    try:
        words = str(json.loads(text)["error"])
    except (ValueError, TypeError, KeyError):
        words = text.decode(errors="replace")
    return " ".join(words.split())[:_MOST_CHARACTERS]
