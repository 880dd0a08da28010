"""Parser of Prometheus' text format 0.0.4, and of OpenMetrics as far as the two agree. Pure.

Only the lines of the requested metrics are parsed, to save time.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache

Sample = tuple[str, Mapping[str, str], float]
"""Metric name, labels, value."""

MOST_SERIES = 10_000
"""Most series of the requested metrics per target."""
MOST_LABELS = 4096
"""Most bytes of the labels of one sample. Text that is not ASCII counts four bytes per character."""

_LABELS = r'\{(?:[^"{}\n]|"(?:[^"\\\n]|\\.)*")*\}'
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")


class InvalidExposition(ValueError):
    """The text is not a valid exposition, or exceeds a limit; the message says why."""


def samples(text: str, names: Collection[str]) -> list[Sample]:
    """Return the samples of the metrics `names` in `text`.

    Samples with a timestamp are left out: it comes from the clock of the target, so their age is not known.

    Raises:
        InvalidExposition: the text is cut off, a line of one of the metrics cannot be parsed or has too many labels,
            or there are too many lines.
    """
    if text and not text.endswith("\n"):
        raise InvalidExposition("the last line is cut off")
    found: list[Sample] = []
    for match in _lines(frozenset(names)).finditer(text):
        name, labels, rest = match.groups()
        if labels is not None and len(labels) * (1 if labels.isascii() else 4) > MOST_LABELS:
            raise InvalidExposition(f"{match.group()[:80]!r}: has more than {MOST_LABELS} bytes of labels")
        try:
            value, *timestamp = rest.split("#", 1)[0].split()  # OpenMetrics: an exemplar follows the hash
            if not timestamp:
                found.append((name, {} if labels is None else dict(_labels(labels)), float(value)))
        except ValueError:
            raise InvalidExposition(f"{match.group()[:80]!r}: cannot be parsed") from None
        if len(found) > MOST_SERIES:
            raise InvalidExposition(f"more than {MOST_SERIES} series of the requested metrics")
    return found


@lru_cache(maxsize=64)
def _lines(names: frozenset[str]) -> re.Pattern[str]:
    alternatives = "|".join(re.escape(name) for name in sorted(names)) or r"(?!)"
    return re.compile(rf"^({alternatives})({_LABELS})?[ \t]+([^\n]+)$", re.MULTILINE)


@lru_cache(maxsize=20_000)
def _labels(text: str) -> tuple[tuple[str, str], ...]:
    """Return the names and values of the labels in `text`, such as `{a="b"}`.

    Raises:
        ValueError: `text` is malformed.
    """
    inside = text[1:-1].strip()
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(inside):
        match = _LABEL.match(inside, at)
        if match is None:
            raise ValueError(text)
        name, value = match.groups()
        if "\\" in value:
            value = _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], value)
        found.append((name, value))
        at = match.end()
    return tuple(found)
