"""What happened to a pipeline, by its Events or by decision records: a line for each change and cause."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from controller.core.messages.explain import causes_of
from controller.core.messages.phrases import count_of, timestamp
from controller.core.messages.reasons import EventReason


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEvent:
    """Something that happened `count` times, first at `at_s` and last at `until_s` (epoch seconds).

    `reason` and `message` are those of the Event; `warning` says that its type is Warning.
    """

    at_s: float
    until_s: float
    reason: str
    message: str
    warning: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The events of one pipeline up to `now_s`, from `since_s` on (None: all that are known), the oldest first.

    The source is known back to `reaches_s`, None: it has nothing. `recorded` says that it is decision records, else it
    is the Events of the API server. `state` is the present state as text.
    """

    events: tuple[PastEvent, ...]
    now_s: float
    since_s: float | None
    reaches_s: float | None
    recorded: bool
    state: str


def make_history(
    known: Iterable[PastEvent],
    *,
    now_s: float,
    period_s: float | None,
    state: str,
    records_begin_s: float | None = None,
) -> History:
    """Return the history of the last `period_s` seconds (None: of all) in `known`: repeats in a row are one event.

    With `records_begin_s`, the time of the first one, `known` is from decision records.
    """
    since_s = None if period_s is None else now_s - period_s
    ordered = sorted(known, key=lambda each: (each.at_s, each.until_s))
    found: list[PastEvent] = []
    for event in ordered:
        if since_s is not None and event.until_s < since_s:
            continue
        last = found[-1] if found else None
        if last is not None and (last.reason, last.message) == (event.reason, event.message):
            until_s = max(last.until_s, event.until_s)
            found[-1] = replace(last, until_s=until_s, count=last.count + event.count)
        else:
            found.append(event)
    recorded = records_begin_s is not None
    return History(
        events=tuple(found),
        now_s=now_s,
        since_s=since_s,
        reaches_s=records_begin_s if recorded else ordered[0].at_s if ordered else None,
        recorded=recorded,
        state=state,
    )


def history_lines(history: History) -> list[str]:
    """Return the history as a section: what it covers, then a line for each change and cause, then the state now.

    Times are in UTC; those of other days than today have the date.
    """
    return [
        f"Changes{_since(history)}: {count_of(sum(event.count for event in history.events), 'event')}, times in UTC",
        f"  {_reach(history)}",
        *(f"  {line}" for line in _lines(history.events, history.now_s)),
        f"  {_clock(history.now_s, history.now_s)}  now {history.state}",
    ]


def _since(history: History) -> str:
    return "" if history.since_s is None else f" since {timestamp(history.since_s)}"


def _reach(history: History) -> str:
    if history.recorded and history.reaches_s is not None:
        return f"the records begin at {timestamp(history.reaches_s)}"
    kept = "the API server keeps them for 1 h by default (--from-record FILE for more)"
    reach = "there are none" if history.reaches_s is None else f"they reach back to {timestamp(history.reaches_s)}"
    return f"from Events: {reach}; {kept}"


def _lines(events: Sequence[PastEvent], now_s: float) -> Iterator[str]:
    """Yield a line for each cause of a change of replicas, and for each other event one with its reason."""
    for event in events:
        scaled = event.reason == EventReason.SCALED.value
        texts = causes_of(event.message) if scaled else [f"{event.reason}: {event.message}"]
        times = f" ({event.count} times until {_clock(event.until_s, now_s)})" if event.count > 1 else ""
        for text in texts:
            yield f"{_clock(event.at_s, now_s)}  {text}{times}"


def _clock(at_s: float, now_s: float) -> str:
    at, now = datetime.fromtimestamp(at_s, UTC), datetime.fromtimestamp(now_s, UTC)
    return at.strftime("%H:%M:%S" if at.date() == now.date() else "%m-%d %H:%M:%S")
