"""The accounts of the work of one decision: every search charges them, so that no pipeline can delay the others.

Work is counted in units, partial choices of the exact search, and not in seconds: the same input is then planned in the
same way on any machine. What other work takes is given in the same units, by measurement: a unit is some 30 ns.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

LEAST = 1 << 20
"""The least units of an account: in a decision over very many pipelines, a plain pipeline is still planned in full."""

TABLE = 4000
"""Units of making the table of a stage, for each pair of its placements."""
JOIN = 60
"""Units of composing the latency of one choice, for each join."""
REPLAY = 200_000
"""Units of replaying a plan."""
ROWS = 32
"""Rows of tables, each seen once, per unit."""


@dataclass(slots=True, kw_only=True)
class Account:
    """The units that may be spent, and those that were.

    `beat` is called at each charge, so that a liveness probe sees progress during a decision.
    """

    limit: float
    spent: float = 0.0
    beat: Callable[[], None] | None = None

    @property
    def exhausted(self) -> bool:
        """Return whether the limit is reached: what is not planned yet is planned coarsely."""
        return self.spent >= self.limit

    @property
    def left(self) -> int:
        """Return the units left, at least 0."""
        return max(0, int(self.limit - self.spent))

    def spares(self, units: float) -> bool:
        """Return whether half of the account is left after `units` more: for work that only saves money."""
        return self.spent + units <= self.limit / 2

    def charge(self, units: float) -> None:
        """Add `units` to what was spent."""
        self.spent += units
        if self.beat is not None:
            self.beat()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The accounts of a decision: one for each pipeline, by its key, and one for searches over several of them."""

    own: Mapping[str, Account]
    joint: Account

    @staticmethod
    def shared(units: int, keys: Iterable[str], beat: Callable[[], None] | None = None) -> "Effort":
        """Return accounts for `keys` with equal shares of `units`, at least `LEAST`; the joint one has all `units`."""
        names = tuple(keys)
        share = max(LEAST, units // max(1, len(names)))
        return Effort(
            own={key: Account(limit=share, beat=beat) for key in names}, joint=Account(limit=units, beat=beat)
        )


class Charges:
    """The charges made to the accounts of `keys`, and to the joint one, since this object was made."""

    def __init__(self, effort: Effort | None, keys: Iterable[str]) -> None:
        self._accounts = () if effort is None else (*(effort.own[key] for key in keys), effort.joint)
        self._before = tuple(account.spent for account in self._accounts)

    @property
    def exhausted(self) -> bool:
        """Return whether one of the accounts is exhausted."""
        return any(account.exhausted for account in self._accounts)

    def made(self) -> tuple[float, ...]:
        """Return the units charged to each account."""
        return tuple(account.spent - before for account, before in zip(self._accounts, self._before, strict=True))

    def repeat(self, units: tuple[float, ...]) -> bool:
        """Charge `units` to the accounts, unless that exhausts one; return whether they were charged."""
        own = tuple(zip(self._accounts, units, strict=True))
        if any(account.spent + more >= account.limit for account, more in own):
            return False
        for account, more in own:
            account.charge(more)
        return True
