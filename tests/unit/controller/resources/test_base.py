"""What every resource model inherits: constraints, unique items, and validation that goes on after a mistake."""

from typing import Annotated, ClassVar

import pytest
from pydantic import Field, ValidationError

from controller.resources.base import (
    LENIENT,
    Breach,
    Check,
    Constraint,
    ListMap,
    ListSet,
    Part,
    Unusable,
    breaches,
    constraint,
)


class Range(Part):
    constraints: ClassVar[tuple[Constraint, ...]] = (
        constraint(
            holds=lambda each: each.low <= each.high,
            cel="self.low <= self.highEnd",
            rule="must be at least low ({low})",
            field="highEnd",
        ),
    )

    name: str = "a"
    low: int = 0
    high: Annotated[int, Field(alias="highEnd")] = 0


class Holder(Part):
    ranges: Annotated[list[Range], ListMap(key="name")] = Field(default_factory=list)
    tags: Annotated[list[str], ListSet()] = Field(default_factory=list)


def found(data: dict[str, object]) -> list[Breach]:
    return list(breaches(Holder.model_validate(data)))


def test_a_broken_constraint_names_the_field_with_its_path_and_the_other_value() -> None:
    assert found({"ranges": [{"low": 3, "highEnd": 2}]}) == [
        Breach(path=("ranges", 0, "highEnd"), rule="must be at least low (3)")
    ]
    assert found({"ranges": [{"low": 2, "highEnd": 2}]}) == []


def test_the_crd_states_the_same_constraint_with_the_value_in_its_message() -> None:
    (rule,) = Holder.model_json_schema()["$defs"]["Range"]["x-kubernetes-validations"]
    assert rule == {
        "rule": "self.low <= self.highEnd",
        "message": "must be at least low",
        "messageExpression": "'must be at least low (%s)'.format([self.low])",
        "fieldPath": ".highEnd",
    }


def test_repeated_items_are_reported_at_the_later_one() -> None:
    data = {"ranges": [{"name": "a"}, {"name": "b"}, {"name": "a"}], "tags": ["x", "x"]}
    assert found(data) == [
        Breach(path=("ranges", 2, "name"), rule="must be unique; ranges[0] has the same value"),
        Breach(path=("tags", 1), rule="must be unique; tags[0] has the same value"),
    ]


def test_a_null_means_the_default_as_on_the_api_server() -> None:
    assert Range.model_validate({"low": None}).low == 0


def test_an_invalid_value_does_not_hide_other_mistakes_and_causes_no_further_ones() -> None:
    data = {"ranges": [{"low": "x", "highEnd": 2}, {"name": "b", "low": 3, "highEnd": 2}, 5]}
    with pytest.raises(ValidationError):
        Holder.model_validate(data)
    holder = Holder.model_validate(data, context=LENIENT)
    assert list(breaches(holder)) == [Breach(path=("ranges", 1, "highEnd"), rule="must be at least low (3)")]
    assert isinstance(holder.ranges[2], Unusable)


def test_a_check_of_a_scalar_is_in_python_and_in_the_schema() -> None:
    class Even(Part):
        value: Annotated[int, Check(holds=lambda each: each % 2 == 0, cel="self % 2 == 0", rule="must be even")]

    assert Even.model_validate({"value": 2}).value == 2
    with pytest.raises(ValidationError, match="must be even"):
        Even.model_validate({"value": 3})
    rules = Even.model_json_schema()["properties"]["value"]["x-kubernetes-validations"]
    assert rules == [{"rule": "self % 2 == 0", "message": "must be even"}]
