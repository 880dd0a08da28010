"""Objects as last seen, fed by watches, lists and our own writes; readers take a consistent copy.

Whatever is newer wins, so the order in which the feeders come does not matter.
"""

import json
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from controller.kube.gateway import Json, Listing

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""
T = TypeVar("T")


class Store(Generic[T]):
    """The objects of one kind, each as what `keep` makes of it."""

    def __init__(self, keep: Callable[[Json], T]) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._objects: dict[Key, tuple[int, T]] = {}

    def put(self, resource: Json) -> None:
        """Take in an object as a watch, a list or a write has shown it, unless a newer version is known."""
        key, version = _key(resource), _version(resource)
        known = self._objects.get(key)
        if known is not None and known[0] > version:
            return
        kept = self._keep(resource)
        with self._lock:
            known = self._objects.get(key)
            if known is None or known[0] <= version:
                self._objects[key] = (version, kept)

    def amend(self, key: Key, version: str, change: Callable[[T], T]) -> None:
        """Take in a part of an object that a write of ours has answered with, unless a newer version is known."""
        with self._lock:
            known = self._objects.get(key)
            if known is not None and known[0] < int(version):
                self._objects[key] = (int(version), change(known[1]))

    def remove(self, resource: Json) -> None:
        """Forget an object that was deleted, unless it has been created again since."""
        with self._lock:
            known = self._objects.get(_key(resource))
            if known is not None and known[0] <= _version(resource):
                del self._objects[_key(resource)]

    def resync(self, pages: Iterable[Listing]) -> str:
        """Take in a whole list, page by page, and forget what it lacks; return the version at which it was read.

        Watches miss deletions while they are interrupted. A list that breaks off forgets nothing.
        """
        listed: set[Key] = set()
        version = "0"
        for page in pages:
            version = page.resource_version
            for resource in page.items:
                self.put(resource)
                listed.add(_key(resource))
        with self._lock:
            ghosts = [key for key, (known, _) in self._objects.items() if key not in listed and known <= int(version)]
            for key in ghosts:
                del self._objects[key]
        return version

    def snapshot(self) -> Mapping[Key, T]:
        """Return all objects as they are now, in the order of their keys; they are not to be changed."""
        with self._lock:
            objects = dict(self._objects)
        return MappingProxyType({key: objects[key][1] for key in sorted(objects)})

    def get(self, key: Key) -> T | None:
        """Return an object as it is now, None where it is not there."""
        known = self._objects.get(key)
        return None if known is None else known[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResource:
    """One of Sluice's own resources: which one it is, and all of it as compressed JSON.

    There can be thousands: as objects of Python they would take many times the memory. `namespace` is empty for
    cluster-scoped kinds.
    """

    uid: str
    generation: int
    namespace: str
    name: str
    packed: bytes

    def whole(self) -> Json:
        """Return the resource as the API has it, but for what the server keeps for its own bookkeeping."""
        resource: Json = json.loads(zlib.decompress(self.packed))
        return resource

    def status(self) -> Json:
        """Return its status, empty where it has none."""
        return self.whole().get("status") or {}


def kept_resource(resource: Json) -> KeptResource:
    """Return what is kept of a resource."""
    metadata = resource["metadata"]
    # Who manages which field can be most of an object.
    rest = {**resource, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}
    return KeptResource(
        uid=metadata["uid"],
        generation=metadata["generation"],
        namespace=sys.intern(metadata.get("namespace", "")),
        name=metadata["name"],
        packed=zlib.compress(json.dumps(rest, separators=(",", ":")).encode(), 1),
    )


class ResourceStore(Store[KeptResource]):
    """The objects of one of Sluice's own kinds."""

    def __init__(self) -> None:
        super().__init__(kept_resource)

    def put(self, resource: Json) -> None:
        """Take in an object unless it is known as it is, as nearly all of a repeated list are."""
        known = self._objects.get(_key(resource))
        if known is None or known[0] < _version(resource):
            super().put(resource)


def _key(resource: Json) -> Key:
    metadata = resource["metadata"]
    return sys.intern(metadata.get("namespace", "")), metadata["name"]


def _version(resource: Json) -> int:
    # Comparable as numbers by the API's contract since Kubernetes 1.35, and in practice always.
    return int(resource["metadata"]["resourceVersion"])
