"""The namespaces of this operator's shard, and the Leases of the other shards. Thread-safe."""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from controller.core.state.shards import Shard
from controller.kube.gateway import Json

_NUMBER = re.compile(r"-(0|[1-9][0-9]{0,4})")


@dataclass(frozen=True, slots=True)
class Family:
    """The Leases of all shards of one fleet: `base` is `NAMESPACE/NAME` without the number of a shard."""

    base: str

    def lease(self, index: int) -> str:
        """Return the Lease of the shard `index` as `NAMESPACE/NAME`."""
        return f"{self.base}-{index}"

    def has(self, operator: str) -> bool:
        """Return whether the Lease `operator` is that of a shard, or of the one operator that there was before."""
        rest = operator.removeprefix(self.base) if operator.startswith(self.base) else None
        return rest is not None and (not rest or _NUMBER.fullmatch(rest) is not None)

    def index(self, operator: str) -> int | None:
        """Return the number of the shard whose Lease `operator` is, None for another operator."""
        rest = operator.removeprefix(self.base) if operator.startswith(self.base) else ""
        found = _NUMBER.fullmatch(rest)
        return None if found is None else int(found[1])


class Members:
    """Which namespaces are of this shard; without one (None), all are.

    With a label, a namespace is of no shard until its labels are known. Those that join or leave the shard later are
    `moves`: what is stored of them is read, or dropped, at the beginning of a cycle (`controller.kube.moves`).
    """

    def __init__(self, shard: Shard | None = None, own: str = "") -> None:
        """`own` is this operator's Lease as `NAMESPACE/NAME`."""
        self.shard = shard
        self.known = threading.Event()
        self._own = own
        self._labels: dict[str, Mapping[str, str]] = {}
        self._adopted: set[str] = set()
        self._leaving: set[str] = set()
        self._lock = threading.Lock()
        if not self.by_label:
            self.known.set()

    @property
    def by_label(self) -> bool:
        """Whether the labels of a namespace select its shard."""
        return self.shard is not None and bool(self.shard.label)

    def has(self, namespace: str) -> bool:
        """Return whether `namespace` is of this shard; what is in no namespace is of all."""
        if self.shard is None or not namespace:
            return True
        return namespace in self._adopted if self.by_label else self.shard.has(namespace, {})

    def keeps(self, resource: Json) -> bool:
        """Return whether a namespaced object is to be stored."""
        return self.has(resource["metadata"].get("namespace", ""))

    def keeps_pipeline(self, resource: Json) -> bool:
        """Return whether a SpeechPipeline is to be stored: also one outside the shard that this operator hands over.

        It is handed over until another operator has claimed it.
        """
        uid, operator = resource["metadata"]["uid"], (resource.get("status") or {}).get("operator") or ""
        keeps = self.keeps(resource)
        with self._lock:
            if not keeps and (operator == self._own or (not operator and uid in self._leaving)):
                self._leaving.add(uid)
                return True
            self._leaving.discard(uid)
        return keeps

    def seen(self, namespace: Json) -> bool:
        """Note the labels of a Namespace. Return True: it is stored."""
        if self.by_label:
            metadata = namespace["metadata"]
            self._labels[metadata["name"]] = metadata.get("labels") or {}
        return True

    def begin(self) -> None:
        """Take the namespaces whose labels are known: all have been listed, and nothing else has."""
        self._adopted = {name for name, labels in self._labels.items() if self._selects(name, labels)}
        self.known.set()

    def moves(self) -> Mapping[str, bool]:
        """Return the namespaces that have joined the shard (True) or left it (False) since they were last taken."""
        if not self.by_label or not self.known.is_set():
            return {}
        labels = dict(self._labels)
        return {
            name: joins
            for name, own in sorted(labels.items())
            if (joins := self._selects(name, own)) != (name in self._adopted)
        }

    def take(self, namespace: str, *, joins: bool) -> None:
        """Let `namespace` be of the shard from now on, or no more."""
        (self._adopted.add if joins else self._adopted.discard)(namespace)

    def _selects(self, name: str, labels: Mapping[str, str]) -> bool:
        return self.shard is None or self.shard.has(name, labels)
