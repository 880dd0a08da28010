"""What `sluice profile` measured of the server of a placement, as `-o json` prints it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.core.codec import InvalidRecord, decode, known_parts
from optimizer.model import ServiceLaw


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load that was put on a server: requests inside, answers per second, and latencies in seconds."""

    loop: str
    rate_rps: float
    failed: float
    concurrency: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """A profile. What is None was not measured; `notes` is what to know of it."""

    law: ServiceLaw
    relative_error: float | None = None
    startup_s: float | None = None
    first_answer_s: float | None = None
    warm_up_s: float | None = None
    memory_per_session_bytes: float | None = None
    notes: tuple[str, ...] = ()
    points: tuple[Load, ...] = ()

    @property
    def warm(self) -> Load | None:
        """Return the lowest load on the warm server, None without one."""
        return min(self._closed(), key=lambda own: own.concurrency or 0.0, default=None)

    @property
    def busiest(self) -> Load | None:
        """Return the load with the most answers, all of which succeeded; None without one."""
        return max((own for own in self._closed() if own.failed <= 0), key=lambda own: own.rate_rps, default=None)

    def _closed(self) -> list[Load]:
        return [own for own in self.points if own.loop == "closed" and own.p95_s is not None]


def read_profile(document: Any) -> Profiled:
    """Return a profile from what `sluice profile -o json` prints; other fields are ignored.

    Raises:
        InvalidRecord: it has another form, or a number is not possible.
    """
    if not isinstance(document, Mapping) or "fixed_s" not in document:
        raise InvalidRecord("must be what `sluice profile -o json` prints")
    sizes = document.get("law_points", [])
    if not isinstance(sizes, list) or not all(isinstance(own, Mapping) for own in sizes):
        raise InvalidRecord("law_points: must be a list of mappings with batch and service_s")
    pairs = [[own.get("batch"), own.get("service_s")] for own in sizes]
    law = {name: document[name] for name in ("fixed_s", "per_item_s", "floor_s", "prefill_s", "cv") if name in document}
    found = {**document, "law": {**law, "points": pairs}}
    try:
        return decode(Profiled, known_parts(Profiled, found), "profile")
    except ValueError as error:
        raise InvalidRecord(str(error)) from None
