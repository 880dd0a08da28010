"""The diagnosis over a run: which cause of a missed SLA was named, at which stage, and from when until when."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

JOINED_CYCLES = 3
"""A cause that is not named for this many cycles, and is then named again, is in one episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCause:
    """A cause that a decision names, as the decision record has it.

    `because` is the form of the cause, `confidence` is 0–1. `evidence` and `remedy` are texts for people;
    `cost_per_hour` is what the remedy costs in USD per hour, None where that is not known.
    """

    cause: str
    because: str | None
    stage: str | None
    confidence: float
    evidence: tuple[str, ...]
    remedy: str
    cost_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A time in which the decisions for a pipeline (`namespace/name`) name one cause at one stage.

    It is [from_s, until_s), in seconds since the run began. `named` is the cause at its highest confidence, with the
    evidence of that moment.
    """

    pipeline: str
    from_s: float
    until_s: float
    named: NamedCause

    def to_json(self) -> dict[str, Any]:
        """Return the episode as it is in the JSON of a run; the cause has the fields of `sluice diagnose -o json`."""
        return {
            "pipeline": self.pipeline,
            "from_s": self.from_s,
            "until_s": self.until_s,
            **asdict(self.named),
            "evidence": list(self.named.evidence),
        }


def named_causes(diagnosis: Iterable[Any]) -> tuple[NamedCause, ...]:
    """Return the causes in `diagnosis`, a field of a pipeline in a decision record. Early records have no texts."""
    return tuple(
        NamedCause(
            cause=each["cause"],
            because=each.get("because"),
            stage=each.get("stage"),
            confidence=each["confidence"],
            evidence=tuple(each.get("evidence", ())),
            remedy=each.get("remedy", ""),
            cost_per_hour=each.get("cost_per_hour"),
        )
        for each in diagnosis
    )


def at_their_highest(causes: Iterable[NamedCause]) -> tuple[NamedCause, ...]:
    """Return one cause for each pair of cause and stage: the surest, of equally sure ones the first."""
    found: dict[tuple[str, str | None], NamedCause] = {}
    for each in causes:
        key = each.cause, each.stage
        found[key] = max(found.get(key, each), each, key=lambda one: one.confidence)
    return tuple(found.values())


def episodes(
    decisions: Iterable[tuple[float, str, tuple[NamedCause, ...]]], *, interval_s: float, end_s: float
) -> tuple[Episode, ...]:
    """Return the episodes of all causes, in the order in which they begin.

    `decisions` are time (s), pipeline and causes of each decision, in the order of time; the causes of a decision are
    named until the next one for the same pipeline, or until the end of the run, `end_s`. `interval_s` is the time
    between two cycles.
    """
    # Half a cycle more, because the cycles of a live run are not exactly `interval_s` apart.
    joined_s = (JOINED_CYCLES + 0.5) * interval_s
    begun: list[Episode] = []
    latest: dict[tuple[str, str, str | None], int] = {}
    standing: dict[str, frozenset[int]] = {}
    for t_s, pipeline, causes in decisions:
        if t_s >= end_s:
            break
        for index in standing.get(pipeline, ()):
            begun[index] = replace(begun[index], until_s=t_s)
        named = set()
        for cause in at_their_highest(causes):
            key = pipeline, cause.cause, cause.stage
            index = latest.get(key, -1)
            if index < 0 or t_s - begun[index].until_s > joined_s:
                index = latest[key] = len(begun)
                begun.append(Episode(pipeline=pipeline, from_s=t_s, until_s=t_s, named=cause))
            named.add(index)
            begun[index] = replace(begun[index], named=at_their_highest((begun[index].named, cause))[0])
        standing[pipeline] = frozenset(named)
    for indexes in standing.values():
        for index in indexes:
            begun[index] = replace(begun[index], until_s=end_s)
    return tuple(begun)
