"""Plans the queries for the devices of pods, and computes the readings from the results. Pure.

The queries are the same for all placements on pools of one device, over one window, with the same further matchers.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from profiler.samples import (
    THROTTLED_SHARE,
    Absence,
    AbsenceReason,
    DeviceFault,
    DeviceQuantity,
    Reading,
    SeriesLabels,
    sane,
)
from profiler.sources.combine import Pod, combine_values, reporting
from profiler.sources.device_presets import DeviceFormula, formulas_of
from profiler.sources.promql import PodSeries, fill_devices
from profiler.sources.reporting_pods import PodResults

_FAULTS = frozenset({DeviceQuantity.ERRORS, DeviceQuantity.THROTTLED})
_USE = frozenset(
    {
        *(DeviceQuantity.UTILIZATION, DeviceQuantity.MEMORY_BYTES),
        *(DeviceQuantity.LATENCY_P99_S, DeviceQuantity.COLLECTIVE_ACTIVITY),
    }
)
"""Quantities that say how a device is used: of one that several pods share, they are of no single pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevices:
    """The query and formula of each quantity. Results have a series per pod with the default labels.

    A pod counts as reporting if it has a series: the exporters are scraped apart from the servers of the stage.
    """

    formulas: Mapping[DeviceQuantity, tuple[str, DeviceFormula]]

    def readings(
        self, pods: Set[Pod], results: PodResults, shared: Set[Pod] = frozenset()
    ) -> Mapping[DeviceQuantity, Reading]:
        """Return the readings of a placement with `pods`, an `Absence` where too few pods have a series.

        `shared` are those of `pods` that share their device with others. Its series have the name of one of them, or
        of another workload's pod: they count as errors and throttling of all, and are the use of none.
        """
        return {
            quantity: _reading(quantity, pods, shared, results[query], formula)
            for quantity, (query, formula) in self.formulas.items()
        }

    def faults(self, pods: Set[Pod], results: PodResults) -> Mapping[str, DeviceFault]:
        """Return what is wrong with the devices of `pods`, by the pod's name; pods without a fault are left out."""
        errors = self._positive(pods, results, DeviceQuantity.ERRORS, 0.0)
        throttled = self._positive(pods, results, DeviceQuantity.THROTTLED, THROTTLED_SHARE)
        return {
            name: DeviceFault(errors=errors.get(name, 0.0), throttled=throttled.get(name, 0.0))
            for name in sorted(errors.keys() | throttled.keys())
        }

    def _positive(
        self, pods: Set[Pod], results: PodResults, quantity: DeviceQuantity, above: float
    ) -> dict[str, float]:
        if quantity not in self.formulas:
            return {}
        result = results[self.formulas[quantity][0]]
        values = {} if isinstance(result, Absence) else result.values(pods)
        return {name: value for (_, name), value in values.items() if sane(value) and value > above}


def planned_devices(device: str, labels: SeriesLabels, namespaces: Sequence[str], window_s: float) -> PlannedDevices:
    """Return the queries for the devices of the pods of `namespaces` on pools with `device`.

    Exporters name pods by labels of their own. Of `labels`, only the further matchers apply.
    """
    return PlannedDevices(
        formulas={
            quantity: (fill_devices(formula.value, tuple(namespaces), labels.match, window_s), formula)
            for quantity, formula in formulas_of(device).items()
        }
    )


def _reading(
    quantity: DeviceQuantity, pods: Set[Pod], shared: Set[Pod], result: PodSeries | Absence, formula: DeviceFormula
) -> Reading:
    if isinstance(result, Absence):
        return result
    if shared and quantity in _USE:
        pods = pods - shared
        if not pods:
            detail = "the pods share their devices with others (time slicing or MPS): no series is of one pod"
            return Absence(reason=AbsenceReason.UNSUPPORTED, detail=detail)
    elif shared and quantity in _FAULTS:
        pods = (pods - shared) | result.values(pods).keys()
    values = result.values(pods)
    return combine_values(formula.combine, reporting(pods, dict.fromkeys(values, 0.0), math.inf), values)
