"""Writes YAML in which every field can have comments above it, at most 80 columns wide where words allow. Pure."""

import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_WIDTH = 80
_PLAIN = re.compile(r"[A-Za-z][-A-Za-z0-9_./]*|[0-9]+(ms|s|m|h)|[a-z0-9]*[a-z][-a-z0-9]*")
_WORDS = {"y", "n", "yes", "no", "true", "false", "on", "off", "null"}

Scalar = str | int
Inline = dict[str, Scalar]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a mapping; `notes` are comments, one sentence or more each.

    `value` is a scalar, a mapping that is written on one line, the fields of a mapping, or the items of a list, each
    with its fields.
    """

    key: str
    value: "Scalar | Inline | list[Scalar] | tuple[Field, ...] | Items"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list of mappings."""

    items: tuple[tuple[Field, ...], ...]


def render(documents: Iterable[tuple[Field, ...]], *, head: Iterable[str] = ()) -> str:
    """Return the YAML of `documents`, after the comments `head`."""
    lines = [line for note in head for line in _comment(note, 0)]
    for document in documents:
        lines += ["---", *_fields(document, 0)]
    return "\n".join(lines) + "\n"


def _fields(fields: Iterable[Field], indent: int) -> Iterator[str]:
    before = " " * indent
    for field in fields:
        for note in field.notes:
            yield from _comment(note, indent)
        match field.value:
            case Items():
                yield f"{before}{field.key}:"
                for item in field.value.items:
                    yield from _item(item, indent + 2)
            case tuple():
                yield f"{before}{field.key}:"
                yield from _fields(field.value, indent + 2)
            case _:
                yield f"{before}{field.key}: {_value(field.value)}"


def _item(item: tuple[Field, ...], indent: int) -> Iterator[str]:
    """Yield the lines of a list item, with the `-` at its first field; comments of the first field come before it."""
    first, *others = item
    for note in first.notes:
        yield from _comment(note, indent)
    lines = list(_fields((Field(key=first.key, value=first.value), *others), indent + 2))
    yield f"{' ' * indent}- {lines[0].lstrip()}"
    yield from lines[1:]


def _value(value: Scalar | Inline | list[Scalar]) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{_scalar(key)}: {_scalar(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_scalar, value)) + "]"
    return _scalar(value)


def _scalar(value: Scalar) -> str:
    if isinstance(value, int):
        return str(value).lower()  # a truth value is an integer too
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if '"' in value and not re.search(r"['\n\\]", value):  # PromQL
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)


def _comment(note: str, indent: int) -> list[str]:
    before = " " * indent
    return textwrap.wrap(
        " ".join(note.split()) if note.strip() else "",
        _WIDTH,
        initial_indent=f"{before}# ",
        subsequent_indent=f"{before}#   ",
        break_long_words=False,
        break_on_hyphens=False,
    ) or [f"{before}#"]
