"""Converts values to JSON and back, by their types. Pure: no file is read or written here."""

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache
from types import NoneType, UnionType
from typing import Any, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
T = TypeVar("T")


class InvalidRecord(ValueError):
    """A document does not fit its type, or a value cannot be written as JSON. The message names value and rule."""


def encode(value: object) -> Json:
    """Return `value`, made of dataclasses, enums, mappings, sequences and scalars, as JSON.

    A mapping whose keys are not text becomes a list of pairs.

    Raises:
        InvalidRecord: `value` contains NaN, an infinity, or a value of another kind.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidRecord(f"{value!r}: must be finite")
        return value
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Enum):
        return encode(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        pairs = [(encode(key), encode(item)) for key, item in value.items()]
        if all(isinstance(key, str) for key, _ in pairs):
            return {cast("str", key): item for key, item in pairs}
        return [[key, item] for key, item in pairs]
    if isinstance(value, frozenset):
        return sorted((encode(item) for item in value), key=repr)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    raise InvalidRecord(f"{value!r}: cannot be written")


def decode(kind: type[T], data: Json, where: str = "record") -> T:
    """Return the value of type `kind` that `encode` converted to `data`; `where` names the document in messages.

    A field that has a default may be missing: an earlier version may not have had the field.

    Raises:
        InvalidRecord: `data` does not fit the type.
    """
    return cast("T", _decode(kind, data, where))


def known_parts(kind: Any, data: Json) -> Json:
    """Return `data` without the fields of dataclasses that `kind` does not have: those of a later release."""
    if isinstance(kind, NewType):
        return known_parts(kind.__supertype__, data)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        kinds: list[Any] = [each for each in arguments if is_dataclass(each) and isinstance(data, dict)]
        fitting = [each for each in kinds if _required(each) <= cast("dict[str, Json]", data).keys()]
        return known_parts(fitting[0], data) if fitting else data
    if isinstance(data, list) and origin in {tuple, frozenset}:
        kinds = [arguments[0]] * len(data) if len(arguments) != len(data) or Ellipsis in arguments else list(arguments)
        return [known_parts(each, item) for each, item in zip(kinds, data, strict=True)]
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if isinstance(data, dict):
            return {key: known_parts(arguments[1], item) for key, item in data.items()}
        pairs = data if isinstance(data, list) else []
        return [[p[0], known_parts(arguments[1], p[1])] if isinstance(p, list) and len(p) == 2 else p for p in pairs]
    if is_dataclass(kind) and isinstance(data, dict):
        hints = _hints(cast("Any", kind))
        return {name: known_parts(hints[name], item) for name, item in data.items() if name in hints}
    return data


def _decode(kind: Any, data: Json, where: str) -> object:
    if isinstance(kind, NewType):
        return _decode(kind.__supertype__, data, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return _decode_union(arguments, data, where)
    if origin is tuple:
        items = _list(data, where)
        if arguments[-1] is not Ellipsis and len(items) != len(arguments):
            raise InvalidRecord(f"{where}: {data!r}: must have {len(arguments)} items")
        kinds = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else arguments
        return tuple(
            _decode(each, item, f"{where}[{i}]") for i, (each, item) in enumerate(zip(kinds, items, strict=True))
        )
    if origin is frozenset:
        return frozenset(_decode(arguments[0], item, where) for item in _list(data, where))
    if origin is not None and issubclass(origin, Mapping):
        return {
            _decode(arguments[0], key, where): _decode(arguments[1], item, f"{where}.{key}")
            for key, item in _pairs(data, where)
        }
    if kind is Fraction:
        try:
            return Fraction(cast("str", data))
        except (TypeError, ValueError, ZeroDivisionError):
            raise InvalidRecord(f"{where}: {data!r}: must be a fraction, such as 1/4") from None
    if kind is bytes:
        try:
            return b64decode(cast("str", data), validate=True)
        except (TypeError, ValueError):
            raise InvalidRecord(f"{where}: {str(data)[:20]!r}: must be base64") from None
    if issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            raise InvalidRecord(f"{where}: {data!r}: must be one of {[member.value for member in kind]}") from None
    if is_dataclass(kind):
        return _decode_dataclass(kind, data, where)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise InvalidRecord(f"{where}: {data!r}: must be {kind.__name__}")
    return data


def _decode_union(kinds: tuple[Any, ...], data: Json, where: str) -> object:
    """Return `data` as a value of the first of `kinds` that fits. Dataclasses are distinguished by their fields."""
    if data is None and NoneType in kinds:
        return None
    if isinstance(data, str) and Fraction in kinds:
        return _decode(Fraction, data, where)
    for kind in kinds:
        if is_dataclass(kind):
            if isinstance(data, dict) and _has_fields(cast("Any", kind), set(data)):
                return _decode(kind, data, where)
        elif kind is not NoneType and not isinstance(data, dict):
            return _decode(kind, data, where)
    raise InvalidRecord(f"{where}: {data!r}: must be one of {[getattr(kind, '__name__', kind) for kind in kinds]}")


def _decode_dataclass(kind: Any, data: Json, where: str) -> object:
    hints = _hints(kind)
    if not isinstance(data, dict) or not _has_fields(kind, set(data)):
        raise InvalidRecord(f"{where}: {data!r}: must have exactly the fields {sorted(hints)}")
    try:
        return kind(**{name: _decode(hints[name], item, f"{where}.{name}") for name, item in data.items()})
    except InvalidRecord:
        raise
    except ValueError as error:
        raise InvalidRecord(f"{where}: {error}") from error


def _has_fields(kind: Any, names: set[str]) -> bool:
    return _required(kind) <= names <= _hints(kind).keys()


@cache
def _required(kind: Any) -> frozenset[str]:
    return frozenset(
        field.name
        for field in fields(kind)
        if field.init and field.default is MISSING and field.default_factory is MISSING
    )


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    types = get_type_hints(kind)
    return {field.name: types[field.name] for field in fields(kind) if field.init}


def _list(data: Json, where: str) -> list[Json]:
    if not isinstance(data, list):
        raise InvalidRecord(f"{where}: {data!r}: must be a list")
    return data


def _pairs(data: Json, where: str) -> list[tuple[Json, Json]]:
    if isinstance(data, dict):
        return list(data.items())
    pairs: list[tuple[Json, Json]] = []
    for item in _list(data, where):
        if not isinstance(item, list) or len(item) != 2:
            raise InvalidRecord(f"{where}: {item!r}: must be a pair")
        pairs.append((item[0], item[1]))
    return pairs
