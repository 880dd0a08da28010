"""Capacity planning of model servers: what the memory of an accelerator holds, and what moving it costs.

A model that decodes token by token keeps a key and a value per layer and KV head for every token of a session (the KV
cache). What weights and activations leave of the device, divided by that, is how many sessions a replica holds. The
rest follows: what a batch costs, how many workers of each kind a request needs, and whether a session's cache is moved
to a disk and back or computed anew.

Bandwidths and shares of peak are nominal: a profile of the hardware beats them.
"""

import math
from dataclasses import dataclass

from optimizer.model import ServiceLaw, require

USABLE_SHARE = 0.9
"""Share of the device's memory that a server takes for itself (vLLM's default)."""
ACTIVATION_BYTES = 1.5e9
BLOCK_TOKENS = 16
"""Servers give out the cache in blocks of this many tokens."""
BANDWIDTH_SHARE = 0.7
"""Share of the memory's nominal bandwidth that decoding reaches."""
FLOPS_SHARE = 0.5
"""Share of the nominal operations per second that reading a prompt reaches."""
PREFILL_UTILIZATION = 0.7
"""Prompts queue: beyond this load the time to the first token is all waiting."""
DECODE_UTILIZATION = 0.8
TRANSFER_START_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheShape:
    """A model's KV cache on one device. `kv_heads` are those of keys and values (fewer than the query's with GQA).

    `cross_frames` is the length of the encoder's output that a decoder with cross-attention looks at (Whisper: 1500);
    its keys and values are as many for the first token as for the last.
    """

    layers: int
    kv_heads: int
    head_dim: int
    bytes_per_element: int
    tokens_per_session: int
    device_bytes: float
    weight_bytes: float
    cross_frames: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim", "bytes_per_element", "tokens_per_session"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be ≥ 1")
        require(self.cross_frames >= 0, "cross_frames", self.cross_frames, "must be ≥ 0")
        for name in ("device_bytes", "weight_bytes"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, name, value, "must be finite and > 0")

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes one token takes. 32 layers × 8 heads × 128 in fp16: 2·32·8·128·2 = 131 072 (128 KiB)."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_element

    @property
    def cross_bytes(self) -> int:
        """Return the bytes of a session's cross-attention: 2 · layers · heads · head size · frames · element size."""
        return self.bytes_per_token * self.cross_frames

    @property
    def session_bytes(self) -> int:
        """Return the bytes one session takes, its tokens rounded up to whole blocks, cross-attention included."""
        blocks = math.ceil(self.tokens_per_session / BLOCK_TOKENS)
        return self.bytes_per_token * BLOCK_TOKENS * blocks + self.cross_bytes

    @property
    def session_slots(self) -> int:
        """Return how many sessions fit, 0 when not even one does."""
        free = self.device_bytes * USABLE_SHARE - self.weight_bytes - ACTIVATION_BYTES
        return max(0, math.floor(free / self.session_bytes))

    def decode_law(self, bandwidth_bytes_per_s: float) -> ServiceLaw:
        """Return the time of one decoding step of a batch: it reads the weights once and the cache of each session.

        `bandwidth_bytes_per_s` is that of the device's memory, of which decoding reaches `BANDWIDTH_SHARE`. The batch
        is bounded by `session_slots`. The caches are taken at their full length, so that the law errs on the slow side.
        """
        require(bandwidth_bytes_per_s > 0, "bandwidth_bytes_per_s", bandwidth_bytes_per_s, "must be > 0")
        reached = bandwidth_bytes_per_s * BANDWIDTH_SHARE
        return ServiceLaw(fixed_s=self.weight_bytes / reached, per_item_s=self.session_bytes / reached)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Reading a prompt: `parameters` of the model, its `layers` and `width`, and the device's nominal `flops_per_s`.

    Operations: 2 · parameters · tokens for the weights and 2 · layers · tokens² · width for the attention.
    """

    parameters: float
    layers: int
    width: int
    flops_per_s: float

    def __post_init__(self) -> None:
        for name in ("parameters", "layers", "width", "flops_per_s"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, name, value, "must be finite and > 0")

    def seconds(self, tokens: int, *, cached_share: float = 0.0) -> float:
        """Return how long a prompt of `tokens` takes of which the first `cached_share` is in the cache already.

        The tokens that are left look back at all that came before them, so that more than their share of the
        attention remains: what is saved of it is what the cached tokens would have done among themselves.
        """
        require(tokens >= 0, "tokens", tokens, "must be ≥ 0")
        require(0 <= cached_share <= 1, "cached_share", cached_share, "must be in [0, 1]")
        cached = tokens * cached_share
        return (self._operations(tokens) - self._operations(cached)) / (self.flops_per_s * FLOPS_SHARE)

    def _operations(self, tokens: float) -> float:
        return 2 * self.parameters * tokens + 2 * self.layers * tokens**2 * self.width


def decode_workers_per_prefill_worker(*, prefill_s: float, output_tokens: int, step_s: float, batch: int) -> float:
    """Return how many decode workers keep pace with one prefill worker, when the two are separate.

    A request takes `prefill_s` of a prefill worker (what the prefix cache spares left out) and `output_tokens` steps
    of `step_s`, shared with a batch, of a decode worker. Each kind is loaded to `PREFILL_UTILIZATION` and
    `DECODE_UTILIZATION`. In a pipeline the two are stages, and the planner finds this ratio itself.
    """
    require(prefill_s > 0, "prefill_s", prefill_s, "must be > 0")
    require(output_tokens >= 1, "output_tokens", output_tokens, "must be ≥ 1")
    require(step_s > 0, "step_s", step_s, "must be > 0")
    require(batch >= 1, "batch", batch, "must be ≥ 1")
    return (output_tokens * step_s / (batch * DECODE_UTILIZATION)) / (prefill_s / PREFILL_UTILIZATION)


def transfer_s(size_bytes: float, bandwidth_bytes_per_s: float) -> float:
    """Return how long a cache of `size_bytes` takes to come back over the slowest link on its way (disk or bus)."""
    require(size_bytes >= 0, "size_bytes", size_bytes, "must be ≥ 0")
    require(bandwidth_bytes_per_s > 0, "bandwidth_bytes_per_s", bandwidth_bytes_per_s, "must be > 0")
    return size_bytes / bandwidth_bytes_per_s + TRANSFER_START_S


def swap_beats_recompute(size_bytes: float, bandwidth_bytes_per_s: float, prefill_s: float) -> bool:
    """Return whether an idle session's cache is better moved out and back than computed anew in `prefill_s`.

    Being moved out costs the link as much traffic again, though nobody waits for it.
    """
    return transfer_s(size_bytes, bandwidth_bytes_per_s) < prefill_s


def prefix_hit_share(workers: int, hit_share: float, *, sticky: bool) -> float:
    """Return the share of prompt tokens found in a worker's cache when one worker would find `hit_share`.

    Sessions that stay with a worker find all they left there; sent to any of `workers` they find their prefix only
    where they were last, once the prefixes in use do not all fit into each worker's cache.
    """
    require(workers >= 1, "workers", workers, "must be ≥ 1")
    require(0 <= hit_share <= 1, "hit_share", hit_share, "must be in [0, 1]")
    return hit_share if sticky else hit_share / workers
