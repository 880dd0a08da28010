"""The load before a run, from `load[].history`: what a range query would have returned. Without randomness in time.

The streams under way are those expected of the recorded arrivals and the distribution of session lengths.
"""

import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from controller.core.state.spec import DemandUnit, PipelineSpec
from profiler.samples import Absence, AbsenceReason
from profiler.season import DemandHistory, packed, period_before
from simulations.scenario.load import replay_of
from simulations.scenario.scenario import Scenario
from simulations.scenario.schedule import Replay, Schedule, SessionLength, derived_seed
from simulations.scenario.traces import Column

_TAIL = 1e-3
"""Sessions longer than all but this share are left out of the expected streams."""
_NONE = Absence(reason=AbsenceReason.MISSING, detail="the scenario has no load[].history of this pipeline")


class PastLoads:
    """The load of every pipeline before a run, and in it."""

    def __init__(self, scenario: Scenario, loads: Mapping[str, Schedule], *, before_s: float) -> None:
        """`loads` is the load in the run, by namespace/name. The policies' first cycle is `before_s` before it."""
        self._loads = loads
        self._before_s, self._until_s = before_s, scenario.file.clock.duration_s
        self._past: dict[str, list[tuple[float, NDArray[np.float64]]]] = {}
        for index, load in enumerate(scenario.file.load):
            if load.history is not None:
                past = load.history.model_copy(update={"session": load.history.session or load.session})
                seed = derived_seed(zlib.crc32(load.pipeline.encode()), index)
                replay = replay_of(past, scenario.path.parent)
                self._past.setdefault(load.pipeline, []).append((replay.bin_s, _levels(replay, seed)))
        self._levels: dict[tuple[str, float], NDArray[np.float32]] = {}

    def history(self, pipeline: PipelineSpec, now_s: float) -> DemandHistory | Absence | None:
        """Return the history of the demand until `now_s`, None where `pipeline` is to have none."""
        spec = pipeline.history
        if spec is None:
            return None
        if pipeline.key not in self._past:
            return _NONE
        begin_s, count = period_before(now_s, spec.season_s, spec.seasons, spec.step_s)
        first_s, _ = period_before(-self._before_s, spec.season_s, spec.seasons, spec.step_s)
        key = pipeline.key, spec.step_s
        if key not in self._levels:
            last = math.floor((self._until_s - first_s) / spec.step_s)
            times_s = (first_s + index * spec.step_s for index in range(last + 1))
            self._levels[key] = np.frombuffer(packed(self._level(pipeline, at_s) for at_s in times_s), np.float32)
        first = round((begin_s - first_s) / spec.step_s)
        return DemandHistory(
            begin_s=begin_s,
            step_s=spec.step_s,
            season_s=spec.season_s,
            most=spec.seasons,
            levels=self._levels[key][first : first + count].tobytes(),
        )

    def _level(self, pipeline: PipelineSpec, at_s: float) -> float | None:
        """Return the load at `at_s` in the pipeline's unit, None where it was not recorded."""
        if at_s >= 0:
            return _in_run(self._loads[pipeline.key], pipeline.unit, at_s)
        total = 0.0
        for bin_s, levels in self._past[pipeline.key]:
            index = len(levels) + math.floor(at_s / bin_s)
            if index < 0:
                return None
            total += float(levels[index])
        return total


def _in_run(load: Schedule, unit: DemandUnit, at_s: float) -> float:
    if unit is DemandUnit.STREAMS:
        return float(load.active(np.array([at_s]))[0])
    return float(np.diff(np.searchsorted(load.start_s, [at_s - 1, at_s]))[0])


def _levels(replay: Replay, seed: int) -> NDArray[np.float64]:
    """Return the load of each bin from the offset of the recording to its end: streams under way, or starts per second.

    Without session lengths, a stream is not told from a request: the load is that of starts.
    """
    counts = replay.bins(default_rng(seed), replay.lasts_s())
    if replay.trace.column is Column.STREAMS:
        return counts
    starts = counts * (replay.trace.bin_s if replay.trace.column is Column.RATE_PER_S else 1.0)
    if replay.session is None:
        return starts / replay.bin_s
    return np.convolve(starts, _still_there(replay.session, replay.speed, replay.bin_s))[: len(starts)]


def _still_there(session: SessionLength, speed: float, bin_s: float) -> Sequence[float]:
    """Return the share of the sessions that last until the middle of each bin after the one in which they start."""
    shares: list[float] = []
    while not shares or shares[-1] > _TAIL:
        shares.append(session.longer_than((len(shares) * bin_s + bin_s / 2) * speed))
    return shares
