"""Reads from the cluster what `sluice init` and `sluice doctor` need. It changes nothing.

What cannot be read is an `Unread` with the server's reason, so that one missing right does not end the command.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from controller.adoption.inventory import Inventory, Json, Listed, Unread, Workspace, name_of
from controller.adoption.rights import Right, Rights, rights_by_namespace
from controller.core.state.spec import Target
from controller.kube.gateway import (
    AUTOSCALERS,
    DEPLOYMENTS,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    PODS,
    RAY_SERVICES,
    SCALED_OBJECTS,
    STATEFUL_SETS,
    Forbidden,
    Gateway,
    KubeError,
    NotFound,
    Resource,
)

_SERVICES = Resource(api_version="v1", plural="services")
_QUOTAS = Resource(api_version="v1", plural="resourcequotas")
_LIMIT_RANGES = Resource(api_version="v1", plural="limitranges")
_SERVICE_ACCOUNTS = Resource(api_version="v1", plural="serviceaccounts")
_CRDS = Resource(api_version="apiextensions.k8s.io/v1", plural="customresourcedefinitions", namespaced=False)
_REVIEWS = Resource(api_version="authorization.k8s.io/v1", plural="subjectaccessreviews", namespaced=False)
_OWN_REVIEWS = Resource(api_version="authorization.k8s.io/v1", plural="selfsubjectaccessreviews", namespaced=False)
_PARALLEL = 8


class Survey:
    """Reads objects of a cluster through `gateway`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def inventory(self, namespaces: Iterable[str], selector: str | None = None) -> Inventory:
        """Return the nodes of the cluster and the objects of `namespaces`, without the pods of nodes.

        `selector` is a label selector for Deployments, StatefulSets and RayServices.
        """
        return Inventory(
            nodes=self._listed(NODES),
            node_pools=self._listed(NODE_POOLS),
            workspaces={namespace: self._workspace(namespace, selector) for namespace in namespaces},
        )

    def problem(self) -> str:
        """Return why the API server does not answer; empty if it does."""
        try:
            self._gateway.get(NAMESPACES, None, "default")
        except (NotFound, Forbidden):
            return ""
        except KubeError as error:
            return str(error)
        return ""

    def pods_of_nodes(self, nodes: Sequence[str]) -> dict[str, Listed]:
        """Return all pods of each of `nodes`, which are names."""
        with ThreadPoolExecutor(_PARALLEL) as threads:
            return dict(zip(nodes, threads.map(self._pods_of_node, nodes), strict=True))

    def target(self, namespace: str, target: Target) -> str | Unread | None:
        """Return the selector of a workload of any kind with a scale; None if there is no such workload or scale."""
        try:
            return self._gateway.read_scale(namespace, target).selector
        except NotFound:
            return None
        except KubeError as error:
            return Unread(reason=str(error))

    def pods(self, namespace: str, selector: str) -> Listed:
        """Return the pods of `namespace` that match a label selector."""
        return self._listed(PODS, namespace, selector)

    def all_of(self, resource: Resource) -> Listed:
        """Return all objects of a kind, of all namespaces."""
        return self._listed(resource)

    def crd(self, name: str) -> Json | Unread | None:
        """Return a CustomResourceDefinition; None if it is not installed."""
        try:
            return self._gateway.get(_CRDS, None, name)
        except NotFound:
            return None
        except KubeError as error:
            return Unread(reason=str(error))

    def missing_rights(self, account: str, rights: Sequence[Right], namespaces: Sequence[str] = ()) -> Rights:
        """Return which of `rights` the ServiceAccount `account` (NAMESPACE/NAME) does not have.

        A right that it lacks in the whole cluster is enough in each of `namespaces`, those of the pipelines. If there
        is no such account, or its rights may not be asked for, the rights are those of the credentials in use.
        """
        namespace, _, name = account.partition("/")
        subject = f"ServiceAccount {account}"
        try:
            self._gateway.get(_SERVICE_ACCOUNTS, namespace, name)
            return self._rights(subject, rights, namespaces, f"system:serviceaccount:{namespace}:{name}")
        except NotFound:
            why = f"{subject} does not exist"
        except Forbidden:
            why = f"those of {subject} may not be asked for"
        except KubeError as error:
            return Rights(subject=subject, missing=Unread(reason=str(error)))
        subject = f"the credentials in use ({why})"
        try:
            return self._rights(subject, rights, namespaces, None)
        except KubeError as error:
            return Rights(subject=subject, missing=Unread(reason=str(error)))

    def _rights(self, subject: str, rights: Sequence[Right], namespaces: Sequence[str], user: str | None) -> Rights:
        wide = self._refused(rights, user)
        spread = [right for right in wide if right.is_for_all_namespaces]
        within = {each: self._refused([right.within(each) for right in spread], user) for each in namespaces}
        return rights_by_namespace(subject, rights, wide, within)

    def _refused(self, rights: Sequence[Right], user: str | None) -> tuple[Right, ...]:
        with ThreadPoolExecutor(_PARALLEL) as threads:
            allowed = list(threads.map(lambda right: self._allowed(right, user), rights))
        return tuple(right for right, holds in zip(rights, allowed, strict=True) if not holds)

    def _allowed(self, right: Right, user: str | None) -> bool:
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
            "verb": right.verb,
            **({"namespace": right.namespace} if right.namespace else {}),
            **({"name": right.name} if right.name else {}),
        }
        own = user is None
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview" if own else "SubjectAccessReview",
            "spec": {"resourceAttributes": attributes, **({} if own else {"user": user})},
        }
        answer = self._gateway.create(_OWN_REVIEWS if own else _REVIEWS, None, body)
        return bool(answer["status"]["allowed"])

    def _workspace(self, namespace: str, selector: str | None) -> Workspace:
        return Workspace(
            namespace=namespace,
            deployments=self._listed(DEPLOYMENTS, namespace, selector),
            stateful_sets=self._listed(STATEFUL_SETS, namespace, selector),
            services=self._listed(_SERVICES, namespace),
            pods=self._listed(PODS, namespace),
            autoscalers=self._listed(AUTOSCALERS, namespace),
            scaled_objects=self._listed(SCALED_OBJECTS, namespace),
            ray_services=self._listed(RAY_SERVICES, namespace, selector),
            quotas=self._listed(_QUOTAS, namespace),
            limit_ranges=self._listed(_LIMIT_RANGES, namespace),
        )

    def _listed(self, resource: Resource, namespace: str | None = None, selector: str | None = None) -> Listed:
        try:
            return self._gateway.list_all(resource, namespace, selector).items
        except NotFound:  # the kind is not installed
            return ()
        except KubeError as error:
            return Unread(reason=f"{resource.plural}: {error}")

    def _pods_of_node(self, node: str) -> Listed:
        try:
            pages = self._gateway.pages(PODS, None, fieldSelector=f"spec.nodeName={node}")
            return tuple(item for page in pages for item in page.items)
        except KubeError as error:
            return Unread(reason=f"pods of node {node}: {error}")


def sampled_nodes(groups: Iterable[Sequence[Json]]) -> list[str]:
    """Return the name of the first node of each group that has one, each once."""
    return list(dict.fromkeys(name_of(group[0]) for group in groups if group))
