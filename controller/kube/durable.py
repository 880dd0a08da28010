"""What a pipeline must remember across restarts, as a document in its status, and what a restart makes of it."""

from dataclasses import fields, replace
from typing import Any

from controller.core.codec import InvalidRecord, decode, encode
from controller.core.state.carry_over import DemandSample, PipelineMemory
from controller.kube.gateway import Json

_VERSION = 1


def memory_document(memory: PipelineMemory) -> Json:
    """Return `memory` as JSON without nulls, which a merge patch cannot write: the server drops them at any depth."""
    return {"version": _VERSION, **_without_nulls(encode(memory))}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def memory_from(document: Json | None) -> PipelineMemory:
    """Return the memory that `memory_document` wrote; empty without a document.

    Raises:
        InvalidRecord: it is something else.
    """
    if document is None:
        return PipelineMemory()
    if document.get("version") != _VERSION:
        raise InvalidRecord(f"status.memory.version: {document.get('version')!r}: must be {_VERSION}")
    # An earlier version knew fewer fields.
    nothing = encode(PipelineMemory())
    assert isinstance(nothing, dict)
    stored = {field.name: document.get(field.name, nothing[field.name]) for field in fields(PipelineMemory)}
    return decode(PipelineMemory, stored, "status.memory")


def resumed(memory: PipelineMemory, now_s: float, window_s: float, interval_s: float) -> PipelineMemory:
    """Return `memory` as it continues after a restart at `now_s`; `window_s` is the longest stabilisation window.

    Samples are written when they move, not in every cycle, so the last one stands for the time since. Where it has
    left the window, the demand planned for had support until the end (else its fall would have been written), by what
    was forecast or by room to rise: it enters the window again, so that a restart alone lowers nothing. Likewise a
    correction that has not moved is not written, so its time says nothing about when it was last measured: it counts
    from now.
    """
    memory = replace(
        memory,
        latency_corrections={name: replace(c, learned_at_s=now_s) for name, c in memory.latency_corrections.items()},
        throughput_corrections={
            key: replace(c, learned_at_s=now_s) for key, c in memory.throughput_corrections.items()
        },
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
