"""The DaemonSet of the NIC exporter: off by default, and with the rights that it needs and no others."""

from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from helm_chart import Chart, ChartRefused, Values, of_kind, one

from controller.commands.nic_exporter import nic_exporter


class TestNicExporter:
    VALUES: ClassVar[Values] = {"nicExporter": {"enabled": True}}

    def pod(self, chart: Chart, values: Values | None = None) -> dict[str, Any]:
        return dict(one(chart.render(values or self.VALUES), "DaemonSet")["spec"]["template"])

    def test_is_off_by_default(self, chart: Chart) -> None:
        assert of_kind(chart.render({"serviceMonitor": {"enabled": True}}), "DaemonSet", "PodMonitor") == []

    def test_runs_in_the_namespaces_of_the_node_with_two_capabilities(self, chart: Chart) -> None:
        spec = self.pod(chart)["spec"]
        assert (spec["hostNetwork"], spec["hostPID"]) == (True, True)
        assert "hostIPC" not in spec
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN", "SYS_PTRACE"]},
        }
        assert "volumes" not in spec

    def test_its_command_accepts_the_arguments(self, chart: Chart) -> None:
        values = {"nicExporter": {"enabled": True, "dpdkTelemetry": ["/var/run/dpdk/*/dpdk_telemetry.v2"]}}
        (container,) = self.pod(chart, values)["spec"]["containers"]
        name, *arguments = container["args"]
        assert name == nic_exporter.name
        result = CliRunner().invoke(nic_exporter, [*arguments, "--help"])
        assert result.exit_code == 0
        with nic_exporter.make_context("nic-exporter", list(arguments)) as context:
            assert context.params["dpdk"] == ("/var/run/dpdk/*/dpdk_telemetry.v2",)
            assert (context.params["port"], context.params["interval_s"], context.params["window_s"]) == (9111, 1, 15)
        assert container["env"] == [
            {"name": "SLUICE_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        ]

    def test_sockets_of_dpdk_are_mounted_where_they_are_looked_for(self, chart: Chart) -> None:
        values = {"nicExporter": {"enabled": True, "dpdkTelemetry": ["/var/run/dpdk/rte/dpdk_telemetry.v2"]}}
        spec = self.pod(chart, values)["spec"]
        assert spec["volumes"] == [{"name": "dpdk", "hostPath": {"path": "/var/run/dpdk", "type": "DirectoryOrCreate"}}]
        assert spec["containers"][0]["volumeMounts"] == [
            {"name": "dpdk", "mountPath": "/var/run/dpdk", "readOnly": True}
        ]

    def test_it_may_list_pods_and_nothing_else(self, chart: Chart) -> None:
        manifests = chart.render(self.VALUES, release="a", namespace="one")
        role = one(manifests, "ClusterRole", "one.a-sluice-nic")
        assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        binding = one(manifests, "ClusterRoleBinding", "one.a-sluice-nic")
        assert binding["roleRef"]["name"] == "one.a-sluice-nic"
        account = one(manifests, "DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "one"}]
        assert account in {each["metadata"]["name"] for each in of_kind(manifests, "ServiceAccount")}
        without = chart.render({**self.VALUES, "rbac": {"create": False}})
        assert of_kind(without, "ClusterRole", "ClusterRoleBinding") == []

    def test_the_operator_does_not_select_its_pods(self, chart: Chart) -> None:
        manifests = chart.render({**self.VALUES, "serviceMonitor": {"enabled": True, "labels": {"release": "kps"}}})
        labels = one(manifests, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
        for selector in (
            one(manifests, "Deployment")["spec"]["selector"]["matchLabels"],
            one(manifests, "Service")["spec"]["selector"],
            one(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        ):
            assert not selector.items() <= labels.items()
        assert one(manifests, "DaemonSet")["spec"]["selector"]["matchLabels"].items() <= labels.items()

    def test_the_labels_of_its_series_are_honoured(self, chart: Chart) -> None:
        manifests = chart.render({**self.VALUES, "serviceMonitor": {"enabled": True, "labels": {"release": "kps"}}})
        monitor = one(manifests, "PodMonitor")
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True
        (container,) = one(manifests, "DaemonSet")["spec"]["template"]["spec"]["containers"]
        assert endpoint["port"] in {port["name"] for port in container["ports"]}
        assert monitor["metadata"]["labels"]["release"] == "kps"

    def test_it_runs_on_tainted_nodes_unless_told_otherwise(self, chart: Chart) -> None:
        assert self.pod(chart)["spec"]["tolerations"] == [{"operator": "Exists"}]
        narrow = {"nicExporter": {"enabled": True, "tolerations": [], "nodeSelector": {"a": "b"}}}
        spec = self.pod(chart, narrow)["spec"]
        assert "tolerations" not in spec
        assert spec["nodeSelector"] == {"a": "b"}

    @pytest.mark.parametrize(
        "wrong",
        [
            {"port": 80},
            {"interval": "1"},
            {"interval": "0s"},
            {"window": "0.0m0s"},
            {"dpdkTelemetry": ["/tmp/socket"]},
            {"dpdkTelemetry": ["/var/run/dpdk/../socket"]},
            {"dpdkTelemetry": ["/var/run/dpdk/**/socket"]},
            {"portt": 9111},
        ],
    )
    def test_wrong_values_are_refused(self, chart: Chart, wrong: dict[str, Any]) -> None:
        with pytest.raises(ChartRefused, match="nicExporter"):
            chart.render({"nicExporter": {"enabled": True, **wrong}})
