"""Converts values to JSON and back, by their types. Pure: no file is read or written here."""

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Hashable, Mapping
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
    try:
        return cast("T", _decoder(kind)(data))
    except _Misfit as error:
        raise InvalidRecord(f"{where}{''.join(reversed(error.path))}: {error}") from error.__cause__


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


class _Misfit(Exception):
    """A part of a document does not fit its type; `path` has the steps to it, the last one first."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path: list[str] = []


_Decoder = Callable[[Json], object]


def _decoder(kind: Any) -> _Decoder:
    """Return the function that decodes values of `kind`."""
    if isinstance(kind, NewType):
        return _decoder(kind.__supertype__)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return _union(arguments)
    if origin is tuple:
        return _sequence(_decoder(arguments[0])) if arguments[-1] is Ellipsis else _items(arguments)
    if origin is frozenset:
        items = _sequence(_decoder(arguments[0]), steps=False)
        return lambda data: frozenset(cast("tuple[object, ...]", items(data)))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_decoder(arguments[0]), _decoder(arguments[1]))
    if kind is Fraction:
        return _fraction
    if kind is bytes:
        return _bytes
    if issubclass(kind, Enum):
        return _enum(kind)
    if is_dataclass(kind):
        return _dataclass(cast("Hashable", kind))
    return _scalar(kind)


def _scalar(kind: type) -> _Decoder:
    def decoded(data: Json) -> object:
        if type(data) is kind:
            return data
        if kind is float and isinstance(data, int) and not isinstance(data, bool):
            return float(data)
        if not isinstance(data, kind) or isinstance(data, bool):
            raise _Misfit(f"{data!r}: must be {kind.__name__}")
        return data

    return decoded


def _enum(kind: type[Enum]) -> _Decoder:
    def decoded(data: Json) -> object:
        try:
            return kind(data)
        except ValueError:
            raise _Misfit(f"{data!r}: must be one of {[member.value for member in kind]}") from None

    return decoded


def _fraction(data: Json) -> object:
    try:
        return Fraction(cast("str", data))
    except (TypeError, ValueError, ZeroDivisionError):
        raise _Misfit(f"{data!r}: must be a fraction, such as 1/4") from None


def _bytes(data: Json) -> object:
    try:
        return b64decode(cast("str", data), validate=True)
    except (TypeError, ValueError):
        raise _Misfit(f"{str(data)[:20]!r}: must be base64") from None


def _sequence(item: _Decoder, *, steps: bool = True) -> _Decoder:
    """Return the decoder of a list of any length; `steps`: the place in the list belongs to the path."""

    def decoded(data: Json) -> object:
        found: list[object] = []
        try:
            found.extend(map(item, _list(data)))
        except _Misfit as error:
            if steps and isinstance(data, list):
                error.path.append(f"[{len(found)}]")
            raise
        return tuple(found)

    return decoded


def _items(kinds: tuple[Any, ...]) -> _Decoder:
    """Return the decoder of a list with one item of each of `kinds`."""
    decoders = tuple(map(_decoder, kinds))

    def decoded(data: Json) -> object:
        if len(_list(data)) != len(decoders):
            raise _Misfit(f"{data!r}: must have {len(decoders)} items")
        found: list[object] = []
        try:
            for decoder, item in zip(decoders, _list(data), strict=True):
                found.append(decoder(item))
        except _Misfit as error:
            error.path.append(f"[{len(found)}]")
            raise
        return tuple(found)

    return decoded


def _mapping(of_key: _Decoder, of_item: _Decoder) -> _Decoder:
    def decoded(data: Json) -> object:
        found: dict[object, object] = {}
        for key, item in _pairs(data):
            own = of_key(key)
            try:
                found[own] = of_item(item)
            except _Misfit as error:
                error.path.append(f".{key}")
                raise
        return found

    return decoded


def _union(kinds: tuple[Any, ...]) -> _Decoder:
    """Return the decoder of the first of `kinds` that fits. Dataclasses are distinguished by their fields."""
    structures = tuple((kind, _dataclass(cast("Hashable", kind))) for kind in kinds if is_dataclass(kind))
    others = [_decoder(kind) for kind in kinds if kind is not NoneType and not is_dataclass(kind)]
    names = [getattr(kind, "__name__", kind) for kind in kinds]

    def decoded(data: Json) -> object:
        if data is None and NoneType in kinds:
            return None
        if isinstance(data, str) and Fraction in kinds:
            return _fraction(data)
        if isinstance(data, dict):
            for kind, decoder in structures:
                if _has_fields(cast("Any", kind), set(data)):
                    return decoder(data)
        elif others:
            return others[0](data)
        raise _Misfit(f"{data!r}: must be one of {names}")

    return decoded


@cache
def _dataclass(kind: Any) -> _Decoder:
    """Return the decoder of a dataclass, made once: a new leader reads thousands of memories.

    Those of other kinds are not kept by their kind: two unions in another order are equal, and decode differently.
    """
    decoders: dict[str, _Decoder] = {}

    def decoded(data: Json) -> object:
        if not decoders:  # not before: a dataclass may contain itself
            decoders.update({name: _decoder(hint) for name, hint in _hints(kind).items()})
        if not isinstance(data, dict) or not _has_fields(kind, set(data)):
            raise _Misfit(f"{data!r}: must have exactly the fields {sorted(_hints(kind))}")
        values: dict[str, object] = {}
        for name, item in data.items():
            try:
                values[name] = decoders[name](item)
            except _Misfit as error:
                error.path.append(f".{name}")
                raise
        try:
            return kind(**values)
        except ValueError as error:
            raise _Misfit(str(error)) from error

    return decoded


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


def _list(data: Json) -> list[Json]:
    if not isinstance(data, list):
        raise _Misfit(f"{data!r}: must be a list")
    return data


def _pairs(data: Json) -> list[tuple[Json, Json]]:
    if isinstance(data, dict):
        return list(data.items())
    pairs: list[tuple[Json, Json]] = []
    for item in _list(data):
        if not isinstance(item, list) or len(item) != 2:
            raise _Misfit(f"{item!r}: must be a pair")
        pairs.append((item[0], item[1]))
    return pairs
