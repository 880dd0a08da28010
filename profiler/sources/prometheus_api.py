"""Queries to Prometheus' query API, many at a time, within one deadline: at the present time, or over a period.

prometheus-api-client builds the requests to /api/v1/query and /api/v1/query_range, keeps the connections, and takes
`result` out of the answer (`custom_query`, `custom_query_range`). This module adds what the library has no option for:

* One deadline for all queries and attempts. The timeout of the library is per attempt, so its retries, which are
  switched off here, would multiply the time.
* A limit on the size of an answer, and on the time to read its body.
* Checks before the library reads the answer. `warnings` mark a partial answer, and the library drops them. Answers may
  come from a cache. Pages that are not an answer of the API make the library raise `KeyError` or `JSONDecodeError`.
* Credentials that rotate (`authentication`).
* Queries too long for a URL are sent by POST. Others are sent by GET, because a proxy that grants the right to read may
  not grant that to POST. Where POST is refused, all are sent by GET for five minutes.
* Lanes: how many requests of one kind may be under way at a time, so that those of one tenant leave room for others.
* Joined queries (`joined_queries`). If the back end refuses one, its halves are sent, down to the query that is wrong.
"""

import io
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import requests
from prometheus_api_client import PrometheusConnect
from typing_extensions import override
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util.retry import Retry

from profiler.samples import Absence, AbsenceReason
from profiler.sources.access import Access
from profiler.sources.authentication import NoCredentials, authenticate
from profiler.sources.base import wrong_query
from profiler.sources.joined_queries import joined, separated

_OF_QUERY = "PromQL warning"
"""Prometheus' warnings about the query itself begin so; others mark a partial answer."""
_NOT_IN_TIME = "no answer in time"
_ATTEMPTS = 2
_PAUSE_S = 0.1
_CONNECT_S = 2.0
_WORKERS = 8
_LONGEST_URL = 2_000
"""Most characters of a query that is sent by GET, before its encoding. Proxies may refuse URLs of more than 8 KiB."""
_WITHOUT_POST_S = 300.0
"""Time after a refused POST in which all queries are sent by GET. One query may have caused the refusal."""
_MOST_BYTES = 64 * 2**20
"""Limit per answer. Twenty thousand pods with a histogram each take about 40 MiB."""
_MOST_BYTES_OF_ONE = 2**16
"""Limit for each query of a user, which returns one series, in an answer."""
_MOST_AT_ONCE = 96 * 2**20
"""Limit on all answers together that are being read at a time."""
_CHUNK = 2**16
_MOST_OFF_S = 60.0
"""Longest time between the evaluation of a query and the sending of its answer."""
_SHOWN = 200
"""Most characters of a message of the back end that are shown."""

MOST_POINTS = 11_000
"""Most points of a series that the API returns for one range query; longer periods are read in parts."""

_OPEN = Access()
Name = TypeVar("Name", bound=Hashable)
_MADE_GET = {requests.codes.moved_permanently, requests.codes.found, requests.codes.see_other}
"""Redirects that turn POST into GET."""
_MOST_SPLITS = 16
"""Times that one request is divided because the back end failed at it: enough to find one query among 200, twice."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Requests of which at most `most` are under way at a time."""

    name: str
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """For every query the API's `result`, or an `Absence` with the reason.

    `slow` are the queries that were sent and not answered in time, or that the back end failed at. `accepted` is the
    size of the largest joined query that was answered after a larger one had been refused, None if none was refused.
    """

    results: Mapping[str, Any]
    slow: frozenset[str]
    accepted: int | None = None


@dataclass(slots=True, kw_only=True)
class _Round:
    """One request and the halves that it was divided into, with what was found until now."""

    end_s: float
    results: dict[str, Any] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    accepted: int | None = None
    wrong: bool = False
    splits: int = 0
    begun: bool = False
    most_bytes: int = _MOST_BYTES


class _Session(requests.Session):
    """Sends a long query by POST instead of GET, unless POST was refused a short time ago."""

    refused_s = -math.inf
    """Monotonic time of the last refusal."""

    @property
    def posts(self) -> bool:
        return time.monotonic() - self.refused_s >= _WITHOUT_POST_S

    @override
    def prepare_request(self, request: requests.Request) -> requests.PreparedRequest:
        if self.posts and len(request.params.get("query", "")) > _LONGEST_URL:
            request.method, request.data, request.params = "POST", request.params, {}
        return super().prepare_request(request)


