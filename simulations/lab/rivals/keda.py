"""KEDA itself: its operator, and the adapter through which HPAs read its metrics.

The adapter serves its own metrics at all addresses, and has no option for it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config, utils
from typing_extensions import override

from simulations.lab.cluster.cluster import wait_until_established
from simulations.lab.host.binaries import Keda
from simulations.lab.host.processes import LOOPBACK, Service, free_ports
from simulations.lab.rivals.aggregation import Aggregated, Aggregation

NAMESPACE = "keda"
_METRICS = Aggregated(
    group="external.metrics.k8s.io", version="v1beta1", namespace=NAMESPACE, name="keda-metrics-apiserver"
)


class KedaServer(Service):
    """KEDA on the cluster of `kubeconfig`, whose programs have the flags of `aggregation`."""

    def __init__(self, folder: Path, programs: Keda, aggregation: Aggregation, kubeconfig: Path) -> None:
        """Set the folder for logs and the programs; nothing runs before `start()`."""
        super().__init__(folder)
        self._programs = programs
        self._aggregation = aggregation
        self._kubeconfig = kubeconfig

    @override
    def _start(self) -> None:
        with config.new_client_from_config(str(self._kubeconfig)) as api:
            self._start_with(api)

    def _start_with(self, api: client.ApiClient) -> None:
        crds = [yaml.safe_load(path.read_text()) for path in sorted(self._programs.crds.glob("*.yaml"))]
        crds = [crd for crd in crds if crd["kind"] == "CustomResourceDefinition"]
        for crd in crds:
            utils.create_from_dict(api, crd)
        wait_until_established(api, (crd["metadata"]["name"] for crd in crds))
        metrics, probes, grpc, adapter, adapter_metrics = free_ports(5)
        _METRICS.register(api, adapter)
        environment = [
            "/usr/bin/env",
            f"KUBECONFIG={self._kubeconfig}",
            "WATCH_NAMESPACE=",
            f"POD_NAMESPACE={NAMESPACE}",
            f"KEDA_CLUSTER_OBJECT_NAMESPACE={NAMESPACE}",
        ]
        operator = {
            "metrics-bind-address": f"{LOOPBACK}:{metrics}",
            "health-probe-bind-address": f"{LOOPBACK}:{probes}",
            "metrics-service-bind-address": f"{LOOPBACK}:{grpc}",
            "cert-dir": self._aggregation.folder,
        }
        self._run("keda-operator", [*environment, self._programs.operator], operator)
        access = ("lister-kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        flags = {
            "secure-port": adapter,
            "port": adapter_metrics,
            "metrics-service-address": f"{LOOPBACK}:{grpc}",
            "cert-dir": self._aggregation.folder,
            "tls-cert-file": self._aggregation.certificate.certificate,
            "tls-private-key-file": self._aggregation.certificate.key,
            **dict.fromkeys(access, self._kubeconfig),
        }
        self._run("keda-adapter", [*environment, self._programs.adapter], flags)
        _METRICS.wait(api, self.check)

    def _run(self, name: str, command: list[Any], flags: Mapping[str, object]) -> None:
        self._processes.start(name, [*command, *(f"--{flag}={value}" for flag, value in flags.items())])
