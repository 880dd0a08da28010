"""Reads manifest files into plain data, with the line of each field.

Reads JSON, and YAML as kubectl does (sigs.k8s.io/yaml: YAML 1.1 booleans, no timestamps, duplicate keys refused). Of
the resource kinds, only `List` matters here: it is replaced by its items.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FieldPath = tuple[str | int, ...]
"""The path of a field: keys and list indexes from the root of its document."""

STANDARD_INPUT = Path("-")
"""The path that stands for standard input."""
MAX_BYTES = 16 * 2**20
MAX_VALUES = 1_000_000
MAX_DEPTH = 64

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STANDARD_TAG = "tag:yaml.org,2002:"
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(["", "~", "null", "Null", "NULL"]),
    **dict.fromkeys(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], True),
    **dict.fromkeys(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], False),
}
_TEMPLATE = re.compile(r"\{\{-?\s*[^\s{}]")
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class ManifestError(ValueError):
    """A file cannot be read as manifests. The message has the path, the line (from 1) and the broken rule."""

    def __init__(self, path: Path, line: int, rule: str) -> None:
        super().__init__(f"{path}:{line}: {rule}")
        self.path = path
        self.line = line
        self.rule = rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document of a file: its fields as plain data, and the line (from 1) of each field."""

    path: Path
    data: dict[str, Any]
    lines: Mapping[FieldPath, int]
    root: FieldPath = ()
    """The path of `data` in the file's document; not empty for an item of a List."""

    def line_of(self, field_path: FieldPath) -> int:
        """Return the line (from 1) of the field at `field_path` in `data`; if it is absent, of the field around it."""
        path = (*self.root, *field_path)
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]


