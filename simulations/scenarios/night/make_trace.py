"""Makes the traces of the scenario: three days of captions, and the evening and the night after them.

`python make_trace.py` writes past-days.csv and day.csv beside it. A day takes 24 minutes; times are in seconds. From
8:00 to 18:00 there are many streams, from 22:00 to 5:00 few.
"""

import math
from pathlib import Path

FOLDER = Path(__file__).parent
HOUR_S = 60
STEP_S = 15
DAY, NIGHT = 84, 6
"""Open streams by day and by night."""
BEGINS_H = 14
"""The hour of the day at which the run begins; the past days end then."""


def streams(hour: float) -> int:
    """Return the open streams at an hour of the day."""
    light = 1 / (1 + math.exp(-2 * (hour - 6.5))) - 1 / (1 + math.exp(-2 * (hour - 20)))
    return round(NIGHT + (DAY - NIGHT) * light)


def written(name: str, begins_h: float, ends_h: float) -> None:
    """Write the streams from one hour to another, counted from the first midnight of the run's day."""
    steps = round((ends_h - begins_h) * HOUR_S / STEP_S)
    hours = [begins_h + index * STEP_S / HOUR_S for index in range(steps + 1)]
    lines = ["t_s,streams", *(f"{index * STEP_S},{streams(hour % 24)}" for index, hour in enumerate(hours))]
    (FOLDER / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    written("past-days.csv", BEGINS_H - 72, BEGINS_H)
    written("day.csv", BEGINS_H, BEGINS_H + 16)
