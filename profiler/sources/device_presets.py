"""The queries of every `DeviceQuantity` for each kind of device, read from `profiler/presets/devices/*.toml`.

They are about exporters of nodes, not about the stage's servers: the series of a device name the pod that uses it.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from importlib import resources
from typing import Any

from profiler.samples import DeviceQuantity
from profiler.sources.presets import Combine, InvalidPreset


class PodsBy(Enum):
    """How the series of an exporter name the pod of a device."""

    LABELS = "labels"
    """By namespace and pod, or by exported_namespace and exported_pod where the scrape job does not honour labels."""
    TAG = "tag"
    """By runtime_tag, as NAMESPACE/POD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFormula:
    """The PromQL of one quantity, with a series per namespace and pod, and how those of a placement are combined.

    `value` has the placeholders `$namespaces`, `$match` and `$window`.
    """

    combine: Combine
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePreset:
    """One exporter, for the `devices` of pools."""

    name: str
    devices: frozenset[str]
    formulas: Mapping[DeviceQuantity, DeviceFormula]


_COMBINED = {Combine.MEAN, Combine.MAX, Combine.SUM}
_OVER_DEVICES = ("avg", "max", "sum")
_FUNCTIONS = ("avg_over_time", "increase", "rate", "changes")
_TAG = "([^/]+)/([^/]+).*"
_EXPORTER = ("exporter", "$1", "pod", "(.+)")
"""Keeps the exporter's own pod before `pod` is replaced. After a restart a window has the series of two
pods, at one address with hostNetwork; Prometheus refuses a result with equal labels."""


@lru_cache(maxsize=1)
def device_presets() -> tuple[DevicePreset, ...]:
    """Return the device presets of the package, by name.

    Raises:
        InvalidPreset: a file is invalid.
    """
    folder = resources.files("profiler").joinpath("presets", "devices")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return tuple(
        parse_device_preset(file.name.removesuffix(".toml"), file.read_text(encoding="utf-8")) for file in files
    )


@lru_cache(maxsize=16)
def formulas_of(device: str) -> Mapping[DeviceQuantity, DeviceFormula]:
    """Return the formulas for the pods of a pool with `device`; quantities that no exporter has are left out."""
    return {
        quantity: formula
        for preset in device_presets()
        if device in preset.devices
        for quantity, formula in preset.formulas.items()
    }


def parse_device_preset(name: str, text: str) -> DevicePreset:
    """Return the device preset `name` that `text` (TOML) describes.

    Raises:
        InvalidPreset: `text` is not TOML, or breaks a rule.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidPreset(f"{name}.toml: {error}") from error
    devices = document.pop("devices", None)
    if not isinstance(devices, list) or not devices:
        raise InvalidPreset(f"{name}.toml: devices: {devices!r}: must be a list of devices")
    pods = document.pop("pods", None)
    if pods not in [each.value for each in PodsBy]:
        raise InvalidPreset(f"{name}.toml: pods: {pods!r}: must be labels or tag")
    known = {quantity.value: quantity for quantity in DeviceQuantity}
    formulas = {}
    for key, table in document.items():
        where = f"{name}.toml: {key}"
        if key not in known or not isinstance(table, dict):
            raise InvalidPreset(f"{where}: must be a table, and its name one of {', '.join(known)}")
        formulas[known[key]] = _formula(where, table, PodsBy(pods))
    return DevicePreset(name=name, devices=frozenset(devices), formulas=formulas)


def _formula(where: str, table: Mapping[str, Any], pods: PodsBy) -> DeviceFormula:
    try:
        combine = Combine(table["combine"])
    except (KeyError, ValueError):
        raise InvalidPreset(f"{where}: combine: must be one of mean, max, sum") from None
    if combine not in _COMBINED:
        raise InvalidPreset(f"{where}: combine: {combine.value!r}: must be one of mean, max, sum")
    if "value" in table:
        value = table["value"]
        if table.keys() != {"combine", "value"} or not isinstance(value, str) or "$namespaces" not in value:
            raise InvalidPreset(f"{where}: value: must be PromQL with $namespaces, and nothing else beside combine")
        return DeviceFormula(combine=combine, value=" ".join(value.split()))
    over, series = table.get("devices"), table.get("series")
    if over not in _OVER_DEVICES:
        raise InvalidPreset(f"{where}: devices: {over!r}: must be one of {', '.join(_OVER_DEVICES)}")
    if not isinstance(series, list) or not series:
        raise InvalidPreset(f"{where}: series: must be a list of metrics")
    if unknown := table.keys() - {"combine", "devices", "series", "first"}:
        raise InvalidPreset(f"{where}: {sorted(unknown)}: unknown")
    found = [_series(f"{where}: series", each, pods) for each in series]
    if table.get("first", False):
        value = " or ".join(f"{over} by (namespace, pod) ({each})" for each in found)
    else:
        value = f"{over} by (namespace, pod) ({_apart(found)})"
    return DeviceFormula(combine=combine, value=value)


def _apart(series: Sequence[str]) -> str:
    """Return the union of `series`. Without a label for each, `or` would drop those of the same device."""
    if len(series) == 1:
        return series[0]
    return " or ".join(f'label_replace({each}, "series", "{number}", "", "")' for number, each in enumerate(series))


def _series(where: str, table: Mapping[str, Any], pods: PodsBy) -> str:
    if unknown := table.keys() - {"metric", "matchers", "function", "factor", "only"}:
        raise InvalidPreset(f"{where}: {sorted(unknown)}: unknown")
    metric, function = table.get("metric"), table.get("function")
    if not isinstance(metric, str):
        raise InvalidPreset(f"{where}: metric: {metric!r}: must be the name of a metric")
    if function is not None and function not in _FUNCTIONS:
        raise InvalidPreset(f"{where}: function: {function!r}: must be one of {', '.join(_FUNCTIONS)}")
    own = f"{table['matchers']}, " if "matchers" in table else ""

    def selected(matchers: str) -> str:
        selector = f"{metric}{{{own}{matchers}$match}}"
        value = selector if function is None else f"{function}({selector}[$window])"
        if only := table.get("only"):
            value = f"({value} and ({' or '.join(f'{selector} == {each}' for each in only)}))"
        return f"{value} * {factor}" if (factor := table.get("factor")) is not None else value

    if pods is PodsBy.TAG:
        found = selected('runtime_tag=~"($namespaces)/.+"')
        return _relabelled(
            found, _EXPORTER, ("namespace", "$1", "runtime_tag", _TAG), ("pod", "$2", "runtime_tag", _TAG)
        )
    honoured = selected('exported_pod="", namespace=~"$namespaces", pod!=""')
    renamed = _relabelled(
        selected('exported_pod!="", exported_namespace=~"$namespaces"'),
        _EXPORTER,
        ("namespace", "$1", "exported_namespace", "(.+)"),
        ("pod", "$1", "exported_pod", "(.+)"),
    )
    return f"({honoured} or {renamed})"


def _relabelled(expression: str, *steps: tuple[str, str, str, str]) -> str:
    for to, replacement, source, pattern in steps:
        expression = f'label_replace({expression}, "{to}", "{replacement}", "{source}", "{pattern}")'
    return expression
