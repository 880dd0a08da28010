"""Stores what a pipeline passes on to the next cycle in its status, and restores it after a restart."""

import base64
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, get_type_hints

from controller.core.codec import InvalidRecord, decode, encode, known_parts
from controller.core.messages.phrases import timestamp
from controller.core.state.carry_over import DemandSample, PipelineMemory
from controller.core.state.snapshot import Planned
from controller.kube.gateway import Json
from controller.kube.workloads import seconds
from profiler.stages import Learned

_VERSION = 1
PLANNED = "planned"
_TIME = re.compile(rb'\{"at_s":([^,}]+)[,}]')
_LARGEST = 1 << 22
"""Bytes of a packed document: an edited one must not fill the memory."""


def planned_text(planned: Planned | None) -> str | None:
    """Return the plan that a pipeline of a large fleet keeps as text; None without a plan."""
    return None if planned is None else pack(encode(planned))


def planned_at_s(document: Json | None) -> float | None:
    """Return when the plan in a memory document was made, in epoch seconds; None without one, or if that is not known.

    The plan is not read: packed documents have their fields in alphabetical order, so the time is at the beginning.
    """
    text = (document or {}).get(PLANNED)
    try:
        found = _TIME.match(zlib.decompressobj().decompress(base64.b64decode(str(text)[:1024]), 64))
        time_s = math.nan if found is None else float(found[1])
    except (ValueError, zlib.error):
        return None
    return time_s if math.isfinite(time_s) else None


def memory_document(memory: PipelineMemory, planned: str | None = None) -> Json:
    """Return `memory` and the text of the plan of a large fleet as JSON.

    It has no nulls: the server drops nulls of a merge patch at any depth.
    """
    return {
        "version": _VERSION,
        **without_nulls(encode(memory)),
        **({} if planned is None else {PLANNED: planned}),
    }


def kept_document(memory: PipelineMemory, planned: str | None, now_s: float) -> Json:
    """Return what `memory_document` does, with its time, for another place than the status."""
    return {**memory_document(memory, planned), "explanation": {"time": timestamp(now_s)}}


def written_at_s(document: Json | None) -> float:
    """Return the time of a memory document in seconds since the epoch; -inf if it is unknown."""
    try:
        return seconds((document or {})["explanation"]["time"])
    except (KeyError, TypeError, ValueError):  # the schema does not restrict the memory
        return float("-inf")


def planned_from(document: Json | None) -> Planned | None:
    """Return the plan in `document`, which `memory_document` wrote; None if it has none.

    Raises:
        InvalidRecord: it is of another release, or was edited.
    """
    text = (document or {}).get(PLANNED)
    if text is None:
        return None
    where = f"status.memory.{PLANNED}"
    planned = decode(Planned, unpacked(text, where), where)
    placements = {(stage.name, placement.name) for stage in planned.pipeline.stages for placement in stage.placements}
    if planned.plan.replicas().keys() != placements or min(planned.plan.replicas().values()) < 0:
        raise InvalidRecord(f"{where}: the plan must have the placements of its pipeline, and no negative replicas")
    return planned


def pack(document: Any) -> str:
    """Return a JSON document as compressed text."""
    text = json.dumps(document, separators=(",", ":"), sort_keys=True)
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()


def unpacked(text: object, where: str) -> Any:
    """Return the JSON document that `pack` made `text` of.

    Raises:
        InvalidRecord: it is another text, or has more than 4 MiB.
    """
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(base64.b64decode(str(text), validate=True), _LARGEST)
        document = None if inflater.unconsumed_tail else json.loads(content)
    except (ValueError, zlib.error, RecursionError) as error:
        raise InvalidRecord(f"{where}: must be packed JSON: {error}") from error
    if inflater.unconsumed_tail:
        raise InvalidRecord(f"{where}: must have at most {_LARGEST} bytes unpacked")
    return document


def without_nulls(value: Any) -> Any:
    """Return a JSON document without the fields that are null, at any depth."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A memory as far as its document can be read, and what of it cannot, each with why."""

    memory: PipelineMemory = field(default_factory=PipelineMemory)
    lost: tuple[str, ...] = ()


def memory_from(document: Json | None) -> Recalled:
    """Return the memory in `document`, which `memory_document` wrote; an empty memory for None.

    Each part is read by itself. What a later release added is left out: a rollback must not lose the rest.
    """
    if document is None:
        return Recalled()
    if document.get("version") != _VERSION:
        return Recalled(lost=(f"status.memory.version: {document.get('version')!r}: must be {_VERSION}",))
    lost, parts, kinds = list[str](), dict[str, Any](), _part_kinds()
    for name, kind in kinds.items():
        stored = document.get(name)
        if name == "learned" and stored is None:  # an earlier release had it among the other fields
            stored = {own.name: document[own.name] for own in fields(Learned) if own.name in document}
        if stored is None:
            continue
        try:
            parts[name] = _part(kind, stored, f"status.memory.{name}")
        except ValueError as error:
            lost.append(str(error))
    try:
        return Recalled(memory=PipelineMemory(**parts), lost=tuple(lost))
    except ValueError:
        return _recalled_alone(parts, lost)


@cache
def _part_kinds() -> Mapping[str, Any]:
    kinds = get_type_hints(PipelineMemory)
    return {part.name: kinds[part.name] for part in fields(PipelineMemory)}


def _part(kind: Any, stored: Any, where: str) -> Any:
    try:
        return decode(kind, stored, where)
    except InvalidRecord:
        return decode(kind, known_parts(kind, stored), where)


def _recalled_alone(parts: Mapping[str, Any], lost: Sequence[str]) -> Recalled:
    """Return the memory of those `parts` that may be in one; `lost` are the others so far."""
    memory, left_out = PipelineMemory(), list(lost)
    for name, part in parts.items():
        try:
            memory = replace(memory, **{name: part})
        except ValueError as error:
            left_out.append(str(error))
    return Recalled(memory=memory, lost=tuple(left_out))


def resumed(memory: PipelineMemory, now_s: float, window_s: float, interval_s: float) -> PipelineMemory:
    """Return `memory`, read from a status after a restart at `now_s`, with the times and samples to continue with.

    `window_s` is the longest stabilisation window, `interval_s` the time between cycles.

    Samples are written when they change, not in every cycle, so the last stored sample held until the restart. It is
    added again as a sample of the last cycle, because a restart alone must not lower the demand. If the stored sample
    has left the window, the new one has at most the stored demand as its forecast, and that demand as its peak: a fall
    of the demand would have been written. A correction that has not changed is not written either, so its age is
    unknown and counts from now. Nor is since when a backlog is empty: that it had items again would have been written,
    so one that was empty was so in the last cycle.
    """
    learned = memory.learned
    if memory.items_left == 0 and memory.begun_s is not None:
        memory = replace(memory, begun_s=max(memory.begun_s, now_s - interval_s))
    memory = replace(
        memory,
        learned=replace(
            learned,
            latency_corrections={
                name: replace(c, learned_at_s=now_s) for name, c in learned.latency_corrections.items()
            },
            throughput_corrections={
                key: replace(c, learned_at_s=now_s) for key, c in learned.throughput_corrections.items()
            },
        ),
    )
    if not memory.samples or memory.demand is None:
        return memory
    last = memory.samples[-1]
    expired = last.t_s < now_s - window_s
    held = DemandSample(
        t_s=max(last.t_s, now_s - interval_s),
        observed=None,
        forecast=min(memory.demand, last.forecast) if expired else last.forecast,
        peak=memory.demand if expired else last.peak,
    )
    return replace(memory, samples=(*memory.samples, held))
