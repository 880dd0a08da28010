"""Training by the cross entropy of frames, with the times of words known.

CTC gives many more errors here: it learns to emit the words of a causal model at their beginnings, before they are
known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from simulations.speech.audio.spoken import LEVEL, SAMPLE_RATE, Conversation
from simulations.speech.audio.synthesis import pink_noise
from simulations.speech.recognition.decoding import frame_labels
from simulations.speech.recognition.encoder import BLANK, Model, Shape, encode, weight_shapes
from simulations.speech.recognition.features import FRAME, OVERLAP, log_mel

_FRAMES = 250  # of a training segment: 10 s
_WORD_WEIGHT = 3.0  # most frames are blank
_SNR_DB = (0.0, 35.0)
_GAIN_DB = (-12.0, 6.0)
_WARM_UP = 100

Weights = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a variant is trained: `steps` of `segments` each, with the largest learning rate `rate`."""

    steps: int
    segments: int
    rate: float


PLANS = {
    "tiny": Plan(steps=2000, segments=16, rate=4e-3),
    "small": Plan(steps=1600, segments=16, rate=2e-3),
    "large": Plan(steps=1000, segments=16, rate=1.2e-3),
}


class Segments:
    """Random segments of conversations in random noise, as features and labels."""

    def __init__(self, spoken: Sequence[Conversation], seed: int) -> None:
        """Take conversations of at least the length of a segment."""
        self._audio = [each.samples.astype(np.float32) / 32_768 for each in spoken]
        self._labels = [frame_labels(each.words, len(each.samples) // FRAME) for each in spoken]
        self._generator = np.random.default_rng(seed)
        self._noise = pink_noise(self._generator, 600 * SAMPLE_RATE)

    def batch(self, segments: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """Return features of shape (segments, frames, FEATURES) and labels of shape (segments, frames)."""
        chance = self._generator
        audio = np.empty((segments, _FRAMES * FRAME), dtype=np.float32)
        labels = np.empty((segments, _FRAMES), dtype=np.int32)
        for row in range(segments):
            chosen = int(chance.integers(len(self._audio)))
            begin = int(chance.integers(len(self._labels[chosen]) - _FRAMES + 1))
            clean = self._audio[chosen][begin * FRAME : (begin + _FRAMES) * FRAME]
            at = int(chance.integers(len(self._noise) - len(clean)))
            level = LEVEL * 10 ** (-chance.uniform(*_SNR_DB) / 20)
            gain = 10 ** (chance.uniform(*_GAIN_DB) / 20)
            audio[row] = np.clip((clean + level * self._noise[at : at + len(clean)]) * gain, -1.0, 1.0)
            labels[row] = self._labels[chosen][begin : begin + _FRAMES]
        features, _ = log_mel(audio, np.zeros((segments, OVERLAP), dtype=np.float32))
        return features, labels


def initial(shape: Shape, seed: int) -> Weights:
    """Return random weights: norms and convolutions as identity, what is added to the residual small."""
    generator = np.random.default_rng(seed)
    weights: dict[str, Any] = {}
    for name, size in weight_shapes(shape).items():
        kind = name.rsplit(".", 1)[-1]
        if kind == "norm":
            weights[name] = np.ones(size, dtype=np.float32)
        elif kind == "bias":
            weights[name] = np.zeros(size, dtype=np.float32)
        else:
            scale = size[0] ** -0.5 * (0.5 if kind == "out" and "." in name else 1.0)
            weights[name] = (generator.standard_normal(size) * scale).astype(np.float32)
    return weights


def loss(weights: Weights, shape: Shape, features: Any, labels: Any) -> Any:
    """Return the weighted cross entropy of the labels."""
    empty = jnp.zeros((features.shape[0], shape.layers, shape.rows, shape.width), dtype=jnp.float32)
    scores, _ = encode(Model(shape, weights), features, empty, jnp)
    chances = jax.nn.log_softmax(scores)
    entropy = -jnp.take_along_axis(chances, labels[..., None], axis=-1)[..., 0]
    weight = jnp.where(labels == BLANK, 1.0, _WORD_WEIGHT)
    return (weight * entropy).sum() / weight.sum()


@partial(jax.jit, static_argnames=("shape", "plan"))
def step(
    weights: Weights, moments: tuple[Weights, Weights], count: Any, features: Any, labels: Any, shape: Shape, plan: Plan
) -> tuple[Weights, tuple[Weights, Weights], Any]:
    """Return weights and moments after one step of Adam (Kingma and Ba 2015), and the loss before it."""
    value, gradient = jax.value_and_grad(loss)(weights, shape, features, labels)
    size = jnp.sqrt(sum(jnp.sum(g * g) for g in gradient.values()))
    gradient = {name: g / jnp.maximum(1.0, size) for name, g in gradient.items()}
    first = {name: 0.9 * moments[0][name] + 0.1 * g for name, g in gradient.items()}
    second = {name: 0.98 * moments[1][name] + 0.02 * g * g for name, g in gradient.items()}
    done = count / plan.steps
    rate = plan.rate * jnp.minimum((count + 1) / _WARM_UP, 0.02 + 0.98 * 0.5 * (1 + jnp.cos(jnp.pi * done)))
    rate = rate * jnp.sqrt(1 - 0.98 ** (count + 1)) / (1 - 0.9 ** (count + 1))
    moved = {name: w - rate * first[name] / (jnp.sqrt(second[name]) + 1e-8) for name, w in weights.items()}
    return moved, (first, second), value


def trained(shape: Shape, plan: Plan, segments: Segments, seed: int) -> Iterator[tuple[int, float, Weights]]:
    """Yield the number of steps, the mean loss since the last time and the weights, every hundred steps."""
    weights = initial(shape, seed)
    zeros = {name: np.zeros_like(w) for name, w in weights.items()}
    moments: tuple[Weights, Weights] = (zeros, zeros)
    losses = []
    for count in range(plan.steps):
        features, labels = segments.batch(plan.segments)
        weights, moments, value = step(weights, moments, np.float32(count), features, labels, shape, plan)
        losses.append(float(value))
        if (count + 1) % 100 == 0 or count + 1 == plan.steps:
            yield count + 1, float(np.mean(losses)), weights
            losses.clear()
