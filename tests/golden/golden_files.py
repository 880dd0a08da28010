"""Golden files: compressed JSON that is the same to the byte when it is written again, and where two answers differ."""

import gzip
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
SHOWN = 5
"""Differences that a failure tells."""

_NOT_THERE = "not there"


def write(name: str, content: Any) -> Path:
    """Write a golden file and return where it is; the time is left out of it."""
    DATA.mkdir(exist_ok=True)
    path = DATA / f"{name}.json.gz"
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    return path


def read(name: str) -> Any:
    """Return the content of a golden file."""
    return json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))


def plain(content: Any) -> Any:
    """Return `content` as it is once it has been written and read."""
    return json.loads(json.dumps(content, allow_nan=False))


def without(content: Any, names: frozenset[str]) -> Any:
    """Return JSON without the fields of these names, at any depth."""
    if isinstance(content, dict):
        return {name: without(item, names) for name, item in content.items() if name not in names}
    return [without(item, names) for item in content] if isinstance(content, list) else content


def parted(content: Any, is_prose: Callable[[str], bool]) -> tuple[Any, dict[str, str]]:
    """Return JSON with null in place of prose, and the prose by its path; `is_prose` tells by the path."""
    prose: dict[str, str] = {}

    def part(value: Any, here: str) -> Any:
        if isinstance(value, dict):
            return {key: part(item, f"{here}.{key}" if here else key) for key, item in value.items()}
        if isinstance(value, list):
            return [part(item, f"{here}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, str) and is_prose(here):
            prose[here] = value
            return None
        return value

    return part(content, ""), prose


def differences(expected: Any, actual: Any, path: str = "") -> Iterator[str]:
    """Yield where two JSON values are not the same to the bit, one `path: expected …, actual …` each."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in dict.fromkeys([*expected, *actual]):
            inside = f"{path}.{name}" if path else name
            yield from differences(expected.get(name, _NOT_THERE), actual.get(name, _NOT_THERE), inside)
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif isinstance(expected, list) and isinstance(actual, list):
        yield f"{path}: expected {len(expected)} items {_short(expected)}, actual {len(actual)} {_short(actual)}"
    elif repr(expected) != repr(actual):  # 1 and 1.0 and True are not the same, nor are 0.0 and -0.0
        yield f"{path or 'all'}: expected {_short(expected)}, actual {_short(actual)}"


def told(what: str, expected: Any, actual: Any) -> str:
    """Return the first few differences of `what`, one a line; empty where there are none."""
    found = list(islice(differences(expected, actual), SHOWN + 1))
    lines = [f"{what}: {line}" for line in found[:SHOWN]]
    return "\n".join([*lines, f"{what}: …"] if len(found) > SHOWN else lines)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
