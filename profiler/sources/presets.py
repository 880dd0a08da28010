"""Presets: the queries of every `Quantity` for each kind of server, read from `profiler/presets/*.toml`."""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import TypeVar

from profiler.samples import THROUGHPUT, Answer, Quantity
from profiler.sources.promql_syntax import UnsupportedQuery, metric_names


class Combine(Enum):
    """How the values of the pods are combined into the reading of their placement."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    RATIO = "ratio"
    QUANTILE = "quantile"
    VARIATION = "variation"

    @property
    def of_histogram(self) -> bool:
        """Return whether the values of a pod are the buckets of a histogram."""
        return self in {Combine.QUANTILE, Combine.VARIATION}


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
    series have the preset's model label. With `vanishes` a pod that is scraped, and has no series, counts as 0: its
    server exports none before the first item. The bounds of a histogram are multiplied by `scale`, which makes them
    seconds.
    """

    combine: Combine
    value: str
    over: str | None = None
    quantile: float | None = None
    edge: Edge = Edge.INSIDE
    divide_by: Divisor = Divisor.ONE
    positive: bool = False
    per_model: bool = False
    vanishes: bool = False
    scale: float = 1.0


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


_KEYS = ("combine", "value", "over", "quantile", "edge", "divide_by", "positive", "vanishes", "scale")
_ANSWERS = {"first", "whole"}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_METRIC = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_AGGREGATION = re.compile(r"\b(sum|avg|max|min|count)\b", re.IGNORECASE)
_PER_POD = re.compile(r"\b(sum|avg|max|min|count) by\s*\(")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPresets:
    """Presets by name, and by name the problems of those that cannot be used."""

    usable: Mapping[str, Preset]
    problems: Mapping[str, str] = field(default_factory=dict)

    def problem(self, name: str) -> str:
        """Return why there is no preset `name`: the field, its value and the rule."""
        return f"metrics.preset: {name!r}: {self.rule(name)}"

    def rule(self, name: str) -> str:
        """Return the rule that the name of a preset that is not usable breaks."""
        return self.problems.get(name, f"must be one of {', '.join(sorted(self.usable))}")


class PresetFiles:
    """The presets of the package and the users' own in `directory`, where each file `NAME.toml` is one.

    A file that is changed is read again. An invalid one leaves the others as they are.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._own = load_presets()
        self._texts: dict[str, str] = {}
        self._loaded = LoadedPresets(usable=self._own)

    def load(self) -> LoadedPresets:
        """Return the presets as they are now."""
        if self._directory is None:
            return self._loaded
        texts, problems = _texts(self._directory)
        if texts != self._texts or problems:
            usable = dict(self._own)
            for name, text in texts.items():
                try:
                    usable[name] = self._users_preset(name, text)
                except InvalidPreset as error:
                    problems[name] = str(error)
            self._texts, self._loaded = texts, LoadedPresets(usable=usable, problems=problems)
        return self._loaded

    def _users_preset(self, name: str, text: str) -> Preset:
        if name in self._own:
            raise _invalid(f"{name}.toml", name, "is the name of a preset of Sluice: choose another one")
        if _NAME.fullmatch(name) is None:
            raise _invalid(f"{name}.toml", name, "must be lower-case letters, digits and -, at most 63")
        preset = parse_preset(name, text)
        for quantity in THROUGHPUT:
            if quantity not in preset.formulas:
                raise _invalid(f"{name}.toml: {quantity.value}", None, "is required: without it nothing scales down")
        for quantity, formula in [*preset.formulas.items(), *preset.first.items()]:
            for template in (formula.value, formula.over):
                if template is not None:
                    _require_promql(f"{name}.toml: {quantity.value}", template)
                    _require_a_series_per_pod(f"{name}.toml: {quantity.value}", template, formula, preset.model_label)
        return preset


def _texts(directory: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files of presets in `directory` by the name of the preset, and the problems of those not read."""
    texts: dict[str, str] = {}
    problems: dict[str, str] = {}
    for file in sorted(directory.glob("*.toml")):
        try:
            texts[file.stem] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            problems[file.stem] = f"{file.name}: {reason}"
    return texts, problems


def _require_promql(where: str, template: str) -> None:
    query = template.replace("$pods", 'namespace="any"').replace("$window", "1m")
    try:
        metric_names(query)
    except UnsupportedQuery as error:
        raise _invalid(where, template, f"must be PromQL: {error}") from error


def _require_a_series_per_pod(where: str, template: str, formula: Formula, model_label: str | None) -> None:
    """Require `sum by (namespace, pod) (…)` and the like: of several series of a pod, one would be taken for all."""
    if not 0 < len(_AGGREGATION.findall(template)) == len(_PER_POD.findall(template)):
        raise _invalid(
            where, template, "must aggregate as `sum by (namespace, pod) (…)` does; also max, min, avg, count"
        )
    labels = {"namespace", "pod"}
    labels |= {"le"} if formula.combine.of_histogram else set()
    labels |= {model_label} if formula.per_model and model_label is not None else set()
    for clause in _BY.findall(template):
        if set(filter(None, re.split(r"[,\s]+", clause))) != labels:
            raise _invalid(where, template, f"must be by ({', '.join(sorted(labels))})")


def parse_preset(name: str, text: str) -> Preset:
    """Return the preset `name` that `text` (TOML) describes.

    Raises:
        InvalidPreset: `text` is not TOML, or breaks a rule.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidPreset(f"{name}.toml: {error}") from error
    freshness = document.pop("freshness", None)
    if not isinstance(freshness, str) or not _METRIC.fullmatch(freshness):
        raise _invalid(f"{name}.toml: freshness", freshness, "must be the name of a metric")
    port = document.pop("port", None)
    if port is not None and not (type(port) is int and 0 < port <= 65_535):
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
    unknown = sorted(table.keys() - set(_KEYS))
    if unknown:
        rule = f"knows only {', '.join(_KEYS[:-1])} and {_KEYS[-1]}"
        raise _invalid(where, unknown, rule)
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
    vanishes = table.get("vanishes", False)
    if not isinstance(vanishes, bool) or (vanishes and combine is not Combine.SUM):
        raise _invalid(f"{where}.vanishes", vanishes, "must be true or false, and belongs to combine = sum")
    scale = table.get("scale", 1.0)
    if not isinstance(scale, float) or not 0 < scale < math.inf or (scale != 1 and not combine.of_histogram):
        raise _invalid(f"{where}.scale", scale, "must be a number above 0, and belongs to histograms")
    value = _promql(f"{where}.value", table.get("value"))
    over = _promql(f"{where}.over", table["over"]) if "over" in table else None
    if over == value:
        raise _invalid(f"{where}.over", over, "must not be the same as value")
    return Formula(
        combine=combine,
        value=value,
        over=over,
        quantile=quantile,
        edge=edge,
        divide_by=divide_by,
        positive=positive,
        vanishes=vanishes,
        scale=scale,
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
    if not isinstance(value, str) or value not in known:
        raise _invalid(where, value, f"must be one of {', '.join(known)}")
    return known[value]


def _invalid(where: str, value: object, rule: str) -> InvalidPreset:
    return InvalidPreset(f"{where}: {value!r}: {rule}")
