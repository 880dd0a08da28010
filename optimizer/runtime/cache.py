"""A bounded cache for the values of pure functions."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from typing_extensions import override

V = TypeVar("V")


class _Key:
    """A key that is hashed once: keys are large values, and their hash is most of the time of a look-up."""

    __slots__ = ("digest", "value")

    def __init__(self, value: Hashable) -> None:
        self.value = value
        self.digest = hash(value)

    @override
    def __hash__(self) -> int:
        return self.digest

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.value == other.value


class BoundedCache(Generic[V]):
    """A cache for the values of a pure function; when it is full, the least recently used values are dropped.

    The key of a value is the function's arguments. `size` returns the size of a value (default: 1 for each), `most` is
    the largest sum of sizes that is kept. A value larger than `most` is not kept.
    """

    def __init__(self, most: int, *, size: Callable[[V], int] = lambda _: 1) -> None:
        self._most = most
        self._size = size
        self._kept = 0
        self._values: OrderedDict[_Key, tuple[_Key, V]] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        """Return the value kept for `key`, or None."""
        entry = self._values.get(_Key(key))
        if entry is None:
            return None
        self._values.move_to_end(entry[0])
        return entry[1]

    def put(self, key: Hashable, value: V) -> V:
        """Keep `value` for `key` and return it; drop the least recently used values where the cache is too full."""
        hashed, size = _Key(key), self._size(value)
        old = self._values.pop(hashed, None)
        if old is not None:
            self._kept -= self._size(old[1])
        if size > self._most:
            return value
        self._values[hashed] = hashed, value
        self._kept += size
        while self._kept > self._most:
            _, (_, dropped) = self._values.popitem(last=False)
            self._kept -= self._size(dropped)
        return value

    def clear(self) -> None:
        """Drop all values."""
        self._values.clear()
        self._kept = 0
