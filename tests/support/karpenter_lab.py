"""Karpenter itself on a control plane of the lab, with its cloud provider for KWOK, which makes Node objects.

The lab's agent reports these nodes as ready and runs their pods.
"""

import contextlib
import http.client
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config, utils
from typing_extensions import override

from simulations.lab.cluster.cluster import wait_until_established
from simulations.lab.cluster.nodes import NODE_MILLICORES
from simulations.lab.host.binaries import Binaries, Karpenter, ensure, ensure_karpenter
from simulations.lab.host.processes import LOOPBACK, ProcessError, Service, free_ports

NODE_POOL_LABEL = "karpenter.sh/nodepool"

_API = ("karpenter.sh", "v1")
_NODE_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass"}
_ABSENT = "out-of-capacity"
"""The name of a node class that does not exist."""
_READY_S = 60.0
_POLL_S = 0.1
_TIMEOUT_S = (3, 10)
# What Karpenter's provider for KWOK subtracts from the capacity of an instance type.
_RESERVED_MILLICORES, _RESERVED_MEBIBYTES = 100, 10


class KarpenterOnLab(Service):
    """A running Karpenter, with one instance type, whose nodes hold what a node of the lab holds.

    It listens on all addresses: run it in a network namespace without devices.
    """

    def __init__(self, folder: Path, karpenter: Karpenter, kubeconfig: Path) -> None:
        """Set the cluster; nothing runs before `start()`."""
        super().__init__(folder / "logs")
        self._folder = folder
        self._karpenter = karpenter
        self._kubeconfig = kubeconfig
        self.api: client.ApiClient

    @override
    def _start(self) -> None:
        self.api = self._parts.enter_context(config.new_client_from_config(str(self._kubeconfig)))
        crds = [yaml.safe_load(crd.read_text()) for folder in self._karpenter.crds for crd in folder.glob("*.yaml")]
        for crd in crds:
            utils.create_from_dict(self.api, crd)
        # Karpenter has no indexes of resources that are not there when it starts.
        wait_until_established(self.api, (crd["metadata"]["name"] for crd in crds))
        self._folder.mkdir(parents=True, exist_ok=True)
        instance_types = self._folder / "instance-types.json"
        instance_types.write_text(json.dumps([_instance_type("g6.xlarge", price=0.8)]))
        metrics, probes = free_ports(2)
        program = self._processes.start(
            "karpenter",
            [
                "/usr/bin/env",
                f"KUBECONFIG={self._kubeconfig}",
                self._karpenter.program,
                f"--instance-types-file-path={instance_types}",
                f"--metrics-port={metrics}",
                f"--health-probe-port={probes}",
                "--disable-leader-election=true",
            ],
        )
        program.wait_until(lambda: _answers(probes, "/readyz"), _READY_S)

    def add_node_class(self, name: str, *, registration_delay_s: int) -> None:
        """Create a node class, whose nodes appear `registration_delay_s` after their launch."""
        body = {
            "apiVersion": "karpenter.kwok.sh/v1alpha1",
            "kind": _NODE_CLASS["kind"],
            "metadata": {"name": name},
            "spec": {"nodeRegistrationDelay": f"{registration_delay_s}s"},
        }
        self._create("karpenter.kwok.sh", "v1alpha1", "kwoknodeclasses", body)

    def add_node_pool(self, manifest: Mapping[str, Any], *, node_class: str) -> None:
        """Create a NodePool with another node class, and wait until Karpenter finds it ready."""
        template = manifest["spec"]["template"]
        its_class = {"nodeClassRef": {**_NODE_CLASS, "name": node_class}}
        spec = {**manifest["spec"], "template": {**template, "spec": {**template["spec"], **its_class}}}
        self._create(*_API, "nodepools", {**manifest, "spec": spec})
        name = manifest["metadata"]["name"]
        deadline = time.monotonic() + _READY_S
        while not _is_ready(self._objects().get_cluster_custom_object(*_API, "nodepools", name)):
            if time.monotonic() > deadline:
                raise ProcessError(f"Karpenter did not report the NodePool {name} as ready within {_READY_S:g} s")
            time.sleep(_POLL_S)

    def patch_node_pool(self, name: str, patch: Mapping[str, Any]) -> None:
        """Apply a merge patch to a NodePool."""
        self._objects().patch_cluster_custom_object(*_API, "nodepools", name, patch, _request_timeout=_TIMEOUT_S)

    def set_shortage(self, *, on: bool) -> None:
        """Let every launch of a node fail for want of capacity, or end that.

        The provider for KWOK answers so where the node class does not exist, which an admission policy names in every
        new NodeClaim. Everything else is Karpenter's own: Events, the deletion of the NodeClaim, the next attempt.
        """
        policies = client.AdmissionregistrationV1Api(self.api)
        if not on:
            policies.delete_mutating_admission_policy_binding(_ABSENT, _request_timeout=_TIMEOUT_S)
            policies.delete_mutating_admission_policy(_ABSENT, _request_timeout=_TIMEOUT_S)
            return
        rule = {"apiGroups": ["karpenter.sh"], "apiVersions": ["v1"], "operations": ["CREATE"]}
        changed = f'Object{{spec: Object.spec{{nodeClassRef: Object.spec.nodeClassRef{{name: "{_ABSENT}"}}}}}}'
        policy = {
            "metadata": {"name": _ABSENT},
            "spec": {
                "matchConstraints": {"resourceRules": [{**rule, "resources": ["nodeclaims"]}]},
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "mutations": [
                    {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": changed}},
                ],
            },
        }
        policies.create_mutating_admission_policy(policy, _request_timeout=_TIMEOUT_S)
        binding = {"metadata": {"name": _ABSENT}, "spec": {"policyName": _ABSENT}}
        policies.create_mutating_admission_policy_binding(binding, _request_timeout=_TIMEOUT_S)

    def node_claims(self) -> list[dict[str, Any]]:
        """Return the NodeClaims."""
        found = self._objects().list_cluster_custom_object(*_API, "nodeclaims", _request_timeout=_TIMEOUT_S)
        items: list[dict[str, Any]] = found["items"]
        return items

    def nodes(self) -> list[client.V1Node]:
        """Return the nodes that Karpenter has made."""
        found = client.CoreV1Api(self.api).list_node(label_selector=NODE_POOL_LABEL, _request_timeout=_TIMEOUT_S)
        nodes: list[client.V1Node] = found.items
        return nodes

    def _objects(self) -> client.CustomObjectsApi:
        return client.CustomObjectsApi(self.api)

    def _create(self, group: str, version: str, plural: str, body: Mapping[str, Any]) -> None:
        self._objects().create_cluster_custom_object(group, version, plural, dict(body), _request_timeout=_TIMEOUT_S)


def build() -> tuple[Binaries, Karpenter]:
    """Return the programs of the lab and Karpenter, after building those that are not in the cache."""

    def show(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    return ensure(show), ensure_karpenter(show)


def _instance_type(name: str, *, price: float) -> dict[str, Any]:
    """Return an instance type of KWOK in one zone, on demand; the lab's replicas request shares of its CPU."""
    offering = {
        "Price": price,
        "Available": True,
        "Requirements": [
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["lab-a"]},
        ],
    }
    return {
        "name": name,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "offerings": [offering],
        "resources": {
            "cpu": f"{NODE_MILLICORES + _RESERVED_MILLICORES}m",
            "memory": f"{192 * 1024 + _RESERVED_MEBIBYTES}Mi",
            "pods": "250",
            "nvidia.com/gpu": "1",
        },
    }


def _answers(port: int, path: str) -> bool:
    try:
        with contextlib.closing(http.client.HTTPConnection(LOOPBACK, port, timeout=_TIMEOUT_S[1])) as connection:
            connection.request("GET", path)
            return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):  # no listener yet
        return False


def _is_ready(resource: Mapping[str, Any]) -> bool:
    conditions = resource.get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


if __name__ == "__main__":
    build()
