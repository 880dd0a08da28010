"""How many sessions the memory of one accelerator holds, from the shape of the model's KV cache.

Each session keeps, for every token, a key and a value per layer and KV head. What is left of the device after
weights and activations is divided by that.
"""

import math
from dataclasses import dataclass

from optimizer.model import require

USABLE_SHARE = 0.9
"""Share of the device's memory that a server takes for itself (vLLM's default)."""
ACTIVATION_BYTES = 1.5e9
BLOCK_TOKENS = 16
"""Servers give out the cache in blocks of this many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheShape:
    """A model's KV cache on one device. `kv_heads` are those of keys and values (fewer than the query's with GQA)."""

    layers: int
    kv_heads: int
    head_dim: int
    bytes_per_element: int
    tokens_per_session: int
    device_bytes: float
    weight_bytes: float

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim", "bytes_per_element", "tokens_per_session"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be ≥ 1")
        for name in ("device_bytes", "weight_bytes"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, name, value, "must be finite and > 0")

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes one token takes. 32 layers × 8 heads × 128 in fp16: 2·32·8·128·2 = 131 072 (128 KiB)."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_element

    @property
    def session_bytes(self) -> int:
        """Return the bytes one session takes, its tokens rounded up to whole blocks."""
        return self.bytes_per_token * BLOCK_TOKENS * math.ceil(self.tokens_per_session / BLOCK_TOKENS)

    @property
    def session_slots(self) -> int:
        """Return how many sessions fit, 0 when not even one does."""
        free = self.device_bytes * USABLE_SHARE - self.weight_bytes - ACTIVATION_BYTES
        return max(0, math.floor(free / self.session_bytes))
