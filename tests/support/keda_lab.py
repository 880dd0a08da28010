"""KEDA itself on the lab's control plane: its operator and its metrics adapter, registered with the API server."""

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from certificates import authority, signed_by
from kubernetes import client, config, utils

from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.host.binaries import Binaries, Keda, ensure, ensure_keda
from simulations.lab.host.processes import LOOPBACK, Processes, free_ports

NAMESPACE = "keda"
_GROUP = "external.metrics.k8s.io"
_READY_S = 60.0


class KedaLab:
    """A control plane with KEDA while its context is entered; `kubeconfig` and `api` have all rights."""

    def __init__(self, folder: Path, binaries: Binaries, keda: Keda) -> None:
        self._folder, self._keda = folder, keda
        self._certificates = folder / "certificates"
        self._certificates.mkdir()
        signer = authority(self._certificates, "ca")
        signed_by(signer, self._certificates, "tls")
        certificate, key = self._certificates / "tls.crt", self._certificates / "tls.key"
        self._control_plane = ControlPlane(
            folder / "kubernetes",
            binaries,
            flags={
                "kube-apiserver": {
                    "proxy-client-cert-file": certificate,
                    "proxy-client-key-file": key,
                    "requestheader-client-ca-file": signer.certificate,
                    "requestheader-username-headers": "X-Remote-User",
                    "requestheader-group-headers": "X-Remote-Group",
                    "requestheader-extra-headers-prefix": "X-Remote-Extra-",
                },
                "kube-controller-manager": {"horizontal-pod-autoscaler-sync-period": "1s"},
            },
        )
        self._processes = Processes(folder / "keda")
        self.kubeconfig = self._control_plane.kubeconfig
        self.api: client.ApiClient

    def __enter__(self) -> Self:
        self._control_plane.start()
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.stop()
        self._control_plane.stop()

    def _start(self) -> None:
        self.api = config.new_client_from_config(str(self.kubeconfig))
        for crd in sorted(self._keda.crds.glob("*.yaml")):
            utils.create_from_dict(self.api, yaml.safe_load(crd.read_text()))
        metrics, probes, grpc, adapter, adapter_metrics = free_ports(5)
        environment = [
            "/usr/bin/env",
            f"KUBECONFIG={self.kubeconfig}",
            "WATCH_NAMESPACE=",
            f"POD_NAMESPACE={NAMESPACE}",
            f"KEDA_CLUSTER_OBJECT_NAMESPACE={NAMESPACE}",
        ]
        for body in _objects(adapter):
            utils.create_from_dict(self.api, body)
        operator = {
            "metrics-bind-address": f"{LOOPBACK}:{metrics}",
            "health-probe-bind-address": f"{LOOPBACK}:{probes}",
            "metrics-service-bind-address": f"{LOOPBACK}:{grpc}",
            "cert-dir": self._certificates,
        }
        self._run("operator", [*environment, self._keda.operator], operator)
        access = ("lister-kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        adapter_flags = {
            "secure-port": adapter,
            "port": adapter_metrics,
            "metrics-service-address": f"{LOOPBACK}:{grpc}",
            "cert-dir": self._certificates,
            "tls-cert-file": self._certificates / "tls.crt",
            "tls-private-key-file": self._certificates / "tls.key",
            **dict.fromkeys(access, self.kubeconfig),
        }
        self._run("adapter", [*environment, self._keda.adapter], adapter_flags)
        deadline = time.monotonic() + _READY_S
        while not self._registered():
            self._processes.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the API server does not serve {_GROUP}; logs are in {self._folder}")
            time.sleep(0.2)

    def _run(self, name: str, command: list[Any], flags: dict[str, Any]) -> None:
        self._processes.start(name, [*command, *(f"--{flag}={value}" for flag, value in flags.items())])

    def _registered(self) -> bool:
        service = client.CustomObjectsApi(self.api).get_cluster_custom_object(
            "apiregistration.k8s.io", "v1", "apiservices", f"v1beta1.{_GROUP}"
        )
        conditions = service.get("status", {}).get("conditions", ())
        return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)


def _objects(port: int) -> tuple[dict[str, Any], ...]:
    name = "keda-metrics-apiserver"
    return (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"v1beta1.{_GROUP}"},
            "spec": {
                "group": _GROUP,
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"name": name, "namespace": NAMESPACE, "port": port},
            },
        },
    )


def build() -> tuple[Binaries, Keda]:
    """Return the programs of the lab and of KEDA, after building those that are not in the cache."""

    def show(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    return ensure(show), ensure_keda(show)


if __name__ == "__main__":
    build()
