"""Recorded load: a level or a count per time bin, read from a file (`recordings.py`) and put on an even grid.

`Column` says what its numbers are. A level may have gaps and uneven times; notes say what was made of them.
"""

import gzip
import io
import zlib
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from controller.core.messages.phrases import duration
from simulations.scenario.recordings import InvalidTrace, Recording, parse_recording

__all__ = ["Column", "InvalidTrace", "Trace", "bundled_names", "parse_trace", "read_trace"]

MAX_BYTES = 256 * 2**20
"""The largest trace file, unpacked."""
MAX_BINS = 5_000_000
"""The most bins of a trace."""
_OFF_GRID = 1e-3
"""Times within this share of a bin of an even grid are even: clocks and exports round them."""


class Column(Enum):
    """The quantity in a column of a trace."""

    ARRIVALS = "arrivals"
    """Sessions (or requests) that start in the bin: whole numbers, at even times, without gaps."""
    STREAMS = "streams"
    """Level: concurrent streams during the bin."""
    RATE_PER_S = "rate_per_s"
    """Level: mean rate of starts during the bin, per second of the recording."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """A recorded load: `values[i]` is its value in the seconds [i·bin_s, (i + 1)·bin_s), in the unit of `column`.

    `name` is the file that it was read from. `begins_s` is when it begins, since the epoch, None if that is unknown.
    `notes` say what differs from the file, one sentence each.
    """

    name: str
    column: Column
    bin_s: float
    values: NDArray[np.float64]
    begins_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def span_s(self) -> float:
        """Return the length of the recording in seconds."""
        return self.bin_s * len(self.values)


def bundled_names() -> list[str]:
    """Return the file names of the bundled traces."""
    folder = resources.files("simulations.data") / "traces"
    return sorted(entry.name for entry in folder.iterdir() if entry.name.endswith((".csv", ".csv.gz")))


def read_trace(source: str, column: Column, *, folder: Path, series: str | None = None) -> Trace:
    """Return the trace `source`: a path relative to `folder`, or else the name of a bundled trace.

    `column` says what the numbers are. `series` names one of several series of the file; None: the one named as
    `column`, or the only one.

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
    return parse_trace(text, column, name=str(path) if path.is_file() else source, series=series)


def parse_trace(text: str, column: Column, *, name: str, series: str | None = None) -> Trace:
    """Return the trace in `text`; `name` is the file's name in error messages. `series` is as in `read_trace`.

    Raises:
        InvalidTrace: the text is no valid trace.
    """
    recording = parse_recording(text, name=name, series=series, default=column.value)
    others = {each.value for each in Column} - {column.value}
    if series is None and recording.series in others:
        raise InvalidTrace(f"{name}: has no column {column.value!r}, but {recording.series!r}")
    if column is Column.ARRIVALS:
        _check_counts(recording)
    bin_s, values, notes = _even(recording, column, name)
    return Trace(name=name, column=column, bin_s=bin_s, values=values, begins_s=recording.begins_s, notes=tuple(notes))


def _check_counts(recording: Recording) -> None:
    for value, place in zip(recording.values, recording.places, strict=True):
        if not value.is_integer():  # a gap is not one either
            raise InvalidTrace(f"{place}: must be a whole number, because arrivals are counts; a rate is rate_per_s")


def _even(recording: Recording, column: Column, name: str) -> tuple[float, NDArray[np.float64], list[str]]:
    """Return the length of a bin, the value of each bin, and notes.

    The length is the middle one of the times between two values. On an even grid, a missing value is on the line
    between its neighbours. Values at uneven times become the means of that line over each bin. Before the first and
    after the last value of a series, its value is held.
    """
    times, values = np.array(recording.times_s), np.array(recording.values)
    if not np.isfinite(values).any():
        raise InvalidTrace(f"{name}: {recording.series}: has no number, only gaps")
    steps = np.diff(times)
    span = times[-1] - times[0]
    middle = float(np.sort(steps)[(len(steps) - 1) // 2])
    if span / middle >= MAX_BINS:
        raise InvalidTrace(
            f"{name}: {recording.series}: {duration(span)} at {middle:g} s: must be at most {MAX_BINS} bins; "
            "is there a time that is far from the others?"
        )
    bin_s = float(span / round(span / middle))
    index = np.rint((times - times[0]) / bin_s).astype(int)
    even = bool((np.abs(times - times[0] - index * bin_s) <= _OFF_GRID * bin_s).all()) and bool(
        (np.diff(index) > 0).all()
    )
    if column is Column.ARRIVALS and (not even or len(times) <= index[-1]):
        odd = int(np.argmax(np.abs(steps - middle) > _OFF_GRID * middle)) + 1
        raise InvalidTrace(
            f"{recording.places[odd]}: arrivals must be evenly spaced, every {middle:g} s; a rate need not be"
        )
    known = np.isfinite(values)
    if not even:
        edges = times[0] + middle * np.arange(round(span / middle) + 2)
        note = (
            f"the times are uneven, {steps.min():g} s to {steps.max():g} s apart: read every {middle:g} s, as means of "
            "the line between two values"
        )
        return middle, _means(times[known], values[known], edges), [note, *_gaps(times, known, len(times))]
    grid = np.arange(index[-1] + 1)
    found = np.full(len(grid), np.nan)
    found[index] = values
    there = np.isfinite(found)
    return bin_s, np.interp(grid, grid[there], found[there]), _gaps(grid * bin_s, there, len(grid))


def _means(x: NDArray[np.float64], y: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean between each two `edges` of the line through the points (x, y), level outside of them."""
    every = np.union1d(x, edges)
    heights = np.interp(every, x, y)
    area = np.concatenate([[0.0], np.cumsum(np.diff(every) * (heights[1:] + heights[:-1]) / 2)])
    return np.diff(area[np.searchsorted(every, edges)]) / np.diff(edges)


def _gaps(times: NDArray[np.float64], known: NDArray[np.bool_], count: int) -> list[str]:
    """Return the note on missing values: how many, and the longest time between two that are there."""
    missing = int((~known).sum())
    if not missing:
        return []
    bounds = np.concatenate([times[:1], times[known], times[-1:]])
    longest = float(np.diff(bounds).max())
    note = f"{missing} of {count} values are missing, up to {duration(longest)} without one: interpolated"
    return [f"{note} between their neighbours"]
