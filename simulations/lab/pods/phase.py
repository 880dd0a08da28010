"""The phases of a server in a pod, from its start to its end."""

from enum import IntEnum


class Phase(IntEnum):
    """The phases of a server, in the order in which it goes through them."""

    SERVING = 0
    DRAINING = 1  # refuses new sessions
    CLOSING = 2  # finishes its queue and refuses everything
    CLOSED = 3
