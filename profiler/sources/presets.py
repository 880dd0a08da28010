"""Presets: the queries of every `Quantity` for each kind of server, read from `profiler/presets/*.toml`."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import resources
from typing import TypeVar

from profiler.samples import Answer, Quantity


class Combine(Enum):
    """How the values of the pods are combined into the reading of their placement."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    RATIO = "ratio"
    QUANTILE = "quantile"


class Edge(Enum):
    """Which point of the bucket that holds a quantile is reported."""

    INSIDE = "inside"
    """Interpolated between the bounds of the bucket, as PromQL's histogram_quantile does."""
    FLOOR = "floor"
    CEILING = "ceiling"


class Divisor(Enum):
    """What the value is divided by: a property of the placement that the server does not export."""

    ONE = "one"
    CONCURRENCY = "concurrency"
    BATCH_SLOTS = "batchSlots"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """The queries for one quantity of one kind of server, and how their series are combined.

    `value` is PromQL that returns a series per pod; `combine` says how the series of a placement become one number.
    `over` is PromQL for the denominator, set for ratios only. `quantile`, between 0 and 1, is set for quantiles only,
    and `edge` chooses the value inside a histogram bucket or one of its bounds. The combined value is divided by
    `divide_by`, such as the placement's concurrency. A `positive` ratio is absent where it is 0. With `per_model` the
    series have the preset's model label.
    """

    combine: Combine
    value: str
    over: str | None = None
    quantile: float | None = None
    edge: Edge = Edge.INSIDE
    divide_by: Divisor = Divisor.ONE
    positive: bool = False
    per_model: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One kind of server. `freshness` names a metric that every pod exports from its start.

    `formulas` are those of the whole answer. `first` has the formulas that differ for the first token, empty for
    servers that do not measure it. `model_label` is the label that names the model, None for servers without models.
    `port` is the server's default port for metrics, None where there is no default.
    """

    name: str
    freshness: str
    formulas: Mapping[Quantity, Formula]
    first: Mapping[Quantity, Formula] = field(default_factory=dict)
    model_label: str | None = None
    port: int | None = None

    def formula(self, quantity: Quantity, answer: Answer) -> Formula | None:
        """Return the formula of `quantity`, None if the server does not export it."""
        whole = self.formulas.get(quantity)
        return self.first.get(quantity, whole) if answer is Answer.FIRST else whole


_ANSWERS = {"first", "whole"}
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BY = re.compile(r"\bby\s*\(([^)]*)\)")


class InvalidPreset(ValueError):
    """A preset file is invalid; the message names the file, field, value and rule."""


def load_presets() -> dict[str, Preset]:
    """Return the presets of the package by name.

    Raises:
        InvalidPreset: a file is invalid.
    """
    files = (file for file in resources.files("profiler").joinpath("presets").iterdir() if file.name.endswith(".toml"))
    presets = (parse_preset(file.name.removesuffix(".toml"), file.read_text(encoding="utf-8")) for file in files)
    return {preset.name: preset for preset in presets}


def parse_preset(name: str, text: str) -> Preset:
    """Return the preset `name` that `text` (TOML) describes.

    Raises:
        InvalidPreset: `text` is not TOML, or breaks a rule.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidPreset(f"{name}.toml: {error}") from error
    freshness = document.pop("freshness", None)
    if not isinstance(freshness, str):
        raise _invalid(f"{name}.toml: freshness", freshness, "must be the name of a metric")
    port = document.pop("port", None)
    if port is not None and not (isinstance(port, int) and 0 < port <= 65_535):
        raise _invalid(f"{name}.toml: port", port, "must be from 1 to 65535")
    label = document.pop("model_label", None)
    if label is not None and not (isinstance(label, str) and _LABEL.fullmatch(label)):
        raise _invalid(f"{name}.toml: model_label", label, "must be the name of a label")
    formulas: dict[Quantity, Formula] = {}
    first: dict[Quantity, Formula] = {}
    for key, table in document.items():
        where = f"{name}.toml: {key}"
        quantity = _one_of(Quantity, f"{name}.toml: [{key}]", key)
        if not isinstance(table, dict):
            raise _invalid(where, table, "must be a table")
        if table.keys() & _ANSWERS:
            if table.keys() != _ANSWERS or not all(isinstance(each, dict) for each in table.values()):
                raise _invalid(where, sorted(table), "must have exactly the tables first and whole, or neither")
            formulas[quantity] = _formula(f"{where}.whole", table["whole"], label)
            first[quantity] = _formula(f"{where}.first", table["first"], label)
        else:
            formulas[quantity] = _formula(where, table, label)
    if first and Quantity.LATENCY_MEAN not in first:
        raise _invalid(
            f"{name}.toml: latencyMean", None, "needs the tables first and whole, if another quantity has them"
        )
    return Preset(name=name, freshness=freshness, formulas=formulas, first=first, model_label=label, port=port)


