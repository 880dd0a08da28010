"""The values in scenario files: numbers, names of pipelines, and maps of them, each with its rule and its schema."""

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from simulations.scenario.interference import parts

STUCK = 1e6
"""How many times as long a stuck replica takes: longer than any run."""
MOST_SENDS = 10.0
"""How often clients send an item at most, on average: all its copies enter the simulator in one slice of time."""
EVERYTHING = "*"
MAX_NUMBER = 1_000_000
_MAX_DECIBELS = 100
MAX_INSTANCES = 100_000
"""The most instances of a pool, as in a ComputePool."""


def _decimal(value: Any) -> float | None:
    """Return a whole number or a decimal string as a number, None for others; floats are refused, as in resources."""
    try:
        number = Decimal(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
    except InvalidOperation:
        return None
    return float(number) if number is not None and number.is_finite() else None


def _number(value: Any) -> float:
    number = _decimal(value)
    if number is None or number < 0:
        raise ValueError('must be a whole number or a decimal in quotes, such as "1.5", of at least 0')
    if number > MAX_NUMBER:
        raise ValueError(f"must be at most {MAX_NUMBER}")
    return number


def _number_that(holds: Callable[[float], bool], rule: str) -> PlainValidator:
    """Return the validator of numbers as `_number` reads them for which also `holds`."""

    def validated(value: Any) -> float:
        number = _number(value)
        if not holds(number):
            raise ValueError(rule)
        return number

    return PlainValidator(validated)


def _decibels(value: Any) -> float:
    level = _decimal(value)
    if level is None or abs(level) > _MAX_DECIBELS:
        limits = f"from -{_MAX_DECIBELS} to {_MAX_DECIBELS}"
        raise ValueError(f'must be a whole number or a decimal in quotes, such as "8.5", {limits}')
    return level


def _pipeline(value: Any) -> str:
    if not isinstance(value, str) or len([part for part in value.split("/") if part]) != 2 or value.count("/") != 1:
        raise ValueError("must name a pipeline as namespace/name")
    return value


def _pipelines(value: Any) -> str:
    if value == EVERYTHING:
        return EVERYTHING
    try:
        return _pipeline(value)
    except ValueError:
        raise ValueError('must be "*" or name a pipeline as namespace/name') from None


def _patches(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not value:
        raise ValueError("must map KIND/[NAMESPACE/]NAME to a merge patch")
    for name, patch in value.items():
        parts = str(name).split("/")
        if len(parts) not in {2, 3} or not all(parts):
            raise ValueError(f"{name}: must be KIND/NAME or KIND/NAMESPACE/NAME")
        if not isinstance(patch, dict):
            raise ValueError(f"{name}: must be a merge patch, a mapping of fields")  # noqa: TRY004 - pydantic's way
    return value


def _profiles(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or not value:
        raise ValueError('must map stages to factors, such as {decoder: "0.2"}')
    factors = {str(name): _number(factor) for name, factor in value.items()}
    for name, factor in factors.items():
        if factor <= 0:
            raise ValueError(f"{name}: must be above 0")
    return factors


def _interferences(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or not value:
        raise ValueError('must map pairs of stages to factors, such as {"encoder,lm": "2.0"}')
    factors = {str(pair): _number(factor) for pair, factor in value.items()}
    for pair, factor in factors.items():
        if parts(pair) is None:
            raise ValueError(f"{pair}: must name two stages, such as encoder,lm")
        if factor < 1:
            raise ValueError(f"{pair}: must be at least 1")
    return factors


def _first_tokens(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or not value:
        raise ValueError('must map stages to shares of the service time, such as {decoder: "0.2"}')
    shares = {str(name): _number(share) for name, share in value.items()}
    for name, share in shares.items():
        if not 0 < share <= 1:
            raise ValueError(f"{name}: must be above 0 and at most 1")
    return shares


def _models(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not value:
        raise ValueError("must map stages to names of models, such as {encoder: [preprocess]}")
    for name, models in value.items():
        if not isinstance(models, list) or not models or not all(isinstance(one, str) and one for one in models):
            raise ValueError(f"{name}: must be a list of names of models")
        if len(set(models)) < len(models):
            raise ValueError(f"{name}: must name each model once")
    return {str(name): tuple(models) for name, models in value.items()}


def _instances(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or not value:
        raise ValueError("must map ComputePools to numbers of instances, such as {gpu: 8}")
    for name, count in value.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_INSTANCES:
            raise ValueError(f"{name}: must be a whole number from 0 to {MAX_INSTANCES}")
    return {str(name): count for name, count in value.items()}


# What these accept, for the reference of scenario files: a validator of plain Python has no schema of its own.
_PIPELINE_NAME = {"type": "string", "format": "namespace/name of a pipeline"}
_PIPELINE_NAMES = {"type": "string", "format": 'namespace/name of a pipeline, or "*" for all'}
_PATCHES = {
    "type": "object",
    "additionalProperties": {"type": "object"},
    "format": "a map from KIND/[NAMESPACE/]NAME to a merge patch",
}


def _schema(**bounds: object) -> WithJsonSchema:
    return WithJsonSchema({"type": "number", **bounds})


def _map_schema(inside: dict[str, object]) -> WithJsonSchema:
    return WithJsonSchema({"type": "object", "additionalProperties": inside})


Number = Annotated[float, PlainValidator(_number), _schema(minimum=0)]
PositiveNumber = Annotated[
    float, _number_that(lambda number: number > 0, "must be above 0"), _schema(exclusiveMinimum=0)
]
Share = Annotated[float, _number_that(lambda number: number <= 1, "must be at most 1"), _schema(minimum=0, maximum=1)]
PositiveShare = Annotated[
    float,
    _number_that(lambda number: 0 < number <= 1, "must be above 0 and at most 1"),
    _schema(exclusiveMinimum=0, maximum=1),
]
Decibels = Annotated[float, PlainValidator(_decibels), _schema(minimum=-_MAX_DECIBELS, maximum=_MAX_DECIBELS)]
Multiple = Annotated[float, _number_that(lambda number: number >= 1, "must be at least 1"), _schema(minimum=1)]
Sends = Annotated[
    float,
    _number_that(lambda number: 1 <= number <= MOST_SENDS, f"must be from 1 to {MOST_SENDS:g}"),
    _schema(minimum=1, maximum=MOST_SENDS),
]
Profiles = Annotated[
    dict[str, float], PlainValidator(_profiles), _map_schema({"type": "number", "exclusiveMinimum": 0})
]
Interferences = Annotated[
    dict[str, float], PlainValidator(_interferences), _map_schema({"type": "number", "minimum": 1})
]
FirstTokens = Annotated[
    dict[str, float],
    PlainValidator(_first_tokens),
    _map_schema({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
]
Models = Annotated[
    dict[str, tuple[str, ...]],
    PlainValidator(_models),
    _map_schema({"type": "array", "items": {"type": "string"}}),
]
Instances = Annotated[
    dict[str, int],
    PlainValidator(_instances),
    _map_schema({"type": "integer", "minimum": 0, "maximum": MAX_INSTANCES}),
]
PipelineName = Annotated[str, PlainValidator(_pipeline), WithJsonSchema(_PIPELINE_NAME)]
PipelineNames = Annotated[str, PlainValidator(_pipelines), WithJsonSchema(_PIPELINE_NAMES)]
Patches = Annotated[dict[str, dict[str, Any]], PlainValidator(_patches), WithJsonSchema(_PATCHES)]
