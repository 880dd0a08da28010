"""The resources as last seen, fed by watches, lists and our own writes; readers take a consistent copy.

Whatever is newer wins, so the order in which the feeders come does not matter.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from controller.kube.gateway import Json, Listing

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""


@dataclass(slots=True)
class ResourceStore:
    """The objects of one kind."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _objects: dict[Key, Json] = field(default_factory=dict)

    def put(self, resource: Mapping[str, object]) -> None:
        """Take in an object as a watch, a list or a write has shown it, unless a newer version is known."""
        # What the API server keeps for its own bookkeeping can be most of an object.
        slim = {**resource, "metadata": {k: v for k, v in _metadata(resource).items() if k != "managedFields"}}
        with self._lock:
            known = self._objects.get(_key(slim))
            if known is None or _version(known) <= _version(slim):
                self._objects[_key(slim)] = slim

    def remove(self, resource: Mapping[str, object]) -> None:
        """Forget an object that was deleted, unless it has been created again since."""
        with self._lock:
            known = self._objects.get(_key(resource))
            if known is not None and _version(known) <= _version(resource):
                del self._objects[_key(resource)]

    def resync(self, listing: Listing) -> None:
        """Take in a whole list, and forget what it lacks: watches miss deletions while they are interrupted."""
        for resource in listing.items:
            self.put(resource)
        listed = {_key(resource) for resource in listing.items}
        with self._lock:
            ghosts = [
                key
                for key, known in self._objects.items()
                if key not in listed and _version(known) <= int(listing.resource_version)
            ]
            for key in ghosts:
                del self._objects[key]

    def snapshot(self) -> Mapping[Key, Json]:
        """Return all objects as they are now, in the order of their keys; they are not to be changed."""
        with self._lock:
            return MappingProxyType(dict(sorted(self._objects.items())))


def _metadata(resource: Mapping[str, object]) -> Json:
    metadata = resource["metadata"]
    assert isinstance(metadata, Mapping)
    return dict(metadata)


def _key(resource: Mapping[str, object]) -> Key:
    metadata = _metadata(resource)
    return metadata.get("namespace", ""), metadata["name"]


def _version(resource: Mapping[str, object]) -> int:
    # Comparable as numbers by the API's contract since Kubernetes 1.35, and in practice always.
    return int(_metadata(resource)["resourceVersion"])
