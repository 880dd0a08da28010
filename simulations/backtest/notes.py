"""What a backtest could not read, and what it takes as given: every line is shown with its results. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controller.core.messages.phrases import count_of
from controller.core.state.spec import PoolSpec
from optimizer.model import PoolName, pool_of
from profiler.sources.prometheus_api import Period
from simulations.backtest.pieces import SHORTEST_S, WARMUP_S, Piece, assumptions
from simulations.backtest.record import PipelineRecord, gap_words, runs_of
from simulations.report import formats


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Notes by kind: gaps of the record, what is missing or differs from the manifests, and assumptions."""

    gaps: tuple[str, ...]
    differences: tuple[str, ...]
    assumed: tuple[str, ...]

    def all(self) -> tuple[str, ...]:
        """Return all notes in order."""
        return (*self.gaps, *self.differences, *self.assumed)


def notes_of(
    records: Sequence[PipelineRecord],
    pools: Mapping[PoolName, PoolSpec],
    instances: Mapping[PoolName, int],
    pieces: Sequence[Piece],
    period: Period,
    *,
    session_s: float | None,
) -> Notes:
    """Return the notes on a backtest of `records` in `pieces`; `session_s` is as in `pieces.write_scenario`."""
    known = np.all([record.known for record in records], axis=0)
    gaps = list(gap_words(known, period))
    covered = sum(1 for run in runs_of(known) if any(run.start <= piece.first < run.stop for piece in pieces))
    if short := len(runs_of(known)) - covered:
        gaps.append(f"{count_of(short, 'part')} of the record shorter than {SHORTEST_S // 60} min: left out")
    differences = [f"{record.spec.key}: {note}" for record in records for note in record.notes]
    for record in records:
        differences += _unlike_manifest(record)
        if record.latency_s is not None and (missing := int((~np.isfinite(record.latency_s) & known).sum())):
            differences.append(f"{record.spec.key}: sla.query has no number in {formats.plural(missing, 'known step')}")
    used = {own.pool for record in records for own in record.spec.placements().values()}
    differences += [
        f"pool {name}: price.perHour is 0: its replicas count as free"
        for name in sorted(used)
        if not pools[name].price_per_hour
    ]
    differences += _above_capacity(records, instances)
    start = (
        f"replayed in {count_of(len(pieces), 'part')}; a part begins with the least replicas, and with "
        f"{WARMUP_S // 60} min of recorded load that is not scored"
    )
    specs = [record.spec for record in records]
    return Notes(
        gaps=tuple(gaps), differences=tuple(differences), assumed=(start, *assumptions(specs, period.step_s, session_s))
    )


def _unlike_manifest(record: PipelineRecord) -> list[str]:
    """Return where the recorded replicas are outside the declared bounds, to which the replay keeps."""
    found = []
    for (stage, pool), placement in record.spec.placements().items():
        counts = (record.replicas or {}).get((stage, pool))
        if counts is None or not np.isfinite(counts).any():
            continue
        low, high = int(np.nanmin(counts)), int(np.nanmax(counts))
        least, most = placement.prior.min_replicas, placement.prior.max_replicas
        if high > most:
            found.append(
                f"{record.spec.key} {stage} on {pool}: up to {high} replicas ran; replayed with replicas.max {most}"
            )
        if low < least:
            found.append(
                f"{record.spec.key} {stage} on {pool}: only {low} replicas ran at times; replayed with replicas.min "
                f"{least}"
            )
    return found


def _above_capacity(records: Sequence[PipelineRecord], instances: Mapping[PoolName, int]) -> list[str]:
    used: dict[PoolName, np.ndarray] = {}
    for record in records:
        for key, counts in (record.replicas or {}).items():
            share = np.nan_to_num(counts) / float(record.spec.placements()[key].prior.per_instance)
            used[pool_of(key[1])] = used.get(pool_of(key[1]), np.zeros(len(share))) + share
    return [
        f"pool {pool}: replicas of {values.max():.3g} instances ran, replayed with {instances[pool]}: the others stay "
        "pending"
        for pool, values in used.items()
        if values.max() > instances[pool]
    ]
