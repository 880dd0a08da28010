"""Recorded series in the files that users have: CSV exports, and the answers of Prometheus and promtool. Pure.

* CSV: the first column is the time, every other column a series. Grafana exports panels like this.
* The JSON of Prometheus' range queries, or of `promtool query range -o json`.
* What `promtool query range` prints without `-o json`.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from controller.resources.parsing import nearest_name

MAX_JSON_BYTES = 64 * 2**20
"""The largest JSON: it takes many times its size in memory."""
TIME_COLUMNS = ("t_s", "time", "timestamp", "date", "datetime")
"""Names of the first column of a CSV file, in any case."""
GAPS = ("", "nan", "null", "none", "undefined")
"""What stands in place of a value that is missing, in any case."""
_EPOCH_UNITS = ((1e11, 1.0), (1e14, 1e-3), (1e17, 1e-6), (math.inf, 1e-9))
"""Numbers below the first of a pair are in seconds times the second: epoch seconds, ms, µs and ns do not overlap."""
_SHOWN_NAMES = 8
_PROMTOOL_POINT = re.compile(r"(?P<value>\S+) @\[(?P<time>[0-9.]+)\]")
_RELATIVE_S = 1e8
"""Times below this count from the begin of the recording; later ones from the epoch (1973 and later)."""
_TIMES = (
    "must be a time: seconds or milliseconds since 1970, or such as 2026-11-01T00:00:00Z or 2026-11-01 00:00:00 (UTC)"
)


class InvalidTrace(ValueError):
    """A trace cannot be read. The message names the file, and line, column, value and rule where there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One series of a file: `values[i]` at `times_s[i]`, ascending; a value is NaN where it is missing.

    `series` is the name of the series in the file. `places` say where each value is, for messages. `begins_s` is the
    time of the first value since the epoch, None where the file does not say it.
    """

    series: str
    times_s: Sequence[float]
    values: Sequence[float]
    places: Sequence[str]
    begins_s: float | None


def parse_recording(text: str, *, name: str, series: str | None, default: str) -> Recording:
    """Return one series of `text`, the content of the file `name`.

    `series` is its name, or a value of one of its labels. None: the series named `default`, or else the only one.

    Raises:
        InvalidTrace: the text has no such series, or is not in one of the formats.
    """
    first = next((line for line in text.splitlines() if line.strip()), "").strip()
    if first.endswith("=>"):
        return _of_points(_promtool(text, name), name=name, series=series, default=default)
    if first[:1] in {"{", "["}:
        return _of_points(_prometheus(text, name), name=name, series=series, default=default)
    return _csv(text, name=name, series=series, default=default)


def _chosen(names: Sequence[str], series: str | None, default: str, where: str) -> int:
    """Return the index of the series in `names`."""
    if series is not None:
        found = [index for index, each in enumerate(names) if each == series]
        found = found or [index for index, each in enumerate(names) if f'"{series}"' in each]
        if len(found) == 1:
            return found[0]
        near = nearest_name(series, names)
        hint = f"did you mean {near}?" if near else f"there are {_listed(names)}"
        raise InvalidTrace(f"{where}: series {series!r}: {'is ambiguous' if found else 'no such series'}; {hint}")
    if default in names:
        return list(names).index(default)
    if len(names) == 1:
        return 0
    raise InvalidTrace(
        f"{where}: has no column {default!r}, but {len(names)} series; name one (`series`, or --series): "
        f"{_listed(names)}"
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_NAMES])
    return f"{shown} and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else shown or "none"


# -- CSV


def _csv(text: str, *, name: str, series: str | None, default: str) -> Recording:
    rows = _rows(text, name)
    line, header = next(rows, (1, []))
    if not any(header):
        raise InvalidTrace(f"{name}: has no rows")
    header = [field.strip() for field in header]
    if not header or header[0].lower() not in TIME_COLUMNS:
        names = ", ".join(TIME_COLUMNS[:-1])
        raise InvalidTrace(
            f"{name}:{line}: {','.join(header)!r}: the first column must be the time: {names} or datetime"
        )
    if len(header) < 2:
        raise InvalidTrace(f"{name}:{line}: {','.join(header)!r}: has no column of values")
    position = 1 + _chosen(header[1:], series, default, f"{name}:{line}")
    column = header[position]
    times: list[float] = []
    values: list[float] = []
    places: list[str] = []
    scale: float | None = None
    for line, row in rows:
        if len(row) != len(header):
            raise InvalidTrace(f"{name}:{line}: {len(row)} fields; the header has {len(header)}")
        number = _as_number(row[0])
        if not times and number is not None:
            scale = 1.0 if header[0] == "t_s" else _epoch_scale(number)
        times.append(_time(row[0], number, scale, f"{name}:{line}: {header[0]}"))
        _check_later(times, f"{name}:{line}: {header[0]}: {row[0]}")
        places.append(f"{name}:{line}: {column}: {row[position]}")
        values.append(_value(row[position], places[-1]))
    _check_length(times, name)
    dated = header[0] != "t_s" and times[0] >= _RELATIVE_S
    return Recording(series=column, times_s=times, values=values, places=places, begins_s=times[0] if dated else None)


def _rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, each with its line number."""
    lines = io.StringIO(text)
    skipped = 0
    if text[:4].lower() == "sep=":  # what "download for Excel" writes first
        lines.readline()
        skipped = 1
    first = lines.readline()
    lines.seek(lines.tell() - len(first))
    delimiter = next((each for each in (",", ";", "\t") if each in first), ",")
    rows = csv.reader(lines, delimiter=delimiter)
    try:
        for row in rows:
            if row:
                yield rows.line_num + skipped, row
    except csv.Error as error:
        raise InvalidTrace(f"{name}:{rows.line_num + skipped}: not CSV: {error}") from error


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _epoch_scale(number: float) -> float:
    return next(scale for below, scale in _EPOCH_UNITS if number < below or not math.isfinite(below))


