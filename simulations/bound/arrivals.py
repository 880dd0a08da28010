"""Counts of the items that arrive at every stage over time, and of those that are filtered, without a simulation.

Whether voice activity detection filters an item depends only on its number, so the load determines it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.core.state.spec import PipelineSpec
from optimizer.runtime.compiled import compiled
from simulations.engine.draws import verdict
from simulations.scenario.schedule import Schedule, chunk_phases

Counts = NDArray[np.int64]
Array = NDArray[np.float64]

_TO_UNIT = 2.0**-64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """The numbers of items that have arrived before each of `times_s` (ascending), shape (times,) or (stages, times).

    `unfiltered` counts the items that reach an end of the pipeline. Of the items that visit each stage, `needed` counts
    those that reach an end, and `spared` those that do not, because they are filtered. `present_s` is the total time
    that streams have been present before each time, from their first chunk to their last; 0 for requests.
    """

    times_s: Array
    unfiltered: Counts
    needed: Counts
    spared: Counts
    present_s: Array

    def at(self, counts: NDArray[np.generic], t_s: Array) -> Array:
        """Return the columns of `counts`, one of the arrays of this object, at `t_s`, which must be among `times_s`."""
        return np.asarray(counts[..., np.searchsorted(self.times_s, t_s)], dtype=np.float64)


def count_arrivals(
    pipeline: PipelineSpec, schedule: Schedule, times_s: Array, *, seed: int, duration_s: float
) -> Arrivals:
    """Return the arrivals of a schedule before each of `times_s`; `seed` must be the engine's seed for the pipeline."""
    times_s = np.unique(times_s)
    present_s = np.zeros(len(times_s))
    if pipeline.chunk_s is None:
        before = np.searchsorted(schedule.start_s, times_s).astype(np.int64)
    else:
        before = np.zeros(len(times_s), dtype=np.int64)
        first_s = schedule.start_s + chunk_phases(schedule, pipeline.chunk_s, seed)
        _count_chunks(first_s, np.minimum(schedule.end_s, duration_s), pipeline.chunk_s, times_s, before, present_s)
    names = [stage.name for stage in pipeline.stages]
    follows = np.zeros((len(names), len(names)), dtype=np.bool_)
    for index, stage in enumerate(pipeline.stages):
        follows[index, [names.index(name) for name in stage.after]] = True
    share = np.array([stage.pass_ratio for stage in pipeline.stages])
    share[~follows.any(axis=0)] = 1.0  # an item that the last stage would filter is served
    needed = np.zeros((len(names), len(times_s)), dtype=np.int64)
    spared = np.zeros_like(needed)
    unfiltered = np.zeros(len(times_s), dtype=np.int64)
    _count(seed, share, follows, before, needed, spared, unfiltered)
    return Arrivals(
        times_s=times_s,
        unfiltered=np.cumsum(unfiltered),
        needed=np.cumsum(needed, axis=1),
        spared=np.cumsum(spared, axis=1),
        present_s=present_s,
    )


@compiled
def _count_chunks(
    first_s: Array, end_s: Array, chunk_s: float, times_s: Array, before: Counts, present_s: Array
) -> None:
    """Add to `before` the number of chunks before each time, and to `present_s` how long streams have been present.

    The chunks need no sorting: their numbers only decide which are filtered, and the chunks of an interval have
    consecutive numbers, so counts are enough.
    """
    over = np.zeros(len(times_s), dtype=np.int64)  # the chunks of ended streams, added from here on
    over_s = np.zeros(len(times_s))
    for k in range(len(first_s)):
        chunks = int(np.ceil((end_s[k] - first_s[k]) / chunk_s))
        if chunks <= 0:
            continue
        at = np.searchsorted(times_s, first_s[k], side="right")
        last_s = first_s[k] + (chunks - 1) * chunk_s
        while at < len(times_s) and times_s[at] <= last_s:
            before[at] += int(np.ceil((times_s[at] - first_s[k]) / chunk_s))
            present_s[at] += times_s[at] - first_s[k]
            at += 1
        if at < len(times_s):
            over[at] += chunks
            over_s[at] += last_s - first_s[k]
    before += np.cumsum(over)
    present_s += np.cumsum(over_s)


@compiled
def _count(
    seed: int,
    share: Array,
    follows: NDArray[np.bool_],
    before: Counts,
    needed: Counts,
    spared: Counts,
    unfiltered: Counts,
) -> None:
    """Count the items between each time and the one before, in `needed`, `spared` and `unfiltered`.

    Items are numbered from 1 in the order of arrival.
    """
    stages = len(share)
    visits = np.empty(stages, dtype=np.bool_)
    passes = np.empty(stages, dtype=np.bool_)
    ends = np.empty(stages, dtype=np.bool_)
    for k in range(stages):
        ends[k] = True
        for later in range(k + 1, stages):
            if follows[later, k]:
                ends[k] = False
    for at in range(len(before)):
        begin = before[at - 1] if at > 0 else 0
        for number in range(begin + 1, before[at] + 1):
            reached = False
            for k in range(stages):
                visits[k] = True
                for earlier in range(k):
                    if follows[k, earlier] and not passes[earlier]:
                        visits[k] = False
                passes[k] = visits[k]
                if visits[k] and share[k] < 1.0:
                    passes[k] = np.float64(verdict(seed, k, number)) * _TO_UNIT < share[k]
                if ends[k] and visits[k]:
                    reached = True
            unfiltered[at] += reached
            for k in range(stages):
                if visits[k]:
                    if reached:
                        needed[k, at] += 1
                    else:
                        spared[k, at] += 1
