"""The Deployment: what it runs as, its settings, and the objects that belong to it."""

from pathlib import Path
from typing import Any

import pytest
from helm_chart import Chart, ChartRefused, Manifest, Values, of_kind, one

from controller.resources.manifests import parse_documents
from controller.settings import OperatorSettings, load_settings
from profiler.samples import SeriesLabels


def container(manifests: list[Manifest]) -> Manifest:
    (found,) = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def environment(manifests: list[Manifest]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container(manifests)["env"] if "value" in entry}


def settings(chart: Chart, values: Values, monkeypatch: pytest.MonkeyPatch) -> OperatorSettings:
    """Return the settings that the operator reads from the environment of its container."""
    for name, value in environment(chart.render(values)).items():
        monkeypatch.setenv(name, value)
    return load_settings({})


def test_the_chart_passes_helms_strict_check(chart: Chart) -> None:
    assert "0 chart(s) failed" in chart.run("lint", "--strict", chart.folder)


def test_the_defaults_are_the_operators_except_what_a_pod_needs(chart: Chart, monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(chart, {}, monkeypatch)
    url = "http://prometheus-operated.monitoring.svc:9090"
    monkeypatch.undo()
    default = load_settings({"prometheus_url": url})
    pods = {"log_format": "json"}
    assert found.model_dump() == default.model_dump() | pods


def test_every_setting_can_be_reached(chart: Chart) -> None:
    """Those of credentials for the API server are the pod's own, and in a pod the operator listens on every address."""
    values = {
        "operator": {
            "fleetBudget": "40",
            "scrapeEndpoints": ["http://a"],
            "rayHosts": ["ray.example.com:8265"],
            "poolStatus": "Always",
            "presetsConfigMapName": "presets",
        },
        "watchNamespaces": ["speech"],
        "keda": {"enabled": True, "tlsSecretName": "scaler"},
        "tenants": {"restrictQueries": "Never"},
        "aws": {"region": "eu-west-1", "role": "arn:aws:iam::123456789012:role/sluice"},
        "prometheus": {
            "url": "https://prometheus",
            "headers": {"X-Scope-OrgID": "a"},
            "labels": {"match": {"cluster": "eu-1"}},
            "tls": {"caConfigMapName": "ca", "clientSecretName": "client"},
        },
    }
    ways = [
        {"bearerToken": {"secretName": "token"}},
        {"basic": {"username": "sluice", "secretName": "password"}},
        {"sigv4": {"region": "eu-west-1"}},
    ]
    found = {
        entry["name"]
        for auth in ways
        for entry in container(
            chart.render({**values, "prometheus": {**values["prometheus"], "auth": auth}})  # type: ignore[dict-item]
        )["env"]
    }
    shards = of_kind(chart.render({"shards": 2, "shardLabel": "team"}), "Deployment")
    found |= {entry["name"] for entry in shards[0]["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert found == {f"SLUICE_{name.upper()}" for name in OperatorSettings.model_fields} - {
        "SLUICE_KUBECONFIG",
        "SLUICE_HOST",
    }


def test_values_become_settings(chart: Chart, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "watchNamespaces": ["speech", "batch"],
        "operator": {"metrics": ["prometheus", "direct"], "fleetBudget": "40.5", "poolStatus": "Always"},
        "prometheus": {
            "url": "https://mimir/prometheus",
            "headers": {"X-Scope-OrgID": "a|b", "X-Via": "c=d"},
            "auth": {"sigv4": {"region": "eu-west-1"}},
        },
        "tenants": {"restrictQueries": "Never", "maxPriority": 10, "maxPriorities": {"speech": 1_000_000_000}},
        "leaderElection": {"leaseDuration": "20s"},
    }
    found = settings(chart, values, monkeypatch)
    assert found.namespaces == ("speech", "batch")
    assert found.metrics == ("prometheus", "direct")
    assert (str(found.fleet_budget), found.lease_duration) == ("40.5", "20s")
    assert (found.writes_pool_status, found.restricts_queries) == (True, False)
    assert found.prometheus_access.headers == {"X-Scope-OrgID": "a|b", "X-Via": "c=d"}
    assert (found.prometheus_sigv4_region, found.prometheus_sigv4_service) == ("eu-west-1", "aps")
    assert (found.priorities.default, found.priorities.namespaces) == (10, {"speech": 1_000_000_000})


def test_the_labels_of_series_become_settings(chart: Chart, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {"namespace": "ns", "pod": "exported_pod", "match": {"region": "a", "cluster": "eu-1"}}
    found = settings(chart, {"prometheus": {"labels": labels}}, monkeypatch)
    match = (("cluster", "eu-1"), ("region", "a"))
    assert found.series_labels == SeriesLabels(namespace="ns", pod="exported_pod", match=match)


def test_presets_of_users_are_mounted_where_the_operator_reads_them(chart: Chart) -> None:
    manifests = chart.render({"operator": {"presetsConfigMapName": "presets"}})
    pod = one(manifests, "Deployment")["spec"]["template"]["spec"]
    assert {"name": "presets", "configMap": {"name": "presets"}} in pod["volumes"]
    (mount,) = (each for each in container(manifests)["volumeMounts"] if each["name"] == "presets")
    assert environment(manifests)["SLUICE_PRESETS_DIRECTORY"] == mount["mountPath"]
    assert mount["readOnly"]


def test_the_pod_is_restricted_and_gets_no_addresses_of_services(chart: Chart) -> None:
    """Pod Security `restricted`, and a Service called sluice would set SLUICE_PORT."""
    manifests = chart.render()
    for pod in (one(manifests, "Deployment")["spec"]["template"]["spec"], one(manifests, "Pod")["spec"]):
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in pod["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_two_replicas_with_an_election_are_spread_and_kept_from_being_drained_together(chart: Chart) -> None:
    manifests = chart.render()
    deployment = one(manifests, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert environment(manifests)["SLUICE_LEADER_ELECT"] == "true"
    selector = deployment["selector"]["matchLabels"]
    assert one(manifests, "PodDisruptionBudget")["spec"] == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector},
    }
    spread = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert [constraint["topologyKey"] for constraint in spread] == [
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    ]
    labels = deployment["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    assert not selector.items() <= one(manifests, "Pod")["metadata"]["labels"].items()


def test_a_single_replica_without_an_election_is_replaced_before_the_next_begins(chart: Chart) -> None:
    manifests = chart.render({"replicas": 1, "leaderElection": {"enabled": False}})
    assert one(manifests, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert of_kind(manifests, "PodDisruptionBudget", "Lease") == []
    assert not any("one-writer" in policy["metadata"]["name"] for policy in manifests)


@pytest.mark.parametrize(("size", "limit"), [("Small", "512Mi"), ("Medium", "768Mi"), ("Large", "1Gi")])
def test_resources_follow_the_size_of_the_fleet(chart: Chart, size: str, limit: str) -> None:
    resources = container(chart.render({"fleetSize": size}))["resources"]
    assert resources["limits"] == {"memory": limit}
    own = {"requests": {"memory": "1Gi"}}
    assert container(chart.render({"fleetSize": size, "resources": own}))["resources"] == own


class TestCredentials:
    """Files are mounted where the settings say."""

    @pytest.mark.parametrize(
        ("prometheus", "settings", "sources"),
        [
            (
                {"auth": {"bearerToken": {"secretName": "reader", "key": "jwt"}}},
                {"TOKEN_FILE": "token"},
                [{"secret": {"name": "reader", "items": [{"key": "jwt", "path": "token"}]}}],
            ),
            (
                {"auth": {"basic": {"username": "sluice", "secretName": "login"}}},
                {"PASSWORD_FILE": "password"},
                [{"secret": {"name": "login", "items": [{"key": "password", "path": "password"}]}}],
            ),
            (
                {"tls": {"caConfigMapName": "ca", "clientSecretName": "client"}},
                {"CA_FILE": "ca.crt", "CERTIFICATE_FILE": "tls.crt", "KEY_FILE": "tls.key"},
                [
                    {"configMap": {"name": "ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {
                        "secret": {
                            "name": "client",
                            "items": [{"key": "tls.crt", "path": "tls.crt"}, {"key": "tls.key", "path": "tls.key"}],
                        }
                    },
                ],
            ),
        ],
    )
    def test_are_mounted(
        self, chart: Chart, prometheus: dict[str, Any], settings: dict[str, str], sources: list[Manifest]
    ) -> None:
        manifests = chart.render({"prometheus": {"url": "https://prometheus:9090", **prometheus}})
        found = environment(manifests)
        mount = next(mount for mount in container(manifests)["volumeMounts"] if mount["name"] == "prometheus")
        for name, file in settings.items():
            assert Path(found[f"SLUICE_PROMETHEUS_{name}"]) == Path(mount["mountPath"]) / file
        volumes = one(manifests, "Deployment")["spec"]["template"]["spec"]["volumes"]
        assert {"name": "prometheus", "projected": {"sources": sources}} in volumes

    def test_of_the_service_account_need_no_secret(self, chart: Chart) -> None:
        values = {"prometheus": {"auth": {"bearerToken": {"serviceAccount": True}}}}
        manifests = chart.render(values)
        token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
        assert environment(manifests)["SLUICE_PROMETHEUS_TOKEN_FILE"] == token
        assert [mount["name"] for mount in container(manifests)["volumeMounts"]] == ["tmp"]

    def test_are_absent_by_default(self, chart: Chart) -> None:
        names = environment(chart.render())
        assert [name for name in names if name.startswith("SLUICE_PROMETHEUS_")] == ["SLUICE_PROMETHEUS_URL"]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"replicaz": 3}, "additional properties 'replicaz' not allowed"),
        ({"prometheus": {"auth": {"oauth": {}}}}, "additional properties 'oauth' not allowed"),
        ({"operator": {"interval": "15"}}, "/operator/interval"),
        ({"watchNamespaces": ["speech", "speech"]}, "/watchNamespaces"),
        ({"tenants": {"maxPriorities": {"Speech": 1}}}, "/tenants/maxPriorities"),
        ({"prometheus": {"headers": {"X": "a,b"}}}, "/prometheus/headers/X"),
        ({"prometheus": {"labels": {"pod": "exported-pod"}}}, "/prometheus/labels/pod"),
        ({"prometheus": {"labels": {"match": {"cluster": "a,b"}}}}, "/prometheus/labels/match/cluster"),
        ({"operator": {"presetsConfigMapName": "My presets"}}, "/operator/presetsConfigMapName"),
        ({"leaderElection": {"enabled": False}}, "several replicas need it"),
        ({"prometheus": {"url": ""}}, "prometheus.url: required"),
        ({"prometheus": {"auth": {"basic": {"username": "a"}}}}, "needs both username and secretName"),
        (
            {"prometheus": {"auth": {"basic": {"username": "a", "secretName": "b"}, "sigv4": {"region": "c"}}}},
            "set at most one of bearerToken, basic and sigv4",
        ),
        (
            {"prometheus": {"auth": {"bearerToken": {"serviceAccount": True, "secretName": "b"}}}},
            "set either serviceAccount or secretName",
        ),
        ({"prometheus": {"tls": {"caConfigMapName": "ca"}}}, "prometheus.url must begin with https://"),
        ({"prometheus": {"url": "http://a:b@prometheus"}}, "prometheus.url: must not contain credentials"),
        ({"prometheus": {"headers": {"authorization": "Bearer a"}}}, "must not contain Authorization"),
        ({"prometheus": {"headers": {"X": "é"}}}, "/prometheus/headers/X"),
        (
            {"image": {"repository": "localhost:5000/sluice:1"}},
            "image.repository: localhost:5000/sluice:1: must have no tag",
        ),
        ({"image": {"tag": "-1"}}, "/image/tag"),
        ({"fullnameOverride": 60 * "a"}, "/fullnameOverride"),
        ({"keda": {"enabled": True, "port": 8080}}, "keda.port: 8080: must differ from service.port"),
        (
            {"podLabels": {"app.kubernetes.io/name": "a"}},
            "podLabels: app.kubernetes.io/name: the chart sets this label",
        ),
        ({"extraEnv": [{"name": "SLUICE_INTERVAL", "value": "5s"}]}, "extraEnv: SLUICE_INTERVAL: the chart sets"),
        ({"extraEnv": [{"value": "5s"}]}, "/extraEnv/0"),
        ({"prometheusRule": {"enabled": True, "runbookUrl": "the wiki: here"}}, "/prometheusRule/runbookUrl"),
        ({"prometheusRule": {"enabled": True, "runbookUrl": "https://wiki/#a"}}, "/prometheusRule/runbookUrl"),
        ({"operator": {"interval": "0s"}}, "/operator/interval"),
        ({"operator": None}, "missing property 'operator'"),
        ({"networkPolicy": {"enabled": True, "apiServerPorts": None}}, "missing property 'apiServerPorts'"),
        ({"imagePullSecrets": [{}]}, "/imagePullSecrets/0"),
        ({"operator": {"scrapeEndpoints": ["http://a,b"]}}, "/operator/scrapeEndpoints/0"),
        ({"leaderElection": {"leaseDuration": "1s"}}, "/leaderElection/leaseDuration"),
        ({"leaderElection": {"leaseDuration": "2500ms"}}, "/leaderElection/leaseDuration"),
        ({"podDisruptionBudget": {"maxUnavailable": "0%"}}, "/podDisruptionBudget/maxUnavailable"),
    ],
)
def test_mistakes_are_refused_with_their_place(chart: Chart, values: Values, problem: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        chart.render(values)
    assert problem in str(refused.value)


def test_without_prometheus_none_is_set(chart: Chart) -> None:
    found = environment(chart.render({"operator": {"metrics": ["direct"]}, "prometheus": {"url": ""}}))
    assert not any("PROMETHEUS" in name for name in found)


@pytest.mark.parametrize(
    ("version", "accepted"), [("v1.29.9", False), ("v1.30.0", True), ("v1.30.4-eks-a737599", True)]
)
def test_the_server_must_know_the_admission_policies(chart: Chart, version: str, accepted: bool) -> None:
    if accepted:
        assert chart.render(arguments=["--kube-version", version])
    else:
        with pytest.raises(ChartRefused, match="incompatible with Kubernetes"):
            chart.render(arguments=["--kube-version", version])


@pytest.mark.parametrize("release", ["y", "1234", "sluice", "true"])
def test_every_label_and_annotation_is_a_string(chart: Chart, release: str) -> None:
    values = {
        "serviceMonitor": {"enabled": True, "labels": {"release": "1"}},
        "networkPolicy": {"enabled": True},
        "podLabels": {"numeric": "1"},
    }

    def check(node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                if key in {"labels", "annotations", "matchLabels"} and isinstance(value, dict) and key != "properties":
                    assert all(isinstance(text, str) for text in value.values() if not isinstance(text, dict)), value
                check(value)
        elif isinstance(node, list):
            for value in node:
                check(value)

    for manifest in chart.render(values, release=release):
        if manifest["kind"] != "CustomResourceDefinition":
            check(manifest)
        assert isinstance(manifest["metadata"]["name"], str)


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("sluice", "sluice"),
        ("y", "y-sluice"),
        ("1234", "sluice-1234-sluice"),
        ("team.sluice", "team-sluice"),
        (f"{39 * 'a'}-sluice", 39 * "a"),
    ],
)
def test_names_of_services_are_possible_for_every_release(chart: Chart, release: str, name: str) -> None:
    manifests = chart.render(release=release)
    assert one(manifests, "Service")["metadata"]["name"] == name
    assert one(manifests, "Lease")["metadata"]["name"] == environment(manifests)["SLUICE_LEASE_NAME"] == name


def test_a_label_that_is_added_is_there_once(chart: Chart) -> None:
    labels = {"app.kubernetes.io/version": "mine", "release": "prometheus"}
    values = {
        "podLabels": labels,
        "podAnnotations": {"kubectl.kubernetes.io/default-container": "other"},
        "serviceMonitor": {"enabled": True, "labels": labels},
        "prometheusRule": {"enabled": True, "labels": labels},
        "dashboards": {"enabled": True, "labels": labels},
    }
    text = chart.run("template", "sluice", chart.folder, values=values)
    manifests = [document.data for document in parse_documents(text, Path("manifests.yaml"))]  # refuses duplicate keys
    metadata = [each["metadata"] for each in of_kind(manifests, "ServiceMonitor", "PrometheusRule", "ConfigMap")]
    pod = one(manifests, "Deployment")["spec"]["template"]["metadata"]
    for each in (*metadata, pod):
        assert each["labels"].items() >= labels.items()
        assert each["labels"]["app.kubernetes.io/name"] == "sluice"
    assert pod["annotations"] == {"kubectl.kubernetes.io/default-container": "other"}


def test_what_is_empty_by_default_may_be_null(chart: Chart) -> None:
    names = (
        "podLabels",
        "podAnnotations",
        "nodeSelector",
        "tolerations",
        "affinity",
        "resources",
        "watchNamespaces",
        "extraEnv",
    )
    assert chart.render(dict.fromkeys(names)) == chart.render()


def test_the_image_is_named_by_tag_or_digest(chart: Chart) -> None:
    digest = f"sha256:{64 * 'a'}"
    assert container(chart.render())["image"] == "sluice:0.1.0"
    assert container(chart.render({"image": {"repository": "r/s", "tag": "2"}}))["image"] == "r/s:2"
    assert container(chart.render({"image": {"repository": "r/s", "digest": digest}}))["image"] == f"r/s@{digest}"
