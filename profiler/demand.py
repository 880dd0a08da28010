"""The demand to expect. Pure."""

from collections.abc import Sequence


def forecast(samples: Sequence[tuple[float, float]], now_s: float, horizon_s: float) -> float:
    """Return the load to expect `horizon_s` from `now_s`, in the unit of the samples.

    `samples` are (time in seconds, load ≥ 0), oldest first, the newest the observation of now; they must not be empty.
    """
    if not samples:
        raise ValueError("samples: (): must not be empty")
    return samples[-1][1]
