from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import Answer, api_server, write_kubeconfig
from made_clusters import a_node, a_workload

from controller.adoption.inventory import Json, Unread, known, name_of
from controller.adoption.rights import Right
from controller.kube.gateway import Gateway
from controller.kube.survey import Survey, sampled_nodes

APPS = "/apis/apps/v1/namespaces/speech"
ACCOUNT = "/api/v1/namespaces/sluice-system/serviceaccounts/sluice"
SCALE = Right(group="apps", resource="deployments/scale", verb="patch")
NODES = Right(group="", resource="nodes", verb="list")
POOL_STATUS = Right(group="sluice.dev", resource="computepools/status", verb="patch")
LEASE = Right(group="coordination.k8s.io", resource="leases", verb="get", namespace="sluice-system", name="sluice")
ANSWERS: dict[str, Answer] = {
    "/api/v1/namespaces/default": {"metadata": {"name": "default"}},
    "/api/v1/nodes": [a_node("c1")],
    f"{APPS}/deployments": [a_workload("vad")],
    f"{APPS}/statefulsets": 403,
    ACCOUNT: {"metadata": {"name": "sluice"}},
}


class Reviews:
    """Answers access reviews: `refused` are the pairs of verb and resource that are not allowed."""

    def __init__(self, *refused: tuple[str, str], may_ask_for_others: bool = True) -> None:
        self.asked: list[tuple[str, Json]] = []
        self._refused = refused
        self._may_ask_for_others = may_ask_for_others

    def __call__(self, path: str, spec: Json) -> Answer:
        self.asked.append((path, spec))
        if path.endswith("/subjectaccessreviews") and not self._may_ask_for_others:
            return 403
        attributes = spec["resourceAttributes"]
        return {"status": {"allowed": (attributes["verb"], attributes["resource"]) not in self._refused}}


@pytest.fixture
def reviews() -> Reviews:
    return Reviews(("patch", "deployments"))


@pytest.fixture
def survey(tmp_path: Path, reviews: Reviews) -> Iterator[Survey]:
    with api_server(tmp_path, ANSWERS, reviews) as kubeconfig, Gateway(kubeconfig) as gateway:
        yield Survey(gateway)


def test_what_is_forbidden_is_unread_with_the_reason_and_what_is_not_installed_is_empty(survey: Survey) -> None:
    inventory = survey.inventory(["speech"])
    workspace = inventory.workspaces["speech"]
    assert [name_of(each) for each in known(workspace.deployments)] == ["vad"]
    assert isinstance(workspace.stateful_sets, Unread)
    assert "403" in workspace.stateful_sets.reason
    assert workspace.scaled_objects == inventory.node_pools == ()
    assert workspace.unread() == (workspace.stateful_sets.reason,)


def test_the_rights_are_those_of_the_operators_account(survey: Survey, reviews: Reviews) -> None:
    rights = survey.missing_rights("sluice-system/sluice", [SCALE, LEASE])
    assert rights.subject == "ServiceAccount sluice-system/sluice"
    assert rights.missing == (SCALE,)
    assert {spec["user"] for _, spec in reviews.asked} == {"system:serviceaccount:sluice-system:sluice"}
    lease = next(spec for _, spec in reviews.asked if spec["resourceAttributes"]["resource"] == "leases")
    assert lease["resourceAttributes"]["name"] == "sluice"
    scale = next(spec for _, spec in reviews.asked if spec["resourceAttributes"]["resource"] == "deployments")
    assert scale["resourceAttributes"]["subresource"] == "scale"


def test_a_right_in_the_namespaces_of_the_pipelines_is_enough(tmp_path: Path) -> None:
    asked = []

    def review(_: str, spec: Json) -> Answer:
        asked.append(spec["resourceAttributes"])
        return {"status": {"allowed": asked[-1].get("namespace") == "speech" or asked[-1]["resource"] == "nodes"}}

    with api_server(tmp_path, ANSWERS, review) as kubeconfig, Gateway(kubeconfig) as gateway:
        survey = Survey(gateway)
        rights = [SCALE, NODES, POOL_STATUS]
        within = survey.missing_rights("sluice-system/sluice", rights, ["speech"])
        beyond = survey.missing_rights("sluice-system/sluice", rights, ["batch", "speech"])
    assert (within.missing, within.unmanaged) == ((), ())
    assert (beyond.missing, beyond.unmanaged) == ((), ("batch",))
    assert not [each for each in asked if each["resource"] == "nodes" and "namespace" in each]


@pytest.mark.parametrize(
    ("account", "others", "why"),
    [
        ("elsewhere/sluice", True, "ServiceAccount elsewhere/sluice does not exist"),
        ("sluice-system/sluice", False, "those of ServiceAccount sluice-system/sluice may not be asked for"),
    ],
)
def test_without_the_account_or_the_right_to_ask_the_own_rights_are_checked(
    tmp_path: Path, account: str, others: bool, why: str
) -> None:
    reviews = Reviews(may_ask_for_others=others)
    with api_server(tmp_path, ANSWERS, reviews) as kubeconfig, Gateway(kubeconfig) as gateway:
        rights = Survey(gateway).missing_rights(account, [SCALE])
    assert rights.subject == f"the credentials in use ({why})"
    assert rights.missing == ()
    assert reviews.asked[-1][0].endswith("/selfsubjectaccessreviews")


def test_rights_that_nobody_tells_are_unread(tmp_path: Path) -> None:
    with api_server(tmp_path, ANSWERS) as kubeconfig, Gateway(kubeconfig) as gateway:
        assert isinstance(Survey(gateway).missing_rights("a/b", [SCALE]).missing, Unread)


def test_a_server_that_does_not_answer_is_a_problem(tmp_path: Path, survey: Survey) -> None:
    assert survey.problem() == ""
    with Gateway(write_kubeconfig(tmp_path, "http://127.0.0.1:1")) as gateway:
        assert Survey(gateway).problem() != ""


def test_a_crd_that_is_not_installed_is_none(survey: Survey) -> None:
    assert survey.crd("speechpipelines.sluice.dev") is None


def test_one_node_of_each_group_is_sampled() -> None:
    groups: list[list[Any]] = [[a_node("a"), a_node("b")], [], [a_node("a")], [a_node("c")]]
    assert sampled_nodes(groups) == ["a", "c"]
