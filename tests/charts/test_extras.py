"""CRDs, monitoring, network policy, the test and the notes."""

import json
import shutil
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from helm_chart import CHART, Chart, ChartRefused, Values, of_kind, one

CRDS = Path(__file__).parents[2] / "crds"
KEEP = {"helm.sh/resource-policy": "keep"}


class TestCrds:
    def test_are_those_of_the_repository_and_outlive_the_release(self, chart: Chart) -> None:
        rendered = {crd["metadata"]["name"]: crd for crd in of_kind(chart.render(), "CustomResourceDefinition")}
        sources = [yaml.safe_load(file.read_text()) for file in CRDS.glob("*.yaml")]
        assert rendered.keys() == {crd["metadata"]["name"] for crd in sources}
        for crd in sources:
            assert rendered[crd["metadata"]["name"]]["spec"] == crd["spec"]
            assert rendered[crd["metadata"]["name"]]["metadata"]["annotations"] == KEEP

    def test_go_with_the_release_if_that_is_wanted(self, chart: Chart) -> None:
        for crd in of_kind(chart.render({"crds": {"keep": False}}), "CustomResourceDefinition"):
            assert "annotations" not in crd["metadata"]

    def test_are_left_to_another_release(self, chart: Chart) -> None:
        assert of_kind(chart.render({"crds": {"install": False}}), "CustomResourceDefinition") == []


class TestMonitoring:
    VALUES: ClassVar[Values] = {
        "serviceMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}, "runbookUrl": "https://wiki/runbook"},
        "dashboards": {"enabled": True, "namespace": "grafana", "annotations": {"grafana_folder": "Sluice"}},
    }

    @pytest.fixture
    def filled(self, chart: Chart, tmp_path: Path) -> Chart:
        """The chart with a dashboard and a rule."""
        folder = tmp_path / "sluice"
        shutil.copytree(CHART, folder)
        shutil.rmtree(folder / "dashboards", ignore_errors=True)
        (folder / "dashboards").mkdir()
        panel = {"title": "{{ pipeline }}", "expr": 'a{b="c"} > 0', "legendFormat": "{{ stage }} & <more>"}
        (folder / "dashboards" / "fleet.json").write_text(json.dumps(panel))
        rule = {
            "alert": "A",
            "expr": "up == 0",
            "annotations": {"runbook_url": "__RUNBOOK_URL__#a", "d": "{{ $value }}"},
        }
        (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "sluice", "rules": [rule]}]}))
        return Chart(helm=chart.helm, folder=folder)

    def test_is_off_by_default(self, filled: Chart) -> None:
        assert of_kind(filled.render(), "ServiceMonitor", "PrometheusRule", "ConfigMap") == []

    def test_finds_the_service_and_keeps_the_operators_labels(self, filled: Chart) -> None:
        manifests = filled.render(self.VALUES)
        monitor, service = one(manifests, "ServiceMonitor"), one(manifests, "Service")
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] == service["spec"]["ports"][0]["name"]
        assert (endpoint["honorLabels"], endpoint["interval"]) == (True, "30s")
        assert monitor["metadata"]["labels"]["release"] == "prometheus"

    def test_has_the_rules_with_links_to_your_runbook(self, filled: Chart) -> None:
        rule = one(filled.render(self.VALUES), "PrometheusRule")
        (alert,) = rule["spec"]["groups"][0]["rules"]
        assert alert["annotations"] == {"runbook_url": "https://wiki/runbook#a", "d": "{{ $value }}"}

    def test_has_a_config_map_for_each_dashboard_as_it_is(self, filled: Chart) -> None:
        found = one(filled.render(self.VALUES), "ConfigMap")
        assert found["metadata"]["namespace"] == "grafana"
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["annotations"] == {"grafana_folder": "Sluice"}
        assert found["data"]["fleet.json"] == (filled.folder / "dashboards" / "fleet.json").read_text()

    def test_without_files_there_is_nothing(self, filled: Chart) -> None:
        shutil.rmtree(filled.folder / "dashboards")
        (filled.folder / "rules.yaml").unlink()
        assert of_kind(filled.render(self.VALUES), "PrometheusRule", "ConfigMap") == []

    def test_renders_with_the_files_of_the_chart(self, chart: Chart) -> None:
        assert chart.render(self.VALUES)


