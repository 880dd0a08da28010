"""A cluster as its administrator sees it: kubectl and releases of Helm."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helm_chart import CHART, Chart, Values

SYSTEM = "sluice-system"
# Every kind that the chart makes, but CRDs.
KINDS = (
    "serviceaccounts,services,deployments,leases,poddisruptionbudgets,networkpolicies,roles,rolebindings,configmaps,"
    "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,flowschemas"
)
OURS = "app.kubernetes.io/managed-by=Helm,app.kubernetes.io/name=sluice"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """Runs kubectl and Helm against the cluster of `kubeconfig`."""

    kubeconfig: Path
    kubectl_program: Path
    chart: Chart

    def kubectl(self, *arguments: str, given: Any = None) -> str:
        """Return the output of kubectl; `given` is a manifest for its input."""
        command: list[str | Path] = [self.kubectl_program, "--kubeconfig", self.kubeconfig, *arguments]
        done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr, done.stderr
        return done.stdout

    def apply(self, manifest: Any, *arguments: str) -> None:
        """Apply a manifest on the server, which refuses unknown fields."""
        self.kubectl("apply", "--server-side", "--filename=-", "--validate=strict", *arguments, given=manifest)

    def get(self, kind: str, *arguments: str) -> Any:
        """Return what `kubectl get` finds, as JSON."""
        return json.loads(self.kubectl("get", kind, *arguments, "--output=json"))

    def namespace(self, name: str, labels: dict[str, str] | None = None) -> None:
        """Create a namespace."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}})

    def helm(
        self, *arguments: str, values: Values | None = None, namespace: str = SYSTEM, chart: Path | None = CHART
    ) -> str:
        """Return the output of Helm, run for a release in `namespace`; without a `chart`, for one that is there.

        Raises:
            ChartRefused: Helm failed.
        """
        verb, *rest = arguments
        folder = [] if chart is None else [chart]
        return self.chart.run(
            verb, *rest, *folder, "--namespace", namespace, "--kubeconfig", self.kubeconfig,
            values=None if chart is None else values or {},
        )  # fmt: skip

    def ours(self) -> list[str]:
        """Return the objects of all releases but the CRDs, as `kind/name`."""
        items = self.get(KINDS, "--all-namespaces", "--selector", OURS)["items"]
        return [f"{item['kind']}/{item['metadata']['name']}" for item in items]
