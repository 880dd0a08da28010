"""The ladder of metrics on a whole lab: the pods alone, Prometheus stopped while the load rises, both gone, both back.

The load is what an endpoint shows that the test drives: Prometheus and the direct scrapes read the same one, where the
lab's ingress would have its own.
"""

import contextlib
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.request import urlopen

import psutil
import pytest
import yaml
from kubernetes import client

from controller.resources.translate import pipeline_spec, pool_spec
from controller.resources.validation import validate_files
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.host.binaries import Binaries
from simulations.lab.host.processes import LOOPBACK

pytestmark = pytest.mark.lab

T = TypeVar("T")
LIMIT_S = 60.0
INTERVAL_S = SCRAPE_S = 1.0
SLACK_S = 2.0  # tolerance for a busy machine and for the polling of the test
PATCH_S = 5.0
"""The promise for a set-up without Prometheus, with a cycle and a scrape every second."""
MANIFESTS = """\
apiVersion: sluice.dev/v1alpha1
kind: ComputePool
metadata: {name: cpu}
spec:
  device: CPU
  nodeSelector: {sluice.dev/pool: cpu}
  price: {perHour: "1.0"}
  capacity: {instances: 20}
---
apiVersion: sluice.dev/v1alpha1
kind: SpeechPipeline
metadata: {name: captions, namespace: speech}
spec:
  demand: {unit: Requests, query: 'sum(offered_rps{namespace="speech"})'}
  sla: {latency: 500ms}
  budget: {perHour: "20"}
  scaling:
    scaleUp: {stabilization: 0s, maxStep: {percent: 400, replicas: 20}}
    scaleDown: {stabilization: 2s, maxStep: {percent: 100, replicas: 20}, drain: 1s}
  stages:
    - name: asr
      metrics: {preset: generic, window: 10s}
      placements:
        - pool: cpu
          target: {apiVersion: apps/v1, kind: Deployment, name: asr}
          replicas: {min: 1, max: 20}
          serviceTime: {fixed: 50ms}
          startup: 1s
"""


