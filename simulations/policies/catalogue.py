"""Every policy by its name in scenario files, with its documented and its trained settings."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from simulations.policies.autoscaler import Autoscaler, Briefing
from simulations.policies.dynamo import Dynamo, DynamoSettings
from simulations.policies.flink import Flink, FlinkSettings
from simulations.policies.hpa import Hpa, HpaSettings
from simulations.policies.inferline import Inferline, InferlineSettings
from simulations.policies.inferno import Inferno, InfernoSettings
from simulations.policies.keda import Keda, KedaSettings
from simulations.policies.kpa import Kpa, KpaSettings
from simulations.policies.plus_one import PlusOne, PlusOneSettings
from simulations.policies.ray_serve import RayServe, RayServeSettings
from simulations.policies.sluice import SluiceSettings, sluice
from simulations.policies.static_peak import StaticPeak, StaticPeakSettings
from simulations.policies.wva import Wva, WvaSettings

TRAINED = "trained.json"
"""The data file of trained settings, beside this module; `python -m simulations.experiment.training` writes it."""

S = TypeVar("S")


class InvalidPolicySettings(ValueError):
    """A setting of a policy is unknown or of the wrong type. The message names policy, field, value and rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Generic[S]):
    """A policy and its settings: `default` are the documented ones, `make` returns a new autoscaler for a run."""

    name: str
    default: S
    make: Callable[[S, Briefing], Autoscaler]

    @property
    def trained(self) -> S | None:
        """Return the settings found on training loads; None where the policy has not been trained."""
        values = _trained().get(self.name)
        return None if values is None else self.settings_of(values)

    def settings_of(self, values: Mapping[str, Any]) -> S:
        """Return the default settings with those in `values`, given as in JSON, replaced.

        Raises:
            InvalidPolicySettings: a field is unknown, or a value has another type than the default.
        """
        known = {field.name: getattr(self.default, field.name) for field in fields(self.default)}  # type: ignore[arg-type]
        changed: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise InvalidPolicySettings(f"{self.name}.{name}: {value!r}: must be one of {', '.join(sorted(known))}")
            changed[name] = self._value(name, value, known[name])
        return type(self.default)(**{**known, **changed})

    def values_of(self, settings: S) -> dict[str, Any]:
        """Return settings as a JSON object."""
        values = asdict(settings)  # type: ignore[call-overload]
        return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}

    def _value(self, name: str, value: Any, like: Any) -> Any:
        try:
            if isinstance(like, Enum):
                return type(like)(value)
            if isinstance(like, bool) == isinstance(value, bool):
                return type(like)(value)
        except (TypeError, ValueError):
            pass
        raise InvalidPolicySettings(f"{self.name}.{name}: {value!r}: must be of the same type as {like!r}")


_FAMILIES: tuple[Family[Any], ...] = (
    Family(name="sluice", default=SluiceSettings(), make=sluice),
    Family(name="static-peak", default=StaticPeakSettings(), make=StaticPeak),
    Family(name="hpa", default=HpaSettings(), make=lambda settings, _: Hpa(settings)),
    Family(name="keda", default=KedaSettings(), make=lambda settings, _: Keda(settings)),
    Family(name="kpa", default=KpaSettings(), make=lambda settings, _: Kpa(settings)),
    Family(name="ray-serve", default=RayServeSettings(), make=lambda settings, _: RayServe(settings)),
    Family(name="flink", default=FlinkSettings(), make=lambda settings, _: Flink(settings)),
    Family(name="wva", default=WvaSettings(), make=lambda settings, _: Wva(settings)),
    Family(name="inferno", default=InfernoSettings(), make=lambda settings, _: Inferno(settings)),
    Family(name="dynamo", default=DynamoSettings(), make=lambda settings, _: Dynamo(settings)),
    Family(name="inferline", default=InferlineSettings(), make=Inferline),
    Family(name="plus-one", default=PlusOneSettings(), make=lambda settings, _: PlusOne(settings)),
)
POLICIES: Mapping[str, Family[Any]] = MappingProxyType({family.name: family for family in _FAMILIES})
"""In the order in which tables list them."""


def paced(settings: S, pace: float, *, scrape_interval_s: float) -> S:
    """Return settings whose times (fields that end in `_s`) are those of a load that is played `pace` times as fast.

    None becomes shorter than a second, which is the shortest cycle of an autoscaler, and no window of metrics shorter
    than five scrapes, without which there are no rates. Times of 0 stay.
    """
    if pace == 1:
        return settings
    least_s = {"metrics_window_s": max(1.0, 5 * scrape_interval_s)}
    changed = {
        field.name: max(value / pace, min(value, least_s.get(field.name, 1.0)))
        for field in fields(settings)  # type: ignore[arg-type]
        if field.name.endswith("_s") and (value := getattr(settings, field.name)) > 0
    }
    return replace(settings, **changed)  # type: ignore[type-var]


@cache
def _trained() -> Mapping[str, Mapping[str, Any]]:
    file = resources.files("simulations.policies") / TRAINED
    if not file.is_file():
        return {}
    document = json.loads(file.read_text(encoding="utf-8"))
    return {name: entry["settings"] for name, entry in document["policies"].items()}
