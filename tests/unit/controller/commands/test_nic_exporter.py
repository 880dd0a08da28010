"""The command, from its start to its end by a signal."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from api_server import api_server
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from controller.commands.nic_exporter import nic_exporter


@contextmanager
def exporter(*arguments: str) -> Iterator[str]:
    """Run the exporter, and return its URL."""
    started = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "controller",
            "nic-exporter",
            "--port",
            "0",
            "--listen-address",
            "127.0.0.1",
            *arguments,
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert started.stderr is not None
        url = next(found[1] for line in started.stderr if (found := re.search(r"metrics at (\S+)/metrics", line)))
        yield url
        started.send_signal(signal.SIGTERM)
        assert started.wait(20) == 128 + signal.SIGTERM
        assert "Traceback" not in started.stderr.read()
    finally:
        started.kill()
        started.communicate()


def test_it_serves_the_metrics_of_this_machine_and_ends_by_a_signal() -> None:
    with exporter() as url:
        with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
            families = {family.name for family in text_string_to_metric_families(answer.read().decode())}
        with urllib.request.urlopen(f"{url}/livez", timeout=20) as answer:
            assert answer.read() == b"ok\n"
    assert {"node_softnet_processed", "node_udp_queues", "speech_nic_node_rx_queue_pressure"} <= families


def test_with_a_node_it_asks_the_api_server_for_the_names_of_pods(tmp_path: Path) -> None:
    with (
        api_server(tmp_path, {"/api/v1/pods": []}) as kubeconfig,
        exporter("--node", "node-a", "--kubeconfig", str(kubeconfig)) as url,
        urllib.request.urlopen(f"{url}/readyz", timeout=20) as answer,
    ):
        assert answer.status == 200


def test_credentials_that_are_missing_are_an_error_of_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(nic_exporter, ["--node", "a", "--kubeconfig", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_an_interval_of_zero_is_refused() -> None:
    result = CliRunner().invoke(nic_exporter, ["--interval", "0s"])
    assert result.exit_code == 2
    assert "must be longer than 0s" in result.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--dpdk-telemetry", ""), "'': must be an absolute path, without **"),
        (("--dpdk-telemetry", "/"), "'/': must be an absolute path, without **"),
        (("--dpdk-telemetry", "dpdk/x.v2"), "must be an absolute path, without **"),
        (("--dpdk-telemetry", "/run/**/x.v2"), "must be an absolute path, without **"),
        (("--proc", "/nonexistent"), "'/nonexistent' does not exist"),
        (("--sys", __file__), "is a file"),
        (("--interval", "1ms", "--window", "1h"), "--window: must be at most 600 times --interval"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments: tuple[str, ...], problem: str) -> None:
    result = CliRunner().invoke(nic_exporter, ["--listen-address", "192.0.2.1", *arguments])
    assert (result.exit_code, problem in result.output) == (2, True), result.output


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(nic_exporter, ["--listen-address", "127.0.0.1", "--port", port])
    assert result.exit_code == 2
    (line,) = [line for line in result.output.splitlines() if "Error" in line]
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in line
