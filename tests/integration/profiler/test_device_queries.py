"""The queries of the device presets, evaluated by promtool over the text of each exporter."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from profiler.samples import DeviceQuantity
from profiler.sources.device_presets import formulas_of
from profiler.sources.promql import fill, fill_devices
from simulations.lab.host.binaries import Binaries

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "receive-pressure.md"
EXPOSITIONS = Path(__file__).parent / "expositions"
CHANGED_AT, SCRAPES, EVERY_S = 6, 9, 15
WINDOW_S = 60.0


def input_series(path: Path) -> list[dict[str, str]]:
    """Return the samples of a file as promtool reads them: each counter changes once, in the middle of the window."""
    series = []
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        labelled, _, values = line.rpartition("} ")
        before, _, after = values.partition(" => ")
        steps = [before] * CHANGED_AT + [after or before] * (SCRAPES - CHANGED_AT)
        series.append({"series": labelled + "}", "values": " ".join(str(float(step)) for step in steps)})
    return series


def judged(
    binaries: Binaries, folder: Path, name: str | Path, query: str, expected: Mapping[str, float]
) -> "subprocess.CompletedProcess[str]":
    """Compare the result of `query`, in whole thousandths, with `expected` by pod of the namespace speech."""
    test = {
        "expr": f"round(1000 * ({query}))",
        "eval_time": f"{(SCRAPES - 1) * EVERY_S}s",
        "exp_samples": [
            {"labels": f'{{namespace="speech", pod="{pod}"}}', "value": float(round(1000 * value))}
            for pod, value in expected.items()
        ],
    }
    document = {
        "evaluation_interval": f"{EVERY_S}s",
        "tests": [
            {"interval": f"{EVERY_S}s", "input_series": input_series(EXPOSITIONS / name), "promql_expr_test": [test]}
        ],
    }
    path = folder / "queries.yaml"
    path.write_text(yaml.safe_dump(document))
    return subprocess.run(
        [binaries.promtool, "test", "rules", path], capture_output=True, text=True, check=False, timeout=120
    )


def query_of(device: str, quantity: DeviceQuantity) -> str:
    return fill_devices(formulas_of(device)[quantity].value, ("speech",), (), WINDOW_S)


@pytest.mark.parametrize(
    ("name", "device", "quantity", "expected"),
    [
        ("neuron_monitor.txt", "Trainium", DeviceQuantity.UTILIZATION, {"asr-1": 0.8, "asr-2": 0.5}),
        ("neuron_monitor.txt", "Inferentia", DeviceQuantity.LATENCY_P99_S, {"asr-1": 0.021, "asr-2": 0.019}),
        ("neuron_monitor.txt", "Inferentia", DeviceQuantity.MEMORY_BYTES, {"asr-1": 4e9, "asr-2": 3e9}),
        ("dcgm_exporter.txt", "GPU", DeviceQuantity.UTILIZATION, {"asr-1": 0.8, "asr-2": 0.3}),
        ("dcgm_exporter.txt", "GPU", DeviceQuantity.MEMORY_BYTES, {"asr-1": 3000 * 2**20, "asr-2": 500 * 2**20}),
        ("dcgm_exporter.txt", "GPU", DeviceQuantity.COLLECTIVE_ACTIVITY, {"asr-1": 0.956, "asr-2": 0.0}),
        ("dcgm_exporter_not_honoured.txt", "GPU", DeviceQuantity.UTILIZATION, {"asr-1": 0.8, "asr-2": 0.3}),
        (
            "dcgm_exporter_not_honoured.txt",
            "GPU",
            DeviceQuantity.COLLECTIVE_ACTIVITY,
            {"asr-1": 0.956, "asr-2": 0.0},
        ),
        ("dcgm_exporter_own_pod.txt", "GPU", DeviceQuantity.UTILIZATION, {}),
        ("dcgm_exporter_mig.txt", "GPU", DeviceQuantity.UTILIZATION, {"asr-1": 0.8, "asr-2": 0.2}),
        ("dcgm_exporter_mig.txt", "GPU", DeviceQuantity.MEMORY_BYTES, {"asr-1": 100 * 2**20, "asr-2": 300 * 2**20}),
        ("dcgm_exporter_mig.txt", "GPU", DeviceQuantity.COLLECTIVE_ACTIVITY, {}),
        (
            "node_exporter.txt",
            "CPU",
            DeviceQuantity.NODE_RX_LOSSES_RPS,
            {"vad-1": 2.0, "vad-2": 0.0, "vad-3": 2.0, "vad-4": 1.0},
        ),
    ],
)
def test_a_reading_of_each_exporter(
    binaries: Binaries, tmp_path: Path, name: str, device: str, quantity: DeviceQuantity, expected: dict[str, float]
) -> None:
    query = query_of(device, quantity)
    result = judged(binaries, tmp_path, name, query, expected)
    assert result.returncode == 0, result.stdout + result.stderr
    wrong = {pod: value + 0.002 for pod, value in expected.items()} or {"asr-1": 1.0}
    assert judged(binaries, tmp_path, name, query, wrong).returncode != 0, "it would have told a difference"


@pytest.mark.parametrize(
    ("name", "device", "quantity", "expected"),
    [
        ("neuron_monitor.txt", "Trainium", DeviceQuantity.ERRORS, {"asr-1": True, "asr-2": True}),
        ("dcgm_exporter.txt", "GPU", DeviceQuantity.ERRORS, {"asr-1": True, "asr-2": True}),
        ("dcgm_exporter.txt", "GPU", DeviceQuantity.THROTTLED, {"asr-1": False, "asr-2": True}),
        ("dcgm_exporter_not_honoured.txt", "GPU", DeviceQuantity.ERRORS, {"asr-1": True, "asr-2": True}),
    ],
)
def test_errors_are_those_of_the_device_within_the_window(
    binaries: Binaries, tmp_path: Path, name: str, device: str, quantity: DeviceQuantity, expected: dict[str, bool]
) -> None:
    query = f"({query_of(device, quantity)}) > bool 0"
    numbers = {pod: float(value) for pod, value in expected.items()}
    result = judged(binaries, tmp_path, name, query, numbers)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("name", "device", "line", "pod"),
    [
        (
            "neuron_monitor.txt",
            "Trainium",
            'error_type="hardware",region="us-east-1",runtime_tag="speech/asr-1"',
            "asr-1",
        ),
        ("neuron_monitor.txt", "Trainium", "sram_ecc_uncorrected", "asr-2"),
        ("dcgm_exporter.txt", "GPU", 'XID_ERRORS{gpu="0",UUID="GPU-a"', "asr-1"),
        ("dcgm_exporter.txt", "GPU", "ECC_DBE_VOL_TOTAL", "asr-2"),
    ],
)
def test_each_error_counts_alone_and_others_do_not(
    binaries: Binaries,
    tmp_path: Path,
    name: str,
    device: str,
    line: str,
    pod: str,
) -> None:
    """Errors of the application, numerical ones and corrected ECC events stay in the text: they must not count."""
    text = (EXPOSITIONS / name).read_text()
    kept = [re.sub(r" => \d+$", lambda _: "", each) if line in each else each for each in text.splitlines()]
    assert kept != text.splitlines()
    changed = tmp_path / name
    changed.write_text("\n".join(kept) + "\n")
    other = {"asr-1": "asr-2", "asr-2": "asr-1"}[pod]
    query = f"({query_of(device, DeviceQuantity.ERRORS)}) > bool 0"
    result = judged(binaries, tmp_path, changed, query, {pod: 0.0, other: 1.0})
    assert result.returncode == 0, result.stdout + result.stderr


def test_further_matchers_select_one_cluster(binaries: Binaries, tmp_path: Path) -> None:
    value = formulas_of("GPU")[DeviceQuantity.UTILIZATION].value
    query = fill_devices(value, ("speech", "batch"), (("Hostname", "node-b"),), WINDOW_S)
    assert judged(binaries, tmp_path, "dcgm_exporter.txt", query, {"asr-2": 0.3}).returncode == 0


def test_the_packets_of_a_pod_with_and_without_honoured_labels(binaries: Binaries, tmp_path: Path) -> None:
    query = query_of("CPU", DeviceQuantity.RX_PACKETS_RPS)
    document = {
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    {
                        "series": 'speech_nic_namespace_rx_packets_per_second{namespace="speech",pod="vad-1"}',
                        "values": "50",
                    },
                    {
                        "series": 'speech_nic_namespace_rx_packets_per_second{exported_namespace="speech",'
                        'exported_pod="vad-2",namespace="sluice",pod="nic-x"}',
                        "values": "70",
                    },
                    {"series": 'speech_nic_namespace_rx_packets_per_second{namespace="sluice",pod="n"}', "values": "9"},
                ],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": "0s",
                        "exp_samples": [
                            {"labels": '{namespace="speech", pod="vad-1"}', "value": 50},
                            {"labels": '{namespace="speech", pod="vad-2"}', "value": 70},
                        ],
                    }
                ],
            }
        ],
    }
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump(document))
    result = subprocess.run(
        [binaries.promtool, "test", "rules", path], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("device", "series"),
    [
        (
            "GPU",
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",exported_namespace="speech",exported_pod="asr-1",instance="a:1",pod="EXPORTER"}',
        ),
        (
            "Trainium",
            'neuroncore_utilization_ratio{neuroncore="0",runtime_tag="speech/asr-1",instance="a:1",pod="EXPORTER"}',
        ),
    ],
)
def test_an_exporter_that_was_restarted_at_its_address_is_read(
    binaries: Binaries, tmp_path: Path, device: str, series: str
) -> None:
    before, after = "0.4 0.4 0.4 0.4 stale", "_ _ _ _ 0.6 0.6 0.6 0.6 0.6"
    test = {
        "expr": f"round({query_of(device, DeviceQuantity.UTILIZATION)}, 0.001)",
        "eval_time": f"{5 * EVERY_S}s",
        "exp_samples": [{"labels": '{namespace="speech", pod="asr-1"}', "value": 0.5}],
    }
    document = {
        "evaluation_interval": f"{EVERY_S}s",
        "tests": [
            {
                "interval": f"{EVERY_S}s",
                "input_series": [
                    {"series": series.replace("EXPORTER", "a"), "values": before},
                    {"series": series.replace("EXPORTER", "b"), "values": after},
                ],
                "promql_expr_test": [test],
            }
        ],
    }
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump(document))
    result = subprocess.run(
        [binaries.promtool, "test", "rules", path], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("model", "activity"),
    [
        ("NVIDIA H100 80GB HBM3", 0.444),
        ("NVIDIA H100 PCIe", 0.667),
        ("NVIDIA A100-SXM4-80GB", 0.667),
        ("NVIDIA A800-SXM4-80GB", 1.0),
        ("NVIDIA H800", 1.0),
        ("Tesla V100-SXM2-16GB", 1.333),
        ("NVIDIA B200", 0.222),
    ],
)
def test_the_activity_of_collectives_is_of_the_rate_of_the_card(
    binaries: Binaries, tmp_path: Path, model: str, activity: float
) -> None:
    path = tmp_path / "dcgm.txt"
    path.write_text(
        f'DCGM_FI_PROF_NVLINK_TX_BYTES{{gpu="0",modelName="{model}",namespace="speech",pod="asr-1"}} 200000000000\n'
    )
    query = query_of("GPU", DeviceQuantity.COLLECTIVE_ACTIVITY)
    result = judged(binaries, tmp_path, path, query, {"asr-1": activity})
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("pods", "pressure"), [("vad-1", 1.0), ("vad-2", 0.0), ("vad-4", 1.0), ("vad-1|vad-2", 1.0)])
def test_the_documented_query_joins_the_losses_of_a_node_to_its_pods(
    binaries: Binaries, tmp_path: Path, pods: str, pressure: float
) -> None:
    (block,) = re.findall(r"query: \|\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    query = fill(" ".join(block.split()), pods=f'namespace="speech", pod=~"{pods}"', window_s=WINDOW_S)
    labelled = f'label_replace(label_replace({query}, "namespace", "speech", "", ""), "pod", "all", "", "")'
    result = judged(binaries, tmp_path, "node_exporter.txt", labelled, {"all": pressure})
    assert result.returncode == 0, result.stdout + result.stderr
