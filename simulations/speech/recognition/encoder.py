"""The acoustic model: a causal streaming encoder whose frames see a fixed number of frames before them.

Each block has attention over the last `context` frames, a causal depthwise convolution and a feed-forward layer, as a
Conformer has (Gulati et al. 2020), with all of the future left out. Because every frame sees the same number of frames
however the audio is cut into chunks, results for chunks equal those for the whole within rounding.

The functions take the array library as `xp`, numpy where the model runs and jax.numpy where it is trained: there is one
definition of the model.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from simulations.speech.audio.texts import WORDS
from simulations.speech.recognition.features import FEATURES

BLANK = len(WORDS)
"""The label of a frame in which no word ends; other labels are places in WORDS."""
LABELS = len(WORDS) + 1

WEIGHTS = Path(__file__).parent / "weights"
"""The folder with the trained weights of each variant, in float16; `about` in a file says how they were made."""

_FORBIDDEN = -1e9  # a score that leaves nothing after softmax

Array = Any
"""An array of the library `xp`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a variant: `width` of its frames, `layers`, `heads` of attention, and frames of `context`."""

    width: int
    layers: int
    heads: int
    context: int
    kernel: int = 7
    inner: int = 4  # width of feed-forward layers over `width`

    @property
    def rows(self) -> int:
        """Return the number of rows, of `width` each, that a session keeps per layer: keys, values, convolution."""
        return 2 * (self.context - 1) + self.kernel - 1

    @property
    def state_bytes(self) -> int:
        """Return the size of a session's state in bytes."""
        return self.layers * self.rows * self.width * np.dtype(np.float32).itemsize


VARIANTS: Mapping[str, Shape] = MappingProxyType(
    {
        "tiny": Shape(width=28, layers=1, heads=2, context=16),
        "small": Shape(width=72, layers=2, heads=4, context=24),
        "large": Shape(width=144, layers=4, heads=4, context=32),
    }
)
"""The sizes of the recogniser, from cheap to accurate."""


@dataclass(frozen=True)
class Model:
    """A variant with its `weights`, by name; see `weight_shapes`."""

    shape: Shape
    weights: Mapping[str, Array]

    @cached_property
    def blocks(self) -> Sequence[Mapping[str, Array]]:
        """Return the weights of each block, by their names within it."""
        return [
            {name.split(".", 1)[1]: w for name, w in self.weights.items() if name.startswith(f"{layer}.")}
            for layer in range(self.shape.layers)
        ]

    @classmethod
    def load(cls, variant: str) -> Self:
        """Return the trained model of a variant.

        Raises:
            ValueError: there is no such variant, or its file was made for other words.
        """
        if variant not in VARIANTS:
            raise ValueError(f"variant: {variant!r}, must be one of {', '.join(VARIANTS)}")
        with np.load(WEIGHTS / f"{variant}.npz") as file:
            about = json.loads(str(file["about"]))
            if about["words"] != list(WORDS) or about["shape"] != asdict(VARIANTS[variant]):
                raise ValueError(f"{variant}.npz: made for other words or another shape; train it again")
            weights = {name: file[name].astype(np.float32) for name in file.files if name != "about"}
        return cls(VARIANTS[variant], weights)


