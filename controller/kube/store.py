"""Stores of objects as last seen, updated by watches, lists and our own writes; readers get a consistent copy.

Of two versions of an object, the newer resource version is stored, whatever the order in which they arrive.
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from controller.core.state.spec import PAUSE_ANNOTATION, PIN_ANNOTATION
from controller.kube.durable import planned_at_s
from controller.kube.gateway import Json, Listing
from controller.kube.packed import Packed, Packer
from controller.kube.readable import left_out

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""
T = TypeVar("T")
_PACKERS = defaultdict[str, Packer](Packer)


class Store(Generic[T]):
    """The objects of one kind, each in the reduced form that `keep` returns."""

    def __init__(self, keep: Callable[[Json], T], wanted: Callable[[Json], bool] = lambda _: True) -> None:
        """`keep` returns the stored form of an object; objects that are not `wanted` are not stored."""
        self._keep = keep
        self._wanted = wanted
        self._lock = threading.Lock()
        self._objects: dict[Key, tuple[int, T]] = {}

    def put(self, resource: Json) -> None:
        """Store `resource`, an object from the API, unless a newer version of it is stored.

        Of an object that cannot be read, the version that was stored before stays.
        """
        key, version = _key(resource), _version(resource)
        known = self._objects.get(key)
        if known is not None and known[0] > version:
            return
        if not self._wanted(resource):
            self.remove(resource)
            return
        try:
            kept = self._keep(resource)
        except Exception as error:  # noqa: BLE001 -- what another wrote: the last version that could be read stays
            left_out(str(resource.get("kind") or self._keep.__name__.removeprefix("kept_")), "/".join(key), error)
            return
        with self._lock:
            known = self._objects.get(key)
            if known is None or known[0] <= version:
                self._objects[key] = (version, kept)

    def amend(self, key: Key, version: str, change: Callable[[T], T]) -> None:
        """Replace the stored object by `change(object)` at resource version `version`.

        Nothing changes if the object is missing, or stored at that version or a newer one.
        """
        with self._lock:
            known = self._objects.get(key)
            if known is not None and known[0] < int(version):
                self._objects[key] = (int(version), change(known[1]))

    def remove(self, resource: Json) -> None:
        """Remove the deleted object `resource`, unless a newer one of the same name is stored."""
        with self._lock:
            known = self._objects.get(_key(resource))
            if known is not None and known[0] <= _version(resource):
                del self._objects[_key(resource)]

    def drop(self, namespace: str) -> None:
        """Remove the objects of `namespace` that are not wanted any more; none of them is read again here."""
        with self._lock:
            for key in [key for key in self._objects if key[0] == namespace]:
                del self._objects[key]

    def get(self, key: Key) -> T | None:
        """Return the object of this key, which the caller must not change; None if it is not stored."""
        known = self._objects.get(key)
        return None if known is None else known[1]

    def resync(self, pages: Iterable[Listing]) -> str:
        """Store a complete list, remove the objects that it lacks, and return the list's resource version.

        Watches miss deletions while they are interrupted. A list that fails part way removes nothing. `pages` may be
        those of one list after the other, one for each namespace; the version is then that of the first.
        """
        listed: set[Key] = set()
        version = "0"
        for number, page in enumerate(pages):
            if number == 0:  # what appeared after it in a namespace that was already listed is not gone
                version = page.resource_version
            for resource in page.items:
                self.put(resource)
                listed.add(_key(resource))
        with self._lock:
            gone = [key for key, (known, _) in self._objects.items() if key not in listed and known <= int(version)]
            for key in gone:
                del self._objects[key]
        return version

    def snapshot(self) -> Mapping[Key, T]:
        """Return a copy of all objects, in the order of their keys. Callers must not change the objects."""
        with self._lock:
            objects = dict(self._objects)
        return MappingProxyType({key: objects[key][1] for key in sorted(objects)})


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResource:
    """A SpeechPipeline or ComputePool: its identity, and the whole object, packed.

    There can be thousands, and as Python objects they would take many times the memory. `namespace` is empty for
    cluster-scoped kinds. `overrides` are the texts of the annotations that set something beside the spec: a change of
    them leaves the generation as it is. Of its status, `operator` is whose it is (`controller.kube.claims`), and
    `planned_at_s` is when the plan of a pipeline of a large fleet was made, in epoch seconds; None: it has no plan.
    """

    uid: str
    generation: int
    namespace: str
    name: str
    packed: Packed
    overrides: tuple[str | None, ...] = ()
    operator: str = ""
    planned_at_s: float | None = None

    def whole(self) -> Json:
        """Return the resource as in the API, without `metadata.managedFields`."""
        return self.packed.document()

    def status(self) -> Json:
        """Return the status of the resource; empty if it has none."""
        return self.whole().get("status") or {}


def kept_resource(resource: Json) -> KeptResource:
    """Return the stored form of a SpeechPipeline or ComputePool from the API."""
    metadata = resource["metadata"]
    # managedFields can be most of an object, and are not needed.
    rest = {**resource, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}
    annotations, status = metadata.get("annotations") or {}, resource.get("status") or {}
    return KeptResource(
        uid=metadata["uid"],
        generation=metadata["generation"],
        namespace=sys.intern(metadata.get("namespace", "")),
        name=metadata["name"],
        packed=_PACKERS[resource.get("kind", "")].pack(rest),
        overrides=tuple(annotations.get(name) for name in (PAUSE_ANNOTATION, PIN_ANNOTATION)),
        operator=sys.intern(str(status.get("operator") or "")),
        planned_at_s=planned_at_s(status.get("memory")),
    )


class ResourceStore(Store[KeptResource]):
    """The objects of one of the operator's own kinds."""

    def __init__(self, wanted: Callable[[Json], bool] = lambda _: True) -> None:
        """Objects that are not `wanted` are not stored."""
        super().__init__(kept_resource, wanted)

    def put(self, resource: Json) -> None:
        """Store `resource`, unless this version or a newer one is stored, as for most objects of a repeated list."""
        known = self._objects.get(_key(resource))
        if known is None or known[0] < _version(resource) or not self._wanted(resource):
            super().put(resource)

    def sift(self, namespace: str) -> None:
        """Remove those objects of `namespace` that are not wanted any more."""
        for (own, _), kept in self.snapshot().items():
            if own == namespace and not self._wanted(resource := kept.whole()):
                self.remove(resource)


def _key(resource: Json) -> Key:
    metadata = resource["metadata"]
    return sys.intern(metadata.get("namespace", "")), metadata["name"]


def _version(resource: Json) -> int:
    # The API guarantees that versions compare as numbers since Kubernetes 1.35; before, they did in practice.
    return int(resource["metadata"]["resourceVersion"])
