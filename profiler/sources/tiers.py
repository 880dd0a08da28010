"""Several sources, best first: what one cannot tell because it has lost it, the next is asked for.

A pipeline stands on one rung. It falls at once when the rung above lacks something that decisions are made of (the
users' queries, what stages are offered and answer) and the one below has it; it climbs when the rung above has told it
all in `_STEADY` reads one after the other, so that a source that comes and goes is not followed up and down. Below the
last rung nothing is made up: the reading stays absent, and whoever decides holds what is there.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence

from optimizer.model import PipelineKey
from profiler.samples import (
    THROUGHPUT,
    Absence,
    AbsenceReason,
    MetricsTier,
    Origin,
    PlacementSamples,
    Quantity,
    Reading,
)
from profiler.sources.base import MetricSource, PlacementId, ReadAnswer, ReadRequest

_STEADY = 2
_LOST = frozenset({AbsenceReason.UNAVAILABLE, AbsenceReason.STALE, AbsenceReason.MISSING, AbsenceReason.PARTIAL})
"""What another source may know. That a server does not export a quantity, or that nobody asked for anything, is so
whoever reads it."""


class TieredSource:
    """A `MetricSource` over others, which are named by their rungs, best first."""

    def __init__(self, sources: Mapping[MetricsTier, MetricSource]) -> None:
        """`sources` must be some, in the order of preference."""
        self._sources = dict(sources)
        self._rungs: dict[PipelineKey, int] = {}
        self._steady: dict[PipelineKey, int] = {}

    def read(self, request: ReadRequest) -> ReadAnswer:
        """See `MetricSource.read`. The sources are asked one after the other: all but the first must answer at once."""
        answers = [source.read(request) for source in self._sources.values()]
        placements: dict[PlacementId, PlacementSamples] = {}
        scalars: dict[Hashable, Reading] = {}
        origins: dict[PipelineKey, Origin] = {}
        before, self._rungs = self._rungs, {}
        for key, (placement_ids, scalar_ids) in _by_pipeline(request).items():
            told = [dict(_essential(answer, placement_ids, scalar_ids)) for answer in answers]
            tier = self._settled(key, before.get(key, 0), told)
            self._rungs[key] = tier
            own = [answers[tier], *answers[:tier], *answers[tier + 1 :]]
            for placement in placement_ids:
                placements[placement] = _merged([answer.placements[placement] for answer in own], alone=tier == 0)
            for scalar in scalar_ids:
                scalars[scalar] = _first([answer.scalars[scalar] for answer in own], alone=tier == 0)
            origins[key] = Origin(tier=list(self._sources)[tier], because=_why(told[:tier]))
        for scalar in request.scalars.keys() - scalars.keys():  # nobody's: the first number there is
            scalars[scalar] = _first([answer.scalars[scalar] for answer in answers], alone=False)
        self._steady = {key: count for key, count in self._steady.items() if key in self._rungs}
        problems = dict.fromkeys(problem for answer in answers for problem in answer.problems)
        return ReadAnswer(placements=placements, scalars=scalars, problems=tuple(problems), origins=origins)

    def _settled(self, key: PipelineKey, tier: int, told: Sequence[Mapping[Hashable, Reading]]) -> int:
        """Return the rung to stand on after a read in which the sources `told` that much."""
        best = _best(told)
        if best >= tier or not _tells_anything(told[best]):
            self._steady.pop(key, None)
            return max(best, tier)
        self._steady[key] = self._steady.get(key, 0) + 1
        if self._steady[key] < _STEADY:
            return tier
        del self._steady[key]
        return best


def _by_pipeline(request: ReadRequest) -> Mapping[PipelineKey, tuple[list[PlacementId], list[Hashable]]]:
    found: dict[PipelineKey, tuple[list[PlacementId], list[Hashable]]] = {}
    for target in request.placements:
        placement = (target.pipeline, target.stage, target.pool)
        found.setdefault(target.pipeline, ([], []))[0].append(placement)
    for scalar, key in request.asked_by.items():
        found.setdefault(key, ([], []))[1].append(scalar)
    return found


def _essential(
    answer: ReadAnswer, placements: Sequence[PlacementId], scalars: Sequence[Hashable]
) -> Iterator[tuple[Hashable, Reading]]:
    """Yield what decisions are made of."""
    for scalar in scalars:
        yield scalar, answer.scalars[scalar]
    for placement in placements:
        for quantity in THROUGHPUT:
            yield (placement, quantity), answer.placements[placement].of(quantity)


def _best(told: Sequence[Mapping[Hashable, Reading]]) -> int:
    """Return the first rung that has lost nothing which a later one has."""
    for tier, readings in enumerate(told):
        lost = [what for what, reading in readings.items() if _is_lost(reading)]
        if not any(not isinstance(later[what], Absence) for what in lost for later in told[tier + 1 :]):
            return tier
    return 0


def _tells_anything(readings: Mapping[Hashable, Reading]) -> bool:
    return any(not _is_lost(reading) for reading in readings.values())


def _is_lost(reading: Reading) -> bool:
    return isinstance(reading, Absence) and reading.reason in _LOST


def _why(told: Sequence[Mapping[Hashable, Reading]]) -> str:
    """Return what the rungs above say of what they have lost: the first of each, for a person."""
    words = []
    for readings in told:
        for reading in readings.values():
            if isinstance(reading, Absence) and _is_lost(reading):
                words.append(f"{reading.reason.value}: {reading.detail}" if reading.detail else reading.reason.value)
                break
    return "; ".join(words)


def _merged(samples: Sequence[PlacementSamples], *, alone: bool) -> PlacementSamples:
    return PlacementSamples(
        readings={quantity: _first([each.of(quantity) for each in samples], alone=alone) for quantity in Quantity},
        sessions=next((each.sessions for each in samples if each.sessions), {}),
    )


def _first(readings: Sequence[Reading], *, alone: bool) -> Reading:
    """Return the first reading; where it is lost or not supported, and this is no source to rely on `alone`, the first
    number instead, if there is any."""
    first = readings[0]
    if alone or not isinstance(first, Absence) or first.reason not in _LOST | {AbsenceReason.UNSUPPORTED}:
        return first
    return next((reading for reading in readings if not isinstance(reading, Absence)), first)
