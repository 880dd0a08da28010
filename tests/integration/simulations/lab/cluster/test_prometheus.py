import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from http_upstream import serving
from kubernetes import client

from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.cluster.prometheus import PrometheusServer
from simulations.lab.host.binaries import Binaries

pytestmark = pytest.mark.lab


@contextmanager
def exporter(host: str, text: str) -> Iterator[int]:
    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
            pass

    with serving(Metrics, host) as url:
        port = urllib.parse.urlsplit(url).port
        assert port is not None
        yield port


def series_of(server: PrometheusServer, query: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{server.url}/api/v1/query?query={urllib.parse.quote(query)}", timeout=5) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def wait_for_series(server: PrometheusServer, query: str, timeout_s: float = 30.0) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while not (found := series_of(server, query)):
        assert time.monotonic() < deadline, f"nothing for {query} in {timeout_s:g} s"
        time.sleep(0.1)
    (one,) = found
    return one


def running_pod(
    core: client.CoreV1Api, namespace: str, name: str, *, address: str, annotations: dict[str, str]
) -> None:
    metadata = client.V1ObjectMeta(
        name=name, annotations=annotations, labels={"app": "asr", "sluice.dev/stage": "recognise", "other": "x"}
    )
    ports = [client.V1ContainerPort(container_port=port) for port in (7000, 7001)]
    container = client.V1Container(name="stage", image="none", ports=ports)
    spec = client.V1PodSpec(containers=[container], node_name="node-1")
    core.create_namespaced_pod(namespace, client.V1Pod(metadata=metadata, spec=spec))
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    core.patch_namespaced_pod_status(name, namespace, {"status": status})


def test_annotated_pods_are_scraped_under_the_labels_of_their_stage(
    binaries: Binaries, control_plane: ControlPlane, admin: client.ApiClient, namespace: str, tmp_path: Path
) -> None:
    core = client.CoreV1Api(admin)
    address = "127.20.0.7"
    with (
        exporter(address, "lab_test_items_total 3\n") as port,
        PrometheusServer(tmp_path, binaries, kubeconfig=control_plane.kubeconfig, scrape_interval_s=0.2) as server,
    ):
        annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": str(port)}
        running_pod(core, namespace, "asr-1", address=address, annotations=annotations)
        running_pod(core, namespace, "asr-2", address=address, annotations={"prometheus.io/port": str(port)})
        found = wait_for_series(server, "lab_test_items_total")
        assert found["metric"] == {
            "__name__": "lab_test_items_total",
            "namespace": namespace,
            "pod": "asr-1",
            "node": "node-1",
            "app": "asr",
            "sluice_dev_stage": "recognise",
            "instance": f"{address}:{port}",
            "job": "pods",
        }
        assert found["value"][1] == "3"


def test_static_targets_keep_the_labels_that_they_expose(
    binaries: Binaries, control_plane: ControlPlane, tmp_path: Path
) -> None:
    with exporter("127.0.0.1", 'lab_test_offered_total{namespace="speech",instance="own"} 5\n') as port:
        targets = [f"127.0.0.1:{port}"]
        with PrometheusServer(
            tmp_path, binaries, kubeconfig=control_plane.kubeconfig, scrape_interval_s=0.2, targets=targets
        ) as server:
            found = wait_for_series(server, "lab_test_offered_total")["metric"]
    assert found["namespace"] == "speech"
    assert found["instance"] == "own"


def test_it_is_the_release_that_the_lab_promises(
    binaries: Binaries, control_plane: ControlPlane, tmp_path: Path
) -> None:
    with (
        PrometheusServer(tmp_path, binaries, kubeconfig=control_plane.kubeconfig) as server,
        urllib.request.urlopen(f"{server.url}/api/v1/status/buildinfo", timeout=5) as answer,
    ):
        assert json.load(answer)["data"]["version"] == "3.15.0"
