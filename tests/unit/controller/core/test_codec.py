"""Values survive JSON, and what is no such value is refused with its place."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import NewType

import pytest

from controller.core.codec import InvalidRecord, Json, decode, encode

Name = NewType("Name", str)


class Colour(Enum):
    RED = "Red"


@dataclass(frozen=True, kw_only=True)
class Gone:
    why: str


@dataclass(frozen=True, kw_only=True)
class Whole:
    name: Name
    share: float
    flag: bool
    colour: Colour | None
    reading: float | Gone
    pairs: Mapping[tuple[Name, Name], int]
    named: Mapping[Colour, float]
    parts: tuple[int, ...]
    point: tuple[float, str]
    tags: frozenset[str]
    packed: bytes
    derived: int = field(init=False, default=3)


WHOLE = Whole(
    name=Name("n"),
    share=1.0,
    flag=True,
    colour=Colour.RED,
    reading=Gone(why="lost"),
    pairs={(Name("a"), Name("b")): 2},
    named={Colour.RED: 0.5},
    parts=(1, 2),
    point=(0.5, "x"),
    tags=frozenset({"b", "a"}),
    packed=b"\x00\xff\x80",
)


def test_a_value_survives() -> None:
    assert decode(Whole, encode(WHOLE)) == WHOLE


def document(**changes: Json) -> Json:
    encoded = encode(WHOLE)
    assert isinstance(encoded, dict)
    return {**encoded, **changes}


def test_a_whole_number_is_a_float_where_one_is_asked_for() -> None:
    share = decode(Whole, document(share=2)).share
    assert isinstance(share, float)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": "1"}, "record.share: '1': must be float"),
        ({"share": True}, "record.share: True: must be float"),
        ({"colour": "Blue"}, "record.colour: 'Blue': must be one of ['Red']"),
        ({"reading": {"what": 1}}, "record.reading: {'what': 1}: must be one of ['float', 'Gone']"),
        ({"pairs": [[["a", "b"]]]}, "record.pairs: [['a', 'b']]: must be a pair"),
        ({"parts": 1}, "record.parts: 1: must be a list"),
        ({"parts": [1, "2"]}, "record.parts[1]: '2': must be int"),
        ({"point": [1.0]}, "record.point: [1.0]: must have 2 items"),
        ({"derived": 4}, "must have exactly the fields"),
    ],
)
def test_what_is_no_such_value_is_refused_with_its_place(changes: dict[str, Json], message: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        decode(Whole, document(**changes))
    assert message in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Older:
    name: str
    added: int = 0
    also: tuple[int, ...] = ()


def test_what_an_earlier_version_did_not_have_is_as_by_default_and_what_it_had_is_needed() -> None:
    assert decode(Older, {"name": "n"}) == Older(name="n")
    assert decode(Older | int, {"name": "n", "added": 2}) == Older(name="n", added=2)  # type: ignore[arg-type]
    with pytest.raises(InvalidRecord, match="must have exactly the fields"):
        decode(Older, {"added": 1})
    with pytest.raises(InvalidRecord, match="must have exactly the fields"):
        decode(Older, {"name": "n", "other": 1})


@dataclass(frozen=True, kw_only=True)
class Sized:
    size: int | Fraction
    counts: Mapping[int | Fraction, int]


@pytest.mark.parametrize("counts", [{Fraction(1, 3): 2}, {Fraction(1, 4): 1, 2: 3}])
def test_a_fraction_survives_also_as_a_key(counts: Mapping[int | Fraction, int]) -> None:
    value = Sized(size=Fraction(1, 4), counts=counts)
    assert decode(Sized, json.loads(json.dumps(encode(value)))) == value
    with pytest.raises(InvalidRecord, match="must be a fraction, such as 1/4"):
        decode(Sized, {"size": "four", "counts": {}})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(InvalidRecord):
        encode(value)


def test_the_order_of_a_union_counts_although_unions_of_another_order_are_equal() -> None:
    assert decode(tuple[int | str, ...], [5]) == (5,)
    with pytest.raises(InvalidRecord, match="must be str"):
        decode(tuple[str | int, ...], [5])
