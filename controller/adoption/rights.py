"""The rights that the operator needs, and those that were found missing. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controller.adoption.check import Check
from controller.adoption.inventory import Unread


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one kind of object, or on the object `name` in `namespace`.

    `resource` may have a subresource, as in `deployments/scale`.
    """

    group: str
    resource: str
    verb: str
    namespace: str | None = None
    name: str | None = None

    def within(self, namespace: str) -> "Right":
        """Return the same right in `namespace` alone."""
        return replace(self, namespace=namespace)

    @property
    def is_for_all_namespaces(self) -> bool:
        """Return whether it is about objects in namespaces, and names none."""
        return self.namespace is None and not self._is_of_the_cluster

    @property
    def _is_of_the_cluster(self) -> bool:
        cluster = {"nodes", "namespaces", "computepools", "computebudgets", "nodepools", "nodeclaims", "leases"}
        return self.resource.partition("/")[0] in cluster

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}{name}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Whose rights were asked for, and those that are missing; `Unread` where the server does not say.

    `unmanaged` are namespaces in which every right is missing, while it has rights in others: it does not manage them.
    """

    subject: str
    missing: tuple[Right, ...] | Unread
    unmanaged: tuple[str, ...] = ()


_GRANTED: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("sluice.dev", ("speechpipelines", "computepools", "computebudgets"), ("get", "list", "watch")),
    ("sluice.dev", ("speechpipelines/status", "computepools/status", "computebudgets/status"), ("patch",)),
    ("apps", ("deployments/scale", "statefulsets/scale"), ("get", "patch")),
    ("apps", ("deployments", "statefulsets"), ("list", "watch")),
    ("", ("nodes",), ("list", "watch")),
    ("", ("namespaces",), ("list", "watch")),
    ("", ("pods",), ("list", "watch", "patch")),
    ("", ("events",), ("create", "list")),
    ("karpenter.sh", ("nodepools", "nodeclaims"), ("list", "watch")),
    ("autoscaling", ("horizontalpodautoscalers",), ("list", "watch")),
    ("keda.sh", ("scaledobjects",), ("list", "watch")),
    ("autoscaling.k8s.io", ("verticalpodautoscalers",), ("list", "watch")),
    ("ray.io", ("rayservices",), ("get", "patch")),
    ("coordination.k8s.io", ("leases",), ("get",)),
)
"""The rules of the operator's ClusterRole: API group, resources, verbs."""


def operator_rights(lease_namespace: str, lease_name: str) -> tuple[Right, ...]:
    """Return every right of the operator; those on its Lease are for the Lease of this namespace and name."""
    cluster_wide = (
        Right(group=group, resource=resource, verb=verb)
        for group, resources, verbs in _GRANTED
        for resource in resources
        for verb in verbs
    )
    lease = (
        Right(group="coordination.k8s.io", resource="leases", verb=verb, namespace=lease_namespace, name=name)
        for verb, name in (("get", lease_name), ("patch", lease_name), ("create", None))
    )
    return (*cluster_wide, *lease)


def rights_by_namespace(
    subject: str, rights: Sequence[Right], wide: Sequence[Right], within: Mapping[str, Sequence[Right]]
) -> Rights:
    """Return the missing ones of `rights`, for an operator that may have Roles in some namespaces, not a ClusterRole.

    `wide` are the rights that are missing in the whole cluster, `within` those of them that are missing in each
    namespace too. An operator of some namespaces does not write the status of ComputePools and
    ComputeBudgets.
    """
    every = sum(right.is_for_all_namespaces for right in rights)
    unmanaged = tuple(namespace for namespace, missing in within.items() if len(missing) == every)
    has_roles = any(len(missing) < sum(right.is_for_all_namespaces for right in wide) for missing in within.values())
    reads_the_cluster = any(right.namespace is None and right not in wide for right in rights)
    if not has_roles and not (unmanaged and reads_the_cluster):
        return Rights(subject=subject, missing=tuple(wide))
    unwritten = {"computepools/status", "computebudgets/status"}
    missing = [right for right in wide if not right.is_for_all_namespaces and right.resource not in unwritten]
    missing += [right for namespace, lacking in within.items() if namespace not in unmanaged for right in lacking]
    return Rights(subject=subject, missing=tuple(missing), unmanaged=unmanaged)


def check_rights(rights: Rights) -> Check:
    """Return the check of the operator's rights."""
    if isinstance(rights.missing, Unread):
        message = f"the rights cannot be asked for: {rights.missing.reason}"
        return Check(name="rights", subject=rights.subject, ok=None, message=message)
    problems = []
    if rights.missing:
        problems.append(f"lacks the rights: {', '.join(map(str, rights.missing))}. Add them to its roles")
    if rights.unmanaged:
        problems.append(
            f"has no rights in namespace {', '.join(rights.unmanaged)}, so it does not manage the pipelines there: "
            "add it to watchNamespaces, or name the operator of that namespace with --service-account"
        )
    if problems:
        return Check(name="rights", subject=rights.subject, ok=False, message="; it ".join(problems))
    return Check(name="rights", subject=rights.subject, ok=True, message="has every right that the operator needs")
