"""Several sources, best first: metrics that a better source has lost are read from the next one.

Each pipeline has a current tier. The pipeline falls to a lower tier at once when its tier has lost numbers that
decisions need (the users' queries, the throughput of stages) and the lower tier has them. It returns to a better tier
after that tier had all these numbers in `_STEADY` reads in a row, so that an unstable source does not make it switch
back and forth. A number that no tier has stays absent.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence

from optimizer.model import PipelineKey, PlacementId
from profiler.samples import (
    THROUGHPUT,
    UNKNOWN_SCRAPES,
    Absence,
    AbsenceReason,
    MetricsTier,
    Origin,
    PlacementSamples,
    Quantity,
    Reading,
)
from profiler.sources.base import MetricSource, ReadAnswer, ReadRequest

_STEADY = 2
_LOST = frozenset(
    {
        *(AbsenceReason.UNAVAILABLE, AbsenceReason.STALE, AbsenceReason.MISSING, AbsenceReason.PARTIAL),
        AbsenceReason.TOO_NEW,
    }
)
"""Reasons for which another source may have the number. A quantity that the server does not export is in no source."""


class TieredSource:
    """A `MetricSource` over several others, one per tier."""

    def __init__(self, sources: Mapping[MetricsTier, MetricSource]) -> None:
        """`sources` has at least one tier, the best first."""
        self._sources = dict(sources)
        self._tiers: dict[PipelineKey, int] = {}
        self._steady: dict[PipelineKey, int] = {}

    def read(self, request: ReadRequest) -> ReadAnswer:
        """See `MetricSource.read`. The sources are read one after the other: all but the first must return at once."""
        answers = [source.read(request) for source in self._sources.values()]
        placements: dict[PlacementId, PlacementSamples] = {}
        scalars: dict[Hashable, Reading] = {}
        origins: dict[PipelineKey, Origin] = {}
        before, self._tiers = self._tiers, {}
        for key, (placement_ids, scalar_ids) in _by_pipeline(request).items():
            essential = [dict(_essential(answer, placement_ids, scalar_ids)) for answer in answers]
            tier = self._next_tier(key, before.get(key, 0), essential)
            self._tiers[key] = tier
            preferred = [answers[tier], *answers[:tier], *answers[tier + 1 :]]
            for placement in placement_ids:
                placements[placement] = _merged([answer.placements[placement] for answer in preferred], best=tier == 0)
            for scalar in scalar_ids:
                scalars[scalar] = _first([answer.scalars[scalar] for answer in preferred], best=tier == 0)
            origins[key] = Origin(tier=list(self._sources)[tier], because=_losses(essential[:tier]))
        for scalar in request.scalars.keys() - scalars.keys():  # without a pipeline: the first number of any source
            scalars[scalar] = _first([answer.scalars[scalar] for answer in answers], best=False)
        self._steady = {key: count for key, count in self._steady.items() if key in self._tiers}
        problems = dict.fromkeys(problem for answer in answers for problem in answer.problems)
        return ReadAnswer(
            placements=placements,
            scalars=scalars,
            problems=tuple(problems),
            origins=origins,
            unanswered=next((answer.unanswered for answer in answers if answer.unanswered), {}),
        )

    def _next_tier(self, key: PipelineKey, tier: int, essential: Sequence[Mapping[Hashable, Reading]]) -> int:
        """Return the index of the pipeline's next tier; `essential` has the readings that decisions need, by tier."""
        best = _best(essential)
        if best >= tier or not _has_any(essential[best]):
            self._steady.pop(key, None)
            return max(best, tier)
        self._steady[key] = self._steady.get(key, 0) + 1
        if self._steady[key] < _STEADY:
            return tier
        del self._steady[key]
        return best


def _by_pipeline(request: ReadRequest) -> Mapping[PipelineKey, tuple[list[PlacementId], list[Hashable]]]:
    parts: dict[PipelineKey, tuple[list[PlacementId], list[Hashable]]] = {}
    for target in request.placements:
        placement = (target.pipeline, target.stage, target.placement)
        parts.setdefault(target.pipeline, ([], []))[0].append(placement)
    for scalar, key in request.scalar_owners.items():
        parts.setdefault(key, ([], []))[1].append(scalar)
    return parts


def _essential(
    answer: ReadAnswer, placements: Sequence[PlacementId], scalars: Sequence[Hashable]
) -> Iterator[tuple[Hashable, Reading]]:
    """Yield the readings that decisions need, each with a name."""
    for scalar in scalars:
        yield scalar, answer.scalars[scalar]
    for placement in placements:
        for quantity in THROUGHPUT:
            yield (placement, quantity), answer.placements[placement].of(quantity)


def _best(essential: Sequence[Mapping[Hashable, Reading]]) -> int:
    """Return the index of the first tier that has lost no reading that a later tier has."""
    for tier, readings in enumerate(essential):
        lost = [name for name, reading in readings.items() if _is_lost(reading)]
        if not any(not isinstance(later[name], Absence) for name in lost for later in essential[tier + 1 :]):
            return tier
    return 0


def _has_any(readings: Mapping[Hashable, Reading]) -> bool:
    return any(not _is_lost(reading) for reading in readings.values())


def _is_lost(reading: Reading) -> bool:
    return isinstance(reading, Absence) and reading.reason in _LOST


def _losses(essential: Sequence[Mapping[Hashable, Reading]]) -> str:
    """Return the reason of the first lost reading of each tier, as text."""
    reasons = []
    for readings in essential:
        for reading in readings.values():
            if isinstance(reading, Absence) and _is_lost(reading):
                reasons.append(f"{reading.reason.value}: {reading.detail}" if reading.detail else reading.reason.value)
                break
    return "; ".join(reasons)


def _merged(samples: Sequence[PlacementSamples], *, best: bool) -> PlacementSamples:
    return PlacementSamples(
        readings={quantity: _first([each.of(quantity) for each in samples], best=best) for quantity in Quantity},
        sessions=next((each.sessions for each in samples if each.sessions), {}),
        scrapes=next((each.scrapes for each in samples if each.scrapes != UNKNOWN_SCRAPES), UNKNOWN_SCRAPES),
        devices=samples[0].devices,
        device_faults=samples[0].device_faults,
    )


def _first(readings: Sequence[Reading], *, best: bool) -> Reading:
    """Return the first of `readings`, or the first number among the others where the first is lost or unsupported.

    The first is returned in any case if it comes from the `best` tier, or if no other is a number.
    """
    first = readings[0]
    if best or not isinstance(first, Absence) or first.reason not in _LOST | {AbsenceReason.UNSUPPORTED}:
        return first
    return next((reading for reading in readings if not isinstance(reading, Absence)), first)