class Offered:
    """Exports the load in place of the ingress, while it is `serving`."""

    def __init__(self, port: int) -> None:
        self.rps = 10.0
        self._port = port

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        offered = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = f'offered_rps{{namespace="speech"}} {offered.rps}\n'.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer((LOOPBACK, self._port), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class Lab:
    """A lab with one pipeline, and what users see of it."""

    def __init__(self, cluster: LabCluster, api: client.ApiClient) -> None:
        self.cluster = cluster
        self.offered = Offered(cluster.ingress_port)
        self._api = api

    def status(self) -> dict[str, Any]:
        found = client.CustomObjectsApi(self._api).get_namespaced_custom_object(
            "sluice.dev", "v1alpha1", "speech", "speechpipelines", "captions", _request_timeout=5
        )
        return cast("dict[str, Any]", found.get("status", {}))

    def condition(self, kind: str) -> dict[str, Any]:
        return next((each for each in self.status().get("conditions", []) if each["type"] == kind), {})

    def replicas(self) -> int:
        return int(client.AppsV1Api(self._api).read_namespaced_deployment("asr", "speech").spec.replicas)

    def events(self) -> list[tuple[str, str]]:
        answer = client.CoreV1Api(self._api).list_namespaced_event("speech", _preload_content=False)
        return [
            (event["type"], event["reason"])
            for event in json.loads(answer.data)["items"]
            if event["involvedObject"]["kind"] == "SpeechPipeline"
        ]

    def metric(self, name: str) -> dict[str, float]:
        """The operator's own series of a metric, by their labels."""
        with urlopen(f"{self.cluster.operator_url}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        found = (line.removeprefix(name).rpartition(" ") for line in lines if line.startswith(f"{name}{{"))
        return {labels: float(value) for labels, _, value in found}

    def only(self, name: str) -> float:
        (value,) = self.metric(name).values()
        return value

    def source_is(self, source: str) -> bool:
        return bool(self.status().get("metrics", {}).get("source") == source)

    @contextlib.contextmanager
    def prometheus_stopped(self) -> Iterator[None]:
        """Accept connections without an answer, as a host that hangs."""
        (process,) = [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(word.startswith(f"--config.file={self.cluster.folder}") for word in process.info["cmdline"] or [])
        ]
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGCONT)


def until(look: Callable[[], T]) -> T:
    deadline = time.monotonic() + LIMIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s"
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def a_lab(binaries: Binaries, folder: Path, metrics: str) -> Iterator[Lab]:
    """A lab whose operator has settled on the initial load, with a cycle of one second."""
    manifest = folder / "resources.yaml"
    manifest.write_text(MANIFESTS)
    resources = validate_files([manifest])
    with LabCluster(folder, binaries) as cluster, cluster.admin() as api:
        lab = Lab(cluster, api)
        with lab.offered.serving():
            cluster.apply(
                yaml.safe_load_all(MANIFESTS),
                [pipeline_spec(resource) for resource in resources.pipelines],
                [pool_spec(resource) for resource in resources.pools],
            )
            cluster.start_operator(interval_s=INTERVAL_S, metrics=metrics)
            until(lambda: lab.condition("MetricsAvailable").get("status") == "True")
            settled(lab)
        yield lab


def settled(lab: Lab) -> int:
    """Return the replicas when they meet the load and have not changed for three cycles."""
    since_s, count = time.monotonic(), -1
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < since_s + 3 or lab.condition("Ready").get("reason") != "OK":
        assert time.monotonic() < deadline, lab.status()
        if lab.replicas() != count:
            since_s, count = time.monotonic(), lab.replicas()
        time.sleep(0.1)
    return count


def patched_after_s(lab: Lab, before: int) -> float:
    """Return the time until the desired replicas of the Deployment exceed `before`."""
    began_s = time.monotonic()
    until(lambda: lab.replicas() > before)
    return time.monotonic() - began_s


def test_without_prometheus_a_load_step_leads_to_a_patch_within_five_seconds(
    binaries: Binaries, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_lab(binaries, tmp_path, "direct") as lab, lab.prometheus_stopped(), lab.offered.serving():
        assert lab.source_is("DirectScrape")
        before = settled(lab)
        lab.offered.rps = 60.0
        took_s = patched_after_s(lab, before)
        with capsys.disabled():
            print(f"\nload step to patch, direct scrape alone: {took_s:.1f} s")
        assert took_s <= PATCH_S
        assert lab.metric("sluice_metrics_source") == {
            '{namespace="speech",pipeline="captions",source="DirectScrape"}': 1
        }


@pytest.fixture(scope="module")
def lab(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with a_lab(binaries, tmp_path_factory.mktemp("ladder"), "prometheus,direct") as lab:
        yield lab


def test_down_the_ladder_and_up_again(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.ExitStack() as endpoint:
        endpoint.enter_context(lab.offered.serving())
        until(lambda: lab.source_is("Prometheus"))
        before = settled(lab)
        with lab.prometheus_stopped():
            # Prometheus down: direct scrapes show the higher load, and the status says so.
            lab.offered.rps = 60.0
            took_s = patched_after_s(lab, before)
            until(lambda: lab.source_is("DirectScrape"))
            assert lab.condition("MetricsAvailable")["status"] == "True"
            assert "Unavailable: Prometheus: no" in lab.condition("MetricsAvailable")["message"]
            until(lambda: ("Warning", "MetricsFromDirectScrape") in lab.events())
            peak = settled(lab)

            # Both down: the replicas stay, with a growing margin.
            endpoint.close()
            until(lambda: lab.source_is("Holding"))
            condition = lab.condition("MetricsAvailable")
            assert (condition["status"], condition["reason"]) == ("False", "MetricsMissing")
            assert "1 of 1 scrape endpoints" in condition["message"]
            assert "Unavailable: Prometheus: no" in condition["message"]
            assert lab.status()["metrics"]["lostSince"]
            until(lambda: ("Warning", "MetricsMissing") in lab.events())
            seen = [(lab.replicas(), lab.only("sluice_demand_safety_factor"))]
            while seen[-1][1] < seen[0][1] + 0.001:
                seen.append((lab.replicas(), lab.only("sluice_demand_safety_factor")))
                time.sleep(0.1)
            assert [margin for _, margin in seen] == sorted(margin for _, margin in seen)
            assert lab.only("sluice_demand_unseen_seconds") > 0
            counts = [count for count, _ in seen]
            assert peak <= min(counts) <= max(counts) <= math.ceil(1.5 * peak)

        # Both back, with the earlier load: normal decisions resume at once, from Prometheus when it is complete.
        lab.offered.rps = 10.0
        endpoint.enter_context(lab.offered.serving())
        began_s = time.monotonic()
        until(lambda: lab.condition("MetricsAvailable")["status"] == "True")
        seeing_s = time.monotonic() - began_s
        until(lambda: lab.source_is("Prometheus"))
        back_s = time.monotonic() - began_s
        until(lambda: ("Normal", "MetricsAvailable") in lab.events())
        until(lambda: lab.replicas() < peak)
        with capsys.disabled():
            print(
                f"\nload step to patch, Prometheus stopped: {took_s:.1f} s; "
                f"both back: seeing after {seeing_s:.1f} s, by Prometheus after {back_s:.1f} s"
            )
        assert seeing_s <= 2 * INTERVAL_S + SCRAPE_S + SLACK_S
