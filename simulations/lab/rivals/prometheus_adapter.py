"""prometheus-adapter itself: it answers HPAs that ask for metrics of pods by queries to Prometheus."""

from collections.abc import Mapping
from pathlib import Path

import yaml
from kubernetes import config
from typing_extensions import override

from simulations.lab.host.processes import LOOPBACK, Service, free_ports
from simulations.lab.rivals.aggregation import Aggregated

NAMESPACE = "custom-metrics"
_METRICS = Aggregated(
    group="custom.metrics.k8s.io", version="v1beta1", namespace=NAMESPACE, name="prometheus-metrics-apiserver"
)
_RELIST_S = 5
"""How often it asks Prometheus which series there are. Its default of ten minutes is longer than a race."""


class PrometheusAdapter(Service):
    """The adapter on the cluster of `kubeconfig`, whose programs have the flags of `Aggregation`.

    `queries` are PromQL templates of the adapter by the name of their metric, `prometheus_url` is what they ask.
    """

    def __init__(
        self, folder: Path, program: Path, kubeconfig: Path, *, prometheus_url: str, queries: Mapping[str, str]
    ) -> None:
        """Set the folder for configuration and log; nothing runs before `start()`."""
        super().__init__(folder)
        self._folder = folder
        self._program = program
        self._kubeconfig = kubeconfig
        self._prometheus_url = prometheus_url
        self._queries = queries

    @override
    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = self._folder / "adapter.yaml"
        settings.write_text(yaml.safe_dump({"rules": [_rule(*named) for named in self._queries.items()]}))
        (port,) = free_ports(1)
        access = ("lister-kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        flags = {
            "config": settings,
            "prometheus-url": self._prometheus_url,
            "metrics-relist-interval": f"{_RELIST_S}s",
            "metrics-max-age": "1h",  # of series that pods had which have gone
            "bind-address": LOOPBACK,
            "secure-port": port,
            "cert-dir": self._folder,
            **dict.fromkeys(access, self._kubeconfig),
        }
        with config.new_client_from_config(str(self._kubeconfig)) as api:
            _METRICS.register(api, port)
            command: list[str | Path] = [
                self._program,
                *(f"--{flag}={value}" for flag, value in flags.items()),
            ]
            self._processes.start("prometheus-adapter", command)
            _METRICS.wait(api, self.check)


def _rule(name: str, query: str) -> dict[str, object]:
    """Return the rule for a metric of pods; `query` begins with the series that says which pods have it."""
    return {
        "seriesQuery": 'speech_stage_capacity{namespace!="",pod!=""}',
        "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
        "name": {"as": name},
        "metricsQuery": query,
    }
