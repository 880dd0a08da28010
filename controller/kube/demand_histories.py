"""The histories of the demand, kept in memory: read in a thread, and continued by what each cycle observes.

Each pipeline is read at most once an hour. After a start, those that were never read come first, one after the other.
"""

import logging
import math
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from controller.core.state.spec import HistorySpec, PipelineSpec
from optimizer.model import PipelineKey
from profiler.samples import Absence, AbsenceReason, Reading
from profiler.season import GAP, DemandHistory, packed, period_before
from profiler.sources.demand_history import HistorySource
from profiler.sources.prometheus_api import Period

_LOG = logging.getLogger(__name__)
READ_S = 3600.0
"""The least time between two reads of a pipeline."""
JITTER = 0.1
"""By up to this share the time is longer, so that the reads of a fleet do not come together."""
RETRY_S = 600.0
"""The time after a failed read of a pipeline that has no history yet."""
_TURN_S = 5.0
_MISSED = 2
"""So many steps may lie between two cycles without a gap: the later reading stands for the earlier time too."""
_NOT_READ = Absence(reason=AbsenceReason.MISSING, detail="demand.history: not read yet")
_LEVEL_BYTES = 4


@dataclass(slots=True, kw_only=True)
class _Kept:
    """The history of one pipeline, as it was read for `spec` with `query`; `problem` is of the last read."""

    spec: HistorySpec
    query: str
    namespace: str
    due_s: float
    history: DemandHistory | None = None
    problem: Absence | None = _NOT_READ
    unit: float | None = None
    """How much demand one of the levels is, where another query recorded them."""

    def unit_known(self, history: DemandHistory, demand: Reading, now_s: float) -> DemandHistory:
        """Return the history with the unit by the `demand` beside its last level, or that of the last time."""
        (last,) = struct.unpack("f", history.levels[-_LEVEL_BYTES:])
        fresh = now_s - history.end_s < history.step_s
        if fresh and not isinstance(demand, Absence) and demand > 0 and last > 0:
            self.unit = demand / last
        return replace(history, unit=self.unit)


class DemandHistories:
    """Keeps the histories of all pipelines that have `demand.history`. A cycle never waits for one."""

    def __init__(self, source: HistorySource, *, clock: Callable[[], float]) -> None:
        """`clock` returns epoch seconds."""
        self._source = source
        self._clock = clock
        self._changed = threading.Condition()
        self._kept: dict[PipelineKey, _Kept] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False

    def close(self) -> None:
        """End the thread; a query under way ends by its own deadline."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def watch(self, specs: Sequence[PipelineSpec]) -> None:
        """Begin to read the histories of `specs`, and forget those of all others."""
        with self._changed:
            before, self._kept = self._kept, {}
            for spec in specs:
                if spec.history is None:
                    continue
                query = spec.history.query or spec.queries.demand
                known = before.get(spec.key)
                if known is None or (known.spec, known.query) != (spec.history, query):
                    known = _Kept(spec=spec.history, query=query, namespace=spec.namespace, due_s=self._clock())
                self._kept[spec.key] = known
            if self._kept and self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="demand-histories", daemon=True)
                self._thread.start()
            if self._kept.keys() - before.keys():
                self._changed.notify_all()

    def of(self, spec: PipelineSpec, demand: Reading, now_s: float) -> DemandHistory | Absence | None:
        """Return the history of a pipeline until now, None where it is to have none; `demand` is what is observed."""
        with self._changed:
            kept = self._kept.get(spec.key)
            if spec.history is None or kept is None:
                return None
            if kept.history is None:
                return kept.problem
            if kept.spec.query is None:
                kept.history = continued(kept.history, demand, now_s)
            elif kept.history.unit is None:
                kept.history = kept.unit_known(kept.history, demand, now_s)
            problem = "" if kept.problem is None else kept.problem.detail or kept.problem.reason.value
            return replace(kept.history, problem=problem)

    def read_due(self) -> bool:
        """Read the history that has been due for longest; return whether there was one."""
        now_s = self._clock()
        with self._changed:
            due = [
                (kept.due_s, key) for key, kept in self._kept.items() if kept.due_s <= now_s or _misplaced(kept, now_s)
            ]
            if not due:
                return False
            key = min(due)[1]
            kept = self._kept[key]
        read = self._read(kept, now_s)
        with self._changed:
            if isinstance(read, Absence):
                if kept.problem is None or kept.problem.detail != read.detail:
                    _LOG.warning("history of %s: %s: %s", key, read.reason.value, read.detail)
                kept.problem = read
            else:
                kept.history, kept.problem = read, None
            spread = 1 + JITTER * (crc32(key.encode()) % 1000) / 1000
            kept.due_s = now_s + (RETRY_S if kept.history is None else READ_S) * spread
        return True

    def _read(self, kept: _Kept, now_s: float) -> DemandHistory | Absence:
        spec = kept.spec
        begin_s, count = period_before(now_s, spec.season_s, spec.seasons, spec.step_s)
        period = Period(start_s=round(begin_s), step_s=round(spec.step_s), count=count)
        levels = self._source.levels(kept.query, kept.namespace, period)
        if isinstance(levels, Absence):
            return levels
        return DemandHistory(
            begin_s=begin_s,
            step_s=spec.step_s,
            season_s=spec.season_s,
            most=spec.seasons,
            levels=packed(levels),
            unit=1.0 if spec.query is None else None,
        )

    def _run(self) -> None:
        while not self._stopped:
            try:
                found = self.read_due()
            except Exception:  # noqa: BLE001 -- one answer that is not understood must not end the thread
                _LOG.exception("histories of the demand: internal error")
                found = False
            with self._changed:
                if not found and not self._stopped:
                    self._changed.wait(_TURN_S)


def continued(history: DemandHistory, demand: Reading, now_s: float) -> DemandHistory:
    """Return `history` until `now_s`, with `demand` as its last level, and as many levels as before."""
    passed = math.floor((now_s - history.end_s) / history.step_s + 1e-9)
    if passed <= 0:
        return history
    level = GAP if isinstance(demand, Absence) else demand
    count = len(history.levels) // _LEVEL_BYTES
    added = [level] * passed if passed <= _MISSED else [GAP] * min(count, passed - 1) + [level]
    levels = (history.levels + packed(added))[-len(history.levels) :]
    return replace(history, begin_s=history.begin_s + passed * history.step_s, levels=levels)


def _misplaced(kept: _Kept, now_s: float) -> bool:
    """Return whether a read is due later than any wait, because the clock was set back."""
    return kept.due_s - now_s > READ_S * (1 + JITTER)
