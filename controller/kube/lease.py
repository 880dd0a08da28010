"""The rules of the operator's Lease: when this replica may write, and its next request. Pure; times are arguments.

A replica uses only its own monotonic clock. The holder counts the duration from *before* it sent the request that
renewed the Lease, and stops writing a margin before the end. The other replicas count from *after* they have seen the
renewal, and request the Lease when the whole duration is over. So the holder stops before that. Of several requests the
server accepts one, because each names the resource version of the Lease that it is based on.
"""

from dataclasses import dataclass, replace
from enum import Enum


class Request(Enum):
    """A request to the API server: read the Lease, create it, take it over, or renew it."""

    READ = "read"
    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The Lease as on the server; `holder` is None after a release.

    `transitions` counts the changes of the holder. `version` is the resource version.
    """

    holder: str | None
    duration_s: float
    transitions: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The times of a lease, all derived from its duration.

    Takeover after a crash takes up to 1.23 times the duration (1.38 times the shortest, 2 s), plus the requests: a
    standby sees the last renewal up to `poll_s` late, waits `duration_s` from then, and writes after `settle_s`.
    """

    duration_s: float

    @property
    def margin_s(self) -> float:
        """Time before the end at which the holder stops writing: for requests in flight and clock drift."""
        return self.duration_s / 5

    @property
    def renew_s(self) -> float:
        """Time between renewals: failed ones can be retried several times before the holder must stop writing."""
        return self.duration_s / 5

    @property
    def poll_s(self) -> float:
        """Time between two reads of a lease that another replica holds."""
        return self.duration_s / 8

    @property
    def retry_s(self) -> float:
        """Time between a failed request and the next one."""
        return self.duration_s / 20

    @property
    def settle_s(self) -> float:
        """Time during which a new holder does not write yet, and does not read the state for its first decision.

        The admission policy sees a new holder through a watch, with a delay of milliseconds (0.3 s on an overloaded
        machine). Until then the policy may accept a write of the former holder, which the first decision must see. The
        delay does not depend on the duration, so this time has a minimum.
        """
        return max(0.5, self.duration_s / 10)

    @property
    def timeout_s(self) -> tuple[float, float]:
        """Time limits of one request, to connect and to receive: a renewal that times out can be sent once more."""
        return self.duration_s / 8, self.duration_s / 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What one replica knows about the Lease. Times are seconds on the replica's monotonic clock.

    `read`, `granted`, `refused` and `failed` return the state after that answer, and change nothing in place.

    A replica is a standby until one of its requests is granted, then the holder until `lost`. It never becomes a
    standby again: a process that has lost the lease ends.
    """

    identity: str
    terms: Terms
    record: LeaseRecord | None = None
    """The Lease as last seen; None when it does not exist."""
    seen_s: float | None = None
    """Time at which `record` was first seen; None before the first read."""
    read_s: float = float("-inf")
    """Time of the last successful read."""
    pause_s: float = float("-inf")
    """Time before which no request is sent."""
    outdated: bool = False
    """Whether `record` is known to be outdated."""
    began_s: float | None = None
    """Time at which this replica learned that it holds the lease; None when it does not."""
    sent_s: float = float("-inf")
    """Time at which the last granted request was sent."""
    lost: bool = False
    """Whether this replica has held the lease and lost it."""

    def next(self) -> tuple[Request, float]:
        """Return the next request and the time at which to send it."""
        if self.seen_s is None or self.outdated:
            return Request.READ, self.pause_s
        take = Request.CREATE if self.record is None else Request.TAKE
        if self.began_s is not None:
            if self.record is None:
                return Request.CREATE, self.pause_s
            return Request.RENEW, max(self.sent_s + self.terms.renew_s, self.pause_s)
        if self.record is not None and self.record.holder in {None, self.identity}:
            return take, self.pause_s
        # The lease is free when the Lease object has not changed for the whole duration on which its holder relies. A
        # missing Lease may have been deleted while its holder does not know it yet.
        duration_s = max(self.terms.duration_s, 0.0 if self.record is None else self.record.duration_s)
        free_s = max(self.seen_s + duration_s, self.pause_s)
        poll_s = max(self.read_s + self.terms.poll_s, self.pause_s)
        return (take, free_s) if free_s <= poll_s else (Request.READ, poll_s)

    def read(self, record: LeaseRecord | None, at_s: float) -> "Candidate":
        """Return the state after a read at `at_s` returned `record` (None: there is no Lease)."""
        state = replace(self, read_s=at_s, outdated=False)
        if self.began_s is not None:
            taken = record is not None and record.holder != self.identity
            gone = record is None and at_s >= self.ends_s
            return replace(state, record=record, lost=taken or gone)
        if self.seen_s is None or record != self.record:
            state = replace(state, record=record, seen_s=at_s)
        return state

    def granted(self, record: LeaseRecord, sent_s: float, at_s: float) -> "Candidate":
        """Return the state after a request sent at `sent_s` was granted; the response `record` came at `at_s`."""
        return replace(
            self,
            record=record,
            seen_s=at_s,
            read_s=at_s,
            sent_s=sent_s,
            began_s=at_s if self.began_s is None else self.began_s,
        )

    def refused(self) -> "Candidate":
        """Return the state after a request was refused because the Lease has changed."""
        return replace(self, outdated=True)

    def failed(self, at_s: float) -> "Candidate":
        """Return the state after a request failed at `at_s`; the server may have granted it nevertheless."""
        gone = self.began_s is not None and self.record is None and at_s >= self.ends_s
        return replace(self, pause_s=at_s + self.terms.retry_s, lost=self.lost or gone)

    @property
    def ends_s(self) -> float:
        """Time until which no other replica takes the lease of this one; -inf before this replica held it."""
        return self.sent_s + self.terms.duration_s

    @property
    def writes_from_s(self) -> float:
        """Time from which the holder may write; infinite for a standby."""
        return float("inf") if self.began_s is None else self.began_s + self.terms.settle_s

    def may_write(self, at_s: float) -> bool:
        """Return whether it is safe that this replica writes at `at_s`."""
        return not self.lost and self.writes_from_s <= at_s < self.ends_s - self.terms.margin_s
