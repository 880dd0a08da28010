"""A bounded cache for the values of pure functions."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """Values by the arguments of a pure function; the least recently used are dropped.

    `most` bounds the sum of the sizes of the values; `size` returns that of one (1 each by default). A value larger
    than `most` is not kept.
    """

    def __init__(self, most: int, *, size: Callable[[V], int] = lambda _: 1) -> None:
        self._most = most
        self._size = size
        self._kept = 0
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        """Return the value kept for `key`, or None."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Hashable, value: V) -> V:
        """Keep `value` for `key` and return it; drop the least recently used values above the bound."""
        size = self._size(value)
        old = self._values.pop(key, None)
        if old is not None:
            self._kept -= self._size(old)
        if size > self._most:
            return value
        self._values[key] = value
        self._kept += size
        while self._kept > self._most:
            _, dropped = self._values.popitem(last=False)
            self._kept -= self._size(dropped)
        return value

    def clear(self) -> None:
        """Drop all values."""
        self._values.clear()
        self._kept = 0
