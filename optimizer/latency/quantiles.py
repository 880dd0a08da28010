"""Percentiles of normal and gamma variables, and of mixtures of lognormal variables."""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from optimizer.runtime.compiled import compiled

Array = NDArray[np.float64]

_FLOOR = 1e-9
_HALVINGS = 60
_CLOSE = 1e-7
_ROOT_OF_2 = math.sqrt(2)
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""The error function to 1e-7 (Abramowitz and Stegun 7.1.26)."""


def normal_quantile(percentile: float) -> float:
    """Return the standard normal quantile at `percentile` (0–100, exclusive)."""
    return NormalDist().inv_cdf(percentile / 100)


def gamma_quantile(mean: Array, variance: Array, percentile: float) -> Array:
    """Return a percentile (0–100, exclusive) of gamma variables, in the unit of `mean`, elementwise.

    An approximation by Wilson and Hilferty (1931).
    """
    inverse_shape = variance / np.maximum(mean, _FLOOR) ** 2
    root = 1 - inverse_shape / 9 + normal_quantile(percentile) * np.sqrt(inverse_shape) / 3
    return np.asarray(mean * np.maximum(root, 0.0) ** 3)


def mixture_percentile(shares: Array, percentiles: Array, means: Array, percentile: float) -> Array:
    """Return a percentile (0–100, exclusive) of mixtures of lognormal variables, one mixture per row, shape (rows,).

    The arrays have the shape (sources, rows): the probability of each source of a mixture, and the source's own
    percentile (at the same `percentile`) and mean. Sources with share 0 do not count.
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
    """Write to `quantile` the time at which the weighted sum of the sources' distribution functions reaches `below`.

    `z` is the standard normal quantile at `below` (0–1). The time lies between the least and the largest percentile of
    the sources.
    """
    sources = shares.shape[0]
    mu, sigma = np.empty(sources), np.empty(sources)
    for row in range(shares.shape[1]):
        low, high = np.inf, -np.inf
        for k in range(sources):
            if shares[k, row] > 0:
                reached = np.log(max(percentiles[k, row], _FLOOR))
                low, high = min(low, reached), max(high, reached)
                # σ²/2 − zσ + ln(percentile/mean) = 0; a percentile on the wrong side of the mean leaves no spread.
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
