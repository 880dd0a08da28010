"""Make the traces of the daily cycle: `day.csv.gz` for reports, `past-days.csv.gz` before it, `training-day.csv.gz`.

    python simulations/scenarios/daily/make_traces.py [FOLDER]

A day is copies of a recorded hour, each shifted cyclically, superposed and thinned: a session is kept with a
probability that follows the time of day, from 0.2 at night to 1 at noon. Thinning keeps the randomness of
the seconds; multiplying counts would not. The day passes in an hour, while sessions and start-ups keep their length.

The past days are of another recording than the day for reports: no minute of load is in both. They differ from each
other in their recorded hours, in how much load they have, and by minutes in when it comes.
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
PAST = "past-days.csv.gz"
PAST_TRACE, PAST_COPIES, PAST_DAYS, PAST_SEED = "mooncake_conversation_3s.csv.gz", 5, 9, 20_231_107
"""The days before that of `day.csv.gz`: the bundled trace, its copies, and how many days there are."""
LEAST_OF_DAY = 0.75
"""The load of a past day is between this share and 1 of what the copies have at that time of day."""
LATE_S = 60.0
"""Standard deviation of how late a past day is: 24 minutes, were the day one of 24 hours."""


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
    return _file(replay.bin_s, kept)


def _file(bin_s: float, counts: NDArray[np.int64]) -> bytes:
    """Return the gzipped CSV file of `counts`, one per bin."""
    rows = [f"{index * bin_s:g},{count}" for index, count in enumerate(counts)]
    return gzip.compress(("\n".join(["t_s,arrivals", *rows]) + "\n").encode(), mtime=0)


def past_days() -> bytes:
    """Return the gzipped CSV file of the days before `day.csv.gz`, one after the other."""
    rng = default_rng(PAST_SEED)
    trace = read_trace(PAST_TRACE, Column.ARRIVALS, folder=Path())
    days = (Replay(trace=trace, copies=PAST_COPIES, offset_s=rng.uniform(0, trace.span_s)) for _ in range(PAST_DAYS))
    counts = np.concatenate([one.bins(rng, DAY_S) for one in days]).astype(np.int64)
    middles_s = (np.arange(len(counts)) + 0.5) * trace.bin_s
    of_day = (middles_s / DAY_S).astype(np.int64)
    level = rng.uniform(LEAST_OF_DAY, 1.0, PAST_DAYS)[of_day]
    late_s = rng.normal(0.0, LATE_S, PAST_DAYS)[of_day]
    return _file(trace.bin_s, rng.binomial(counts, level * share_kept(middles_s - late_s)))


def main(folder: Path) -> None:
    """Write the traces to `folder`."""
    (folder / PAST).write_bytes(past_days())
    for name, (trace, copies, begin_s, seed) in DAYS.items():
        (folder / name).write_bytes(day(trace, copies, begin_s, seed))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
