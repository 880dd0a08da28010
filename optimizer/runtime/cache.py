"""What pure functions gave for the arguments that were asked for last."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Remembered(Generic[V]):
    """The values of a pure function, by its arguments: the latest used, so many at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        """Return the value kept for `key`, or None."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Hashable, value: V) -> V:
        """Keep `value` for `key` and return it; what was not asked for longest is forgotten."""
        self._values[key] = value
        if len(self._values) > self._most:
            self._values.popitem(last=False)
        return value
