"""Queries to Prometheus' query API, many at a time, within one deadline: at the present time, or over a period.

prometheus-api-client builds the requests to /api/v1/query and /api/v1/query_range, keeps the connections, and takes
`result` out of the answer (`custom_query`, `custom_query_range`). This module adds what the library has no option for:

* One deadline for all queries and attempts. The timeout of the library is per attempt, so its retries, which are
  switched off here, would multiply the time.
* A limit on the size of an answer, and on the time to read its body.
* Checks before the library reads the answer. `warnings` mark a partial answer, and the library drops them. Answers may
  come from a cache. Pages that are not an answer of the API make the library raise `KeyError` or `JSONDecodeError`.
* Credentials that rotate (`authentication`).
"""

import io
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import requests
from prometheus_api_client import PrometheusConnect
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util.retry import Retry

from profiler.samples import Absence, AbsenceReason
from profiler.sources.access import Access
from profiler.sources.authentication import NoCredentials, authenticate
from profiler.sources.base import wrong_query

_ATTEMPTS = 2
_PAUSE_S = 0.1
_CONNECT_S = 2.0
_WORKERS = 4
_MOST_BYTES = 64 * 2**20
"""Limit per answer. Twenty thousand pods with a histogram each take about 40 MiB."""
_CHUNK = 2**16
_MOST_OFF_S = 60.0
"""Longest time between the evaluation of a query and the sending of its answer."""
_SHOWN = 200
"""Most characters of a message of the back end that are shown."""

MOST_POINTS = 11_000
"""Most points of a series that the API returns for one range query; longer periods are read in parts."""

_OPEN = Access()
Name = TypeVar("Name", bound=Hashable)
_Send = Callable[[tuple[float, float]], Any]
"""Sends a query with these time limits in seconds, to connect and to read, and returns the API's `result`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The `count` times from `start_s` on, `step_s` apart; Unix time in whole seconds."""

    start_s: int
    step_s: int
    count: int

    @property
    def end_s(self) -> int:
        """Return the end of the last step."""
        return self.start_s + self.count * self.step_s

    def parts(self) -> tuple["Period", ...]:
        """Return the period in parts of at most MOST_POINTS times."""
        return tuple(
            Period(
                start_s=self.start_s + first * self.step_s,
                step_s=self.step_s,
                count=min(MOST_POINTS, self.count - first),
            )
            for first in range(0, self.count, MOST_POINTS)
        )


class PrometheusApi:
    """A client of the query API at `url`, which authenticates as `access` says."""

    def __init__(self, url: str, access: Access = _OPEN) -> None:
        session = requests.Session()
        session.hooks["response"] += [self._read, _require_complete_answer]
        self._of_thread = threading.local()
        authenticate(session, access)
        self._client = PrometheusConnect(url=url.rstrip("/"), session=session, retry=Retry(total=0))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ask(self, queries: Collection[str], deadline_s: float) -> dict[str, Any]:
        """Return the API's `result` for every query, or an `Absence` with the reason, within `deadline_s` seconds."""
        return self._ask_all({query: (query, self._instant(query)) for query in queries}, deadline_s)

    def ask_ranges(self, queries: Collection[str], period: Period, deadline_s: float) -> dict[str, Any]:
        """Return the series of every query over `period`, or an `Absence` with the reason.

        They are as in the API's `result`, each part of the period with its own series (`Period.parts`): a series that
        lasts longer than a part is in the list several times. All answers together may take `deadline_s` seconds.
        """
        found = self._ask_all(
            {(query, part): (query, self._ranged(query, part)) for query in queries for part in period.parts()},
            deadline_s,
        )
        series: dict[str, Any] = {query: [] for query in queries}
        for (query, _), result in found.items():
            if isinstance(result, Absence):
                series[query] = result
            elif not isinstance(series[query], Absence):
                series[query] += result
        return series

    def _instant(self, query: str) -> _Send:
        return lambda timeout: self._client.custom_query(query, timeout=timeout)

    def _ranged(self, query: str, part: Period) -> _Send:
        first, last = part.start_s, part.end_s - part.step_s
        return lambda timeout: self._client.custom_query_range(
            query,
            datetime.fromtimestamp(first, UTC),
            datetime.fromtimestamp(last, UTC),
            str(part.step_s),
            timeout=timeout,
        )

    def _ask_all(self, sends: Mapping[Name, tuple[str, _Send]], deadline_s: float) -> dict[Name, Any]:
        end_s = time.monotonic() + deadline_s
        pool = ThreadPoolExecutor(max_workers=_WORKERS, thread_name_prefix="prometheus")
        try:
            pending: dict[Name, Future[Any]] = {
                name: pool.submit(self._ask_one, query, send, end_s) for name, (query, send) in sends.items()
            }
            wait(pending.values(), timeout=deadline_s)
            late = _unavailable(f"no answer within {deadline_s:g} s")
            return {name: future.result() if future.done() else late for name, future in pending.items()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, response: requests.Response, **_: object) -> None:
        """Read the body within the limits of size and time: `requests` has no limit for a body that never ends."""
        body = bytearray()
        try:
            for chunk in response.raw.stream(_CHUNK, decode_content=True):
                body += chunk
                _require_an_end(len(body), self._of_thread.end_s)
        except ReadTimeoutError as error:
            raise requests.Timeout from error
        except HTTPError as error:
            raise requests.ConnectionError(error) from error
        except _NoAnswer:
            response.raw.close()
            raise
        response.raw = HTTPResponse(io.BytesIO(body), preload_content=False)

    def _ask_one(self, query: str, send: _Send, end_s: float) -> Any:
        self._of_thread.end_s = end_s
        problem = "no time was left before the deadline to send the query"
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S)
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            read_s = left_s / (_ATTEMPTS - attempt)
            try:
                return send((min(_CONNECT_S, read_s), read_s))
            except _NoAnswer as refusal:
                return Absence(reason=refusal.reason, detail=f"Prometheus: {refusal}")
            except _BadQuery as error:
                return _unavailable(wrong_query(str(error), query))
            except _Overloaded as error:
                problem = str(error)
            except requests.Timeout:
                problem = "no answer in time"
            except NoCredentials as error:
                return _unavailable(str(error))
            except OSError as error:  # those of `requests`, and a CA or certificate file that is gone
                problem = _cause(error)
        return _unavailable(problem)


