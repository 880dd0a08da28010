"""The counters that model servers keep of their batches, read from their metrics. Pure.

They are those of the presets in `profiler/presets`. A window is the difference of two readings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from profiler.load_test.observed import Counted
from profiler.sources.exposition import Sample, samples


class Server(StrEnum):
    """The kinds of servers whose counters are known, by the names of their presets."""

    GENERIC = "generic"
    TRITON = "triton"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The counters of one kind of server: what a batch, an item and their time are, and the unit of the time in s.

    With `time_per_item` the time of a batch is added once for each of its items.
    """

    batches: str
    items: str
    times: tuple[str, ...]
    unit_s: float = 1.0
    time_per_item: bool = False


NAMES = {
    Server.GENERIC: Names(
        batches="speech_stage_batches_total",
        items="speech_stage_items_total",
        times=("speech_stage_busy_seconds_total",),
    ),
    Server.TRITON: Names(
        batches="nv_inference_exec_count",
        items="nv_inference_count",
        times=(
            "nv_inference_compute_input_duration_us",
            "nv_inference_compute_infer_duration_us",
            "nv_inference_compute_output_duration_us",
        ),
        unit_s=1e-6,
        time_per_item=True,
    ),
    # Batching is continuous: a "batch" is a request, and its time that in the engine.
    Server.VLLM: Names(
        batches="vllm:request_success_total",
        items="vllm:request_success_total",
        times=("vllm:request_inference_time_seconds_sum",),
    ),
}
MEMORY = "process_resident_memory_bytes"
"""The memory of a server's process, as the client libraries of Prometheus export it."""
_ALL = frozenset(
    {MEMORY} | {name for own in NAMES.values() for name in (own.batches, own.items, *own.times)},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of a server's metrics: the kind of server (None: not known), totals, memory in bytes or None."""

    server: Server | None
    batches: float = 0.0
    items: float = 0.0
    time_s: float = 0.0
    memory_bytes: float | None = None


def reading(text: str) -> Reading:
    """Return what the metrics in `text` say.

    Raises:
        InvalidExposition: `text` is not in Prometheus' format.
    """
    found = samples(text, _ALL)
    present = {name for name, _, _ in found}
    memory = _total(found, MEMORY) if MEMORY in present else None
    for server, names in NAMES.items():
        if names.items in present:
            time = sum(_total(found, name) for name in names.times) * names.unit_s
            batches, items = _total(found, names.batches), _total(found, names.items)
            return Reading(server=server, batches=batches, items=items, time_s=time, memory_bytes=memory)
    return Reading(server=None, memory_bytes=memory)


def counted(before: Reading | None, after: Reading | None) -> Counted | None:
    """Return what was counted between two readings; None without counters, after a restart, or without a batch."""
    if before is None or after is None or after.server is None or before.server is not after.server:
        return None
    batches, items = after.batches - before.batches, after.items - before.items
    time_s = after.time_s - before.time_s
    if batches <= 0 or items <= 0 or time_s <= 0:
        return None
    if NAMES[after.server].time_per_item:
        time_s *= batches / items
    return Counted(batches=batches, items=items, time_s=time_s)


def _total(found: Sequence[Sample], name: str) -> float:
    return sum(value for own, _, value in found if own == name)
