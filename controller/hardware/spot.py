"""What spot instances cost with their risk: replicas that stand in for those that were reclaimed."""

from math import comb, log

MONTH_H = 730.0
SURE = 0.99
"""The share of the time in which enough replicas are there."""
DEFAULT_INTERRUPTIONS = 0.2
"""The share of spot instances that are interrupted in a month, where nothing is known: the upper end of the highest
class with an upper end in the AWS Spot Instance Advisor (15–20 %)."""


def away_share(interruptions: float, away_s: float) -> float:
    """Return the share of its time that a spot replica is away.

    `interruptions` is the share (0–1, exclusive) of instances that are interrupted in a month, as the AWS Spot Instance
    Advisor states it; `away_s` is how long a reclaimed replica takes to be ready again, in seconds.
    """
    away_h = -log(1 - interruptions) / MONTH_H * away_s / 3600
    return away_h / (1 + away_h)


def spares(replicas: int, away: float, *, sure: float = SURE) -> int:
    """Return how many more replicas keep at least `replicas` ready in the share `sure` of the time.

    Each is away for the share `away` of its time, independently of the others. Pools that are reclaimed as a whole are
    not covered by more replicas of them; that is what a fallback to another pool is for.
    """
    if replicas == 0 or away <= 0:
        return 0
    more = 0
    while _at_least(replicas, replicas + more, 1 - away) < sure:
        more += 1
    return more


def _at_least(needed: int, count: int, share: float) -> float:
    """Return P(Bin(count, share) ≥ needed), summed from the few that may be missing."""
    return sum(comb(count, lost) * share ** (count - lost) * (1 - share) ** lost for lost in range(count - needed + 1))
