"""Servers that answer a part of the Kubernetes API, such as metrics for autoscalers, behind the lab's API server."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from kubernetes import client, utils

from simulations.lab.host.certificates import Signed, authority, signed_by
from simulations.lab.host.processes import ProcessError

_READY_S = 60.0
_POLL_S = 0.2
_TIMEOUT_S = (3, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """What makes the API server pass requests on: an authority, and a certificate signed by it that both sides use.

    https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/
    """

    folder: Path
    signer: Signed
    certificate: Signed

    @classmethod
    def create(cls, folder: Path) -> Self:
        """Write the certificates to `folder`, under the names that controllers expect: tls.crt, tls.key, ca.crt."""
        folder.mkdir(parents=True, exist_ok=True)
        signer = authority(folder, "ca")
        return cls(folder=folder, signer=signer, certificate=signed_by(signer, folder, "tls"))

    @property
    def flags(self) -> Mapping[str, Mapping[str, object]]:
        """Return the flags of the control plane's programs: see `ControlPlane`."""
        return MappingProxyType(
            {
                "kube-apiserver": {
                    "proxy-client-cert-file": self.certificate.certificate,
                    "proxy-client-key-file": self.certificate.key,
                    "requestheader-client-ca-file": self.signer.certificate,
                    "requestheader-username-headers": "X-Remote-User",
                    "requestheader-group-headers": "X-Remote-Group",
                    "requestheader-extra-headers-prefix": "X-Remote-Extra-",
                }
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated:
    """A server of the API group `group` in `version`, in `namespace`; `name` is that of its Service."""

    group: str
    version: str
    namespace: str
    name: str

    def register(self, api: client.ApiClient, port: int) -> None:
        """Let the API server pass requests about the group on to `port` of this machine."""
        for body in self._objects(port):
            utils.create_from_dict(api, body)

    def wait(self, api: client.ApiClient, check: Callable[[], None]) -> None:
        """Wait until the API server gets answers; `check` raises an error if a program has ended.

        Raises:
            ProcessError: there was no answer in time.
        """
        deadline = time.monotonic() + _READY_S
        while not self._answers(api):
            check()
            if time.monotonic() > deadline:
                raise ProcessError(f"the API server did not serve {self.group}/{self.version} within {_READY_S:g} s")
            time.sleep(_POLL_S)

    def _answers(self, api: client.ApiClient) -> bool:
        service = client.CustomObjectsApi(api).get_cluster_custom_object(
            "apiregistration.k8s.io", "v1", "apiservices", f"{self.version}.{self.group}", _request_timeout=_TIMEOUT_S
        )
        conditions = service.get("status", {}).get("conditions", ())
        return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)

    def _objects(self, port: int) -> tuple[dict[str, Any], ...]:
        service = {"name": self.name, "namespace": self.namespace, "port": port}
        return (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}},
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": self.name, "namespace": self.namespace},
                # A Service with endpoints cannot have loopback addresses.
                "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
            },
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{self.version}.{self.group}"},
                "spec": {
                    "group": self.group,
                    "version": self.version,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "insecureSkipTLSVerify": True,
                    "service": service,
                },
            },
        )
