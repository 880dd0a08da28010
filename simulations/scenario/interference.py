"""How replicas on one instance slow each other, as a scenario states it: the truth of simulator and lab."""

from collections.abc import Iterator, Mapping

NamedStage = tuple[str, str]
"""A stage: its pipeline (namespace/name), and its name there."""


def parts(pair: str) -> tuple[str, str] | None:
    """Return both stages of a key such as `encoder,lm`; None for another text."""
    names = [name.strip() for name in pair.split(",")]
    return (names[0], names[1]) if len(names) == 2 and all(names) else None


def beside(interference: Mapping[str, float] | None, own: NamedStage, other: NamedStage) -> float:
    """Return the factor of the service times of a replica of `own` while one of `other` on its instance is busy.

    A factor that is stated for (own, other) counts before that of (other, own): without both, each slows the other
    alike. Stages are named as PIPELINE/NAME or NAME; the first that is stated counts.
    """
    for one, another in ((own, other), (other, own)):
        for pair, factor in (interference or {}).items():
            named = parts(pair)
            if named is not None and named[0] in _names(one) and named[1] in _names(another):
                return factor
    return 1.0


def stages_named(interference: Mapping[str, float] | None) -> Iterator[tuple[str, str]]:
    """Yield every key with each stage that it names."""
    for pair in interference or {}:
        for name in parts(pair) or ():
            yield pair, name


def _names(stage: NamedStage) -> tuple[str, str]:
    return f"{stage[0]}/{stage[1]}", stage[1]