class _NoAnswer(Exception):
    """There is no usable answer, and another attempt would not change that."""

    def __init__(self, detail: str, reason: AbsenceReason = AbsenceReason.UNAVAILABLE) -> None:
        super().__init__(detail)
        self.reason = reason


class _BadQuery(Exception):
    """The back end reports an error in the query."""


class _Overloaded(Exception):
    """The back end cannot answer now; another attempt may succeed."""


def _require_an_end(size: int, end_s: float) -> None:
    if size > _MOST_BYTES:
        raise _NoAnswer(f"more than {_MOST_BYTES // 2**20} MiB in answer to one query")
    if time.monotonic() > end_s:
        raise _NoAnswer("the answer did not end before the deadline")


def _require_complete_answer(response: requests.Response, **_: object) -> None:
    """Raise an exception unless the response is a complete answer of the query API, or a redirect."""
    status = response.status_code
    if response.is_redirect:
        return
    if status == requests.codes.too_many_requests or status >= 500:
        raise _Overloaded(f"HTTP status {status}")
    document = _document(response)
    if status in {requests.codes.bad_request, requests.codes.unprocessable_entity} and "error" in document:
        raise _BadQuery(str(document["error"])[:_SHOWN])
    if status in {requests.codes.unauthorized, requests.codes.forbidden}:
        raise _NoAnswer(f"HTTP status {status}: check the credentials (--prometheus-token-file and others)")
    if status == requests.codes.not_found:
        raise _NoAnswer(f"HTTP status {status}: check --prometheus-url")
    if status != requests.codes.ok:
        raise _NoAnswer(f"HTTP status {status}")
    data = document.get("data")
    if document.get("status") != "success" or not isinstance(data, dict) or not isinstance(data.get("result"), list):
        kind = response.headers.get("Content-Type", "no content type")
        raise _NoAnswer(f"not an answer of the query API but {kind}: check --prometheus-url")
    off_s = _off_s(data["result"], response.headers.get("Date"))
    if abs(off_s) > _MOST_OFF_S:
        when = "before" if off_s < 0 else "after"
        # The answer comes from a cache.
        raise _NoAnswer(f"evaluated more than {_MOST_OFF_S:g} s {when} it was sent", AbsenceReason.STALE)
    if document.get("warnings"):
        warnings = "; ".join(str(warning) for warning in document["warnings"])
        raise _NoAnswer(warnings[:_SHOWN], AbsenceReason.PARTIAL)
    response.json = lambda **_: document  # type: ignore[method-assign]  # custom_query would parse the body once more


def _off_s(result: list[Any], sent: str | None) -> float:
    """Return the time of evaluation minus the time of sending, in seconds; 0 where one of them is unknown.

    Both are times of the back end, so an answer from a cache is detected even if the operator's clock is wrong.
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


def _cause(error: OSError) -> str:
    """Return the cause without the URL, so that the same problem of many queries has one text."""
    inner = error.args[0] if error.args and isinstance(error, requests.RequestException) else error
    return str(getattr(inner, "reason", inner))[:_SHOWN]
