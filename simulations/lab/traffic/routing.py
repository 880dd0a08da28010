"""Chooses the replica of a stage for the next item or session.

Under every rule, replicas get work in proportion to their weight (capacity): pools of different speed can share a
stage. Without I/O.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from optimizer.model import Routing


class Replica:
    """A replica for routing: `outstanding` items are sent and not answered, `sessions` are pinned to it.

    `limit` is the number of items it serves at once, for routing by Pull; `credit` belongs to weighted round robin.
    """

    def __init__(self, *, weight: float = 1.0, limit: int = 1) -> None:
        """`weight` is proportional to the replica's capacity, above 0."""
        self.weight = weight
        self.limit = limit
        self.outstanding = 0
        self.sessions = 0
        self.credit = 0.0


R = TypeVar("R", bound=Replica)


class Router:
    """The routing of one stage; `seed` is for routing at random."""

    def __init__(self, routing: Routing, seed: int) -> None:
        self._routing = routing
        self._random = random.Random(seed)

    def for_item(self, replicas: Sequence[R]) -> R | None:
        """Return the replica for an item without a session; None when there is none (Pull: no free one)."""
        match self._routing:
            case Routing.PULL:
                replicas = [replica for replica in replicas if replica.outstanding < replica.limit]
                return _least(replicas, lambda replica: replica.outstanding)
            case Routing.RANDOM:
                weights = [replica.weight for replica in replicas]
                return self._random.choices(replicas, weights)[0] if replicas else None
            case Routing.ROUND_ROBIN:
                return _by_turns(replicas)
            case Routing.LEAST_LOADED | Routing.STICKY:
                return _least(replicas, lambda replica: replica.outstanding)

    def for_session(self, replicas: Sequence[R]) -> R | None:
        """Return the replica with the fewest sessions per weight; None when there is none."""
        return _least(replicas, lambda replica: replica.sessions)


def _least(replicas: Sequence[R], load: Callable[[R], int]) -> R | None:
    """Return the replica with the least load per weight; ties take turns, or the first would get all light load."""
    if not replicas:
        return None
    loads = [load(replica) / replica.weight for replica in replicas]
    lowest = min(loads)
    return _by_turns([replica for replica, value in zip(replicas, loads, strict=True) if value == lowest])


def _by_turns(replicas: Sequence[R]) -> R | None:
    """Return the next replica of smooth weighted round robin, as in nginx: each credit grows by its weight, the largest
    is chosen and reduced by the sum of weights."""
    if not replicas:
        return None
    for replica in replicas:
        replica.credit += replica.weight
    chosen = max(replicas, key=lambda replica: replica.credit)
    chosen.credit -= sum(replica.weight for replica in replicas)
    return chosen
