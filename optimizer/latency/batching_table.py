"""The simulated table of latencies of one stage; `simulations.engine.make_batching_table` makes it.

Unit of time: the mean of a batch of one, so that a batch of b takes 1 − f + f·b with f the share that each item adds.
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
"""u = x·g / (1 + (g − 1)·x) with x = ρ / `UTILIZATION_CEILING` and g = b / (1 − f + f·b), what full batches gain: at
light load it is the load without batching, which decides whether an item waits; it is 1 at the ceiling."""
LEVELS = (0.02, 0.25, 0.5, 0.75, 1.1, 1.5, 2.0, 2.5, 3.0, 3.7, 4.7)
"""−ln(1 − p) of the percentiles of items that wait."""

ROUTINGS = ("Pull", "LeastLoaded", "RoundRobin")
AXES = (ROUTINGS, LIMITS, SHARES, SERVICE_CV, ARRIVAL_CV, SERVERS, LOADS, LEVELS)
WIDTH = 2 + len(LEVELS)
"""Values of a cell: logit of the probability of waiting; logarithms of the mean and of the percentiles at `LEVELS` of
the time in the stage of items that wait."""
SHAPE = (*(len(axis) for axis in AXES[:-1]), WIDTH)

FILE = Path(__file__).with_name("batching_table.npz")


@lru_cache(maxsize=1)
def values() -> NDArray[np.float32]:
    """Return the table, shape `SHAPE`.

    Raises:
        ValueError: the stored table was made for other axes.
    """
    with np.load(FILE) as stored:
        table = np.ascontiguousarray(stored["values"], dtype=np.float32)
    if table.shape != SHAPE:
        raise ValueError(f"{FILE} has shape {table.shape}, expected {SHAPE}: run `make batching-table`")
    return table
