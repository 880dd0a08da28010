"""Shortens long series for the screen, and keeps the lowest and the highest value of every part."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Value = float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPart:
    """The windows [begin, end) of a series as one part: first, lowest, highest and last value.

    None is a missing value. `low` and `high` are None only if all values are missing.
    """

    begin: int
    end: int
    first: Value
    low: Value
    high: Value
    last: Value


def parts(values: Sequence[Value], columns: int) -> list[SeriesPart]:
    """Return `values` cut into at most `columns` parts of equal length, except the last one.

    Up to `columns` values are one part each.
    """
    return [_part(values, begin, end) for begin, end in borders(len(values), columns)]


def borders(count: int, columns: int) -> list[tuple[int, int]]:
    """Return the begin and the end (exclusive) of each part when `count` windows are cut into at most `columns`."""
    size = max(1, math.ceil(count / columns))
    return [(begin, min(begin + size, count)) for begin in range(0, count, size)]


def _part(values: Sequence[Value], begin: int, end: int) -> SeriesPart:
    inside = values[begin:end]
    known = [value for value in inside if value is not None]
    return SeriesPart(
        begin=begin,
        end=end,
        first=inside[0],
        low=min(known, default=None),
        high=max(known, default=None),
        last=inside[-1],
    )