class PrometheusApi:
    """A client of the query API at `url`, which authenticates as `access` says."""

    def __init__(self, url: str, access: Access = _OPEN) -> None:
        session = self._session = _Session()
        self._forbidden = False
        session.hooks["response"] += [self._read, _require_complete_answer]
        self._of_thread = threading.local()
        self._reading: dict[int, int] = {}  # bytes of the answers that threads are reading
        authenticate(session, access)
        self._client = PrometheusConnect(url=url.rstrip("/"), session=session, retry=Retry(total=0))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ask(self, queries: Collection[str], deadline_s: float) -> dict[str, Any]:
        """Return the API's `result` for every query, or an `Absence` with the reason, within `deadline_s` seconds."""
        return self._ask_all({query: (query, self._instant(query)) for query in queries}, deadline_s)

    def ask_joined(
        self,
        requests: Sequence[Sequence[str]],
        deadline_s: float,
        lanes: Sequence[Lane | None] | None = None,
        single: Collection[str] = frozenset(),
    ) -> Answers:
        """Ask the `requests` in their order; each is sent as one query, joined from those in it.

        `lanes` has the lane of each request, None: it is in none. Queries of `single` return one series each.
        """
        end_s = time.monotonic() + deadline_s
        if self._forbidden:  # then it was not POST that was refused
            self._session.refused_s, self._forbidden = -math.inf, False
        found: dict[str, Any] = {}
        slow: set[str] = set()
        rounds = [_Round(end_s=end_s, most_bytes=_most_bytes(queries, single)) for queries in requests]
        waiting = _Waiting(requests, rounds, lanes or [None] * len(requests))
        with _pool() as pool:
            workers = [pool.submit(waiting.work, self._ask_all_of) for _ in range(min(_WORKERS, len(requests)))]
            wait(workers, timeout=deadline_s)
            waiting.end()
            for queries, own in zip(requests, rounds, strict=True):
                results = dict(own.results)  # of a request that is not done some halves may be
                unanswered = [query for query in queries if query not in results]
                found |= results | dict.fromkeys(unanswered, _late(deadline_s))
                slow |= own.slow | set(unanswered if own.begun else ())
        refused = [own.accepted for own in rounds if own.accepted is not None and not own.wrong]
        return Answers(results=found, slow=frozenset(slow), accepted=max(refused, default=None))

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
        with _pool() as pool:
            pending: dict[Name, Future[Any]] = {
                name: pool.submit(self._ask_one, query, send, end_s) for name, (query, send) in sends.items()
            }
            wait(pending.values(), timeout=deadline_s)
            late = _late(deadline_s)
            return {name: future.result() if future.done() else late for name, future in pending.items()}

    def _ask_all_of(self, queries: Sequence[str], own: "_Round") -> None:
        """Ask `queries` in one request; where that is refused, or the back end fails at it, in two, and so on."""
        query = joined(queries)
        self._of_thread.most_bytes = own.most_bytes
        if len(queries) > 1 and len(query) > _LONGEST_URL and not self._session.posts:
            return self._ask_halves_of(queries, own)
        try:
            result = self._answer(self._instant(query), own.end_s)
        except _PostRefused:
            return self._ask_all_of(queries, own)
        except _BadQuery as error:
            if len(queries) > 1:
                own.accepted = own.accepted or 1
                return self._ask_halves_of(queries, own)
            own.wrong = True  # the others were refused for this one, not for their number
            own.results[query] = _absence(error, query)
        except _Unanswered as error:
            if isinstance(error, _Failed) and len(queries) > 1 and own.splits < _MOST_SPLITS:
                own.splits += 1
                return self._ask_halves_of(queries, own)
            own.results.update(dict.fromkeys(queries, _absence(error, query)))
            own.slow.update(queries if isinstance(error, _Late | _Failed) else ())
        else:
            if own.accepted is not None:
                own.accepted = max(own.accepted, len(queries))
            own.results.update(separated(queries, result))

    def _ask_halves_of(self, queries: Sequence[str], own: "_Round") -> None:
        half = len(queries) // 2
        for part in (queries[:half], queries[half:]):
            self._ask_all_of(part, own)

    def _read(self, response: requests.Response, **_: object) -> None:
        """Read the body within the limits of size and time: `requests` has no limit for a body that never ends."""
        body = bytearray()
        most = getattr(self._of_thread, "most_bytes", _MOST_BYTES)
        try:
            for chunk in response.raw.stream(_CHUNK, decode_content=True):
                body += chunk
                _require_an_end(len(body), most, self._of_thread.end_s)
                self._reading[threading.get_ident()] = len(body)
                if sum(list(self._reading.values())) > _MOST_AT_ONCE:
                    raise _TooLarge(f"more than {_MOST_AT_ONCE // 2**20} MiB in answers at a time")
        except ReadTimeoutError as error:
            raise requests.Timeout from error
        except HTTPError as error:
            raise requests.ConnectionError(error) from error
        except _Unanswered:
            response.raw.close()
            raise
        finally:
            self._reading.pop(threading.get_ident(), None)
        response.raw = HTTPResponse(io.BytesIO(body), preload_content=False)

    def _ask_one(self, query: str, send: _Send, end_s: float) -> Any:
        try:
            return self._answer(send, end_s)
        except _PostRefused:
            return self._ask_one(query, send, end_s)
        except _Unanswered as error:
            return _absence(error, query)

    def _answer(self, send: _Send, end_s: float) -> Any:
        """Return the API's `result`, from one of several attempts.

        Raises:
            _PostRefused: the query was sent by POST, and will be sent by GET next.
            _Unanswered: there is no answer.
        """
        self._of_thread.end_s = end_s
        problem: _Unanswered = _NoAnswer("no time was left before the deadline to send the query")
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE_S)
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            read_s = left_s / (_ATTEMPTS - attempt)
            try:
                return send((min(_CONNECT_S, read_s), read_s))
            except _PostRefused:
                self._session.refused_s = time.monotonic()
                raise
            except _Forbidden:
                self._forbidden = True
                raise
            except _TooLarge:
                raise
            except _Overloaded as error:
                problem = error
            except requests.Timeout:
                problem = _Late(_NOT_IN_TIME)
            except NoCredentials as error:
                raise _NoAnswer(str(error)) from error
            except OSError as error:  # those of `requests`, and a CA or certificate file that is gone
                problem = _Late(_NOT_IN_TIME) if _is_late(error) else _NoAnswer(_cause(error))
        raise problem


