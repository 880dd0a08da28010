"""Roles, bindings and policies: those of `controller/kube`, with the names and the scope of the release."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_chart import Chart, ChartRefused, Manifest, Values, of_kind, one

KUBE = Path(__file__).parents[2] / "controller" / "kube"
ONE_NAMESPACE = {"watchNamespaces": ["speech"]}

STATUSES_OF_THE_CLUSTER = {("sluice.dev", kind, "patch") for kind in ("computepools/status", "computebudgets/status")}
Rule = tuple[str, str, str]


def source(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((KUBE / name).read_text()))


def rules(*roles: Manifest) -> set[Rule]:
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def subjects(manifests: list[Manifest]) -> list[Any]:
    bindings = of_kind(manifests, "RoleBinding", "ClusterRoleBinding")
    return [subject for binding in bindings for subject in binding["subjects"]]


def test_an_operator_of_all_namespaces_has_the_rules_that_were_tested(chart: Chart) -> None:
    manifests, tested = chart.render(), source("rbac.yaml")
    assert rules(one(manifests, "ClusterRole")) == rules(one(tested, "ClusterRole"))
    assert rules(one(manifests, "Role")) == rules(one(tested, "Role"))


def test_an_operator_of_some_namespaces_has_them_there_and_reads_what_has_no_namespace(chart: Chart) -> None:
    manifests = chart.render({"watchNamespaces": ["speech", "batch"]})
    granted = [role for role in of_kind(manifests, "Role") if role["metadata"]["name"] == "sluice-operator"]
    assert [role["metadata"]["namespace"] for role in granted] == ["speech", "batch"]
    wide = rules(one(manifests, "ClusterRole"))
    assert wide == {
        *(
            ("sluice.dev", kind, verb)
            for kind in ("computepools", "computebudgets")
            for verb in ("get", "list", "watch")
        ),
        *(("", kind, verb) for kind in ("namespaces", "nodes") for verb in ("list", "watch")),
        *(("karpenter.sh", kind, verb) for kind in ("nodepools", "nodeclaims") for verb in ("list", "watch")),
        ("coordination.k8s.io", "leases", "get"),
    }
    everything = rules(one(source("rbac.yaml"), "ClusterRole"))
    for role in granted:
        assert rules(role) == everything - wide - STATUSES_OF_THE_CLUSTER


def test_an_operator_that_is_told_to_writes_the_status_of_pools_and_events_about_them(chart: Chart) -> None:
    manifests = chart.render({**ONE_NAMESPACE, "operator": {"poolStatus": "Always"}})
    assert rules(one(manifests, "ClusterRole")) >= STATUSES_OF_THE_CLUSTER
    (role,) = (role for role in of_kind(manifests, "Role") if role["metadata"]["namespace"] == "default")
    assert rules(role) == {("", "events", "create")}
    never = chart.render({"operator": {"poolStatus": "Never"}})
    assert rules(one(never, "ClusterRole")).isdisjoint(STATUSES_OF_THE_CLUSTER)


@pytest.mark.parametrize("values", [{}, ONE_NAMESPACE])
def test_further_rules_are_granted_where_workloads_are(chart: Chart, values: Values) -> None:
    extra = {
        "apiGroups": ["leaderworkerset.x-k8s.io"],
        "resources": ["leaderworkersets/scale"],
        "verbs": ["get", "patch"],
    }
    manifests = chart.render({**values, "rbac": {"extraRules": [extra]}})
    role = one(manifests, "Role" if values else "ClusterRole", "sluice-operator")
    assert extra in role["rules"]


@pytest.mark.parametrize("values", [{}, ONE_NAMESPACE])
def test_config_maps_are_read_and_written_only_where_batch_settings_are(chart: Chart, values: Values) -> None:
    without = rules(*of_kind(chart.render(values), "Role", "ClusterRole"))
    assert not any(resource == "configmaps" for _, resource, _ in without)
    manifests = chart.render({**values, "rbac": {"batching": True}})
    granted = one(manifests, "Role" if values else "ClusterRole", "sluice-operator")
    added = {("", "configmaps", "get"), ("", "configmaps", "patch")}
    assert rules(granted) >= added
    assert rules(*of_kind(manifests, "Role", "ClusterRole")) - without == added


@pytest.mark.parametrize("values", [{}, ONE_NAMESPACE])
def test_every_grant_is_to_the_releases_account(chart: Chart, values: Values) -> None:
    manifests = chart.render(values, release="a", namespace="one")
    account = {"kind": "ServiceAccount", "name": "a-sluice", "namespace": "one"}
    assert all(subject == account for subject in subjects(manifests))
    assert one(manifests, "ServiceAccount")["metadata"]["name"] == "a-sluice"
    assert one(manifests, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "a-sluice"
    own = {"serviceAccount": {"create": False, "name": "theirs"}}
    given = chart.render({**values, **own})
    assert of_kind(given, "ServiceAccount") == []
    assert {subject["name"] for subject in subjects(given)} == {"theirs"}
    with pytest.raises(ChartRefused, match="name: required with create: false"):
        chart.render({"serviceAccount": {"create": False}})


def test_without_roles_none_is_made(chart: Chart) -> None:
    manifests = chart.render({"rbac": {"create": False}})
    assert of_kind(manifests, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "Lease") == []


def identities(manifests: list[Manifest]) -> set[tuple[str, str, str]]:
    return {
        (manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"])
        for manifest in manifests
    }


@pytest.mark.parametrize(
    ("release", "namespace", "other"),
    [("sluice", "two", "sluice"), ("other", "one", "sluice"), ("sluice", "one-a", "a-sluice")],
)
def test_releases_of_disjoint_namespaces_share_no_object(
    chart: Chart, release: str, namespace: str, other: str
) -> None:
    first = chart.render(ONE_NAMESPACE, release=other, namespace="one")
    values = {"watchNamespaces": ["batch"], "crds": {"install": False}}
    assert not identities(first) & identities(chart.render(values, release=release, namespace=namespace))


@pytest.mark.parametrize("values", [{}, ONE_NAMESPACE])
def test_releases_of_one_scope_share_an_object_so_that_helm_refuses_the_second(chart: Chart, values: Values) -> None:
    no_crds = {**values, "crds": {"install": False}}
    first = chart.render(no_crds, release="a", namespace="one")
    second = chart.render(no_crds, release="b", namespace="two")
    assert {name for _, _, name in identities(first) & identities(second)} == {"sluice-operator"}


class TestPolicies:
    KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")

    @staticmethod
    def by_suffix(manifests: list[Manifest], prefix: str) -> dict[tuple[str, str], Manifest]:
        return {
            (manifest["kind"], manifest["metadata"]["name"].removeprefix(prefix)): manifest["spec"]
            for manifest in of_kind(manifests, *TestPolicies.KINDS)
        }

    def test_are_those_that_were_tested(self, chart: Chart) -> None:
        """With the account, the Lease and the names that the sources have, they are the same."""
        rendered = self.by_suffix(chart.render(), "sluice-system.sluice-")
        tested = self.by_suffix(source("admission.yaml"), "sluice-")
        for specs in (rendered, tested):
            for spec in specs.values():
                spec.pop("policyName", None)
        assert rendered == tested

    def test_name_the_account_and_the_lease_of_the_release(self, chart: Chart) -> None:
        manifests = chart.render({"serviceAccount": {"name": "acting"}}, release="a", namespace="one")
        specs = self.by_suffix(manifests, "one.a-sluice-")
        for suffix in ("one-writer", "replicas-alone"):
            (condition,) = specs[self.KINDS[0], suffix]["matchConditions"]
            assert condition["expression"] == 'request.userInfo.username == "system:serviceaccount:one:acting"'
        parameter = specs[self.KINDS[1], "one-writer"]["paramRef"]
        lease = one(manifests, "Lease")["metadata"]
        assert (parameter["namespace"], parameter["name"]) == (lease["namespace"], lease["name"])
        assert "sluice-system" not in yaml.safe_dump(of_kind(manifests, *self.KINDS))

    def test_each_binding_names_its_policy(self, chart: Chart) -> None:
        manifests = chart.render(release="a", namespace="one")
        policies = {policy["metadata"]["name"] for policy in of_kind(manifests, self.KINDS[0])}
        assert {binding["spec"]["policyName"] for binding in of_kind(manifests, self.KINDS[1])} == policies

    def test_about_authors_apply_to_the_releases_namespaces(self, chart: Chart) -> None:
        specs = self.by_suffix(chart.render({"watchNamespaces": ["speech", "batch"]}), "sluice-system.sluice-")
        selector = {
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["speech", "batch"]}
            ]
        }
        found = {
            suffix: spec["matchConstraints"].get("namespaceSelector")
            for (kind, suffix), spec in specs.items()
            if kind == self.KINDS[0]
        }
        assert found == {"one-writer": None, "replicas-alone": None, "own-targets": selector, "priorities": selector}

    def test_have_the_limits_of_priorities(self, chart: Chart) -> None:
        values = {"tenants": {"maxPriority": 10, "maxPriorities": {"speech": 1_000_000_000}}}
        specs = self.by_suffix(chart.render(values), "sluice-system.sluice-")
        limits = specs[self.KINDS[0], "priorities"]["variables"][0]
        assert limits == {"name": "limits", "expression": '{"":10,"speech":1000000000}'}

    def test_can_be_left_out(self, chart: Chart) -> None:
        assert of_kind(chart.render({"admissionPolicies": {"enabled": False}}), *self.KINDS) == []


def test_the_account_has_a_share_of_the_api_server(chart: Chart) -> None:
    schemas = chart.render()
    lease = one(schemas, "FlowSchema", "sluice-system.sluice-lease")
    rest = one(schemas, "FlowSchema", "sluice-system.sluice")
    assert lease["spec"]["priorityLevelConfiguration"]["name"] == "leader-election"
    assert lease["spec"]["matchingPrecedence"] < rest["spec"]["matchingPrecedence"]
    for schema in (lease, rest):
        (rule,) = schema["spec"]["rules"]
        account = {"name": "sluice", "namespace": "sluice-system"}
        assert rule["subjects"] == [{"kind": "ServiceAccount", "serviceAccount": account}]
    assert of_kind(chart.render({"flowSchema": {"enabled": False}}), "FlowSchema") == []
