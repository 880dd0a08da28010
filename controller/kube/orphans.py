"""Replicas that Sluice scaled and that no pipeline has any more: they cost money until someone sets their count.

They are known from the cycles before, and after a restart from the statuses of the pools. What a pipeline had that was
deleted while no operator ran is not known.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from controller.core.state.snapshot import Orphan, TargetMissing, TargetState
from controller.core.state.spec import SERVE_KIND, Mode, PipelineSpec, ServeDeployment, Target
from optimizer.model import PipelineKey, PlacementKey, PoolName, Size

Json = dict[str, Any]
Name = tuple[str, Target]
"""A workload: its namespace and the target."""
States = Mapping[tuple[PipelineKey, PlacementKey], TargetState | TargetMissing]


class Orphans:
    """The workloads that Sluice scales, and those of them that no pipeline has any more."""

    def __init__(self) -> None:
        self._scaled: dict[Name, Orphan] = {}
        self._orphans: dict[Name, Orphan] = {}
        self.restored = False

    def restore(self, statuses: Mapping[PoolName, Json]) -> None:
        """Add the orphans that the statuses of pools name; what is not valid in them is left out."""
        self.restored = True
        for pool, status in statuses.items():
            self._restore(pool, status)

    def _restore(self, pool: PoolName, status: Json) -> None:
        for each in status.get("orphans") or ():
            try:
                target = _target(each)
                own = Orphan(
                    namespace=str(each["namespace"]),
                    target=target,
                    pipeline=PipelineKey(str(each["pipeline"])),
                    pool=pool,
                    per_instance=_size(each),
                    replicas=max(0, int(each["replicas"])),
                )
            except (KeyError, TypeError, ValueError):
                continue
            self._orphans.setdefault((own.namespace, own.target), own)

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget the workloads of namespaces that are not `wanted`: another shard has them."""
        self._scaled = {name: own for name, own in self._scaled.items() if wanted(name[0])}
        self._orphans = {name: own for name, own in self._orphans.items() if wanted(name[0])}

    @property
    def known(self) -> tuple[Name, ...]:
        """The workloads that no pipeline had in the last cycle."""
        return tuple(self._orphans)

    def to_read(self, specs: Iterable[PipelineSpec]) -> tuple[Name, ...]:
        """Return the workloads that Sluice scaled and that none of `specs`, those of all pipelines, has."""
        named = {(spec.namespace, placement.target) for spec in specs for placement in spec.placements().values()}
        found = {**self._scaled, **self._orphans}
        self._orphans = {name: own for name, own in found.items() if name not in named}
        self._scaled = {name: own for name, own in self._scaled.items() if name in named}
        return tuple(self._orphans)

    def settle(self, states: Mapping[Name, TargetState | TargetMissing]) -> Mapping[PoolName, tuple[Orphan, ...]]:
        """Return the orphans of each pool that still have the replicas that Sluice set; the others are forgotten.

        A workload that cannot be read stays as it was.
        """
        kept: dict[Name, Orphan] = {}
        for name, own in self._orphans.items():
            state = states[name]
            if isinstance(state, TargetMissing):
                if state.unreadable:
                    kept[name] = own
            elif state.desired == own.replicas and state.observed > 0:
                kept[name] = own.now(state)
        self._orphans = kept
        pools = {own.pool for own in kept.values()}
        return {pool: tuple(own for own in kept.values() if own.pool == pool) for pool in pools}

    def remember(self, specs: Iterable[PipelineSpec], states: States) -> None:
        """Remember what Sluice scales: the workloads of pipelines in mode Auto, and later those left as it set them."""
        for spec in specs:
            for key, placement in spec.placements().items():
                name, state = (spec.namespace, placement.target), states[spec.key, key]
                if isinstance(state, TargetMissing) or state.owner is not None or key[0] in spec.borrowed:
                    continue
                before = self._scaled.get(name)
                if spec.mode is Mode.AUTO:
                    self._scaled[name] = Orphan(
                        namespace=spec.namespace,
                        target=placement.target,
                        pipeline=spec.key,
                        pool=placement.pool,
                        per_instance=state.per_instance(placement.prior.per_instance),
                        replicas=state.desired,
                    ).now(state)
                elif before is not None and before.replicas != state.desired:
                    del self._scaled[name]


def _target(stored: Json) -> Target:
    target = Target(api_version=str(stored["apiVersion"]), kind=str(stored["kind"]), name=str(stored["name"]))
    if target.kind != SERVE_KIND:
        return target
    application, _, deployment = target.name.partition("/")
    address, service = str(stored.get("address") or ""), str(stored.get("rayService") or "")
    serve = ServeDeployment(application=application, deployment=deployment, address=address, service=service)
    return replace(target, serve=serve)


def _size(orphan: Json) -> Size:
    instances = int(orphan.get("instancesPerReplica") or 1)
    return Fraction(1, instances) if instances > 1 else max(1, int(orphan["perInstance"]))