def _time(text: str, number: float | None, scale: float | None, where: str) -> float:
    """Return a time in seconds; `scale` is None where the file has dates."""
    if scale is not None:
        if number is None or not math.isfinite(number) or number < 0:
            raise InvalidTrace(f"{where}: {text}: must be a number of at least 0, as in the first row")
        return number * scale
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidTrace(f"{where}: {text}: {_TIMES}") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _value(text: str, where: str) -> float:
    if text.strip().lower() in GAPS:
        return math.nan
    value = _as_number(text)
    if value is None or not math.isfinite(value) or value < 0:
        raise InvalidTrace(f"{where}: must be a number of at least 0, without a unit; empty, NaN or null is a gap")
    return value


def _check_later(times: Sequence[float], where: str) -> None:
    if len(times) > 1 and times[-1] <= times[-2]:
        raise InvalidTrace(f"{where}: must be later than the row before")


def _check_length(times: Sequence[float], where: str) -> None:
    if len(times) < 2:
        raise InvalidTrace(f"{where}: {len(times)} rows; must be at least 2, to know the length of a bin")


# -- Prometheus


@dataclass(frozen=True, slots=True, kw_only=True)
class _Points:
    """The points of one series as written: (where, time, value)."""

    name: str
    points: Sequence[tuple[str, object, object]]


def _of_points(found: Sequence[_Points], *, name: str, series: str | None, default: str) -> Recording:
    """Return one of the series; it begins and ends with the first and the last of all."""
    if not found:
        raise InvalidTrace(f"{name}: has no series: the query matched none in this time")
    one = found[_chosen([each.name for each in found], series, default, name)]
    times: list[float] = []
    values: list[float] = []
    for where, time, value in one.points:
        number = _as_number(str(time))
        times.append(_time(str(time), number, 1.0, where))
        _check_later(times, f"{where}: {time}")
        values.append(_value(str(value), f"{where}: {value}"))
    _check_length(times, f"{name}: {one.name}")
    places = [f"{where}: {value}" for where, _, value in one.points]
    bounds = [
        number
        for each in found
        for _, time, _ in (*each.points[:1], *each.points[-1:])
        if (number := _as_number(str(time))) is not None and math.isfinite(number)
    ]
    if min(bounds) < times[0]:
        times, values, places = [min(bounds), *times], [math.nan, *values], ["", *places]
    if max(bounds) > times[-1]:
        times, values, places = [*times, max(bounds)], [*values, math.nan], [*places, ""]
    return Recording(
        series=one.name,
        times_s=times,
        values=values,
        places=places,
        begins_s=times[0] if times[0] >= _RELATIVE_S else None,
    )


def _prometheus(text: str, name: str) -> list[_Points]:
    if len(text) > MAX_JSON_BYTES:
        raise InvalidTrace(f"{name}: must be at most {MAX_JSON_BYTES // 2**20} MiB of JSON; take fewer series")
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidTrace(f"{name}:{error.lineno}: not JSON: {error.msg} in column {error.colno}") from None
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        raise InvalidTrace(f"{name}: not the JSON of a range query") from None
    if isinstance(document, dict):
        if document.get("status") == "error":
            raise InvalidTrace(f"{name}: Prometheus answered with an error: {document.get('error')}")
        data = document.get("data")
        data = data if isinstance(data, dict) else {}
        if data.get("resultType") != "matrix":
            raise InvalidTrace(
                f"{name}: data.resultType: {data.get('resultType')}: must be matrix, the answer of a range query"
            )
        document = data.get("result")
    if not isinstance(document, list):
        raise InvalidTrace(f"{name}: must have a list of series, as range queries return it")
    return [_json_series(each, f"{name}: series[{index}]") for index, each in enumerate(document)]


def _json_series(found: Any, where: str) -> _Points:
    labels = found.get("metric") if isinstance(found, dict) else None
    values = found.get("values") if isinstance(found, dict) else None
    if not isinstance(labels, dict) or not isinstance(values, list):
        raise InvalidTrace(f"{where}: must have metric and values; histograms and instant queries are no load")
    points: list[tuple[str, object, object]] = []
    for index, point in enumerate(values):
        if not isinstance(point, list) or len(point) != 2:
            raise InvalidTrace(f"{where}.values[{index}]: must be a pair of time and value")
        points.append((f"{where}.values[{index}]", point[0], "nan" if point[1] is None else point[1]))
    return _Points(name=series_name(labels), points=points)


def series_name(labels: Mapping[str, object]) -> str:
    """Return the name of a series of Prometheus, such as `up{job="asr"}`; `{}` without any label."""
    name = str(labels.get("__name__", ""))
    pairs = ", ".join(f'{label}="{value}"' for label, value in sorted(labels.items()) if label != "__name__")
    return f"{name}{{{pairs}}}" if pairs or not name else name


def _promtool(text: str, name: str) -> list[_Points]:
    found: list[_Points] = []
    points: list[tuple[str, object, object]] = []
    for line, written in enumerate(text.splitlines(), start=1):
        if written.rstrip().endswith("=>"):
            points = []
            found.append(_Points(name=written.rstrip().removesuffix("=>").strip(), points=points))
        elif written.strip():
            point = _PROMTOOL_POINT.fullmatch(written.strip())
            if point is None:
                raise InvalidTrace(
                    f"{name}:{line}: {written.strip()[:60]}: must be VALUE @[TIME], as promtool prints it"
                )
            points.append((f"{name}:{line}", point["time"], point["value"]))
    return found
