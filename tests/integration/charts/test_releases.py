"""Releases of the chart on a real API server, made by the real Helm. Nothing runs their pods here."""

import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from helm_chart import CHART, Chart, ChartRefused, Values, one
from helm_releases import OURS, RESTRICTED, SYSTEM, Releases

from simulations.lab.cluster.control_plane import ControlPlane
from simulations.lab.host.binaries import Binaries, ensure_helm

pytestmark = pytest.mark.lab

NAMESPACES = (SYSTEM, "other-system", "speech", "batch")
EVERYTHING = {"networkPolicy": {"enabled": True}, "dashboards": {"enabled": True}}
NO_CRDS = {"crds": {"install": False}}
PROMETHEUS_OPERATOR = Path(__file__).parent / "fixtures" / "prometheus_operator_crds.yaml.gz"


class Cluster(Releases):
    """An API server with namespaces that enforce the restricted Pod Security standard."""

    def clear(self) -> None:
        for namespace in NAMESPACES:
            for release in self.helm("list", "-q", namespace=namespace, chart=None).split():
                self.helm("uninstall", release, namespace=namespace, chart=None)
        self.kubectl("delete", "customresourcedefinitions", "--all")


@pytest.fixture(scope="module")
def chart() -> Chart:
    return Chart(helm=ensure_helm(print))


@pytest.fixture(scope="module")
def fresh(binaries: Binaries, chart: Chart, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ControlPlane(tmp_path_factory.mktemp("releases"), binaries) as control_plane:
        cluster = Cluster(kubeconfig=control_plane.kubeconfig, kubectl_program=binaries.kubectl, chart=chart)
        for namespace in NAMESPACES:
            cluster.namespace(namespace, RESTRICTED)
        yield cluster


@pytest.fixture
def cluster(fresh: Cluster) -> Iterator[Cluster]:
    yield fresh
    fresh.clear()


@pytest.mark.parametrize("values", [{}, EVERYTHING, {**EVERYTHING, "watchNamespaces": ["speech", "batch"]}])
def test_the_server_accepts_every_object_without_a_warning(cluster: Cluster, chart: Chart, values: Values) -> None:
    for manifest in chart.render(values, release="y"):
        cluster.apply(manifest, "--dry-run=server")


def test_the_crds_of_the_prometheus_operator_know_every_field_of_the_monitor_and_the_rules(
    cluster: Cluster, chart: Chart
) -> None:
    for crd in yaml.safe_load_all(gzip.decompress(PROMETHEUS_OPERATOR.read_bytes())):
        cluster.apply(crd)
        cluster.kubectl("wait", "crd", crd["metadata"]["name"], "--for=condition=Established", "--timeout=30s")
    values = {"serviceMonitor": {"enabled": True, "interval": "30s"}, "prometheusRule": {"enabled": True}}
    manifests = chart.render({**values, "networkPolicy": {"enabled": True}})
    for kind in ("ServiceMonitor", "PrometheusRule"):
        cluster.apply(one(manifests, kind))


def test_pods_meet_the_restricted_standard(cluster: Cluster, chart: Chart) -> None:
    manifests = chart.render()
    template = one(manifests, "Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "operator"}}
    for each in (pod, one(manifests, "Pod")):
        each["metadata"] |= {"namespace": SYSTEM}
        each["spec"].pop("serviceAccountName", None)
        cluster.kubectl("create", "--filename=-", "--dry-run=server", given=each)


def test_nothing_but_the_crds_outlives_the_release(cluster: Cluster) -> None:
    cluster.helm("install", "sluice", values=EVERYTHING)
    assert "Deployment/sluice" in cluster.ours()
    cluster.helm("uninstall", "sluice", chart=None)
    assert cluster.ours() == []
    assert len(cluster.kubectl("get", "crd", "--output=name").split()) == 3
    cluster.helm("install", "sluice")  # takes over the CRDs that were kept


def test_an_upgrade_reaches_the_crds_and_keeps_the_holder_of_the_lease(cluster: Cluster, tmp_path: Path) -> None:
    older = tmp_path / "sluice"
    shutil.copytree(CHART, older)
    file = older / "files" / "crds" / "sluice.dev_computepools.yaml"
    crd = yaml.safe_load(file.read_text())
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    crd["spec"]["versions"][0]["additionalPrinterColumns"] = columns[:1]
    file.write_text("# An older one.\n" + yaml.safe_dump(crd, sort_keys=False))
    cluster.helm("install", "sluice", chart=older)
    path = "--output=jsonpath={.spec.versions[0].additionalPrinterColumns[*].name}"
    assert len(cluster.kubectl("get", "crd", "computepools.sluice.dev", path).split()) == 1
    holder = '{"spec": {"holderIdentity": "sluice-0_1"}}'
    cluster.kubectl("patch", "lease", "sluice", "--namespace", SYSTEM, "--type=merge", "--patch", holder)
    cluster.helm("upgrade", "sluice")
    assert len(cluster.kubectl("get", "crd", "computepools.sluice.dev", path).split()) == len(columns)
    lease = cluster.kubectl("get", "lease", "sluice", "--namespace", SYSTEM, "--output=jsonpath={.spec.holderIdentity}")
    assert lease == "sluice-0_1"


def test_two_releases_with_disjoint_namespaces_stand_side_by_side(cluster: Cluster) -> None:
    cluster.helm("install", "sluice", values={"watchNamespaces": ["speech"]})
    cluster.helm("install", "sluice", values={"watchNamespaces": ["batch"], **NO_CRDS}, namespace="other-system")
    roles = cluster.get("rolebindings", "--all-namespaces", "--selector", OURS)
    granted = {
        item["metadata"]["namespace"]: item["subjects"][0]["namespace"]
        for item in roles["items"]
        if item["metadata"]["name"] == "sluice-operator"
    }
    assert granted == {"speech": SYSTEM, "batch": "other-system"}


@pytest.mark.parametrize(
    ("first", "second", "refusal"),
    [
        (["speech"], ["batch", "speech"], 'Role "sluice-operator" in namespace "speech" exists and cannot be imported'),
        ([], [], 'ClusterRole "sluice-operator" in namespace "" exists and cannot be imported'),
        (["speech"], [], "release one manages namespace speech: name the namespaces of this release"),
        ([], ["speech"], "release one manages all namespaces: give it watchNamespaces first"),
    ],
)
def test_releases_that_overlap_are_refused(cluster: Cluster, first: list[str], second: list[str], refusal: str) -> None:
    cluster.helm("install", "one", values={"watchNamespaces": first})
    before = cluster.ours()
    with pytest.raises(ChartRefused) as refused:
        cluster.helm("install", "two", values={"watchNamespaces": second, **NO_CRDS}, namespace="other-system")
    assert refusal in str(refused.value)
    assert cluster.ours() == before


def test_a_release_changes_its_namespaces(cluster: Cluster) -> None:
    cluster.helm("install", "sluice")
    for namespaces in (["speech"], ["speech", "batch"], []):
        cluster.helm("upgrade", "sluice", values={"watchNamespaces": namespaces})
        kind = "RoleBinding" if namespaces else "ClusterRoleBinding"
        granted = [name for name in cluster.ours() if name.endswith("/sluice-operator") and "Binding" in name]
        assert granted == [f"{kind}/sluice-operator"] * max(1, len(namespaces))
