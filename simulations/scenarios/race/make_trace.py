"""Make the load of `bursts.yaml`, `bursts.csv.gz`: 28 minutes of the code-completion trace in four.

    python simulations/scenarios/race/make_trace.py [FOLDER]

The arrivals of 7 seconds become those of one, and a session is kept with a probability for which two cores are enough.
Thinning keeps the randomness of the seconds; scaling counts would not.
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
"""The share (0–1) of the sessions that is kept."""
SEED = 7
TRACE = Path(__file__).parents[2] / "data" / "traces" / "azure_llm_2023_code_1s.csv.gz"


def bursts(trace: bytes) -> bytes:
    """Return the gzipped CSV file of the race's load, from that of the trace."""
    rows = gzip.decompress(trace).decode().splitlines()[1:]
    counts = np.zeros(LENGTH_S * FASTER, dtype=int)
    for row in rows[: counts.size]:
        t_s, arrivals = row.split(",")[:2]
        counts[int(t_s)] = int(arrivals)
    kept = default_rng(SEED).binomial(counts.reshape(LENGTH_S, FASTER).sum(axis=1), KEPT)
    lines = ["t_s,arrivals", *(f"{t_s},{count}" for t_s, count in enumerate(kept))]
    return gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)


def main(folder: Path) -> None:
    """Write `bursts.csv.gz` to `folder`."""
    (folder / "bursts.csv.gz").write_bytes(bursts(TRACE.read_bytes()))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
