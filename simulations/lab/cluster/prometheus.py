"""A real Prometheus on loopback, which discovers the lab's pods by their annotations, as in production."""

import contextlib
import http.client
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import yaml
from typing_extensions import override

from simulations.lab.host.binaries import Binaries
from simulations.lab.host.processes import LOOPBACK, Service, free_ports

_READY_S = 30.0
_READ_S = 5.0
_DISCOVERY_MS = 5000
_ANNOTATION = "__meta_kubernetes_pod_annotation_prometheus_io"
_POD_LABEL = "__meta_kubernetes_pod_label"


class PrometheusServer(Service):
    """A Prometheus server with its data in one folder; `url` is its address.

    It scrapes the running pods annotated with `prometheus.io/scrape: "true"` and `prometheus.io/port`. Their series get
    the labels `namespace`, `pod`, `node`, `app` and the pod's labels `sluice.dev/…` (as `sluice_dev_…`). It also
    scrapes the static `targets`. Labels in their own metrics have priority: an exporter names the pods that it reads.
    """

    def __init__(
        self,
        folder: Path,
        binaries: Binaries,
        *,
        kubeconfig: Path,
        scrape_interval_s: float = 1.0,
        targets: Sequence[str] = (),
        owned: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """Set the configuration; nothing runs before `start()`.

        Args:
            folder: for configuration, data and log; `start()` deletes the data of an earlier server.
            binaries: the lab's programs.
            kubeconfig: of an account with the right to list and watch pods in all namespaces.
            scrape_interval_s: time between scrapes in seconds, at least 0.001.
            targets: further endpoints to scrape, as `host:port`.
            owned: further endpoints whose series belong to a namespace, by the namespace.
        """
        self._folder = folder.resolve()
        super().__init__(self._folder)
        self._binaries = binaries
        self._kubeconfig = kubeconfig.resolve()
        self._interval_ms = round(scrape_interval_s * 1000)
        self._targets = list(targets)
        self._owned = {namespace: list(own) for namespace, own in owned.items()}
        self.url = ""

    @override
    def _start(self) -> None:
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = self._folder / "prometheus.yaml"
        settings.write_text(yaml.safe_dump(self._settings(), sort_keys=False))
        (port,) = free_ports(1)
        self.url = f"http://{LOOPBACK}:{port}"
        child = self._processes.start(
            "prometheus",
            [
                self._binaries.prometheus,
                f"--config.file={settings}",
                f"--storage.tsdb.path={self._folder / 'data'}",
                "--storage.tsdb.retention.time=1d",
                f"--web.listen-address={LOOPBACK}:{port}",
                # As often as the scrapes: the default of 5 s is meant for scrape intervals of 15 s and more.
                f"--scrape.discovery-reload-interval={min(self._interval_ms, _DISCOVERY_MS)}ms",
                "--log.level=warn",
            ],
        )
        child.wait_until(lambda: _is_ready(port), _READY_S)

    def _settings(self) -> dict[str, object]:
        interval = f"{self._interval_ms}ms"
        return {
            "global": {"scrape_interval": interval, "scrape_timeout": interval},
            "scrape_configs": [
                {
                    "job_name": "pods",
                    "honor_labels": True,
                    "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(self._kubeconfig)}],
                    "relabel_configs": [
                        {"source_labels": [f"{_ANNOTATION}_scrape"], "regex": "true", "action": "keep"},
                        {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Running", "action": "keep"},
                        {
                            "source_labels": ["__meta_kubernetes_pod_ip", f"{_ANNOTATION}_port"],
                            "separator": ":",
                            "target_label": "__address__",
                        },
                        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
                        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
                        {"source_labels": ["__meta_kubernetes_pod_node_name"], "target_label": "node"},
                        {"regex": f"{_POD_LABEL}_(app|sluice_dev_.+)", "action": "labelmap"},
                    ],
                },
                {"job_name": "static", "honor_labels": True, "static_configs": [{"targets": self._targets}]},
                {
                    "job_name": "owned",
                    "static_configs": [
                        {"targets": own, "labels": {"namespace": namespace}} for namespace, own in self._owned.items()
                    ],
                },
            ],
        }


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_READ_S)
    try:
        with contextlib.closing(connection):
            connection.request("GET", "/-/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):  # no listener yet
        return False
