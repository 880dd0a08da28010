"""The lab's cluster: control plane with Sluice's resources, Prometheus behind the metrics proxy, nodes and operator.

The node agent runs the pods. The operator has its own ServiceAccount. `simulations.lab.session.run` adds the load.
"""

import http
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import urllib3
import yaml
from kubernetes import client, config, utils
from typing_extensions import override

from controller.core.state.spec import PipelineSpec, PoolSpec
from controller.resources.schema import CRDS
from optimizer.model import PoolName
from simulations.lab.cluster import nodes
from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.cluster.deployments import PodOf, config_maps, deployments, pool_nodes, stage_workers
from simulations.lab.cluster.nodes import CONFLICT, FaultyPool, tolerated
from simulations.lab.cluster.prometheus import PrometheusServer
from simulations.lab.faults.metrics_proxy import MetricsProxy
from simulations.lab.host.binaries import Binaries
from simulations.lab.host.processes import LOOPBACK, ProcessError, Service, free_ports
from simulations.scenario.values import STUCK

_OPERATOR_NAMESPACE = "sluice-system"
_OPERATOR_ACCOUNT = "sluice"
_OPERATOR_POD = "sluice-0"
_ESTABLISHED_S = 20.0
_POLL_S = 0.05
_TIMEOUT_S = (3, 10)

OPERATOR = ("-m", "controller", "operator")
"""The arguments of Python that start the operator."""


