"""Straight lines in place of a service law that bends: the table of latencies knows no other laws.

How long items wait depends on the sizes of the batches that form, and those lie close together. Around them a law is
nearly straight. A line is fitted to T(b) with the weights of the sizes around a typical one, and a load between the
typical sizes of two lines gets the times of both, in proportion.
"""

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from optimizer.model import Routing, ServiceLaw

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_STEP = 1.4
"""Ratio of the typical sizes of two neighbouring lines."""
_AT_RANDOM = (1.5, 0.9)
_SPREAD = {
    Routing.PULL: (3.5, 0.1),
    Routing.LEAST_LOADED: (0.8, 0.2),
    Routing.ROUND_ROBIN: (1.2, 0.8),
    Routing.RANDOM: _AT_RANDOM,
    Routing.STICKY: _AT_RANDOM,
}
"""Standard deviation of the sizes of batches, in relation to that of the arrivals in a service time (Poisson): what
waits for all servers together comes in bursts, what joins the shortest queue comes evenly. And by how many deviations
the sizes that matter are above the typical one: slow items are in large batches. Fitted to event simulations of random
laws."""
_MOST_FEEDBACK = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines for batches of up to a limit: `laws` at the typical sizes `typical` (lines,), ascending.

    `rates_rps` (limit,) is the rate of a server that always serves batches of 1, 2, … items, made to ascend. `falling`:
    it does not ascend by itself, so that a server which falls behind serves less than before.
    """

    laws: tuple[ServiceLaw, ...]
    typical: Array
    rates_rps: Array
    falling: bool = False

    def at(self, each_rps: Array) -> tuple[Counts, Array]:
        """Return for loads of one server (n,) the line below, and how much of the line above it is to be added (0–1).

        The typical size of a batch is the smallest that keeps up with the load.
        """
        if len(self.laws) == 1:
            return np.zeros(len(each_rps), dtype=np.int64), np.zeros(len(each_rps))
        size = np.interp(each_rps, self.rates_rps, np.arange(1.0, len(self.rates_rps) + 1))
        below = np.clip(np.searchsorted(self.typical, size, side="right") - 1, 0, len(self.laws) - 2)
        low, high = np.log(self.typical[below]), np.log(self.typical[below + 1])
        return below, np.clip((np.log(size) - low) / (high - low), 0.0, 1.0)


@lru_cache(maxsize=256)
def lines_of(law: ServiceLaw, limit: int, routing: Routing) -> Lines:
    """Return the lines for batches of up to `limit` items; a law that is straight up to there is its own only line."""
    sizes = np.arange(1.0, limit + 1)
    times = np.array(law.times_s(limit)[1:])
    rates = np.maximum.accumulate(sizes / times)
    falling = bool(rates[-1] > sizes[-1] / times[-1])
    if limit == 1 or law.linear:
        return Lines(laws=(law,), typical=np.ones(1), rates_rps=rates)
    count = 1 + int(np.ceil(np.log(limit) / np.log(_STEP)))
    typical = np.geomspace(1, limit, count)
    return Lines(
        laws=tuple(_line(sizes, times, centre, law.cv, routing) for centre in typical),
        typical=typical,
        rates_rps=rates,
        falling=falling,
    )


def _line(sizes: Array, times: Array, centre: float, cv: float, routing: Routing) -> ServiceLaw:
    """Return the line that fits `times` around batches of `centre` items; neither of its terms is negative.

    At the largest size it passes through the law: there it decides the capacity. A batch consists of the items that
    arrived during the one before, whose length varies by `cv`, and with its own size: that feeds back.
    """
    own_s, slope = np.interp(centre, sizes, times), np.diff(np.interp((centre - 0.5, centre + 0.5), sizes, times))[0]
    feedback = min(float(slope * centre / own_s), _MOST_FEEDBACK)
    wide, higher = _SPREAD[routing]
    width = 0.5 + wide * np.sqrt((centre + (cv * centre) ** 2) / (1 - feedback**2))
    below = np.array([NormalDist(centre + higher * width, width).cdf(size + 0.5) for size in sizes])
    weights = np.diff(np.append(below[:-1], 1.0), prepend=0.0)  # what is larger than the limit is a full batch
    if centre >= sizes[-1]:
        x, y = sizes[-1], times[-1]
    else:
        x, y = weights @ sizes, weights @ times
    spread = weights @ (sizes - x) ** 2
    slope = (weights @ ((sizes - x) * (times - y))) / spread if spread > 0 else 0.0
    slope = min(max(slope, 0.0), y / x)
    return ServiceLaw(fixed_s=max(y - slope * x, 0.0), per_item_s=slope, cv=cv)
