"""Make the two traces of the daily cycle, `day.csv.gz` for reports and `training-day.csv.gz` for training.

    python simulations/scenarios/daily/make_traces.py [FOLDER]

A day is copies of a recorded hour, each shifted cyclically, superposed and thinned: a session is kept with a
probability that follows the time of day, from 0.2 at night to 1 at noon. Thinning keeps the randomness of
the seconds; multiplying counts would not. The day passes in an hour, while sessions and start-ups keep their length.
"""

import gzip
import math
import sys
from pathlib import Path

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from simulations.scenario.schedule import Replay
from simulations.scenario.traces import Column, read_trace

DAY_S = 3600.0
NIGHT = 0.2
DAYS = {
    "day.csv.gz": ("azure_llm_2023_conv_1s.csv.gz", 3, 0.0, 20_231_116),
    "training-day.csv.gz": ("mooncake_synthetic_1s.csv.gz", 4, 0.3 * DAY_S, 20_250_225),
}
"""Per file: the bundled trace, its copies, the time of day at which the file begins in seconds, and a seed."""


def share_kept(t_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share (0–1) of sessions kept at each time of day `t_s`, in seconds; shape like `t_s`."""
    return NIGHT + (1 - NIGHT) * (1 - np.cos(2 * math.pi * t_s / DAY_S)) / 2


def day(trace: str, copies: int, begin_s: float, seed: int) -> bytes:
    """Return the gzipped CSV file of one day that begins at the time of day `begin_s`, in seconds."""
    rng = default_rng(seed)
    replay = Replay(trace=read_trace(trace, Column.ARRIVALS, folder=Path()), copies=copies)
    counts = replay.bins(rng, DAY_S).astype(np.int64)
    bins_s = np.arange(len(counts)) * replay.bin_s
    kept = rng.binomial(counts, share_kept(np.asarray(begin_s + bins_s + replay.bin_s / 2, dtype=np.float64)))
    rows = [f"{t_s:g},{count}" for t_s, count in zip(bins_s, kept, strict=True)]
    return gzip.compress(("\n".join(["t_s,arrivals", *rows]) + "\n").encode(), mtime=0)


def main(folder: Path) -> None:
    """Write `day.csv.gz` and `training-day.csv.gz` to `folder`."""
    for name, (trace, copies, begin_s, seed) in DAYS.items():
        (folder / name).write_bytes(day(trace, copies, begin_s, seed))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
