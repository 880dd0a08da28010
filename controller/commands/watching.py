"""Follows one object of the API server, for commands with --watch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.kube.gateway import Gateway, Resource

_LASTING_S = 60
"""How long one watch request lasts."""


def versions(gateway: "Gateway", resource: "Resource", namespace: str, name: str) -> Iterator[dict[str, Any]]:
    """Yield the object `name` as it is now, then after each change; end when it is deleted.

    Raises:
        NotFound: it does not exist at first.
        KubeError: the server cannot be reached, or refuses.
    """
    from controller.kube.gateway import Expired, NotFound, Silent

    found = gateway.get(resource, namespace, name)
    while True:
        yield found
        version = found["metadata"]["resourceVersion"]
        try:
            while True:
                stream = gateway.watch(
                    resource, namespace, version, lasting_s=_LASTING_S, fieldSelector=f"metadata.name={name}"
                )
                for event in stream:
                    if event.kind == "DELETED":
                        return
                    version = event.object["metadata"]["resourceVersion"]
                    if event.kind != "BOOKMARK":
                        yield event.object
        except (Expired, Silent):  # what changed meanwhile is in a new read, which fails if the server is away
            try:
                found = gateway.get(resource, namespace, name)
            except NotFound:
                return