class _Unanswered(Exception):
    """There is no usable answer; `reason` is that of the `Absence`."""

    def __init__(self, detail: str, reason: AbsenceReason = AbsenceReason.UNAVAILABLE) -> None:
        super().__init__(detail)
        self.reason = reason


class _NoAnswer(_Unanswered):
    """Another attempt would not change that there is no answer."""


class _Forbidden(_NoAnswer):
    """The back end refuses the credentials."""


class _PostRefused(Exception):
    """The query was sent by POST, and the back end may answer it by GET."""


class _BadQuery(_Unanswered):
    """The back end reports an error in the query."""


class _Overloaded(_Unanswered):
    """The back end cannot answer now; another attempt may succeed."""


class _Failed(_Overloaded):
    """The back end answers that it failed, which may be for this query alone."""


class _TooLarge(_Failed):
    """The answer is larger than is read."""


class _Late(_Unanswered):
    """The query was sent, and not answered in time."""


def _most_bytes(queries: Sequence[str], single: Collection[str]) -> int:
    """Return the limit on the answer to `queries`, joined to one."""
    return _MOST_BYTES_OF_ONE * len(queries) if all(query in single for query in queries) else _MOST_BYTES


class _Waiting:
    """The requests that wait for a worker, in their order; one whose lane is full lets others pass."""

    def __init__(
        self, requests: Sequence[Sequence[str]], rounds: Sequence[_Round], lanes: Sequence[Lane | None]
    ) -> None:
        self._left = list(zip(requests, rounds, lanes, strict=True))
        self._busy: Counter[str] = Counter()
        self._changed = threading.Condition()

    def work(self, ask: Callable[[Sequence[str], _Round], None]) -> None:
        """Ask one request after the other until none is left."""
        while (mine := self._next()) is not None:
            queries, own, lane = mine
            try:
                ask(queries, own)
            finally:
                with self._changed:
                    if lane is not None:
                        self._busy[lane.name] -= 1
                    self._changed.notify_all()

    def end(self) -> None:
        """Let no other request begin."""
        with self._changed:
            self._left.clear()
            self._changed.notify_all()

    def _next(self) -> tuple[Sequence[str], _Round, Lane | None] | None:
        with self._changed:
            while self._left:
                for number, (queries, own, lane) in enumerate(self._left):
                    if lane is None or self._busy[lane.name] < lane.most:
                        del self._left[number]
                        own.begun = True
                        if lane is not None:
                            self._busy[lane.name] += 1
                        return queries, own, lane
                self._changed.wait()
        return None


