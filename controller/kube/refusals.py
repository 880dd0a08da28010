"""Remembers which statuses could not be written, and why, from cycle to cycle."""

from collections.abc import Collection


class Refusals:
    """The statuses whose last write failed, by the UID of the resource. The methods may be called in any thread."""

    def __init__(self) -> None:
        self._turn = 0
        self._failed_at: dict[str, int] = {}
        self._reasons: dict[str, str] = {}
        self._withheld: dict[str, str] = {}
        self._written: set[str] = set()

    def begin(self, present: Collection[str]) -> None:
        """Begin a cycle in which the resources `present` exist; others are forgotten."""
        self._turn += 1
        self._withheld.clear()
        self._written.clear()
        self._failed_at = {uid: turn for uid, turn in self._failed_at.items() if uid in present}
        self._reasons = {uid: why for uid, why in self._reasons.items() if uid in present}

    def unanswered(self, uid: str) -> None:
        """Note that the server did not answer."""
        self._failed_at[uid] = self._turn

    def refused(self, uid: str, why: str, *, tried: bool = True) -> None:
        """Note that the server refused the status, or would have: one that was not `tried` keeps its place."""
        if tried:
            self._failed_at[uid] = self._turn
        self._reasons[uid] = why

    def withheld(self, uid: str, why: str) -> None:
        """Note why the pipeline is not scaled in this cycle."""
        self._withheld[uid] = why

    def over(self, uid: str, *, written: bool) -> None:
        """Note that the status is as it is to be, `written` now or before."""
        self._failed_at.pop(uid, None)
        self._reasons.pop(uid, None)
        if written:
            self._written.add(uid)

    def last_failure(self, uid: str) -> int:
        """Return the cycle, counted from 1, in which the last write failed; 0 if it did not."""
        return self._failed_at.get(uid, 0)

    def why(self, uid: str) -> str | None:
        """Return why the server refused the status when it was last tried; None if it did not."""
        return self._reasons.get(uid)

    def why_withheld(self, uid: str) -> str | None:
        """Return why the pipeline is not scaled in this cycle; None if that is not for its status."""
        return self._withheld.get(uid)

    @property
    def written(self) -> Collection[str]:
        """Return the resources whose status was written in this cycle."""
        return frozenset(self._written)
