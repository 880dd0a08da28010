"""The number of sessions that the memory of an accelerator holds, from the shape of the model's KV cache.

A model that decodes token by token keeps a key and a value per layer and KV head for every token of a session: the KV
cache. The memory that weights and activations leave free, divided by the cache of one session, is the number of
sessions of a replica.
"""

import math
from dataclasses import dataclass

from optimizer.model import require

USABLE_SHARE = 0.9
"""Share of the device's memory that a server uses (vLLM's default)."""
ACTIVATION_BYTES = 1.5e9
BLOCK_TOKENS = 16
"""Servers allocate the cache in blocks of this many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheShape:
    """A model's KV cache on one device.

    `kv_heads` is the number of heads with their own keys and values (fewer than query heads with GQA), `head_dim` the
    length of a key or value. `tokens_per_session` is the most tokens of a session. `device_bytes` is the memory of the
    device, `weight_bytes` what the weights take of it. `cross_frames` is the length of the encoder output that a
    decoder with cross-attention reads (Whisper: 1500); its keys and values do not grow with the tokens.
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
        """Return the bytes of one token's keys and values; 32 layers × 8 heads × 128 in fp16: 131 072 (128 KiB)."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_element

    @property
    def cross_bytes(self) -> int:
        """Return the bytes of the keys and values that one session's cross-attention reads: those of `cross_frames`."""
        return self.bytes_per_token * self.cross_frames

    @property
    def session_bytes(self) -> int:
        """Return the bytes of one session: its tokens, rounded up to whole blocks, and its cross-attention."""
        blocks = math.ceil(self.tokens_per_session / BLOCK_TOKENS)
        return self.bytes_per_token * BLOCK_TOKENS * blocks + self.cross_bytes

    @property
    def session_slots(self) -> int:
        """Return the number of sessions that fit the free memory of the device; 0 if none fits."""
        free = self.device_bytes * USABLE_SHARE - self.weight_bytes - ACTIVATION_BYTES
        return max(0, math.floor(free / self.session_bytes))
