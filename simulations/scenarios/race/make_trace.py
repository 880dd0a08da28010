"""Make the loads of the race for two cores, which serve the rivals' own programs too.

    python simulations/scenarios/race/make_trace.py [FOLDER]

`bursts.csv.gz` is 28 minutes of the code-completion trace in four: the arrivals of 7 seconds become those of one.
`day.csv.gz` is the day of the demo. Of both, a session is kept with a probability for which two cores are enough:
thinning keeps the randomness of the seconds; scaling counts would not.
"""

import gzip
import sys
from pathlib import Path

import numpy as np
from numpy.random import default_rng

FASTER = 7
"""The settings of policies are searched on the minutes after these (`bursty/training.yaml`)."""
LENGTH_S = 240
KEPT = 0.5
"""The share (0–1) of the sessions of bursts that is kept."""
KEPT_OF_DAY = 0.6
"""The same of the demo's day."""
SEED = 7
DAY = Path(__file__).parents[1] / "demo" / "day.csv.gz"
TRACE = Path(__file__).parents[2] / "data" / "traces" / "azure_llm_2023_code_1s.csv.gz"


def bursts(trace: bytes) -> bytes:
    """Return the gzipped CSV file of the bursts, from that of the trace."""
    rows = gzip.decompress(trace).decode().splitlines()[1:]
    counts = np.zeros(LENGTH_S * FASTER, dtype=int)
    for row in rows[: counts.size]:
        t_s, arrivals = row.split(",")[:2]
        counts[int(t_s)] = int(arrivals)
    return thinned(counts.reshape(LENGTH_S, FASTER).sum(axis=1), KEPT)


def day(demo: bytes) -> bytes:
    """Return the gzipped CSV file of the day, from that of the demo."""
    rows = gzip.decompress(demo).decode().splitlines()[1:]
    return thinned(np.array([int(row.partition(",")[2]) for row in rows]), KEPT_OF_DAY)


def thinned(counts: np.ndarray, kept: float) -> bytes:
    """Return a gzipped CSV file of the arrivals, of which each is kept with the probability `kept`."""
    left = default_rng(SEED).binomial(counts, kept)
    lines = ["t_s,arrivals", *(f"{t_s},{count}" for t_s, count in enumerate(left))]
    return gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)


def main(folder: Path) -> None:
    """Write `bursts.csv.gz` and `day.csv.gz` to `folder`."""
    (folder / "bursts.csv.gz").write_bytes(bursts(TRACE.read_bytes()))
    (folder / "day.csv.gz").write_bytes(day(DAY.read_bytes()))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
