"""Make the demo's load, `day.csv.gz`: the day of the scenario `daily` in four minutes, thinned for two cores.

    python simulations/scenarios/demo/make_trace.py [FOLDER]

The day of `daily` takes an hour, and is played 15 times faster here: the arrivals of 15 seconds become those of one. A
session is kept with a probability that makes the night quieter than there, 0.08 of noon instead of 0.2, and the day
shorter, as with captions of working hours. Thinning keeps the randomness of the seconds; scaling counts would not.
"""

import gzip
import math
import sys
from pathlib import Path

import numpy as np
from numpy.random import default_rng

FASTER = 15
DAY_S = 240
NIGHT, NIGHT_OF_DAILY = 0.08, 0.2
AT_NOON = 0.4
"""The share (0–1) of the sessions of `daily` at noon that is kept: about as many as two cores can serve."""
SEED = 7
DAILY = Path(__file__).parents[1] / "daily" / "day.csv.gz"


def day(daily: bytes) -> bytes:
    """Return the gzipped CSV file of the demo's day, from that of `daily`."""
    rows = gzip.decompress(daily).decode().splitlines()[1:]
    counts = np.array([int(row.partition(",")[2]) for row in rows]).reshape(DAY_S, FASTER).sum(axis=1)
    height = (1 - np.cos(2 * math.pi * (np.arange(DAY_S) + 0.5) / DAY_S)) / 2
    share = (NIGHT + (1 - NIGHT) * height**2) / (NIGHT_OF_DAILY + (1 - NIGHT_OF_DAILY) * height)
    kept = default_rng(SEED).binomial(counts, AT_NOON * share)
    lines = ["t_s,arrivals", *(f"{t_s},{count}" for t_s, count in enumerate(kept))]
    return gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)


def main(folder: Path) -> None:
    """Write `day.csv.gz` to `folder`."""
    (folder / "day.csv.gz").write_bytes(day(DAILY.read_bytes()))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
