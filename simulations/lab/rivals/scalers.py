"""The rivals as what scales a live run: see `simulations.lab.session.scaler.Scaler`."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from kubernetes import client

from controller.core.state.spec import PipelineSpec
from optimizer.model import PlacementId
from simulations.lab.cluster.cluster import LabCluster
from simulations.lab.host.binaries import Keda as KedaPrograms
from simulations.lab.rivals.aggregation import Aggregation
from simulations.lab.rivals.keda import KedaServer
from simulations.lab.rivals.objects import Scaled, adapter_queries, hpa, scaled, scaled_object
from simulations.lab.rivals.prometheus_adapter import PrometheusAdapter
from simulations.policies.hpa import HpaSettings
from simulations.policies.keda import KedaSettings

_TIMEOUT_S = (3, 10)


def _sync_period(aggregation: Aggregation, interval_s: float) -> Mapping[str, Mapping[str, object]]:
    """Return the flags of the control plane with which HPAs are synchronised every `interval_s`."""
    period = {"horizontal-pod-autoscaler-sync-period": f"{interval_s:g}s"}
    return {**aggregation.flags, "kube-controller-manager": period}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hpa:
    """The HPA of the cluster's controller-manager, with metrics of pods through prometheus-adapter at `adapter`."""

    settings: HpaSettings
    adapter: Path
    aggregation: Aggregation
    policy: ClassVar[str] = "hpa"

    @property
    def flags(self) -> Mapping[str, Mapping[str, object]]:
        """Return the flags of the control plane's programs."""
        return _sync_period(self.aggregation, self.settings.interval_s)

    @contextlib.contextmanager
    def scaling(self, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...]) -> Iterator[None]:
        """Start the adapter, and create an HPA for each stage."""
        adapter = PrometheusAdapter(
            cluster.folder / "prometheus-adapter",
            self.adapter,
            cluster.kubeconfig,
            prometheus_url=cluster.metrics.url,
            queries=adapter_queries(self.settings),
        )
        with _serving(adapter, cluster, pipelines) as (api, works):
            for work in works:
                client.AutoscalingV2Api(api).create_namespaced_horizontal_pod_autoscaler(
                    work.namespace, hpa(work, self.settings), _request_timeout=_TIMEOUT_S
                )
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Keda:
    """KEDA with its trigger for Prometheus. Its adapter listens on all addresses of the network namespace."""

    settings: KedaSettings
    programs: KedaPrograms
    aggregation: Aggregation
    policy: ClassVar[str] = "keda"

    @property
    def flags(self) -> Mapping[str, Mapping[str, object]]:
        """Return the flags of the control plane's programs."""
        return _sync_period(self.aggregation, self.settings.interval_s)

    @contextlib.contextmanager
    def scaling(self, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...]) -> Iterator[None]:
        """Start KEDA, and create a ScaledObject for each stage."""
        keda = KedaServer(cluster.folder / "keda", self.programs, self.aggregation, cluster.kubeconfig)
        with _serving(keda, cluster, pipelines) as (api, works):
            for work in works:
                client.CustomObjectsApi(api).create_namespaced_custom_object(
                    "keda.sh",
                    "v1alpha1",
                    work.namespace,
                    "scaledobjects",
                    scaled_object(work, self.settings, cluster.metrics.url),
                    _request_timeout=_TIMEOUT_S,
                )
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticPeak:
    """Sets the replicas of each placement once, to those of the plan for the peak."""

    replicas: Mapping[PlacementId, int]
    policy: ClassVar[str] = "static-peak"
    flags: ClassVar[Mapping[str, Mapping[str, object]]] = MappingProxyType({})

    @contextlib.contextmanager
    def scaling(self, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...]) -> Iterator[None]:
        """Set the replicas."""
        with cluster.admin() as api:
            for pipeline in pipelines:
                for stage in pipeline.stages:
                    for own in stage.placements:
                        count = self.replicas.get((pipeline.key, stage.name, own.name), 0)
                        _scale(api, pipeline.namespace, own.target.name, count)
        yield


@contextlib.contextmanager
def _serving(
    server: PrometheusAdapter | KedaServer, cluster: LabCluster, pipelines: tuple[PipelineSpec, ...]
) -> Iterator[tuple[client.ApiClient, list[Scaled]]]:
    """Yield a client and the Deployments to scale, while `server` runs; each Deployment has its least replicas first.

    An HPA does not act on one that has none.
    """
    works = [work for pipeline in pipelines for work in scaled(pipeline)]
    with cluster.admin() as api:
        for work in works:
            _scale(api, work.namespace, work.name, work.least)
        with server:
            yield api, works
            server.check()


def _scale(api: client.ApiClient, namespace: str, name: str, replicas: int) -> None:
    client.AppsV1Api(api).patch_namespaced_deployment_scale(
        name, namespace, {"spec": {"replicas": replicas}}, _request_timeout=_TIMEOUT_S
    )
