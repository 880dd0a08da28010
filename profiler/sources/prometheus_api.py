"""Asking Prometheus' query API, or what speaks it, within a deadline.

A thin layer on prometheus-api-client, of which only `custom_query` is used: its own retries multiply the timeout, it
drops the warnings that mark a partial answer, and takes a login page for a crash.
"""

import io
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import requests
from prometheus_api_client import PrometheusConnect
from requests.auth import AuthBase
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util.retry import Retry

from profiler.samples import Absence, AbsenceReason

_ATTEMPTS = 2
_PAUSE_S = 0.1
_CONNECT_S = 2.0
_WORKERS = 4
_MOST_BYTES = 64 * 2**20
"""Of one answer: twenty thousand pods with a histogram each take about forty."""
_CHUNK = 2**16
_MOST_OFF_S = 60.0
"""That an answer may be evaluated before or after the moment at which it was sent."""
_SHOWN = 200
"""Characters of a foreign message that a person is shown."""


class PrometheusApi:
    """A back end at `url`.

    `token_file` holds a bearer token and is read again for every query, because it rotates; `ca_file` replaces the
    system's trust store.
    """

    def __init__(self, url: str, *, token_file: Path | None = None, ca_file: Path | None = None) -> None:
        session = requests.Session()
        session.hooks["response"] += [self._read, _require_complete_answer]
        self._asking = threading.local()
        if token_file is not None:
            session.auth = _BearerToken(token_file)
        if ca_file is not None:
            session.verify = str(ca_file)
        self._client = PrometheusConnect(url=url.rstrip("/"), session=session, retry=Retry(total=0))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ask(self, queries: Collection[str], deadline_s: float) -> dict[str, Any]:
        """Return for every query the API's `result`, or the `Absence` that stands for it, by the deadline."""
        end_s = time.monotonic() + deadline_s
        pool = ThreadPoolExecutor(max_workers=_WORKERS, thread_name_prefix="prometheus")
        try:
            pending: dict[str, Future[Any]] = {query: pool.submit(self._ask_one, query, end_s) for query in queries}
            wait(pending.values(), timeout=deadline_s)
            late = _unavailable(f"no answer within {deadline_s:g} s")
            return {query: future.result() if future.done() else late for query, future in pending.items()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, response: requests.Response, **_: object) -> None:
        """Read the body, within bounds of size and time: a server that never ends must hold neither."""
        body = bytearray()
        try:
            for chunk in response.raw.stream(_CHUNK, decode_content=True):
                body += chunk
                _require_an_end(len(body), self._asking.end_s)
        except ReadTimeoutError as error:
            raise requests.Timeout from error
        except HTTPError as error:
            raise requests.ConnectionError(error) from error
        except _NoAnswer:
            response.raw.close()
            raise
        response.raw = HTTPResponse(io.BytesIO(body), preload_content=False)

    def _ask_one(self, query: str, end_s: float) -> Any:
        self._asking.end_s = end_s
        problem = "no time was left to ask"
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S)
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            read_s = left_s / (_ATTEMPTS - attempt)
            try:
                return self._client.custom_query(query, timeout=(min(_CONNECT_S, read_s), read_s))
            except _PartialAnswer as partial:
                return Absence(reason=AbsenceReason.PARTIAL, detail=f"Prometheus: {partial}")
            except _AnswerOfAnotherTime as stale:
                return Absence(reason=AbsenceReason.STALE, detail=f"Prometheus: {stale}")
            except _NoAnswer as refusal:
                return _unavailable(str(refusal))
            except _BadQuery as error:
                return _unavailable(f"{error}, in: {query}")
            except _Overloaded as error:
                problem = str(error)
            except requests.Timeout:
                problem = "no answer in time"
            except requests.RequestException as error:
                problem = _cause(error)
        return _unavailable(problem)


class _PartialAnswer(Exception):
    """The back end says itself that parts are missing."""


class _AnswerOfAnotherTime(Exception):
    """What came may have been true once."""


class _NoAnswer(Exception):
    """What came is not an answer, and asking again would not change it."""


class _BadQuery(Exception):
    """The back end understands the query and refuses it."""


class _Overloaded(Exception):
    """The back end could not answer now."""


class _BearerToken(AuthBase):
    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        try:
            token = self._file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise _NoAnswer(f"bearer token {self._file}: {error.strerror}") from error
        request.headers["Authorization"] = f"Bearer {token}"
        return request


def _require_an_end(size: int, end_s: float) -> None:
    if size > _MOST_BYTES:
        raise _NoAnswer(f"more than {_MOST_BYTES // 2**20} MiB in answer to one query")
    if time.monotonic() > end_s:
        raise _NoAnswer("no end of the answer in time")


def _require_complete_answer(response: requests.Response, **_: object) -> None:
    """Raise unless the response is a complete answer of the query API."""
    status = response.status_code
    if response.is_redirect:
        return
    if status == requests.codes.too_many_requests or status >= 500:
        raise _Overloaded(f"HTTP status {status}")
    document = _document(response)
    if status in {requests.codes.bad_request, requests.codes.unprocessable_entity} and "error" in document:
        raise _BadQuery(str(document["error"])[:_SHOWN])
    if status != requests.codes.ok:
        raise _NoAnswer(f"HTTP status {status}")
    data = document.get("data")
    if document.get("status") != "success" or not isinstance(data, dict) or not isinstance(data.get("result"), list):
        kind = response.headers.get("Content-Type", "no content type")
        raise _NoAnswer(f"not an answer of the query API but {kind}: is the address right?")
    off_s = _off_s(data["result"], response.headers.get("Date"))
    if abs(off_s) > _MOST_OFF_S:
        when = "before" if off_s < 0 else "after"
        raise _AnswerOfAnotherTime(f"evaluated more than {_MOST_OFF_S:g} s {when} it was sent")
    if document.get("warnings"):
        raise _PartialAnswer("; ".join(str(warning) for warning in document["warnings"])[:_SHOWN])


def _off_s(result: list[Any], sent: str | None) -> float:
    """Return the time from when an answer was sent to when it was evaluated, 0 where it does not tell.

    Both are times of the back end: a cache in front of it, or one that lags behind, is found out without our clock.
    """
    match result:
        case [{"value": [int() | float() as at_s, _]}, *_] | [int() | float() as at_s, str()]:
            pass
        case _:
            return 0.0
    try:
        return float(at_s) - parsedate_to_datetime(sent or "").timestamp()
    except ValueError:
        return 0.0


def _document(response: requests.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _unavailable(detail: str) -> Absence:
    return Absence(reason=AbsenceReason.UNAVAILABLE, detail=f"Prometheus: {detail}")


def _cause(error: requests.RequestException) -> str:
    """Return what went wrong without the URL, which would make every query's problem a different one."""
    inner = error.args[0] if error.args else error
    return str(getattr(inner, "reason", inner))[:_SHOWN]
