from pathlib import Path

import yaml

from controller.adoption.inventory import Unread
from controller.adoption.rights import Right, Rights, check_rights, operator_rights, rights_by_namespace

RBAC = Path(__file__).parents[4] / "controller" / "kube" / "rbac.yaml"


def test_the_rights_are_those_of_the_manifest() -> None:
    documents = [each for each in yaml.safe_load_all(RBAC.read_text()) if each["kind"] in {"ClusterRole", "Role"}]
    granted = {
        (group, resource, verb, document["metadata"].get("namespace"), name)
        for document in documents
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [None])
    }
    own = operator_rights("sluice-system", "sluice")
    assert {(each.group, each.resource, each.verb, each.namespace, each.name) for each in own} == granted


def test_missing_rights_are_named() -> None:
    right = Right(group="apps", resource="deployments/scale", verb="patch")
    found = check_rights(Rights(subject="ServiceAccount a/b", missing=(right,)))
    assert found.ok is False
    assert "patch deployments/scale.apps" in found.message
    assert check_rights(Rights(subject="", missing=())).ok is True
    assert check_rights(Rights(subject="", missing=Unread(reason="500"))).ok is None


def test_a_namespace_without_any_right_is_not_managed() -> None:
    found = check_rights(Rights(subject="ServiceAccount a/b", missing=(), unmanaged=("batch",)))
    assert found.ok is False
    assert found.message.startswith("has no rights in namespace batch, so it does not manage the pipelines there")


class TestByNamespace:
    RIGHTS = operator_rights("sluice-system", "sluice")
    SPREAD = tuple(right for right in RIGHTS if right.is_for_all_namespaces)
    PODS = Right(group="", resource="pods", verb="list")

    def missing(self, wide: tuple[Right, ...], **within: tuple[Right, ...]) -> Rights:
        lacking = {name: [right.within(name) for right in rights] for name, rights in within.items()}
        return rights_by_namespace("a/b", self.RIGHTS, wide, lacking)

    def test_roles_are_enough(self) -> None:
        found = self.missing(self.SPREAD, speech=(), batch=())
        assert (found.missing, found.unmanaged) == ((), ())

    def test_what_a_role_lacks_is_named_with_its_namespace(self) -> None:
        found = self.missing(self.SPREAD, speech=(self.PODS,), batch=())
        assert found.missing == (self.PODS.within("speech"),)
        assert str(self.PODS.within("speech")) == "list pods in speech"

    def test_a_namespace_of_another_operator_is_told(self) -> None:
        assert self.missing(self.SPREAD, speech=(), batch=self.SPREAD).unmanaged == ("batch",)
        assert self.missing(self.SPREAD, batch=self.SPREAD).unmanaged == ("batch",)

    def test_what_a_cluster_role_lacks_is_named_once(self) -> None:
        found = self.missing((self.PODS,), speech=(self.PODS,), batch=(self.PODS,))
        assert (found.missing, found.unmanaged) == ((self.PODS,), ())

    def test_without_any_right_all_are_named(self) -> None:
        assert self.missing(self.RIGHTS, speech=self.SPREAD).missing == self.RIGHTS
