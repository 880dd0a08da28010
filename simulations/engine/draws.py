"""Random numbers that are functions of what they are for, so that no order of events changes them."""

import numpy as np

from optimizer.compiled import compiled

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_STAGE = np.uint64(0xD1B54A32D192ED03)
_NUMBER = np.uint64(0x8CB92BA72F3D8DD7)
_TO_UNIT = 2.0**-53


@compiled
def mix(z: np.uint64) -> np.uint64:
    """Return the finaliser of splitmix64 (Steele, Lea and Flood 2014): a good hash of 64 bits."""
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@compiled
def uniform(word: np.uint64) -> float:
    """Return the number in (0, 1) that a random word stands for."""
    return (np.float64(word >> np.uint64(11)) + 0.5) * _TO_UNIT


@compiled
def verdict(seed: int, stage: int, number: int) -> np.uint64:
    """Return the word that decides whether a stage ends the way of an item, the one that the data plane draws."""
    word = np.uint64(seed) * GOLDEN + np.uint64(stage) * _STAGE + np.uint64(number) * _NUMBER
    return mix(mix(word))


@compiled
def gamma(cv: float, seed: np.uint64, number: int) -> float:
    """Return a gamma variable of mean 1 (Marsaglia and Tsang 2000), a function of `seed` and `number`; cv above 0."""
    shape = 1.0 / (cv * cv)
    boosted = shape < 1.0
    d = (shape + 1.0 if boosted else shape) - 1.0 / 3.0
    c = 1.0 / np.sqrt(9.0 * d)
    state = mix(seed + np.uint64(number) * GOLDEN)
    while True:
        state += GOLDEN
        first = uniform(mix(state))
        state += GOLDEN
        second = uniform(mix(state))
        x = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
        v = 1.0 + c * x
        if v <= 0.0:
            continue
        v = v * v * v
        state += GOLDEN
        u = uniform(mix(state))
        if u < 1.0 - 0.0331 * x * x * x * x or np.log(u) < 0.5 * x * x + d * (1.0 - v + np.log(v)):
            break
    value = d * v
    if boosted:
        state += GOLDEN
        value *= uniform(mix(state)) ** (1.0 / shape)
    return float(value / shape)