class TestNetworkPolicy:
    def test_is_off_by_default(self, chart: Chart) -> None:
        assert of_kind(chart.render(), "NetworkPolicy") == []

    @pytest.mark.parametrize(
        ("url", "port"),
        [("http://a.b:9090", 9090), ("https://a.b/x", 443), ("http://a.b", 80), ("https://[::1]:9091/x", 9091)],
    )
    def test_opens_the_port_of_prometheus(self, chart: Chart, url: str, port: int) -> None:
        manifests = chart.render({"networkPolicy": {"enabled": True}, "prometheus": {"url": url}})
        spec = one(manifests, "NetworkPolicy")["spec"]
        selector = one(manifests, "Deployment")["spec"]["selector"]
        assert spec["podSelector"] == selector
        ports = [{entry["port"] for entry in rule["ports"]} for rule in spec["egress"]]
        assert ports == [{53}, {443, 6443}, {port}]
        assert spec["ingress"] == [{"ports": [{"port": "http"}]}]

    def test_opens_the_ports_to_which_the_service_of_prometheus_translates(self, chart: Chart) -> None:
        values = {
            "networkPolicy": {"enabled": True, "prometheusPorts": [9090, 9091]},
            "prometheus": {"url": "http://a"},
        }
        ports = one(chart.render(values), "NetworkPolicy")["spec"]["egress"][2]["ports"]
        assert [each["port"] for each in ports] == [9090, 9091]

    def test_is_extended(self, chart: Chart) -> None:
        peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        values = {
            "networkPolicy": {"enabled": True, "metricsFrom": [peer], "extraEgress": [{"to": [peer]}]},
            "operator": {"metrics": ["direct"]},
        }
        spec = one(chart.render(values), "NetworkPolicy")["spec"]
        assert spec["egress"][2:] == [{"to": [peer]}]
        tester, other = spec["ingress"][0]["from"]
        assert other == peer
        manifests = chart.render(values)
        assert tester["podSelector"]["matchLabels"].items() <= one(manifests, "Pod")["metadata"]["labels"].items()


def test_the_test_asks_the_service_whether_cycles_succeed(chart: Chart) -> None:
    manifests = chart.render(release="a", namespace="one")
    pod = one(manifests, "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    service = one(manifests, "Service")
    address = f"http://{service['metadata']['name']}.one.svc:{service['spec']['ports'][0]['port']}/readyz"
    (container,) = pod["spec"]["containers"]
    assert container["args"][1] == address
    compile(container["args"][0], "args", "exec")


def test_the_notes_say_the_next_step(chart: Chart) -> None:
    arguments = ("install", "a", chart.folder, "--namespace", "one", "--dry-run=client")
    notes = chart.run(*arguments).partition("NOTES:")[2]
    assert "helm test a --namespace one" in notes
    assert "image.repository is the default, which no registry has" in notes
    assert "2 replicas in namespace one, for pipelines in all namespaces." in notes
    assert "mode: Recommend" in notes
    values = {"watchNamespaces": ["speech"], "crds": {"install": False}, "replicas": 1, "image": {"repository": "r/s"}}
    narrow = chart.run(*arguments, values=values)
    narrow = narrow.partition("NOTES:")[2]
    assert "1 replica in namespace one, for pipelines in speech." in narrow
    assert "This release has no CRDs" in narrow
    assert "image.repository" not in narrow
    assert "It only reads ComputePools" in narrow


class TestKeda:
    VALUES: ClassVar[Values] = {"keda": {"enabled": True, "port": 9443, "tlsSecretName": "scaler"}}

    def test_is_off_by_default(self, chart: Chart) -> None:
        manifests = chart.render({"networkPolicy": {"enabled": True}, "keda": {"tlsSecretName": "scaler"}})
        (container,) = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
        assert not [entry for entry in container["env"] if entry["name"].startswith("SLUICE_KEDA")]
        assert [port["name"] for port in container["ports"]] == ["http"]
        assert [port["name"] for port in one(manifests, "Service")["spec"]["ports"]] == ["http"]
        assert len(one(manifests, "NetworkPolicy")["spec"]["ingress"]) == 1

    def test_opens_its_port_with_the_certificate(self, chart: Chart) -> None:
        manifests = chart.render(self.VALUES)
        pod = one(manifests, "Deployment")["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        env = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert env["SLUICE_KEDA_ADDRESS"] == "[::]:9443"
        assert {"name": "keda", "secret": {"secretName": "scaler"}} in pod["volumes"]
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "keda"]
        assert env["SLUICE_KEDA_CERTIFICATE_FILE"] == f"{mount['mountPath']}/tls.crt"
        assert env["SLUICE_KEDA_KEY_FILE"] == f"{mount['mountPath']}/tls.key"
        assert {"name": "keda", "containerPort": 9443} in container["ports"]
        assert {"name": "grpc-keda", "port": 9443, "targetPort": "keda"} in one(manifests, "Service")["spec"]["ports"]

    def test_without_a_certificate_there_is_no_volume(self, chart: Chart) -> None:
        pod = one(chart.render({"keda": {"enabled": True}}), "Deployment")["spec"]["template"]["spec"]
        assert "keda" not in {volume["name"] for volume in pod["volumes"]}

    def test_the_network_policy_admits_keda_alone(self, chart: Chart) -> None:
        peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}}
        values = {**self.VALUES, "networkPolicy": {"enabled": True, "kedaFrom": [peer]}}
        ingress = one(chart.render(values), "NetworkPolicy")["spec"]["ingress"]
        assert ingress[1:] == [{"ports": [{"port": "keda"}], "from": [peer]}]

    def test_a_reserved_port_is_refused(self, chart: Chart) -> None:
        with pytest.raises(ChartRefused, match="port"):
            chart.render({"keda": {"enabled": True, "port": 443}})
