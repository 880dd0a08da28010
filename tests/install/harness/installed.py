"""The lab for releases: control plane, Prometheus, nodes for workloads, and a host whose pods run from images."""

import json
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from helm_chart import Chart
from helm_releases import RESTRICTED, SYSTEM, Releases
from images import tag
from kubernetes import client, config
from pod_host import HOST, PodHost
from typing_extensions import override
from waiting import until

from controller.resources.translate import pipeline_spec, pool_spec
from controller.resources.validation import validate_files
from simulations.lab.cluster import nodes
from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.cluster.deployments import deployments, pool_nodes, stage_workers
from simulations.lab.cluster.prometheus import PrometheusServer
from simulations.lab.host.binaries import Binaries
from simulations.lab.host.processes import Service

MANIFESTS = Path(__file__).parents[1] / "pipeline.yaml"
OTHER = "other-system"
WORKLOADS = ("speech", "batch", "elsewhere")
INTERVAL_S, LEASE_S = 2, 4
PATIENCE_S = 60.0
_REPOSITORY, _, _TAG = tag("operator").rpartition(":")

VALUES: Mapping[str, Any] = {
    "image": {"repository": _REPOSITORY, "tag": _TAG, "pullPolicy": "Never"},
    "nodeSelector": {"kubernetes.io/hostname": HOST},
    "operator": {"interval": f"{INTERVAL_S}s", "scrapeInterval": "1s"},
    "leaderElection": {"leaseDuration": f"{LEASE_S}s"},
    "podAnnotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
}
"""Values of a release on the lab: the image, its node, short intervals, and metrics for Prometheus."""

HostMaker = Callable[[Path, Path, Mapping[str, str]], PodHost]
"""Makes a host of pods from its folder, a kubeconfig and the Services outside of it (`PodHost`)."""


class InstallLab(Service):
    """A cluster without Sluice, for `releases`; Prometheus is the Service that the chart expects by default."""

    host: PodHost
    """What runs the pods of releases, from `start()` on."""

    def __init__(self, folder: Path, binaries: Binaries, chart: Chart, host: HostMaker) -> None:
        """Set the folder, the programs, and what makes the host of pods; nothing runs before `start()`."""
        super().__init__(folder / "processes")
        self._folder = folder
        self._make_host = host
        self.control_plane = ControlPlane(folder / "kubernetes", binaries, audit=True, tokens=True)
        kubeconfig = self.control_plane.kubeconfig
        self._prometheus = PrometheusServer(folder / "prometheus", binaries, kubeconfig=kubeconfig)
        self.releases = Releases(kubeconfig=kubeconfig, kubectl_program=binaries.kubectl, chart=chart)

    @override
    def _start(self) -> None:
        self._parts.enter_context(self.control_plane)
        self._parts.enter_context(self._prometheus)
        for name in (SYSTEM, OTHER):
            self.releases.namespace(name, RESTRICTED)
        for name in ("monitoring", *WORKLOADS):
            self.releases.namespace(name)
        metadata = {"name": "prometheus-operated", "namespace": "monitoring"}
        self.releases.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 9090}]}}
        )
        with config.new_client_from_config(str(self.control_plane.kubeconfig)) as admin:
            _create_nodes_and_workloads(admin)
        kubeconfig = self.control_plane.kubeconfig
        self._processes.start_module(
            "agent", "simulations.lab.pods.agent", {"kubeconfig": kubeconfig, "except-node": HOST}
        )
        urls = {"default/kubernetes": self.control_plane.url, "monitoring/prometheus-operated": self._prometheus.url}
        outside = {service: url.rpartition("//")[2] for service, url in urls.items()}
        self.host = self._parts.enter_context(self._make_host(self._folder / "host", kubeconfig, outside))

    @override
    def check(self) -> None:
        super().check()
        self.host.check()

    def uninstall(self, namespace: str = SYSTEM, name: str = "sluice") -> None:
        """Uninstall a release and wait until its pods are gone, which Helm does not."""
        self.releases.helm("uninstall", name, "--wait", namespace=namespace, chart=None)
        until(lambda: not self.pods(namespace, name), within_s=PATIENCE_S)

    def clear(self) -> None:
        """Remove what a former release has left: CRDs with their resources, and replicas of workloads."""
        self.releases.kubectl("delete", "crd", "--all")
        for namespace in WORKLOADS:
            self.releases.kubectl("scale", "deployment", "encoder", "--replicas=0", "--namespace", namespace)

    @property
    def prometheus_url(self) -> str:
        """Return the address of Prometheus outside the cluster."""
        return self._prometheus.url

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the series that Prometheus finds."""
        url = f"{self._prometheus.url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def replicas(self, namespace: str) -> int:
        """Return the desired replicas of the workload in `namespace`."""
        self.check()  # without its agents, a test would wait in vain
        found: int = self.releases.get("deployment", "encoder", "--namespace", namespace)["spec"]["replicas"]
        return found

    def pods(self, namespace: str, name: str = "sluice") -> dict[str, Any]:
        """Return the operator's pods of a release, by their names."""
        self.check()
        selector = f"app.kubernetes.io/instance={name}"
        found = self.releases.get("pods", "--namespace", namespace, "--selector", selector)["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def audited_writes(self) -> list[tuple[str, str, str]]:
        """Return time, pod and resource of each accepted write of a status or a scale by an operator, in order."""
        found = []
        for line in self.control_plane.audit_log.read_text().splitlines():
            event = json.loads(line)
            pod = event["user"].get("extra", {}).get("authentication.kubernetes.io/pod-name", [""])[0]
            what = event["objectRef"]["resource"]
            if pod and what != "leases" and event["responseStatus"]["code"] < 300:
                found.append((event["stageTimestamp"], pod, what))
        return sorted(found)


def _create_nodes_and_workloads(admin: client.ApiClient) -> None:
    resources = validate_files([MANIFESTS])
    of_pool = pool_nodes(map(pool_spec, resources.pools))
    core, apps = client.CoreV1Api(admin), client.AppsV1Api(admin)
    nodes.create(core, of_pool.values())
    for manifest in deployments(map(pipeline_spec, resources.pipelines), of_pool, stage_workers(seed=1)):
        manifest["spec"]["replicas"] = 0
        for namespace in WORKLOADS:
            manifest["metadata"]["namespace"] = namespace
            apps.create_namespaced_deployment(namespace, manifest)


def manifests(namespace: str, *, demand: str = "vector(20)") -> Sequence[dict[str, Any]]:
    """Return the pool and a pipeline of `namespace` whose demand is the query `demand`."""
    pool, pipeline = yaml.safe_load_all(MANIFESTS.read_text())
    pipeline["metadata"]["namespace"] = namespace
    pipeline["spec"]["demand"]["query"] = demand
    return pool, pipeline
