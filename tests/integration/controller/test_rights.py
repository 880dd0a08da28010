"""The operator's role is the least it needs: what it asks of the API server in its work is what it is granted.

A right that is taken from `rbac.yaml` leaves a request without one, a right that is added is asked for by nothing.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest
import yaml
from fault_proxy import SCALES, Passed, Refuse
from kubernetes import client
from rows import KEDA
from story import settle
from world import NAMESPACE, QUICK, Operator, World, pipeline, until

from simulations.lab.host.binaries import ensure

pytestmark = pytest.mark.lab

RBAC = Path(__file__).parents[3] / "controller" / "kube" / "rbac.yaml"
_COLLECTION = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/[^/]+)?/(?P<resource>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?"
)


class Right(NamedTuple):
    """One verb on one kind."""

    group: str
    resource: str
    verb: str


def granted() -> set[Right]:
    """Return every right of the manifest."""
    return {
        Right(group, resource, verb)
        for document in yaml.safe_load_all(RBAC.read_text())
        if document["kind"] in {"ClusterRole", "Role"}
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed(passed: Passed) -> Right | None:
    """Return the right that a request needs; None for what everybody may ask, as which kinds there are."""
    found = _COLLECTION.fullmatch(unquote(passed.asked.path))
    if found is None:
        return None
    resource = found["resource"] + (f"/{found['subresource']}" if found["subresource"] else "")
    read = "watch" if passed.asked.is_watch else "get" if found["name"] else "list"
    verb = {"GET": read, "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}[passed.asked.method]
    return Right(found["group"] or "", resource, verb)


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """An operator that has done all of its work once, under the role of the manifest."""
    with World(tmp_path_factory.mktemp("rights"), ensure(print)) as world:
        extensions = client.ApiextensionsV1Api(world.core.api_client)
        extensions.create_custom_resource_definition(KEDA)
        stateful = _stateful_set(world)
        read_anew = {Right("apps", f"{kind}/scale", "get") for kind in ("deployments", "statefulsets")}
        world.begin()
        operator = world.operator()
        settle(world, operator)
        with operator.api.fault(Refuse(status=409), SCALES):  # somebody else was first: it reads, and tries once more
            world.create(stateful)
            world.offered["main"] = world.MUCH
            until(lambda: read_anew <= _used(operator), what="both kinds of scales to be read")
        until(
            lambda: world.apps.read_namespaced_stateful_set("set-plenty", NAMESPACE).spec.replicas == 1,
            what="the StatefulSet to be scaled",
        )
        world.cordon("scarce")
        world.lose_a_pod("spare-scarce")
        until(lambda: world.replicas("main-plenty") == world.CAPPED, what="main at its cap")
        until(lambda: world.replicas("spare-plenty") > 0, what="spare on the other pool")
        world.offered["main"] = world.BASE["main"]
        until(lambda: world.replicas("main-plenty") < world.CAPPED, what="main to go down")
        leases = client.CoordinationV1Api(world.core.api_client)
        leases.delete_namespaced_lease("sluice", "sluice-system")
        until(lambda: len(leases.list_namespaced_lease("sluice-system").items) == 1, what="the Lease to be made anew")
        cycles = operator.cycles()
        until(lambda: operator.cycles() >= cycles + 2, what="two cycles")
        yield operator


def _used(operator: Operator) -> set[Right]:
    return {right for passed in tuple(operator.api.passed) if (right := needed(passed)) is not None}


def _stateful_set(world: World) -> dict[str, object]:
    """Make a StatefulSet without replicas; return a pipeline that wants one of it."""
    labels = {"app": "set-plenty"}
    container = {"name": "server", "image": "none"}
    world.apps.create_namespaced_stateful_set(
        NAMESPACE,
        {
            "metadata": {"name": "set-plenty"},
            "spec": {
                "replicas": 0,
                "serviceName": "set",
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [container], "nodeSelector": {"sluice.dev/pool": "plenty"}},
                },
            },
        },
    )
    wanted = pipeline("set", "plenty", budget="1", pace=QUICK)
    (placement,) = wanted["spec"]["stages"][0]["placements"]
    placement["target"]["kind"] = "StatefulSet"
    placement["replicas"] = {"min": 1, "max": 2}
    return wanted


def test_no_request_was_without_its_right(operator: Operator) -> None:
    refused = {(passed.asked.method, passed.asked.path) for passed in operator.api.passed if passed.status == 403}
    assert refused == set()


def test_every_right_is_used_and_no_other_is_needed(operator: Operator) -> None:
    assert _used(operator) == granted()
