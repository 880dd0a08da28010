"""The rules of the operator's Lease: when this replica may write, and what it asks the server next. Time is given.

A replica trusts its own monotonic clock and nobody else's. The holder counts its lease from *before* the request that
renewed it was sent; the others count from *after* they have seen it renewed, and wait for its whole duration. So a
holder has stopped, by the margin, before the first of them asks for the lease; and of those that ask the server takes
one, because each request names the version of the Lease that it rests on.
"""

from dataclasses import dataclass, replace
from enum import Enum


class Ask(Enum):
    """A request about the Lease."""

    READ = "read"
    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The Lease as the server has it; `holder` is None when it was released."""

    holder: str | None
    duration_s: float
    transitions: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The times of a lease; all follow from how long it lasts.

    Takeover after a crash: `duration_s` after the last renewal was seen, which is up to `poll_s` after it was made,
    then `settle_s`: 1.23 times the duration, and the requests.
    """

    duration_s: float

    @property
    def margin_s(self) -> float:
        """How long before its end the holder stops writing: for requests under way, and clocks that differ in speed."""
        return self.duration_s / 5

    @property
    def renew_s(self) -> float:
        """Time between renewals: several may fail before the lease is in doubt."""
        return self.duration_s / 5

    @property
    def poll_s(self) -> float:
        """Time between two looks at a lease that somebody else holds."""
        return self.duration_s / 8

    @property
    def retry_s(self) -> float:
        """Time between a request that failed and the next."""
        return self.duration_s / 20

    @property
    def settle_s(self) -> float:
        """How long a new holder writes nothing, and reads nothing to decide on.

        The admission policy learns of a new holder through a watch, milliseconds late: 0.3 s on a machine with far too
        much to do. What the former holder had under way may pass until then, and is there to be read when this time is
        over. A short lease makes the server no faster.
        """
        return max(0.5, self.duration_s / 10)

    @property
    def timeout_s(self) -> tuple[float, float]:
        """Time limits of one request, to connect and to answer: two can fail before the lease is in doubt."""
        return self.duration_s / 8, self.duration_s / 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What one replica knows of the Lease. Every method returns what it knows next; times are of its monotonic clock.

    It is a standby until a request of its own is granted, then the holder until `lost`; it never becomes a standby
    again: whoever lost the lease ends and starts anew.
    """

    identity: str
    terms: Terms
    record: Record | None = None
    """The Lease as it was last seen; None: not there."""
    seen_s: float | None = None
    """When that was first seen; None: nothing has been seen yet."""
    read_s: float = float("-inf")
    """When the server last told what it is."""
    pause_s: float = float("-inf")
    """Ask nothing before."""
    doubtful: bool = False
    """Whether `record` is known to be outdated."""
    began_s: float | None = None
    """When this replica learned that it holds the lease; None: it does not."""
    sent_s: float = float("-inf")
    """When the request that was granted last was sent."""
    lost: bool = False
    """Whether it was the holder, and is not any more."""

    def next(self) -> tuple[Ask, float]:
        """Return what to ask next and when."""
        if self.seen_s is None or self.doubtful:
            return Ask.READ, self.pause_s
        take = Ask.CREATE if self.record is None else Ask.TAKE
        if self.began_s is not None:
            if self.record is None:
                return Ask.CREATE, self.pause_s
            return Ask.RENEW, max(self.sent_s + self.terms.renew_s, self.pause_s)
        if self.record is not None and self.record.holder in {None, self.identity}:
            return take, self.pause_s
        # Nobody's word counts but that of the Lease itself: it was left alone for as long as its holder may rely on it.
        # A Lease that is not there may have been deleted under a holder who does not know it yet.
        duration_s = max(self.terms.duration_s, 0.0 if self.record is None else self.record.duration_s)
        free_s = max(self.seen_s + duration_s, self.pause_s)
        look_s = max(self.read_s + self.terms.poll_s, self.pause_s)
        return (take, free_s) if free_s <= look_s else (Ask.READ, look_s)

    def looked(self, record: Record | None, at_s: float) -> "Candidate":
        """Return what is known after the server has told, at `at_s`, what the Lease is."""
        known = replace(self, read_s=at_s, doubtful=False)
        if self.began_s is not None:
            occupied = record is not None and record.holder != self.identity
            gone = record is None and at_s >= self.ends_s
            return replace(known, record=record, lost=occupied or gone)
        if self.seen_s is None or record != self.record:
            known = replace(known, record=record, seen_s=at_s)
        return known

    def granted(self, record: Record, sent_s: float, at_s: float) -> "Candidate":
        """Return what is known after a request sent at `sent_s` was granted, as told at `at_s`."""
        return replace(
            self,
            record=record,
            seen_s=at_s,
            read_s=at_s,
            sent_s=sent_s,
            began_s=at_s if self.began_s is None else self.began_s,
        )

    def refused(self) -> "Candidate":
        """Return what is known after a request was refused because the Lease is another one by now."""
        return replace(self, doubtful=True)

    def failed(self, at_s: float) -> "Candidate":
        """Return what is known after a request of which nobody knows whether it was granted."""
        gone = self.began_s is not None and self.record is None and at_s >= self.ends_s
        return replace(self, pause_s=at_s + self.terms.retry_s, lost=self.lost or gone)

    @property
    def ends_s(self) -> float:
        """Until when nobody else can have taken the lease."""
        return self.sent_s + self.terms.duration_s

    @property
    def writes_from_s(self) -> float:
        """From when the holder may write; infinite for a standby."""
        return float("inf") if self.began_s is None else self.began_s + self.terms.settle_s

    def may_write(self, at_s: float) -> bool:
        """Return whether this replica surely is the one that may write, at `at_s`."""
        return not self.lost and self.writes_from_s <= at_s < self.ends_s - self.terms.margin_s
