"""The axes and the values of the simulated table of latencies of one stage.

`simulations.engine.make_batching_table` makes it. The unit of time is the mean service time of a batch of one item: a
batch of b items takes 1 − f + f·b, where f is the share that each item adds.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

UTILIZATION_CEILING = 0.9
"""The highest utilisation (of the capacity at full batches) that a plan gives a stage: above it latency is unstable."""

LIMITS = (1, 2, 4, 8, 16, 32, 64)
"""Batch limits b."""
SHARES = (0.0, 0.04, 0.16, 0.36, 0.64, 0.81, 1.0)
"""Shares f, evenly spaced in √f except for the last ones, where batching begins to pay."""
SERVICE_CV = (0.0, 0.15, 0.4, 1.0)
ARRIVAL_CV = (0.05**0.5, 0.35**0.5, 1.0, 2.0)
SERVERS = (1, 2, 3, 6, 13, 28, 64)
LOADS = (0.1, 0.25, 0.4, 0.55, 0.69, 0.81, 0.9, 0.96, 1.0)
"""Loads u = x·g / (1 + (g − 1)·x), with x = ρ / `UTILIZATION_CEILING` and g = b / (1 − f + f·b).

g is the gain of full batches. At light load u is about the load without batching, which decides whether an item waits;
at the ceiling it is 1.
"""
LEVELS = (0.02, 0.25, 0.5, 0.75, 1.1, 1.5, 2.0, 2.5, 3.0, 3.7, 4.7)
"""−ln(1 − p) for the tabulated percentiles p (0–1) of the time of items that wait."""

ROUTINGS = ("Pull", "LeastLoaded", "RoundRobin")
AXES = (ROUTINGS, LIMITS, SHARES, SERVICE_CV, ARRIVAL_CV, SERVERS, LOADS, LEVELS)
WIDTH = 2 + len(LEVELS)
"""Number of values in a cell: the logit of the probability of waiting; then, for the time in the stage of items that
wait, the logarithms of its mean and of its percentiles at `LEVELS`."""
SHAPE = (*(len(axis) for axis in AXES[:-1]), WIDTH)

FILE = Path(__file__).with_name("batching_table.npz")


@lru_cache(maxsize=1)
def values() -> NDArray[np.float32]:
    """Return the table, shape `SHAPE`; read from `FILE` once.

    Raises:
        ValueError: the stored table was made for other axes.
    """
    with np.load(FILE) as stored:
        table = np.ascontiguousarray(stored["values"], dtype=np.float32)
    if table.shape != SHAPE:
        raise ValueError(f"{FILE} has shape {table.shape}, expected {SHAPE}: run `make batching-table`")
    return table
