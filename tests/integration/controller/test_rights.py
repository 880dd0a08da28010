"""The operator's role is the least it needs: what it asks of the API server in its work is what it is granted.

A right that is taken from `rbac.yaml` leaves a request without one, a right that is added is asked for by nothing. The
same holds for the roles of the chart where the operator manages a single namespace.
"""

import gc
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
import yaml
from fault_proxy import SCALES, Passed, Refuse, Where
from helm_chart import Chart, of_kind
from kubernetes import client, utils
from rows import KEDA, VERTICAL_AUTOSCALER, installed, karpenter_kinds
from serve_answers import ServeAnswers, answering
from story import settle
from world import GROUP, NAMESPACE, QUICK, VERSION, Operator, World, pipeline, until

from simulations.lab.host.binaries import ensure, ensure_helm

pytestmark = [
    pytest.mark.lab,
    # A world that ends while its operator runs leaves the proxies' connections to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

RBAC = Path(__file__).parents[3] / "controller" / "kube" / "rbac.yaml"
RAY_SERVICE = Path(__file__).parents[2] / "support" / "ray_service_crd.yaml"
STATUSES = Where(path=".*/speechpipelines/.*/status", methods=("PATCH",))
SYSTEM = "sluice-system"
A_BUDGET = {
    "apiVersion": "sluice.dev/v1alpha1",
    "kind": "ComputeBudget",
    "metadata": {"name": "everybody"},
    "spec": {"namespaceSelector": {}, "perHour": "1000"},
}
_COLLECTION = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?"
)


class Right(NamedTuple):
    """One verb on one kind, in a namespace; None: in all, and on cluster-scoped objects."""

    group: str
    resource: str
    verb: str
    namespace: str | None = None


