"""A Lease with annotations, as the gateway gives and takes it."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from controller.kube.gateway import LEASES, Conflict, KubeError, Resource


@dataclass
class LeaseLog:
    """The Lease `sluice` in `sluice-system`; patches are merged as by the API server.

    `renewals` is how often the holder renews it between a read and the following write.
    """

    HOLDER: ClassVar[str] = "sluice-0_a"
    holder: str = HOLDER
    annotations: dict[str, str] = field(default_factory=dict)
    version: int = 1
    renewals: int = 0
    error: KubeError | None = None
    patches: int = 0

    def get(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        """Return the Lease."""
        assert (resource, namespace, name) == (LEASES, "sluice-system", "sluice")
        metadata = {"resourceVersion": str(self.version), "annotations": dict(self.annotations)}
        if self.renewals:
            self.renewals -= 1
            self.version += 1
        return {"metadata": metadata, "spec": {"holderIdentity": self.holder}}

    def patch(self, resource: Resource, namespace: str, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        """Merge the annotations of `patch`, which must name the version."""
        assert resource is LEASES
        if self.error is not None:
            raise self.error
        if patch["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("the object has been modified")
        self.version += 1
        self.patches += 1
        for key, value in patch["metadata"]["annotations"].items():
            if value is None:
                self.annotations.pop(key, None)
            else:
                self.annotations[key] = value
        return self.get(resource, namespace, name)