class LabCluster(Service):
    """A cluster with all its data in one folder.

    `metrics` is the proxy in front of Prometheus, which injects metrics faults. `pools` has the nodes of each pool,
    under faults; change the counters of a pool, then call `settle_nodes`. The ingress must serve its metrics on
    `ingress_port`. Prometheus scrapes it, the pods and the operator.
    """

    def __init__(
        self,
        folder: Path,
        binaries: Binaries,
        *,
        seed: int = 1,
        scrape_interval_s: float = 1.0,
        owned: Mapping[str, Sequence[str]] = MappingProxyType({}),
        flags: Mapping[str, Mapping[str, object]] = MappingProxyType({}),
    ) -> None:
        """Choose the ports; nothing runs before `start()`. `seed` is for the service times of the workers.

        `owned` has further endpoints that Prometheus scrapes, by the namespace of their series. `flags` are those of
        `ControlPlane`.
        """
        super().__init__(folder / "processes")
        self.folder = folder
        self.ingress_port, self.operator_port, self._agent_port, proxy_port = free_ports(4)
        self._seed = seed
        self._scrape_interval_s = scrape_interval_s
        self._control_plane = ControlPlane(folder / "kubernetes", binaries, flags=flags)
        self._prometheus = PrometheusServer(
            folder / "prometheus",
            binaries,
            kubeconfig=self._control_plane.kubeconfig,
            scrape_interval_s=scrape_interval_s,
            targets=[f"{LOOPBACK}:{self.ingress_port}", f"{LOOPBACK}:{self.operator_port}"],
            owned=owned,
        )
        self._proxy_port = proxy_port
        self.pools: dict[PoolName, FaultyPool] = {}
        self._factors: dict[str, float] = {}
        self.metrics: MetricsProxy
        self.kubernetes_version: str

    @property
    def kubeconfig(self) -> Path:
        """Return the path of the kubeconfig of the cluster's administrator."""
        return self._control_plane.kubeconfig

    @property
    def operator_log(self) -> Path:
        """Return the path of the operator's log; there is no file before the operator starts."""
        return self.folder / "processes" / "operator.log"

    @property
    def prometheus_url(self) -> str:
        """Return the URL of Prometheus itself, without the metrics proxy."""
        return self._prometheus.url

    @property
    def operator_url(self) -> str:
        """Return the base URL of the operator's metrics and probes."""
        return f"http://{LOOPBACK}:{self.operator_port}"

    @override
    def _start(self) -> None:
        self._parts.enter_context(self._control_plane)
        self._parts.enter_context(self._prometheus)
        self.metrics = self._parts.enter_context(MetricsProxy(self._prometheus.url, self._proxy_port))
        with self.admin() as api:
            self.kubernetes_version = client.VersionApi(api).get_code(_request_timeout=_TIMEOUT_S).git_version
            install(api)
        self._processes.start_module(
            "agent",
            "simulations.lab.pods.agent",
            {"kubeconfig": self.kubeconfig, "control-port": self._agent_port},
        )

    @override
    def check(self) -> None:
        self._control_plane.check()
        self._prometheus.check()
        super().check()

    def admin(self) -> client.ApiClient:
        """Return a client with the administrator's rights; the caller closes it."""
        return config.new_client_from_config(str(self.kubeconfig))

    def apply(
        self,
        documents: Iterable[Mapping[str, Any]],
        pipelines: Iterable[PipelineSpec],
        pools: Iterable[PoolSpec],
        pod: PodOf | None = None,
    ) -> None:
        """Create the nodes of the pools, the Deployments that the pipelines target, and the resources themselves.

        `documents` are the resources as users write them; `pipelines` and `pools` are the specs of the same resources,
        but with the service times of the workers, which the documents may declare otherwise. `pod` says what the pods
        are, by default stage workers. Objects that exist already stay as they are.

        Raises:
            UnsupportedManifest: the manifests need a feature that the lab does not have.
        """
        pipelines = tuple(pipelines)
        of_pool = pool_nodes(pools)
        self.pools = {name: FaultyPool(nodes) for name, nodes in of_pool.items()}
        with self.admin() as api:
            core = client.CoreV1Api(api)
            nodes.create(core, of_pool.values())
            for namespace in sorted({pipeline.namespace for pipeline in pipelines}):
                with tolerated(CONFLICT):
                    core.create_namespace({"metadata": {"name": namespace}}, _request_timeout=_TIMEOUT_S)
            for manifest in config_maps(pipelines):
                _grant_batching(api, manifest["metadata"]["namespace"])
                with tolerated(CONFLICT):
                    core.create_namespaced_config_map(
                        manifest["metadata"]["namespace"], manifest, _request_timeout=_TIMEOUT_S
                    )
            for manifest in deployments(pipelines, of_pool, pod or stage_workers(seed=self._seed)):
                with tolerated(CONFLICT):
                    client.AppsV1Api(api).create_namespaced_deployment(
                        manifest["metadata"]["namespace"], manifest, _request_timeout=_TIMEOUT_S
                    )
            custom = client.CustomObjectsApi(api)
            for document in documents:
                with tolerated(CONFLICT):
                    _create_resource(custom, document)

    def settle_nodes(self, pool: PoolName) -> None:
        """Change the nodes of a pool on the API server to match the present faults of the pool."""
        with self.admin() as api:
            self.pools[pool].settle(client.CoreV1Api(api))

    def slow_down(self, path: str, factor: float) -> None:
        """Multiply by `factor` the factor that the node agent applies at `path` of its control endpoint.

        Raises:
            ProcessError: the agent refused the new factor.
        """
        self._factors[path] = self._factors.get(path, 1.0) * factor
        self._tell_agent(path, repr(self._factors[path]))

    def limit_by_quota(self, path: str, *, on: bool) -> None:
        """Let the processes of a stage, NAMESPACE/PIPELINE/STAGE, have their share of a core by a quota, or evenly.

        Raises:
            ProcessError: the agent refused it.
        """
        self._tell_agent(f"quotas/{path}", json.dumps(on))

    def stick(self, path: str, *, on: bool) -> None:
        """Let the oldest worker of a stage, NAMESPACE/PIPELINE/STAGE, complete nothing any more, or again.

        Raises:
            ProcessError: the agent refused it.
        """
        self._tell_agent(f"stuck/{path}", repr(STUCK if on else 1.0))

    def tell_ingress(self, path: str, value: object) -> None:
        """Set what the ingress does with items, to a value in JSON: see `simulations.lab.traffic.ingress`.

        Raises:
            ProcessError: the ingress refused it.
        """
        self._put(f"http://{LOOPBACK}:{self.ingress_port}/{path}", json.dumps(value), "the ingress")

    def interfere(self, interference: Mapping[str, float]) -> None:
        """Let replicas on one node slow each other, as the field `interference` of a scenario file says.

        Raises:
            ProcessError: the agent refused it.
        """
        self._tell_agent("interference", json.dumps(interference))

    def _tell_agent(self, path: str, body: str) -> None:
        self._put(f"http://{LOOPBACK}:{self._agent_port}/{path}", body, "the agent")

    @staticmethod
    def _put(url: str, body: str, who: str) -> None:
        answer = urllib3.request("PUT", url, body=body, timeout=_TIMEOUT_S[1], retries=False)
        if answer.status != http.HTTPStatus.NO_CONTENT:
            raise ProcessError(f"{who} refused {url}: {answer.data.decode(errors='replace').strip()}")

    def start_operator(
        self,
        *,
        interval_s: float,
        metrics: str = "prometheus",
        program: Sequence[str] = OPERATOR,
        flags: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Start the operator under its own ServiceAccount, with the metrics proxy as its Prometheus.

        `interval_s` is the time between its cycles. `metrics` names its metrics sources, as the option `--metrics`
        does; direct scrapes include the ingress. `program` are the arguments of Python before the operator's flags,
        and `flags` further ones.
        """
        kubeconfig = self.folder / "operator.kubeconfig"
        self._control_plane.service_account_kubeconfig(
            _OPERATOR_NAMESPACE, _OPERATOR_ACCOUNT, kubeconfig, pod=_OPERATOR_POD
        )
        self._processes.start_program(
            "operator",
            program,
            {
                "kubeconfig": kubeconfig,
                "metrics": metrics,
                "prometheus-url": self.metrics.url,
                "scrape-endpoints": f"http://{LOOPBACK}:{self.ingress_port}/metrics",
                "interval": f"{interval_s:g}s",
                "scrape-interval": f"{self._scrape_interval_s:g}s",
                "port": self.operator_port,
                "pod-name": _OPERATOR_POD,
                "log-format": "json",
                **flags,
            },
        )


def install(api: client.ApiClient, *, policies: bool = True) -> None:
    """Install Sluice's CRDs, the operator's RBAC rules and, with `policies`, its admission policies.

    Raises:
        ProcessError: the API server does not serve the resources in time.
    """
    utils.create_from_dict(api, {"kind": "List", "items": [crd.manifest() for crd in CRDS]})
    for name in ("rbac.yaml", *(("admission.yaml",) if policies else ())):
        for manifest in yaml.safe_load_all((files("controller.kube") / name).read_text(encoding="utf-8")):
            utils.create_from_dict(api, manifest)
    wait_until_established(api, (crd.manifest()["metadata"]["name"] for crd in CRDS))


def _grant_batching(api: client.ApiClient, namespace: str) -> None:
    """Grant the operator what the chart's `rbac.batching` does, in one namespace."""
    rbac, metadata = client.RbacAuthorizationV1Api(api), {"name": "sluice-batching"}
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", **metadata}
    subjects = [{"kind": "ServiceAccount", "name": _OPERATOR_ACCOUNT, "namespace": _OPERATOR_NAMESPACE}]
    with tolerated(CONFLICT):
        rbac.create_namespaced_role(namespace, {"metadata": metadata, "rules": rules}, _request_timeout=_TIMEOUT_S)
    with tolerated(CONFLICT):
        rbac.create_namespaced_role_binding(
            namespace,
            {"metadata": metadata, "roleRef": reference, "subjects": subjects},
            _request_timeout=_TIMEOUT_S,
        )


def wait_until_established(api: client.ApiClient, names: Iterable[str]) -> None:
    """Wait until the API server serves the resources of the CRDs with these names.

    Raises:
        ProcessError: the API server does not serve them in time.
    """
    extensions = client.ApiextensionsV1Api(api)
    deadline = time.monotonic() + _ESTABLISHED_S
    for name in names:
        while not _is_established(extensions, name):
            if time.monotonic() > deadline:
                raise ProcessError(f"the API server did not establish {name} within {_ESTABLISHED_S:g} s")
            time.sleep(_POLL_S)


def _is_established(extensions: client.ApiextensionsV1Api, name: str) -> bool:
    answer = extensions.read_custom_resource_definition(name, _preload_content=False, _request_timeout=_TIMEOUT_S)
    conditions = (json.loads(answer.data).get("status") or {}).get("conditions") or ()  # null at first
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


def _create_resource(custom: client.CustomObjectsApi, document: Mapping[str, Any]) -> None:
    group, _, version = document["apiVersion"].partition("/")
    kind = next((crd for crd in CRDS if crd.kind == document["kind"]), None)
    if kind is None:
        return  # an object of another API, such as a Deployment: the lab creates its own workloads
    namespace = document["metadata"].get("namespace")
    if not kind.namespaced:
        custom.create_cluster_custom_object(group, version, kind.plural, dict(document), _request_timeout=_TIMEOUT_S)
    else:
        custom.create_namespaced_custom_object(
            group, version, namespace or "default", kind.plural, dict(document), _request_timeout=_TIMEOUT_S
        )
