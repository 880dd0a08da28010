"""A replica's share of a core: when the work of a batch ends that took some CPU time without any limit.

`Stretched` spreads the limit evenly, as a slower core would: it is how replicas get small without any right on the
machine. `Throttled` is what a CPU limit of Kubernetes does: within each period of 100 ms the work runs at full speed
until the quota is used, then stops until the next period. Means are the same; times vary much more.
"""

import math
from dataclasses import dataclass
from typing import Protocol

PERIOD_S = 0.1
"""The period of the CFS quota that the kubelet sets by default (--cpu-cfs-quota-period)."""


class Share(Protocol):
    """Limits the CPU time of one replica, whose batches follow each other."""

    def end_s(self, begin_s: float, cpu_s: float) -> float:
        """Return when work ends that begins at `begin_s` and takes `cpu_s` of CPU time; s of a monotonic clock."""
        ...


def _check(share: float) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"share: {share!r}, must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Stretched:
    """Work takes 1/`share` times as long as on a whole core."""

    share: float

    def __post_init__(self) -> None:
        """Raise ValueError if the share is outside its range."""
        _check(self.share)

    def end_s(self, begin_s: float, cpu_s: float) -> float:
        """Return the end of the work."""
        return begin_s + cpu_s / self.share


@dataclass(slots=True)
class Throttled:
    """Work uses at most `share` × `period_s` of CPU time per period; periods begin at multiples of `period_s`.

    `periods` counts those in which there was work, `throttled` those of them in which the quota was too small for it:
    `nr_periods` and `nr_throttled` in `cpu.stat` of a cgroup.
    """

    share: float
    period_s: float = PERIOD_S
    periods: int = 0
    throttled: int = 0
    _period: int = -1
    _used_s: float = 0.0
    _stopped: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if the share is outside its range."""
        _check(self.share)

    def end_s(self, begin_s: float, cpu_s: float) -> float:
        """Return the end of the work, and count what it used of the quota."""
        now_s, left_s = begin_s, cpu_s
        while True:
            period = math.floor(now_s / self.period_s + 1e-9)
            if period != self._period:
                self._period, self._used_s, self._stopped = period, 0.0, False
                self.periods += 1
            next_s = (period + 1) * self.period_s
            able_s = min(self.share * self.period_s - self._used_s, next_s - now_s)
            if left_s <= able_s:
                self._used_s += left_s
                return now_s + left_s
            left_s -= max(0.0, able_s)
            self._used_s += max(0.0, able_s)
            if not self._stopped and able_s < next_s - now_s - 1e-9:
                self._stopped = True
                self.throttled += 1
            now_s = next_s