def granted(documents: Iterable[dict[str, Any]]) -> set[Right]:
    """Return every right of the roles."""
    return {
        Right(group, resource, verb, document["metadata"].get("namespace"))
        for document in documents
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
    return Right(found["group"] or "", resource, verb, found["namespace"])


class Scope(NamedTuple):
    """A world with an operator that has done all of its work once, and the rights that it was granted."""

    operator: Operator
    rights: set[Right]


@pytest.fixture(scope="module", params=["all namespaces", pytest.param("one namespace", marks=pytest.mark.extended)])
def scope(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scope]:
    with (
        World(tmp_path_factory.mktemp("rights"), ensure(print)) as world,
        answering(ServeAnswers("captions", {"ASR": 1})) as dashboard,
    ):
        ray_service = yaml.safe_load(RAY_SERVICE.read_text())
        installed(world, KEDA, VERTICAL_AUTOSCALER, ray_service, *karpenter_kinds())
        others = (_stateful_set(world), _ray_service(world, dashboard))
        world.objects.create_cluster_custom_object("sluice.dev", "v1alpha1", "computebudgets", A_BUDGET)
        world.begin()
        elastic = {"spec": {"capacity": {"nodePool": "scarce"}}}  # its pods are pending later, so Events are read
        world.objects.patch_cluster_custom_object(GROUP, VERSION, "computepools", "scarce", elastic)
        if request.param == "all namespaces":
            rights = granted(yaml.safe_load_all(RBAC.read_text()))
            operator = world.another_operator(ray_hosts=dashboard.removeprefix("http://"))
        else:
            rights = _narrowed(world)
            operator = world.another_operator(namespaces=NAMESPACE, ray_hosts=dashboard.removeprefix("http://"))
        settle(world, operator)
        _work(world, operator, others)
        yield Scope(operator, rights)
    gc.collect()


def _narrowed(world: World) -> set[Right]:
    """Replace the roles of the operator by those of the chart for a single namespace, and return their rights."""
    roles = client.RbacAuthorizationV1Api(world.core.api_client)
    roles.delete_cluster_role_binding("sluice")
    roles.delete_namespaced_role_binding("sluice", SYSTEM)
    rendered = Chart(helm=ensure_helm(print)).render({"watchNamespaces": [NAMESPACE]})
    manifests = of_kind(rendered, "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    for manifest in manifests:
        utils.create_from_dict(world.core.api_client, manifest)
    return granted(manifests)


def _work(world: World, operator: Operator, others: Iterable[dict[str, Any]]) -> None:
    """Make the operator do everything it does."""
    read_anew = {("apps", f"{kind}/scale", "get") for kind in ("deployments", "statefulsets")}
    with operator.api.fault(Refuse(status=409), SCALES):  # somebody else was first: it reads, and tries once more
        for each in others:
            world.create(each)
        world.offered["main"] = world.MUCH
        until(lambda: read_anew <= {right[:3] for right in _used(operator)}, what="both kinds of scales to be read")
    until(
        lambda: world.apps.read_namespaced_stateful_set("set-plenty", NAMESPACE).spec.replicas == 1,
        what="the StatefulSet to be scaled",
    )
    until(lambda: "num_replicas: 2" in _serve_config(world), what="the deployment of Ray Serve to be scaled")
    listed = ("", "namespaces", "list")
    until(
        lambda: listed in {right[:3] for right in _used(operator)}, what="namespaces to be listed for a ComputeBudget"
    )
    world.cordon("scarce")
    world.lose_a_pod("spare-scarce")
    until(lambda: world.replicas("main-plenty") == world.CAPPED, what="main at its cap")
    until(lambda: world.replicas("spare-plenty") > 0, what="spare on the other pool")
    with operator.api.fault(Refuse(status=409), STATUSES):  # it looks whether the pipeline is another one by now
        world.offered["main"] = world.BASE["main"]
        read = ("sluice.dev", "speechpipelines", "get")
        until(lambda: read in {right[:3] for right in _used(operator)}, what="a pipeline to be read")
    until(lambda: world.replicas("main-plenty") < world.CAPPED, what="main to go down")
    claimed = {"status": {"operator": "other-system/sluice"}}  # which has no Lease, so it does not run any more
    other = GROUP, VERSION, NAMESPACE, "speechpipelines", "other"
    world.objects.patch_namespaced_custom_object_status(*other, claimed)
    asked = Right("coordination.k8s.io", "leases", "get", "other-system")
    until(lambda: asked in _used(operator), what="the Lease of another operator to be read")
    leases = client.CoordinationV1Api(world.core.api_client)
    leases.delete_namespaced_lease("sluice", SYSTEM)
    until(lambda: len(leases.list_namespaced_lease(SYSTEM).items) == 1, what="the Lease to be made anew")
    cycles = operator.cycles()
    until(lambda: operator.cycles() >= cycles + 2, what="two cycles")


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


def _ray_service(world: World, dashboard: str) -> dict[str, Any]:
    """Make a RayService with one replica; return a pipeline that wants two of it."""
    config = "applications: [{name: captions, deployments: [{name: ASR, num_replicas: 1}]}]"
    body = {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "captions"}}
    body |= {"spec": {"serveConfigV2": config}}
    world.objects.create_namespaced_custom_object("ray.io", "v1", NAMESPACE, "rayservices", body)
    wanted = pipeline("ray", "plenty", budget="1", pace=QUICK)
    (placement,) = wanted["spec"]["stages"][0]["placements"]
    placement["target"] = {
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "RayServe",
        "name": "captions",
        "application": "captions",
        "deployment": "ASR",
        "address": dashboard,
    }
    placement["replicas"] = {"min": 2, "max": 3}
    return wanted


def _serve_config(world: World) -> str:
    service = world.objects.get_namespaced_custom_object("ray.io", "v1", NAMESPACE, "rayservices", "captions")
    return str(service["spec"]["serveConfigV2"])


def test_no_request_was_without_its_right(scope: Scope) -> None:
    refused = {(passed.asked.method, passed.asked.path) for passed in scope.operator.api.passed if passed.status == 403}
    assert refused == set()


def test_every_right_is_used_and_no_other_is_needed(scope: Scope) -> None:
    everywhere = {right._replace(namespace=None) for right in scope.rights if right.namespace is None}
    used = {
        anywhere if right not in scope.rights and (anywhere := right._replace(namespace=None)) in everywhere else right
        for right in _used(scope.operator)
    }
    # A pool's status and a budget's can be read as a pipeline's can, where a write of it conflicts.
    assert used | {Right("sluice.dev", kind, "get") for kind in ("computepools", "computebudgets")} == scope.rights
