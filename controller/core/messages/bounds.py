"""Texts for bounds: what each mechanism allows, which of it binds, and which of it was not kept."""

from collections.abc import Iterator, Mapping, Sequence

from controller.core.messages.details import no_capacity
from controller.core.messages.phrases import timestamp
from controller.core.state.bound import Bound, Level
from controller.core.state.decision import PipelineDecision
from optimizer.model import PlacementKey

_SHOWN = 6
"""The most stages and placements that are named in one text."""


def bounds_in_force(decision: PipelineDecision) -> Iterator[str]:
    """Yield a text for each mechanism with bounds in force, those that bind first, then for each bound that lost.

    A bound binds where the replicas that the pipeline goes to are its least or its most. Declared bounds that do not
    bind are left out.
    """
    bind = [bound for bound in decision.bounds if binds(bound, decision)]
    others = [bound for bound in decision.bounds if bound not in bind and bound.level is not Level.DECLARED]
    for word, bounds in (("binds", bind), ("in force", others)):
        by_mechanism: dict[str, list[Bound]] = {}
        for bound in sorted(bounds, key=lambda bound: bound.level):
            by_mechanism.setdefault(bound.mechanism.name, []).append(bound)
        for name, own in by_mechanism.items():
            yield f"{word}: {name}: {_listed(own)}; evidence: {own[0].evidence.value}{_when(own[0])}"
    for lost in decision.lost:
        name, by = lost.bound.mechanism.name, lost.to.mechanism.name
        yield f"not kept in full: {name}: {words(lost.bound)}; outranked by {by}"
    for (stage, placement), limit in decision.unmet.items():
        yield f"not kept in full: a floor of stage {stage}: {no_capacity(placement, limit)}"


def binds(bound: Bound, decision: PipelineDecision) -> bool:
    """Return whether the replicas that the pipeline goes to are at the least or the most that `bound` allows."""
    replicas: Mapping[PlacementKey, int] = decision.desired if bound.level is Level.STEP else decision.goal
    if bound.key is None:
        count = sum(own for key, own in replicas.items() if key[0] == bound.stage)
    else:
        count = replicas.get(bound.key, 0)
    return (bound.least is not None and 0 < count == bound.least) or bound.most == count


def words(bound: Bound) -> str:
    """Return a bound as text, such as `vad on cpu at least 4`."""
    where = bound.stage if bound.placement is None else f"{bound.stage} on {bound.placement}"
    if bound.least == bound.most:
        return f"{where} exactly {bound.most}"
    sides = [f"at least {bound.least}"] if bound.least else []
    sides += [] if bound.most is None else [f"at most {bound.most}"]
    return f"{where} {' and '.join(sides) or 'any number'}"


def _listed(bounds: Sequence[Bound]) -> str:
    shown = ", ".join(map(words, bounds[:_SHOWN]))
    return f"{shown} and {len(bounds) - _SHOWN} more" if len(bounds) > _SHOWN else shown


def _when(bound: Bound) -> str:
    since = "" if bound.since_s is None else f"; since {timestamp(bound.since_s)}"
    return since if bound.until_s is None else f"{since}; until {timestamp(bound.until_s)}"
