"""Recorded load: a level or a count per time bin, read from CSV.

A trace is a CSV file (gzip if its name ends in `.gz`) with a header. Its first column is `t_s`, the start of the bin in
seconds, evenly spaced. The column name says what its numbers are (`Column`).
"""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 256 * 2**20
"""The largest trace file, unpacked."""


class Column(Enum):
    """The quantity in a column of a trace."""

    ARRIVALS = "arrivals"
    """Sessions (or requests) that start in the bin: whole numbers."""
    STREAMS = "streams"
    """Level: concurrent streams during the bin."""
    RATE_PER_S = "rate_per_s"
    """Level: mean rate of starts during the bin, per second of the recording."""


class InvalidTrace(ValueError):
    """A trace cannot be read. The message names the file, and line, column, value and rule where there are any."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """A recorded load: `values[i]` is its value in the seconds [i·bin_s, (i + 1)·bin_s), in the unit of `column`.

    `name` is the file that it was read from.
    """

    name: str
    column: Column
    bin_s: float
    values: NDArray[np.float64]

    @property
    def span_s(self) -> float:
        """Return the length of the recording in seconds."""
        return self.bin_s * len(self.values)


def bundled_names() -> list[str]:
    """Return the file names of the bundled traces."""
    folder = resources.files("simulations.data") / "traces"
    return sorted(entry.name for entry in folder.iterdir() if entry.name.endswith((".csv", ".csv.gz")))


def read_trace(source: str, column: Column, *, folder: Path) -> Trace:
    """Return column `column` of the trace `source`: a path relative to `folder`, or else the name of a bundled trace.

    Raises:
        InvalidTrace: there is no such trace, or it cannot be read.
    """
    path = folder / source
    if path.is_file():
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InvalidTrace(f"{path}: cannot be read: {error.strerror}") from error
    elif source in bundled_names():
        content = (resources.files("simulations.data") / "traces" / source).read_bytes()
    else:
        raise InvalidTrace(f"{path}: no such file or bundled trace (the bundled ones are {', '.join(bundled_names())})")
    if source.endswith(".gz"):
        try:
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InvalidTrace(f"{path}: not a gzip file: {error}") from error
    if len(content) > MAX_BYTES:
        raise InvalidTrace(f"{path}: must be at most {MAX_BYTES // 2**20} MiB, unpacked")
    try:
        text = content.decode("utf-8-sig")  # as spreadsheets write it
    except UnicodeDecodeError as error:
        raise InvalidTrace(f"{path}: not UTF-8 text: {error}") from error
    return parse_trace(text, column, name=str(path) if path.is_file() else source)


def parse_trace(text: str, column: Column, *, name: str) -> Trace:
    """Return column `column` of the trace in CSV `text`; `name` is the file's name in error messages.

    Raises:
        InvalidTrace: the text is no valid trace.
    """
    rows = _rows(text, name)
    header = [field.strip() for field in next(rows, (1, []))[1]]
    if not header or header[0] != "t_s":
        raise InvalidTrace(f"{name}:1: {','.join(header)!r}: the first column must be 't_s'")
    if column.value not in header:
        raise InvalidTrace(f"{name}:1: {','.join(header)!r}: has no column {column.value!r}")
    position = header.index(column.value)
    times: list[float] = []
    values: list[float] = []
    for line, row in rows:
        if len(row) != len(header):
            raise InvalidTrace(f"{name}:{line}: {len(row)} fields; the header has {len(header)}")
        times.append(_number(row[0], f"{name}:{line}: t_s"))
        value = _number(row[position], f"{name}:{line}: {column.value}")
        if column is Column.ARRIVALS and not value.is_integer():
            raise InvalidTrace(f"{name}:{line}: {column.value}: {row[position]}: must be a whole number")
        values.append(value)
        _check_spacing(times, f"{name}:{line}: t_s: {row[0]}")
    if len(times) < 2:
        raise InvalidTrace(f"{name}: {len(times)} rows; must be at least 2, to know the length of a bin")
    return Trace(name=name, column=column, bin_s=times[1] - times[0], values=np.array(values))


def _rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, each with its line number."""
    rows = csv.reader(io.StringIO(text))
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        raise InvalidTrace(f"{name}:{rows.line_num}: not CSV: {error}") from error


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise InvalidTrace(f"{where}: {text}: must be a number of at least 0")
    return value


def _check_spacing(times: list[float], where: str) -> None:
    if len(times) < 2:
        return
    step = times[-1] - times[-2]
    if step <= 0:
        raise InvalidTrace(f"{where}: must be later than the row before ({times[-2]:g})")
    expected = times[1] - times[0]
    if abs(step - expected) > 1e-6 * expected:
        raise InvalidTrace(f"{where}: rows must be evenly spaced; the first two are {expected:g} s apart")
