"""The number of sessions that the memory of an accelerator holds, from the shape of the model's KV cache.

A model that decodes token by token keeps a key and a value per layer and KV head for every token of a session: the KV
cache. The memory that weights and activations leave free, divided by the cache of one session, is the number of
sessions of a replica.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from optimizer.latency.quantiles import gamma_quantile
from optimizer.model import Link, require

USABLE_SHARE = 0.9
"""Share of the device's memory that a server uses (vLLM's default)."""
ACTIVATION_BYTES = 1.5e9
BLOCK_TOKENS = 16
"""Servers allocate the cache in blocks of this many tokens."""


_AGES = 4_000
_LONGEST = 8.0
"""How many standard deviations of the logarithm the longest session counted is above the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionGrowth:
    """Sessions whose tokens grow while they last: `start_tokens` at first, then `tokens_per_s`, at most `most_tokens`.

    How long they last is lognormal with mean `length_s` and coefficient of variation `length_cv`. Sessions begin
    independently of one another. The total of those on a replica is within its memory in `percentile` percent of the
    time (0–100, exclusive).
    """

    tokens_per_s: float
    length_s: float
    length_cv: float
    start_tokens: int = 0
    most_tokens: int | None = None
    percentile: float = 99.0

    def __post_init__(self) -> None:
        for name in ("tokens_per_s", "length_s"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, name, value, "must be finite and > 0")
        require(math.isfinite(self.length_cv) and self.length_cv >= 0, "length_cv", self.length_cv, "must be ≥ 0")
        require(self.start_tokens >= 0, "start_tokens", self.start_tokens, "must be ≥ 0")
        most = self.most_tokens
        require(most is None or most >= max(1, self.start_tokens), "most_tokens", most, "must be ≥ start_tokens and 1")
        require(0 < self.percentile < 100, "percentile", self.percentile, "must be in (0, 100)")

    def tokens(self) -> tuple[float, float]:
        """Return mean and variance of the tokens of a session at a random moment of its life, in whole blocks.

        A session that is met at a random moment is a long one more often than not, and its age has the density
        P(length > age) / E[length] (renewal theory: Cox 1962, chapter 5).
        """
        deviation = math.sqrt(math.log1p(self.length_cv**2))
        median_s = self.length_s * math.exp(-(deviation**2) / 2)
        longest_s = median_s * math.exp(_LONGEST * deviation)
        edges_s = np.concatenate(([0.0], np.geomspace(longest_s * 1e-6, longest_s, _AGES)))
        ages_s, widths_s = (edges_s[1:] + edges_s[:-1]) / 2, np.diff(edges_s)
        if deviation > 0:
            above = np.array([math.erfc(math.log(age / median_s) / deviation / math.sqrt(2)) / 2 for age in ages_s])
        else:
            above = (ages_s <= self.length_s).astype(np.float64)
        weights = above * widths_s / (above * widths_s).sum()
        tokens = self.start_tokens + ages_s * self.tokens_per_s
        if self.most_tokens is not None:
            tokens = np.minimum(tokens, self.most_tokens)
        held = np.ceil(np.maximum(tokens, 1) / BLOCK_TOKENS) * BLOCK_TOKENS
        mean = float(weights @ held)
        return mean, float(weights @ held**2) - mean**2

    def sessions_in(self, tokens: float) -> int:
        """Return how many sessions a cache of `tokens` tokens holds in `percentile` percent of the time; 0 if none."""
        mean, variance = self.tokens()
        low, high = 0, max(1, math.floor(tokens / mean))
        while low < high:
            count = (low + high + 1) // 2
            total = gamma_quantile(np.array([count * mean]), np.array([count * variance]), self.percentile)[0]
            low, high = (count, high) if total <= tokens else (low, count - 1)
        return low


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapSpace:
    """Where the caches of idle sessions go while the device is full, such as an NVMe disk of `capacity_bytes`.

    They come back at `bytes_per_s`, one after the other, while the device serves others. `hit` is the share of the
    items (0–1) whose session is on the device.
    """

    capacity_bytes: float
    bytes_per_s: float
    hit: float

    def __post_init__(self) -> None:
        for name in ("capacity_bytes", "bytes_per_s"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, name, value, "must be finite and > 0")
        require(0 <= self.hit <= 1, "hit", self.hit, "must be in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheShape:
    """A model's KV cache on one device.

    `kv_heads` is the number of heads with their own keys and values (fewer than query heads with GQA), `head_dim` the
    length of a key or value. `tokens_per_session` is the most tokens of a session; where sessions grow, `growth` counts
    instead. `shared_tokens` of them are a prefix that all sessions have in common, and that is kept once.
    `device_bytes` is the memory of the device, `weight_bytes` what the weights take of it. `cross_frames` is the length
    of the encoder output that a decoder with cross-attention reads (Whisper: 1500); its keys and values do not grow
    with the tokens. Idle sessions may go to `swap`.
    """

    layers: int
    kv_heads: int
    head_dim: int
    bytes_per_element: int
    tokens_per_session: int
    device_bytes: float
    weight_bytes: float
    cross_frames: int = 0
    growth: SessionGrowth | None = None
    shared_tokens: int = 0
    swap: SwapSpace | None = None

    def __post_init__(self) -> None:
        require(self.shared_tokens >= 0, "shared_tokens", self.shared_tokens, "must be ≥ 0")
        least = self.tokens_per_session if self.growth is None else self.growth.start_tokens
        require(self.shared_tokens <= least, "shared_tokens", self.shared_tokens, f"must be at most {least}")
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
        """Return the bytes of one session: its own tokens, rounded up to whole blocks, and its cross-attention."""
        blocks = max(1, math.ceil((self.tokens_per_session - self.shared_tokens) / BLOCK_TOKENS))
        return self.bytes_per_token * BLOCK_TOKENS * blocks + self.cross_bytes

    @property
    def session_slots(self) -> int:
        """Return the number of sessions that fit the free memory of the device and the swap space; 0 if none fits."""
        return self._fitting(0.0 if self.swap is None else self.swap.capacity_bytes)

    @property
    def device_slots(self) -> int:
        """Return the number of sessions that fit the free memory of the device alone; 0 if none fits."""
        return self._fitting(0.0)

    @property
    def swap_link(self) -> Link | None:
        """Return how the sessions that are not on the device come back to it; None: all of them are there."""
        if self.swap is None or self.swap.hit == 1:
            return None
        own = self.session_bytes if self._own is None else self.bytes_per_token * self._own.tokens()[0]
        return Link(item_s=own / self.swap.bytes_per_s, share=1 - self.swap.hit)

    @property
    def _own(self) -> SessionGrowth | None:
        """Return the growth of a session without the prefix that all have; None where sessions do not grow."""
        if self.growth is None:
            return None
        # The keys and values of the cross-attention are as many tokens that do not grow.
        further, most = self.cross_frames - self.shared_tokens, self.growth.most_tokens
        return replace(
            self.growth,
            start_tokens=self.growth.start_tokens + further,
            most_tokens=None if most is None else max(1, most + further),
        )

    @property
    def most_tokens(self) -> float:
        """Return how many tokens of all sessions device and swap space hold together, beside a shared prefix."""
        beside_bytes = 0.0 if self.swap is None else self.swap.capacity_bytes
        return max(0.0, self._free_bytes + beside_bytes) / self.bytes_per_token

    @property
    def mean_slots(self) -> int:
        """Return how many sessions fit where each holds the mean tokens: in about half of the time they do not."""
        tokens = self.session_bytes / self.bytes_per_token if self._own is None else self._own.tokens()[0]
        return math.floor(self.most_tokens / tokens)

    @property
    def _free_bytes(self) -> float:
        shared = self.bytes_per_token * BLOCK_TOKENS * math.ceil(self.shared_tokens / BLOCK_TOKENS)
        return self.device_bytes * USABLE_SHARE - self.weight_bytes - ACTIVATION_BYTES - shared

    def _fitting(self, beside_bytes: float) -> int:
        if self._free_bytes <= 0:
            return 0
        if self._own is None:
            return math.floor(self._free_bytes / self.session_bytes) + math.floor(beside_bytes / self.session_bytes)
        return self._own.sessions_in((self._free_bytes + beside_bytes) / self.bytes_per_token)
