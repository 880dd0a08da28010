"""Chooses the replica of a stage for the next item or session, without I/O.

Under every rule, replicas get work in proportion to their weight (capacity), so that pools of different speed can share
a stage.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from optimizer.model import Routing


class Replica:
    """A replica as routing sees it.

    `outstanding` is the number of items that were sent to it and have no answer yet, `sessions` the number of sessions
    that are pinned to it. `limit` is the number of items that it serves at once, for the routing `Pull`. `credit` is
    the state of weighted round robin.
    """

    def __init__(self, *, weight: float = 1.0, limit: int = 1) -> None:
        """`weight` is proportional to the capacity of the replica, and above 0."""
        self.weight = weight
        self.limit = limit
        self.outstanding = 0
        self.sessions = 0
        self.credit = 0.0


R = TypeVar("R", bound=Replica)


class Router:
    """The routing of one stage; `seed` is for the routing `Random`."""

    def __init__(self, routing: Routing, seed: int) -> None:
        self._routing = routing
        self._random = random.Random(seed)

    def for_item(self, replicas: Sequence[R]) -> R | None:
        """Return the replica for an item without a session; None without a replica (for `Pull`: without a free one)."""
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
        """Return the replica with the fewest sessions in proportion to its weight; None without replicas."""
        return _least(replicas, lambda replica: replica.sessions)


def _least(replicas: Sequence[R], load: Callable[[R], int]) -> R | None:
    """Return the replica with the least load per weight; None without replicas.

    Replicas with equal loads take turns: otherwise the first one would get all work under a light load.
    """
    if not replicas:
        return None
    loads = [load(replica) / replica.weight for replica in replicas]
    lowest = min(loads)
    return _by_turns([replica for replica, value in zip(replicas, loads, strict=True) if value == lowest])


def _by_turns(replicas: Sequence[R]) -> R | None:
    """Return the next replica by smooth weighted round robin, as in nginx; None without replicas.

    The credit of each replica grows by its weight. The one with the largest credit is chosen, and its credit is reduced
    by the sum of the weights.
    """
    if not replicas:
        return None
    for replica in replicas:
        replica.credit += replica.weight
    chosen = max(replicas, key=lambda replica: replica.credit)
    chosen.credit -= sum(replica.weight for replica in replicas)
    return chosen
