"""Latency distributions where only a mean and a percentile are known: their mixture and their maximum."""

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from optimizer.runtime.compiled import compiled

Array = NDArray[np.float64]

_BISECTIONS = 30
_GRID = 65  # points of the quadrature for the mean of a maximum
_FLOOR = 1e-9
_HALVINGS = 60
_CLOSE = 1e-7
_ROOT_OF_2 = math.sqrt(2)
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
    quantile = np.empty(shares.shape[1])
    _mixtures(
        np.ascontiguousarray(shares),
        np.ascontiguousarray(percentiles),
        np.ascontiguousarray(means),
        normal_quantile(percentile),
        percentile / 100,
        quantile,
    )
    return quantile


@compiled
def _mixtures(shares: Array, percentiles: Array, means: Array, z: float, below: float, quantile: Array) -> None:
    """Find where the lognormal distribution functions, weighted, reach `below`, between the sources' percentiles."""
    sources = shares.shape[0]
    mu, sigma = np.empty(sources), np.empty(sources)
    for row in range(shares.shape[1]):
        low, high = np.inf, -np.inf
        for k in range(sources):
            if shares[k, row] > 0:
                reached = np.log(max(percentiles[k, row], _FLOOR))
                low, high = min(low, reached), max(high, reached)
                # As in `_lognormal`.
                ratio = reached - np.log(max(means[k, row], _FLOOR))
                root = np.sqrt(max(z * z - 2 * ratio, 0.0))
                spread = 0.0
                if z > 0:
                    spread = z - root if ratio >= 0 else 0.0
                elif ratio <= 0:
                    spread = z + root
                sigma[k] = max(spread, _FLOOR)
                mu[k] = reached - z * sigma[k]
        # Regula falsi with the weight of an end that stays halved (Illinois), in the logarithm of time.
        gap_low, gap_high, side = -below, 1 - below, 0
        for turn in range(_HALVINGS):
            if high - low < _CLOSE:
                break
            middle = 0.5 * (low + high)
            if turn % 4 < 3:
                middle = (low * gap_high - high * gap_low) / (gap_high - gap_low)
            gap = -below
            for k in range(sources):
                if shares[k, row] > 0:
                    scaled = (middle - mu[k]) / (sigma[k] * _ROOT_OF_2)
                    size = abs(scaled)
                    t = 1 / (1 + 0.3275911 * size)
                    series = t * (_ERF[0] + t * (_ERF[1] + t * (_ERF[2] + t * (_ERF[3] + t * _ERF[4]))))
                    beyond = 0.5 * series * np.exp(-min(size * size, 700.0))
                    gap += shares[k, row] * (beyond if scaled < 0 else 1 - beyond)
            if gap < 0:
                low, gap_low = middle, gap
                gap_high = 0.5 * gap_high if side < 0 else gap_high
                side = -1
            else:
                high, gap_high = middle, gap
                gap_low = 0.5 * gap_low if side > 0 else gap_low
                side = 1
        quantile[row] = np.exp(high)


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
