"""The rights that the operator needs, and those that were found missing. Pure."""

from dataclasses import dataclass

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

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}{name}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Whose rights were asked for, and those that are missing; `Unread` where the server does not say."""

    subject: str
    missing: tuple[Right, ...] | Unread


_GRANTED: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("sluice.dev", ("speechpipelines", "computepools"), ("get", "list", "watch")),
    ("sluice.dev", ("speechpipelines/status", "computepools/status"), ("patch",)),
    ("apps", ("deployments/scale", "statefulsets/scale"), ("get", "patch")),
    ("apps", ("deployments", "statefulsets"), ("list", "watch")),
    ("", ("nodes",), ("list", "watch")),
    ("", ("pods",), ("list", "watch", "patch")),
    ("", ("events",), ("create",)),
    ("autoscaling", ("horizontalpodautoscalers",), ("list",)),
    ("keda.sh", ("scaledobjects",), ("list",)),
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


def check_rights(rights: Rights) -> Check:
    """Return the check of the operator's rights."""
    if isinstance(rights.missing, Unread):
        message = f"the rights cannot be asked for: {rights.missing.reason}"
        return Check(name="rights", subject=rights.subject, ok=None, message=message)
    if rights.missing:
        missing = ", ".join(map(str, rights.missing))
        message = f"lacks the rights: {missing}. Add them to its roles"
        return Check(name="rights", subject=rights.subject, ok=False, message=message)
    return Check(name="rights", subject=rights.subject, ok=True, message="has every right that the operator needs")
