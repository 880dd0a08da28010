"""Puts the stages of a pipeline in order: by who calls whom, else by their usual names, else by their rates. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.core.messages.phrases import number

_ROLES = (
    r"ingest|preprocess|resampl",
    r"vad|voice-?activity",
    r"denois|enhanc",
    r"diar|speaker",
    r"featur|frontend",
    r"enc(oder)?\b",
    r"asr|stt|whisper|recogni|transcri|parakeet|conformer|riva",
    r"dec(oder)?\b",
    r"\blm\b|rescor|language-?model",
    r"punct|itn|normal",
    r"translat|\bmt\b",
    r"llm|agent|notes|summar|chat",
    r"tts|synth|vocod",
)
"""The stages of speech pipelines as they are usually called, in the order in which items usually pass them."""

Calls = Mapping[tuple[str, str], str]
"""Evidence that one stage sends items to another, by their names: (from, to)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A stage in its place. `after` None: the stage before it in the list. `because` is the evidence as a sentence."""

    name: str
    after: tuple[str, ...] | None
    because: str


def in_order(names: Sequence[str], calls: Calls, rates: Mapping[str, float]) -> tuple[Placed, ...]:
    """Return the stages `names` in the order in which items pass them; `rates` are their measured items/s."""
    if len(names) == 1:
        return (Placed(name=names[0], after=None, because=""),)
    edges = {edge: because for edge, because in calls.items() if edge[0] != edge[1] and set(edge) <= set(names)}
    if edges and (sequence := _sorted(names, edges, rates)) is not None:
        return tuple(_placed(sequence, index, edges) for index in range(len(sequence)))
    roles = {name: _role(name) for name in names}
    cyclic = "the calls between the stages form a circle, so " if edges else ""
    if None not in roles.values() and len(set(roles.values())) == len(names):
        sequence = sorted(names, key=lambda name: roles[name] or 0)
        because = f"guess: {cyclic}in the usual order of such names; no call between the stages was seen"
    elif all(name in rates for name in names):
        sequence = sorted(names, key=lambda name: (-rates[name], name))
        shown = ", ".join(f"{name} {number(rates[name])}" for name in sequence)
        because = f"guess: {cyclic}in order of measured items/s ({shown}); no call between the stages was seen"
    else:
        sequence = sorted(names)
        because = f"TODO: {cyclic}the order is not known; put the stages in the order in which items pass them"
    return tuple(Placed(name=name, after=None, because="" if index else because) for index, name in enumerate(sequence))


def pass_ratios(stages: Sequence[Placed], rates: Mapping[str, float]) -> dict[str, float]:
    """Return, for each stage whose successors are measured, the items that it sends on per item that it gets.

    Empty if two branches join: inside of them the ratio must be 1. Successors that differ by more than a tenth of each
    other are left out.
    """
    sources = sources_of(stages)
    if any(len(after) > 1 for after in sources.values()):
        return {}
    ratios = {}
    for stage in stages:
        onward = [rates.get(name, 0.0) for name, after in sources.items() if stage.name in after]
        if onward and rates.get(stage.name, 0.0) > 0 and min(onward) > 0 and max(onward) <= 1.1 * min(onward):
            ratios[stage.name] = max(onward) / rates[stage.name]
    return ratios


def sources_of(stages: Sequence[Placed]) -> dict[str, tuple[str, ...]]:
    """Return the names of the stages that each stage takes items from."""
    before = [None, *(stage.name for stage in stages)]
    return {
        stage.name: stage.after if stage.after is not None else (previous,) if previous is not None else ()
        for stage, previous in zip(stages, before, strict=False)
    }


def _sorted(names: Sequence[str], edges: Calls, rates: Mapping[str, float]) -> list[str] | None:
    """Return `names` so that each comes after those that call it; None if the calls form a circle."""
    left = set(names)
    sequence: list[str] = []
    while left:
        free = [name for name in left if not any(into == name and source in left for source, into in edges)]
        if not free:
            return None
        called = [name for name in free if any(into == name for _, into in edges)]
        # A stage that no call reaches or leaves is put last: nothing says where it belongs.
        alone = [name for name in free if not any(name in edge for edge in edges)]
        chosen = min(
            called or [name for name in free if name not in alone] or alone,
            key=lambda name: (_role(name) is None, _role(name) or 0, -rates.get(name, 0.0), name),
        )
        sequence.append(chosen)
        left.remove(chosen)
    return sequence


def _placed(sequence: Sequence[str], index: int, edges: Calls) -> Placed:
    name = sequence[index]
    sources = tuple(source for source in sequence[:index] if (source, name) in edges)
    because = "; ".join(edges[source, name] for source in sources)
    if sources == (sequence[index - 1],) and index:
        return Placed(name=name, after=None, because=because)
    if sources:
        return Placed(name=name, after=sources, because=because)
    if index == 0:
        return Placed(name=name, after=None, because="entry: no other stage calls it")
    if any(name in edge for edge in edges):
        return Placed(name=name, after=(), because="entry: no other stage calls it")
    return Placed(name=name, after=None, because="TODO: no call to or from it was seen; put it in its place")


def _role(name: str) -> int | None:
    return next((rank for rank, words in enumerate(_ROLES) if re.search(words, name)), None)
