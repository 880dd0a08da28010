"""Containment around reading: an object that cannot be read is left out, named in the log and counted.

Others write what is read here: an Event, a pod or an autoscaler of any tenant. None of them may end the cycle of all.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Json = dict[str, Any]
T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_MOST_CHARACTERS = 200

UNREADABLE: Counter[str] = Counter()
"""How many objects could not be read since they were last taken, by their kind."""
_named: dict[tuple[str, str], str] = {}


def readable(kind: str, items: Iterable[Json], read: Callable[[Json], T]) -> list[T]:
    """Return what `read` makes of each of `items`, which are objects of a `kind`, without those that it cannot read."""
    found: list[T] = []
    for item in items:
        try:
            found.append(read(item))
        except Exception as error:  # noqa: BLE001 -- whatever another wrote must not end the cycle
            left_out(kind, name_of(item), error)
    return found


def left_out(kind: str, name: str, error: Exception) -> None:
    """Log and count that an object cannot be read; the same words are logged once."""
    UNREADABLE[kind] += 1
    words = f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS]
    if _named.get((kind, name)) != words:
        if len(_named) > 1000:
            _named.clear()
        _named[kind, name] = words
        _LOG.warning("%s %s cannot be read and is left out: %s", kind, name, words)


def taken() -> Counter[str]:
    """Return how many objects could not be read since the last call, by their kind."""
    counts = Counter(UNREADABLE)
    UNREADABLE.clear()
    return counts


def name_of(item: object) -> str:
    """Return the namespace and name of an object as text, as far as it has them."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    parts = [metadata.get("namespace"), metadata.get("name")] if isinstance(metadata, dict) else []
    return "/".join(str(part)[:_MOST_CHARACTERS] for part in parts if part) or "without a name"