def _require_an_end(size: int, most: int, end_s: float) -> None:
    if size > most:
        raise _TooLarge(f"more than {most // 2**10} KiB in answer to one query")
    if time.monotonic() > end_s:
        raise _Late("the answer did not end before the deadline")


def _require_complete_answer(response: requests.Response, **_: object) -> None:
    """Raise an exception unless the response is a complete answer of the query API, or a redirect."""
    status = response.status_code
    if response.is_redirect:
        if response.request.method == "POST" and status in _MADE_GET:  # the redirected request has no query
            raise _PostRefused
        return
    if status == requests.codes.too_many_requests:
        raise _Overloaded(f"HTTP status {status}")
    if status >= 500:
        raise _Failed(f"HTTP status {status}")
    if response.request.method == "POST" and status in {requests.codes.forbidden, requests.codes.method_not_allowed}:
        raise _PostRefused
    document = _document(response)
    if status in {requests.codes.request_entity_too_large, requests.codes.request_uri_too_large}:
        raise _BadQuery(f"HTTP status {status}: the query is too long for the back end")
    if status in {requests.codes.bad_request, requests.codes.unprocessable_entity} and "error" in document:
        raise _BadQuery(str(document["error"])[:_SHOWN])
    if status in {requests.codes.unauthorized, requests.codes.forbidden}:
        raise _Forbidden(f"HTTP status {status}: check the credentials (--prometheus-token-file and others)")
    if status == requests.codes.not_found:
        raise _NoAnswer(f"HTTP status {status}: check --prometheus-url")
    if status != requests.codes.ok:
        raise _NoAnswer(f"HTTP status {status}")
    data = document.get("data")
    if document.get("status") != "success" or not isinstance(data, dict) or not isinstance(data.get("result"), list):
        kind = response.headers.get("Content-Type", "no content type")
        raise _NoAnswer(f"not an answer of the query API but {kind}: check --prometheus-url")
    off_s = _off_s(data["result"], response.headers)
    if abs(off_s) > _MOST_OFF_S:
        when = "before" if off_s < 0 else "after"
        # The answer comes from a cache.
        raise _NoAnswer(f"evaluated more than {_MOST_OFF_S:g} s {when} it was sent", AbsenceReason.STALE)
    if warned := document.get("warnings"):
        texts = [str(warning) for warning in (warned if isinstance(warned, list) else [warned])]
        warnings = "; ".join(texts)
        if all(text.startswith(_OF_QUERY) for text in texts):
            raise _BadQuery(warnings[:_SHOWN], AbsenceReason.PARTIAL)
        raise _NoAnswer(warnings[:_SHOWN], AbsenceReason.PARTIAL)
    response.json = lambda **_: document  # type: ignore[method-assign]  # custom_query would parse the body once more


def _off_s(result: list[Any], headers: Mapping[str, str]) -> float:
    """Return the time of evaluation minus the time of sending, in seconds; 0 where one of them is unknown.

    Both are times of the back end, so an answer from a cache is detected even if the operator's clock is wrong.
    """
    match result:
        case [{"value": [int() | float() as at_s, _]}, *_] | [int() | float() as at_s, str()]:
            pass
        case _:
            return 0.0
    age = headers.get("Age", "")  # a cache keeps the time of the back end, and adds how long ago that was
    try:
        sent_s = parsedate_to_datetime(headers.get("Date", "")).timestamp() + (int(age) if age.isdecimal() else 0)
        return float(at_s) - sent_s
    except (ValueError, OverflowError):
        return 0.0


def _document(response: requests.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _absence(error: _Unanswered, query: str) -> Absence:
    detail = wrong_query(str(error), query) if isinstance(error, _BadQuery) else str(error)
    return Absence(reason=error.reason, detail=f"Prometheus: {detail}")


def _late(deadline_s: float) -> Absence:
    return Absence(reason=AbsenceReason.UNAVAILABLE, detail=f"Prometheus: no answer within {deadline_s:g} s")


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """Provide threads that are not waited for: requests that are late end by themselves."""
    pool = ThreadPoolExecutor(max_workers=_WORKERS, thread_name_prefix="prometheus")
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _is_late(error: OSError) -> bool:
    """Return whether the answer did not begin in time, which the library reports as a lost connection."""
    inner = error.args[0] if error.args else None
    return isinstance(getattr(inner, "reason", None), ReadTimeoutError)


def _cause(error: OSError) -> str:
    """Return the cause without the URL, so that the same problem of many queries has one text."""
    inner = error.args[0] if error.args and isinstance(error, requests.RequestException) else error
    return str(getattr(inner, "reason", inner))[:_SHOWN]
