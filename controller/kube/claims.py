"""Which operator scales a pipeline, when several are installed: the one that the status names, while it is alive.

Only operators may write statuses, so no tenant can make a claim or take one away. A claim is written with the status,
before any replica is changed, and refused by the API server if the object has changed since it was read: of several
operators that find it unclaimed, one gets it. A claim lasts as long as its operator renews its Lease.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from controller.kube.gateway import LEASES, Gateway, KubeError, NotFound
from controller.kube.server_clock import boot_clock
from controller.kube.shards import Family
from controller.kube.store import KeptResource
from optimizer.model import PipelineKey

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}/[a-z0-9][a-z0-9.-]{0,252}")
_DURATIONS = 20
"""So many durations of its Lease, five minutes with the default, an operator may be away without losing its claims: a
pod that is evicted and scheduled again must find what it scaled."""
_DURATION_S = 15.0  # of a Lease that names none


@dataclass(frozen=True, slots=True)
class _Seen:
    """The Lease of another operator: its resource version, and since when it has had that, in monotonic seconds."""

    version: str
    since_s: float
    alive: bool = True


@dataclass(slots=True)
class Claims:
    """The claims of the operators of this cluster. `own` is the Lease of this one as NAMESPACE/NAME; it may be empty.

    Without a Lease, an operator makes no claim, and leaves alone what others claim. `everywhere` is whether this
    operator manages all namespaces. `clock` returns monotonic seconds. `family` has the Leases of the `count` shards of
    the same fleet, None where it has one: a pipeline that none has claimed is for the shard of its namespace, whatever
    others have there. While claims are `postponed`, none is made but those on the pipelines `unaffected`.
    """

    gateway: Gateway
    own: str = ""
    everywhere: bool = True
    clock: Callable[[], float] = boot_clock
    family: Family | None = None
    count: int = 1
    postponed: bool = False
    unaffected: frozenset[PipelineKey] = frozenset()
    _leases: dict[str, _Seen] = field(default_factory=dict)
    _others: frozenset[str] = frozenset()
    _in_namespace: Mapping[str, frozenset[str]] = field(default_factory=dict)
    _dropped: bool = False

    def begin(self, resources: Iterable[KeptResource]) -> None:
        """Begin a cycle with all pipelines, pools and budgets: read the Leases of the operators that they name."""
        claimed: dict[str, set[str]] = {}
        for each in resources:
            if each.operator:
                claimed.setdefault(each.namespace, set()).add(each.operator)
        named = {name for names in claimed.values() for name in names if name != self.own and _NAME.fullmatch(name)}
        self._leases = {name: self._read(name) for name in sorted(named)}
        self._others = frozenset(name for name, seen in self._leases.items() if seen.alive)
        living = self._others | {self.own}
        self._in_namespace = {namespace: frozenset(names & living) for namespace, names in claimed.items()}

    def elsewhere(self, resource: KeptResource) -> str | None:
        """Return the other operator that `resource` belongs to, None if it is this one's or unclaimed."""
        if resource.operator == self.own or not self._others:
            return None
        if resource.operator in self._others:
            return resource.operator
        here = self._strangers(resource.namespace)
        if not here and self.everywhere and not any(self.own in names for names in self._in_namespace.values()):
            # The pools are claimed by an operator of all namespaces: the first pipeline of a new one is for it.
            here = self._strangers("")
        first = min(here, default=self.own)
        return None if first == self.own else first

    def _strangers(self, namespace: str) -> frozenset[str]:
        """Return the operators with claims in `namespace`, without those of other shards."""
        found, family = self._in_namespace.get(namespace, frozenset()), self.family
        return (
            found if family is None else frozenset(name for name in found if name == self.own or not family.has(name))
        )

    def sibling(self, resource: KeptResource) -> str | None:
        """Return the other shard's operator that `resource` belongs to, None if there is none or it is gone."""
        found = self.elsewhere(resource)
        return found if found is not None and self.family is not None and self.family.has(found) else None

    def runs(self, operator: str) -> bool:
        """Return whether the operator with this Lease runs, or has ended so lately that it may come back."""
        seen = self._leases[operator] = self._read(operator)
        return seen.alive

    def to_make(self, resource: KeptResource) -> bool:
        """Return whether the claim on `resource` is still to be written."""
        return bool(self.own) and resource.operator != self.own and not self._dropped

    def waits(self, pipeline: KeptResource) -> bool:
        """Return whether the claim on `pipeline` is postponed: the entries of this shard lack its replicas."""
        return self.postponed and PipelineKey(f"{pipeline.namespace}/{pipeline.name}") not in self.unaffected

    def made(self, resource: KeptResource) -> None:
        """Note `resource` as it is after its claim was written.

        An API server whose definitions are of an older version drops the field: then no claim is written any more.
        """
        self._dropped = bool(self.own) and resource.operator != self.own

    def _has_no_successor(self, name: str) -> bool:
        """Return whether no shard of the present number has the Lease `name` of the fleet."""
        if self.family is None or not self.family.has(name):
            return False
        index = self.family.index(name)
        return index is None or index >= self.count

    def _read(self, name: str) -> _Seen:
        namespace, _, lease = name.partition("/")
        now_s, before = self.clock(), self._leases.get(name)
        try:
            found = self.gateway.get(LEASES, namespace, lease)
        except NotFound:
            return _Seen("", now_s, alive=False)
        except KubeError as error:  # unknown is not gone
            if before is None:
                _LOG.warning("operator %s counts as running: its Lease cannot be read: %s", name, error)
            return before or _Seen("", now_s)
        version = str(found["metadata"]["resourceVersion"])
        since_s = now_s if before is None or before.version != version else before.since_s
        if (
            self.family is not None
            and not (found.get("spec") or {}).get("holderIdentity")
            and self._has_no_successor(name)
        ):
            return _Seen(version, since_s, alive=False)  # it has released its Lease, and nothing takes it again
        duration_s = float((found.get("spec") or {}).get("leaseDurationSeconds") or _DURATION_S)
        return _Seen(version, since_s, alive=now_s - since_s < _DURATIONS * duration_s)
