"""Times in the operator's sentences, as times of a run."""

import re
from datetime import datetime

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def in_run_times(sentence: str, began_s: float = 0.0) -> str:
    """Return `sentence` with each time in UTC as seconds since the load began, which was at `began_s` of the clock.

    The clock of a simulated run is 0 then: its times in UTC are those of 1970.
    """
    return _TIME.sub(lambda found: f"{datetime.fromisoformat(found[0]).timestamp() - began_s:.0f} s", sentence)
