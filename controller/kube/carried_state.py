"""What a cycle passes on to the next, and what an earlier process left of it in statuses and in the Lease."""

import logging
from collections.abc import Collection, Mapping

from controller.core.codec import InvalidRecord
from controller.core.state.carry_over import PipelineMemory, PoolMemory, PriceMemory
from controller.core.state.decision import Decision
from controller.core.state.snapshot import Planned
from controller.core.state.spec import PipelineSpec, Target
from controller.kube.durable import memory_from, planned_at_s, planned_from, resumed, written_at_s
from controller.kube.gateway import Json
from controller.kube.kept_memory import KeptMemory
from controller.kube.packed import Packed, Packer
from controller.kube.store import KeptResource
from controller.kube.turns import Turns
from controller.kube.workloads import seconds
from optimizer.model import PoolName

_LOG = logging.getLogger(__name__)


_Left = tuple[PipelineMemory, Planned | None]
"""What a decision about a pipeline leaves for the next one: its memory, and in a large fleet its plan."""


class CarriedState:
    """The memories and plans of the last cycle, by the UID of the resource; before the first cycle the stored ones.

    In a fleet that is assessed in turns, they are packed: as objects, those of thousands would take much memory.
    """

    def __init__(self, interval_s: float) -> None:
        """`interval_s` is the time between cycles."""
        self.turns = Turns()
        """Which pipelines of a large fleet were assessed when."""
        self._interval_s = interval_s
        self._kept: KeptMemory | None = None
        self._left: dict[str, _Left] = {}
        self._packed: dict[str, Packed] = {}
        self._packer = Packer()
        self._pools: Mapping[str, PoolMemory] = {}
        self._prices: Mapping[str, PriceMemory | None] = {}

    def resume_from(self, kept: KeptMemory) -> None:
        """Resume pipelines from what `kept` has, where it is newer than their status."""
        self._kept = kept

    def load(self) -> None:
        """Read what the Lease has, unless that was done before.

        Raises:
            KubeError: the Lease cannot be read.
        """
        if self._kept is not None:
            self._kept.load()

    def remember(
        self, decision: Decision, pools: Mapping[PoolName, KeptResource], standing: Collection[str] = frozenset()
    ) -> None:
        """Keep what `decision` passes on to the next cycle; what earlier cycles passed on is forgotten.

        It is kept of the pipelines with the UIDs `standing`, about which nothing was decided.
        """
        left = {uid: left for uid, left in self._left.items() if uid in standing}
        left |= {each.spec.uid: (each.memory, each.planned) for each in decision.pipelines}
        self._packed = {uid: packed for uid, packed in self._packed.items() if uid in standing}
        if standing:
            self._packed |= {uid: self._packer.pack_value(each) for uid, each in left.items()}
        self._left = {} if standing else left
        self._pools = {pools[pool.name].uid: pool.memory for pool in decision.pools}
        self._prices = {pools[pool.name].uid: pool.price for pool in decision.pools}

    def memory(self, spec: PipelineSpec, resource: KeptResource, now_s: float) -> PipelineMemory:
        """Return the memory of a pipeline, without what is not valid of the stored one."""
        if (left := self._of_last_decision(spec.uid)) is not None:
            return left[0]
        stored = memory_from(self._stored(resource))
        for part in stored.lost:
            _LOG.warning("%s: starting without a part of the memory: %s", spec.key, part)
        window_s = max(spec.scaling.up.stabilization_s, spec.scaling.down.stabilization_s)
        return resumed(stored.memory, now_s, window_s, self._interval_s)

    def planned(self, spec: PipelineSpec, resource: KeptResource) -> Planned | None:
        """Return the plan of a pipeline of a large fleet, None if it has none."""
        if (left := self._of_last_decision(spec.uid)) is not None:
            return left[1]
        try:
            return planned_from(self._stored(resource))
        except InvalidRecord as error:
            _LOG.warning("%s: planned anew: %s", spec.key, error)
            return None

    def planned_at_s(self, resource: KeptResource) -> float | None:
        """Return when an earlier process planned a pipeline, in epoch seconds; None if it has left no plan."""
        kept = None if self._kept is None else self._kept.document(resource.uid)
        return resource.planned_at_s if kept is None else planned_at_s(self._stored(resource))

    def owned(self, resource: KeptResource) -> frozenset[Target]:
        """Return the workloads that a pipeline owned in the last cycle or before a restart."""
        left = self._of_last_decision(resource.uid)
        # What of the stored one cannot be read is reported when it is read for the Snapshot.
        return memory_from(self._stored(resource)).memory.owned if left is None else left[0].owned

    def _of_last_decision(self, uid: str) -> _Left | None:
        """Return what the last decision about a pipeline left, None if this process has made none."""
        if (packed := self._packed.pop(uid, None)) is not None:
            self._left[uid] = packed.value()
        return self._left.get(uid)

    def pool_memory(self, resource: KeptResource) -> PoolMemory:
        """Return the memory of a pool; an empty one where the stored one is not valid."""
        memory = self._pools.get(resource.uid)
        return _stored_pool_memory(resource) if memory is None else memory

    def priced(self, resource: KeptResource) -> PriceMemory | None:
        """Return the price of a pool in the last cycle or before a restart, None where it is not known."""
        known = self._prices.get(resource.uid)
        return _stored_price(resource) if known is None else known

    def _stored(self, resource: KeptResource) -> Json | None:
        """Return the memory document that an earlier process left, the newer one of status and Lease."""
        in_status: Json | None = resource.status().get("memory")
        kept = None if self._kept is None else self._kept.document(resource.uid)
        return kept if kept is not None and written_at_s(kept) >= written_at_s(in_status) else in_status


def _stored_pool_memory(resource: KeptResource) -> PoolMemory:
    """Return the memory that `controller.kube.status` wrote into a pool's status; empty when it is not valid."""
    status = resource.status()
    try:
        until = status.get("unavailableUntil")
        backoff, launch = status.get("backoffSeconds"), status.get("nodeLaunchSeconds")
        instances = status.get("nodePoolInstances")
        return PoolMemory(
            unavailable_until_s=None if until is None else seconds(until),
            backoff_s=None if backoff is None else float(backoff),
            reason=str(status.get("reason", "")),
            launch_s=None if launch is None else float(launch),
            instances=None if instances is None else int(instances),
        )
    except (ValueError, TypeError) as error:
        _LOG.warning("pool %s: starting without memory: %s", resource.name, error)
        return PoolMemory()


def _stored_price(resource: KeptResource) -> PriceMemory | None:
    """Return the price that `controller.kube.status` wrote into a pool's status; None when it is not valid."""
    status = resource.status()
    try:
        per_hour, price = status.get("pricePerHour"), status.get("price") or {}
        if per_hour is None:
            return None
        before, changed = price.get("beforePerHour"), price.get("changedAt")
        counted, risen = price.get("countedPerHour"), price.get("risenAt")
        return PriceMemory(
            per_hour=float(per_hour),
            before_per_hour=None if before is None else float(before),
            changed_at_s=None if changed is None else seconds(changed),
            counted_per_hour=None if counted is None else float(counted),
            risen_at_s=None if risen is None else seconds(risen),
        )
    except (ValueError, TypeError, AttributeError) as error:
        _LOG.warning("pool %s: starting without its last price: %s", resource.name, error)
        return None