def _formula(where: str, table: Mapping[str, object], model_label: str | None) -> Formula:
    unknown = sorted(table.keys() - {"combine", "value", "over", "quantile", "edge", "divide_by", "positive"})
    if unknown:
        raise _invalid(where, unknown, "knows only combine, value, over, quantile, edge, divide_by and positive")
    combine = _one_of(Combine, f"{where}.combine", table.get("combine"))
    divide_by = _one_of(Divisor, f"{where}.divide_by", table.get("divide_by", Divisor.ONE.value))
    if divide_by is not Divisor.ONE and combine is not Combine.MEAN:
        raise _invalid(f"{where}.divide_by", divide_by.value, "belongs to combine = mean")
    edge = _one_of(Edge, f"{where}.edge", table.get("edge", Edge.INSIDE.value))
    if edge is not Edge.INSIDE and combine is not Combine.QUANTILE:
        raise _invalid(f"{where}.edge", edge.value, "belongs to combine = quantile")
    for key, belongs_to in (("over", Combine.RATIO), ("quantile", Combine.QUANTILE)):
        if (key in table) is not (combine is belongs_to):
            raise _invalid(f"{where}.{key}", table.get(key), f"belongs to combine = {belongs_to.value}, always")
    quantile = table.get("quantile")
    if quantile is not None and not (isinstance(quantile, float) and 0 < quantile < 1):
        raise _invalid(f"{where}.quantile", quantile, "must be in (0, 1)")
    positive = table.get("positive", False)
    if not isinstance(positive, bool) or (positive and combine is not Combine.RATIO):
        raise _invalid(f"{where}.positive", positive, "must be true or false, and belongs to combine = ratio")
    value = _promql(f"{where}.value", table.get("value"))
    over = _promql(f"{where}.over", table["over"]) if "over" in table else None
    return Formula(
        combine=combine,
        value=value,
        over=over,
        quantile=quantile,
        edge=edge,
        divide_by=divide_by,
        positive=positive,
        per_model=_per_model(where, model_label, [value] if over is None else [value, over]),
    )


def _per_model(where: str, model_label: str | None, expressions: Iterable[str]) -> bool:
    """Return whether the `by` clauses of the expressions have the model label; all of them must agree."""
    clauses = [clause for expression in expressions for clause in _BY.findall(expression)]
    with_label = [clause for clause in clauses if model_label in re.split(r"[,\s]+", clause)]
    if with_label and with_label != clauses:
        raise _invalid(where, model_label, "must be in all `by` clauses, or in none")
    return bool(with_label)


def _promql(where: str, value: object) -> str:
    if not isinstance(value, str) or "$pods" not in value:
        raise _invalid(where, value, "must be PromQL that contains $pods")
    return " ".join(value.split())


_AnyEnum = TypeVar("_AnyEnum", bound=Enum)


def _one_of(choices: type[_AnyEnum], where: str, value: object) -> _AnyEnum:
    known = {choice.value: choice for choice in choices}
    if value not in known:
        raise _invalid(where, value, f"must be one of {', '.join(known)}")
    return known[value]


def _invalid(where: str, value: object, rule: str) -> InvalidPreset:
    return InvalidPreset(f"{where}: {value!r}: {rule}")
