"""Latency distributions where only a mean and a percentile are known: their mixture and their maximum."""

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_BISECTIONS = 30
_GRID = 65  # points of the quadrature for the mean of a maximum
_FLOOR = 1e-9
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def normal_quantile(percentile: float) -> float:
    """Return the standard normal quantile at `percentile` (0–100, exclusive)."""
    return NormalDist().inv_cdf(percentile / 100)


def gamma_quantile(mean: Array, variance: Array, percentile: float) -> Array:
    """Return the percentile of gamma variables with these moments (Wilson and Hilferty 1931)."""
    inverse_shape = variance / np.maximum(mean, _FLOOR) ** 2
    root = 1 - inverse_shape / 9 + normal_quantile(percentile) * np.sqrt(inverse_shape) / 3
    return np.asarray(mean * np.maximum(root, 0.0) ** 3)


def mixture_percentile(shares: Array, percentiles: Array, means: Array, percentile: float) -> Array:
    """Return the percentile of what comes from source k with probability `shares[k]`.

    All three arrays have the sources on the first axis; sources with share 0 are left out.
    """
    taken = shares > 0
    low = np.min(np.where(taken, percentiles, np.inf), axis=0)
    high = np.max(np.where(taken, percentiles, 0.0), axis=0)
    mu, sigma = _lognormal(np.where(taken, means, 1.0), np.where(taken, percentiles, 1.0), percentile)
    return _bisect(low, high, lambda t: np.sum(shares * _cdf(t, mu, sigma), axis=0), percentile)


def maximum(means: Array, percentiles: Array, percentile: float) -> tuple[Array, Array]:
    """Return mean and percentile of the latest of independent branches (the first axis): the CDFs multiply."""
    mu, sigma = _lognormal(means, percentiles, percentile)
    each = normal_quantile(100 * (percentile / 100) ** (1 / len(means)))
    low, high = np.max(percentiles, axis=0), np.max(np.exp(mu + each * sigma), axis=0)
    quantile = _bisect(low, np.maximum(low, high), lambda t: np.prod(_cdf(t, mu, sigma), axis=0), percentile)
    first, last = np.min(np.exp(mu - 4 * sigma), axis=0), np.max(np.exp(mu + 4 * sigma), axis=0)
    times = np.geomspace(first, last, _GRID)
    beyond = 1 - np.prod(_cdf(times[:, None], mu, sigma), axis=1)
    return times[0] + np.trapezoid(beyond, times, axis=0), quantile


def _lognormal(means: Array, percentiles: Array, percentile: float) -> tuple[Array, Array]:
    """Return μ and σ of the lognormal variables with this mean and percentile; the percentile is always kept."""
    z = normal_quantile(percentile)
    ratio = np.log(np.maximum(percentiles, _FLOOR) / np.maximum(means, _FLOOR))
    root = np.sqrt(np.maximum(z * z - 2 * ratio, 0.0))
    # σ²/2 − zσ + ln(percentile/mean) = 0; a percentile on the wrong side of the mean leaves no spread.
    sigma = np.where(ratio >= 0, z - root, 0.0) if z > 0 else np.where(ratio <= 0, z + root, 0.0)
    sigma = np.maximum(sigma, _FLOOR)
    return np.log(np.maximum(percentiles, _FLOOR)) - z * sigma, sigma


def _cdf(times: Array, mu: Array, sigma: Array) -> Array:
    """Return the lognormal distribution function, to 1e-7 (Abramowitz and Stegun 7.1.26)."""
    scaled = (np.log(np.maximum(times, _FLOOR)) - mu) / (sigma * math.sqrt(2))
    size = np.abs(scaled)
    t = 1 / (1 + 0.3275911 * size)
    series = t * (_ERF[0] + t * (_ERF[1] + t * (_ERF[2] + t * (_ERF[3] + t * _ERF[4]))))
    beyond = 0.5 * series * np.exp(-np.minimum(size * size, 700.0))
    return np.asarray(np.where(scaled < 0, beyond, 1 - beyond))


def _bisect(low: Array, high: Array, cdf: Callable[[Array], Array], percentile: float) -> Array:
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = cdf(middle) < percentile / 100
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(high)
