from pathlib import Path

import yaml

from controller.adoption.inventory import Unread
from controller.adoption.rights import Right, Rights, check_rights, operator_rights

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