def load_documents(path: Path) -> list[Document]:
    """Return the non-empty documents of the YAML or JSON file at `path`, items of a List as documents of their own.

    The path `STANDARD_INPUT` reads standard input.

    Raises:
        ManifestError: the file cannot be read, is too large, or is not valid.
    """
    try:
        if path == STANDARD_INPUT:
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(path, 1, f"cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise ManifestError(path, 1, f"must be at most {MAX_BYTES // 2**20} MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ManifestError(path, line, f"must be UTF-8: {error.reason}") from error
    return parse_documents(text, path)


def parse_documents(text: str, path: Path) -> list[Document]:
    """Return the non-empty documents of `text`, the content of the file `path`, as `load_documents` does.

    Raises:
        ManifestError: `text` is not valid.
    """
    if path.suffix == ".json":
        # JSON allows tabs between tokens, but YAML does not. JSON strings cannot contain tabs.
        text = text.replace("\t", " ")
    try:
        return _parsed(text, path)
    except ManifestError as error:
        template = _TEMPLATE.search(text)
        if template is None:
            raise
        rule = "is a template of Helm, not a manifest; render it first: helm template CHART | sluice validate -"
        raise ManifestError(path, text.count("\n", 0, template.start()) + 1, rule) from error


def _parsed(text: str, path: Path) -> list[Document]:
    try:
        return [document for parsed in _Reader(text, path).documents() for document in _items(parsed)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(filter(None, [error.context, error.problem]))
        raise ManifestError(path, mark.line + 1 if mark else 1, f"not valid YAML: {reason}") from error
    except yaml.YAMLError as error:
        raise ManifestError(path, 1, f"not valid YAML: {' '.join(str(error).split())}") from error


def _items(document: Document) -> Iterator[Document]:
    items = document.data.get("items")
    if document.data.get("kind") != "List" or not isinstance(items, list):
        yield document
        return
    for index, item in enumerate(items):
        root = (*document.root, "items", index)
        if not isinstance(item, dict):
            raise ManifestError(document.path, document.line_of(root), "an item of a List must be a mapping")
        yield Document(path=document.path, data=item, lines=document.lines, root=root)


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1


class _Reader:
    """Turns the events of the YAML parser into data. Nesting deeper than MAX_DEPTH is refused, to protect the stack."""

    def __init__(self, text: str, path: Path) -> None:
        self._events = yaml.parse(text, Loader=_Loader)
        self._path = path
        self._lines: dict[FieldPath, int] = {}
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0

    def documents(self) -> Iterator[Document]:
        for event in self._events:
            if not isinstance(event, yaml.DocumentStartEvent):
                continue
            self._lines, self._anchors, self._values = {}, {}, 0
            data = self._value(next(self._events), ())
            if data is None:
                continue
            if not isinstance(data, dict):
                raise ManifestError(self._path, self._lines[()], "a document must be a mapping of fields")
            yield Document(path=self._path, data=data, lines=self._lines)

    def _error(self, event: yaml.Event, rule: str) -> ManifestError:
        return ManifestError(self._path, _line(event), rule)

    def _count(self, event: yaml.Event, values: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise self._error(event, f"a document must have at most {MAX_VALUES} values after expanding aliases")

    def _value(self, event: yaml.Event, path: FieldPath) -> Any:
        self._lines.setdefault(path, _line(event))
        if isinstance(event, yaml.AliasEvent):
            value, size = self._anchored(event)
            self._count(event, size)
            return value
        if len(path) > MAX_DEPTH:
            raise self._error(event, f"must be nested at most {MAX_DEPTH} levels deep")
        before = self._values
        self._count(event, 1)
        value = self._content(event, path)
        anchor = getattr(event, "anchor", None)
        if anchor:
            self._anchors[anchor] = (value, self._values - before)
        return value

    def _anchored(self, event: yaml.AliasEvent) -> tuple[Any, int]:
        if event.anchor not in self._anchors:
            raise self._error(event, f"*{event.anchor}: no anchor of this name before it")
        return self._anchors[event.anchor]

    def _content(self, event: yaml.Event, path: FieldPath) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
                items.append(self._value(item, (*path, len(items))))
            return items
        assert isinstance(event, yaml.MappingStartEvent)
        return self._mapping(path)

    def _mapping(self, path: FieldPath) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        merged: list[Any] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]:
                value = self._value(next(self._events), (*path, "<<"))
                merged += value if isinstance(value, list) else [value]
                if not all(isinstance(mapping, dict) for mapping in merged):
                    raise self._error(event, "<<: must be a mapping or a list of mappings")
                continue
            key = self._key(event)
            if key in fields:
                raise self._error(event, f"{format_path((*path, key))}: duplicate key")
            self._lines[*path, key] = _line(event)
            fields[key] = self._value(next(self._events), (*path, key))
        for mapping in merged:
            fields = {**mapping, **fields}
        return fields

    def _key(self, event: yaml.Event) -> str:
        if isinstance(event, yaml.AliasEvent):
            key, _ = self._anchored(event)
        elif isinstance(event, yaml.ScalarEvent):
            self._count(event, 1)
            key = self._scalar(event)
            if event.anchor:
                self._anchors[event.anchor] = (key, 1)
        else:
            key = None
        if isinstance(key, bool):
            return str(key).lower()
        if not isinstance(key, str | int):
            raise self._error(event, "a key must be a string")
        return str(key)

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        text: str = event.value
        if event.tag not in {None, "!"} and event.tag != f"{_STANDARD_TAG}str":
            raise self._error(event, f"{event.tag}: tags are not supported")
        if not event.implicit[0]:
            return text
        if text in _WORDS:
            return _WORDS[text]
        number = text.replace("_", "")
        if len(number) <= 64 and _INTEGER.fullmatch(number):
            legacy_octal = re.fullmatch(r"([-+]?)0([0-7]+)", number)
            return int(f"{legacy_octal[1]}0o{legacy_octal[2]}" if legacy_octal else number, 0)
        if _FLOAT.fullmatch(number):
            value = float(number.lower().replace(".inf", "inf").replace(".nan", "nan"))
            # kubectl converts YAML to JSON, where 3.0 becomes the integer 3.
            return int(value) if value.is_integer() else value
        return text


def format_path(path: FieldPath) -> str:
    """Return `path` as text in Kubernetes' notation, such as `spec.stages[2].placements[0].replicas.max`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part) or not text:
            text += f".{part}" if text else part
        else:
            text += f"[{part}]"
    return text
