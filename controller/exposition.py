"""Writes series in Prometheus' text format.

The library makes several objects for each series in each scrape, and a fleet of 5,000 pipelines has 90,000 series. Here
the lines of a pipeline are written when it is assessed, and a scrape only puts them together. The format is that of
`prometheus_client.generate_latest` (https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from prometheus_client.utils import floatToGoString

Series = Mapping[str, Sequence[tuple[Sequence[str], float]]]
"""The label values and the value of each series, by the name of the metric."""

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def heading(name: str, kind: str, text: str) -> bytes:
    """Return the lines that come before the series of a metric; `text` is its help text."""
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {escaped}\n# TYPE {name} {kind}\n".encode()


def line(name: str, labels: Sequence[str], values: Sequence[str], value: float) -> str:
    """Return the line of a series; `labels` are the names of the labels, in the order of `values`."""
    pairs = ",".join(f'{label}="{values[at].translate(_ESCAPED)}"' for label, at in _sorted(tuple(labels)))
    number: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return f"{name}{{{pairs}}} {number}\n" if pairs else f"{name} {number}\n"


@lru_cache
def _sorted(labels: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Return the labels in the order of their names, each with its position in `labels`."""
    return tuple(sorted((label, at) for at, label in enumerate(labels)))


def lines(series: Series, prefix: str, labels: Mapping[str, Sequence[str]]) -> dict[str, bytes]:
    """Return the lines of `series` by the name of the metric.

    `labels` has the names of the labels of each metric. In the lines, `prefix` stands before the names of all metrics.
    """
    return {
        name: "".join(line(prefix + name, labels[name], values, value) for values, value in found).encode()
        for name, found in series.items()
    }


def joined(parts: Iterable[Mapping[str, bytes]]) -> Mapping[str, bytes | bytearray]:
    """Return the lines of all `parts` by the name of the metric."""
    pages: dict[str, bytearray] = {}
    for part in parts:
        for name, own in part.items():
            pages.setdefault(name, bytearray()).extend(own)
    return pages
