"""Random numbers that are hashes of their purpose (such as seed, stage and item), whatever the order of events."""

import math

import numpy as np
from numpy.typing import NDArray

from simulations.engine.borrowed import borrowing

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_STAGE = np.uint64(0xD1B54A32D192ED03)
_NUMBER = np.uint64(0x8CB92BA72F3D8DD7)
_JUMP = np.uint64(0x8EBC6AF09C88C6E3)  # from one attempt to the next, past all the words of the first
_TO_UNIT = 2.0**-53

_CLIENT = np.uint64(0xA24BAED4963EE407)

FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 30.0

_LAYERS = 256
_TAIL, _AREA = 3.6541528853610088, 0.00492867323399  # where the tail begins, and the area of each layer


def _edges() -> NDArray[np.float64]:
    """Return the right edges of the layers under the normal density, the widest first, 0 last."""

    def density(x: float) -> float:
        return math.exp(-0.5 * x * x)

    edges = [_AREA / density(_TAIL), _TAIL]
    while len(edges) < _LAYERS:
        edges.append(math.sqrt(-2 * math.log(_AREA / edges[-1] + density(edges[-1]))))
    return np.array([*edges, 0.0])


_EDGE = _edges()
_RATIO = _EDGE[1:] / _EDGE[:-1]


@borrowing
def mix(z: np.uint64) -> np.uint64:
    """Return the hash of a 64-bit word: the finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@borrowing
def uniform(word: np.uint64) -> float:
    """Return a uniform random number in (0, 1], made from the first 53 bits of a random word."""
    return (np.float64(np.int64(word >> np.uint64(11))) + 0.5) * _TO_UNIT  # signed: one instruction to convert


@borrowing
def verdict(seed: int, stage: int, number: int) -> np.uint64:
    """Return the random word that decides whether a stage filters the item `number`.

    The lab's data plane computes the same word, so it filters the same items.
    """
    word = np.uint64(seed) * GOLDEN + np.uint64(stage) * _STAGE + np.uint64(number) * _NUMBER
    return mix(mix(word))


@borrowing
def reconnect_delay_s(seed: int, session: int, attempt: int) -> float:
    """Return how long the client of a stream waits after its failed attempt number `attempt`, which counts from 1.

    The delay doubles from `FIRST_DELAY_S` to `LONGEST_DELAY_S`, and of each a random half to whole is waited, so that
    streams refused together do not come back together. The lab's load generator waits as long.
    """
    word = mix(np.uint64(seed) * _CLIENT + np.uint64(session) * _NUMBER + np.uint64(attempt) * GOLDEN)
    longest_s = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(attempt - 1, 30))
    return float(longest_s * (0.5 + 0.5 * uniform(mix(word))))


@borrowing
def normal(state: np.uint64) -> float:
    """Return a standard normal variable, a function of `state` (ziggurat: Marsaglia and Tsang 2000, Doornik 2005)."""
    while True:
        state += GOLDEN
        word = mix(state)
        u = 2.0 * uniform(word) - 1.0
        layer = np.int64(word & np.uint64(_LAYERS - 1))
        if abs(u) < _RATIO[layer]:
            return float(u * _EDGE[layer])
        state += GOLDEN
        second = uniform(mix(state))
        if layer == 0:
            state += GOLDEN
            a, b = np.log(second) / _TAIL, np.log(uniform(mix(state)))
            if -2.0 * b >= a * a:
                return float(a - _TAIL if u < 0 else _TAIL - a)
            continue
        x = u * _EDGE[layer]
        low = np.exp(-0.5 * (_EDGE[layer] * _EDGE[layer] - x * x))
        high = np.exp(-0.5 * (_EDGE[layer + 1] * _EDGE[layer + 1] - x * x))
        if high + second * (low - high) < 1.0:
            return float(x)


def gamma_constants(cv: float) -> tuple[float, float, float]:
    """Return the arguments `d`, `c` and `power` of `gamma` for the coefficient of variation `cv` (above 0)."""
    shape = cv**-2
    d = shape - 1 / 3 if shape >= 1 else shape + 2 / 3
    return d, (9 * d) ** -0.5, 0.0 if shape >= 1 else cv * cv


@borrowing
def gamma(d: float, c: float, power: float, seed: np.uint64, number: int) -> float:
    """Return a gamma variable of mean 1 (Marsaglia and Tsang 2000), a function of `seed` and `number`.

    `d`, `c` and `power` come from `gamma_constants`.
    """
    state = mix(seed + np.uint64(number) * GOLDEN)
    while True:
        x = normal(state)
        state += _JUMP
        v = 1.0 + c * x
        if v <= 0.0:
            continue
        v = v * v * v
        u = uniform(mix(state))
        if u < 1.0 - 0.0331 * x * x * x * x or np.log(u) < 0.5 * x * x + d * (1.0 - v + np.log(v)):
            break
    if power == 0.0:
        return float(v * d / (d + 1.0 / 3.0))
    return float(d * v * uniform(mix(state + _JUMP)) ** power * power)