def weight_shapes(shape: Shape) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of each weight by its name; the names of block n begin with "n."."""
    d, inner = shape.width, shape.inner * shape.width
    block = {
        "attention.norm": (d,),
        "attention.in": (d, 3 * d),
        "attention.bias": (shape.heads, shape.context),
        "attention.out": (d, d),
        "convolution.norm": (d,),
        "convolution.in": (d, 2 * d),
        "convolution.kernel": (shape.kernel, d),
        "convolution.out": (d, d),
        "feed.norm": (d,),
        "feed.in": (d, inner),
        "feed.out": (inner, d),
    }
    return {
        "in": (FEATURES, d),
        "in.bias": (d,),
        **{f"{layer}.{name}": size for layer in range(shape.layers) for name, size in block.items()},
        "out.norm": (d,),
        "out": (d, LABELS),
        "out.bias": (LABELS,),
    }


def encode(model: Model, features: Array, state: Array, xp: Any = np) -> tuple[Array, Array]:
    """Return the scores of labels for each frame, and the state after it.

    `features` has shape (sessions, frames, FEATURES), `state` (sessions, layers, rows, width), zeros for a new session.
    Scores have shape (sessions, frames, LABELS); their softmax is the model's probability of each label.
    """
    weights, shape = model.weights, model.shape
    x = features @ weights["in"] + weights["in.bias"]
    after = []
    for layer in range(shape.layers):
        x, kept = _block(model.blocks[layer], shape, x, state[:, layer], xp)
        after.append(kept)
    scores = _normed(x, weights["out.norm"], xp) @ weights["out"] + weights["out.bias"]
    return scores, xp.stack(after, axis=1)


def _block(w: Mapping[str, Array], shape: Shape, x: Array, state: Array, xp: Any) -> tuple[Array, Array]:
    past = shape.context - 1
    attended, keys, values = _attention(w, shape, x, state[:, :past], state[:, past : 2 * past], xp)
    x = x + attended
    convolved, rows = _convolution(w, shape, x, state[:, 2 * past :], xp)
    x = x + convolved
    x = x + xp.maximum(_normed(x, w["feed.norm"], xp) @ w["feed.in"], 0.0) @ w["feed.out"]
    return x, xp.concatenate((keys, values, rows), axis=1)


def _attention(
    w: Mapping[str, Array], shape: Shape, x: Array, keys: Array, values: Array, xp: Any
) -> tuple[Array, Array, Array]:
    """Return what is attended to, and the keys and values of the last `context` - 1 frames."""
    sessions, frames, d = x.shape
    past = shape.context - 1
    query, key, value = xp.split(_normed(x, w["attention.norm"], xp) @ w["attention.in"], 3, axis=-1)
    keys, values = xp.concatenate((keys, key), axis=1), xp.concatenate((values, value), axis=1)

    def by_head(rows: Array) -> Array:
        return rows.reshape(sessions, rows.shape[1], shape.heads, d // shape.heads).transpose(0, 2, 1, 3)

    scores = by_head(query) @ by_head(keys).transpose(0, 1, 3, 2) * np.float32((d // shape.heads) ** -0.5)
    lag, seen = _lags(frames, past)
    scores = scores + xp.where(seen, w["attention.bias"][:, lag], np.float32(_FORBIDDEN))
    chances = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    chances = chances / chances.sum(axis=-1, keepdims=True)
    together = (chances @ by_head(values)).transpose(0, 2, 1, 3).reshape(sessions, frames, d)
    return together @ w["attention.out"], keys[:, frames:], values[:, frames:]


@cache
def _lags(frames: int, past: int) -> tuple[Array, Array]:
    """Return by how many frames each row of the keys is before each frame, within the context, and whether it is seen.

    Row r of the keys is t + past - r frames before frame t.
    """
    lag = np.arange(frames)[:, None] + past - np.arange(frames + past)[None, :]
    return np.clip(lag, 0, past), (lag >= 0) & (lag <= past)


def _convolution(w: Mapping[str, Array], shape: Shape, x: Array, rows: Array, xp: Any) -> tuple[Array, Array]:
    """Return the causal convolution, and its last `kernel` - 1 inputs."""
    frames = x.shape[1]
    content, gate = xp.split(_normed(x, w["convolution.norm"], xp) @ w["convolution.in"], 2, axis=-1)
    rows = xp.concatenate((rows, content / (1.0 + xp.exp(-gate))), axis=1)
    mixed = sum(rows[:, tap : tap + frames] * w["convolution.kernel"][tap] for tap in range(shape.kernel))
    return xp.maximum(mixed, 0.0) @ w["convolution.out"], rows[:, frames:]


def _normed(x: Array, gain: Array, xp: Any) -> Array:
    """Return `x` with its root mean square as 1, times `gain` (Zhang and Sennrich 2019)."""
    return x / xp.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(1e-5)) * gain
