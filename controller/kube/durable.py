"""Stores a pipeline's memory in its status, and restores it after a restart."""

from dataclasses import fields, replace
from typing import Any

from controller.core.codec import InvalidRecord, decode, encode
from controller.core.state.carry_over import DemandSample, PipelineMemory
from controller.kube.gateway import Json
from profiler.stages import Learned

_VERSION = 1


def memory_document(memory: PipelineMemory) -> Json:
    """Return `memory` as JSON without nulls: the server drops nulls of a merge patch at any depth."""
    return {"version": _VERSION, **without_nulls(encode(memory))}


def without_nulls(value: Any) -> Any:
    """Return a JSON document without the fields that are null, at any depth."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def memory_from(document: Json | None) -> PipelineMemory:
    """Return the memory in `document`, which `memory_document` wrote; an empty memory for None.

    Raises:
        InvalidRecord: `document` has another version or other contents.
    """
    if document is None:
        return PipelineMemory()
    if document.get("version") != _VERSION:
        raise InvalidRecord(f"status.memory.version: {document.get('version')!r}: must be {_VERSION}")
    # A document of an earlier release has fewer fields, or has what was learned among the others.
    nothing = encode(PipelineMemory())
    assert isinstance(nothing, dict)
    stored = {field.name: document.get(field.name, nothing[field.name]) for field in fields(PipelineMemory)}
    if "learned" not in document:
        stored["learned"] = {field.name: document[field.name] for field in fields(Learned) if field.name in document}
    return decode(PipelineMemory, stored, "status.memory")


def resumed(memory: PipelineMemory, now_s: float, window_s: float, interval_s: float) -> PipelineMemory:
    """Return `memory`, read from a status after a restart at `now_s`, with the times and samples to continue with.

    `window_s` is the longest stabilisation window, `interval_s` the time between cycles.

    Samples are written when they change, not in every cycle, so the last stored sample held until the restart. It is
    added again as a sample of the last cycle, because a restart alone must not lower the demand. If the stored sample
    has left the window, the new one has at most the stored demand as its forecast, and that demand as its peak: a fall
    of the demand would have been written. A correction that has not changed is not written either, so its age is
    unknown and counts from now.
    """
    learned = memory.learned
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
