"""The entries of shards in the status of ComputePools and ComputeBudgets, as documents and as values."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal

from controller.core.messages.phrases import timestamp
from controller.core.state.shards import Entry, Want
from controller.kube.gateway import Json
from controller.kube.workloads import seconds

_LOG = logging.getLogger(__name__)
_DIGITS = 4


def entries_from(status: Json, unit: int = 1) -> tuple[Entry, ...]:
    """Return the entries in a status, in the order of their shards. `unit` parts are 1 there, such as 1000 of a USD/h.

    What is not valid is left out: its shard has no allowance then.
    """
    found: dict[int, Entry] = {}
    for each in status.get("shards") or ():
        try:
            entry = _entry(each, unit)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            _LOG.warning("status.shards: %r: left out: %s", each, error)
            continue
        found[entry.shard] = entry
    return tuple(found[shard] for shard in sorted(found))


def entry_documents(entries: Iterable[Entry], unit: int = 1) -> list[Json]:
    """Return `entries` as they are in a status."""
    return [_document(each, unit) for each in entries]


def _entry(document: Json, unit: int) -> Entry:
    def amount(name: str) -> int:
        return max(0, int(Decimal(str(document[name])) * unit))

    def number(name: str) -> float | None:
        return float(document[name]) if document.get(name) is not None else None

    renewed_at_s = float("-inf")
    with suppress(ValueError, TypeError):
        renewed_at_s = seconds(document["renewedAt"])
    least = document.get("leastPriority")
    return Entry(
        shard=int(document["shard"]),
        of=int(document["of"]),
        used=amount("used"),
        agreed=amount("agreed"),
        allowed=amount("allowed") if document.get("allowed") is not None else None,
        reduce=bool(document.get("reduce", False)),
        awaiting=int(document.get("awaiting", 0)),
        users=int(document.get("users", 0)),
        want=None
        if document.get("lacking") is None
        else Want(
            lacking=amount("lacking"),
            unserved=number("unserved") or 0.0,
            priority=int(document.get("priority", 0)),
            least_priority=None if least is None else int(least),
            price_per_hour=number("pricePerHour"),
        ),
        renewed_at_s=renewed_at_s,
    )


def _document(entry: Entry, unit: int) -> Json:
    def amount(value: int) -> int | str:
        return value if unit == 1 else _plain(Decimal(value) / unit)

    optional: Json = {
        "allowed": None if entry.allowed is None else amount(entry.allowed),
        "reduce": entry.reduce or None,
        "awaiting": entry.awaiting or None,
    }
    if (want := entry.want) is not None:
        optional |= {
            "lacking": amount(want.lacking),
            "unserved": _plain(_rounded(want.unserved)) if want.unserved else None,
            "priority": want.priority if want.unserved else None,
            "leastPriority": want.least_priority,
            "pricePerHour": None if want.price_per_hour is None else _plain(_rounded(want.price_per_hour)),
        }
    return {
        "shard": entry.shard,
        "of": entry.of,
        "used": amount(entry.used),
        "agreed": amount(entry.agreed),
        "users": entry.users,
        **{name: value for name, value in optional.items() if value is not None},
        "renewedAt": timestamp(entry.renewed_at_s),
    }


def _rounded(value: float) -> Decimal:
    exact = Decimal(repr(float(value)))
    return exact if not exact else round(exact, max(0, _DIGITS - 1 - exact.adjusted()))


def _plain(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
