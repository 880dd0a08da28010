"""A real Ray cluster of this machine with Serve, on a loopback address of its own.

Some of Ray's ports are bound on all addresses, and `ray stop` ends every process of Ray that it finds: run this in
namespaces for network and processes, as `make test-ray-serve` does.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3
from typing_extensions import override

from controller.ray.applications import RUNNING, Applications, ServeFailure
from controller.ray.client import ServeClient
from simulations.lab.host.processes import ProcessError, Service

ADDRESS = "127.77.7.7"
"""Ray replaces 127.0.0.1 by the address of another device."""
DASHBOARD = f"http://{ADDRESS}:28265"
HTTP_PORT = 28000
"""The port of Serve's proxy, which takes the WebSockets."""
_PORT, _METRICS_PORT = 26379, 28080
_REPORT_MS = 2000
_START_S, _DEPLOY_S = 120.0, 120.0
_POLL_S = 0.2

Config = Mapping[str, Any]


class RayHead(Service):
    """The head of a Ray cluster, whose nodes import Sluice from this installation."""

    def __init__(self, folder: Path, *, cpus: int) -> None:
        """`cpus` is how many the replicas may ask for together, whatever the machine has."""
        super().__init__(folder)
        self._folder, self._cpus = folder, cpus
        self.api = ServeClient()

    @override
    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._parts.callback(self.api.close)
        self._parts.callback(self._ray, "stop", "--force")
        self._ray(
            "start",
            "--head",
            f"--node-ip-address={ADDRESS}",
            f"--port={_PORT}",
            f"--dashboard-host={ADDRESS}",
            "--dashboard-port=28265",
            f"--metrics-export-port={_METRICS_PORT}",
            f"--num-cpus={self._cpus}",
            "--object-store-memory=104857600",
            f"--temp-dir={self._folder.resolve() / 'ray'}",
            "--disable-usage-stats",
        )

    def _ray(self, *arguments: str) -> None:
        program = Path(sys.executable).with_name("ray")
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_metrics_report_interval_ms": str(_REPORT_MS),
        }
        done = subprocess.run(
            [program, *arguments], env=environment, timeout=_START_S, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ProcessError(f"ray {arguments[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")

    def metrics_targets(self) -> list[str]:
        """Return the endpoints that export the metrics of the cluster, as `host:port`."""
        answer = urllib3.request("GET", f"{DASHBOARD}/api/prometheus/sd", timeout=5.0, retries=False)
        return [target for group in json.loads(answer.data) for target in group["targets"]]

    def deploy(self, config: Config) -> None:
        """Deploy applications, as `serve deploy` does, and wait until their replicas run.

        Raises:
            ProcessError: Ray refuses the configuration, or the replicas do not run in time.
        """
        url = f"{DASHBOARD}/api/serve/applications/"
        body = json.dumps(config).encode()
        headers = {"Content-Type": "application/json"}
        answer = urllib3.request("PUT", url, body=body, headers=headers, timeout=60.0, retries=False)
        if answer.status != 200:
            raise ProcessError(f"Ray refused the configuration: {answer.data.decode(errors='replace')[-2000:]}")
        deadline_s, problem = time.monotonic() + _DEPLOY_S, "no answer"
        while time.monotonic() < deadline_s:
            try:
                problem = _unready(self.api.read(DASHBOARD), config)
            except ServeFailure as error:
                problem = str(error)
            if not problem:
                return
            time.sleep(_POLL_S)
        raise ProcessError(f"the applications did not run within {_DEPLOY_S:g} s: {problem}")


def _unready(found: Applications, config: Config) -> str:
    """Return which deployment of a configuration lacks replicas, empty if none does."""
    for application in config["applications"]:
        name = application["name"]
        for deployment in application["deployments"]:
            own = found.deployments.get(name, {}).get(deployment["name"])
            running = 0 if own is None else sum(each.state in RUNNING for each in own.replicas)
            if own is None or running < own.target:
                return f"{name}/{deployment['name']} has {running} running replicas; {found.words.get(name, '')}"
    return ""
