"""Make the load of `scenario.yaml`, `jump.csv.gz`: sessions that start in each second.

    python simulations/scenarios/jump/make_trace.py [FOLDER]

1,000 streams are open on average, with sessions of a minute. At minute 10 nine thousand start within ten seconds, and
for ten minutes so many start that ten thousand are open; then as few as before. The counts are Poisson numbers.
"""

import gzip
import sys
from pathlib import Path

from numpy.random import default_rng

LENGTH_S = 1800
MEAN_S = 60
FEW, MANY = 1_000, 10_000
FROM_S, UNTIL_S = 600, 1200
RUSH_S = 10
SEED = 7


def jump() -> bytes:
    """Return the gzipped CSV file of the load: `t_s` and `arrivals`."""
    rng = default_rng(SEED)
    lines = ["t_s,arrivals"]
    for t_s in range(LENGTH_S):
        rate = (MANY if FROM_S <= t_s < UNTIL_S else FEW) / MEAN_S
        if FROM_S <= t_s < FROM_S + RUSH_S:
            rate += (MANY - FEW) / RUSH_S
        lines.append(f"{t_s},{rng.poisson(rate)}")
    return gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)


def main(folder: Path) -> None:
    """Write `jump.csv.gz` to `folder`."""
    (folder / "jump.csv.gz").write_bytes(jump())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
