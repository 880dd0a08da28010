"""The device presets of the package, and what is refused in one."""

import pytest

from profiler.samples import DeviceQuantity
from profiler.sources.device_presets import device_presets, formulas_of, parse_device_preset
from profiler.sources.presets import Combine, InvalidPreset

PRESET = """
devices = ["GPU"]
pods = "labels"
[deviceUtilization]
combine = "mean"
devices = "avg"
series = [{metric = "busy", function = "avg_over_time"}]
"""


def test_every_device_has_the_quantities_that_its_exporter_has() -> None:
    neuron, gpu, cpu = formulas_of("Inferentia"), formulas_of("GPU"), formulas_of("CPU")
    assert formulas_of("Trainium") == neuron
    assert neuron.keys() == {
        DeviceQuantity.UTILIZATION,
        DeviceQuantity.MEMORY_BYTES,
        DeviceQuantity.LATENCY_P99_S,
        DeviceQuantity.ERRORS,
        DeviceQuantity.RX_PACKETS_RPS,
        DeviceQuantity.CPU_THROTTLED,
        DeviceQuantity.NODE_RX_LOSSES_RPS,
    }
    assert gpu.keys() == set(DeviceQuantity) - {DeviceQuantity.LATENCY_P99_S}
    assert cpu.keys() == {
        DeviceQuantity.RX_PACKETS_RPS,
        DeviceQuantity.CPU_THROTTLED,
        DeviceQuantity.NODE_RX_LOSSES_RPS,
    }
    assert formulas_of("Abacus") == {}


def test_a_quantity_of_a_device_has_one_preset() -> None:
    for device in ("CPU", "GPU", "Inferentia", "Trainium"):
        own = [quantity for preset in device_presets() if device in preset.devices for quantity in preset.formulas]
        assert len(set(own)) == len(own)


def test_a_preset_is_read() -> None:
    formula = parse_device_preset("own", PRESET).formulas[DeviceQuantity.UTILIZATION]
    assert formula.combine is Combine.MEAN
    assert formula.value.startswith("avg by (namespace, pod) (")
    assert "avg_over_time(busy{" in formula.value


def test_the_first_series_of_several_is_a_fallback_and_else_all_count() -> None:
    two = PRESET.replace("series = [", 'series = [{metric = "better"}, ')
    assert "label_replace" in parse_device_preset("own", two).formulas[DeviceQuantity.UTILIZATION].value
    first = parse_device_preset("own", two + "first = true").formulas[DeviceQuantity.UTILIZATION].value
    assert '"series"' not in first
    assert first.index("better") < first.index("busy")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('devices = ["GPU"]', "", "devices"),
        ('pods = "labels"', 'pods = "names"', "pods"),
        ("[deviceUtilization]", "[utilization]", "utilization"),
        ('combine = "mean"', 'combine = "ratio"', "combine"),
        ('combine = "mean"', "", "combine"),
        ('devices = "avg"', 'devices = "median"', "devices"),
        ('series = [{metric = "busy", function = "avg_over_time"}]', "series = []", "series"),
        ('metric = "busy"', "metric = 1", "metric"),
        ('function = "avg_over_time"', 'function = "deriv"', "function"),
        ('function = "avg_over_time"', "scale = 2", "scale"),
        ('devices = "avg"', 'devices = "avg"\nunit = "s"', "unit"),
        ('devices = "avg"', 'value = "up"', "value"),
        ("[deviceUtilization]", "[", "TOML|Expected|Invalid"),
    ],
)
def test_a_preset_that_breaks_a_rule_is_refused_by_field(old: str, new: str, problem: str) -> None:
    assert old in PRESET
    with pytest.raises(InvalidPreset, match=rf"own\.toml.*({problem})|({problem})"):
        parse_device_preset("own", PRESET.replace(old, new, 1))
